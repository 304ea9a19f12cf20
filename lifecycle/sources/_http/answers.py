"""What a client is told: small JSON objects, and `Refused`, which ends a request with one.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

from json import JSONEncoder
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

if TYPE_CHECKING:
    from lifecycle.events import WebhookEvent

__all__ = ["STILL_RUNNING", "Refused", "accepted", "handled", "problem"]

#: The status of an answer that does not know the end: the event goes on.
STILL_RUNNING = 504

#: The name and version of the HTTP library are nobody's business.
_HEADERS = CIMultiDict({"Content-Type": "application/json", "Server": "lifecycle"})

_quoted = JSONEncoder().encode


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


def accepted(event: WebhookEvent) -> web.Response:
    """202: the event is in its lane."""
    return _json(202, _named(event))


def handled(event: WebhookEvent) -> web.Response:
    """200: its handler has returned."""
    return _json(200, _named(event))


def problem(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error, in words for the person who set up the sender."""
    answer = _json(status, f'{{"error": {_quoted(reason)}}}')
    answer.headers.update(headers or {})
    return answer


def _named(event: WebhookEvent) -> str:
    return f'{{"id": {_quoted(event.id)}, "topic": {_quoted(event.topic)}}}'


def _json(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=text.encode(), headers=_HEADERS.copy())
