"""The answers of a webhook server: small JSON objects.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

from json import JSONEncoder
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

if TYPE_CHECKING:
    from lifecycle.events import WebhookEvent

__all__ = ["accepted", "handled", "problem"]

#: The name and version of the HTTP library are nobody's business.
_HEADERS = CIMultiDict({"Content-Type": "application/json", "Server": "lifecycle"})

_quoted = JSONEncoder().encode


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
