"""A proxy that loses selected messages between clients and a PostgreSQL server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres import Postgres

__all__ = ["Loss", "Way", "way"]

Loss = Literal["request", "answer", "late"]

_SOCKET = ".s.PGSQL.5432"
#: The end of a server response outside a transaction.
_READY = b"Z\x00\x00\x00\x05I"


class Way:
    """Forwards messages between clients and the server."""

    def __init__(self, server: Postgres) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="way-"))
        self._there = str(server.home / _SOCKET)
        self._armed: Loss | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        # The first event is set to deliver the delayed message. The second is set when the server has answered it.
        self._arrive, self.arrived = asyncio.Event(), asyncio.Event()
        # While this event is not set, the server seems frozen.
        self._thawed = asyncio.Event()
        self._thawed.set()

    def url(self, url: str) -> str:
        """Return the address of the same schema through this proxy."""
        return f"{url.partition('?')[0]}?host={self.home}&{url.partition('&')[2]}"

    def lose(self, what: Loss) -> None:
        """Lose or delay the next request, or lose its answer, and close the connection."""
        self._armed = what

    def freeze(self) -> None:
        """Stop forwarding requests, but keep all connections."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Continue to forward requests."""
        self._thawed.set()

    def release(self) -> None:
        """Deliver the delayed message."""
        self._arrive.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            there, to_there = await asyncio.open_unix_connection(self._there)
            back = asyncio.create_task(_answer(there, writer))
            try:
                await self._carry(reader, writer, there, to_there, back)
            finally:
                back.cancel()
                with suppress(asyncio.CancelledError):
                    await back
                await _close(to_there)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await _close(writer)
            self._carrying.discard(task)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        to_there: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(65536):
            await self._thawed.wait()
            loss, self._armed = self._armed, None
            if loss is None:
                to_there.write(data)
                continue
            back.cancel()
            await asyncio.wait([back])
            if loss == "late":
                await _close(writer)
                await self._arrive.wait()
            if loss != "request":
                to_there.write(data)
                # The response may arrive in several parts.
                rest = asyncio.create_task(_carry(reader, to_there))
                answer = b""
                while not answer.endswith(_READY):
                    answer += await there.read(65536)
                rest.cancel()
                await asyncio.wait([rest])
                self.arrived.set()
            return

    async def close(self) -> None:
        for task in list(self._carrying):
            task.cancel()
        if self._carrying:
            await asyncio.wait(list(self._carrying))
        shutil.rmtree(self.home)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _carry(reader, writer)
    writer.close()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def way(server: Postgres) -> AsyncIterator[Way]:
    """Yield a proxy for ``server`` that runs in this event loop."""
    made = Way(server)
    listening = await asyncio.start_unix_server(made.accept, str(made.home / _SOCKET))
    try:
        yield made
    finally:
        listening.close()
        await made.close()
