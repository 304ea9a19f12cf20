"""One run of the program: its process from start to exit, and what the process leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.soak.program import DEADLINE

if TYPE_CHECKING:
    from asyncio.subprocess import Process

__all__ = ["LIMIT", "Broken", "Life"]

ROOT = Path(__file__).parents[2]

#: The timeout in seconds for operations that are slow only on a busy machine.
LIMIT = 90.0
#: The kernel kills the program when this process exits for any reason.
_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
#: The environment variable that marks every process of a run.
_MARK = "SOAK_LIFE"


class Broken(Exception):
    """Raised when a required condition does not hold."""


class Life:
    """One process of the program.

    Call `start` and `wait_up`, then a method that stops the process, and finally `check_nothing_left`.
    """

    def __init__(self, directory: Path, number: int, bus: str | None) -> None:
        self.directory, self.number, self._bus = directory, number, bus
        self._mark = f"{_MARK}={uuid.uuid4().hex}".encode()
        self._process: Process | None = None
        # An earlier program with the same pid may have left some behind.
        self._earlier_cgroups = set(_all_cgroups("lifecycle-*"))
        #: True while the program is being stopped. Missing responses are then not errors.
        self.ending = False
        #: The program's addresses.
        self.up: dict[str, str] = {}
        self.log = directory / f"log-{number}"
        self.begun = time.monotonic()

    @property
    def process(self) -> Process:
        """The run's process."""
        assert self._process is not None, "the process has not been started"
        return self._process

    @property
    def alive(self) -> bool:
        """True unless the process is known to have exited."""
        return self.process.returncode is None

    async def start(self) -> None:
        """Start the process."""
        argv = [str(self.directory), str(self.number), *([self._bus] if self._bus else [])]
        name, _, value = self._mark.decode().partition("=")
        env = {**os.environ, name: value, "XDG_RUNTIME_DIR": str(self.directory / "run")}
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*_WITH_US, sys.executable, "-m", "tests.soak.program", *argv),
                cwd=ROOT,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_hear_hangups,
            )

    async def wait_up(self) -> None:
        """Wait until all parts of the program have started."""
        path = self.directory / f"up-{self.number}"
        try:
            async with asyncio.timeout(LIMIT):
                while not path.exists():
                    if not self.alive:
                        raise Broken(f"the program exited with {self.process.returncode} before it was up")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Broken(f"the program was not up within {LIMIT:g} s") from None
        self.up = json.loads(path.read_text())
        path.unlink()

    def type(self, line: str) -> None:
        """Type a line at the program's prompt."""
        assert self.process.stdin is not None
        if not self.ending:
            self.process.stdin.write(f"{line}\n".encode())

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the program only, not to its process group."""
        if self.alive:
            self.process.send_signal(signum)

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """Kill the program with SIGKILL."""
        self.ending = True
        self.send(signal.SIGKILL)
        await self.process.wait()

    async def hammer(self, pause: float) -> None:
        """Press Ctrl+C repeatedly until the program exits, cleanly or by force."""
        self.ending = True
        await self._over(0, 1, within=LIMIT, again=(signal.SIGINT, pause))

    async def terminate(self) -> None:
        """Stop the program as a service manager does."""
        self.end_well()
        self.send(signal.SIGTERM)
        await self.over()

    async def close_input(self) -> None:
        """Close the prompt's input."""
        self.end_well()
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.over()

    def end_well(self) -> None:
        """Expect the program to exit, and resume any processes stopped by SIGSTOP."""
        self.ending = True
        for pid in self.relatives():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def over(self) -> None:
        """Wait for a clean exit within the deadline."""
        # On a busy machine, the steps before and after the deadline also take time.
        await self._over(0, within=DEADLINE + 10.0)

    async def _over(self, *statuses: int, within: float, again: tuple[signal.Signals, float] | None = None) -> None:
        ended = asyncio.ensure_future(self.process.wait())
        until = time.monotonic() + within
        while not ended.done() and time.monotonic() < until:
            if again is not None:
                self.send(again[0])
            await asyncio.wait({ended}, timeout=until - time.monotonic() if again is None else again[1])
        if not ended.done():
            ended.cancel()
            raise Broken(f"the program did not exit within {within:g} s; it is still in {self._doing()}")
        if ended.result() not in statuses:
            raise Broken(f"the program exited with {ended.result()}; expected one of {statuses}")

    def _doing(self) -> str:
        try:
            return psutil.Process(self.process.pid).status()
        except psutil.Error as error:
            return repr(error)

    # -- the run's processes -----------------------------------------------------------------------------------------

    def relatives(self) -> dict[int, str]:
        """Return descriptions of all processes in this run, by PID."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
                except OSError:
                    continue
        return found

    def has(self, pid: int) -> bool:
        """Return whether the process still belongs to this run."""
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def cgroups(self) -> list[Path]:
        """Return the cgroup directories that the program has created for its workers."""
        return [each for each in _all_cgroups(f"lifecycle-{self.process.pid}-*") if each not in self._earlier_cgroups]

    async def check_nothing_left(self) -> None:
        """Wait until no process and no cgroup from the run is left."""
        left: Any = None
        for pause in (0.0, *([0.05] * 20), *([0.5] * int(LIMIT * 2))):
            await asyncio.sleep(pause)
            left = {**self.relatives(), **{str(each): "a cgroup" for each in self.cgroups()}}
            if not left:
                return
        raise Broken(f"the program exited, but left {left}")

    async def end_by_force(self) -> None:
        """Kill the program, whatever its state."""
        if self._process is not None and self.alive:
            await self.kill()


def _hear_hangups() -> None:
    """Restore the default action for signals that nohup ignores, because child processes inherit ignored signals."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _all_cgroups(pattern: str) -> list[Path]:
    return [each for root in _cgroup_roots() for each in root.glob(pattern)]


def _cgroup_roots() -> list[Path]:
    """Return the directories, on all mounts, in which a program started here creates its cgroups."""
    own = next(
        (line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None
    )
    if own is None:
        return []
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line)
    return [Path(mount[4], own.lstrip("/")) for mount in mounts]
