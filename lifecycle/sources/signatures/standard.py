"""Standard Webhooks (https://www.standardwebhooks.com): the id, time and body are signed with HMAC or Ed25519.

The ``cryptography`` package is imported when the first Ed25519 key is read.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

from lifecycle._durations import in_seconds
from lifecycle._util import needs_extra
from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.schemes import (
    any_matches,
    check_time,
    credential,
    encoded,
    header,
    identity,
    key_of,
    shown,
    unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from lifecycle._durations import Duration

__all__ = ["StandardWebhooks"]

_SHARED, _PUBLIC, _PRIVATE = b"whsec_", b"whpk_", b"whsk_"

#: The number of bytes in a public key, and in a private key's seed. The public key may follow the seed.
_KEY_SIZE = 32

_ID, _TIME, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

#: The maximum number of signatures in a header. Rotating secrets requires two or three signatures. We limit the number
#: because verifying an asymmetric signature is expensive, and any client can send signatures.
_MOST_SIGNATURES = 16


class StandardWebhooks:
    """The scheme of the Standard Webhooks specification: ``v1`` (HMAC-SHA256) and ``v1a`` (Ed25519).

    A secret is ``whsec_…`` (shared by both sides) or ``whpk_…`` (the sender's public key, which needs the extra
    ``ed25519``). Each kind of secret verifies only signatures of its own version. Text without a prefix is a shared
    secret in base64. Bytes without a prefix are the key itself. ``whsk_…`` is a private key, used by senders.

    The header may contain several signatures, one of which must match. The delivery id comes from ``webhook-id``, which
    is signed.

    Args:
        secrets: One or more secrets. A signature made with any of the secrets is valid, so you can rotate them.
        tolerance: The maximum number of seconds between ``webhook-timestamp`` and now, in either direction.

    Raises:
        ValueError: if a secret is missing, empty or not base64, or the tolerance is not greater than 0.
        TypeError: if a secret is neither text nor bytes.
        ModuleNotFoundError: if a secret is ``whpk_…`` or ``whsk_…`` and the extra ``ed25519`` is not installed.
    """

    #: The lower-case name of the header that `verify` requires in every request.
    credential_header: str = _SIGNATURE

    def __init__(self, *secrets: str | bytes, tolerance: Duration = 300.0) -> None:
        self._keys = _read_keys(secrets)
        self._tolerance = in_seconds("tolerance", tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Return the id of a request whose signature is valid and within the tolerance.

        Raises:
            VerificationError: if the request is not valid.
        """
        given = _signatures(credential(headers, _SIGNATURE))
        delivery, stamp = header(headers, _ID), header(headers, _TIME)
        check_time(stamp, _TIME, now=now, tolerance=self._tolerance)
        if not _is_id(delivery):
            raise VerificationError(f"{_ID} is not a valid id: printable ASCII without a dot, at most 255 characters")
        content = _content(delivery, stamp, unchanged(body))
        # Try all keys, so that the time taken does not depend on which one matches.
        matches = [key.matches(content, given.get(key.version, [])) for key in self._keys]
        if not any(matches):
            raise VerificationError(
                f"no signature in {_SIGNATURE} is valid: the secret is wrong or the body was changed"
            )
        return delivery

    def sign(self, body: bytes, *, now: float, delivery_id: str) -> dict[str, str]:
        """Return the headers for a request with this body, signed with the first secret.

        Raises:
            ValueError: if the id cannot be signed, or the first secret is a public key.
        """
        if not _is_id(delivery_id):
            raise ValueError(f"delivery_id={delivery_id!r} is not a valid id; use printable ASCII without a dot")
        stamp = str(int(now))
        key = self._keys[0]
        signature = key.sign(_content(delivery_id, stamp, body)).decode()
        return {_ID: delivery_id, _TIME: stamp, _SIGNATURE: f"{key.version},{signature}"}


def _signatures(text: str) -> dict[str, list[bytes]]:
    """Return the signatures by version."""
    parts = text.split()
    if len(parts) > _MOST_SIGNATURES:
        raise VerificationError(f"{_SIGNATURE} has more than {_MOST_SIGNATURES} signatures")
    found: dict[str, list[bytes]] = {}
    for version, _, signature in (part.partition(",") for part in parts):
        found.setdefault(version, []).append(encoded(signature))
    return found


def _is_id(text: str) -> bool:
    """Return whether ``text`` is a valid id.

    If an id could contain a dot, one signature would be valid for different contents.
    """
    return bool(identity(text)) and "." not in text


def _content(delivery: str, stamp: str, body: bytes) -> bytes:
    return f"{delivery}.{stamp}.".encode() + body


# -- keys ------------------------------------------------------------------------------------------------------


class _SharedKey:
    """A shared secret for version ``v1``. Signatures are in base64."""

    version = "v1"

    def __init__(self, key: bytes) -> None:
        self._key = key

    def matches(self, content: bytes, given: Sequence[bytes]) -> bool:
        return any_matches([self.sign(content)], given)

    def sign(self, content: bytes) -> bytes:
        return base64.b64encode(hmac.digest(self._key, content, "sha256"))


class _KeyPair:
    """An Ed25519 key for version ``v1a``. Without a private key, it can verify signatures but not create them."""

    version = "v1a"

    def __init__(self, public: Ed25519PublicKey, private: Ed25519PrivateKey | None = None) -> None:
        self._public = public
        self._private = private

    def matches(self, content: bytes, given: Sequence[bytes]) -> bool:
        return any([self._verifies(content, each) for each in given])  # noqa: C419  # tries all, as for a shared key

    def sign(self, content: bytes) -> bytes:
        if self._private is None:
            raise ValueError("whpk_… is a public key, which can only verify; sign with the matching whsk_…")
        return base64.b64encode(self._private.sign(content))

    def _verifies(self, content: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(base64.b64decode(signature, validate=True), content)
        except (InvalidSignature, ValueError):
            return False
        return True


def _read_keys(secrets: tuple[str | bytes, ...]) -> tuple[_SharedKey | _KeyPair, ...]:
    """Convert the secrets to keys.

    Raises:
        ValueError: if a secret is missing, empty, not base64, or not a key.
        TypeError: if a secret is neither text nor bytes.
        ModuleNotFoundError: for an Ed25519 key if cryptography is not installed.
    """
    if not secrets:
        raise ValueError("no secret was passed; use the whsec_… or whpk_… that the sender shows")
    return tuple(_read(secret) for secret in secrets)


def _read(secret: str | bytes) -> _SharedKey | _KeyPair:
    text = key_of(secret)
    if text.startswith((_PUBLIC, _PRIVATE)):
        return _read_pair(text)
    if isinstance(secret, str) or text.startswith(_SHARED):
        text = key_of(_decoded(text.removeprefix(_SHARED)))
    return _SharedKey(text)


def _read_pair(text: bytes) -> _KeyPair:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ModuleNotFoundError as error:
        what = "an Ed25519 key (whpk_… or whsk_…)"
        raise ModuleNotFoundError(needs_extra(what, "cryptography", "ed25519"), name=error.name) from error
    if text.startswith(_PUBLIC):
        return _KeyPair(Ed25519PublicKey.from_public_bytes(_sized(text.removeprefix(_PUBLIC), _KEY_SIZE)))
    seed = _sized(text.removeprefix(_PRIVATE), _KEY_SIZE, 2 * _KEY_SIZE)[:_KEY_SIZE]
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return _KeyPair(private.public_key(), private)


def _sized(text: bytes, *sizes: int) -> bytes:
    key = _decoded(text)
    if len(key) not in sizes:
        raise ValueError(f"an Ed25519 key has {sizes[0]} bytes, not {len(key)}; copy the whole whpk_… or whsk_…")
    return key


def _decoded(text: bytes) -> bytes:
    """Decode base64 with or without its padding."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError("the secret is not base64; copy the whole whsec_… or whpk_… that the sender shows") from None
