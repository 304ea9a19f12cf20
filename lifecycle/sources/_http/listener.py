"""A listening socket with an HTTP server behind it, from its start to its clean end; what it answers is not known here.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from lifecycle._connections import NEVER, Acceptor, Connection, Connections
from lifecycle._net import SocketFile
from lifecycle.sources._http.answers import problem
from lifecycle.sources._http.hosts import unix_path
from lifecycle.sources._http.inherited import addresses, take

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

__all__ = ["Listener"]

_log = logging.getLogger("lifecycle.sources")

#: Seconds that a connection has to send its last answer when the server is closed.
_LAST_ANSWERS = 0.5

#: Seconds that clients which have connected have to ask, when somebody else takes the socket over.
_LAST_REQUESTS = 1.0

#: Clients that may wait to be accepted; the system may allow less.
_QUEUE = 4096


class Listener:
    """Listens, and sends what ``answer`` gives; a client has ``header_timeout`` seconds for the head of a request."""

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], *, header_timeout: float
    ) -> None:
        self._answer = answer
        self._connections = Connections(timeout=header_timeout)
        self._server = web.Server(self._serve)
        self._handshake = header_timeout
        self._acceptor: Acceptor | None = None
        self._file: SocketFile | None = None
        #: Whether somebody else may take the socket over.
        self.inherited = False

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Open the socket, or take the one that was inherited for this address; returns the host and port to use.

        Raises:
            OSError: saying which address is not to be had, and why.
        """
        there = await self._opened(host, port)
        if there is None:
            sockets = await _bound(host, port)
        else:
            there.listen(_QUEUE)
            sockets = [there]
        self._acceptor = Acceptor(
            sockets, self._connections, self._connection, context=context, handshake=self._handshake
        )
        if there is not None or port != 0:
            return host, port
        # A name may stand for several addresses, and each has got a port of its own.
        address = sockets[0].getsockname()
        return address[0], address[1]

    def _connection(self) -> Connection:
        return Connection(
            self._connections,
            self._server,
            refusal=problem,
            log=_log,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=NEVER,
            lingering_time=0,
            logger=_log,
        )

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
        if not self.inherited or self._acceptor is None:
            return
        self._acceptor.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_REQUESTS):
                await self._connections.all_asked.wait()

    def refuse(self) -> None:
        """Accept no connections from now on; what is under way goes on."""
        if self._file is not None:
            self._file.remove()
            self._file = None
        if self._acceptor is not None:
            self._acceptor.close()

    async def aclose(self) -> None:
        """Close every connection, after its last answer."""
        self.refuse()
        try:
            # Requests that came in this very turn are answered, then idle connections closed.
            await asyncio.sleep(0)
            self._connections.end()
            self._server.pre_shutdown()
            await self._server.shutdown(_LAST_ANSWERS)
        finally:
            await self._connections.abort()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection), "it is made here"
        connection.begin(request)
        try:
            answer = await self._answer(request)
        finally:
            connection.end()
        if not request.content.is_eof():
            with suppress(ConnectionError):
                await answer.prepare(request)
                await answer.write_eof()
            await connection.linger()
        return answer


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of ``host``.

    Raises:
        OSError: saying which address is not to be had, and why.
    """
    sockets: list[socket.socket] = []
    try:
        # It resolves names and binds as asyncio does; what accepts there is ours.
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets += [each.dup() for each in server.sockets]
        server.close()
        for each in sockets:
            each.listen(_QUEUE)
    except OSError as error:
        for each in sockets:
            each.close()
        raise _explained(error, host, port) from error
    return sockets


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
