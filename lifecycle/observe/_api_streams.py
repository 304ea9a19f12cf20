"""Server-sent events: messages as they come to readers who may be slow, or never read at all.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle.observe._api_answers import HEADERS, Refused
from lifecycle.observe.console import TooMany

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.observe.console import Console

__all__ = ["event", "stream"]

#: Seconds between comments, so that proxies see life where nothing happens.
_KEEP_ALIVE = 15.0

#: Seconds that a reader has to take what fills its buffer.
_PATIENCE = 30.0

_HEADERS = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


def event(data: Any, name: str | None = None) -> bytes:
    """A message: ``data`` as JSON, of the kind ``name``."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(console: Console, request: web.Request, messages: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Answer with ``messages``, until there are no more, the reader is gone or too slow, or the console ends streams.

    Raises:
        Refused: 503 when there are too many readers.
    """
    try:
        with console.streaming():
            response = web.StreamResponse(headers=_HEADERS)
            response.force_close()
            await response.prepare(request)
            # The headers go with the first bytes.
            await _write(request, response, b": here it begins\n\n")
            async with aclosing(messages), _signs_of_life(request, response):
                async for message in messages:
                    await _write(request, response, message)
            return response
    except TooMany as error:
        raise Refused(503, str(error)) from None


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send ``data``, waiting while the buffer is full; who does not read is cut off.

    Raises:
        ConnectionError: when the reader is gone.
    """
    try:
        async with asyncio.timeout(_PATIENCE):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader did not read") from None


@asynccontextmanager
async def _signs_of_life(request: web.Request, response: web.StreamResponse) -> AsyncGenerator[None]:
    """Send a comment now and then, for a block; that the reader is gone is for others to notice."""
    beating = asyncio.create_task(_beat(request, response), name="signs of life")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait({beating})


async def _beat(request: web.Request, response: web.StreamResponse) -> None:
    with suppress(ConnectionError):
        while True:
            await asyncio.sleep(_KEEP_ALIVE)
            await _write(request, response, b": still there\n\n")
