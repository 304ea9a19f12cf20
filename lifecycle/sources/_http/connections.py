"""The connections of one HTTP server: who waits for a request, and for how long.

Imports aiohttp, so it is itself imported when a server starts. What a request means is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle.sources._http.answers import problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Connections"]

_log = logging.getLogger("lifecycle.sources")

#: aiohttp's own timer for idle connections, out of the way of ours.
_NEVER = 3600.0


class Connection(web.RequestHandler):
    """aiohttp's protocol, whose errors are answered in JSON and without a traceback in the log for bad input."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp's words repeat what the client sent
    ) -> web.StreamResponse:
        """Answer what could not be parsed, or a failure of ours."""
        if status >= 500:  # noqa: PLR2004  # the family of server errors
            _log.error("a request failed: %r", exc, exc_info=exc)
        else:
            _log.info("refused what is no HTTP from %s: %s", request.remote, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun when the request failed")
        answer = problem(status, "internal error" if status >= 500 else "the request is malformed")  # noqa: PLR2004
        answer.force_close()
        return answer


class Connections(web.Server):
    """A server that cuts off clients which let it wait for the headers of a request.

    From connecting, or from the last answer, a client has ``timeout`` seconds. At most ``most`` may wait at a time;
    one more ends the wait of the one that has waited for longest, so that many slow clients cannot keep a quick one
    out. One timer serves all.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        timeout: float,
        most: int,
    ) -> None:
        super().__init__(
            handler,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_NEVER,
            lingering_time=0,
            logger=_log,
        )
        self._clock = asyncio.get_running_loop()
        self._timeout = timeout
        self._most = most
        # Since when each waits; all have the same time, so the first is the next to be cut off.
        self._waiting: dict[web.RequestHandler, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._new: set[web.RequestHandler] = set()
        #: Set while every connection has had a request.
        self.all_asked = asyncio.Event()
        self.all_asked.set()

    def __call__(self) -> web.RequestHandler:
        """A protocol for a new connection."""
        return Connection(self, loop=self._clock, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Somebody connected and is expected to ask for something."""
        super().connection_made(handler, transport)
        self._new.add(handler)
        self.all_asked.clear()
        self.wait_for(handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Somebody went away."""
        self.got(handler)
        super().connection_lost(handler, exc)

    def got(self, connection: web.RequestHandler) -> None:
        """The headers of a request are there."""
        self._waiting.pop(connection, None)
        self._new.discard(connection)
        if not self._new:
            self.all_asked.set()

    def wait_for(self, connection: web.RequestHandler) -> None:
        """The next request of ``connection`` may come; nothing happens if it is gone."""
        if connection.transport is None:
            return
        self._waiting[connection] = self._clock.time()
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout, self._sweep)
        if len(self._waiting) > self._most:
            self._cut(next(iter(self._waiting)))

    def abort(self) -> None:
        """Close every connection now, whatever it does."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def _sweep(self) -> None:
        self._timer = None
        while self._waiting:
            oldest, since = next(iter(self._waiting.items()))
            due = since + self._timeout
            if due > self._clock.time():
                self._timer = self._clock.call_at(due, self._sweep)
                return
            self._cut(oldest)

    def _cut(self, connection: web.RequestHandler) -> None:
        # Not closed but aborted: one that does not read would hold back a close for ever.
        self.got(connection)
        if connection.transport is not None:
            connection.transport.abort()
