"""Queries and commands for the program, through its control socket, its dashboard and its probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.soak.program import TOKEN

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ANSWER", "Console"]

#: The timeout in seconds for every response, even on a busy machine.
ANSWER = 80.0

_OUTCOMES = ("handled", "failed", "dropped", "unknown")
#: The status of a response when too many commands are running.
_BUSY = 503


class Console:
    """A client for one run, created when the program is reachable."""

    def __init__(self, up: dict[str, str]) -> None:
        self._up = up
        limit = aiohttp.ClientTimeout(total=ANSWER)
        self._socket = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(up["control"], force_close=True), timeout=limit
        )
        self._tcp = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=limit)
        #: The number of commands that received a response.
        self.answered = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._socket.close()
        await self._tcp.close()

    async def state(self) -> Any:
        """Return a snapshot of the program."""
        async with self._socket.get("http://localhost/api/state") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def command(self, line: str) -> str:
        """Type a command, and return its result."""
        return await self._order("/api/command", {"line": line})

    async def emit(self, topic: str, data: object) -> str:
        """Emit an event through the dashboard, and return its result."""
        return await self._order("/api/emit", {"topic": topic, "data": data}, page=True)

    async def _order(self, path: str, body: dict[str, object], *, page: bool = False) -> str:
        client, base = (self._tcp, self._up["dashboard"]) if page else (self._socket, "http://localhost")
        headers = {"Authorization": f"Bearer {TOKEN}"} if page else {}
        async with client.post(f"{base}{path}", json=body, headers=headers) as answer:
            given = await answer.json()
            self.answered += 1
            if answer.status == _BUSY:
                return "busy"
            assert answer.status == 200, f"unexpected response to {body}: {answer.status} {given}"
            assert given["outcome"] in _OUTCOMES, given
            return str(given["outcome"])

    async def scrape(self) -> set[str]:
        """Parse the metrics and return their names. Also check that the liveness probe succeeds."""
        async with self._tcp.get(f"{self._up['probes']}/livez") as answer:
            assert answer.status == 200, await answer.text()
        async with self._tcp.get(f"{self._up['probes']}/metrics") as answer:
            assert answer.status == 200, await answer.text()
            return {family.name for family in text_string_to_metric_families(await answer.text())}

    async def ready(self) -> bool:
        """Return whether the readiness probe succeeds."""
        async with self._tcp.get(f"{self._up['probes']}/readyz") as answer:
            return answer.status == 200

    async def stall(self, path: str, *, page: bool) -> aiohttp.ClientResponse:
        """Open a stream without reading from it. The caller closes the stream."""
        client, base = (self._tcp, self._up["dashboard"]) if page else (self._socket, "http://localhost")
        headers = {"Authorization": f"Bearer {TOKEN}"} if page else {}
        return await client.get(f"{base}{path}", headers=headers, timeout=aiohttp.ClientTimeout())
