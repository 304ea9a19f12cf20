"""What is said to a client whose request is not taken."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):  # an answer, not a failure of ours
    """Ends a request with an error status; ``reason`` goes to the client and into the log."""

    def __init__(self, status: int, reason: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}

    @classmethod
    def for_now(cls, status: int, reason: str, *, after: float = 1.0) -> Refused:
        """Refused, but worth another try in ``after`` seconds."""
        return cls(status, reason, headers={"Retry-After": str(max(1, -int(-after // 1)))})
