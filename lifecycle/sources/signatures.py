"""Who sent a webhook: signatures over a request's headers and body, as pure functions of what arrived.

A verifier has ``verify(headers, body, *, now)``: header names in lower case, the body as it was sent, ``now`` in
seconds since the epoch. It returns the id of the delivery, or ``""`` where the scheme has none, and on any input
whatsoever raises `VerificationError` and nothing else. No network, no clock, no logging here.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GitHub", "VerificationError", "Verifier"]

#: An id that is longer is no id.
_LONGEST_ID = 255


class Verifier(Protocol):
    """What `WebhookSource` asks of its ``verify``."""

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """The id of the delivery, or ``""``.

        Raises:
            VerificationError: when the request was not made by somebody who knows the secret.
        """
        ...


class GitHub:
    """GitHub's ``X-Hub-Signature-256``: HMAC with SHA-256 over the body, in hexadecimal digits.

    Several secrets are for rotation: any of them will do. SHA-1, which GitHub sends beside it for the sake of old
    receivers, is not accepted. The delivery id is ``X-GitHub-Delivery``.

    Raises:
        ValueError: without a secret, or with an empty one.
        TypeError: for a secret that is neither text nor bytes.
    """

    def __init__(self, *secrets: str | bytes) -> None:
        self._keys = _keys(secrets)

    def __repr__(self) -> str:
        return f"<GitHub: {len(self._keys)} secret{'s' if len(self._keys) > 1 else ''}>"

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:  # noqa: ARG002  # no timestamp here
        """The delivery id of a request that GitHub signed, or ``""``.

        Raises:
            VerificationError: for anything else; the message says what is wrong, never what would be right.
        """
        scheme, _, given = _signature(headers).partition("=")
        if scheme != "sha256":
            raise VerificationError("the signature in X-Hub-Signature-256 does not begin with 'sha256='")
        if not _any_matches(self._keys, body, _bytes(given)):
            raise VerificationError("the signature in X-Hub-Signature-256 is wrong: another secret, or another body")
        return _id(headers.get("x-github-delivery", ""))


def _signature(headers: Mapping[str, str]) -> str:
    signature = headers.get("x-hub-signature-256")
    if signature is not None:
        return signature
    if "x-hub-signature" in headers:
        raise VerificationError("the request is signed with SHA-1 only, which is refused; send X-Hub-Signature-256")
    raise VerificationError("the request has no signature; set the same secret at the sender (X-Hub-Signature-256)")


def _any_matches(keys: tuple[bytes, ...], body: bytes, given: bytes) -> bool:
    """Whether ``given`` is the digest under one of ``keys``; takes as long whichever it is."""
    matches = False
    for key in keys:
        expected = hmac.digest(key, body, sha256).hex().encode()
        matches |= hmac.compare_digest(expected, given)
    return matches


def _bytes(text: str) -> bytes:
    """Header text as bytes that can be compared: whatever arrived, without an error."""
    return text.encode("utf-8", "surrogatepass")


def _id(text: str) -> str:
    """An id that can be logged and stored, or ``""``."""
    return text if len(text) <= _LONGEST_ID and text.isascii() and text.isprintable() else ""


def _keys(secrets: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
    keys = tuple(_key(secret) for secret in secrets)
    if not keys:
        raise ValueError("no secret was given; pass the one that is set at the sender")
    return keys


def _key(secret: str | bytes) -> bytes:
    if not isinstance(secret, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]  # os.environ.get gives None
        raise TypeError(f"a secret is text or bytes, not {type(secret).__name__}; is the environment variable set?")
    key = secret.encode() if isinstance(secret, str) else secret
    if not key:
        raise ValueError("an empty secret protects nothing; pass the one that is set at the sender")
    return key
