"""One run of the command after the other, never two at once, and the last change always leads to one.

One task owns the child (`Generations.run`); everything else only asks. Who starts children and how is `children`'s
matter, what leads to a restart is `session`'s.
"""

from __future__ import annotations

import asyncio
import time
from signal import Signals
from typing import TYPE_CHECKING, Protocol

from lifecycle.cli.failures import CliError
from lifecycle.control import FileBatch, merge_files
from lifecycle.errors import WorkerFailed
from lifecycle.workers.status import Status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lifecycle.cli.messages import Voice
    from lifecycle.cli.settings import Busy
    from lifecycle.events import Change
    from lifecycle.workers.records import Exit, WorkerState

__all__ = ["Child", "Generations", "Launcher"]

_ALIVE = (Status.STARTING, Status.RUNNING, Status.SUSPENDED)


class Child(Protocol):
    """What is needed of a `ProcessWorker`."""

    @property
    def status(self) -> Status:
        """Where it is in its life."""
        ...

    async def start(self) -> None:
        """Start it."""
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """End it and return when it has ended."""
        ...

    async def wait(self) -> Exit:
        """Wait for its end."""
        ...

    async def suspend(self) -> None:
        """Freeze it."""
        ...

    async def resume(self) -> None:
        """Let it go on."""
        ...

    def send_signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to it, or to all of its group."""
        ...

    def state(self) -> WorkerState:
        """Its record."""
        ...


class Launcher(Protocol):
    """Starts children, and cleans up after each."""

    async def start(self, changes: Mapping[Path, Change]) -> Child:
        """A child that runs; ``changes`` are those since the one before. Raises WorkerFailed or CliError."""
        ...

    def signal(self, child: Child, signum: Signals) -> None:
        """Send ``signum`` to a child that runs."""
        ...

    def ended(self, outcome: Exit) -> bool:
        """The child has ended; whether that was the user's wish to end everything (Ctrl+C in its terminal)."""
        ...


class Generations:
    """Keeps one child at a time; requests come in at any time and never wait."""

    def __init__(self, launcher: Launcher, voice: Voice, *, busy: Busy = "restart", postpone: bool = False) -> None:
        self._launcher = launcher
        self._voice = voice
        self._busy = busy
        self._postpone = postpone
        self._child: Child | None = None
        # What changed since the last start.
        self._changes = FileBatch({})
        # Whether another run is wanted once this one has ended; whether this one shall end for it.
        self._wanted = asyncio.Event()
        self._interrupt = asyncio.Event()
        # Set by `begin`; set unless suspended.
        self._begun = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        #: How many children there were.
        self.starts = 0

    def begin(self) -> None:
        """Let `run` start the first one."""
        self._begun.set()

    # -- asking ------------------------------------------------------------------------------------------------

    def note(self, changes: Mapping[Path, Change]) -> None:
        """Remember changes for the next start, whenever that is."""
        if changes:
            self._changes = merge_files(self._changes, FileBatch(changes))

    def change(self, why: str) -> None:
        """Something changed: what follows while the command runs is the policy's matter."""
        if self._held and self._busy != "drop":
            self._voice.say(f"{why}; waits for resume")
            self._want(now=False)
        elif not self.alive or self._busy == "restart":
            self._voice.say(f"{why}; restarting" if self.alive else why)
            self._want(now=True)
        elif self._busy == "queue":
            self._voice.say(f"{why}; the command still runs, its next run is queued")
            self._want(now=False)
        else:
            self._voice.say(f"{why}; dropped, the command still runs")

    def restart(self, why: str) -> None:
        """Start anew, whatever the policy; what is suspended starts once it is resumed."""
        self._voice.say(f"{why}; restarting" if self.alive else why)
        self._want(now=True)

    def signal(self, signum: Signals, why: str) -> None:
        """Send ``signum`` to the child; where none runs, start one."""
        if self._child is None or self._child.status not in (Status.RUNNING, Status.SUSPENDED):
            self.change(why)
            return
        self._voice.say(f"{why}; sent {signum.name}")
        self._launcher.signal(self._child, signum)

    async def suspend(self) -> None:
        """Freeze the child, wherever it is, and start none until resumed."""
        self._free.clear()
        if self._child is not None and self._child.status is Status.RUNNING:
            await self._child.suspend()

    async def resume(self) -> None:
        """Let the child go on, or start anew for what changed meanwhile."""
        self._free.set()
        if self._wanted.is_set() and self._busy == "restart":
            self._interrupt.set()
        elif self._child is not None and self._child.status is Status.SUSPENDED:
            await self._child.resume()

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def child(self) -> Child | None:
        """The present one."""
        return self._child

    @property
    def alive(self) -> bool:
        """Whether there is a child that was not told to stop."""
        return self._child is not None and self._child.status in _ALIVE and not self._interrupt.is_set()

    def describe(self) -> str:
        """How the command does, for people."""
        if not self._begun.is_set():
            return "about to start"
        if self._child is None:
            return "suspended; nothing runs" if self._held else "waiting for a change"
        state = self._child.state()
        since = f" for {time.time() - state.started_at:.0f} s" if state.started_at else ""
        times = "once" if self.starts == 1 else f"{self.starts} times"
        return f"{state.status}{since}, pid {state.pid}, started {times}"

    @property
    def _held(self) -> bool:
        """Whether all waits for `resume`."""
        return not self._free.is_set()

    # -- the life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Once begun, run the command, again for every request, until cancelled or the user ends it in its terminal."""
        await self._begun.wait()
        if self._postpone:
            self._voice.say("waiting for the first change")
            await self._wanted.wait()
        await self._free.wait()
        while not await self._generation():
            await self._wanted.wait()
            await self._free.wait()

    async def _generation(self) -> bool:
        """One run of the command; whether it was the last."""
        self._wanted.clear()
        self._interrupt.clear()
        changes, self._changes = self._changes.changes, FileBatch({})
        try:
            self._child = await self._launcher.start(changes)
        except (WorkerFailed, CliError) as error:
            self._voice.bad(f"{error}; waiting for a change")
            self._changes = merge_files(FileBatch(changes), self._changes)
            return False
        self.starts += 1
        try:
            if self._held:
                await self._child.suspend()
            await self._until_ended_or_interrupted(self._child)
            interrupted = self._child.status in _ALIVE
        finally:
            await self._child.stop()
            ended, self._child = await self._child.wait(), None
            last = self._launcher.ended(ended)
        self._tell(ended, interrupted=interrupted, last=last)
        return last

    async def _until_ended_or_interrupted(self, child: Child) -> None:
        waits = [asyncio.ensure_future(child.wait()), asyncio.ensure_future(self._interrupt.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    def _want(self, *, now: bool) -> None:
        self._wanted.set()
        if now:
            self._interrupt.set()

    def _tell(self, ended: Exit, *, interrupted: bool, last: bool) -> None:
        """How the run ended, where that is news."""
        after = f"after {ended.duration:.1f} s"
        then = "" if self._wanted.is_set() or last else "; waiting for a change"
        if ended.status is Status.KILLED:
            self._voice.warn("it did not stop in time and was killed")
        elif interrupted or last:
            return
        elif ended.signal:
            self._voice.bad(f"killed by {_name(ended.signal)} {after}{then}")
        elif ended.exit_code:
            self._voice.bad(f"exited with status {ended.exit_code} {after}{then}")
        else:
            self._voice.good(f"exited with status 0 {after}{then}")


def _name(signum: int) -> str:
    try:
        return Signals(signum).name
    except ValueError:
        return f"signal {signum}"
