"""Pages reload when a new run is ready, and the webhook prints its address."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.options import Address
from lifecycle.cli.watch import endpoints
from lifecycle.cli.watch.endpoints import AnnouncedWebhook, LiveReload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Page:
    """A client that has sent a request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def connected(self) -> None:
        """Wait until the stream has started."""
        while not (await self.reader.readline()).startswith(b":"):
            assert not self.reader.at_eof()

    async def hears(self) -> str:
        """Return the next event."""
        while not (line := (await self.reader.readline()).decode()).startswith("data: "):
            assert line
        return line[6:-1]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[LiveReload, int]]:
    said: list[str] = []
    async with LiveReload(0, said.append) as server:
        [tag] = said
        found = re.fullmatch(r'.*: <script src="http://127\.0\.0\.1:(\d+)/live\.js"></script>', tag)
        assert found
        yield server, int(found[1])


@asynccontextmanager
async def asking(port: int, line: bytes) -> AsyncIterator[Page]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        yield Page(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_each_page_reloads_with_the_next_ready_run() -> None:
    async with serving() as (server, port):
        server.notify()
        async with asking(port, b"GET /events?age=0") as one, asking(port, b"GET /events") as other:
            head = await one.head()
            assert "200 OK" in head
            assert "text/event-stream" in head
            assert "Access-Control-Allow-Origin: *" in head
            await one.connected()
            await other.connected()
            server.notify()
            assert await one.hears() == await other.hears() == "reload"
            # The page reloads, and is then treated as a new page.
            assert await one.reader.read() == b"\n"


async def test_page_older_than_the_run_reloads_at_once() -> None:
    async with serving() as (server, port):
        server.notify()
        for _ in range(2):
            async with asking(port, b"GET /events?age=60000") as page:
                assert await page.hears() == "reload"


async def test_before_the_first_run_is_ready_no_page_is_old() -> None:
    async with serving() as (server, port), asking(port, b"GET /events?age=60000") as page:
        await page.connected()
        assert not page.reader.at_eof()
        server.notify()
        assert await page.hears() == "reload"


async def test_script_is_allowed_for_any_origin() -> None:
    async with serving() as (_, port), asking(port, b"GET /live.js") as script:
        head = await script.head()
        assert "text/javascript" in head
        assert "Cross-Origin-Resource-Policy: cross-origin" in head
        assert "new EventSource(" in (await script.reader.read()).decode()


async def test_closed_page_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_PAGES", 1)
    async with serving() as (server, port):
        async with asking(port, b"GET /events") as page:
            await page.connected()
        server.notify()
        async with asyncio.timeout(5):
            accepted = False
            while not accepted:
                async with asking(port, b"GET /events") as page:
                    accepted = "200 OK" in await page.head()


async def test_shutdown_closes_the_pages() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /events HTTP/1.1\r\n\r\n")
        await Page(reader, writer).connected()
    assert await reader.read() in (b"", b"\n")
    writer.close()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /", "404"),
        (b"POST /events", "404"),
        (b"GET", "404"),
        (b"\x00\xff", "404"),
        (b"GET /events?x", "404"),
        (b"GET /events?age=-1", "404"),
        (b"GET /events?age=" + b"9" * 400, "404"),
    ],
)
async def test_other_paths_are_404(line: bytes, status: str) -> None:
    async with serving() as (_, port), asking(port, line) as page:
        assert (await page.head()).split()[1] == status


async def test_too_long_request_head_is_refused() -> None:
    async with serving() as (_, port):
        async with asking(port, b"GET /" + b"x" * 200_000) as page:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await page.head()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /eve")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_too_many_pages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_PAGES", 1)
    async with serving() as (_, port), asking(port, b"GET /events") as one:
        await one.connected()
        async with asking(port, b"GET /events") as other:
            assert "503" in await other.head()


async def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    async with serving() as (_, port):
        with pytest.raises(OSError, match=f"{port}"):
            await LiveReload(port, print).__aenter__()


@pytest.mark.parametrize(("secret_env", "hinted"), [(None, True), ("SECRET", False)], ids=["unsigned", "signed"])
async def test_webhook_prints_its_address_and_warns_without_a_secret(
    monkeypatch: pytest.MonkeyPatch, secret_env: str | None, *, hinted: bool
) -> None:
    monkeypatch.setenv("SECRET", "secret")
    said: list[str] = []
    async with AnnouncedWebhook(Address("127.0.0.1", 0), secret_env, announce=said.append) as source:
        assert said[0].startswith(f"webhook at {source.url}")
        assert ("use --secret-env NAME" in said[0]) == hinted
