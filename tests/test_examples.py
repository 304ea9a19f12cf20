"""Every program in examples/ does what its docstring describes, as a separate process."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import LIMIT, Running, connect, free_port
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    programs: list[Running] = []

    def started(name: str, *argv: str, **env: str) -> Running:
        command = ("-m", "lifecycle", "up", "-f") if name == "Procfile" else ()
        programs.append(Running(*command, str(EXAMPLES / name), *argv, env=env))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_no_example_is_longer_than_eighty_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def test_debounce_builds_a_burst_once_and_never_forgets_a_change(start: Callable[..., Running]) -> None:
    assert start("debounce.py").rest().splitlines() == [
        "build: a.py, b.py, c.py",
        "given up: there are newer changes",
        "build: a.py, b.py, c.py",
        "built",
    ]


def test_notify_bridge_drops_events_when_the_queue_is_full(start: Callable[..., Running]) -> None:
    lines = start("notify_bridge.py").rest().splitlines()
    assert lines[0] == "tick 1"
    assert [line.partition(" ")[0] for line in lines[:3]] == ["tick"] * 3
    handled, dropped = (int(word) for word in lines[3].split() if word.isdecimal())
    assert handled >= 3
    assert dropped >= 1


def test_custom_source_returns_the_result_of_each_line(start: Callable[..., Running]) -> None:
    text = start("custom_source.py", sys.executable, "-c", r"print('one\n\ntwo')").rest()
    said = [line for line in text.splitlines() if line.startswith(("line:", "refused:"))]
    assert said == ["line: one", "refused: an empty line", "line: two"]
    assert all(number in text.splitlines() for number in "321")


def test_custom_source_that_cannot_start_ends_the_program_and_is_named(start: Callable[..., Running]) -> None:
    text = start("custom_source.py", "no-such-command").rest(status=1)
    assert "SourceFailed: source 'output of no-such-command' could not start" in text


def test_hot_reload_restarts_the_command_for_a_saved_file(start: Callable[..., Running], tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("import time; print('first', flush=True); time.sleep(600)")
    program = start("hot_reload.py", str(tmp_path), sys.executable, str(app))
    program.until("| first")
    program.answers(lambda: app.write_text("import time; print('second', flush=True); time.sleep(600)"), "changed:")
    program.until("| second")
    text = program.stop(signal.SIGINT)
    assert "changed: app.py" in text
    assert text.count("| first") == 1


def test_hot_reload_without_a_command_prints_its_usage(start: Callable[..., Running]) -> None:
    assert "usage:" in start("hot_reload.py", "src").rest(status=1)


def test_the_procfile_keeps_a_service_and_a_clock_together(start: Callable[..., Running]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = start("Procfile", PATH=path, PORT=str(free_port()))
    program.until("service | serving http://")
    program.until("clock   | ")
    text = program.stop()
    assert "service | closed" in text


def test_service_answers_what_it_has_begun_before_it_ends(start: Callable[..., Running]) -> None:
    port = free_port()
    program = start("service.py", PORT=str(port), NOTICE="3")
    program.until("with probes at http://")
    program.until("\n")
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    probe = http.client.HTTPConnection(program.text.split("//")[-1].strip(), timeout=LIMIT)

    def ready() -> int:
        probe.request("GET", "/readyz")
        with probe.getresponse() as answer:
            answer.read()
            return answer.status

    try:
        client.request("GET", "/slow?seconds=3.5")
        answer = client.getresponse()
        assert answer.read(7) == b"begun, "
        while ready() != 200:
            pass

        program.process.send_signal(signal.SIGTERM)
        while (status := ready()) == 200:
            pass
        assert status == 503
        assert answer.read() == b"and finished\n"
    finally:
        client.close()
        probe.close()
    assert program.rest().splitlines()[1:] == ["drained", "closed"]


@pytest.mark.timeout(240)
def test_deploy_flow_comes_to_the_same_end_however_often_it_is_killed(tmp_path: Path) -> None:
    forth, back, none = (deployed(tmp_path, ref) for ref in ("v1", "v2-broken", "v3"))
    # The first lines belong to the deployment, and the rest to the rollback. The third run finds no new line.
    assert len(forth) > 10
    assert len(back) > 2
    assert none == []
    assert (tmp_path / "schema").read_text() == "v1 was here\nv3 was here\n"
    assert (tmp_path / "live").read_text() == "app-v3"


def deployed(home: Path, ref: str) -> list[str]:
    """Deploy, and kill the process before each line at which it has not been killed yet. Return these lines."""
    memory = home / "died"
    before = memory.read_text().split() if memory.exists() else []
    command = [sys.executable, "-m", "tests.kill_at_every_line", str(EXAMPLES / "deploy_flow.py"), str(memory), ref]
    env = {**os.environ, "DEPLOYED": str(home), "PACE": "0"}
    while True:
        done = subprocess.run(command, cwd=EXAMPLES.parent, env=env, capture_output=True, timeout=LIMIT, check=False)
        if done.returncode != -signal.SIGKILL:
            break
    assert done.returncode == 0, done.stderr.decode()
    assert f"{ref} is {'REVERTED' if 'broken' in ref else 'SUCCESS'}" in done.stdout.decode()
    return memory.read_text().split()[len(before) :]


EMBEDDED = {
    "with_fastapi": ("uvicorn", "examples.embed.with_fastapi:app", "--port", "{}"),
    "with_quart": ("hypercorn", "examples.embed.with_quart:app", "--bind", "127.0.0.1:{}"),
    "with_aiohttp": ("examples.embed.with_aiohttp",),
    "with_django": ("uvicorn", "examples.embed.with_django:application", "--port", "{}"),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_program_works_after_a_request_and_reports_its_health(name: str, tmp_path: Path) -> None:
    port, mailbox = free_port(), tmp_path / "mailbox"
    mailbox.touch()
    argv = ["-m", *(word.format(port) for word in EMBEDDED[name])]
    env = {"PORT": str(port), "MAILBOX": str(mailbox)}
    if name == "with_quart":
        env["LIFECYCLE_LOOP"] = ""  # Hypercorn 0.18 fails with eager tasks
    program = Running(*argv, cwd=EXAMPLES.parent, env=env)

    def ask(path: str, method: str = "GET") -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            client.request(method, path)
            with client.getresponse() as answer:
                return answer.status, answer.read()
        finally:
            client.close()

    try:
        connect(port)
        assert ask("/mail/ann", "POST")[0] == 202
        program.until("sent mail to ann")
        assert ask("/healthz")[0] == 200
        mailbox.unlink()
        if name == "with_fastapi":
            assert ask("/export/report", "POST")[0] == 202
            program.until("exported report")
        until_blocking(lambda: ask("/healthz")[0] == 503)
        assert b"No such file or directory" in ask("/healthz")[1]
        program.process.terminate()
        assert program.process.wait(LIMIT) in (0, -signal.SIGTERM)
    finally:
        program.close()


def test_diagram_draws_the_program_that_it_is_part_of(start: Callable[..., Running]) -> None:
    text = start("diagram.py").rest()
    assert "graph TD\n" in text
    assert "**importer**\nfailed\n2 restarts\ncircuit open\nno such table" in text
    for said in (
        '["what runs"]',
        '["router main"]',
        "**lifetime**\nrunning",
        "**ticker**",
        "**tick#47;#42;**\nbeat",
        "**database**\n",
    ):
        assert said in text
