"""The answers of a webhook server: small JSON objects.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from lifecycle.events import WebhookEvent

__all__ = ["accepted", "problem"]

#: The name and version of the HTTP library are nobody's business.
_HEADERS = {"Content-Type": "application/json", "Server": "lifecycle"}


def accepted(event: WebhookEvent) -> web.Response:
    """202: the event is in its lane."""
    return _json(202, {"id": event.id, "topic": event.topic}, _HEADERS)


def problem(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error, in words for the person who set up the sender."""
    return _json(status, {"error": reason}, _HEADERS | headers if headers else _HEADERS)


def _json(status: int, content: dict[str, str], headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=json.dumps(content).encode(), headers=headers)
