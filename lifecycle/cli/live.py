"""What tells open pages in browsers to reload themselves: a stream of server-sent events, and the script that reads it.

A page takes part by one script tag. Each run of the command that is ready gets a number; the script knows the one that
it was fetched with, and reloads the page when it hears another, as soon as the server of the page answers.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.control.types import Emit

__all__ = ["LiveReload"]

#: Pages that are told at a time.
_MOST: Final = 200
#: Seconds for the head of a request, and for what is sent to be taken.
_PATIENCE: Final = 10.0

# Where nobody answers yet, a reload would show the browser's own page, which never comes back.
_SCRIPT: Final = """\
(() => {
  const events = new EventSource(new URL("/events", document.currentScript.src));
  const reload = () => fetch(location.href, { method: "HEAD", cache: "no-store" })
    .then(() => location.reload(), () => setTimeout(reload, 200));
  events.onmessage = (event) => {
    if (event.data !== "GENERATION") {
      events.close();
      reload();
    }
  };
})();
"""


class LiveReload:
    """A source of nothing: it listens on ``port`` of 127.0.0.1 while the router runs, and says so by ``say``."""

    def __init__(self, port: int, say: Callable[[str], object]) -> None:
        self.name = f"live reload on port {port}"
        self._port = port
        self._say = say
        # Nobody mistakes a number of another `lifecycle watch` for one of ours.
        self._start = secrets.token_hex(4)
        self._number = 0
        self._next = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    def tell(self) -> None:
        """Another run is ready."""
        self._number += 1
        self._next.set()
        self._next = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: if the port is taken.
        """
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        self._say(f'for live reload put this into your pages: <script src="http://127.0.0.1:{port}/live.js"></script>')
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hang up."""
        assert self._server is not None, "it was entered"
        self._server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        await self._server.wait_closed()

    async def run(self, emit: Emit) -> None:  # noqa: ARG002  # there is nothing to emit
        """Go on until cancelled; the router calls this."""
        await asyncio.Event().wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._serve(reader, writer), name="live reload")
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, and the end of its connection, whatever comes."""
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head.split(b"\r\n", 1)[0].split(b" "), reader, writer)
            writer.close()
            async with asyncio.timeout(_PATIENCE):
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            pass  # it has gone, or is none of ours
        finally:
            writer.transport.abort()

    async def _answer(self, words: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match words:
            case [b"GET", b"/events", _] if len(self._clients) <= _MOST:
                await self._stream(reader, writer)
            case [b"GET", b"/live.js", _]:
                script = _SCRIPT.replace("GENERATION", self._generation)
                await _send(writer, _head("200 OK", "text/javascript") + script)
            case [b"GET", b"/events", _]:
                await _send(writer, _head("503 Service Unavailable", "text/plain") + "too many pages\n")
            case _:
                await _send(writer, _head("404 Not Found", "text/plain") + "GET /live.js or /events\n")

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say which run is there, now and whenever that changes, until nobody hears it any more."""
        await _send(writer, _head("200 OK", "text/event-stream") + "retry: 500\n\n")
        gone = asyncio.create_task(reader.read(1), name="end of a page")
        try:
            while not gone.done():
                # What is told while this is sent is not missed.
                news = self._next
                await _send(writer, f"data: {self._generation}\n\n")
                await _first(gone, asyncio.create_task(news.wait(), name="news for a page"))
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await gone

    @property
    def _generation(self) -> str:
        return f"{self._start}-{self._number}"


def _head(status: str, kind: str) -> str:
    """The head of an answer that ends with its connection, and that pages of any origin may read."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nCache-Control: no-store\r\n"
        "Access-Control-Allow-Origin: *\r\nCross-Origin-Resource-Policy: cross-origin\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )


async def _send(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(text.encode())
    async with asyncio.timeout(_PATIENCE):
        await writer.drain()


async def _first(gone: asyncio.Task[bytes], news: asyncio.Task[bool]) -> None:
    """Wait for either; the second is ours."""
    try:
        await asyncio.wait({gone, news}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        news.cancel()
        await asyncio.wait({news})
