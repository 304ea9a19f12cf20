"""One HTTP server for webhooks, and the order of its end.

Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._net import share_of_descriptors
from lifecycle.sources._http.listener import Listener
from lifecycle.sources._http.requests import Requests

if TYPE_CHECKING:
    import ssl

    from lifecycle.control.types import Emit
    from lifecycle.sources._http.rules import Rules
    from lifecycle.sources._inbox.deliverer import Deliverer

__all__ = ["HttpServer"]

#: Seconds that requests under way have to come to their end.
_GRACE = 3.0

#: The same at the very end, before those that wait for room are refused.
_LAST_GRACE = 0.3


class HttpServer:
    """Listens, and answers with `Requests`."""

    def __init__(self, rules: Rules, inbox: Deliverer | None) -> None:
        # As many may send a body as may wait for a request.
        self._requests = Requests(rules, share_of_descriptors(4, least=16, most=10_000), inbox)
        self._listener = Listener(self._requests.answer, header_timeout=rules.limits.header_timeout)

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Open the socket, or take the one that was inherited for this address; returns where it listens.

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
        """The end has begun: refuse with 503, unless the socket is to be handed over first."""
        if not self._listener.inherited:
            self._requests.stop()

    async def drain(self) -> None:
        """Leave an inherited socket to who has it next, and bring what is under way into its lanes, or refuse it."""
        await self._listener.hand_over()
        self._requests.stop()
        await self._requests.wait_rest(_GRACE)
        self._requests.give_up()

    async def aclose(self, *, at_once: bool) -> None:
        """Answer what is under way, then close every connection; ``at_once``: handlers are not waited for."""
        self._requests.stop()
        try:
            await self._requests.wait_rest(_LAST_GRACE)
            self._requests.give_up()
            await self._requests.wait_rest(0 if at_once else _GRACE, handled=True)
        finally:
            self._requests.give_up(handled=True)
            await self._listener.aclose()
