"""`lifecycle run` prints one line for an expected failure. Other errors, and all errors of `run`, have a traceback."""

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


def started_by_command(here: Path, main: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a main of the program with `lifecycle run`."""
    factory = [] if main in ("listen", "crash", "look_up", "environment") else ["--factory"]
    return ended(here, "-m", "lifecycle", "run", f"program:{main}", *factory, **env)


@pytest.mark.parametrize(
    ("main", "line"),
    [
        ("listen", "[Errno 98] error while attempting to bind on address"),
        ("source", "SourceFailed: source 'webhook 127.0.0.1:"),
        ("environment", "the environment variable NOT_SET is not set"),
        ("supervisor", "RestartLimitReached: 'app' gave up after more than 0 restarts within 1 s"),
        ("process", "WorkerFailed: 'app' cannot start: the command 'no-such-command' was not found"),
    ],
)
def test_lifecycle_run_prints_one_line_for_an_expected_failure(here: Path, main: str, line: str) -> None:
    program = started_by_command(here, main)
    assert program.returncode == 1
    assert program.stderr.splitlines()[-1].startswith(f"[lifecycle] {line}")
    assert "Traceback" not in program.stderr


@pytest.mark.parametrize("main", ["crash", "look_up", "start_failing"])
def test_error_in_the_program_keeps_its_traceback(here: Path, main: str) -> None:
    program = started_by_command(here, main)
    assert program.returncode == 1
    assert "Traceback" in program.stderr


def test_the_last_output_of_a_process_that_was_not_ready_follows_its_failure(here: Path) -> None:
    program = started_by_command(here, "not_ready")
    *_, line, last = program.stderr.splitlines()
    assert line.startswith("[lifecycle] WorkerFailed: 'app' cannot start, because its child 'db' cannot: ")
    assert line.endswith("; the end of its stderr:")
    assert last == "[lifecycle] no such table"
    assert "Traceback" not in program.stderr


def test_debugging_prints_the_traceback(here: Path) -> None:
    assert "Traceback" in started_by_command(here, "listen", LIFECYCLE_DEBUG="1").stderr


def test_a_program_of_its_own_has_a_traceback(here: Path) -> None:
    program = ended(here, "program.py", "listen")
    assert program.returncode == 1
    assert "Traceback" in program.stderr
    assert program.stderr.splitlines()[-1].startswith("OSError: [Errno 98] error while attempting to bind on address")


def test_lifecycle_run_prints_one_line_for_a_failed_import(here: Path) -> None:
    (here / "early.py").write_text("import os\nmain = os.environ['NOT_SET']\n")
    program = ended(here, "-m", "lifecycle", "run", "early:main")
    assert program.returncode == 1
    assert program.stderr.splitlines()[-1].startswith("[lifecycle] the environment variable NOT_SET is not set")
    assert "Traceback" not in program.stderr
