"""Reading request bodies, bounded three ways: the size of each, the time for each, the memory for all.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from aiohttp import web

from lifecycle.sources._http.answers import Refused

if TYPE_CHECKING:
    from lifecycle.sources.webhook import Limits

__all__ = ["Bodies", "next_chunk"]

_MALFORMED = "the body is malformed"

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


#: The slow readers of all servers of a loop, the first began first: the servers share the descriptors of the process.
_slow_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[asyncio.Timeout, Bodies]]] = WeakKeyDictionary()


class Bodies:
    """Reads the bodies of one server.

    Clients that send slowly share ``limits.pending`` full bodies of memory, and ``most`` connections together with
    those of other servers; who needs more than is left ends the one that has been sending for longest. So slow clients
    hurt each other and not the quick.
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self._limit = limits.body
        self._timeout = limits.body_timeout
        self._memory = limits.body * limits.pending
        self._most = most
        # Bytes that each slow reader holds; the first began first.
        self._slow: dict[asyncio.Timeout, int] = {}
        self._held = 0
        # Why those that are still being sent were given up.
        self._given_up = ""

    def at_hand(self, request: web.BaseRequest) -> bytes | None:
        """The body as it was sent, if it came with the headers, as most do; None where it must be waited for.

        Raises:
            Refused: 413 before more than the limit was read, 400 when it is malformed.
        """
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        if not request.content.is_eof():
            return None
        try:
            body = request.content.read_nowait()
        except web.RequestPayloadError:
            raise Refused(400, _MALFORMED) from None
        if len(body) > self._limit:
            raise self._too_large()
        return body

    async def wait(self, request: web.BaseRequest) -> bytes:
        """The body that was not yet `at_hand`.

        Raises:
            Refused: 413 before more than the limit was read, 408 when it takes too long, 400 when it is malformed.
            ConnectionError: when the client goes away.
        """
        try:
            return await self._read_slowly(request)
        except web.RequestPayloadError:
            raise Refused(400, _MALFORMED) from None

    async def _read_slowly(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self._timeout) as clock:
                everywhere = _slow_of.setdefault(asyncio.get_running_loop(), {})
                everywhere[clock] = self
                self._slow[clock] = 0
                while len(everywhere) > self._most:
                    oldest = next(iter(everywhere))
                    everywhere.pop(oldest).end(oldest)
                try:
                    await _invite(request)
                    return await self._gather(request, clock)
                finally:
                    everywhere.pop(clock, None)
                    self._held -= self._slow.pop(clock, 0)
        except TimeoutError:
            if self._given_up:
                raise Refused.for_now(503, self._given_up) from None
            raise Refused(408, "the body took too long to arrive") from None

    def end(self, clock: asyncio.Timeout) -> None:
        """Let the time of a reader be up; any number of times."""
        self._held -= self._slow.pop(clock, 0)
        if not clock.expired():
            clock.reschedule(0)

    def give_up(self, reason: str) -> None:
        """Refuse those that have not been sent whole, with 503 and ``reason``."""
        self._given_up = reason
        for clock in self._slow:
            if not clock.expired():
                clock.reschedule(0)

    async def _gather(self, request: web.BaseRequest, clock: asyncio.Timeout) -> bytes:
        body = bytearray()
        while chunk := await next_chunk(request):
            body += chunk
            if len(body) > self._limit:
                raise self._too_large()
            if clock in self._slow:
                self._slow[clock] += len(chunk)
                self._held += len(chunk)
                while self._held > self._memory:
                    self.end(next(iter(self._slow)))
        return bytes(body)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self._limit} bytes")


async def next_chunk(request: web.BaseRequest) -> bytes:
    """What has come of the body since; ``b""`` at its end.

    Raises:
        ConnectionError: when the client is gone.
    """
    if request.transport is None:
        # Otherwise aiohttp makes a RuntimeError of it.
        raise ConnectionResetError("the client went away")
    return await request.content.readany()


async def _invite(request: web.BaseRequest) -> None:
    """Ask for the body where the client waits to be asked: by now nothing else speaks against it."""
    expected = request.headers.get("Expect")
    if expected is None:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, "the only expectation that is met is 100-continue")
    await request.writer.write(_CONTINUE)
    # The answer itself has not begun.
    request.writer.output_size = 0
