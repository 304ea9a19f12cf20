"""Raw requests to a control socket, without an HTTP library."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.programs import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

__all__ = ["Stream", "answer", "ask", "sent", "streaming", "tell"]


async def ask(path: Path, target: str) -> tuple[int, Any]:
    """Send a GET request, and return the response's status and JSON."""
    return await answer(path, _request("GET", target))


async def tell(path: Path, target: str, body: object) -> tuple[int, Any]:
    """Send a POST request with JSON, and return the response's status and JSON."""
    return await answer(path, _request("POST", target, json.dumps(body).encode()))


async def answer(path: Path, request: bytes) -> tuple[int, Any]:
    """Send ``request``, and return the response's status and JSON."""
    status, body = _parsed(await sent(path, request))
    return status, json.loads(body)


async def sent(path: Path, request: bytes) -> bytes:
    """Return all data until the connection closes."""
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


def _request(method: str, target: str, body: bytes = b"") -> bytes:
    head = f"{method} {target} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _parsed(received: bytes) -> tuple[int, bytes]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


class Stream:
    """A stream's messages, as they arrive."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> Any:
        """Return the next message that is not a comment, or None at the end of the stream."""
        async with asyncio.timeout(LIMIT):
            while line := await self._reader.readline():
                if line.startswith(b"data: "):
                    return json.loads(line[6:])
        return None

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the first message for which ``wanted`` is true."""
        while not wanted(message := await self.next()):
            assert message is not None, "the stream has ended"
        return message

    async def comment(self) -> bytes:
        """Return the next comment."""
        async with asyncio.timeout(LIMIT):
            while line := await self._reader.readline():
                if line.startswith(b":"):
                    return line
        return b""


@asynccontextmanager
async def streaming(path: Path, target: str) -> AsyncGenerator[Stream]:
    """Yield a stream that has started."""
    reader, writer = await asyncio.open_unix_connection(path, limit=2**24)
    try:
        writer.write(_request("GET", target))
        stream = Stream(reader)
        assert await stream.comment() == b": stream begins\n"
        yield stream
    finally:
        writer.close()
