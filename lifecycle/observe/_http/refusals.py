"""`Refused`: how a request is ended, by whoever finds something wrong with it; knows no server."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):  # an answer, not a failure of ours
    """Ends a request with ``status``; ``reason`` is for the person who asked."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason
