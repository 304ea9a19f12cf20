"""The keys of Standard Webhooks: a shared secret, or a pair of which the receiver has the public half.

cryptography is imported when the first key of a pair is read.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, Protocol

from lifecycle.sources.signatures.checks import any_matches
from lifecycle.sources.signatures.settings import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["Key", "read_keys"]

_SHARED, _PUBLIC, _PRIVATE = b"whsec_", b"whpk_", b"whsk_"

#: Bytes of a public key, and of the seed that a private key is; some append the public key to it.
_KEY_SIZE = 32


class Key(Protocol):
    """Signs and verifies in its own version of the scheme."""

    version: str

    def matches(self, content: bytes, given: Sequence[bytes]) -> bool:
        """Whether one of the signatures in base64 is this key's, for this content."""
        ...

    def sign(self, content: bytes) -> bytes:
        """The signature in base64.

        Raises:
            ValueError: for a key that can only verify.
        """
        ...


class _Shared:
    version = "v1"

    def __init__(self, key: bytes) -> None:
        self._key = key

    def matches(self, content: bytes, given: Sequence[bytes]) -> bool:
        return any_matches([self.sign(content)], given)

    def sign(self, content: bytes) -> bytes:
        return base64.b64encode(hmac.digest(self._key, content, "sha256"))


class _Pair:
    version = "v1a"

    def __init__(self, public: Ed25519PublicKey, private: Ed25519PrivateKey | None = None) -> None:
        self._public = public
        self._private = private

    def matches(self, content: bytes, given: Sequence[bytes]) -> bool:
        return any([self._verifies(content, each) for each in given])  # noqa: C419  # all of them, as for a shared one

    def sign(self, content: bytes) -> bytes:
        if self._private is None:
            raise ValueError("whpk_… is a public key, which can only verify; sign with the whsk_… that belongs to it")
        return base64.b64encode(self._private.sign(content))

    def _verifies(self, content: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(base64.b64decode(signature, validate=True), content)
        except (InvalidSignature, ValueError):
            return False
        return True


def read_keys(secrets: tuple[str | bytes, ...]) -> tuple[Key, ...]:
    """The keys that the secrets stand for.

    Raises:
        ValueError: without a secret, or with one that is empty, no base64, or no key.
        TypeError: for a secret that is neither text nor bytes.
        ImportError: for a key of a pair, where cryptography is not installed.
    """
    if not secrets:
        raise ValueError("no secret was given; pass the whsec_… or whpk_… that the sender shows")
    return tuple(_read(secret) for secret in secrets)


def _read(secret: str | bytes) -> Key:
    text = key_of(secret)
    if text.startswith((_PUBLIC, _PRIVATE)):
        return _read_pair(text)
    if isinstance(secret, str) or text.startswith(_SHARED):
        text = key_of(_decoded(text.removeprefix(_SHARED)))
    return _Shared(text)


def _read_pair(text: bytes) -> _Pair:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ImportError as error:
        raise ImportError(
            "whpk_… is an Ed25519 key, which needs cryptography; "
            "install the extra 'ed25519': pip install 'lifecycle-control[ed25519]'"
        ) from error
    if text.startswith(_PUBLIC):
        return _Pair(Ed25519PublicKey.from_public_bytes(_sized(text.removeprefix(_PUBLIC), _KEY_SIZE)))
    seed = _sized(text.removeprefix(_PRIVATE), _KEY_SIZE, 2 * _KEY_SIZE)[:_KEY_SIZE]
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return _Pair(private.public_key(), private)


def _sized(text: bytes, *sizes: int) -> bytes:
    key = _decoded(text)
    if len(key) not in sizes:
        raise ValueError(f"an Ed25519 key has {sizes[0]} bytes, not {len(key)}; copy the whole whpk_… or whsk_…")
    return key


def _decoded(text: bytes) -> bytes:
    """Base64 with or without its padding."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError("the secret is no base64; copy the whole whsec_… or whpk_… that the sender shows") from None
