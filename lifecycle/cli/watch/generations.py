"""One run of the command after the other, never two at once, and the last change always leads to one.

Here is decided when another run begins, and said what becomes of it. `runs` has them, with ``--keep-old`` two for a
moment; who makes their workers is `children`'s matter, what leads to a restart is `session`'s.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from lifecycle.cli.messages import brief
from lifecycle.cli.watch.runs import Runs
from lifecycle.cli.watch.words import described, how
from lifecycle.control import FileBatch, merge_files
from lifecycle.errors import InvalidTransition, StopTree, WorkerFailed
from lifecycle.workers.model import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from signal import Signals

    from lifecycle.cli.messages import Voice
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change, StatusEvent
    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.protocols import Worker

__all__ = ["Generations", "Launcher"]

_ALIVE: Final = (Status.STARTING, Status.RUNNING, Status.SUSPENDED)


class Launcher(Protocol):
    """Makes workers for the command."""

    @property
    def name(self) -> str:
        """What people call the command."""
        ...

    def make(self, changes: Mapping[Path, Change]) -> Worker:
        """A new worker; ``changes`` are those since the last that came up. Raises CliError."""
        ...

    def signal(self, signum: Signals) -> None:
        """Send ``signum`` to the worker that runs, of two to the older."""
        ...

    def is_last(self, exit_code: int | None) -> bool:
        """Whether who ended the command wanted to end everything: by Ctrl+C in its terminal."""
        ...


class Generations:
    """Keeps one run of the command at a time; requests come in at any time and never wait.

    ``ready`` is called when a run is ready and no older one is there.
    """

    def __init__(
        self, launcher: Launcher, settings: Settings, voice: Voice, *, ready: Callable[[], object] = lambda: None
    ) -> None:
        self._launcher = launcher
        self._settings = settings
        self._voice = voice
        self._ready = ready
        self._runs = Runs(settings, self._make)
        self._tasks = asyncio.TaskGroup()
        self._up = asyncio.Event()
        # What changed since the last start, and what a start has been told that has not come up yet.
        self._changes = FileBatch({})
        self._told = FileBatch({})
        # Who asks the supervisor for the next run; whether that one has still to be made.
        self._asking: asyncio.Task[None] | None = None
        self._coming = False
        # Whether another run is wanted once this one has ended, or is resumed; whether all waits for `resume`.
        self._queued = False
        self._held = False

    # -- asking ------------------------------------------------------------------------------------------------

    def note(self, changes: Mapping[Path, Change]) -> None:
        """Remember changes for the next start, whenever that is."""
        if changes:
            self._changes = merge_files(self._changes, FileBatch(changes))

    def change(self, why: str) -> None:
        """Something changed: what follows while the command runs is the policy's matter."""
        busy = self._settings.busy
        if self._held and (busy != "drop" or not self.alive):
            self._voice.say(f"{why}; waits for resume")
            self._queued = True
        elif not self.alive or busy == "restart":
            self.restart(why)
        elif busy == "queue":
            self._voice.say(f"{why}; the command still runs, its next run is queued")
            self._queued = True
        else:
            self._voice.say(f"{why}; dropped, the command still runs")

    def restart(self, why: str) -> None:
        """Start anew, whatever the policy; while suspended the old run ends, and the new one begins with the resume."""
        self._voice.say(f"{why}; restarting" if self.alive else why)
        self._ask()

    def signal(self, signum: Signals, why: str) -> None:
        """Send ``signum`` to the command; where none runs, start one."""
        if self._coming or self._runs.status not in (Status.RUNNING, Status.SUSPENDED):
            self.change(why)
            return
        self._voice.say(f"{why}; sent {signum.name}")
        self._launcher.signal(signum)

    async def suspend(self) -> None:
        """Freeze the command, wherever it is, and start none until resumed."""
        self._held = True
        await self._up.wait()
        if self._runs.has_beside:
            self._queued = True
            await self._runs.give_up_beside()
        with suppress(InvalidTransition):  # it is about to end
            await self._runs.supervisor.suspend()

    async def resume(self) -> None:
        """Let the command go on, or start anew for what changed meanwhile."""
        beside = self._queued and self._keeps_old
        if self._queued and not beside and (self._settings.busy == "restart" or not self.alive):
            # While it is suspended: the old run does not go on before it ends.
            self._coming = True
            await self._runs.renew()
        self._held = False
        with suppress(InvalidTransition):
            await self._runs.supervisor.resume()
        if beside:
            self._ask()

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether there is a run that was not told to stop."""
        return self._runs.status in _ALIVE and not self._coming

    def describe(self) -> str:
        """How the command does, for people."""
        return described(self._runs.state, held=self._held)

    # -- the life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the command, again for every request, until cancelled or the user ends it in its terminal."""
        supervisor = self._runs.supervisor
        moves = supervisor.watch()
        # A user who wants to end is no failure.
        with suppress(StopTree):
            async with supervisor, self._tasks:
                self._up.set()
                if self._settings.postpone and not self._queued:
                    self._voice.say("waiting for the first change")
                else:
                    self._ask()
                async for move in moves:
                    if move.component != supervisor.name:
                        self._tell(move)

    def _ask(self) -> None:
        """Have another run, as soon as that can be; one that is still to be made is enough."""
        if not self._up.is_set():
            self._queued = True
        elif not self._coming:
            self._coming = True
            if self._keeps_old:
                self._tasks.create_task(self._replace(), name=f"successor of {self._launcher.name}")
            else:
                self._asking = self._tasks.create_task(self._runs.renew(), name=f"restart of {self._launcher.name}")

    async def _replace(self) -> None:
        """Start one beside the old; it takes its place when it is ready, and if it will not be, the old stays."""
        await self._runs.give_up_beside()
        if self._held:
            self._coming, self._queued = False, True
            return
        with suppress(InvalidTransition):  # all ends, and so does this
            try:
                if await self._runs.replace():
                    self._ready()
            except WorkerFailed as error:
                then = "the old process goes on" if self.alive else "waiting for a change"
                self._voice.bad(f"{brief(str(error))}; {then}")

    @property
    def _keeps_old(self) -> bool:
        """Whether the next run begins beside this one."""
        return self._settings.keep_old and self._runs.status in (Status.RUNNING, Status.SUSPENDED)

    def _make(self) -> Worker:
        """A worker for a start that begins now: what changes from here on leads to another."""
        self._coming = self._queued = False
        if self._asking is not None:
            # Nobody waits for it to come up: if it does not, the policy decides what follows.
            self._asking.cancel()
        self._told, self._changes = merge_files(self._told, self._changes), FileBatch({})
        return self._launcher.make(self._told.changes)

    # -- telling -----------------------------------------------------------------------------------------------

    def _tell(self, move: StatusEvent) -> None:
        match Status(move.old), Status(move.new):
            case Status.STARTING, Status.RUNNING:
                self._told = FileBatch({})
                done = "ready:" if self._settings.ready else "started"
                self._voice.good(f"{done} {self._launcher.name} (pid {move.state.pid})")
                if not self._runs.is_successor(move.component):
                    self._ready()
            case _, Status.KILLED:
                self._voice.warn("it did not stop in time and was killed")
            case _ if not self._runs.is_current(move.component):
                pass  # the one beside it, of which its start is told
            case ((Status.STARTING | Status.RUNNING | Status.SUSPENDED), (Status.FINISHED | Status.FAILED)):
                self._ended(move.state)
            case _ if move.state.circuit == "open" and move.old == move.new:
                self._voice.say("waiting for a change")
            case _:
                pass

    def _ended(self, state: WorkerState) -> None:
        """It has ended by itself: say so, where the supervisor does not do it as it starts it again."""
        if self._launcher.is_last(state.exit_code):
            return
        if self._queued and not self._held:
            self._ask()
        policy = self._settings.restart
        if policy == "always" or (policy == "on_failure" and state.status is Status.FAILED):
            return
        then = "" if self._queued or self._coming or self._runs.has_beside else "; waiting for a change"
        (self._voice.bad if state.status is Status.FAILED else self._voice.good)(f"{how(state)}{then}")
