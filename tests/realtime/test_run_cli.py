"""`lifecycle run`: the programs that it accepts, and its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 20.0

MODULE = """
import asyncio
import sys

from lifecycle import ProcessWorker, Router, Spec, Supervisor, shutdown

async def main():
    print("ran", __name__)

async def fails():
    raise RuntimeError("boom")

async def leaves():
    sys.exit(7)

async def waits():
    print("waiting", flush=True)
    await asyncio.sleep(600)

def worker():
    return ProcessWorker("child", sys.executable, "-c", "import sys; print('child'); sys.exit(5)", output=print_line)

def plain():
    return ProcessWorker("child", sys.executable, "-c", "import sys; print('child'); print('err', file=sys.stderr)")

def killed():
    return ProcessWorker("child", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")

def done():
    return ProcessWorker("child", sys.executable, "-c", "pass")

def child(code, **how):
    how = {"restart": "never", "significant": True, **how}
    return Spec("child", [sys.executable, "-c", f"raise SystemExit({code})"], **how)

def any_significant():
    return Supervisor("s", child(3), Spec("other", waits), auto_shutdown="any_significant")

def nested():
    inner = Spec("inner", any_significant, restart="never", significant=True)
    return Supervisor("outer", inner, auto_shutdown="any_significant")

def insignificant():
    done = Spec("done", main, restart="never", significant=True)
    return Supervisor("s", child(3, significant=False), done, auto_shutdown="any_significant")

def all_significant():
    done = Spec("done", main, restart="never", significant=True)
    return Supervisor("s", child(4), done, auto_shutdown="all_significant")

def failed_task():
    task = Spec("task", fails, restart="never", significant=True)
    return Supervisor("s", task, auto_shutdown="any_significant")

def print_line(line, stream):
    print(line, stream, flush=True)

def two():
    return [Router("r"), main]
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    return tmp_path


def run(here: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lifecycle", "run", *argv],
        cwd=here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        # `lifecycle run` itself must add the current directory to the path.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["app:main"], 0, "ran app"),
        (["app:two", "--factory"], 0, "ran app"),
        (["app:worker", "--factory"], 5, "child stdout"),
        (["app:killed", "--factory"], 128 + 9, ""),
        (["app:done", "--factory"], 0, ""),
        (["app:leaves"], 7, ""),
        (["app:any_significant", "--factory"], 3, ""),
        (["app:nested", "--factory"], 3, ""),
        (["app:all_significant", "--factory"], 4, ""),
        (["app:insignificant", "--factory"], 0, ""),
    ],
)
def test_exit_status_is_that_of_the_worker(here: Path, argv: list[str], status: int, said: str) -> None:
    ended = run(here, *argv)
    assert ended.returncode == status, ended.stderr
    assert said in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_significant_task_that_fails_ends_the_program_with_1(here: Path) -> None:
    ended = run(here, "app:failed_task", "--factory")
    assert ended.returncode == 1
    assert "RuntimeError: boom" in ended.stderr


def test_output_of_a_process_is_shown_without_a_terminal(here: Path) -> None:
    ended = run(here, "app:plain", "--factory")
    assert (ended.stdout, ended.stderr) == ("child\n", "err\n")


def test_failed_process_is_reported(here: Path) -> None:
    assert "5" in run(here, "app:worker", "--factory").stderr


@pytest.mark.parametrize("target", ["app:fails", "broken:main"])
def test_an_error_of_the_program_is_shown_whole_and_ends_with_1(here: Path, target: str) -> None:
    ended = run(here, target)
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["app"], "must have the form MODULE:ATTRIBUTE"),
        (["nope:main"], "no module 'nope'"),
        (["app:nope"], "has no 'nope'; available: fails, leaves, main, waits"),
        (["app:worker"], "to call it and run its result, use --factory"),
        (["app:main", "--", "x"], "takes no command"),
        ([], "MODULE:ATTRIBUTE"),
    ],
)
def test_targets_that_cannot_run_exit_with_2(here: Path, argv: list[str], said: str) -> None:
    ended = run(here, *argv)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert said in ended.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_on_request_ends_with_0(here: Path, signum: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lifecycle", "run", "app:waits"], cwd=here, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signum)
        assert process.wait(LIMIT) == 0
