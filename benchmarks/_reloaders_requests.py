"""The requests that fail while reloaders restart a uvicorn server."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from benchmarks._reloaders import KINDS, PATIENCE, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["lost_requests"]

RESTARTS = 2
#: Seconds between two requests.
EVERY = 0.01
#: Seconds for which requests continue after the new process has answered.
AFTER = 0.5

APP = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    headers = [(b"content-length", b"1")]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    await send({{"type": "http.response.body", "body": b"{version}"}})
"""


def lost_requests(kinds: Iterable[str], directory: Path) -> dict[str, object]:
    """Return the number of failed requests per restart for each reloader."""
    lost: dict[str, float] = {}
    for kind in (*kinds, "uvicorn", "keep_old"):
        place = directory / f"web-{kind}"
        place.mkdir()
        _save(place, 0)
        lost[kind] = asyncio.run(_lost(kind, place))
    return {"lost_keep_old": lost["keep_old"], "lost": lost}


async def _lost(kind: str, place: Path) -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(_argv(kind, place, port), place):
        await _until_version(b"0", port)
        # Some reloaders open their watches only after they have started the program.
        await asyncio.sleep(1.0)
        failed = [await _failed_in_a_restart(version, place, port) for version in range(1, RESTARTS + 1)]
    return sum(failed) / RESTARTS


def _save(place: Path, version: int) -> None:
    # Python uses old bytecode if a file has the same size and the same time in seconds.
    (place / "app.py").write_text(APP.format(version=version) + "#" * version)


def _argv(kind: str, place: Path, port: int) -> Sequence[str]:
    server = [sys.executable, "-m", "uvicorn", "app:app"]
    own_port = ["--port", str(port)]
    if kind == "uvicorn":
        return [*server, *own_port, "--reload"]
    if kind == "keep_old":
        options = ["--socket", f"127.0.0.1:{port}", "--keep-old", "--ready", "line:Uvicorn running"]
        return [sys.executable, "-m", "lifecycle", "watch", *options, "--", *server, "--fd", "3"]
    return KINDS[kind](place, [*server, *own_port])


async def _failed_in_a_restart(version: int, place: Path, port: int) -> int:
    """Save a new version, and return the number of failed requests until the new version has answered for a while."""
    tasks: list[asyncio.Task[bytes]] = []
    _save(place, version)
    restarted = asyncio.create_task(_until_version(str(version).encode(), port))
    after = int(AFTER / EVERY)
    while not restarted.done() or (after := after - 1) > 0:
        tasks.append(asyncio.create_task(_answer(port)))
        await asyncio.sleep(EVERY)
    await restarted
    return sum(body == b"" for body in await asyncio.gather(*tasks))


async def _until_version(version: bytes, port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await _answer(port) == version:
                return
            await asyncio.sleep(EVERY)


async def _answer(port: int) -> bytes:
    """Send one request on a new connection. Return the body, or b"" if there is no answer."""
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return (await reader.read()).partition(b"\r\n\r\n")[2]
            finally:
                writer.close()
    except OSError:
        return b""
