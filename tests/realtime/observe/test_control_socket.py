"""`ControlSocket` over real sockets: permissions, discovery, responses and shutdown."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import CommandEvent, Event, Router
from lifecycle.flows import Flows, wait_for, workflow
from lifecycle.observe import ControlSocket, sockets
from lifecycle.runtime import Lifetime, lifetime
from lifecycle.testing import running
from lifecycle.workers import Spec, Supervisor, TaskWorker
from tests.programs import LIMIT, Running
from tests.realtime.observe.requests import ask, sent, streaming, tell
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

HOSTILE = "q\"'<b>[x]{y}|`é\U0001f600\n"
NOBODY = 65_534

PROGRAM = """
import asyncio, sys
from lifecycle import Router, run
from lifecycle.observe import ControlSocket
from lifecycle.runtime import on_shutdown

async def main():
    on_shutdown(lambda: print("the hook ran", flush=True))
    print("up", flush=True)
    await asyncio.Event().wait()

run(ControlSocket(*sys.argv[1:]), Router(), main)
"""


@asynccontextmanager
async def opened(name: str | None = "api", router: Router | None = None) -> AsyncGenerator[tuple[Lifetime, Path]]:
    async with lifetime(signals=False) as life, running(router or Router()), ControlSocket(name) as control:
        assert control.path is not None
        yield life, control.path


@pytest.mark.keeps_tasks
async def test_workflows_are_listed_shown_and_signalled(runtime: Path) -> None:
    del runtime

    @workflow
    async def approval() -> Any:
        return await wait_for("answer")

    async with opened() as (_, path), Flows() as flows:
        run = flows.start(approval, id="a/b c")
        await until(lambda: run.parked)
        (listed,) = (await ask(path, "/api/flows?state=WAITING"))[1]
        status, shown = await ask(path, "/api/flow?id=a%2Fb+c")
        assert (listed["id"], status, shown["id"]) == ("a/b c", 200, "a/b c")
        assert [each["name"] for each in shown["steps"]] == ["1 answer"]
        assert (await ask(path, "/api/flows?state=SUCCESS"))[1] == []
        assert (await ask(path, "/api/flows?state=strange"))[0] == 400
        assert (await ask(path, "/api/flow?id=nothing"))[0] == 404
        outcome = (await tell(path, "/api/command", {"line": "flows signal 'a/b c' answer 42"}))[1]
        assert outcome["outcome"] == "handled"
        assert await run == 42


# -- the socket's path -------------------------------------------------------------------------------------------


async def test_the_socket_is_for_its_user_alone_and_gone_afterwards(runtime: Path) -> None:
    async with opened() as (_, path):
        assert path == runtime / "lifecycle" / "api.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == []


async def test_it_can_be_opened_again_and_not_twice(runtime: Path) -> None:
    control = ControlSocket("api")
    async with lifetime(signals=False):
        for _ in range(2):
            async with control:
                assert control.path == runtime / "lifecycle" / "api.sock"
                with pytest.raises(RuntimeError, match="is already listening"):
                    await control.__aenter__()
            assert control.path is None
    with pytest.raises(LookupError, match="no lifetime"):
        await control.__aenter__()


async def test_a_killed_programs_socket_is_replaced(runtime: Path) -> None:
    directory = runtime / "lifecycle"
    directory.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "api.sock"))
    assert sockets.find() == []
    async with opened() as (_, path):
        assert path.name == "api.sock"
        assert (await ask(path, "/api/commands"))[0] == 200


async def test_a_killed_programs_socket_with_a_process_id_is_removed(runtime: Path) -> None:
    ended = 2**22 + 1  # higher than any PID
    directory = runtime / "lifecycle"
    directory.mkdir(0o700)
    held = [f"api-{ended}", f"job-{os.getpid()}", "job-0", f"no-socket-{ended}"]
    with ExitStack() as sockets_there, socket.socket(socket.AF_UNIX) as elsewhere:
        for name in held[:-1]:
            sockets_there.enter_context(socket.socket(socket.AF_UNIX)).bind(str(directory / f"{name}.sock"))
        (directory / f"{held[-1]}.sock").touch()
        # A socket whose program runs in another PID namespace looks like this.
        elsewhere.bind(str(directory / f"there-{ended}.sock"))
        elsewhere.listen()
        async with opened():
            left = sorted(path.stem for path in directory.iterdir())
    assert left == sorted(["api", *held[1:], f"there-{ended}"])


async def test_programs_of_one_name_have_their_numbers_added(runtime: Path) -> None:
    async with opened() as (_, path), AsyncExitStack() as held:
        second = await held.enter_async_context(ControlSocket("api"))
        assert second.name == f"api-{os.getpid()}"
        with pytest.raises(OSError, match="another program is listening") as taken:
            await held.enter_async_context(ControlSocket("api"))
        assert taken.value.errno == errno.EADDRINUSE
        assert [each.name for each in sockets.find()] == ["api", second.name]
        assert [each.path for each in sockets.find("api")] == [path]
        path.unlink()
        assert [each.name for each in sockets.find("api")] == [second.name]
        assert sockets.find("ap") == []


async def test_another_socket_in_its_place_is_left_there(runtime: Path) -> None:
    async with opened() as (_, path):
        path.unlink()
        path.write_text("another program's")
    assert path.read_text() == "another program's"


async def test_a_directory_whose_path_is_too_long_for_an_address_will_do(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = runtime / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    async with opened() as (_, path):
        assert path == deep / "lifecycle" / "api.sock"
        [program] = sockets.find("api")
        assert program.pid == os.getpid()
        with program.connect(LIMIT):
            pass
    assert not path.exists()


async def test_without_a_directory_of_the_session_there_is_one_in_tmp(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = Path(f"/tmp/lifecycle-{os.geteuid()}")
    for useless in ("", "relative", str(runtime / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        assert sockets.directory() == fallback
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert sockets.directory() == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert sockets.directory() == runtime / "lifecycle"
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert sockets.directory() == Path(f"/tmp/lifecycle-{NOBODY}")


async def test_the_directory_that_systemd_made_for_a_service_is_used(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = runtime / "service"
    service.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{runtime / 'missing'}:{service}")
    assert sockets.directory() == runtime / "lifecycle", "the session's directory comes first, because ctl also uses it"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    async with opened() as (_, path):
        assert path == service / "lifecycle" / "api.sock"
        assert [each.path for each in sockets.find("api")] == [path]


async def test_a_service_is_found_without_its_variable(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access("/run", os.W_OK):
        pytest.skip("only root can create the directory as systemd does")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(runtime))
    with tempfile.TemporaryDirectory(dir="/run", prefix="shop-") as service:
        monkeypatch.setenv("RUNTIME_DIRECTORY", service)
        async with opened(Path(service).name) as (_, path):
            monkeypatch.delenv("RUNTIME_DIRECTORY")
            assert [each.path for each in sockets.find(Path(service).name)] == [path]


async def test_a_directory_that_another_user_took_first_is_replaced_by_one_below_home(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(runtime / "state"))
    taken, lstat = sockets.directory(), Path.lstat

    def foreign(path: Path) -> Any:
        found = lstat(path)
        return os.stat_result((*found[:4], NOBODY, *found[5:10])) if path == taken else found

    monkeypatch.setattr(Path, "lstat", foreign)
    with caplog.at_level(logging.WARNING):
        async with opened() as (_, path):
            assert path == runtime / "state" / "lifecycle" / "api.sock"
            assert path in [each.path for each in sockets.find("api")]
    assert f"no control socket in {taken}: it belongs to another user (uid {NOBODY})" in caplog.text
    assert f"using {path.parent}" in caplog.text


def test_no_directory_is_made_below_a_home_that_is_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "somewhere")
    assert sockets.fallback() is None


def test_a_program_runs_without_a_socket_if_no_directory_is_usable(runtime: Path) -> None:
    (runtime / "lifecycle").write_text("")
    program = Running("-c", PROGRAM, "demo", env={"XDG_RUNTIME_DIR": str(runtime)})
    try:
        program.until("lifecycle ctl cannot find this program")
        program.until("up")
        assert "the hook ran" in program.stop()
    finally:
        program.close()


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "a\0b", ".hidden", "-p", "é" * 33])
def test_a_name_that_no_file_could_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid socket name; use printable text without slashes"):
        ControlSocket(name)


async def test_other_names_are_taken_as_they_are(runtime: Path) -> None:
    for name in ("api v1.2", 'q"<b>[x]é\U0001f600', "é" * 32):
        async with opened(name) as (_, path):
            assert path.name == f"{name}.sock"
            assert [each.name for each in sockets.find(name)] == [name]


def test_a_name_must_be_text() -> None:
    with pytest.raises(TypeError, match="must be a string such as 'api', got 7"):
        ControlSocket(7)  # type: ignore[arg-type]  # a user's mistake


def test_without_a_name_it_has_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    main = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for argv, name in (["/srv/api.py"], "api"), (["-c"], "python"), ([""], "python"), ([], "python"), (["x/y\n"], "y_"):
        monkeypatch.setattr(sys, "argv", argv)
        assert ControlSocket().name == name
    main.__spec__ = type("Spec", (), {"name": "shop.api.__main__"})()
    assert ControlSocket().name == "shop.api"


# -- attacks -------------------------------------------------------------------------------------------------------


async def refused(match: str) -> None:
    async with lifetime(signals=False):
        with pytest.raises(OSError, match=match) as error:
            await ControlSocket("api").__aenter__()
    assert "set XDG_RUNTIME_DIR to a different directory" in str(error.value)


async def test_a_directory_that_others_may_use_is_refused(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = runtime / "lifecycle"
    directory.mkdir()
    directory.chmod(0o750)
    await refused(r"other users have access to it \(mode 750\); chmod 700 makes it private")
    with caplog.at_level(logging.WARNING):
        assert sockets.find() == []
    assert f"cannot search {directory} for programs: other users have access to it" in caplog.text


async def test_a_link_to_a_directory_is_refused(runtime: Path) -> None:
    (runtime / "mine").mkdir(0o700)
    (runtime / "lifecycle").symlink_to(runtime / "mine")
    await refused("it is not a directory; remove it")
    assert list((runtime / "mine").iterdir()) == []


async def test_a_file_in_place_of_the_directory_is_refused(runtime: Path) -> None:
    (runtime / "lifecycle").write_text("")
    await refused("no control socket in .*lifecycle")


async def test_a_file_that_is_not_a_socket_is_not_removed(runtime: Path) -> None:
    (runtime / "lifecycle").mkdir(0o700)
    target, link = runtime / "precious", runtime / "lifecycle" / "api.sock"
    target.write_text("precious")
    link.symlink_to(target)
    async with lifetime(signals=False):
        with pytest.raises(OSError, match="exists and is not a socket; remove it"):
            await ControlSocket("api").__aenter__()
    assert target.read_text() == "precious"
    assert link.is_symlink()


async def test_a_directory_of_another_user_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime / "lifecycle").mkdir(0o700)
    own, lstat = os.geteuid(), Path.lstat

    def foreign(path: Path) -> Any:
        found = lstat(path)
        owner = NOBODY if path.name == "lifecycle" else found.st_uid
        return os.stat_result((*found[:4], owner, *found[5:10]))

    monkeypatch.setattr(Path, "lstat", foreign)
    assert own != NOBODY
    await refused(rf"it belongs to another user \(uid {NOBODY}\)")
    assert sockets.find() == []


async def test_another_user_is_refused_even_where_the_file_would_let_him_in(runtime: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can switch to another user")
    ask_as_nobody = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        "peer.settimeout(30)\n"
        "try: peer.connect(sys.argv[1])\n"
        "except OSError as error: sys.exit(f'no way in: {error.errno}')\n"
        "peer.sendall(b'GET /api/routes HTTP/1.0\\r\\n\\r\\n')\n"
        "while piece := peer.recv(4096): sys.stdout.write(piece.decode())\n"
    )

    async def as_nobody(path: Path) -> tuple[str, str]:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ask_as_nobody, str(path)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return done.stdout, done.stderr

    async with opened() as (_, path):
        assert await as_nobody(path) == ("", f"no way in: {errno.EACCES}\n")
        for each in (runtime, path.parent, path):
            each.chmod(0o777)
        answered, _ = await as_nobody(path)
        assert answered.startswith("HTTP/1.0 403 ")
        assert '{"error": "this program belongs to another user"}' in answered
        assert (await ask(path, "/api/routes"))[0] == 200


# -- responses -------------------------------------------------------------------------------------------------------


async def test_every_query_is_answered(runtime: Path) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    router = Router("shop")
    router.handle("order/*", print)
    async with opened(router=router) as (_, path), Supervisor("root", Spec("w", lambda: TaskWorker("w", forever))):
        status, outcome = await tell(path, "/api/emit", {"topic": "order/new", "data": {"n": 1}})
        assert (status, outcome["outcome"], outcome["error"]) == (200, "handled", None)
        answers = {target: await ask(path, f"/api/{target}") for target in GETS}
        assert {target: status for target, (status, _) in answers.items() if status != 200} == {}
        found = {target: body for target, (_, body) in answers.items()}
        assert found["program"]["pid"] == os.getpid()
        assert [each["name"] for each in found["state"]["routers"]] == ["shop"]
        assert [each["topic"] for each in found["events?pattern=order/*&limit=1"]] == ["order/new"]
        assert found["explain?topic=order/new"]["matches"][0]["pattern"] == "order/*"
        assert ("shop", "order/*") in {(each["router"], each["pattern"]) for each in found["routes"]}
        assert "restart" in {each["name"] for each in found["commands"]}
        assert found["complete?line=restart%20r"] == ["root/w"]
        status, trace = await ask(path, f"/api/trace/{outcome['delivery']}")
        assert (status, trace["nodes"][0]["topic"]) == (200, "order/new")
        for target, begins in (
            ("diagram", b"graph TD"),
            ("diagram?of=w", b"stateDiagram"),
            ("stacks", b"Current thread"),
        ):
            received = await sent(path, f"GET /api/{target} HTTP/1.0\r\n\r\n".encode())
            assert begins in received


GETS = [
    "program",
    "state",
    "events",
    "events?pattern=order/*&limit=1",
    "explain?topic=order/new",
    "routes",
    "commands",
    "complete?line=restart%20r",
]


async def test_names_may_be_anything(runtime: Path) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    router = Router(HOSTILE)
    router.handle("**", lambda _: None)
    async with (
        opened(router=router) as (_, path),
        Supervisor("root", Spec(HOSTILE, lambda: TaskWorker(HOSTILE, forever))) as root,
    ):
        before = root[HOSTILE]
        quoted = HOSTILE.replace("'", "'\\''")
        _, outcome = await tell(path, "/api/command", {"line": f"restart '{quoted}'"})
        assert outcome["outcome"] == "handled", outcome
        assert root[HOSTILE] is not before
        _, outcome = await tell(path, "/api/emit", {"topic": HOSTILE})
        assert outcome["outcome"] == "handled", outcome
        _, events = await ask(path, "/api/events?pattern=q*")
        assert [each["topic"] for each in events] == [HOSTILE]
        _, state = await ask(path, "/api/state")
        assert state["routers"][0]["name"] == HOSTILE


async def test_the_state_is_streamed(runtime: Path) -> None:
    broken = asyncio.Event()

    async def work() -> None:
        await broken.wait()
        broken.clear()
        raise RuntimeError("the disk is full")

    async with (
        opened() as (_, path),
        Supervisor("root", Spec("w", lambda: TaskWorker("w", work))),
        streaming(path, "/api/state/stream") as stream,
        streaming(path, "/api/state/stream") as second,
    ):
        first = await stream.next()
        assert {"w", "root"} <= {node["name"] for node in first["nodes"].values()}
        broken.set()
        for each in (stream, second):
            await each.until(lambda message: any(node and node.get("restarts") for node in message["nodes"].values()))


async def test_events_are_streamed(runtime: Path) -> None:
    router = Router()
    router.handle("**", lambda _: None)
    async with opened(router=router) as (_, path), streaming(path, "/api/events/stream?pattern=a/*") as stream:
        for topic in ("b/1", "a/1", "a/2"):
            await (await router.emit(Event(topic)))
        assert (await stream.until(lambda entry: entry["what"] == "handled"))["topic"] == "a/1"
        assert (await stream.until(lambda entry: entry["what"] == "handled"))["topic"] == "a/2"


async def test_attached_clients_get_printed_lines(runtime: Path) -> None:
    router = Router()

    @router.command("greet")
    def greet(event: CommandEvent) -> None:
        print("hello", *event.args)

    async with opened(router=router) as (_, path), streaming(path, "/api/attach") as stream:
        _, outcome = await tell(path, "/api/command", {"line": "greet 'a b'"})
        assert outcome["outcome"] == "handled"
        assert (await stream.next())["text"] == "hello a b\n"


async def test_a_stream_in_which_nothing_happens_shows_signs_of_life(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifecycle.observe.http.server._KEEP_ALIVE", 0.05)
    async with opened() as (_, path), streaming(path, "/api/events/stream") as stream:
        assert await stream.comment() == b": keep-alive\n"


async def test_a_socket_that_cannot_be_served_is_logged_and_the_program_continues(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "lifecycle.observe.http.api", None)
    async with opened() as (life, path):
        with suppress(ConnectionError):
            assert await sent(path, b"GET /api/state HTTP/1.0\r\n\r\n") == b""
        assert sockets.find() == []
        assert not life.stopping
    assert "the control socket failed" in caplog.text


# -- shutdown ----------------------------------------------------------------------------------------------------------


async def test_a_stop_is_answered_before_the_end(runtime: Path) -> None:
    async with opened() as (life, path):
        status, outcome = await tell(path, "/api/command", {"line": "stop"})
        assert (status, outcome["outcome"]) == (200, "handled")
        assert life.stopping


async def test_streams_end_with_the_program(runtime: Path) -> None:
    async with AsyncExitStack() as held:
        async with opened() as (_, path):
            streams = [await held.enter_async_context(streaming(path, f"/api/{each}")) for each in STREAMS]
        for stream in streams:
            await stream.until(lambda message: message is None)


STREAMS = ("state/stream", "events/stream", "attach")


async def test_a_silent_connection_delays_no_other(runtime: Path) -> None:
    async with AsyncExitStack() as held, opened() as (_, path):
        for _ in range(20):
            _, writer = await asyncio.open_unix_connection(path)
            held.callback(writer.close)
        assert (await ask(path, "/api/routes"))[0] == 200


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_program_ends_on_a_signal_and_leaves_nothing(runtime: Path, signum: signal.Signals) -> None:
    program = Running("-c", PROGRAM, "demo", env={"XDG_RUNTIME_DIR": str(runtime)})
    try:
        program.until("up")
        [found] = sockets.find("demo")
        assert found.pid == program.process.pid
        with found.connect(LIMIT) as connection:
            connection.sendall(b"GET /api/state/stream HTTP/1.0\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.0 200 OK")
            assert "the hook ran" in program.stop(signum)
    finally:
        program.close()
    assert list((runtime / "lifecycle").iterdir()) == []


def test_a_program_that_was_killed_is_not_found_and_its_name_is_free(runtime: Path) -> None:
    for _ in range(2):
        program = Running("-c", PROGRAM, "demo", env={"XDG_RUNTIME_DIR": str(runtime)})
        try:
            program.until("up")
            assert [each.name for each in sockets.find()] == ["demo"]
        finally:
            program.process.kill()
            program.close()
        assert (runtime / "lifecycle" / "demo.sock").exists()
        assert sockets.find() == []


FORKING = """
import asyncio, os
from lifecycle.observe import ControlSocket
from lifecycle.runtime import lifetime

async def main():
    async with lifetime(), ControlSocket("demo"):
        if os.fork():
            print("up", flush=True)
            await asyncio.Event().wait()
        os.read(0, 1)
        os._exit(0)

asyncio.run(main())
"""


async def test_a_program_whose_child_holds_its_socket_is_not_found_and_its_name_is_free(runtime: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FORKING], stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == b"up\n"
            assert [each.name for each in sockets.find()] == ["demo"]
            program.kill()
            program.wait(LIMIT)
            assert sockets.find() == []
            async with opened("demo") as (_, path):
                assert path == runtime / "lifecycle" / "demo.sock"
        finally:
            program.kill()
            program.stdin.close()
            # The child process exits when its input ends, which closes this pipe.
            program.stdout.read()


def test_finding_programs_imports_nothing_heavy() -> None:
    code = "import json, sys; from lifecycle.observe import sockets; print(json.dumps(sorted(sys.modules)))"
    env = {**os.environ, "LIFECYCLE_LOOP": ""}  # setting another loop imports asyncio
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    rooms = {each.split(".")[0] for each in json.loads(loaded.stdout)}
    assert not rooms & {"aiohttp", "asyncio", "prompt_toolkit"}
    assert not [each for each in json.loads(loaded.stdout) if re.match(r"lifecycle\.(control|runtime|workers)", each)]
