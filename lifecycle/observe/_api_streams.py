"""Server-sent events: messages as they come to readers who may be slow, or never read at all.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle.observe._api_answers import HEADERS, Refused
from lifecycle.observe.console import TooMany

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.observe.console import Console

__all__ = ["event", "stream"]

#: Seconds after which a comment is sent where nothing happens, so that proxies see life.
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
            async with aclosing(messages), aclosing(_with_signs_of_life(messages)) as living:
                async for message in living:
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


async def _with_signs_of_life(messages: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    upcoming: asyncio.Future[bytes] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(_next(messages))
            await asyncio.wait({upcoming}, timeout=_KEEP_ALIVE)
            if not upcoming.done():
                yield b": still there\n\n"
                continue
            try:
                yield upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = None
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})


async def _next(messages: AsyncGenerator[bytes]) -> bytes:
    return await anext(messages)
