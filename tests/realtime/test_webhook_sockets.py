"""Webhooks over Unix sockets and inherited sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle.control import Router
from lifecycle.observe import ProbeServer
from lifecycle.sources import WebhookSource
from lifecycle.testing import Recorder, running
from tests.realtime.clients import requesting, response_to
from tests.realtime.watches import LIMIT, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator, Iterator

__all__ = ["here", "watch"]  # fixtures


@asynccontextmanager
async def serving(source: WebhookSource) -> AsyncGenerator[Recorder]:
    router, seen = Router(), Recorder()
    router.add_source(source)
    router.handle("webhook/**", seen)
    async with running(router):
        yield seen


async def send(path: str) -> int:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as client,
        client.post("http://localhost/deploy") as answer,
    ):
        return answer.status


async def post(port: int) -> int:
    async with aiohttp.ClientSession() as client, client.post(f"http://127.0.0.1:{port}/deploy") as answer:
        return answer.status


class TestUnix:
    async def test_a_unix_socket_is_for_our_user_and_removed_at_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "app.sock"
        source = WebhookSource(f"unix:{path}")
        async with serving(source):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await send(str(path)) == 202
            assert source.url == "http+unix://" + str(path).replace("/", "%2F")
        assert not path.exists()
        assert source.name == f"webhook unix:{path}"

    async def test_the_file_of_a_process_that_was_killed_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "app.sock"
        program = (
            "import os, socket as o, sys; s = o.socket(1); s.bind(sys.argv[1]); s.listen(); os.kill(os.getpid(), 9)"
        )
        assert run([sys.executable, "-c", program, path], check=False).returncode == -signal.SIGKILL
        assert path.exists()
        async with serving(WebhookSource(f"unix:{path}")):
            assert await send(str(path)) == 202

    async def test_a_socket_in_use_is_an_error_and_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "app.sock"
        async with serving(WebhookSource(f"unix:{path}")):
            with pytest.raises(OSError, match=f"another program is listening at {path}; stop it"):
                await WebhookSource(f"unix:{path}").__aenter__()
            assert await send(str(path)) == 202

    async def test_a_file_that_is_not_a_socket_is_never_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_text("ours")
        with pytest.raises(FileExistsError, match=f"{path} exists and is not a socket; remove it"):
            await WebhookSource(f"unix:{path}").__aenter__()
        assert path.read_text() == "ours"

    async def test_a_socket_of_another_process_at_the_path_is_not_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "app.sock"
        async with WebhookSource(f"unix:{path}"):
            path.unlink()
            path.write_text("his")
        assert path.read_text() == "his"

    @pytest.mark.parametrize("bad", ["unix:", "unix:app.sock", "unix:/a\0b", "unix:@name"])
    def test_an_invalid_path_raises(self, bad: str) -> None:
        with pytest.raises(ValueError, match="must contain an absolute path, such as"):
            WebhookSource(bad)

    async def test_a_missing_directory_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"cannot listen at .*: No such file"):
            await WebhookSource(f"unix:{tmp_path}/none/app.sock").__aenter__()

    async def test_a_path_that_is_too_long_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"cannot listen at .*too long"):
            await WebhookSource(f"unix:{tmp_path}/{'x' * 120}").__aenter__()


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that simulates inheriting a socket, together with all descriptors from 3 up to the socket."""

    def hand(given: socket.socket, *, pid: int | None = None, number: str = "") -> None:
        os.set_inheritable(given.fileno(), True)
        monkeypatch.setenv("LISTEN_PID", str(os.getpid() if pid is None else pid))
        monkeypatch.setenv("LISTEN_FDS", number or str(given.fileno() - 2))

    return hand


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as given:
        yield given


class TestInherited:
    async def test_an_inherited_socket_can_be_used_again(self, listening: socket.socket, handed: Any) -> None:
        handed(listening)
        port = listening.getsockname()[1]
        source = WebhookSource(port=port)
        for _ in range(2):
            async with serving(source):
                assert await post(port) == 202
                assert source.url == f"http://127.0.0.1:{port}"
            assert not os.get_inheritable(listening.fileno())
        with socket.create_connection(("127.0.0.1", port), LIMIT):
            pass

    async def test_a_host_name_matches_its_addresses(self, listening: socket.socket, handed: Any) -> None:
        handed(listening)
        port = listening.getsockname()[1]
        async with serving(WebhookSource("localhost", port)):
            assert await post(port) == 202

    async def test_it_serves_one_source_at_a_time(self, listening: socket.socket, handed: Any) -> None:
        handed(listening)
        port = listening.getsockname()[1]
        async with serving(WebhookSource(port=port)):
            with pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is in use"):
                await WebhookSource(port=port).__aenter__()
            assert await post(port) == 202

    async def test_a_probe_server_uses_an_inherited_socket(self, listening: socket.socket, handed: Any) -> None:
        handed(listening)
        port = listening.getsockname()[1]
        async with (
            ProbeServer(port=port),
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/livez") as answer,
        ):
            assert answer.status == 200

    async def test_an_inherited_unix_socket_is_used_and_its_file_stays(self, tmp_path: Path, handed: Any) -> None:
        path = str(tmp_path / "app.sock")
        with socket.socket(socket.AF_UNIX) as given:
            given.bind(path)
            given.listen()
            handed(given)
            for _ in range(2):
                async with serving(WebhookSource(f"unix:{path}")):
                    assert await send(path) == 202
                assert Path(path).exists()

    async def test_port_0_uses_no_inherited_socket(self, listening: socket.socket, handed: Any) -> None:
        handed(listening)
        source = WebhookSource(port=0)
        async with source:
            assert source.url != f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert os.get_inheritable(listening.fileno())

    @pytest.mark.parametrize("number", ["0", "-1", "x", "²", "9" * 30, " 3"])
    async def test_an_invalid_listen_fds_is_ignored(self, listening: socket.socket, handed: Any, number: str) -> None:
        handed(listening, number=number)
        with pytest.raises(OSError, match="is in use by another program"):
            await WebhookSource(port=listening.getsockname()[1]).__aenter__()

    async def test_a_socket_for_another_process_is_not_used(self, listening: socket.socket, handed: Any) -> None:
        handed(listening, pid=os.getppid())
        with pytest.raises(OSError, match="is in use by another program"):
            await WebhookSource(port=listening.getsockname()[1]).__aenter__()

    async def test_an_inherited_socket_that_does_not_listen_is_not_used(self, handed: Any) -> None:
        with socket.socket() as given:
            given.bind(("127.0.0.1", 0))
            handed(given)
            with pytest.raises(OSError, match="is in use by another program"):
                await WebhookSource(port=given.getsockname()[1]).__aenter__()

    async def test_connected_clients_are_served_when_the_socket_is_handed_over(
        self, listening: socket.socket, handed: Any
    ) -> None:
        handed(listening)
        source = WebhookSource(port=listening.getsockname()[1])
        async with serving(source) as seen:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            # The server accepts the connection in this same event loop.
            await asyncio.sleep(0.02)
            source.close()
            writer.write(b"POST /deploy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 202 Accepted\r\n"
            writer.close()
            await writer.wait_closed()
        assert len(seen.events) == 1


APP = """\
import asyncio, os, socket
from lifecycle import Router, run
from lifecycle.sources import WebhookSource
with socket.socket(fileno=os.dup(3)) as given:
    port = given.getsockname()[1]
router = Router()
router.add_source(WebhookSource(port=port))
router.handle("webhook/**", lambda event: None)
async def tell():
    await router.wait_running()
    print("up", flush=True)
    await asyncio.Event().wait()
run(router, tell)
"""


def ask(port: int) -> str:
    """Send a webhook, and return the status of the response, or the error."""
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return response_to(port, request, lambda answer: answer.partition(b"\r\n")[0])


def more(before: int, answers: Counter[str]) -> bool:
    return answers.total() > before


def test_no_request_is_refused_during_reloads_of_a_watch(watch: Any, here: Path) -> None:
    write(here / "app.py", APP)
    seen = watch("--socket", "127.0.0.1:0")
    port = int(seen.said(r"listening on 127\.0\.0\.1:(\d+) for the command")[0])
    with requesting(partial(ask, port), number=4, pause=0.02) as answers:
        for reload in range(1, 4):
            seen.seen("up\n", times=reload)
            before = answers.total()
            until_blocking(partial(more, before, answers), "an answer")
            seen.process.send_signal(signal.SIGHUP)
        seen.seen("up\n", times=4)
    assert set(answers) == {"HTTP/1.1 202 Accepted"}, seen.everything()
    assert "did not stop in time" not in seen.err.read_text()


class _Readerless(asyncio.SelectorEventLoop):
    """A loop without readers and writers for the program, like the default loop on Windows."""


def _refuse(*_: object) -> None:
    raise NotImplementedError


for _name in ("add_reader", "remove_reader", "add_writer", "remove_writer"):
    setattr(_Readerless, _name, _refuse)


@pytest.mark.parametrize("inherited", [False, True])
def test_servers_run_on_a_loop_without_readers(inherited: bool, listening: socket.socket, handed: Any) -> None:
    """The default loop on Windows has none."""
    port = listening.getsockname()[1]
    if inherited:
        handed(listening)
    else:
        listening.close()

    async def main() -> None:
        async with serving(WebhookSource(port=port)) as seen, ProbeServer(port=0) as probes:
            assert await post(port) == 202
            async with aiohttp.ClientSession() as client, client.get(f"{probes.url}/livez") as answer:
                assert answer.status == 200
        assert [event.body for event in seen.events] == [b""]

    with asyncio.Runner(loop_factory=_Readerless) as runner:
        runner.run(main())


async def test_a_hand_over_that_is_cancelled_closes_its_sockets(listening: socket.socket, handed: Any) -> None:
    handed(listening)
    source, router, counts = WebhookSource(port=listening.getsockname()[1]), Router(), []
    # The loop may open descriptors of its own when it is first used.
    for _ in range(3):
        async with source:
            run = asyncio.create_task(source.run(router.emit))
            await asyncio.sleep(0)
            source.close()
            # The source has stopped accepting clients, and waits for those that are being accepted.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait([run])
            assert run.cancelled()
        await asyncio.sleep(0.01)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[1] == counts[2]
