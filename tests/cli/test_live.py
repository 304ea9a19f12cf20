"""Pages in browsers are told when another run is ready."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import live
from lifecycle.cli.live import LiveReload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Page:
    """Somebody who asks for ``path``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def hears(self) -> str:
        """The number of the next event."""
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


async def test_each_page_hears_the_number_now_and_whenever_it_changes() -> None:
    async with serving() as (server, port):
        async with asking(port, b"GET /events") as one, asking(port, b"GET /events") as other:
            head = await one.head()
            assert "200 OK" in head
            assert "text/event-stream" in head
            assert "Access-Control-Allow-Origin: *" in head
            numbers = [await one.hears()]
            assert await other.hears() == numbers[0]
            for _ in range(3):
                server.tell()
                numbers.append(await one.hears())
                assert await other.hears() == numbers[-1]
        assert len(set(numbers)) == 4


async def test_the_script_knows_the_number_that_it_was_fetched_with() -> None:
    async with serving() as (server, port):
        server.tell()
        async with asking(port, b"GET /live.js") as script, asking(port, b"GET /events") as events:
            assert "text/javascript" in await script.head()
            assert f'event.data !== "{await events.hears()}"' in (await script.reader.read()).decode()


async def test_a_page_that_was_closed_is_forgotten() -> None:
    async with serving() as (server, port):
        async with asking(port, b"GET /events") as page:
            await page.hears()
        await asyncio.wait(server._clients)
        server.tell()
        assert not server._clients


async def test_what_ends_closes_the_pages() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /events HTTP/1.1\r\n\r\n")
        await Page(reader, writer).hears()
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
    ],
)
async def test_anything_else_is_not_there(line: bytes, status: str) -> None:
    async with serving() as (_, port), asking(port, line) as page:
        assert (await page.head()).split()[1] == status


async def test_a_head_that_is_too_long_or_has_no_end_is_cut_off() -> None:
    async with serving() as (_, port):
        async with asking(port, b"GET /" + b"x" * 200_000) as page:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await page.head()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /eve")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_of_too_many_pages_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST", 1)
    async with serving() as (_, port), asking(port, b"GET /events") as one:
        await one.hears()
        async with asking(port, b"GET /events") as other:
            assert "503" in await other.head()


async def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    async with serving() as (_, port):
        with pytest.raises(OSError, match=f"{port}"):
            await LiveReload(port, print).__aenter__()
