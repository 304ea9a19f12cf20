"""Web servers as mains of `run`: Uvicorn and aiohttp."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI

from lifecycle import go, run, sleep
from lifecycle.testing import VirtualLoop
from tests.programs import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Service:
    """An application on a port, with its server."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.begun = asyncio.Event()
        self.port = free_port()
        app = FastAPI(lifespan=self._lifespan)
        app.add_api_route("/", self._answer)
        self.server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_config=None))

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None]:
        self.log.append("open")
        yield
        self.log.append("closed")

    async def _answer(self, seconds: float = 0) -> str:
        self.begun.set()
        await asyncio.sleep(seconds)
        return "hello"

    async def ask(self, path: str = "/") -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        self.log.append((await reader.read()).decode().partition("\r\n\r\n")[2])
        writer.close()


@pytest.fixture
def service() -> Service:
    return Service()


def test_next_main_starts_when_the_server_listens(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        await service.ask()
        return "done"

    assert run(service.server, main) == "done"
    assert service.log == ["open", '"hello"', "closed"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_stop_waits_for_requests_that_have_begun(service: Service) -> None:
    async def main() -> None:
        go(service.ask, "/?seconds=0.3")
        await service.begun.wait()

    run(service.server, main)
    assert service.log == ["open", '"hello"', "closed"]


def test_signal_stops_the_server(service: Service) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    assert run(service.server.serve, main) is None
    assert service.log == ["open", "closed"]


def test_end_of_the_server_completes_the_program(service: Service) -> None:
    async def forever() -> None:
        service.server.should_exit = True
        await asyncio.Event().wait()

    class Part:
        async def run(self) -> None:
            await forever()

    run(service.server, Part())
    assert service.log == ["open", "closed"]


def test_server_whose_port_is_taken_ends_the_program(service: Service) -> None:
    first = Service()
    first.server.config.port = service.port

    async def main() -> None:
        pytest.fail("it must not start")

    with pytest.raises(SystemExit):
        run(service.server, first.server, main)
    assert service.log == ["open", "closed"]


def test_runner_of_aiohttp_is_a_main(service: Service) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    class Server(web.AppRunner):
        async def setup(self) -> None:
            await super().setup()
            await web.TCPSite(self, "127.0.0.1", service.port).start()

    app = web.Application()
    app.router.add_get("/", hello)
    runner = Server(app)
    run(runner, service.ask)
    assert service.log == ["hello"]
    assert not runner.addresses


def test_server_that_does_not_stop_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck:
        started = False
        should_exit = False

        async def serve(self, sockets: Any = None) -> None:
            await asyncio.sleep(1)
            self.started = True
            await asyncio.Event().wait()

    async def main() -> None:
        await sleep(1)

    run(Stuck(), main, loop_factory=VirtualLoop)
    assert "Stuck has not responded to all requests and is being cancelled" in caplog.text
