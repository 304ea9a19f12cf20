"""HTTP requests as events; ``_http`` serves them."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Literal

from lifecycle.sources._http.settings import (
    Limits,
    Settings,
    checked_methods,
    checked_paths,
    checked_verify,
    is_local,
    unix_path,
    url_of,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from lifecycle.control import Emit
    from lifecycle.sources._http.requests import WebhookServer
    from lifecycle.sources.inbox import Inbox, InboxDelivery
    from lifecycle.sources.signatures.schemes import Verifier, Verify

__all__ = ["WebhookSource"]


class WebhookSource:
    """Sends a `WebhookEvent` for each request that is allowed, small enough and signed.

    A request is answered with 202 once its event is in its lane; while the lane is full the sender waits. With an
    `Inbox` it is answered once it is on disk, and then delivered in the order of acceptance. Errors are small JSON
    objects: 400 malformed, 401 not signed, 404 unknown path or no handler for its topic, 405 with ``Allow``, 408 too
    slow, 413 too large (before it is read whole), 415 compressed, 429 and 503 with ``Retry-After``, 501 a transfer
    coding other than chunked. Refused requests are logged at level INFO, without query and headers.

    The path becomes the topic: ``/deploy`` is ``webhook/deploy``, and ``/`` is ``webhook``. Paths with empty segments,
    ``..`` or wildcards are 404. ``paths`` (None: any) and ``methods`` restrict requests.

    ``verify`` is one of ``lifecycle.sources.signatures``, or a function with the arguments of their ``verify``. It is
    required unless ``host`` is loopback or a Unix socket; without it, requests from web pages are refused.

    With ``answer="handled"`` the answer is sent when the handler has ended: 200, or 500 if it raised, or 504 if it
    still runs after ``limits.answer_timeout``. Many senders time out after ten seconds and send again.

    A delivery id that the verifier returns (for Stripe and Slack: the signed time and body) is remembered for
    ``dedupe`` seconds (0: not at all) in memory, at most 65,536 of them, together with the path. A request that repeats
    it is answered like the first and not delivered again. If the first was answered with an error, a repetition is
    delivered, except while the handler of the first still runs: then it waits for that. Inboxes have their own setting.

    While suspended, it answers 503 and sends no events; ``SuspendHandler.manage(source)`` suspends it with the program.

    ``host="unix:/run/app.sock"`` is a Unix socket of mode 0600; ``port`` is ignored, and all senders are one address
    for ``Limits.rate``. The socket file of a process that has ended is replaced, and ours is removed on leaving. A
    socket that systemd passes (``LISTEN_FDS``, ``LISTEN_PID``) is used if it is bound to the same host and port, or
    path; it stays open for its next owner. Port 0 uses none. `close` leaves it to other processes at once, and serves
    the first requests of connected clients for a second.

    ``async with`` listens; the router does that when it starts. Leaving closes idle connections at once and gives
    requests in flight a short time. A router that stops leaves when its lanes are empty; until then requests are
    answered with 503.

    Raises:
        ValueError: for a host that is not loopback without ``verify``, for paths or methods that cannot be served, and
            for ``answer="handled"`` with an inbox, which retries failed events.
        TypeError: for an ``inbox`` of another type.
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
        dedupe: float = 600.0,
        answer: Literal["accepted", "handled"] = "accepted",
    ) -> None:
        if not 0 <= dedupe < math.inf:
            raise ValueError(f"dedupe={dedupe!r} must be finite, and not negative; give seconds, or 0 for none")
        if verify is None and not is_local(host):
            raise ValueError(
                f"{host!r} can be reached from other machines, so requests must be verified; "
                "give verify=GitHub(secret), or listen on 127.0.0.1"
            )
        self.name: str = f"webhook {host}:{port}" if unix_path(host) is None else f"webhook {host}"
        self._host, self._port = host, port
        self._context = ssl_context
        self._settings = Settings(
            verify=checked_verify(verify),
            paths=checked_paths(paths),
            methods=checked_methods(methods),
            limits=limits,
            dedupe=dedupe,
            handled=_waits(answer, inbox),
            credential_header=getattr(verify, "credential_header", ""),
            replay_key=getattr(verify, "replay_key", None),
        )
        self._inbox = _delivery_of(inbox)
        self._server: WebhookServer | None = None
        self._suspended = False
        self._address: tuple[str, int] | None = None
        self._closing = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WebhookSource {self.url}>"

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end; before the start the address that was given."""
        return url_of("http" if self._context is None else "https", *(self._address or (self._host, self._port)))

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: when the address is taken or does not exist.
            JournalError: when the inbox cannot be opened or written.
        """
        from lifecycle.sources._http.requests import WebhookServer  # aiohttp is heavy

        self._closing = asyncio.Event()
        server = WebhookServer(self._settings, self._inbox)
        server.suspended = self._suspended
        if self._inbox is not None:
            await self._inbox.open()
        try:
            self._address = await server.listen(self._host, self._port, self._context)
        except BaseException:
            await self._leave_inbox()
            raise
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening; answer or refuse requests in flight; close."""
        server, self._server, self._address = self._server, None, None
        if server is not None:
            try:
                await server.aclose(at_once=kind is not None)
            finally:
                await self._leave_inbox()

    async def run(self, emit: Emit) -> None:
        """Send events until closed or cancelled; enter the source first if it is not entered."""
        if self._server is None:
            async with self:
                await self.run(emit)
            return
        self._server.open(emit)
        if self._inbox is not None and not self._closing.is_set():
            await self._inbox.run(emit)
        await self._closing.wait()
        await self._server.drain()

    def suspend(self) -> None:
        """Answer with 503 and ``Retry-After``; requests in flight continue, and messages of an inbox stay there."""
        self._suspend(suspended=True)

    def resume(self) -> None:
        """Take requests again, and deliver the messages of the inbox."""
        self._suspend(suspended=False)

    def close(self) -> None:
        """Let `run` end: refuse new requests, and answer those in flight."""
        self._closing.set()
        if self._server is not None:
            self._server.close()
        if self._inbox is not None:
            self._inbox.end()

    async def settle(self) -> None:
        """Store the results of all deliveries in the inbox, and close it.

        The router calls this when all deliveries have ended. If you run a source with an inbox and without a router,
        call it after leaving the source.
        """
        if self._inbox is not None:
            await self._inbox.settle()

    async def _leave_inbox(self) -> None:
        if self._inbox is not None:
            await self._inbox.leave()

    def _suspend(self, *, suspended: bool) -> None:
        self._suspended = suspended
        if self._server is not None:
            self._server.suspended = suspended
        if self._inbox is not None:
            self._inbox.suspend(suspended=suspended)


def _delivery_of(inbox: Inbox | None) -> InboxDelivery | None:
    if inbox is None:
        return None
    from lifecycle.sources.inbox import Inbox, InboxDelivery  # SQLite, if it is used

    if not isinstance(inbox, Inbox):
        raise TypeError(f"inbox={inbox!r} is not an Inbox; give Inbox({inbox!r}) with the path of a file")
    return InboxDelivery(inbox)


def _waits(answer: str, inbox: Inbox | None) -> bool:
    if answer not in ("accepted", "handled"):
        raise ValueError(f"answer={answer!r} is unknown; give 'accepted' or 'handled'")
    if answer == "handled" and inbox is not None:
        raise ValueError(
            "answer='handled' and an inbox don't go together: what is on disk is accepted, and tried again if it "
            "fails; leave one of them out"
        )
    return answer == "handled"
