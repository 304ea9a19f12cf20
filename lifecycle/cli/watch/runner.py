"""The runs of the command: one after the other, and the last change always leads to one.

A `Supervisor` stops the old run before it starts the new one, and its policy decides what follows when a run ends by
itself. With ``--keep-old`` a successor starts next to the current run and takes its place when it is ready.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from lifecycle.backoff import Backoff
from lifecycle.cli.output import signal_name, without_output
from lifecycle.control import FileBatch, merge_files
from lifecycle.errors import InvalidTransition, StopTree, WorkerFailed
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.specs import Spec
from lifecycle.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from signal import Signals

    from lifecycle.cli.output import Console
    from lifecycle.cli.watch.launcher import Launcher
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.events import Change, StatusEvent
    from lifecycle.workers import ProcessWorker
    from lifecycle.workers.model import WorkerState

__all__ = ["Runner"]

_ALIVE: Final = (Status.STARTING, Status.RUNNING, Status.SUSPENDED)
#: It waits from 0.1 to 13 seconds, half a minute in all. After that only a change starts the command.
_BACKOFF: Final = Backoff(max_restarts=8, within=60.0)
_IDLE: Final = {Status.CREATED: "waiting for the first change", Status.PENDING: "waiting to be started again"}


class Runner:
    """Keeps one run of the command at a time. Requests may come at any time and never wait.

    ``on_ready`` is called when a run is ready and no older one is there.
    """

    def __init__(
        self, launcher: Launcher, settings: Settings, console: Console, *, on_ready: Callable[[], object] = lambda: None
    ) -> None:
        self._launcher = launcher
        self._settings = settings
        self._console = console
        self._on_ready = on_ready
        self._supervisor = Supervisor("lifecycle watch")
        self._tasks = asyncio.TaskGroup()
        self._begun = asyncio.Event()
        self._run_number = 0
        self._current = self._new_spec()
        # The run that starts next to the current one, and the name of the last such run until the old one has ended.
        self._successor: Spec | None = None
        self._successor_name: str | None = None
        # The changes since the last start, and those of starts that are not up yet.
        self._changes = FileBatch({})
        self._passed = FileBatch({})
        # Whether a run is requested but not made yet, and the task that waits for the supervisor to make it.
        self._requested = False
        self._request: asyncio.Task[None] | None = None
        # Whether another run follows when this one ends or is resumed.
        self._queued = False
        self._suspended = False

    # -- requests ----------------------------------------------------------------------------------------------

    def add_changes(self, changes: Mapping[Path, Change]) -> None:
        """Remember changes for the next start."""
        if changes:
            self._changes = merge_files(self._changes, FileBatch(changes))

    def change(self, why: str) -> None:
        """React to a change; while the command runs, by the policy of ``--busy``."""
        busy = self._settings.busy
        if self._suspended and (busy != "drop" or not self.alive):
            self._console.info(f"{why}; waits for resume")
            self._queued = True
        elif not self.alive or busy == "restart":
            self.restart(why)
        elif busy == "queue":
            self._console.info(f"{why}; the command still runs, its next run is queued")
            self._queued = True
        else:
            self._console.info(f"{why}; dropped, the command still runs")

    def restart(self, why: str) -> None:
        """Restart whatever the policy; while suspended the old run ends, and the new one begins with the resume."""
        self._console.info(f"{why}; restarting" if self.alive else why)
        self._request_run()

    def signal(self, signum: Signals, why: str) -> None:
        """Send ``signum`` to the command, or start it if it does not run."""
        if self._requested or self._status not in (Status.RUNNING, Status.SUSPENDED):
            self.change(why)
            return
        self._console.info(f"{why}; sent {signum.name}")
        worker = cast("ProcessWorker", self._supervisor[self._current.name])
        # With a shell in front, the command is in its group.
        worker.send_signal(signum, group=self._settings.shell)

    async def suspend(self) -> None:
        """Freeze the command, and start none until resumed."""
        self._suspended = True
        await self._begun.wait()
        if self._successor is not None:
            self._queued = True
            await self._drop_successor()
        with suppress(InvalidTransition):  # it is about to end
            await self._supervisor.suspend()

    async def resume(self) -> None:
        """Let the command continue, or restart it if something has changed meanwhile."""
        replaces = self._queued and self._keeps_old
        if self._queued and not replaces and (self._settings.busy == "restart" or not self.alive):
            # Still suspended, so that the old run does not continue before it ends.
            self._requested = True
            await self._restart_current()
        self._suspended = False
        with suppress(InvalidTransition):
            await self._supervisor.resume()
        if replaces:
            self._request_run()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether there is a run that is not stopping."""
        return self._status in _ALIVE and not self._requested

    def describe(self) -> str:
        """Return the state of the command as text."""
        state = self._state_of(self._current)
        status = Status.CREATED if state is None else state.status
        if state is None or status in (*FINAL, Status.PENDING):
            return "suspended; nothing runs" if self._suspended else _IDLE.get(status, "waiting for a change")
        since = f" for {time.time() - state.started_at:.0f} s" if state.started_at else ""
        times = f"{state.restarts + 1} times" if state.restarts else "once"
        return f"{status}{since}, pid {state.pid}, started {times}"

    @property
    def _status(self) -> Status:
        state = self._state_of(self._current)
        return Status.CREATED if state is None else state.status

    @property
    def _keeps_old(self) -> bool:
        """Whether the next run begins next to the current one."""
        return self._settings.keep_old and self._status in (Status.RUNNING, Status.SUSPENDED)

    def _state_of(self, spec: Spec) -> WorkerState | None:
        return next((each for each in self._supervisor.workers() if each.name == spec.name), None)

    # -- runs --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the command, again for every request, until cancelled or the user ends it in its terminal."""
        events = self._supervisor.watch()
        # Ctrl+C is not a failure.
        with suppress(StopTree):
            async with self._supervisor, self._tasks:
                self._begun.set()
                if self._settings.postpone and not self._queued:
                    self._console.info("waiting for the first change")
                else:
                    self._request_run()
                async for event in events:
                    if event.component != self._supervisor.name:
                        self._report(event)

    def _request_run(self) -> None:
        """Have another run as soon as possible; one that is not made yet is enough."""
        if not self._begun.is_set():
            self._queued = True
        elif not self._requested:
            self._requested = True
            if self._keeps_old:
                self._tasks.create_task(self._replace(), name=f"successor of {self._launcher.name}")
            else:
                self._request = self._tasks.create_task(
                    self._restart_current(), name=f"restart of {self._launcher.name}"
                )

    async def _restart_current(self) -> None:
        """Return when the old run has ended, and the new one has begun or has to wait for the resume."""
        # Failures are reported as events of the child. InvalidTransition: everything is being stopped.
        with suppress(WorkerFailed, InvalidTransition):
            if self._current.name in self._supervisor:
                await self._supervisor.restart(self._current.name)
            else:
                await self._supervisor.add(self._current)

    async def _replace(self) -> None:
        """Start a successor, which takes the place of the current run when it is ready; else the current run stays."""
        await self._drop_successor()
        if self._suspended:
            self._requested, self._queued = False, True
            return
        try:
            await self._start_successor()
        except InvalidTransition:
            pass  # everything is being stopped
        except WorkerFailed as error:
            then = "the old process keeps running" if self.alive else "waiting for a change"
            self._console.error(f"{without_output(str(error))}; {then}")

    async def _start_successor(self) -> None:
        """Start a run next to the current one, and switch to it when it is ready.

        Raises:
            WorkerFailed: if it does not become ready; the current run stays.
        """
        spec = self._successor = self._new_spec()
        self._successor_name = spec.name
        try:
            await self._supervisor.add(spec)
        except WorkerFailed:
            if self._successor is spec:
                self._successor = None
                raise
        if self._successor is not spec:
            return  # a newer one has taken its place
        self._successor = None
        state = self._state_of(spec)
        if state is not None and state.status in FINAL:
            await self._supervisor.remove(spec.name)
            raise WorkerFailed(_format_end(state))
        old, self._current = self._current, spec
        await self._supervisor.remove(old.name)
        if self._successor_name == spec.name:
            self._successor_name = None
        self._on_ready()

    async def _drop_successor(self) -> None:
        dropped, self._successor = self._successor, None
        if dropped is not None:
            with suppress(KeyError, InvalidTransition):
                await self._supervisor.remove(dropped.name)

    def _new_spec(self) -> Spec:
        self._run_number += 1
        name = self._settings.command[0] + (f" #{self._run_number}" if self._run_number > 1 else "")
        return Spec(name, self._make_worker, restart=self._settings.restart, backoff=_BACKOFF)

    def _make_worker(self) -> ProcessWorker:
        """Make the worker of a start that begins now: later changes lead to another start."""
        self._requested = self._queued = False
        if self._request is not None:
            # Nothing waits for the run to come up: if it does not, the restart policy applies.
            self._request.cancel()
        self._passed, self._changes = merge_files(self._passed, self._changes), FileBatch({})
        return self._launcher.make(self._passed.changes)

    # -- messages ----------------------------------------------------------------------------------------------

    def _report(self, event: StatusEvent) -> None:
        match Status(event.old), Status(event.new):
            case Status.STARTING, Status.RUNNING:
                self._passed = FileBatch({})
                done = "ready:" if self._settings.ready else "started"
                self._console.success(f"{done} {self._launcher.name} (pid {event.state.pid})")
                if event.component != self._successor_name:
                    self._on_ready()
            case _, Status.KILLED:
                self._console.warning("it did not stop in time and was killed")
            case _ if event.component != self._current.name:
                pass  # `_replace` reports its start
            case ((Status.STARTING | Status.RUNNING | Status.SUSPENDED), (Status.FINISHED | Status.FAILED)):
                self._handle_end(event.state)
            case _ if event.state.circuit == "open" and event.old == event.new:
                self._console.info("waiting for a change")
            case _:
                pass

    def _handle_end(self, state: WorkerState) -> None:
        """Start the queued run after an end by itself, and report the end unless the supervisor does so."""
        if self._launcher.ends_all(state.exit_code):
            return
        if self._queued and not self._suspended:
            self._request_run()
        failed = state.status is Status.FAILED
        policy = self._settings.restart
        if policy == "always" or (policy == "on_failure" and failed):
            return
        then = "" if self._queued or self._requested or self._successor is not None else "; waiting for a change"
        (self._console.error if failed else self._console.success)(f"{_format_end(state)}{then}")


def _format_end(state: WorkerState) -> str:
    """Return how a run ended."""
    if state.started_at is None or state.exit_code is None:
        return without_output(str(state.error))
    after = f"after {state.updated_at - state.started_at:.1f} s"
    if state.exit_code < 0:
        return f"killed by {signal_name(-state.exit_code)} {after}"
    return f"exited with status {state.exit_code} {after}"
