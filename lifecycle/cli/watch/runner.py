"""The successive runs of the command. The latest change always leads to a new run.

A `Supervisor` stops the old run before it starts a new run. Its restart policy applies when a run exits on its own.
With ``--keep-old``, a successor starts alongside the current run and replaces it once the successor is ready.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from lifecycle.backoff import Backoff
from lifecycle.cli.output import DONE, FAILED, alert, shell_status, signal_name, without_output
from lifecycle.control import FileBatch, merge_files
from lifecycle.errors import InvalidTransition, StopTree, WorkerFailed
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.specs import Spec
from lifecycle.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
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
#: The delays grow from 0.1 to 13 seconds, for a total of half a minute. After that, only a change starts the command.
_BACKOFF: Final = Backoff(max_restarts=8, within=60.0)
_IDLE: Final = {Status.CREATED: "waiting for the first change", Status.PENDING: "waiting to restart"}


class Runner:
    """Keeps the command running. Requests can be made at any time. Only `suspend` and `resume` wait.

    ``on_ready`` is called when a run is ready and has replaced any earlier run.
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
        #: Set when the first run has started or failed, or earlier if the start may take a while.
        self.spawned: asyncio.Event = asyncio.Event()
        self._run_number = 0
        self._current = self._new_spec()
        # The successor starting alongside the current run, and the name of the last successor, which remains set until
        # the old run has stopped.
        self._successor: Spec | None = None
        self._successor_name: str | None = None
        # The changes since the last start, and the changes passed to starts that have not succeeded yet.
        self._changes = FileBatch({})
        self._passed = FileBatch({})
        # Whether a run has been requested but has no worker yet, and the task that waits for it.
        self._requested = False
        self._request: asyncio.Task[None] | None = None
        # True if another run follows once this run exits or is resumed.
        self._queued = False
        self._suspended = False
        # The timer that stops a run after ``--timeout``.
        self._timer: asyncio.TimerHandle | None = None
        #: The exit status of `lifecycle watch`, which exits when ``--exit-on-error`` sets this to a value other than 0.
        self.exit_status: int = DONE

    # -- requests ----------------------------------------------------------------------------------------------

    def add_changes(self, changes: Mapping[Path, Change]) -> None:
        """Add changes to the environment of the next run."""
        if changes:
            self._changes = merge_files(self._changes, FileBatch(changes))

    def change(self, why: str) -> None:
        """React to a change. If the command is running, ``--busy`` determines the reaction."""
        busy = self._settings.busy
        if self._suspended and (busy != "drop" or not self.alive):
            self._console.info(f"{why}; restarting on resume")
            self._queued = True
        elif not self.alive or busy == "restart":
            self.restart(why)
        elif busy == "queue":
            self._console.info(f"{why}; queued until the command exits")
            self._queued = True
        else:
            self._console.info(f"{why}; ignored because the command is running")

    def restart(self, why: str) -> None:
        """Restart the command, regardless of ``--busy``.

        If the command is suspended, the new run starts when `resume` is called.
        """
        self._console.info(f"{why}; {'restarting' if self.alive else 'starting'}")
        self._request_run()

    def signal(self, signum: Signals, why: str) -> None:
        """Send ``signum`` to the command. If it is not running, handle this like a change."""
        if self._requested or self._status not in (Status.RUNNING, Status.SUSPENDED):
            self.change(why)
            return
        self._console.info(f"{why}; sent {signum.name}")
        self.forward(signum)

    def forward(self, signum: Signals | None) -> None:
        """Send ``signum``, unless it is None, to the command if it is running."""
        if signum is not None and self._status in (Status.RUNNING, Status.SUSPENDED):
            worker = cast("ProcessWorker", self._supervisor[self._current.name])
            # With a shell, the command runs in the shell's process group.
            worker.send_signal(signum, group=self._settings.shell)

    async def suspend(self) -> None:
        """Suspend the command. No new run starts until `resume` is called."""
        self._suspended = True
        await self._begun.wait()
        if self._successor is not None:
            self._queued = True
            await self._drop_successor()
        with suppress(InvalidTransition):  # the run is stopping
            await self._supervisor.suspend()

    async def resume(self) -> None:
        """Resume the command, or restart it if something has changed since it was suspended."""
        replaces = self._queued and self._keeps_old
        if self._queued and not replaces and (self._settings.busy == "restart" or not self.alive):
            # The old run remains suspended during the restart, so that it does not run again before it stops.
            self._requested = True
            await self._restart_current()
        self._suspended = False
        with suppress(InvalidTransition):
            await self._supervisor.resume()
        if replaces:
            self._request_run()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """True if no run starts or continues until `resume` is called."""
        return self._suspended

    @property
    def alive(self) -> bool:
        """True if the current run exists and is not stopping."""
        return self._status in _ALIVE and not self._requested

    def describe(self) -> str:
        """Return a description of the command's state."""
        state = self._state_of(self._current)
        status = Status.CREATED if state is None else state.status
        if state is None or status in (*FINAL, Status.PENDING):
            return (
                "suspended; the command is not running"
                if self._suspended
                else _IDLE.get(status, "waiting for a change")
            )
        since = f" for {time.time() - state.started_at:.0f} s" if state.started_at else ""
        times = f"{state.restarts + 1} times" if state.restarts else "once"
        return f"{status}{since}, pid {state.pid}, started {times}"

    @property
    def _status(self) -> Status:
        state = self._state_of(self._current)
        return Status.CREATED if state is None else state.status

    @property
    def _keeps_old(self) -> bool:
        """True if the next run starts alongside the current run."""
        return self._settings.keep_old and self._status in (Status.RUNNING, Status.SUSPENDED)

    def _state_of(self, spec: Spec) -> WorkerState | None:
        return next((each for each in self._supervisor.workers() if each.name == spec.name), None)

    # -- runs --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the command, and rerun it after each request, until cancelled or until the user presses Ctrl+C."""
        events = self._supervisor.watch()
        # Ctrl+C in the command's terminal is not a failure.
        with suppress(StopTree):
            async with self._supervisor, self._tasks:
                self._begun.set()
                if self._settings.postpone or self._settings.delay_run or self._settings.ready:
                    self.spawned.set()
                if self._settings.postpone and not self._queued:
                    self._console.info("waiting for the first change")
                else:
                    self._request_run()
                async for event in events:
                    if event.component != self._supervisor.name:
                        self._report(event)
                    if self.exit_status:
                        break
                self._cancel_pending()

    def _cancel_pending(self) -> None:
        """Cancel any delayed start and the run's timer."""
        for pending in (self._request, self._timer):
            if pending is not None:
                pending.cancel()

    def _request_run(self) -> None:
        """Request another run as soon as possible. Requests made before it starts are combined."""
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
        """Stop the old run and start a new run. If suspended, the new run starts on `resume`."""
        await self._delay()
        # Failures are reported as events of the child. InvalidTransition means that everything is stopping.
        with suppress(WorkerFailed, InvalidTransition):
            if self._current.name in self._supervisor:
                await self._supervisor.restart(self._current.name)
            else:
                await self._supervisor.add(self._current)

    async def _delay(self) -> None:
        """Wait for ``--delay-run``. Requests made in the meantime do not lead to additional starts."""
        if self._settings.delay_run:
            await asyncio.sleep(self._settings.delay_run)

    async def _replace(self) -> None:
        """Start a successor to replace the current run once it is ready. If it fails, the current run continues."""
        await self._delay()
        await self._drop_successor()
        if self._suspended:
            self._requested, self._queued = False, True
            return
        try:
            await self._start_successor()
        except InvalidTransition:
            pass  # everything is stopping
        except WorkerFailed as error:
            then = "the old process keeps running" if self.alive else "waiting for a change"
            self._console.error(f"{without_output(str(error))}; {then}")

    async def _start_successor(self) -> None:
        """Start a run alongside the current run, and switch to it when it is ready.

        Raises:
            WorkerFailed: if the new run does not become ready. The current run continues.
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
            return  # a newer successor has replaced it
        self._successor = None
        state = self._state_of(spec)
        if state is not None and state.status in FINAL:
            await self._supervisor.remove(spec.name)
            raise WorkerFailed(_format_end("the new run", state))
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

    def _make_worker(self) -> ProcessWorker | Awaitable[ProcessWorker]:
        """Return the worker for a run that is about to start. A request has already waited for ``--delay-run``."""
        return self._new_worker() if self._requested else self._new_worker_after_delay()

    async def _new_worker_after_delay(self) -> ProcessWorker:
        await self._delay()
        return self._new_worker()

    def _new_worker(self) -> ProcessWorker:
        """Return the worker for a run. Later changes lead to another run."""
        self._requested = self._queued = False
        if self._request is not None:
            # The request is now complete. If the run does not become ready, the restart policy applies.
            self._request.cancel()
        self._passed, self._changes = merge_files(self._passed, self._changes), FileBatch({})
        return self._launcher.make(self._passed.changes)

    def _limit_run(self) -> None:
        """Start the timer for a run that has just started."""
        if self._timer is not None:
            self._timer.cancel()
        if self._settings.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self._settings.timeout, self._time_out)

    def _time_out(self) -> None:
        if self._status is Status.RUNNING and not self._requested:
            self._tasks.create_task(self._stop_run(), name=f"time limit of {self._launcher.name}")

    async def _stop_run(self) -> None:
        """Stop a run that has reached its time limit. Another run follows if one is queued or ``--restart`` is set."""
        self._queued = self._queued or self._settings.restart != "never"
        text = f"stopping the command after {self._settings.timeout:g} s (--timeout)"
        self._alert(text, failed=True)
        self._report_end(text, FAILED)
        with suppress(InvalidTransition):
            await self._supervisor.stop_child(self._current.name)
        if self._queued:
            self._request_run()

    # -- messages ----------------------------------------------------------------------------------------------

    def _report(self, event: StatusEvent) -> None:
        if Status(event.new) not in (Status.CREATED, Status.STARTING):
            self.spawned.set()
        match Status(event.old), Status(event.new):
            case Status.STARTING, Status.RUNNING:
                self._limit_run()
                self._passed = FileBatch({})
                done = "ready:" if self._settings.ready else "started"
                self._console.success(f"{done} {self._launcher.name} (pid {event.state.pid})")
                if event.component != self._successor_name:
                    self._on_ready()
            case _, Status.KILLED:
                self._console.warning(
                    f"the command did not stop within {self._settings.stop_timeout:g} s and was killed"
                )
            case _ if event.component != self._current.name:
                pass  # `_replace` reports successors
            case ((Status.STARTING | Status.RUNNING | Status.SUSPENDED), (Status.FINISHED | Status.FAILED)):
                self._handle_end(event.state)
            case _ if event.state.circuit == "open" and event.old == event.new:
                self._console.info("waiting for a change")
            case _:
                pass

    def _handle_end(self, state: WorkerState) -> None:
        """Handle a run that exits on its own: start any queued run, and report the exit unless the supervisor does."""
        if self._launcher.ends_all(state.exit_code):
            return
        if self._queued and not self._suspended:
            self._request_run()
        failed = state.status is Status.FAILED
        status = (shell_status(state.exit_code or 0) or FAILED) if failed else DONE
        text = _format_end("the command", state)
        self._alert(text, failed=failed)
        policy = self._settings.restart
        if policy == "never" or (policy == "on_failure" and not failed):
            self._report_end(text, status)

    def _alert(self, text: str, *, failed: bool) -> None:
        bell, notify = self._settings.bell and failed, self._settings.notify
        if bell or notify:
            alert(text, bell=bell, notify=notify)

    def _report_end(self, text: str, status: int) -> None:
        """Report an exit after which the supervisor does not restart the command.

        With ``--exit-on-error``, a failure sets the exit status of `lifecycle watch`.
        """
        failed = status != DONE
        if self._settings.exit_on_error:
            self.exit_status = status
        ends = self._queued or self._requested or self._successor is not None or self.exit_status
        (self._console.error if failed else self._console.success)(f"{text}{'' if ends else '; waiting for a change'}")


def _format_end(subject: str, state: WorkerState) -> str:
    """Describe how a run exited, beginning with ``subject``."""
    if state.started_at is None or state.exit_code is None:
        return without_output(str(state.error))
    after = f"after {state.updated_at - state.started_at:.1f} s"
    if state.exit_code < 0:
        return f"{subject} was killed by {signal_name(-state.exit_code)} {after}"
    return f"{subject} exited with status {state.exit_code} {after}"
