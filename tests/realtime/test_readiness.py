"""For each kind of check, `start` returns only when the worker's own process is ready, not when another process is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import textwrap
import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.errors import WorkerFailed
from lifecycle.workers import Backoff, ProcessWorker, Spec, Status, Supervisor
from lifecycle.workers.stdio import File
from tests.processes import members
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lifecycle.workers import WorkerState

LIMIT = 20.0
SLEEP = "import time; time.sleep(1000)"
SOON = Backoff(initial=0.01)


def command(code: str, *argv: str) -> list[str]:
    return [sys.executable, "-S", "-u", "-c", textwrap.dedent(code), *argv]


def python(code: str, *argv: str, **how: Any) -> ProcessWorker:
    return ProcessWorker("app", *command(code, *argv), **how)


def news(worker: ProcessWorker) -> str:
    """Return the reason that the worker's check reports if the start times out."""
    return worker._ready.reason if worker._ready is not None else ""


def bindable(host: str) -> bool:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return True
    except OSError:
        return False


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port reserved with SO_REUSEPORT. The system assigns it to no other program, but a child can bind it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


#: One check of each kind. The program `SLEEP` passes none of them.
WAYS = ["port:{port}", "http://127.0.0.1:{port}/", "line:never", "notify"]


# -- every kind of check ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_while_it_is_waited_for_ends_the_worker(way: str, port: int) -> None:
    worker = python(SLEEP, ready=way.format(port=port), start_timeout=1000)
    start = asyncio.create_task(worker.start())
    await until(lambda: worker.state().pid is not None)
    async with asyncio.timeout(LIMIT):
        await worker.stop()
        with pytest.raises(WorkerFailed, match="was stopped while starting"):
            await start
    assert worker.status == "stopped"


@pytest.mark.parametrize("way", WAYS)
async def test_a_process_not_ready_in_time_is_stopped_with_its_group(way: str, port: int) -> None:
    ready = way.format(port=port)
    worker = ProcessWorker("app", "sh", "-c", "sleep 1000 & sleep 1000", ready=ready, start_timeout=0.1)
    start = asyncio.create_task(worker.start())
    await until(lambda: worker.state().pid is not None)
    group = worker.state().pid or 0
    with pytest.raises(WorkerFailed, match=r"'app' did not (accept|respond|write|send) .* within 0.1 s and was"):
        await start
    exit_ = await worker.wait()
    assert (exit_.status, exit_.signal) == ("failed", signal.SIGTERM)
    assert members(group) == []


@pytest.mark.parametrize("end", ["sleep 1000", "exit 3"])
async def test_a_detached_worker_whose_start_fails_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    """A supervisor starts the next worker, which must not run next to processes of the first one."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # While a process that inherits its descriptor exists, the pipe does not end.
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(reader, "rb") as pipe:
        stdio = File(fifo)
        worker = ProcessWorker(
            "app", "sh", "-c", f"(sleep 1000 &); {end}", ready="notify", start_timeout=0.3, detached=True, stdio=stdio
        )
        with pytest.raises(WorkerFailed):
            await worker.start()
        assert pipe.read() == b""


@pytest.mark.parametrize("way", WAYS)
async def test_an_end_before_readiness_raises_with_the_status_and_last_output(way: str, port: int) -> None:
    worker = python("import sys; sys.exit('no such database')", ready=way.format(port=port), start_timeout=1000)
    with pytest.raises(
        WorkerFailed, match=r"ended before it was ready: it exited with status 1, and did not "
    ) as caught:
        await worker.start()
    assert "no such database" not in str(caught.value)
    assert "the end of its stderr:\nno such database" in "".join(traceback.format_exception(caught.value))
    exit_ = await worker.wait()
    assert (exit_.status, exit_.exit_code, exit_.error) == ("failed", 1, caught.value)
    assert exit_.stderr == "no such database\n"
    assert worker.state().error == str(caught.value)


async def test_the_log_and_not_the_state_has_the_last_output_of_a_process_that_was_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """States and messages reach HTTP clients. The log is for the operator."""
    code = "import sys; sys.exit('key AKIAIOSFODNN7 rejected, password=hunter2')"
    backoff = Backoff(3600)
    spec = Spec("db", [sys.executable, "-c", code], ready="notify", first_start="retry", backoff=backoff)
    async with Supervisor("s", spec) as supervisor:
        await until(lambda: supervisor.workers()[0].status is Status.PENDING)
        assert supervisor.workers()[0].error == (
            "'db' ended before it was ready: it exited with status 1, and did not send READY=1 to $NOTIFY_SOCKET"
        )
    message = caplog.messages[0]
    assert message.endswith("; the end of its stderr:\nkey AKIAIOSFODNN7 rejected, password=***")


async def test_truncated_last_output_in_the_log_begins_with_a_whole_line(caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; sys.exit('\\n'.join(f'{number:099d}' for number in range(100)))"
    spec = Spec("app", [sys.executable, "-c", code], ready="notify", first_start="retry", backoff=Backoff(3600))
    async with Supervisor("s", spec):
        await until(lambda: caplog.messages)
    words = caplog.messages[0].partition("the end of its stderr:\n")[2].split("\n")
    assert [int(line) for line in words] == list(range(100 - len(words), 100))
    assert {len(line) for line in words} == {99}


async def test_an_end_without_error_before_it_is_ready_is_a_failure_too() -> None:
    worker = python("pass", ready="notify")
    with pytest.raises(WorkerFailed, match=r"it exited with status 0, and did not send READY=1 to .NOTIFY_SOCKET$"):
        await worker.start()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.exit_code) == ("failed", 0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_command_that_cannot_start_leaves_nothing(way: str, port: int) -> None:
    worker = ProcessWorker("app", "no-such-program", ready=way.format(port=port))
    with pytest.raises(WorkerFailed, match="was not found on PATH"):
        await worker.start()


# -- a port -------------------------------------------------------------------------------------------------------

#: Listens on a host and port, immediately or on SIGUSR1.
LISTENER = """
    import signal, socket, sys, time
    port, host, *when = sys.argv[1:]
    def listen(*_):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, int(port)), family=family, reuse_port=True)
        globals().update(server=server)
    if when:
        signal.signal(signal.SIGUSR1, listen)
    else:
        listen()
    print("up", flush=True)
    all(not time.sleep(0.02) for _ in iter(int, 1))
"""


@pytest.mark.parametrize("host", [host for host in ("127.0.0.1", "0.0.0.0", "::1", "::") if bindable(host)])
async def test_start_returns_when_the_port_accepts(host: str, port: int) -> None:
    lines: list[str] = []
    worker = python(LISTENER, str(port), host, "later", ready=f"port:{port}", output=lambda line, _: lines.append(line))
    start = asyncio.create_task(worker.start())
    await until(lambda: lines)
    assert worker.status == "starting"
    worker.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(LIMIT):
        await start
    assert worker.status == "running"
    await worker.stop()


@pytest.fixture
def stranger(port: int) -> Iterator[socket.socket]:
    """Listen on the port, so that another process can share it."""
    with socket.create_server(("127.0.0.1", port), reuse_port=True) as server:
        yield server


@pytest.mark.usefixtures("stranger")
async def test_another_process_on_the_port_does_not_count_as_ready(port: int) -> None:
    worker = python(SLEEP, ready=f"port:{port}", start_timeout=1000)
    start = asyncio.create_task(worker.start())
    await until(lambda: news(worker) == f"another process already listens on port {port}")
    assert worker.status == "starting"
    await worker.stop()
    with pytest.raises(WorkerFailed):
        await start


@pytest.mark.usefixtures("stranger")
async def test_a_process_on_a_shared_port_is_ready_when_it_listens_itself(port: int) -> None:
    async with asyncio.timeout(LIMIT), python(LISTENER, str(port), "127.0.0.1", ready=f"port:{port}"):
        pass


@pytest.mark.usefixtures("stranger")
async def test_any_response_counts_as_ready_if_listeners_are_hidden(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.workers.readiness._SOCKET_TABLES", ("/no/such/file",))
    async with asyncio.timeout(LIMIT), python(SLEEP, ready=f"port:{port}"):
        pass


# -- a URL --------------------------------------------------------------------------------------------------------

#: Sends one status per request, then repeats the last one. Status 0 means an invalid response, and 1 no response.
SERVER = """
    import socket, sys, time
    port, *answers = map(int, sys.argv[1:])
    server = socket.create_server(("127.0.0.1", port), reuse_port=True)
    silent = []
    while True:
        client, _ = server.accept()
        print(client.recv(65536).split(b"\\r\\n\\r\\n")[0].decode(errors="replace").replace("\\r\\n", "|"))
        status = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 1:
            silent.append(client)
            continue
        to = b"location: http://127.0.0.1:1/\\r\\n"
        answer = b"HTTP/1.1 %d Some\\r\\n%scontent-length: 9999999\\r\\n\\r\\n" % (status, to)
        if status == 0:
            answer = b"\\0" * 100_000
        try:
            client.sendall(answer)
            client.close()
        except OSError:
            pass
"""


@pytest.mark.parametrize("answers", [["200"], ["503", "404", "0", "204"], ["302"], ["399"]])
async def test_start_returns_when_the_url_answers_well(answers: list[str], port: int) -> None:
    lines: list[str] = []
    ready = f"http://me:secret@127.0.0.1:{port}/health?a=b"
    async with asyncio.timeout(LIMIT):
        async with python(SERVER, str(port), *answers, ready=ready, output=lambda line, _: lines.append(line)):
            pass
    assert len(lines) == len(answers)
    assert lines[0].startswith("GET /health?a=b HTTP/1.1|")
    assert "|Authorization: Basic bWU6c2VjcmV0" in lines[0]


@pytest.mark.parametrize(
    ("scheme", "answer", "wanted"),
    [
        ("http", "400", "the last response had the status 400"),
        ("http", "503", "the last response had the status 503"),
        ("http", "0", "the last attempt failed: "),
        ("https", "200", "the last attempt failed: "),
        ("http", "1", ""),
    ],
)
async def test_a_url_that_does_not_answer_well_is_not_ready(scheme: str, answer: str, wanted: str, port: int) -> None:
    lines: list[str] = []
    ready = f"{scheme}://127.0.0.1:{port}/"
    worker = python(
        SERVER, str(port), answer, ready=ready, output=lambda line, _: lines.append(line), start_timeout=1000
    )
    start = asyncio.create_task(worker.start())
    await until(lambda: lines and wanted in news(worker))
    assert worker.status == "starting"
    await worker.stop()
    with pytest.raises(WorkerFailed):
        await start


async def test_an_answer_of_another_process_does_not_count_as_ready() -> None:
    class Fine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Fine)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        worker = python(SLEEP, ready=f"http://localhost:{server.server_port}/", start_timeout=1000)
        start = asyncio.create_task(worker.start())
        await until(lambda: "another process already listens on port" in news(worker))
        await worker.stop()
        with pytest.raises(WorkerFailed):
            await start
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- a line -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fd", "stream"), [(1, "stdout"), (2, "stderr")])
async def test_start_returns_when_the_line_has_come(fd: int, stream: str) -> None:
    code = f"""
        import os, signal, time
        print("not yet", flush=True)
        signal.signal(signal.SIGUSR1, lambda *_: os.write({fd}, b"port 8000 is up\\n"))
        print("armed", flush=True)
        all(not time.sleep(0.02) for _ in iter(int, 1))
    """
    lines: list[tuple[str, str]] = []
    worker = python(code, ready=r"line:port \d+ is up$", output=lambda *line: lines.append(line))
    start = asyncio.create_task(worker.start())
    await until(lambda: ("armed", "stdout") in lines)
    assert worker.status == "starting"
    worker.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(LIMIT):
        await start
    assert lines == [("not yet", "stdout"), ("armed", "stdout"), ("port 8000 is up", stream)]
    await worker.stop()


async def test_a_process_that_reports_ready_and_exits_was_ready() -> None:
    worker = python("print('ready')", ready="line:ready")
    async with asyncio.timeout(LIMIT):
        await worker.start()
        assert (await worker.wait()).status is Status.FINISHED


async def test_an_output_that_raises_does_not_hide_the_line() -> None:
    def broken(line: str, stream: str) -> None:
        raise OSError("disk full")

    async with asyncio.timeout(LIMIT), python(f"print('ready'); {SLEEP}", ready="line:ready", output=broken):
        pass


async def test_a_line_that_never_ends_neither_fills_memory_nor_is_ready() -> None:
    received = 0

    def count(line: str, stream: str) -> None:
        nonlocal received
        received += len(line)

    before = psutil.Process().memory_info().rss
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    worker = python(code, ready="line:ready", output=count, start_timeout=1000)
    start = asyncio.create_task(worker.start())
    await until(lambda: received > 100_000_000)
    assert worker.status == "starting"
    async with asyncio.timeout(LIMIT):
        await worker.stop()
        with pytest.raises(WorkerFailed):
            await start
    assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024


# -- a notification -----------------------------------------------------------------------------------------------

#: Implements sd_notify(3), and sd_notify_barrier(3), which returns when all sent messages have been read.
CLIENT = """
    import os, signal, socket, sys, time
    def sd_notify(message, fds=()):
        address = os.environ["NOTIFY_SOCKET"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect("\\0" + address[1:] if address[0] == "@" else address)
            socket.send_fds(client, [message], list(fds)) if fds else client.send(message)
    def barrier():
        here, there = os.pipe()
        sd_notify(b"BARRIER=1", [there])
        os.close(there)
        os.read(here, 1)
        os.close(here)
"""


def client(code: str) -> str:
    return textwrap.dedent(CLIENT) + textwrap.dedent(code)


#: Programs that send the notification. The last one is systemd's own, if it is installed.
SAID = {
    "the leader": ["python", "sd_notify(b'READY=1'); time.sleep(1000)"],
    "with more": ["python", "sd_notify(b'STATUS=here\\nREADY=1\\nMAINPID=1\\n'); barrier(); time.sleep(1000)"],
    "with a NUL": ["python", "sd_notify(b'READY=1\\0'); time.sleep(1000)"],
    "a child in a session of its own": [
        "python",
        "if not os.fork(): os.setsid(); sd_notify(b'READY=1')\ntime.sleep(1000)",
    ],
    "a daemon": [
        "python",
        """
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            while os.getppid() != 1 and os.getppid() == os.getsid(0):
                time.sleep(0.01)
            sd_notify(b"READY=1")
        time.sleep(1000)
        """,
    ],
    "a child that waits to be read": [
        "python",
        "if not os.fork(): sd_notify(b'READY=1'); barrier(); os._exit(0)\ntime.sleep(1000)",
    ],
    "systemd-notify": ["sh", "systemd-notify --ready --status=fine || exit 3; sleep 1000"],
}


@pytest.mark.parametrize("way", [way for way in SAID if way != "systemd-notify" or shutil.which(way)])
@pytest.mark.parametrize("contain", ["guard", "auto"])
async def test_start_returns_when_the_process_has_sent_that_it_is_ready(way: str, contain: str) -> None:
    kind, code = SAID[way]
    argv = command(client(code)) if kind == "python" else ["sh", "-c", code]
    worker = ProcessWorker("app", *argv, ready="notify", contain=contain)
    async with asyncio.timeout(LIMIT), worker:
        assert worker.status == "running"


async def test_a_start_timeout_reports_the_last_status_text() -> None:
    worker = python(client("sd_notify(b'STATUS=moving tables'); time.sleep(1000)"), ready="notify", start_timeout=1000)
    start = asyncio.create_task(worker.start())
    await until(lambda: news(worker) == "its status was 'moving tables'")
    await worker.stop()
    with pytest.raises(WorkerFailed):
        await start


async def test_notifications_of_other_processes_and_junk_do_not_count() -> None:
    lines: list[str] = []
    code = """
        signal.signal(signal.SIGUSR1, lambda *_: sd_notify(b"READY=1"))
        for junk in (b"", b"\\0", b"=", b"READY", b"READY=", b"READY=0", b"READY=1x", b" READY=1", b"XREADY=1",
                     b"ready=1", b"READY=1\\0\\0", b"STATUS=\\xff\\0\\x1b[2J", b"\\n" * 4000,
                     b"READY=1\\n" + b"x" * 9000, os.urandom(4000).replace(b"R", b"")):
            sd_notify(junk)
            sd_notify(junk, [0, 1, 2] * 80)
        barrier()
        print(os.environ["NOTIFY_SOCKET"])
        all(not time.sleep(0.02) for _ in iter(int, 1))
    """
    worker = python(client(code), ready="notify", output=lambda line, _: lines.append(line), start_timeout=1000)
    start = asyncio.create_task(worker.start())
    await until(lambda: lines)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"READY=1", "\0" + lines[0][1:])
    await until(lambda: "has exited or is not the worker's" in news(worker))
    assert worker.status == "starting"
    worker.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(LIMIT):
        await start
    await worker.stop()


async def test_continuous_notifications_are_read_without_blocking_the_loop() -> None:
    """If the notifications were not read, the process would block when the socket's buffer is full."""
    lines: list[str] = []
    code = """
        sd_notify(b"READY=1")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect("\\0" + os.environ["NOTIFY_SOCKET"][1:])
            for n in range(10_000):
                client.send(b"STATUS=%d" % n)
            print("sent")
            while True:
                client.send(b"READY=1\\n" * 400)
    """
    async with asyncio.timeout(LIMIT):
        async with python(client(code), ready="notify", output=lambda line, _: lines.append(line)):
            await until(lambda: lines)


# -- under a supervisor -------------------------------------------------------------------------------------------


async def test_each_child_starts_after_its_predecessor_is_ready_also_on_restart(port: int) -> None:
    """This is program 5 on the first page of the specification."""
    connected: list[str] = []

    async def serve() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        connected.append("yes")
        writer.close()
        await asyncio.sleep(1000)

    db = command("import time; time.sleep(0.1)\n" + textwrap.dedent(LISTENER), str(port), "127.0.0.1")
    app = Supervisor(
        "app",
        Spec("db", db, ready=f"port:{port}", backoff=SOON),
        Spec("api", serve, restart="on_failure"),
        strategy="rest_for_one",
    )
    async with app:
        await until(lambda: len(connected) == 1)
        for restarts in (1, 2):
            os.kill(app.workers()[0].pid or 0, signal.SIGKILL)
            await until(lambda: len(connected) == restarts + 1)  # noqa: B023  # called within the iteration
    assert [str(child.status) for child in app.workers()] == ["stopped", "stopped"]


@pytest.mark.parametrize("way", ["line:ready", "notify"])
async def test_every_restart_waits_for_readiness_and_a_timeout_is_a_failure(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The second run exits before it is ready, and the third run becomes ready."""
    code = """
        if os.environ["LIFECYCLE_ATTEMPT"] == "2":
            sys.exit("not today")
        sd_notify(b"READY=1") if "NOTIFY_SOCKET" in os.environ else print("ready")
        time.sleep(1000)
    """
    supervisor = Supervisor("s", Spec("app", command(client(code)), ready=way, backoff=SOON))

    def child() -> WorkerState:
        return supervisor.workers()[0]

    async with supervisor:
        os.kill(child().pid or 0, signal.SIGKILL)
        await until(lambda: child().restarts == 2 and child().status is Status.RUNNING)
    assert "'app' ended before it was ready" in caplog.text


async def test_a_supervisor_stops_while_a_child_is_not_ready() -> None:
    supervisor = Supervisor("s", Spec("app", ["sleep", "1000"], ready="line:never"))
    start = asyncio.create_task(supervisor.start())
    await until(lambda: supervisor.workers() and supervisor.workers()[0].pid)
    async with asyncio.timeout(LIMIT):
        await supervisor.stop()
    with pytest.raises(WorkerFailed):
        await start
