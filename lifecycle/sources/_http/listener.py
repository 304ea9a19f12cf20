"""A listening socket with an HTTP server behind it, from its start to its clean end; what it answers is not known here.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle._unix_sockets import SocketFile
from lifecycle.sources._http.bodies import next_chunk
from lifecycle.sources._http.connections import Connections
from lifecycle.sources._http.hosts import unix_path
from lifecycle.sources._http.inherited import addresses, take

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

    from aiohttp import web

__all__ = ["Listener", "most_connections"]

#: Seconds that a refused client has to read its answer and stop sending before the connection is closed under it.
_LINGER = 1.0

#: Seconds that a connection has to send its last answer when the server is closed.
_LAST_ANSWERS = 0.5

#: Seconds that clients which have connected have to ask, when somebody else takes the socket over.
_LAST_REQUESTS = 1.0

#: Who may wait to be accepted at an inherited socket while nobody does; the system may allow less.
_QUEUE = 4096

#: Turns of the loop until what asyncio has accepted is a connection.
_TURNS = 3

_MOST_CONNECTIONS = 10_000


class Listener:
    """Listens, and sends what ``answer`` gives; a client has ``header_timeout`` seconds for the head of a request."""

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], *, header_timeout: float
    ) -> None:
        self._answer = answer
        self._connections = Connections(self._serve, timeout=header_timeout, most=most_connections())
        self._handshake = header_timeout
        self._server: asyncio.Server | None = None
        self._file: SocketFile | None = None
        #: Whether somebody else may take the socket over.
        self.inherited = False

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Open the socket, or take the one that was inherited for this address; returns the host and port to use.

        Raises:
            OSError: saying which address is not to be had, and why.
        """
        handshake = None if context is None else self._handshake
        loop = asyncio.get_running_loop()
        if (there := await self._opened(host, port)) is not None:
            self._server = await loop.create_server(
                self._connections, sock=there, backlog=_QUEUE, ssl=context, ssl_handshake_timeout=handshake
            )
            return host, port
        try:
            self._server = await loop.create_server(
                self._connections, host, port, ssl=context, ssl_handshake_timeout=handshake
            )
        except OSError as error:
            raise _explained(error, host, port) from error
        if port != 0:
            return host, port
        # A name may stand for several addresses, and each has got a port of its own.
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def _opened(self, host: str, port: int) -> socket.socket | None:
        """One that was inherited, or that is a file; None for a port that is still to be opened."""
        path = unix_path(host)
        there = take(await addresses(host, port) if path is None else (path,))
        self.inherited = there is not None
        if there is None and path is not None:
            self._file = SocketFile(path)
            return self._file.socket
        return there

    async def hand_over(self) -> None:
        """Leave an inherited socket to who has it next; clients that have connected get a moment to ask for something.

        A socket that is only ours is left as it is: nobody else would accept.
        """
        if not self.inherited or self._server is None:
            return
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        # What was accepted and is no connection yet would be lost if the server were closed now.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_REQUESTS):
                await self._connections.all_asked.wait()

    def refuse(self) -> None:
        """Accept no connections from now on; what is under way goes on."""
        if self._file is not None:
            self._file.remove()
            self._file = None
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        """Close every connection, after its last answer."""
        self.refuse()
        try:
            # Requests that came in this very turn are answered, then idle connections closed.
            await asyncio.sleep(0)
            self._connections.pre_shutdown()
            await self._connections.shutdown(_LAST_ANSWERS)
        finally:
            self._connections.abort()
        # Transports close their sockets one turn later.
        await asyncio.sleep(0)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.got(request.protocol)
        try:
            answer = await self._answer(request)
        finally:
            self._connections.wait_for(request.protocol)
        if not request.content.is_eof():
            await _linger(request, answer)
        return answer


def most_connections() -> int:
    """A quarter of what the process may open: that many may wait for a request, or with one, at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, max(16, soft // 4))


async def _linger(request: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Send ``answer`` although the body was not read: a socket closed with data unread would take the answer along."""
    with suppress(ConnectionError, TimeoutError):
        await answer.prepare(request)
        await answer.write_eof()
        async with asyncio.timeout(_LINGER):
            while await next_chunk(request):
                pass


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
