"""A control socket under invalid HTTP and JSON, oversized input, readers that never read, and a thousand clients.

None of these stops the program, slows its handlers, or delays its shutdown.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from lifecycle.control import Event, Router
from lifecycle.observe import Console, watch
from lifecycle.observe.http.api import SharedMessages
from lifecycle.observe.http.server import serving, stream
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from tests.programs import LIMIT, Running
from tests.realtime.observe.requests import answer, ask, sent, streaming, tell
from tests.realtime.observe.test_control_socket import PROGRAM, opened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

READERS = 1000

CHUNKED = (
    b"POST /api/emit HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def post(body: bytes, kind: str = "application/json", target: str = "/api/command", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"POST {target} HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("request_", "status", "wanted"),
    [
        (post(b""), 400, "the body is not JSON"),
        (post(b"{"), 400, "the body is not JSON"),
        (post(b"\xff\xfe"), 400, "the body is not JSON"),
        (post(b'{"line": NaN}'), 400, "NaN is not a number"),
        (post(b'{"line": ' + b"1" * 5000 + b"}"), 400, "the body is not JSON"),
        (post(b"[" * 200_000), 400, "the body is nested too deeply"),
        (post(b'{"line": ' * 100_000), 400, "the body is nested too deeply"),
        (post(b"[]"), 400, "the body must be a JSON object with line"),
        (post(b"null"), 400, "the body must be a JSON object with line"),
        (post(b"{}"), 400, "the field 'line', a string"),
        (post(b'{"line": 7}'), 400, "the field 'line', a string"),
        (post(b'{"line": ["stop"]}'), 400, "the field 'line', a string"),
        (post(b'{"line": " "}'), 400, "the line is blank"),
        (post(b'{"topic": null}', target="/api/emit"), 400, "the field 'topic', a string"),
        (post(b'{"data": 1}', target="/api/emit"), 400, "the field 'topic', a string"),
        (post(b'{"line": "stop"}', kind="text/plain"), 415, "send Content-Type: application/json"),
        (post(b"line=stop", kind="application/x-www-form-urlencoded"), 415, "send Content-Type: application/json"),
        (post(b" " * 2_000_000), 413, "the body is larger than 1048576 bytes"),
        (b"DELETE /api/state HTTP/1.0\r\n\r\n", 405, "use GET, HEAD"),
        (b"GET /api/command HTTP/1.0\r\n\r\n", 405, "use POST"),
        (b"GET / HTTP/1.0\r\n\r\n", 404, "this path does not exist"),
        (b"GET /api/../api/dumps HTTP/1.0\r\n\r\n", 404, "this path does not exist"),
        (b"GET /api/trace/x HTTP/1.0\r\n\r\n", 400, "'x' is not a positive number"),
        (b"GET /api/trace/" + b"9" * 5000 + b" HTTP/1.0\r\n\r\n", 400, "is not a positive number"),
        (b"GET /api/trace/99999999 HTTP/1.0\r\n\r\n", 404, "the log has no event 99999999"),
        (b"GET /api/events?limit=0 HTTP/1.0\r\n\r\n", 400, "'0' is not a positive number; use 1 or more"),
        (b"GET /api/events?limit=-1 HTTP/1.0\r\n\r\n", 400, "'-1' is not a positive number"),
        (b"GET /api/events?limit=%D9%A3 HTTP/1.0\r\n\r\n", 400, "is not a positive number"),
        (b"GET /api/events?pattern=[ HTTP/1.0\r\n\r\n", 400, "malformed pattern"),
        (b"GET /api/events/stream?pattern=[ HTTP/1.0\r\n\r\n", 400, "malformed pattern"),
        (b"GET /api/explain HTTP/1.0\r\n\r\n", 400, "the query must contain a topic"),
        (b"GET /api/diagram?of=%00 HTTP/1.0\r\n\r\n", 404, "is neither a worker nor a flow"),
    ],
)
async def test_bad_requests_get_an_error_message(runtime: Path, request_: bytes, status: int, wanted: str) -> None:
    async with opened() as (_, path):
        answered, body = await answer(path, request_)
        assert (answered, list(body)) == (status, ["error"])
        assert wanted in body["error"]
        assert len(body["error"]) < 500


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\1\2\3\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /api/state HTTP/9.9\r\n\r\n",
        b"GET /api/state HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /api/state HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /api/emit HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        CHUNKED + b"xyz\r\n",
    ],
)
async def test_requests_that_are_not_http_are_refused_and_log_no_error(
    runtime: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (_, path):
        received = await sent(path, garbage)
        assert not received or received.split()[1].startswith(b"4")
        assert (await ask(path, "/api/commands"))[0] == 200
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_transfer_coding_that_is_not_decoded_is_refused(runtime: Path) -> None:
    async with opened() as (_, path):
        received = await sent(path, CHUNKED.replace(b": chunked", b": gzip, chunked") + b"2\r\n{}\r\n0\r\n\r\n")
        assert b" 501 " in received.partition(b"\r\n")[0]


async def test_a_body_larger_than_its_content_length_is_cut_off(runtime: Path) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    async with opened() as (_, path):
        received = await sent(path, CHUNKED + chunk * 20 + b"0\r\n\r\n")
        assert b" 413 " in received.partition(b"\r\n")[0]


async def test_unknown_commands_run_nothing(runtime: Path) -> None:
    async with opened() as (life, path):
        for line in ("stpo", "rm -rf /", "stop;", "STOP", "$(stop)", "\u0130", "x" * 100_000, "'" * 1001):
            status, outcome = await tell(path, "/api/command", {"line": line})
            assert (status, outcome["outcome"]) == (200, "unknown")
            assert len(outcome["error"]) < 500
        assert not life.stopping


async def test_a_client_that_goes_away_in_mid_command_cancels_nothing(runtime: Path) -> None:
    router, entered, go_on, done = Router(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> None:
        entered.set()
        await go_on.wait()
        done.set()

    router.command("slow", slow)
    async with opened(router=router) as (_, path), asyncio.timeout(LIMIT):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(post(b'{"line": "slow"}'))
        await entered.wait()
        writer.transport.abort()
        assert (await ask(path, "/api/commands"))[0] == 200
        go_on.set()
        await done.wait()


async def test_a_client_that_disconnects_within_a_body_runs_no_command(runtime: Path) -> None:
    async with opened() as (life, path):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(post(b'{"line": "stop"', length=100))
        await writer.drain()
        writer.transport.abort()
        assert (await ask(path, "/api/commands"))[0] == 200
        assert not life.stopping


@pytest.mark.parametrize("target", ["/api/events/stream", "/api/attach"])
async def test_a_client_that_never_reads_is_disconnected_and_delays_no_other(
    runtime: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lifecycle.observe.http.server._CLIENT_TIMEOUT", 0.2)
    router = Router()
    router.handle("**", lambda event: print(event.topic))
    async with opened(router=router) as (_, path), asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_unix_connection(path, limit=16)
        writer.write(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        await reader.readexactly(8)
        number = 0
        # Wait until unread data has filled every buffer and the timeout has passed.
        while not reader.at_eof() and not reader.exception():
            for _ in range(100):
                number += 1
                await (await router.emit(Event(f"{number:>500}")))
            await asyncio.sleep(0)
            if number % 5000 == 0 and await _is_cut(path):
                break
        writer.close()
    capsys.readouterr()


async def test_a_reader_that_never_reads_costs_a_buffer_however_large_a_message_is(runtime: Path) -> None:
    began = asyncio.get_running_loop().create_future()

    async def messages() -> AsyncGenerator[bytes]:
        yield b"x" * 10_000_000

    async def tell_much(request: web.Request) -> web.StreamResponse:
        began.set_result(request.transport)
        return await stream(console, request, messages())

    app, at = web.Application(), socket.socket(socket.AF_UNIX)
    at.bind(str(runtime / "much.sock"))
    app.router.add_get("/", tell_much)
    async with lifetime(signals=False), Console() as console, serving(app, console, at), asyncio.timeout(LIMIT):
        _, writer = await asyncio.open_unix_connection(runtime / "much.sock", limit=16)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        transport = await began
        while not transport.get_write_buffer_size():
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() < 300_000
        writer.close()


async def test_a_stream_that_fails_is_cut_off_and_logged(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (_, path):
        await ask(path, "/api/program")
        monkeypatch.setattr("lifecycle.observe.http.api.event", None)
        received = await sent(path, b"GET /api/state/stream HTTP/1.0\r\n\r\n")
    assert received.count(b"HTTP/1.") == 1
    assert received.endswith(b": stream begins\n\n")
    assert "a stream of /api/state/stream failed" in caplog.text


async def test_a_message_for_all_is_encoded_once() -> None:
    router, written = Router(), SharedMessages()
    router.handle("**", lambda _: None)
    async with lifetime(signals=False), running(router), watch() as one, watch() as two:
        first = written.full(await anext(one))
        assert written.full(await anext(two)) is first
        await router.emit(Event("news"))
        change = written.change(await anext(one))
        assert written.change(await anext(two)) is change
        assert len(change) < len(first)


async def _is_cut(path: Path) -> bool:
    """Return whether all streams are closed, according to the program's list of tasks."""
    received = await sent(path, b"GET /api/stacks HTTP/1.0\r\n\r\n")
    return b"signs of life" not in received


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files, because this process holds both ends of all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Readers may use an eighth of the descriptors that the process may open.
    wanted = 8 * READERS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_streams_are_served_and_one_more_is_refused(runtime: Path) -> None:
    router = Router()
    router.handle("**", lambda _: None)
    async with opened(router=router) as (_, path), AsyncExitStack() as held:
        streams = [
            await held.enter_async_context(streaming(path, "/api/events/stream?pattern=news")) for _ in range(READERS)
        ]
        status, refused = await ask(path, "/api/state/stream")
        assert (status, refused) == (503, {"error": "1000 streams are already open; close some"})
        await (await router.emit(Event("news")))
        for stream in streams:
            assert (await stream.next())["topic"] == "news"


def test_ctrl_c_ends_a_program_that_a_thousand_watch(runtime: Path) -> None:
    program = Running("-c", PROGRAM, "demo", env={"XDG_RUNTIME_DIR": str(runtime)})
    try:
        program.until("up")
        asyncio.run(_watched(runtime / "lifecycle" / "demo.sock", program))
    finally:
        program.close()
    assert list((runtime / "lifecycle").iterdir()) == []


async def _watched(path: Path, program: Running) -> None:
    """Let a thousand clients read the state once each, then press Ctrl+C."""
    async with AsyncExitStack() as held:
        for _ in range(READERS):
            await held.enter_async_context(streaming(path, "/api/state/stream"))
        text = await asyncio.to_thread(program.stop, signal.SIGINT)
        assert "the hook ran" in text
        assert "not stopped" not in text
        assert "Traceback" not in text.replace("KeyboardInterrupt", "")


def test_json_of_a_thousand_nodes_is_one_message() -> None:
    from lifecycle.observe.http.server import event

    wanted = {"nodes": {f"worker:{number}": {"name": "a\nb\r\n\n"} for number in range(1000)}}
    message = event(wanted, "change")
    assert message.count(b"\n") == 3
    assert json.loads(message.split(b"data: ")[1]) == wanted
