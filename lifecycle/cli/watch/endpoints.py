"""Servers for `lifecycle watch`: live reload for browser pages, and a webhook.

Live reload consists of a stream of server-sent events and a script that reads it. A page includes the script with one
tag. The script sends the time since its page was served, and receives a message as soon as a newer run of the command
is ready. It can therefore connect at any time, and reconnect. After the message, it waits until the page's server
responds, and reloads the page.
"""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lifecycle._async import start_task
from lifecycle.cli.files import secret_in
from lifecycle.sources import Source, WebhookSource
from lifecycle.sources.signatures import GitHub

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.cli.options import Address
    from lifecycle.control import Emit

__all__ = ["AnnouncedWebhook", "LiveReload"]

#: The maximum number of pages that can wait at the same time.
MAX_PAGES: Final = 200
#: The timeout, in seconds, for receiving request headers and for sending a response.
_TIMEOUT: Final = 10.0

# If the page reloaded while the server was unavailable or returning errors, the new page would not contain the script.
# All times are on the page's clock, which starts when the browser navigates to the page.
_SCRIPT: Final = """\
(() => {
  const url = new URL("/events", document.currentScript.src);
  let answered = performance.getEntriesByType("navigation")[0]?.responseStart ?? 0;
  const listen = () => {
    url.searchParams.set("age", Math.floor(performance.now() - answered));
    const events = new EventSource(url);
    events.onmessage = () => { events.close(); reload(); };
    events.onerror = () => { events.close(); setTimeout(listen, 500); };
  };
  const look = ({ status, body }) => {
    body?.cancel();
    if (status === 500) listen();
    else if (status >= 502 && status <= 504) setTimeout(reload, 500);
    else location.reload();
  };
  const reload = () => {
    answered = performance.now();
    if (location.protocol === "file:") location.reload();
    else fetch(location.href, { cache: "no-store", redirect: "manual" }).then(look, () => setTimeout(reload, 200));
  };
  listen();
})();
"""

#: The path of the stream. ``age`` is the time since the page was served, in milliseconds.
_EVENTS: Final = re.compile(rb"/events(?:\?age=(\d{1,15}))?")


class LiveReload(Source):
    """A source that serves live reload on 127.0.0.1 and emits no events. It passes its script tag to ``announce``."""

    def __init__(self, port: int, announce: Callable[[str], object]) -> None:
        self.name: str = f"live reload on port {port}"
        self._port = port
        self._announce = announce
        # The loop time when the last run became ready, and an event that is set when the next run becomes ready.
        self._ready_at = -math.inf
        self._next = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    def notify(self) -> None:
        """Reload the pages because a new run is ready."""
        self._ready_at = asyncio.get_running_loop().time()
        self._next.set()
        self._next = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start listening.

        Raises:
            OSError: if the port is in use.
        """
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        self._announce(
            f'for live reload, add this to your pages: <script src="http://127.0.0.1:{port}/live.js"></script>'
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and close the connections."""
        assert self._server is not None, "it was entered"
        self._server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        await self._server.wait_closed()

    async def run(self, emit: Emit) -> None:  # noqa: ARG002  # there is nothing to emit
        """Wait until cancelled. The router calls this method."""
        await asyncio.Event().wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = start_task(self._serve(reader, writer), name="live reload")
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one request, and close its connection."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head.split(b"\r\n", 1)[0].split(b" "), reader, writer)
            writer.close()
            async with asyncio.timeout(_TIMEOUT):
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            pass  # the client has disconnected, or is not a browser
        finally:
            writer.transport.abort()

    async def _answer(self, words: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match words:
            case [b"GET", b"/live.js", _]:
                await _send(writer, _head("200 OK", "text/javascript") + _SCRIPT)
            case [b"GET", path, _] if asked := _EVENTS.fullmatch(path):
                if len(self._clients) > MAX_PAGES:
                    await _send(writer, _head("503 Service Unavailable", "text/plain") + "too many pages\n")
                else:
                    await self._stream(int(asked[1] or 0) / 1000, reader, writer)
            case _:
                await _send(writer, _head("404 Not Found", "text/plain") + "GET /live.js or /events\n")

    async def _stream(self, age: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a message once a run newer than the page is ready. The page was served ``age`` seconds ago.

        If the page closes the connection first, nothing is sent.
        """
        answered = asyncio.get_running_loop().time() - age
        await _send(writer, _head("200 OK", "text/event-stream") + ": waiting for a run that is ready\n\n")
        gone = start_task(reader.read(1), name="end of a page")
        try:
            if answered >= self._ready_at:
                await _first(gone, start_task(self._next.wait(), name="reload of a page"))
            if not gone.done():
                await _send(writer, "data: reload\n\n")
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await gone


def _head(status: str, kind: str) -> str:
    """Return response headers. Pages from any origin can read the response, which ends when the connection closes."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nCache-Control: no-store\r\n"
        "Access-Control-Allow-Origin: *\r\nCross-Origin-Resource-Policy: cross-origin\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )


async def _send(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(text.encode())
    async with asyncio.timeout(_TIMEOUT):
        await writer.drain()


async def _first(gone: asyncio.Task[bytes], news: asyncio.Task[bool]) -> None:
    """Wait until one of the tasks is done, then cancel ``news``."""
    try:
        await asyncio.wait({gone, news}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        news.cancel()
        await asyncio.wait({news})


class AnnouncedWebhook(WebhookSource):
    """A webhook that prints its URL when it starts listening, because it may use any free port.

    Args:
        address: the address to listen on.
        secret_env: the environment variable that contains the secret.
        announce: prints a message.

    Raises:
        ConfigError: if the variable is not set.
    """

    def __init__(self, address: Address, secret_env: str | None, *, announce: Callable[[str], object]) -> None:
        super().__init__(*address, verify=GitHub(secret_in(secret_env)) if secret_env else None)
        self._announce = announce
        self._warning = (
            "" if secret_env else "; any local program can send requests; to require signatures, use --secret-env NAME"
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._announce(f"webhook at {self.url}{self._warning}")
        return self
