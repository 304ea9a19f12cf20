"""One HTTP server for webhooks, from its socket to its clean end.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.sources._http.listener import Listener, most_connections
from lifecycle.sources._http.requests import Requests

if TYPE_CHECKING:
    import ssl

    from lifecycle.control.types import Emit
    from lifecycle.sources._http.rules import Rules
    from lifecycle.sources._inbox.deliverer import Deliverer

__all__ = ["HttpServer"]


class HttpServer:
    """Listens, and answers with `Requests`."""

    def __init__(self, rules: Rules, inbox: Deliverer | None) -> None:
        # As many may send a body as may wait for a request.
        self._requests = Requests(rules, most_connections(), inbox)
        self._listener = Listener(self._requests.answer, header_timeout=rules.limits.header_timeout)

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Open the socket, or take the one that was inherited for this address; returns the address it got.

        Raises:
            OSError: saying which address is not to be had, and why.
        """
        return await self._listener.listen(host, port, context)

    def open(self, emit: Emit) -> None:
        """Let requests through to ``emit``."""
        self._requests.open(emit)

    def suspend(self, *, suspended: bool) -> None:
        """Answer requests with 503 from now on, or no longer; the socket stays open."""
        self._requests.suspended = suspended

    def close(self) -> None:
        """The end has begun: refuse, unless the socket is to be handed over first."""
        if not self._listener.inherited:
            self.refuse()

    async def hand_over(self) -> None:
        """Leave an inherited socket to who has it next; requests on connections that are there are still taken."""
        await self._listener.hand_over()

    def refuse(self) -> None:
        """Answer requests with 503 from now on; what is under way goes on, and who connects is told."""
        self._requests.stop()

    def give_up(self) -> None:
        """Answer with 503 also what waits for room."""
        self._requests.give_up()

    async def wait_rest(self, seconds: float, *, handled: bool = False) -> None:
        """Wait until no request is under way, at most ``seconds``; with ``handled``, nor its event in a handler."""
        await self._requests.wait_rest(seconds, handled=handled)

    async def aclose(self) -> None:
        """Answer what is left, then close every connection."""
        self._requests.part()
        await self._listener.aclose()
