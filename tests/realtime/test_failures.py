"""A program with an expected failure exits with one line and status 1. An unexpected error keeps its traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import asyncio, inspect, os, sys

from lifecycle import *

async def listen():
    await asyncio.start_server(print, "127.0.0.1", int(os.environ["PORT"]))

async def crash():
    raise ValueError("boom")

async def look_up():
    {}["nothing"]

async def environment():
    os.environ["NOT_SET"]

def source():
    router = Router()
    router.add_source(WebhookSource(port=int(os.environ["PORT"])))
    return router

def supervisor():
    return Supervisor("app", Spec("part", crash), intensity=Intensity(0, within=1))

def start_failing():
    return Supervisor("app", Spec("part", lambda: {}["nothing"]))

def process():
    return ProcessWorker("app", "no-such-command")

def not_ready():
    code = "import sys; sys.exit('no such table')"
    spec = Spec("db", [sys.executable, "-c", code], ready="notify", output=lambda line, stream: None)
    return Supervisor("app", spec)

def own_hook():
    sys.excepthook = lambda kind, error, traceback: print("own:", error)
    return listen

if __name__ == "__main__":
    main = globals()[sys.argv[1]]
    run(main if inspect.iscoroutinefunction(main) else main())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("PORT", str(taken.getsockname()[1]))
        yield tmp_path


def ended(here: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=here,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("main", "line"),
    [
        ("listen", "program: [Errno 98] error while attempting to bind on address"),
        ("source", "program: SourceFailed: source 'webhook 127.0.0.1:"),
        ("environment", "program: the environment variable NOT_SET is not set"),
        ("supervisor", "program: RestartLimitReached: 'app' gave up after more than 0 restarts within 1 s"),
        ("process", "program: WorkerFailed: 'app' cannot start: the command 'no-such-command' was not found"),
    ],
)
def test_expected_failure_ends_a_program_with_one_line(here: Path, main: str, line: str) -> None:
    program = ended(here, "program.py", main)
    assert program.returncode == 1
    assert program.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in program.stderr


@pytest.mark.parametrize("main", ["crash", "look_up", "start_failing"])
def test_error_in_the_program_keeps_its_traceback(here: Path, main: str) -> None:
    program = ended(here, "program.py", main)
    assert program.returncode == 1
    assert "Traceback" in program.stderr


def test_the_last_output_of_a_process_that_was_not_ready_follows_its_failure(here: Path) -> None:
    program = ended(here, "program.py", "not_ready")
    *_, line, last = program.stderr.splitlines()
    assert line.startswith("program: WorkerFailed: 'app' cannot start, because its child 'db' cannot: ")
    assert line.endswith("; the end of its stderr:")
    assert last == "no such table"
    assert "Traceback" not in program.stderr


def test_debugging_prints_the_traceback(here: Path) -> None:
    assert "Traceback" in ended(here, "program.py", "listen", LIFECYCLE_DEBUG="1").stderr


def test_hook_of_the_program_is_kept(here: Path) -> None:
    assert ended(here, "program.py", "own_hook").stdout.startswith("own: [Errno 98]")


def test_other_errors_after_a_caught_failure_keep_their_traceback(here: Path) -> None:
    code = """
import program
try:
    program.run(program.listen)
except OSError as error:
    print("caught", error.errno)
open("nothing")
"""
    program = ended(here, "-c", code)
    assert program.stdout == "caught 98\n"
    assert "Traceback" in program.stderr


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("program:listen",), "[lifecycle] [Errno 98] error while attempting to bind"),
        (("program:source", "--factory"), "[lifecycle] SourceFailed: source 'webhook 127.0.0.1:"),
        (("early:main",), "[lifecycle] the environment variable NOT_SET is not set"),
    ],
)
def test_lifecycle_run_ends_with_one_line(here: Path, argv: tuple[str, ...], line: str) -> None:
    (here / "early.py").write_text("import os\nmain = os.environ['NOT_SET']\n")
    program = ended(here, "-m", "lifecycle", "run", *argv)
    assert program.returncode == 1
    assert program.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in program.stderr
