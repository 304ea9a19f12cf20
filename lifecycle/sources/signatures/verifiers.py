"""What a verifier is to who uses one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Verifier"]


class Verifier(Protocol):
    """What `WebhookSource` asks of its ``verify``."""

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """The id of the delivery, or ``""``.

        Raises:
            VerificationError: when the request was not made by somebody who knows the secret.
        """
        ...
