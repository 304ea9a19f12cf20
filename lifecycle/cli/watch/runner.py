"""Runs of the command: one after the other, never two at once, and the last change always leads to one."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from lifecycle.backoff import Backoff
from lifecycle.cli.output import brief, signal_name
from lifecycle.control import FileBatch, merge_files
from lifecycle.errors import InvalidTransition, StopTree, WorkerFailed
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.specs import Spec
from lifecycle.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from signal import Signals

    from lifecycle.cli.output import Voice
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change, StatusEvent
    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import WorkerState

__all__ = ["Generations", "changed"]

_ALIVE: Final = (Status.STARTING, Status.RUNNING, Status.SUSPENDED)

#: It waits from 0.1 to 13 seconds, half a minute in all; then it is a matter of the next change.
_BACKOFF: Final = Backoff(max_restarts=8, within=60.0)

#: Names that a message shows; the others are counted.
_SHOWN: Final = 3

_AT_REST: Final = {Status.CREATED: "waiting for the first change", Status.PENDING: "waiting to be started again"}


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


class Runs:
    """Starts and ends runs, whose workers ``make`` makes."""

    def __init__(self, settings: Settings, make: Callable[[], Worker]) -> None:
        self._settings = settings
        self._make = make
        self._number = 0
        self._current = self._new_spec()
        # One that starts beside it and shall take its place.
        self._beside: Spec | None = None
        # The name of the one that did so last, until the old has ended.
        self._successor: str | None = None
        self.supervisor: Final = Supervisor("lifecycle watch")

    @property
    def state(self) -> WorkerState | None:
        """Of the one that counts; None before the first."""
        return self._state_of(self._current)

    @property
    def status(self) -> Status:
        """Of the one that counts."""
        state = self.state
        return Status.CREATED if state is None else state.status

    @property
    def has_beside(self) -> bool:
        """Whether one starts beside it."""
        return self._beside is not None

    def is_current(self, name: str) -> bool:
        """Whether that is the one that counts."""
        return name == self._current.name

    def is_successor(self, name: str) -> bool:
        """Whether it takes, or has taken, the place of one that has not ended."""
        return name == self._successor

    async def renew(self) -> None:
        """Return when the old run has ended, and the new one has begun or has to wait for the resume."""
        # What becomes of it is told of the child; and where all ends, so does this.
        with suppress(WorkerFailed, InvalidTransition):
            if self._current.name in self.supervisor:
                await self.supervisor.restart(self._current.name)
            else:
                await self.supervisor.add(self._current)

    async def replace(self) -> bool:
        """Start one beside the old, which is asked to end when it is ready; False if another has overtaken it.

        Raises:
            WorkerFailed: when it will not be; the old goes on.
        """
        spec = self._beside = self._new_spec()
        self._successor = spec.name
        try:
            await self.supervisor.add(spec)
        except WorkerFailed:
            if self._beside is not spec:
                return False
            self._beside = None
            raise
        if self._beside is spec:
            await self._switch(spec)
            return True
        return False

    async def give_up_beside(self) -> None:
        """One that is about to take the place of the old is overtaken."""
        overtaken, self._beside = self._beside, None
        if overtaken is not None:
            with suppress(KeyError, InvalidTransition):
                await self.supervisor.remove(overtaken.name)

    async def _switch(self, spec: Spec) -> None:
        """Now it is ``spec`` that counts, if it has not ended as soon as it had begun."""
        self._beside = None
        state = self._state_of(spec)
        if state is not None and state.status in FINAL:
            await self.supervisor.remove(spec.name)
            raise WorkerFailed(how(state))
        old, self._current = self._current, spec
        await self.supervisor.remove(old.name)
        if self._successor == spec.name:
            self._successor = None

    def _state_of(self, spec: Spec) -> WorkerState | None:
        return next((each for each in self.supervisor.workers() if each.name == spec.name), None)

    def _new_spec(self) -> Spec:
        self._number += 1
        name = self._settings.command[0] + (f" #{self._number}" if self._number > 1 else "")
        return Spec(name, self._make, restart=self._settings.restart, backoff=_BACKOFF)


def changed(changes: Mapping[Path, Change], name: Callable[[Path], str]) -> str:
    """``changed: app.py, new.py (added) (+3)``."""
    shown = [
        name(path) + ("" if change == "modified" else f" ({change})") for path, change in list(changes.items())[:_SHOWN]
    ]
    more = len(changes) - len(shown)
    return f"changed: {', '.join(shown)}" + (f" (+{more})" if more else "")


def described(state: WorkerState | None, *, held: bool) -> str:
    """How the command does; ``held``: it is not to be started before it is resumed."""
    status = Status.CREATED if state is None else state.status
    if state is None or status in (*FINAL, Status.PENDING):
        return "suspended; nothing runs" if held else _AT_REST.get(status, "waiting for a change")
    since = f" for {time.time() - state.started_at:.0f} s" if state.started_at else ""
    times = f"{state.restarts + 1} times" if state.restarts else "once"
    return f"{status}{since}, pid {state.pid}, started {times}"


def how(state: WorkerState) -> str:
    """How a run ended."""
    if state.started_at is None or state.exit_code is None:
        return brief(str(state.error))
    after = f"after {state.updated_at - state.started_at:.1f} s"
    if state.exit_code < 0:
        return f"killed by {signal_name(-state.exit_code)} {after}"
    return f"exited with status {state.exit_code} {after}"
