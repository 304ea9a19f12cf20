"""Server-sent events: messages as they come to readers who may be slow, or never read at all."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lifecycle.observe._http.answers import HEADERS
from lifecycle.observe._http.refusals import Refused
from lifecycle.observe.console import TooMany

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.observe.console import Console

__all__ = ["event", "stream"]

_log = logging.getLogger("lifecycle.observe")

#: Seconds between comments, so that proxies see life where nothing happens.
_KEEP_ALIVE = 15.0

#: Seconds that a reader has to take a message, or what fills its buffer.
_PATIENCE = 30.0

#: Bytes that are written at once: a buffer holds a few of them, however large a message is.
_PIECE = 32 * 1024

_HEADERS = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


def event(data: Any, name: str | None = None) -> bytes:
    """A message: ``data`` as JSON, of the kind ``name``."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(console: Console, request: web.Request, messages: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Answer with ``messages``, until there are no more, the reader is gone or too slow, or the console ends streams.

    Raises:
        Refused: 503 when there are too many readers.
        ConnectionError: when the reader is gone, or the messages failed, which is logged.
    """
    try:
        with console.streaming():
            reader = _Reader(request)
            await reader.begin()
            async with aclosing(messages), _signs_of_life(reader):
                await _tell(reader, messages)
            return reader.response
    except TooMany as error:
        raise Refused(503, str(error)) from None


async def _tell(reader: _Reader, messages: AsyncGenerator[bytes]) -> None:
    try:
        async for message in messages:
            await reader.tell(message)
    except ConnectionError:
        raise
    except Exception as error:
        # An answer has begun: another would be taken for a part of it.
        _log.exception("a stream of %s failed", reader.request.path)
        reader.cut_off()
        raise ConnectionAbortedError("the stream failed") from error


class _Reader:
    """One who reads a stream."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.response = web.StreamResponse(headers=_HEADERS)
        self.response.force_close()
        # Whether a message is on its way, into which nothing else may come.
        self._telling = False

    async def begin(self) -> None:
        """Send the headers, which go with the first bytes."""
        await self.response.prepare(self.request)
        await self.tell(b": here it begins\n\n")

    async def tell(self, message: bytes) -> None:
        """Send ``message``, waiting while the buffer is full; who does not read is cut off.

        Raises:
            ConnectionError: when the reader is gone.
        """
        self._telling = True
        await self._send(message)
        self._telling = False

    async def beat(self) -> None:
        """Show that there is life, now and then; that the reader is gone is for others to notice."""
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(_KEEP_ALIVE)
                if not self._telling:
                    await self._send(b": still there\n\n")

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                for at in range(0, len(data), _PIECE):
                    await self.response.write(data[at : at + _PIECE])
        except TimeoutError:
            self.cut_off()
            raise ConnectionResetError("the reader did not read") from None

    def cut_off(self) -> None:
        """End the connection."""
        if self.request.transport is not None:
            self.request.transport.abort()


@asynccontextmanager
async def _signs_of_life(reader: _Reader) -> AsyncGenerator[None]:
    beating = asyncio.create_task(reader.beat(), name="signs of life")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait({beating})
