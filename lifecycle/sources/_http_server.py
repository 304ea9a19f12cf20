"""One listening HTTP server, from its socket to its clean end.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.sources._http_bodies import next_chunk
from lifecycle.sources._http_connections import Connections
from lifecycle.sources._http_requests import Requests

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from lifecycle.control.types import Emit
    from lifecycle.sources._inbox_delivering import Deliverer
    from lifecycle.sources.webhook import Rules

__all__ = ["HttpServer"]

#: Seconds that a refused client has to read its answer and stop sending before the connection is closed under it.
_LINGER = 1.0

#: Seconds that a connection has to send its last answer when the server is closed.
_LAST_ANSWERS = 0.5

_MOST_CONNECTIONS = 10_000


class HttpServer:
    """Listens, and answers with `Requests`."""

    def __init__(self, rules: Rules, inbox: Deliverer | None) -> None:
        # A quarter of what the process may open for those who wait, and one for those who send a body.
        most = min(_MOST_CONNECTIONS, max(16, _descriptors() // 4))
        self._requests = Requests(rules, most, inbox)
        self._connections = Connections(self._answer, timeout=rules.limits.header_timeout, most=most)
        self._handshake = rules.limits.header_timeout
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Open the socket; returns the address it got.

        Raises:
            OSError: saying which address is not to be had, and why.
        """
        handshake = None if context is None else self._handshake
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connections, host, port, ssl=context, ssl_handshake_timeout=handshake
            )
        except OSError as error:
            raise _explained(error, host, port) from error
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def open(self, emit: Emit) -> None:
        """Let requests through to ``emit``."""
        self._requests.open(emit)

    def refuse(self) -> None:
        """Accept neither connections nor requests from now on; what is under way goes on."""
        self._requests.stop()
        if self._server is not None:
            self._server.close()

    async def wait_rest(self, seconds: float) -> None:
        """Wait until no request is under way, but not longer than ``seconds``."""
        await self._requests.wait_rest(seconds)

    async def aclose(self) -> None:
        """Answer what still waits with 503, then close every connection."""
        self.refuse()
        self._requests.give_up()
        try:
            # Requests that came in this very turn are answered, then idle connections closed.
            await asyncio.sleep(0)
            self._connections.pre_shutdown()
            await self._connections.shutdown(_LAST_ANSWERS)
        finally:
            self._connections.abort()
        # Transports close their sockets one turn later.
        await asyncio.sleep(0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.got(request.protocol)
        try:
            answer = await self._requests.answer(request)
        finally:
            self._connections.wait_for(request.protocol)
        if not request.content.is_eof():
            await _linger(request, answer)
        return answer


async def _linger(request: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Send ``answer`` although the body was not read: a socket closed with data unread would take the answer along."""
    with suppress(ConnectionError, TimeoutError):
        await answer.prepare(request)
        await answer.write_eof()
        async with asyncio.timeout(_LINGER):
            while await next_chunk(request):
                pass


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS * 4 if soft == resource.RLIM_INFINITY else soft


def _explained(error: OSError, host: str, port: int) -> OSError:
    """The same error, for somebody who has to do something about it."""
    # From Python 3.12 on, asyncio has no number for an address that is not there.
    number = error.errno or errno.EADDRNOTAVAIL
    if number == errno.EADDRINUSE:
        told = f"port {port} of {host} is taken by another program; stop that, or give another port (0: any free one)"
    elif number == errno.EACCES:
        told = f"port {port} of {host} needs rights that this process does not have; give a port above 1023"
    elif number == errno.EADDRNOTAVAIL:
        told = f"{host} is no address of this machine; give one that is, such as 127.0.0.1"
    else:
        told = f"cannot listen at port {port} of {host}: {error.strerror or error}"
    return OSError(number, told)
