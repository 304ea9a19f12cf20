"""A program with a control socket, and `lifecycle ctl` run as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pexpect

from tests.programs import LIMIT, Running

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["PROGRAM", "ROOT", "at_terminal", "ctl", "ends", "environment", "home", "started"]

ROOT = Path(__file__).parents[3]

#: A program with everything that the tests query or change.
PROGRAM = '''
import asyncio, os, signal
from lifecycle import CommandEvent, Event, Router, SuspendHandler, run
from lifecycle.observe import ControlSocket
from lifecycle.workers import Spec, Supervisor, TaskWorker

NAME = "odd\\n\\x1b[31m'\\"<b>[red]🐙"
router = Router("main")
suspender = SuspendHandler()
router.handle("lifecycle/suspend", suspender)
router.handle("lifecycle/resume", suspender)
released = asyncio.Event()

async def letters():
    await asyncio.Event().wait()
    yield

router.add_source(letters)

@router.on("deploy/*")
async def deployed(event):
    print("deployed", event.topic, event.data)

@router.on("hold/*")
async def hold(event):
    print("holding")
    await released.wait()

@router.command
async def deploy(event: CommandEvent):
    """Deploy TARGET."""
    print("deploying", *event.args)
    await router.emit(Event("deploy/done", list(event.args)))

@router.command
def fail(event):
    raise ValueError("no such \\x1b[31mtarget")

def targets(typed):
    return ["alpha", "beta"]

router.command("ship", lambda event: print("shipped", *event.args), help="Ship it.", complete=targets)
if "STOP" in os.environ:
    router.command("stop", lambda event: print("not I"))

async def forever():
    await asyncio.Event().wait()

web = Supervisor("web", *(Spec(name, lambda name=name: TaskWorker(name, forever)) for name in ("one", NAME)))

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, released.set)
    loop.add_signal_handler(signal.SIGUSR2, os.kill, os.getpid(), signal.SIGSTOP)
    print("up", flush=True)
    await asyncio.Event().wait()

run(ControlSocket(os.environ.get("NAMED", "shop")), router, web, main)
'''


@contextmanager
def home() -> Generator[dict[str, str]]:
    """Yield an environment in which programs find only each other. Its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ctl") as directory:
        yield {"XDG_RUNTIME_DIR": directory, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}


@contextmanager
def started(env: Mapping[str, str], *argv: str, until: str = "up", cwd: Path | None = None) -> Generator[Running]:
    """Start a program and wait until it is up. Without ``argv``, start `PROGRAM`."""
    program = Running(*(argv or ("-c", PROGRAM)), env=env, cwd=cwd)
    try:
        program.until(until)
        yield program
    finally:
        program.close()


def environment(env: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **env}


def ctl(env: Mapping[str, str], *argv: str, given: str | None = None) -> tuple[int, str, str]:
    """Run `lifecycle ctl`, and return its status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "lifecycle", "ctl", *argv],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        env=environment(env),
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def at_terminal(env: Mapping[str, str], *argv: str, **more: str) -> Generator[pexpect.spawn[str]]:
    """Start `lifecycle ctl` at a terminal."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "lifecycle", "ctl", *argv],
        env=environment({**env, "TERM": "xterm", "NO_COLOR": "", **more}),
        encoding="utf-8",
        timeout=LIMIT,
        dimensions=(40, 100),
    )
    child.delaybeforesend = None
    try:
        yield child
    finally:
        child.close(force=True)


def ends(child: pexpect.spawn[str], status: int = 0) -> str:
    """Wait until the command exits with ``status``, and return its output."""
    rest = child.read()
    child.wait()
    assert child.exitstatus == status, rest
    return str(rest)
