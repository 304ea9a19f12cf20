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

    from lifecycle.control.types import Emit
    from lifecycle.sources._http.requests import WebhookServer
    from lifecycle.sources.inbox import Inbox, InboxDelivery
    from lifecycle.sources.signatures.schemes import Verifier, Verify

__all__ = ["Limits", "WebhookSource"]


class WebhookSource:
    """Sends a `WebhookEvent` for each request that is allowed, small enough and signed.

    A request is answered with 202 once its event is in its lane; while the lane is full the sender waits. With an
    `Inbox` it is answered once it is on disk, and then delivered in the order of acceptance. Errors are
    small JSON objects: 400 malformed, 401 not signed, 404 unknown path or nothing handles its topic, 405 with
    ``Allow``, 408 too slow, 413 too large (before it is read whole), 415 compressed, 429 and 503 with
    ``Retry-After``, 501 a transfer coding besides chunked. What was refused is logged at level info, without its query
    and headers.

    The path becomes the topic: ``/deploy`` is ``webhook/deploy``, and ``/`` is ``webhook``. Paths with empty
    segments, ``..`` or wildcards are 404. ``paths`` (None: any) and ``methods`` say what is served.

    ``verify`` is one of ``lifecycle.sources.signatures``, or a function with the arguments of their ``verify``. There
    must be one unless ``host`` is loopback or a Unix socket; without one, requests that a web page sends are refused.

    With ``answer="handled"`` the answer comes when the handler has ended: 200, or 500 if it raised, or 504 if it still
    runs after ``limits.answer_timeout``. Many senders give up after ten seconds and come again.

    A delivery id that a verifier gave (of Stripe and Slack: the signed time and body) is remembered for ``dedupe``
    seconds (0: not at all) in memory, at most 65,536 of them, together with the path; a request that repeats it is
    answered like the first and not delivered again. What was answered with an error may come again, except where its
    handler still runs: the repetition waits for that. An inbox remembers ids itself, as its own ``dedupe`` says.

    Suspended, it answers 503 and gives the router nothing; ``SuspendHandler.manage(source)`` does that.

    ``host="unix:/run/app.sock"`` is a Unix socket of mode 0600; ``port`` means nothing, and all senders are one address
    for ``Limits.rate``. The file of a process that has ended is replaced, and ours removed on leaving.
    A socket that was inherited as systemd hands them over (``LISTEN_FDS``, ``LISTEN_PID``) is taken if it is bound to
    this very host and port, or path; it stays open for who takes it next. Port 0 takes none. `close` leaves it to
    others at once, and takes what clients that are connected ask for first within a second.

    ``async with`` listens; the router does that when it starts. Leaving closes idle connections at once and gives
    requests under way a short time. A router that stops leaves when its lanes have run empty; until then requests are
    answered with 503.

    Raises:
        ValueError: for a host that is not loopback without ``verify``, for paths or methods that cannot be served, and
            for ``answer="handled"`` with an inbox, which tries again what failed.
        TypeError: for an ``inbox`` that is none.
    """

    def __init__(  # noqa: PLR0913  # all but the address are settings by name, each of which most leave out
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
            raise ValueError(f"dedupe={dedupe!r} is no time to remember ids for; give seconds, or 0 for none")
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
        """Where it listens, without a slash at the end; before the start what was asked for."""
        return url_of("http" if self._context is None else "https", *(self._address or (self._host, self._port)))

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: when the address is taken or not to be had.
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
        """Stop listening; answer what is under way, or refuse it; close."""
        server, self._server, self._address = self._server, None, None
        if server is not None:
            try:
                # Cancelled, nobody has time.
                await server.aclose(at_once=kind is not None)
            finally:
                await self._leave_inbox()

    async def run(self, emit: Emit) -> None:
        """Send events until closed or cancelled; listens itself where nobody entered it."""
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
        """Answer with 503 and ``Retry-After``; what is under way goes on, and what an inbox holds stays there."""
        self._suspend(suspended=True)

    def resume(self) -> None:
        """Take requests again, and go on with what the inbox holds."""
        self._suspend(suspended=False)

    def close(self) -> None:
        """Let `run` end: no new requests; those under way get their answers."""
        self._closing.set()
        if self._server is not None:
            self._server.close()
        if self._inbox is not None:
            self._inbox.end()

    async def settle(self) -> None:
        """Put down what became of everything that is in the inbox, and close that.

        The router calls this when all deliveries have ended. Who runs the source without one, and with an inbox, does
        so after leaving it.
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
        raise TypeError(f"inbox={inbox!r} is no inbox; give Inbox({inbox!r}) with the path of a file")
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
