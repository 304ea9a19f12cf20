"""What a verifier is to who uses one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Verifier", "Verify"]


class Verifier(Protocol):
    """What `WebhookSource` asks of its ``verify``.

    Two things it may have besides: the text ``credential_header``, the name in lower case of a header without which it
    refuses whatever the body is, so that the bodies of strangers need not be read; and, where it gives no ids,
    ``replay_key(headers, body)``, a text by which a repetition of a verified request is known.
    """

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """The id of the delivery, or ``""``.

        Raises:
            VerificationError: when the request was not made by somebody who knows the secret.
        """
        ...


class Verify(Protocol):
    """The same as a plain function."""

    def __call__(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """The id of the delivery, or ``""``; raises `VerificationError`."""
        ...
