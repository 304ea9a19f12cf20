"""An HTTP server's connections: limits on their number, their waiting time, and their use of the event loop.

Clients can connect without a token, so they must not be able to use up the program's file descriptors or block its
event loop, no matter how many there are. `Acceptor` accepts connections, `Connections` limits their number and waiting
time, and a `Connection` reads. This module imports aiohttp, so we import it only when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from aiohttp import web

from lifecycle._async import start_task
from lifecycle._net import share_of_descriptors

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable

    from aiohttp.streams import StreamReader

__all__ = ["NEVER", "Acceptor", "Connection", "Connections"]

#: The number of bytes to parse at a time, and the number of seconds that one connection may parse per loop iteration.
#: Chunks of one byte cost a thousand times as much as large chunks, and asyncio reads 256 KiB at a time.
_PIECE: Final = 2048
_TURN: Final = 0.00025
#: The number of seconds per loop iteration that a server may spend on connections with more data to parse.
_ALL: Final = 0.001

#: A client is cut off if it sends more than this number of bytes for each byte of content, plus `_FRAMING` bytes.
#: With one-byte chunks, it sends six bytes for each byte of content.
_RATIO: Final = 3
_FRAMING: Final = 16 * 1024

#: The number of seconds a rejected client has to read its response and stop sending before the connection is closed.
_LINGER: Final = 1.0
#: The number of seconds a rejected client has while the server is closing.
_LAST_LINGER: Final = 0.1

#: The minimum number of seconds that a client has to send a request, including a TLS handshake, even under load. Other
#: clients wait in the meantime. It is longer than most round trips, so that clients that reconnect as soon as they are
#: disconnected cannot lock out a client that sends a request.
_LEAST: Final = 0.5

#: The maximum number of connections to accept per loop iteration. If it is low, clients that connect together wait for
#: many iterations, in which those that have connected are served. aiohttp accepts as many.
_BURST: Final = 128

#: The number of seconds before an acceptor tries again after a failure, such as a lack of free descriptors.
_PAUSE: Final = 0.1
_QUIET: Final = 60.0

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

#: A timeout long enough to disable aiohttp's own timer for idle connections.
NEVER: Final = 3600.0

#: The connections of all servers in this process, which share its descriptors.
_open: Final[WeakSet[Connection]] = WeakSet()
_servers: Final[WeakSet[Connections]] = WeakSet()


class Connection(web.RequestHandler):
    """aiohttp's protocol for one client. It shares the loop fairly, even if the client sends a lot of data quickly.

    Args:
        connections: The server's connections, which are notified of changes.
        manager: aiohttp's server.
        refusal: Creates the response to malformed input from a status and a reason.
        log: The logger for internal errors.
        settings: Settings for aiohttp's protocol.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_body_before",
        "_connections",
        "_deaf",
        "_feeding",
        "_gone",
        "_held",
        "_log",
        "_refusal",
        "_stopped_reading",
        "_wire",
        "accepting",
    )

    def __init__(
        self,
        connections: Connections,
        manager: web.Server,
        *,
        refusal: Callable[[int, str], web.StreamResponse],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        **settings: object,
    ) -> None:
        # aiohttp declares each of these settings.
        super().__init__(manager, loop=connections.loop, **settings)  # type: ignore[arg-type]
        #: The task that creates the transport, including the TLS handshake.
        self.accepting: asyncio.Task[None] | None = None
        self._connections = connections
        self._refusal = refusal
        self._log = log
        # The received data that is not parsed yet, whether parsing is scheduled, and whether we have paused the
        # transport.
        self._held = bytearray()
        self._feeding = False
        self._stopped_reading = False
        # The body of the current request, its size when we first checked it, and the number of bytes received since.
        self._body: StreamReader | None = None
        self._body_before = self._wire = 0
        # True if received data is discarded. The future is done once the client has disconnected.
        self._deaf = False
        self._gone: asyncio.Future[None] | None = None

    # -- requests ----------------------------------------------------------------------------------------------------

    def begin(self, request: web.BaseRequest) -> None:
        """Record that the headers of ``request`` have arrived."""
        self._connections.got(self)
        if not request.content.is_eof():
            self._body, self._body_before, self._wire = request.content, request.content.total_bytes, 0

    def end(self) -> None:
        """Record that the response has been sent, so that the next request may arrive."""
        self._body = None
        if self.transport is not None:
            self._connections.wait_again(self)

    async def linger(self) -> None:
        """Wait up to a second for the client to read its response and disconnect. Discard the rest of its body.

        If we closed the socket while it had unread data, the client would lose the response.
        """
        transport = self.transport
        if transport is None:
            return
        self._deaf, self._body = True, None
        self._held.clear()
        self._gone = self._connections.loop.create_future()
        with suppress(TimeoutError, OSError, NotImplementedError):
            transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            async with asyncio.timeout(_LAST_LINGER if self._connections.ending else _LINGER):
                await self._gone

    def hurry(self) -> None:
        """Make `linger` return immediately."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def cut(self) -> None:
        """Abort the connection.

        A graceful close could be delayed indefinitely by a client that does not read.
        """
        self._held.clear()
        if self.transport is not None:
            self.transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()

    # -- calls from the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._connections.wait_for(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection."""
        self._held.clear()
        self.hurry()
        self._connections.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the received data, or as much of it as this connection may parse per loop iteration."""
        if self._deaf:
            return
        if self._held or len(data) > _PIECE:
            # A call without new data makes aiohttp parse the data that its parser has buffered.
            if not data:
                super().data_received(data)
                return
            self._held += data
            if self._feeding:
                self._pause()
            else:
                self.feed()
            return
        super().data_received(data)
        if self._body is not None:
            self._weigh(self._body, len(data))

    def feed(self) -> None:
        """Parse received data until this connection has used its share of the loop iteration."""
        self._feeding = False
        until = perf_counter() + _TURN
        while self._held and self.transport is not None:
            # A paused parser keeps its input, and continues on its own.
            size = len(self._held) if self._is_full else _PIECE
            piece = bytes(self._held[:size])
            del self._held[:size]
            super().data_received(piece)
            if self._body is not None:
                self._weigh(self._body, len(piece))
            if self._held and perf_counter() >= until:
                self._pause()
                self._feeding = True
                self._connections.feed_later(self)
                return
        if self._stopped_reading:
            self._stopped_reading = False
            if self.transport is not None and not self._is_full:
                self.transport.resume_reading()

    def _pause(self) -> None:
        if self.transport is not None:
            self._stopped_reading = True
            self.transport.pause_reading()

    @property
    def _is_full(self) -> bool:
        """True if aiohttp has paused the transport because parsed data is not consumed."""
        return self._reading_paused or self._buffer_paused

    def _weigh(self, body: StreamReader, received: int) -> None:
        """Cut off the client if its body is mostly framing, such as one-byte chunks."""
        self._wire += received
        if self._is_full or body.is_eof():
            return
        if self._wire > _RATIO * (body.total_bytes - self._body_before) + _FRAMING:
            self._log.info("disconnected a client whose body has more framing than content")
            self.cut()

    # -- errors -------------------------------------------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp's message repeats what the client sent
    ) -> web.StreamResponse:
        """Respond to malformed input or an internal error."""
        if status >= 500:  # noqa: PLR2004  # the first status for server errors
            self._log.error("a request failed: %r", exc, exc_info=exc)
        else:
            self._log.info("rejected malformed HTTP from %s: %s", request.remote, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the response had begun when the request failed")
        answer = self._refusal(status, "internal error" if status >= 500 else "the request is malformed")  # noqa: PLR2004
        answer.force_close()
        return answer


class Connections:
    """One server's connections. All servers together use at most half of the process's descriptors.

    After connecting or receiving a response, a client has ``timeout`` seconds to send a request's headers. This
    includes the TLS handshake. The number of waiting clients is limited. Above the limit, the client that has waited
    longest is disconnected, but not before it had half a second. Meanwhile, new clients wait to be accepted. As a
    result, many slow clients cannot lock out a fast client. A single timer serves all connections.
    """

    def __init__(self, *, timeout: float) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._timeout = timeout
        self._most = share_of_descriptors(4, least=16, most=10_000)
        self._most_open = share_of_descriptors(2, least=32, most=100_000)
        self._all: set[Connection] = set()
        # When each client started to wait. All clients have the same timeout, so the first in the list expires next.
        self._waiting: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._new: set[Connection] = set()
        # The connections that have more data to parse, in order, and the scheduled call that parses it.
        self._hungry: dict[Connection, None] = {}
        self._feeding: asyncio.Handle | None = None
        #: Called when the number of waiting clients has fallen below the limit.
        self.on_room: Callable[[], None] = _nothing
        #: True if the server is closing and should wait for clients only as long as necessary.
        self.ending = False
        #: Set while every connection has received a request.
        self.all_asked = asyncio.Event()
        self.all_asked.set()
        _servers.add(self)

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._all)

    def admit(self, connection: Connection) -> None:
        """Add a new connection, and wait for its first request."""
        self._all.add(connection)
        _open.add(connection)
        self._new.add(connection)
        self.all_asked.clear()
        self.wait_for(connection)
        if len(self._waiting) > self._most:
            self.cut_longest()
        if len(_open) > self._most_open:
            self.make_room()

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection. Calling this again does nothing."""
        self.got(connection)
        self._all.discard(connection)
        self._hungry.pop(connection, None)
        _open.discard(connection)

    def got(self, connection: Connection) -> None:
        """Record that the headers of a request have arrived."""
        waited = self._waiting.pop(connection, None) is not None
        if connection in self._new:
            self._new.remove(connection)
            if not self._new:
                self.all_asked.set()
        if waited and len(self._waiting) == self._most - 1:
            self.on_room()

    def wait_for(self, connection: Connection) -> None:
        """Wait for the next request on ``connection``."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self._timeout, self._sweep)

    def wait_again(self, connection: Connection) -> None:
        """Wait for the next request on ``connection``, which gets a response. Close it if that leaves no room."""
        self.wait_for(connection)
        if self.time_to_room() > 0:
            # All other waiting clients are in their minimum time. This client can connect again.
            connection.close()
        elif len(self._waiting) > self._most:
            self.cut_longest()

    def time_to_room(self) -> float:
        """Return the delay before accepting another client, so that no client has less than its minimum time."""
        if not self._waiting or (len(self._waiting) < self._most and len(_open) < self._most_open):
            return 0.0
        return max(0.0, next(iter(self._waiting.values())) + _LEAST - self.loop.time())

    def make_room(self) -> None:
        """Disconnect the client that has waited longest for a request on any server in this loop.

        If each server disconnected only its own clients, one server's clients could lock out all others.
        """
        here = [each for each in _servers if each.loop is self.loop]
        min(here, key=lambda each: each.waiting_since).cut_longest()

    @property
    def waiting_since(self) -> float:
        """The time when the longest-waiting connection started to wait, or infinity if no connection is waiting."""
        return next(iter(self._waiting.values()), math.inf)

    def cut_longest(self) -> None:
        """Disconnect the client of this server that has waited longest for a request, if any."""
        if self._waiting:
            self._cut(next(iter(self._waiting)))

    def end(self) -> None:
        """From now on, wait for each client only until it has read its response."""
        self.ending = True
        for connection in self._all:
            connection.hurry()

    def feed_later(self, connection: Connection) -> None:
        """Let the connection parse in the next loop iteration, or later if others are queued."""
        self._hungry[connection] = None
        if self._feeding is None:
            self._feeding = self.loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._feeding = None
        until = perf_counter() + _ALL
        try:
            for _ in range(len(self._hungry)):
                connection = next(iter(self._hungry), None)
                if connection is None:
                    return
                del self._hungry[connection]
                connection.feed()
                if perf_counter() >= until:
                    return
        finally:
            if self._hungry and self._feeding is None:
                self._feeding = self.loop.call_soon(self._feed)

    async def abort(self) -> None:
        """Abort all connections."""
        if self._timer is not None:
            self._timer.cancel()
        accepting = [connection.accepting for connection in self._all if connection.accepting is not None]
        for connection in list(self._all):
            connection.cut()
        if accepting:
            await asyncio.wait(accepting)
        # Transports close their sockets in the next loop iteration.
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        self._timer = None
        while self._waiting:
            oldest, since = next(iter(self._waiting.items()))
            due = since + self._timeout
            if due > self.loop.time():
                self._timer = self.loop.call_at(due, self._sweep)
                return
            self._cut(oldest)

    def _cut(self, connection: Connection) -> None:
        self.got(connection)
        connection.cut()


class Acceptor:
    """Accepts connections on listening sockets, which it owns.

    We don't use asyncio's own server because it logs a thousand errors per second when no descriptors are left, and
    because it does not report clients during their TLS handshake.

    Args:
        sockets: The listening sockets.
        connections: The server's connections.
        protocol: Creates the protocol for a connection.
        context: The TLS context.
        handshake: The maximum number of seconds for a TLS handshake.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        connections: Connections,
        protocol: Callable[[], Connection],
        *,
        context: ssl.SSLContext | None = None,
        handshake: float = 10.0,
    ) -> None:
        self.sockets: Final = list(sockets)
        self._connections = connections
        self._protocol = protocol
        self._tls = {} if context is None else {"ssl": context, "ssl_handshake_timeout": handshake}
        self._loop = connections.loop
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        # When we last logged that there were no descriptors left.
        self._logged = -_QUIET
        for each in self.sockets:
            each.setblocking(False)
            self._loop.add_reader(each, self._accept, each)
        connections.on_room = self._resume_all

    def stop(self) -> None:
        """Stop accepting connections, but leave the sockets open."""
        for each in self.sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each)
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()

    def close(self) -> None:
        """Stop accepting connections, and close the sockets. Calling this again does nothing."""
        self.stop()
        for each in self.sockets:
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BURST):
            if (pause := self._connections.time_to_room()) > 0:
                self._pause(listening, pause)
                return
            try:
                client, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._connections.make_room()
                self._pause(listening, _PAUSE)
                self._tell(listening, error)
                return
            connection = self._protocol()
            accepting = start_task(self._connect(connection, client), name="accept a connection")
            connection.accepting = accepting
            accepting.add_done_callback(partial(self._accepted, connection, client))
            self._connections.admit(connection)

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        # A failed handshake is the client's error.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: connection, client, **self._tls)  # type: ignore[arg-type]  # by name

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(seconds, self._resume, listening)

    def _tell(self, listening: socket.socket, error: OSError) -> None:
        if self._loop.time() - self._logged >= _QUIET:
            self._logged = self._loop.time()
            logging.getLogger("lifecycle").error(
                "cannot accept connections at %s: %s%s",
                listening.getsockname(),
                error.strerror,
                "; raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else "",
            )

    def _resume(self, listening: socket.socket) -> None:
        self._pauses.pop(listening).cancel()
        self._loop.add_reader(listening, self._accept, listening)

    def _resume_all(self) -> None:
        for listening in list(self._pauses):
            self._resume(listening)

    def _accepted(self, connection: Connection, client: socket.socket, _: asyncio.Task[None]) -> None:
        connection.accepting = None
        if connection.transport is None:
            # The connection never had a transport, or has already lost it.
            self._connections.forget(connection)
            client.close()


def _nothing() -> None:
    """Do nothing."""
