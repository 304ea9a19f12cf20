"""Standard Webhooks (https://www.standardwebhooks.com): id, time and body, signed by HMAC or by Ed25519."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.errors import VerificationError
from lifecycle.sources.signatures.checks import check_time, credential, encoded, header, identity, unchanged
from lifecycle.sources.signatures.settings import check_tolerance, shown
from lifecycle.sources.signatures.standard_keys import read_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StandardWebhooks"]

_ID, _TIME, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

#: Rotation needs two or three. Each asymmetric one costs a verification, and strangers shall not order hundreds.
_MOST_SIGNATURES = 16


class StandardWebhooks:
    """The scheme of the Standard Webhooks specification: ``v1`` (HMAC with SHA-256) and ``v1a`` (Ed25519).

    A secret is ``whsec_…`` (shared by both sides) or ``whpk_…`` (the sender's public key, which needs the extra
    ``ed25519``); each verifies signatures of its own kind alone. Text without a prefix is a shared secret in base64,
    and bytes without one are the key itself. ``whsk_…``, a private key, is for who signs.

    Several secrets are for rotation, and so are several signatures in one header: one match will do. ``tolerance`` is
    how many seconds ``webhook-timestamp`` may be off, either way. The delivery id is ``webhook-id``, and is signed.

    Raises:
        ValueError: without a secret, with an empty one or one that is no base64, or for a tolerance not above 0.
        TypeError: for a secret that is neither text nor bytes.
        ImportError: for ``whpk_…`` or ``whsk_…`` where the extra ``ed25519`` is not installed.
    """

    #: Without this header, `verify` refuses whatever the body is. In lower case.
    credential_header: str = _SIGNATURE

    def __init__(self, *secrets: str | bytes, tolerance: float = 300.0) -> None:
        self._keys = read_keys(secrets)
        self._tolerance = check_tolerance(tolerance)

    def __repr__(self) -> str:
        return shown(self, len(self._keys))

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """The id of a request that was signed a short time ago.

        Raises:
            VerificationError: for anything else.
        """
        given = _signatures(credential(headers, _SIGNATURE))
        delivery, stamp = header(headers, _ID), header(headers, _TIME)
        check_time(stamp, _TIME, now=now, tolerance=self._tolerance)
        if not _is_id(delivery):
            raise VerificationError(f"{_ID} is no id: printable ASCII without a dot, at most 255 characters")
        content = _content(delivery, stamp, unchanged(body))
        # All of them, so that the time does not tell which it was.
        matches = [key.matches(content, given.get(key.version, [])) for key in self._keys]
        if not any(matches):
            raise VerificationError(f"no signature in {_SIGNATURE} is right: another secret, or another body")
        return delivery

    def sign(self, body: bytes, *, now: float, delivery_id: str) -> dict[str, str]:
        """The headers of a request with this body, signed with the first secret.

        Raises:
            ValueError: for an id that cannot be signed, and where the first secret is a public key.
        """
        if not _is_id(delivery_id):
            raise ValueError(f"delivery_id={delivery_id!r} is no id; give printable ASCII without a dot")
        stamp = str(int(now))
        key = self._keys[0]
        signature = key.sign(_content(delivery_id, stamp, body)).decode()
        return {_ID: delivery_id, _TIME: stamp, _SIGNATURE: f"{key.version},{signature}"}


def _signatures(text: str) -> dict[str, list[bytes]]:
    """Signatures by version, as they stand there."""
    parts = text.split()
    if len(parts) > _MOST_SIGNATURES:
        raise VerificationError(f"{_SIGNATURE} has more than {_MOST_SIGNATURES} signatures")
    found: dict[str, list[bytes]] = {}
    for version, _, signature in (part.partition(",") for part in parts):
        found.setdefault(version, []).append(encoded(signature))
    return found


def _is_id(text: str) -> bool:
    """Whether it is an id; with a dot in it, one signature would be good for two ways to cut what it signs."""
    return bool(identity(text)) and "." not in text


def _content(delivery: str, stamp: str, body: bytes) -> bytes:
    return f"{delivery}.{stamp}.".encode() + body
