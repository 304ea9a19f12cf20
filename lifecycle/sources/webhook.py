"""HTTP requests as events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from lifecycle._durations import in_seconds
from lifecycle._listening import listen
from lifecycle._net import unix_path, url_of
from lifecycle.events.sources import Source
from lifecycle.sources._webhook_rules import Admission, Limits, Verify

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.control import Emit
    from lifecycle.sources._webhook_server import WebhookServer
    from lifecycle.sources.inbox import Inbox, InboxDelivery
    from lifecycle.sources.signatures import Verifier

__all__ = ["WebhookSource"]


class WebhookSource(Source):
    """Sends a `WebhookEvent` for each HTTP request that is valid, within the limits and, if required, signed.

    The path becomes the topic: ``/deploy`` becomes ``webhook/deploy``, and ``/`` becomes ``webhook``.

    Without an inbox, the response is sent once the event is in its lane. If the lane is full, the sender waits. With an
    `Inbox`, the response is sent once the request is on disk. While the source is suspended, the response is 503.
    ``SuspendHandler.manage(source)`` suspends it together with the program.

    Error responses are small JSON objects. The status is 400 if the request is malformed, and 401 if it has no valid
    signature. It is 404 for an unknown path, for a path with empty segments, ``..`` or wildcards, and for a topic
    without a handler. It is 405 (with ``Allow``) if the method is not allowed, 408 if the request is too slow, 413 if
    it is too large, and 415 if it is compressed. It is 429 or 503 (with ``Retry-After``) under load, and 501 for a
    transfer coding other than chunked. Refused requests are logged at INFO, without their query and headers. They are
    announced by `hooks.webhook_refused`, and counted by status in the metric ``lifecycle.webhook.refused``.

    ``async with`` opens the port. The router enters the source when it starts. When the router stops, the response to
    new requests is 503 until the lanes are empty. Then idle connections are closed, and requests in flight get a short
    time to finish.

    Args:
        host: The address or host name to listen on, or ``"unix:/run/app.sock"`` for a Unix socket with mode 0600. An
            old socket file is replaced if its process has exited. If systemd passes a socket bound to the same address,
            that socket is used.
        port: The port to listen on. 0 chooses a free port. Ignored for a Unix socket.
        verify: A verifier from ``lifecycle.sources.signatures``, or a function with the same arguments as a verifier's
            ``verify``. Required unless ``host`` is a loopback address or a Unix socket. Without a verifier, requests
            from web pages are refused, as are requests whose ``Host`` is not a name or address of ``host``.
        paths: Paths to accept. By default, any path.
        methods: Methods to accept.
        limits: The limits on size, rate and time.
        inbox: An inbox that stores accepted requests on disk until they are handled.
        ssl_context: A TLS context. If you pass one, the source serves HTTPS.
        dedupe: How long, in seconds, to remember the delivery id that the verifier returns (for Stripe and Slack, the
            signed time and body). A repeated request gets the same response as the first one and is not delivered
            again, unless the first response was an error. While the handler of the first request is still running, the
            repeated request waits for it. Up to 65,536 ids and 64 MiB of results are kept in memory. 0 turns this off.
            An inbox has its own setting.
        answer: With ``"accepted"``, the response is 202 and is sent as soon as the event is accepted. With
            ``"handled"``, it is sent once the handler has finished: 200 if it returned, the status of a `Refused` or
            `InvalidBody` that it raised, 500 if it raised any other error, or 504 if it exceeds
            ``limits.answer_timeout``. With ``"result"``, the handler's value is the body: bytes, text, or anything that
            ``json.dumps`` accepts. If the value is None, the response is 204. Many senders time out after ten seconds
            and send the request again.

    Raises:
        ValueError: if ``host`` is not a loopback address and ``verify`` is missing, if paths or methods cannot be
            served, or if ``answer="handled"`` or ``"result"`` is combined with an inbox, which retries failed events.
        TypeError: if ``inbox`` is not an `Inbox`.
    """

    def __init__(  # noqa: PLR0913  # all but the address are optional settings by name
        self,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        verify: Verifier | Verify | None = None,
        paths: Iterable[str] | None = None,
        methods: Iterable[str] = ("POST",),
        limits: Limits = Limits(),  # noqa: B008  # frozen
        inbox: Inbox | None = None,
        ssl_context: ssl.SSLContext | None = None,
        dedupe: Duration = 600.0,
        answer: Literal["accepted", "handled", "result"] = "accepted",
    ) -> None:
        self._admission = Admission(host, verify, paths=paths, methods=methods, rate=limits.rate)
        if answer not in ("accepted", "handled", "result"):
            raise ValueError(f"answer={answer!r} is unknown; use 'accepted', 'handled' or 'result'")
        if answer != "accepted" and inbox is not None:
            raise ValueError(
                f"answer={answer!r} and an inbox cannot be combined, because an inbox responds before the event is "
                "handled; leave one of them out"
            )
        self.name: str = f"webhook {host}:{port}" if unix_path(host) is None else f"webhook {host}"
        self._host, self._port = host, port
        self._context = ssl_context
        self._limits = limits
        self._dedupe = in_seconds("dedupe", dedupe, least=0, finite=True)
        self._answer: Literal["accepted", "handled", "result"] = answer
        self._inbox = _delivery_of(inbox)
        self._server: WebhookServer | None = None
        self._address: tuple[str, int] | None = None
        self._closing = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WebhookSource {self.url}>"

    @property
    def url(self) -> str:
        """The URL of the source, without a trailing slash.

        Until the source has started, it is the URL of the configured address.
        """
        return url_of("http" if self._context is None else "https", *(self._address or (self._host, self._port)))

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            OSError: if the address is in use or does not exist.
            JournalError: if the inbox cannot be opened or written.
        """
        from lifecycle.sources._webhook_server import WebhookServer  # importing aiohttp is slow

        self._closing = asyncio.Event()
        if self._inbox is not None:
            await self._inbox.open()
        try:
            listening = await listen(self._host, self._port)
            server = WebhookServer(
                self,
                listening,
                self._admission,
                self._limits,
                self._inbox,
                context=self._context,
                dedupe=self._dedupe,
                answer=self._answer,
            )
            server.suspended = self.paused
            try:
                await server.http.start()
            except BaseException:
                await server.http.aclose()
                raise
        except BaseException:
            await self._leave_inbox()
            raise
        self._server, self._address = server, listening.address
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, finish or refuse requests in flight, and close all connections."""
        server, self._server, self._address = self._server, None, None
        if server is not None:
            try:
                await server.aclose(at_once=kind is not None)
            finally:
                await self._leave_inbox()

    async def run(self, emit: Emit) -> None:
        """Send events until closed or cancelled. If the caller has not entered the source, enter it first."""
        if self._server is None:
            async with self:
                await self.run(emit)
            return
        self._server.open(emit)
        if self._inbox is not None and not self._closing.is_set():
            await self._inbox.run(emit)
        await self._closing.wait()
        await self._server.drain()

    def pause_changed(self, *, paused: bool) -> None:
        """Respond to new requests with 503 and ``Retry-After`` while paused, and accept them again afterwards.

        Requests in flight are still handled. The messages in the inbox stay there while the source is paused.
        """
        if self._server is not None:
            self._server.suspended = paused
        if self._inbox is not None:
            self._inbox.suspend(suspended=paused)

    def close(self) -> None:
        """Make `run` return: refuse new requests, and finish those in flight.

        A socket passed by systemd is released to other processes immediately. For one more second, clients that are
        already connected can send a first request.
        """
        self._closing.set()
        if self._server is not None:
            self._server.close()
        if self._inbox is not None:
            self._inbox.end()

    async def settle(self) -> None:
        """Store the results of all deliveries in the inbox, and close it.

        The router calls this once all deliveries have ended. If you run a source with an inbox but without a router,
        call it yourself after exiting the source.
        """
        if self._inbox is not None:
            await self._inbox.settle()

    async def _leave_inbox(self) -> None:
        if self._inbox is not None:
            await self._inbox.leave()


def _delivery_of(inbox: Inbox | None) -> InboxDelivery | None:
    if inbox is None:
        return None
    from lifecycle.sources.inbox import Inbox, InboxDelivery  # imports SQLite

    if not isinstance(inbox, Inbox):
        raise TypeError(f"inbox={inbox!r} is not an Inbox; pass Inbox({inbox!r}) with the path of a file")
    return InboxDelivery(inbox)
