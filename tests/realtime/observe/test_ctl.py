"""`lifecycle ctl` from a shell, against a running program: every command, its status, and its output for scripts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.programs import LIMIT, in_this_process
from tests.realtime.observe.shops import at_terminal, ends, environment, home, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs import Running

Env = dict[str, str]
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Env]:
    with home() as env:
        yield env


@pytest.fixture(scope="module")
def shop(everywhere: Env) -> Iterator[Running]:
    """Yield a program that the tests only query, so that its state never changes."""
    with started(everywhere) as program:
        yield program


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a query in this process, and returns its exit status and output."""

    def asked(*argv: str) -> tuple[int, str, str]:
        return in_this_process(capsys, "ctl", *argv)

    return asked


@pytest.fixture
def ask(everywhere: Env, shop: Running, here: Ask, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that queries `shop`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", everywhere["XDG_RUNTIME_DIR"])
    assert shop.process.poll() is None
    return here


# -- queries -------------------------------------------------------------------------------------------------------


def test_ps_shows_the_program_and_its_process(ask: Ask, shop: Running) -> None:
    status, out, err = ask("ps")
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [["name", "pid"], ["shop", str(shop.process.pid)]]
    [expected] = json.loads(ask("ps", "--json")[1])["programs"]
    assert (expected["name"], expected["pid"]) == ("shop", shop.process.pid)


def test_status_shows_components_and_escapes_names(ask: Ask) -> None:
    status, out, err = ask("status")
    assert (status, err) == (0, "")
    assert re.search(r"^shop +program +running", out, re.MULTILINE)
    assert re.search(r"^  main +router +running", out, re.MULTILINE)
    assert re.search(r"^    letters +source +running$", out, re.MULTILINE)
    assert re.search(r"^    one +task +running", out, re.MULTILINE)
    assert "    odd\\n\\x1b[31m'\"<b>[red]🐙" in out
    assert "\x1b" not in out


def test_status_as_json_is_the_snapshot(ask: Ask, shop: Running) -> None:
    state = json.loads(ask("status", "--json")[1])
    assert state["program"]["pid"] == shop.process.pid
    assert [worker["name"] for worker in state["workers"]] == ["web"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["routes"], r"main +deploy/\* +deployed "),
        (["commands"], r"deploy +Deploy TARGET\."),
        (["commands"], r"restart +"),
        (["explain", "deploi/done"], r"deploy"),
        (["diagram"], r"graph TD"),
        (["diagram", "lifetime"], r"lifetime"),
        (["diagram", "web/one"], r"one"),
        (["stacks"], r"forever"),
        (["stacks", "one"], r"Task one:\n(.*\n)*.*forever"),
        (["tasks"], r"one +[0-9a-f]+ +[0-9.]+ m?s +.*:\d+ forever"),
    ],
    ids=" ".join,
)
def test_queries_are_answered(ask: Ask, argv: list[str], expected: str) -> None:
    status, out, err = ask(*argv)
    assert (status, err) == (0, "")
    assert re.search(expected, out)
    assert "\x1b" not in out


@pytest.mark.parametrize("argv", [["routes"], ["commands"], ["tasks"], ["explain", "a/b"]], ids=" ".join)
def test_queries_have_json(ask: Ask, argv: list[str]) -> None:
    status, out, err = ask(*argv, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trace", "4711"], "4711"),
        (["trace", "first"], "first"),
        (["diagram", "nobody\x1b"], r"'nobody\x1b'"),
        (["tail", "a/[b"], "a/[b"),
        (["restart", "nobody"], "no worker is called 'nobody'"),
        (["cancel", "nobody"], "no task is called 'nobody'"),
        (["stacks", "nobody"], "no task is called 'nobody'"),
        (["hold", "nothing"], "no source is called 'nothing'"),
        (["emit", "nobody/takes"], "no route matches 'nobody/takes'"),
        (["shipp", "alpha"], "shipp"),
        (["fail"], r"no such \x1b[31mtarget"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_requests_exit_with_1(ask: Ask, argv: list[str], expected: str) -> None:
    status, out, err = ask(*argv)
    assert (status, out) == (1, "")
    assert expected in err
    assert "\x1b" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("argv", [[], ["tail", "a", "b"], ["emit"], ["emit", "a/b", "{"], ["ps", "--jsn"]])
def test_usage_errors_exit_with_2(ask: Ask, argv: list[str]) -> None:
    assert ask(*argv)[0] == 2


# -- commands ------------------------------------------------------------------------------------------------------


def test_command_runs_and_appears_in_trace(ask: Ask, everywhere: Env, shop: Running) -> None:
    status, out, _ = ask("deploy", "to prod", "--json")
    assert (status, out) == (0, "")
    shop.until("deploying to prod --json")
    shop.until("deployed deploy/done ['to prod', '--json']")

    entries = [json.loads(line) for line in tailed(everywhere, "tail", "--json", "command/deploy", until="handled")]
    status, out, _ = ask("trace", f"#{entries[-1]['id']}")
    assert status == 0
    first, second = out.splitlines()
    assert re.search(r" #\d+ +handled +command/deploy ", first)
    assert re.search(r" #\d+ +handled +  deploy/done ", second)


def test_event_is_sent_and_its_result_shown(ask: Ask, shop: Running) -> None:
    assert ask("emit", "deploy/now", '{"ref": "v2"}')[0] == 0
    shop.until("deployed deploy/now {'ref': 'v2'}")
    outcome = json.loads(ask("emit", "deploy/again", "--json")[1])
    assert outcome["outcome"] == "handled"
    shop.until("deployed deploy/again None")


def test_command_of_the_program_returns_an_answer(ask: Ask) -> None:
    status, out, _ = ask("--", "status")
    assert status == 0
    assert re.search(r"^program +running", out, re.MULTILINE)


def test_program_is_suspended_and_resumed(ask: Ask) -> None:
    assert ask("suspend")[0] == 0
    assert ask("resume")[0] == 0


def test_source_is_held_and_released(ask: Ask) -> None:
    assert ask("hold", "letters")[0] == 0
    assert "held" in ask("status")[1]
    assert ask("release", "letters")[0] == 0
    assert "held" not in ask("status")[1]


def test_worker_is_restarted(ask: Ask) -> None:
    status, out, err = ask("restart", "web/one")
    assert (status, out) == (0, "")
    assert "restart web/one: done" in err


def tailed(env: Env, *argv: str, until: str) -> list[str]:
    """Return the lines up to the first line that contains ``until``, without waiting for another line."""
    command = [sys.executable, "-m", "lifecycle", "ctl", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(env)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while until not in lines[-1]:
            lines.append(process.stdout.readline())
        process.stdout.close()
        assert process.wait(LIMIT) == 0
    return lines


@pytest.mark.parametrize(
    ("argv", "until"),
    [(["tail", "deploy/**"], "deploy/now"), (["status", "--watch"], "one ")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_closed_reader_ends_the_command(ask: Ask, everywhere: Env, argv: list[str], until: str) -> None:
    ask("emit", "deploy/now")
    tailed(everywhere, *argv, until=until)


def test_status_watch_as_json_has_the_form_of_status(ask: Ask, everywhere: Env) -> None:
    [line] = tailed(everywhere, "status", "--watch", "--json", until="program")
    assert json.loads(line).keys() == json.loads(ask("status", "--json")[1]).keys()


def test_a_table_that_is_watched_is_drawn_again_as_time_passes() -> None:
    with home() as env, started(env), at_terminal(env, "status", "--watch") as child:
        child.expect(r"since (\d+) s")
        assert isinstance(child.match, re.Match)
        child.expect(rf"since (?!{child.match[1]} s)\d+ (s|min)")
        child.sendintr()
        assert "Traceback" not in ends(child)


# -- stopping ------------------------------------------------------------------------------------------------------


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[Env]:
    with home() as env:
        monkeypatch.setenv("XDG_RUNTIME_DIR", env["XDG_RUNTIME_DIR"])
        yield env


class Asking:
    """A running `lifecycle ctl` whose stdout and stderr are one stream."""

    def __init__(self, env: Env, *argv: str) -> None:
        self.argv = argv
        self._held = started(env, "-m", "lifecycle", "ctl", *argv, until="")
        self.program = self._held.__enter__()

    def __enter__(self) -> Running:
        return self.program

    def __exit__(self, *_: object) -> None:
        self._held.__exit__(None, None, None)


def test_ctrl_c_ends_tail_and_leaves_the_program_alone(ask: Ask, everywhere: Env) -> None:
    ask("emit", "deploy/now")
    with Asking(everywhere, "tail", "deploy/now") as tail:
        tail.until("deploy/now")
        assert "Traceback" not in tail.stop(signal.SIGINT)
    assert ask("commands")[0] == 0


def test_ctrl_c_leaves_a_command_running_and_stop_shows_its_progress(env: Env, here: Ask) -> None:
    with started(env) as program:
        with Asking(env, "emit", "hold/it") as waiting:
            program.until("holding")
            assert "hold/*" in here("status")[1]
            waiting.process.send_signal(signal.SIGINT)
            assert "stopped waiting for the result; shop continues" in waiting.rest(1)
        with Asking(env, "stop") as stop:
            stop.until("stopping shop: waiting for 1 event")
            program.process.send_signal(signal.SIGUSR1)
            assert "shop has exited" in stop.rest()
        # The program's parent is the test, which has not reaped it yet.
        assert psutil.Process(program.process.pid).status() == psutil.STATUS_ZOMBIE
        program.rest()


def test_timeout_ends_the_wait_and_names_what_is_left(env: Env, here: Ask) -> None:
    with started(env) as program:
        status, _, err = here("emit", "hold/it", "--timeout", "0.5")
        assert status == 1
        assert "waiting for shop to finish: emit hold/it" in err
        assert "not done within 0.5 s: emit hold/it; shop is still working on it" in err
        status, out, err = here("stop", "--timeout", "1", "--json")
        assert status == 1
        assert "not done within 1 s: stopping shop, waiting for 1 event" in json.loads(out)["error"]
        program.process.send_signal(signal.SIGUSR1)
        program.rest()


def test_kill_of_the_program_ends_the_waiting(env: Env, here: Ask) -> None:
    with (
        started(env) as program,
        Asking(env, "tail") as tail,
        Asking(env, "emit", "hold/it") as waiting,
        at_terminal(env, "attach") as attached,
    ):
        attached.expect_exact("shop>")
        tail.until("hold/it")
        program.process.kill()
        assert "shop has exited" in tail.rest(1)
        assert "the program exited before it responded" in waiting.rest(1)
        assert "shop has exited" in ends(attached)
        program.rest(-signal.SIGKILL)
    assert here("status")[0] == 4


def test_own_stop_command_is_not_waited_for_and_terminate_shows_progress(env: Env, here: Ask) -> None:
    with started({**env, "STOP": "mine"}) as program:
        assert here("stop")[0] == 0
        program.until("not I")
        with Asking(env, "emit", "hold/it"):
            program.until("holding")
        with at_terminal(env, "terminate") as terminate:
            terminate.expect(r"stopping shop .*━.*1 event")
            program.process.send_signal(signal.SIGUSR1)
            terminate.expect_exact("shop has exited")
            ends(terminate)
        program.rest()


def test_two_programs_require_a_name(ask: Ask, everywhere: Env, shop: Running) -> None:
    with started(everywhere) as second:
        name = f"shop-{second.process.pid}"
        status, _, err = ask("routes")
        assert status == 2
        assert [line.split()[1] for line in err.splitlines()[1:]] == ["shop", name]
        status, out, err = ask("-p", name, "stop", "--json")
        assert (status, json.loads(out)["outcome"]) == (0, "handled")
        assert err == ""
        second.rest()
        assert ask("-p", "shop", "routes")[0] == 0
    assert ask("routes")[0] == 0


def test_program_in_the_current_directory_needs_no_name(
    env: Env, here: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        place.mkdir()
    with started(env, cwd=places[0]), started(env, cwd=places[1]) as second:
        monkeypatch.chdir(places[1])
        assert json.loads(here("status", "--json")[1])["program"]["pid"] == second.process.pid
        monkeypatch.chdir(places[2])
        status, _, err = here("status")
        assert status == 2
        assert "several programs are running, but none in this directory; select one with -p:" in err
        assert [line.split()[-1] for line in err.splitlines()[1:]] == [str(place) for place in places[:2]]


# -- programs of the other commands --------------------------------------------------------------------------------

MODULE = """
import asyncio
from lifecycle.workers import TaskWorker

async def forever():
    print("up", flush=True)
    await asyncio.Event().wait()

worker = TaskWorker("worker", forever)
"""


def test_program_of_run_is_named_after_its_module(env: Env, here: Ask, tmp_path: Path) -> None:
    """The program is named after its module, even if no router runs."""
    (tmp_path / "shop.py").write_text(MODULE)
    with started(env, "-m", "lifecycle", "run", "shop:worker", cwd=tmp_path) as program:
        assert re.search(r"worker +task +running", here("-p", "shop", "status")[1])
        assert here("-p", "shop", "stop")[0] == 0
        program.rest()


def test_processes_of_up_are_restarted_and_stopped(env: Env, here: Ask, tmp_path: Path) -> None:
    place = tmp_path / "my shop"
    place.mkdir()
    (place / "Procfile").write_text("web: echo up; exec sleep 600\n")
    with started(env, "-m", "lifecycle", "up", cwd=place) as program:
        assert here("-p", "up-my_shop", "restart", "web")[0] == 0
        program.until("web    | up")
        assert here("-p", "up-my_shop", "stop")[0] == 0
        program.rest()


def test_processes_of_up_have_logs_and_are_stopped_and_started(
    env: Env, here: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Procfile").write_text("web: echo up; exec sleep 600\ndb: exec sleep 600\n")
    with started(env, "-m", "lifecycle", "up", cwd=tmp_path) as program:
        assert here("logs", "web") == (0, "up\n", "")
        with Asking(env, "logs", "web", "-f") as following:
            following.until("up")
            assert here("stop", "web")[0] == 0
            assert re.search(r" web +process +stopped", here("status")[1])
            assert here("start", "web")[0] == 0
            following.until("up")
            assert json.loads(here("logs", "web", "--json", "-n", "2")[1]) == {"lines": ["up", "up"]}
            status, _, err = here("logs", "nobody")
            assert (status, "no worker is called 'nobody'; available: " in err) == (1, True)
            assert here("stop")[0] == 0
            assert "has exited" in following.rest(1)
        program.rest()


EMBEDDED = """
import asyncio
from lifecycle import Spec, Supervisor, lifetime
from lifecycle.observe import ControlSocket

async def forever():
    await asyncio.Event().wait()

async def lifespan(begun):
    async with lifetime(signals=False), ControlSocket("shop"), Supervisor("web", Spec("one", forever)):
        begun.set()
        await asyncio.Event().wait()

async def framework():
    begun = asyncio.Event()
    part = asyncio.create_task(lifespan(begun))
    await begun.wait()
    print("up", flush=True)
    await part
    print("serving", flush=True)
    await asyncio.Event().wait()

asyncio.run(framework())
"""


def test_a_stop_of_a_lifetime_inside_another_program_reports_that_the_program_continues(env: Env, here: Ask) -> None:
    with started(env, "-c", EMBEDDED) as program:
        status, out, err = here("stop")
        assert status == 1
        assert out == "this lifetime stops, but the program that runs its event loop continues; stop that program too\n"
        pid = program.process.pid
        assert f"the program has stopped, but its process (pid {pid}) is still running: other code started its" in err
        program.until("serving")
        assert "the lifetime is stopping (cancel), but the program that runs this event loop does not" in program.text
        assert program.process.poll() is None


def test_program_without_a_control_socket_runs(env: Env, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    Path(env["XDG_RUNTIME_DIR"], "lifecycle").touch()
    with started(env, "-m", "lifecycle", "run", "shop:worker", cwd=tmp_path) as program:
        assert "lifecycle ctl cannot find this program: no control socket in" in program.stop()
