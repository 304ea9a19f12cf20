"""An HTTP server on aiohttp, with limits on its clients: how many there are, how long they wait, what they may parse.

Webhooks, probes, the dashboard, the control socket and live reload share it. Clients can connect without a token, so
they must not be able to use up the program's file descriptors or block its event loop. aiohttp parses requests and
sends responses. A `_Client` passes it what the transport receives, in pieces. This module imports aiohttp, so we import
it only when a server starts.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from aiohttp import web

from lifecycle._async import start_task
from lifecycle._net import share_of_descriptors

if TYPE_CHECKING:
    import logging
    import ssl
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from aiohttp.streams import StreamReader

    from lifecycle._listening import Listening

__all__ = ["SERVER", "HttpServer", "problem"]

#: The ``Server`` header hides the name and version of the HTTP library.
SERVER: Final = {"Server": "lifecycle"}

#: The time limit, in seconds, for sending the last response on a connection when the server closes.
_LAST_ANSWERS: Final = 0.5

#: The time, in seconds, that connected clients have to send a request when another process takes over the socket.
_LAST_REQUESTS: Final = 1.0

#: The number of bytes of a client to parse at a time: of headers with what follows them, and of a body.
_HEAD: Final = 2 * 1024
_MOST: Final = 64 * 1024

#: The number of bytes of chunked bodies to parse per iteration of the event loop: for all clients, and the least for
#: each. Chunks of one byte cost a thousand times as much as large chunks: `_ALL` bytes of them take about 5 ms.
_ALL: Final = 16 * 1024
_LEAST: Final = 64

#: A client is cut off if it sends more than this number of bytes for each byte of content, plus `_FRAMING` bytes.
#: With one-byte chunks, it sends six bytes for each byte of content.
_RATIO: Final = 3
_FRAMING: Final = 16 * 1024

#: The number of seconds a rejected client has to read its response and stop sending before the connection is closed.
_LINGER: Final = 1.0
#: The number of seconds a rejected client has while the server is closing.
_LAST_LINGER: Final = 0.1

#: The number of seconds that a client has in any case. Otherwise, clients that reconnect when they are disconnected
#: would leave no time for a handshake.
_CHANCE: Final = 0.25

#: The maximum number of clients waiting to be accepted. The system may allow fewer.
_QUEUE: Final = 4096
#: The maximum number of clients to accept per iteration of the event loop. It takes a few iterations until they count.
_BATCH: Final = 50

#: A timeout long enough to disable aiohttp's own timer for idle connections.
_NEVER: Final = 3600.0

#: The clients of all servers in this process, which share its descriptors.
_open: Final[WeakSet[_Client]] = WeakSet()
_servers: Final[WeakSet[HttpServer]] = WeakSet()


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error response. Its reason helps users configure the sender."""
    body = json.dumps({"error": reason}).encode()
    return web.Response(
        status=status, body=body, headers={"Content-Type": "application/json", **SERVER, **(headers or {})}
    )


class HttpServer:
    """Calls ``answer`` for each request on sockets that it owns, or serves ``server``, whose handler calls `respond`.

    After connecting or receiving a response, a client has ``timeout`` seconds to send a request's headers. This
    includes the TLS handshake. The handler limits the time for the body. All servers together use at most half of the
    process's descriptors. Above the limit, the client of any of them whose headers or body have been awaited longest is
    disconnected, so that slow clients cannot lock out fast ones. No client is disconnected in its first moments: the
    server rather stops accepting for as long, and new clients wait in the system's queue.

    Args:
        listening: The listening sockets.
        answer: Returns the response to a request.
        server: aiohttp's server.
        timeout: Seconds for the headers of a request.
        sending: Seconds for sending a response, or None if responses are small.
        refusal: Creates the response to malformed input from a status and a reason.
        log: The logger for malformed input and internal errors.
        context: The TLS context.
    """

    def __init__(
        self,
        listening: Listening,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None = None,
        *,
        server: web.Server | None = None,
        timeout: float,  # a limit for clients
        sending: float | None = None,
        refusal: Callable[[int, str], web.Response] = problem,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.log = log
        self.context = context
        self.timeout = timeout
        #: All clients read into this buffer, because aiohttp copies what it keeps.
        self.buffer: memoryview = memoryview(bytearray(_MOST))
        if server is None:
            assert answer is not None, "one of them is given"
            server = web.Server(partial(self.respond, answer))
        self._aiohttp = server
        self.protocol: Callable[[_Client], _Protocol] = lambda client: _Protocol(server, client, refusal, log)
        self._sending_timeout = sending
        self._listening = listening
        # asyncio's servers, one for each socket.
        self._accepting: list[asyncio.Server] = []
        self._most = share_of_descriptors(2, least=32, most=100_000)
        # The task that has stopped accepting for a moment.
        self._rest: asyncio.Task[None] | None = None
        #: The connected clients.
        self.clients: set[_Client] = set()
        # Since when we have waited for each client's headers or body, longest first. All clients have the same timeout
        # for headers, so the first client expires next.
        self._waiting: dict[_Client, float] = {}
        self._sending: dict[_Client, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._new: set[_Client] = set()
        # The number of clients whose chunks were parsed in the last loop iteration, the number in this iteration, and
        # the number of bytes that may still be parsed in it.
        self._readers, self._turns, self._left = 1, 0, _ALL
        #: True if the server is closing and should wait for clients only as long as necessary.
        self.ending = False
        #: Set while every client has sent a request.
        self.all_asked = asyncio.Event()
        self.all_asked.set()
        _servers.add(self)

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Accept clients."""
        for each in self._listening.sockets:
            # asyncio closes its socket, but another process may continue to use ours.
            server = await self.loop.create_server(
                lambda: _Client(self), sock=each.dup(), backlog=_BATCH, start_serving=False
            )
            self._accepting.append(server)
            await server.start_serving()
            each.listen(_QUEUE)

    async def stop(self) -> None:
        """Stop accepting clients, but leave the sockets open."""
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.wait([self._rest])
        await self._stop()

    async def _stop(self) -> None:
        accepting, self._accepting = self._accepting, []
        for each in [each for server in accepting for each in server.sockets]:
            # Only loops with selectors have readers.
            with suppress(NotImplementedError, RuntimeError):
                self.loop.remove_reader(each.fileno())
        try:
            # A server that is closed drops the clients that it has accepted in the last two iterations.
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            for server in accepting:
                server.close()

    async def hand_over(self) -> None:
        """Release an inherited socket for its next owner. Connected clients get a moment to send a request.

        A socket that this process opened stays in use, because no other process would accept its clients.
        """
        if not self._listening.inherited:
            return
        await self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_REQUESTS):
                await self.all_asked.wait()

    async def aclose(self, finish: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop accepting clients, close the sockets, and close every connection after its last response.

        ``finish`` ends aiohttp's server. By default, requests have half a second.
        """
        try:
            # In the meantime, requests that have arrived begin, so that they get a response before idle connections are
            # closed.
            await self.stop()
        finally:
            self._listening.close()
            self.ending = True
            for client in self.clients:
                client.hurry()
            try:
                await (finish or self._finish)()
            finally:
                await self._abort()

    async def _finish(self) -> None:
        self._aiohttp.pre_shutdown()
        await self._aiohttp.shutdown(_LAST_ANSWERS)

    async def _abort(self) -> None:
        """Abort all connections."""
        if self._timer is not None:
            self._timer.cancel()
        handshakes = [client.handshake for client in self.clients if client.handshake is not None]
        for client in list(self.clients):
            client.cut()
        if handshakes:
            await asyncio.wait(handshakes)
        # Transports close their sockets in the next loop iteration.
        await asyncio.sleep(0)

    # -- clients -----------------------------------------------------------------------------------------------------

    async def respond(
        self, answer: Callable[[Any], Awaitable[web.StreamResponse]], request: web.BaseRequest
    ) -> web.StreamResponse:
        """Answer ``request``, whose headers have arrived. The next request may follow it."""
        protocol = request.protocol
        assert isinstance(protocol, _Protocol), "it is made here"
        client = protocol.client
        self._got(client)
        if not request.content.is_eof():
            client.begin(request.content, chunked=request.content_length is None)
            self._sending[client] = self.loop.time()
        try:
            response = await answer(request)
            if self._sending_timeout is None and request.content.is_eof():
                # aiohttp sends it.
                return response
            try:
                async with asyncio.timeout(self._sending_timeout):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                client.cut()
            except ConnectionError:
                return response
        finally:
            self.complete(client)
            if client in self.clients:
                self._wait_for(client)
        if not request.content.is_eof():
            await client.linger()
        return response

    def admit(self, client: _Client) -> None:
        """Add a new client, and wait for its first request."""
        self.clients.add(client)
        _open.add(client)
        self._new.add(client)
        self.all_asked.clear()
        self._wait_for(client)
        if len(_open) > self._most and not self._cut_longest_of_all() and self._rest is None and self._accepting:
            self._rest = start_task(self._rest_from_accepting(), name="stop accepting for a moment")

    def _cut_longest_of_all(self) -> bool:
        """Disconnect the longest-waiting client of all servers, and return whether it had its chance and is gone."""
        # If each server disconnected only its own clients, one server's clients could lock out all others.
        server = min((each for each in _servers if each.loop is self.loop), key=lambda each: each.waiting_since)
        if self.loop.time() - server.waiting_since < _CHANCE:
            return False
        server.cut_longest()
        return True

    async def _rest_from_accepting(self) -> None:
        """Stop accepting until the clients above the limit have had their chance, or have left."""
        try:
            while True:
                await self._stop()
                while len(_open) > self._most:
                    if not self._cut_longest_of_all():
                        await asyncio.sleep(_CHANCE / 10)
                # Closed connections free their descriptors in the next iteration.
                await asyncio.sleep(0)
                with suppress(OSError):
                    await self.start()
                    return
                # The program itself has used up its descriptors.
                await asyncio.sleep(1)
        finally:
            self._rest = None

    def complete(self, client: _Client) -> None:
        """Stop waiting for a client's body, which has arrived or is not needed."""
        client.body = None
        self._sending.pop(client, None)

    def forget(self, client: _Client) -> None:
        """Remove a client that has disconnected. Calling this again does nothing."""
        self._got(client)
        self.complete(client)
        self.clients.discard(client)
        _open.discard(client)

    @property
    def waiting_since(self) -> float:
        """The time since when the server has waited for a client, or infinity if it waits for none."""
        return min(map(_oldest, (self._waiting, self._sending)))

    def cut_longest(self) -> None:
        """Disconnect the client whose headers or body have been awaited longest, if any."""
        self._cut_first(min(self._waiting, self._sending, key=_oldest))

    def _cut_first(self, waiting: dict[_Client, float]) -> None:
        if waiting:
            client = next(iter(waiting))
            self._got(client)
            self.complete(client)
            _open.discard(client)
            client.cut()

    def _got(self, client: _Client) -> None:
        """Stop waiting for a client."""
        self._waiting.pop(client, None)
        if client in self._new:
            self._new.remove(client)
            if not self._new:
                self.all_asked.set()

    def _wait_for(self, client: _Client) -> None:
        self._waiting.pop(client, None)
        self._waiting[client] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout, self._sweep)

    def _sweep(self) -> None:
        """Disconnect the clients that have not sent a request in time. A single timer serves all clients."""
        self._timer = None
        while self._waiting:
            due = _oldest(self._waiting) + self.timeout
            if due > self.loop.time():
                self._timer = self.loop.call_at(due, self._sweep)
                return
            self._cut_first(self._waiting)

    # -- turns -------------------------------------------------------------------------------------------------------

    @property
    def piece(self) -> int:
        """The number of bytes of a chunked body to parse next. Clients that send at the same time get equal shares."""
        return max(_LEAST, min(_ALL // self._readers, self._left))

    def count(self, size: int) -> None:
        """Record that ``size`` bytes of a chunked body are parsed in this loop iteration."""
        if not self._turns:
            self.loop.call_soon(self._next_turn)
        self._turns += 1
        self._left -= size

    def _next_turn(self) -> None:
        self._readers, self._turns, self._left = self._turns, 0, _ALL


def _oldest(waiting: dict[_Client, float]) -> float:
    return next(iter(waiting.values()), math.inf)


class _Client(asyncio.BufferedProtocol):
    """The connection of one client. It passes what the transport receives to aiohttp's protocol.

    A buffered protocol sets the number of bytes that a transport reads at a time, so that a client that sends a lot of
    data leaves turns to others.
    """

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._inner = server.protocol(self)
        self.transport: asyncio.Transport | None = None
        #: The task of the TLS handshake, until it has ended.
        self.handshake: asyncio.Task[None] | None = None
        # The bytes that have arrived, until the handshake begins. None without TLS and afterwards.
        self._early: bytes | None = None
        #: The body of the current request, its size at first, and the number of bytes received since.
        self.body: StreamReader | None = None
        self._before = self._wire = 0
        self._is_chunked = False
        # True if received data is discarded. The future is done once the client has disconnected.
        self._deaf = False
        self._gone: asyncio.Future[None] | None = None

    # -- calls from the server ---------------------------------------------------------------------------------------

    def begin(self, body: StreamReader, *, chunked: bool) -> None:
        """Record that a request's headers have arrived, but not all of its ``body``."""
        self._is_chunked = chunked
        self.body, self._before, self._wire = body, body.total_bytes, 0

    def cut(self) -> None:
        """Abort the connection. A graceful close could be delayed indefinitely by a client that does not read."""
        self._deaf = True
        if self.handshake is not None:
            self.handshake.cancel()
        if self.transport is not None:
            self.transport.abort()

    def hurry(self) -> None:
        """Make `linger` return immediately."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def linger(self) -> None:
        """Wait up to a second for the client to read its response and disconnect. Discard the rest of its body.

        If we closed the socket while it had unread data, the client would lose the response.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._deaf = True
        self._gone = self._server.loop.create_future()
        with suppress(TimeoutError, OSError, NotImplementedError):
            transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            async with asyncio.timeout(_LAST_LINGER if self._server.ending else _LINGER):
                await self._gone

    # -- calls from the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for the first request, or for the TLS handshake."""
        # uvloop's transports are not of this class, but have the same methods.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        self._server.admit(self)
        if self._server.context is None:
            self._inner.connection_made(transport)
        elif not transport.is_closing():
            transport.pause_reading()
            self._early = b""
            self.handshake = start_task(self._shake_hands(transport, self._server.context), name="TLS handshake")

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        server, encrypted = self._server, None
        server.loop.call_soon(self._pass_early, transport)
        try:
            encrypted = await server.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=server.timeout
            )
        except OSError:
            # A failed handshake is the client's error.
            transport.abort()
        finally:
            self.handshake = None
            # If the client disconnects during the handshake, asyncio returns None and uvloop a closed transport.
            if encrypted is None or encrypted.is_closing():
                self.connection_lost(None)
        if encrypted is not None and self in server.clients:
            self.transport = encrypted
            self._inner.connection_made(encrypted)

    def _pass_early(self, transport: asyncio.Transport) -> None:
        """Pass the bytes that arrived before the handshake began to its protocol. uvloop does not pause in time."""
        early, self._early = self._early, None
        protocol = cast("asyncio.BufferedProtocol", transport.get_protocol())
        if early and protocol is not self:
            memoryview(protocol.get_buffer(len(early)))[: len(early)] = early
            protocol.buffer_updated(len(early))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the client."""
        self.hurry()
        self._server.forget(self)
        self.transport = None
        if self.handshake is not None:
            self.handshake.cancel()
        self._inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the number of bytes is ours to choose
        """Return the buffer for the next bytes, which sets how many are parsed at a time."""
        size = _HEAD if self.body is None else self._server.piece if self._is_chunked else _MOST
        return self._server.buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes. Disconnect the client if its body is mostly framing, such as one-byte chunks."""
        if self._deaf:
            return
        server, body = self._server, self.body
        if self._early is not None:
            self._early += server.buffer[:nbytes]
            return
        if body is not None and self._is_chunked:
            server.count(nbytes)
        self._inner.data_received(bytes(server.buffer[:nbytes]))
        if body is None:
            return
        self._wire += nbytes
        if body.is_eof():
            server.complete(self)
        elif self._wire > _RATIO * (body.total_bytes - self._before) + _FRAMING:
            server.log.info("disconnected a client whose body has more framing than content")
            self.cut()

    def eof_received(self) -> None:
        """Close the connection after the client's last byte."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pause sending."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Continue to send."""
        self._inner.resume_writing()


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, whose errors repeat nothing that the client has sent."""

    __slots__ = ("_log", "_refusal", "client")

    def __init__(
        self,
        server: web.Server,
        client: _Client,
        refusal: Callable[[int, str], web.Response],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=log,  # type: ignore[arg-type]  # it also takes adapters
            access_log=None,  # type: ignore[arg-type]  # None turns it off
            keepalive_timeout=_NEVER,
            lingering_time=0,
            # A body is verified as it was sent. Handlers refuse compressed bodies.
            auto_decompress=False,
        )
        self._refusal = refusal
        self._log = log
        #: The client that owns this protocol.
        self.client: _Client = client

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
        refusal = self._refusal(status, "internal error" if status >= 500 else "the request is malformed")  # noqa: PLR2004
        answer = _LastResponse(status=refusal.status, body=refusal.body, headers=refusal.headers)
        answer.client = self.client
        answer.force_close()
        return answer


class _LastResponse(web.Response):
    """A response after which the client has a moment to stop sending, so that the response is not lost."""

    client: _Client

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the rest of the response."""
        await super().write_eof(data)
        await self.client.linger()
