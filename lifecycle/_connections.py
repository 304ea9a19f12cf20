"""The connections of an HTTP server: how many there may be, how long each may wait, and how much each may cost.

Clients of a server need no token to connect to it, so no single one and no crowd of them may take the descriptors or
the loop of the program. `Acceptor` accepts, `Connections` bounds how many there are and how long they wait, and a
`Connection` reads. Imports aiohttp, so it is itself imported when a server starts.
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

from lifecycle._net import share_of_descriptors

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable

    from aiohttp.streams import StreamReader

__all__ = ["NEVER", "Acceptor", "Connection", "Connections"]

#: Bytes that are parsed at once, and seconds that one connection may parse in a turn of the loop. Chunks of one byte
#: cost a thousand times as much as large ones, and asyncio reads 256 KiB at a time.
_PIECE: Final = 2048
_TURN: Final = 0.00025
#: Seconds that all connections of a server whose data did not fit in that may parse in a turn, one after the other.
_ALL: Final = 0.001

#: Bytes on the wire that a body may have per byte of its content, and besides. Chunks of one byte have six.
_RATIO: Final = 3
_FRAMING: Final = 16 * 1024

#: Seconds that a refused client has to read its answer and to stop sending before the connection is closed.
_LINGER: Final = 1.0
#: The same once the server ends.
_LAST_LINGER: Final = 0.1

#: Seconds that a client has for its TLS handshake however many others come; they wait to be accepted meanwhile.
_HANDSHAKE: Final = 0.25

#: Connections that are accepted in a turn of the loop.
_BURST: Final = 32

#: Seconds until an acceptor tries again when nothing can be accepted, such as for lack of descriptors, and between two
#: log lines about that.
_PAUSE: Final = 0.1
_QUIET: Final = 60.0

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

#: aiohttp's own timer for idle connections, out of the way of ours.
NEVER: Final = 3600.0

#: The connections of all servers of this process: descriptors belong to the process too.
_open: Final[WeakSet[Connection]] = WeakSet()
_servers: Final[WeakSet[Connections]] = WeakSet()


class Connection(web.RequestHandler):
    """aiohttp's protocol for one client, which shares the loop with the others however its client sends.

    Args:
        connections: the server's; it hears of what happens to this one.
        manager: aiohttp's server.
        refusal: makes the answer to what could not be parsed, from a status and the reason.
        log: where a failure of ours is logged.
        settings: those of aiohttp's protocol.
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
        # Typed by aiohttp one by one.
        super().__init__(manager, loop=connections.loop, **settings)  # type: ignore[arg-type]
        #: Makes the transport, and is done when there is one; for TLS that takes a handshake.
        self.accepting: asyncio.Task[None] | None = None
        self._connections = connections
        self._refusal = refusal
        self._log = log
        # What has come and is not parsed yet, whether that goes on later, and whether we have paused the transport.
        self._held = bytearray()
        self._feeding = False
        self._stopped_reading = False
        # The body of the request under way, its bytes when it was first looked at, and the bytes received since.
        self._body: StreamReader | None = None
        self._body_before = self._wire = 0
        # Whether what comes is thrown away; done when the client has gone.
        self._deaf = False
        self._gone: asyncio.Future[None] | None = None

    # -- the life of a request ----------------------------------------------------------------------------------------

    def begin(self, request: web.BaseRequest) -> None:
        """The headers of ``request`` are there."""
        self._connections.got(self)
        if not request.content.is_eof():
            self._body, self._body_before, self._wire = request.content, request.content.total_bytes, 0

    def end(self) -> None:
        """It has its answer; the next request may come."""
        self._body = None
        self._connections.wait_for(self)

    async def linger(self) -> None:
        """Wait until the client has read its answer and hung up, at most a second, and read nothing more of its body.

        A socket that is closed with data unread takes the answer with it.
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
        """Linger no longer."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def cut(self) -> None:
        """End it now: one that does not read would hold back a close without end."""
        self._held.clear()
        if self.transport is not None:
            self.transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()

    # -- by the transport ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client may send."""
        super().connection_made(transport)
        self._connections.wait_for(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has gone."""
        self._held.clear()
        self.hurry()
        self._connections.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, or as much of it as this connection may in one turn of the loop."""
        if self._deaf:
            return
        if self._held or len(data) > _PIECE:
            # Without data, aiohttp wants to parse what its parser has kept.
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
        """Parse what has come, until it has had its part of this turn of the loop."""
        self._feeding = False
        until = perf_counter() + _TURN
        while self._held and self.transport is not None:
            # A parser that is paused keeps what it is given, and continues by itself.
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
        """Whether aiohttp has paused the transport, since nothing takes what it has parsed."""
        return self._reading_paused or self._buffer_paused

    def _weigh(self, body: StreamReader, received: int) -> None:
        """Cut off a client whose body is mostly framing, such as chunks of one byte."""
        self._wire += received
        if self._is_full or body.is_eof():
            return
        if self._wire > _RATIO * (body.total_bytes - self._body_before) + _FRAMING:
            self._log.info("cut off a client whose body has more framing than content")
            self.cut()

    # -- errors -------------------------------------------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp's words repeat what the client sent
    ) -> web.StreamResponse:
        """Answer what could not be parsed, or a failure of ours."""
        if status >= 500:  # noqa: PLR2004  # the family of server errors
            self._log.error("a request failed: %r", exc, exc_info=exc)
        else:
            self._log.info("refused what is no HTTP from %s: %s", request.remote, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun when the request failed")
        answer = self._refusal(status, "internal error" if status >= 500 else "the request is malformed")  # noqa: PLR2004
        answer.force_close()
        return answer


class Connections:
    """The connections of one server; at most half of the descriptors of the process, together with other servers'.

    From connecting, or from the last answer, a client has ``timeout`` seconds to send the headers of a request; a TLS
    handshake counts as well. At most ``most`` may wait at a time. One more ends the wait of the one that has waited
    longest, so that many slow clients cannot keep a quick one out. One timer serves all.
    """

    def __init__(self, *, timeout: float) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._timeout = timeout
        self._most = share_of_descriptors(4, least=16, most=10_000)
        self._most_open = share_of_descriptors(2, least=32, most=100_000)
        self._all: set[Connection] = set()
        # Since when each waits; all have the same time, so the first is the next to be cut off.
        self._waiting: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._new: set[Connection] = set()
        # Those that have more to parse, the one whose turn it is first, and the call that lets them.
        self._hungry: dict[Connection, None] = {}
        self._feeding: asyncio.Handle | None = None
        #: Whether the server ends, and waits for no client longer than it must.
        self.ending = False
        #: Set while every connection has had a request.
        self.all_asked = asyncio.Event()
        self.all_asked.set()
        _servers.add(self)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def admit(self, connection: Connection) -> None:
        """A client has connected, and is expected to ask for something."""
        self._all.add(connection)
        _open.add(connection)
        self._new.add(connection)
        self.all_asked.clear()
        self._wait(connection)
        if len(_open) > self._most_open:
            self.make_room()

    def forget(self, connection: Connection) -> None:
        """It has ended; any number of times."""
        self.got(connection)
        self._all.discard(connection)
        self._hungry.pop(connection, None)
        _open.discard(connection)

    def got(self, connection: Connection) -> None:
        """The headers of a request are there."""
        self._waiting.pop(connection, None)
        self._new.discard(connection)
        if not self._new:
            self.all_asked.set()

    def wait_for(self, connection: Connection) -> None:
        """The next request of ``connection`` may come; nothing happens if it has ended."""
        if connection.transport is not None:
            self._wait(connection)

    def time_to_room(self, seconds: float) -> float:
        """How long it takes until another may come and each that waits has had so many ``seconds``; 0: it may now."""
        if not self._waiting or (len(self._waiting) < self._most and len(_open) < self._most_open):
            return 0.0
        return max(0.0, next(iter(self._waiting.values())) + seconds - self.loop.time())

    def make_room(self) -> None:
        """End the connection that has waited longest for a request, at whichever server of this loop, if one does.

        The clients of one server would keep those of all others out if each server ended its own.
        """
        here = [each for each in _servers if each.loop is self.loop]
        min(here, key=lambda each: each.waiting_since).cut_longest()

    @property
    def waiting_since(self) -> float:
        """When the one began to wait that has waited longest."""
        return next(iter(self._waiting.values()), math.inf)

    def cut_longest(self) -> None:
        """End the connection that has waited longest for a request here, if one does."""
        if self._waiting:
            self._cut(next(iter(self._waiting)))

    def end(self) -> None:
        """Wait for clients no longer than an answer takes."""
        self.ending = True
        for connection in self._all:
            connection.hurry()

    def feed_later(self, connection: Connection) -> None:
        """Let it parse in the next turn of the loop, or a later one if others are before it."""
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
        """End every connection now, whatever it does."""
        if self._timer is not None:
            self._timer.cancel()
        accepting = [connection.accepting for connection in self._all if connection.accepting is not None]
        for connection in list(self._all):
            connection.cut()
        if accepting:
            await asyncio.wait(accepting)
        # Transports close their sockets one turn later.
        await asyncio.sleep(0)

    def _wait(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        self._waiting[connection] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self._timeout, self._sweep)
        if len(self._waiting) > self._most:
            self.cut_longest()

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
    """Accepts at listening sockets, which it owns.

    asyncio's own server would log a thousand errors a second where no descriptor is left, and says nothing of clients
    whose TLS handshake has not ended.

    Args:
        sockets: where to listen.
        connections: what becomes of clients.
        protocol: makes the protocol of one.
        context: for TLS.
        handshake: seconds that a TLS handshake may take.
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
        # When a lack of descriptors was logged.
        self._logged = -_QUIET
        for each in self.sockets:
            each.setblocking(False)
            self._loop.add_reader(each, self._accept, each)

    def stop(self) -> None:
        """Accept nothing more, and leave the sockets open."""
        for each in self.sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each)
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()

    def close(self) -> None:
        """Accept nothing more, and close the sockets; any number of times."""
        self.stop()
        for each in self.sockets:
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BURST):
            if self._tls and (pause := self._connections.time_to_room(_HANDSHAKE)) > 0:
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
            accepting = self._loop.create_task(self._connect(connection, client), name="accept a connection")
            connection.accepting = accepting
            accepting.add_done_callback(partial(self._accepted, connection, client))
            self._connections.admit(connection)

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        # A handshake that fails is the client's matter.
        with suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: connection, client, **self._tls)  # type: ignore[arg-type]  # by name

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(seconds, self._resume, listening)

    def _tell(self, listening: socket.socket, error: OSError) -> None:
        if self._loop.time() - self._logged >= _QUIET:
            self._logged = self._loop.time()
            logging.getLogger("lifecycle").error(
                "no connection can be accepted at %s: %s%s",
                listening.getsockname(),
                error.strerror,
                "; raise the limit of open files (ulimit -n)" if error.errno == errno.EMFILE else "",
            )

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._accept, listening)

    def _accepted(self, connection: Connection, client: socket.socket, _: asyncio.Task[None]) -> None:
        connection.accepting = None
        if connection.transport is None:
            # It never had one, or has lost it already.
            self._connections.forget(connection)
            client.close()
