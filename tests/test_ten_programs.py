"""The programs under "Ten programs to start from" in docs/start/which-part.md keep the promises in their docstrings.

The program inside FastAPI is tested with the other web frameworks in test_examples.py.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.cli import main
from tests import postgres
from tests.nats_servers import NatsProcess
from tests.programs import LIMIT, Running, connect, free_port, post
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts an example in the test's directory."""
    programs: list[Running] = []

    def started(name: str, *argv: str, keyboard: bool = False, **env: str) -> Running:
        programs.append(Running(str(EXAMPLES / name), *argv, cwd=tmp_path, keyboard=keyboard, env=env))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def kill(program: Running) -> None:
    program.process.kill()
    program.process.wait(LIMIT)


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Send a request, and return the response's status and JSON."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=LIMIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


#: Records when it starts and finishes. In between, it waits for a file that is named after its commit.
DEPLOY = """
import sys, time
from pathlib import Path

def say(word):
    with open("log", "a") as log:
        log.write(f"{word} {sys.argv[2]}\\n")

say("begin")
while not Path(sys.argv[2]).exists():
    time.sleep(0.02)
say("end")
"""


def deployer(start: Callable[..., Running], home: Path, port: int) -> Running:
    (home / "deploy.py").write_text(DEPLOY)
    command = (sys.executable, "deploy.py")
    program = start("deployer.py", *command, WEBHOOK_SECRET="hush", PORT=str(port), QUIET="0.1")
    connect(port)
    return program


def push(port: int, repository: str, commit: str, branch: str = "main") -> None:
    body = {"repository": {"full_name": repository}, "ref": f"refs/heads/{branch}", "after": commit}
    assert post(port, "/push", json.dumps(body).encode(), "hush") == 202


def test_deployer_runs_repositories_side_by_side_and_one_repository_in_turn(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    program = deployer(start, tmp_path, port)
    assert post(port, "/push", b"{}", "wrong") == 401
    push(port, "o/api", "api1")
    push(port, "o/web", "web1")
    push(port, "o/web", "feature", "feature")
    until_blocking(lambda: sorted(lines(log)) == ["begin api1", "begin web1"])

    # A later push to a third repository is deployed, so the second push to o/api waits only for the first.
    push(port, "o/api", "api2")
    push(port, "o/doc", "doc1")
    until_blocking(lambda: "begin doc1" in lines(log))
    assert "begin api2" not in lines(log)
    for commit in ("api1", "api2", "web1", "doc1"):
        (tmp_path / commit).touch()
    until_blocking(lambda: len(lines(log)) == 8)
    program.stop()
    assert [line for line in lines(log) if "api" in line] == ["begin api1", "end api1", "begin api2", "end api2"]


def test_deployer_repeats_a_deployment_that_a_kill_has_interrupted(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    program = deployer(start, tmp_path, port)
    push(port, "o/api", "api1")
    until_blocking(lambda: lines(log) == ["begin api1"])
    kill(program)
    program = deployer(start, tmp_path, port)
    until_blocking(lambda: lines(log) == ["begin api1"] * 2)
    (tmp_path / "api1").touch()
    until_blocking(lambda: lines(log)[2:] == ["end api1"])
    program.stop()


def test_pipeline_imports_between_suspensions_and_explains_mistakes(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "b.csv").write_text("")
    program = start("pipeline.py", str(tmp_path), keyboard=True, PACE="0")
    program.type("help")
    program.until("import [--again] [PATTERN]")
    # The suspension takes effect even though the queue is empty.
    program.type("suspend")
    program.until("suspended")
    program.type("import *.csv")
    program.until("2 files queued")
    program.type("files queued")
    program.until("a.csv: queued\nb.csv: queued")
    program.type("resume")
    program.until("a.csv is done")
    program.until("b.csv is failed: the file is empty")
    (tmp_path / "b.csv").write_text("2")
    program.type("retry a.csv")
    program.until("'a.csv' has not failed")
    program.type("files lost")
    program.until("'lost' is not one of queued, done, failed, all; usage: files [STATE]")
    program.type("retry b.csv")
    program.until("b.csv is done")
    program.type("quit")
    program.rest()


def test_config_reload_keeps_the_old_configuration_for_a_broken_file(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    config = tmp_path / "service.toml"
    config.write_text('greeting = "hello"\ninterval = 0.05')
    program = start("config_reload.py", "service.toml")
    program.until("hello")
    program.answers(lambda: config.write_text('greeting = "good day"\ninterval = 0.05'), "reloaded:")
    program.until("good day")
    for broken, reason in (("greeting = ", "Invalid value"), ("greeting = 3", "must be a string, got 3")):
        config.write_text(broken)
        program.until("reload failed")
        program.until(reason)
        program.until("good day")
    new = tmp_path / "service.toml.new"
    new.write_text('greeting = "goodbye"')
    new.replace(config)  # most editors save in this way
    program.until("goodbye")
    program.process.send_signal(signal.SIGHUP)
    program.until("reloaded:")
    assert "hello" not in program.stop().partition("good day")[2]


def command(process: psutil.Process) -> list[str]:
    """Return the process's command, or an empty list if the process is a probe that has just exited."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def test_trio_restarts_what_ends_or_does_not_respond_and_leaves_nothing(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    port = free_port()
    program = start("trio.py", PORT=str(port), HOME_OF_TRIO=str(tmp_path))
    program.until("worker: did ")

    def child(*words: str) -> psutil.Process:
        family = psutil.Process(program.process.pid).children(recursive=True)
        [found] = [one for one in family if command(one)[-len(words) :] == list(words)]
        return found

    web = child("--bind", "127.0.0.1")
    web.kill()
    web.wait(LIMIT)
    program.until("Serving HTTP")
    connect(port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT) as answer:
        assert b"worker.alive" in answer.read()

    frozen = child("work")
    frozen.suspend()
    frozen.wait(LIMIT)
    (tmp_path / "last.job").touch()
    program.until("worker: did last.job")
    family = psutil.Process(program.process.pid).children(recursive=True)
    program.stop()
    assert not psutil.wait_procs(family, LIMIT)[1]


def test_model_server_recycles_processes_and_survives_the_death_of_one(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    port = free_port()
    program = start("model_server.py", PORT=str(port), CALLS="3")
    connect(port)
    answers = [ask(port, "/score?text=very+good")[1] for _ in range(7)]
    assert {answer["score"] for answer in answers} == {1}
    assert len({answer["process"] for answer in answers}) == 3
    assert ask(port, "/score") == (400, {"error": "the parameter text is missing"})
    os.kill(ask(port, "/score?text=bad")[1]["process"], signal.SIGKILL)
    until_blocking(lambda: ask(port, "/score?text=bad+better")[0] == 200)
    program.stop()


def booked(home: Path) -> dict[str, int]:
    return {path.name.removeprefix("booked-"): int(path.read_text()) for path in home.glob("booked-*")}


def shown(place: str, number: str) -> str:
    """Return the output of `lifecycle flows show`."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["flows", "show", place, number]) == 0
    return out.getvalue()


def waits(place: str, number: str) -> bool:
    return "WAITING" in shown(place, number)


def order(port: int, number: str, **values: object) -> int:
    body = {"order": number, "item": "lamp", "amount": 30, "to": "Turin"} | values
    return ask(port, "/order", json.dumps(body).encode())[0]


def test_orders_charge_once_although_the_program_is_killed_during_the_charge(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    port = free_port()
    program = start("orders.py", PORT=str(port), PACE="0.3")
    connect(port)
    assert order(port, "7") == 200
    program.until("booking 30 as 7/3 charge/1")
    kill(program)

    program = start("orders.py", PORT=str(port), PACE="0.3")
    program.until("booking 30 as 7/3 charge/1")
    program.until("shipping from the shelf of lamp to Turin")
    assert "reserving" not in program.text
    # The sender repeats the order, because a crash may have lost the response.
    assert order(port, "7") == 200
    assert order(port, "8") == 200
    program.until("shipping")
    text = program.stop()
    assert text.count("reserving") == 1
    assert booked(tmp_path) == {"7-3-charge-1": 30, "8-3-charge-1": 30}


def test_orders_undo_only_what_was_done(start: Callable[..., Running], tmp_path: Path) -> None:
    port = free_port()
    program = start("orders.py", PORT=str(port), PACE="0")
    connect(port)
    assert order(port, "lost", to="nowhere") == 200
    program.until("releasing the shelf of lamp")
    assert booked(tmp_path) == {"lost-3-charge-1": 30, "lost-3-charge-1-refund": -30}
    assert order(port, "free", amount=0) == 200
    program.until("releasing the shelf of lamp")
    program.stop()
    assert not any("free" in key for key in booked(tmp_path))


@pytest.mark.parametrize("server", [False, pytest.param(True, marks=pytest.mark.engine("postgres"))])
def test_large_orders_are_approved_or_cancelled_from_another_process(
    start: Callable[..., Running], tmp_path: Path, server: bool
) -> None:
    port, place = free_port(), postgres.server().cleared() if server else str(tmp_path / "orders.db")
    program = start("orders.py", PORT=str(port), PACE="0", ORDERS=place)
    connect(port)
    for number in ("good", "bad"):
        assert order(port, number, amount=5000) == 200
        until_blocking(partial(waits, place, number))
    kill(program)
    assert main(["flows", "signal", place, "good", "approval", "true"]) == 0
    assert main(["flows", "cancel", place, "bad"]) == 0
    program = start("orders.py", PORT=str(port), PACE="0", ORDERS=place)
    program.until("booking -5000 as bad/3 charge/1/refund")
    until_blocking(lambda: "state     SUCCESS" in shown(place, "good") and "CANCELLED" in shown(place, "bad"))
    assert "shipping from the shelf of lamp to Turin" in program.stop() + program.text
    assert booked(tmp_path) == {"good-3-charge-1": 5000, "bad-3-charge-1": 5000, "bad-3-charge-1-refund": -5000}


def test_periodic_catches_up_once_or_for_each_tick(start: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    now = datetime.now(UTC).replace(microsecond=0)

    def completed(name: str, ago: timedelta) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "last": (now - ago).isoformat()}))

    completed("backup", timedelta(days=3))
    completed("report", timedelta(hours=3))
    program = start("periodic.py", TZ="UTC")
    for _ in range(3):
        program.until("report of ")
    until_blocking(lambda: "wrote" in program.text or program.says("wrote", 0.1))
    text = program.stop()
    hours = reported(text)
    assert {later - hour for hour, later in pairwise(hours)} == {timedelta(hours=1)}
    assert hours[0] > now - timedelta(hours=3)
    # Two archives are possible only if the test runs at three o'clock.
    assert text.count("wrote") < 3

    # The second start makes another archive, but does not repeat a report.
    completed("backup", timedelta(days=3))
    program = start("periodic.py", TZ="UTC")
    program.until("wrote")
    assert not {*reported(program.stop())} & {*hours}


def reported(text: str) -> list[datetime]:
    return [datetime.fromisoformat(hour).replace(tzinfo=UTC) for hour in re.findall(r"report of (\S+ \S+)", text)]


def test_gateway_has_one_window_for_each_device(start: Callable[..., Running]) -> None:
    port = free_port()
    program = start("gateway.py", PORT=str(port), SECONDS="0.5")
    connect(port)
    with socket.create_connection(("127.0.0.1", port)) as one, socket.create_connection(("127.0.0.1", port)) as two:
        one.sendall(b"7 temp 20\n7 temp 22\n7 volt 3\n")
        two.sendall(b"nonsense\n8 temp 5\n")
        program.until("device 7 has no measurement volt")
        program.until("device 7: 21.0 degrees, 2 readings")
        until_blocking(lambda: "device 8: 5.0 degrees, 1 readings" in program.text or program.says("device 8", 0.1))
        one.sendall(b"7 temp 30\n")
        program.until("device 7: 30.0 degrees, 1 readings")
    assert "refused: nonsense" in program.stop()


@pytest.mark.engine("postgres")
def test_photos_accepted_by_one_program_are_done_by_another(start: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    with NatsProcess(tmp_path / "bus") as bus:
        port = free_port()
        env = {"NATS": bus.url, "FLOWS": postgres.server().url(), "PORT": str(port), "PACE": "0.3"}
        accepting = start("photos.py", "accept", **env)
        connect(port)
        assert ask(port, "/photo", b"cat.jpg")[0] == 200
        working = start("photos.py", "work", **env)
        accepting.until("done: small-cat.jpg")

        assert ask(port, "/photo", b"dog.jpg")[0] == 200
        working.until("resizing dog.jpg")
        kill(working)
        working = start("photos.py", "work", **env)
        accepting.until("done: small-dog.jpg")
        assert working.stop().count("resizing dog.jpg") == 1
        accepting.stop()
