"""`lifecycle up`: from the command line to the exit status.

A `Supervisor` runs the processes. `_Starts` starts and restarts them in the order of their dependencies.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.cli.files import permissions_checked
from lifecycle.cli.logs import logging_to
from lifecycle.cli.output import FAILED
from lifecycle.cli.up.changes import Changes
from lifecycle.cli.up.processes import environment, find_file, read_file, selected
from lifecycle.cli.up.screen import Outcome, Screen, StatusPrinter, exit_status, summary
from lifecycle.cli.watch.session import learning
from lifecycle.control import Router
from lifecycle.errors import InvalidTransition, SourceFailed, WorkerFailed
from lifecycle.workers import ProcessWorker, Spec, Supervisor
from lifecycle.workers.model import AT_WORK, FINAL, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Process
    from lifecycle.events import StatusEvent
    from lifecycle.workers import WorkerState

__all__ = ["up"]

#: The name of the supervisor. It contains a space, so no process can have it.
_NAME: Final = "lifecycle up"
#: The number of seconds per process, in addition to its stop timeout, before the exit is forced.
_MARGIN: Final = 2.0


def up(
    file: Path | None, names: Sequence[str], log_dir: Path | None = None, *, log_format: LogFormat | None = None
) -> int:
    """Run the processes of ``file``, or only those called ``names``, until they end, and return the exit status.

    Raises:
        CliError: if an error is found before the start.
    """
    with permissions_checked():
        file = find_file(Path.cwd()) if file is None else Path.cwd() / file
        processes = selected(read_file(file), names, file)
    screen = Screen(
        [each.name for each in processes], log_dir=log_dir, on_reader_gone=_shut_down, log_format=log_format
    )
    with screen, logging_to(screen.console):
        with permissions_checked():
            program = _Program(processes, file.parent, screen)
        screen.console.info(f"{file.name}: {', '.join(each.name for each in processes)}")
        return program.run()


class _Starts:
    """Starts and restarts processes, each when its dependencies are up.

    A process is up when it is ready; a job is up when it has succeeded. Processes that do not depend on each other
    start at the same time. If the first start of a process fails, or a job on which others depend fails, everything is
    stopped. ``on_settled`` is called at the end of each start.
    """

    def __init__(
        self, processes: Sequence[Process], supervisor: Supervisor, console: Console, on_settled: Callable[[], None]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._supervisor = supervisor
        self._console = console
        self._on_settled = on_settled
        self._ancestors = {each.name: self._ancestors_of(each) for each in processes}
        # The names of processes that are due to start, that are starting, that have started at least once, and that are
        # up.
        self._due: set[str] = set(self._processes)
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._started: set[str] = set()
        self._up: set[str] = set()
        self._open = False

    @property
    def active(self) -> bool:
        """True if a process is being started, or will be."""
        return bool(self._due or self._starting)

    def begin(self) -> None:
        """Start all processes. The supervisor must be running."""
        self._open = True
        self._advance()

    def restart(self, names: Iterable[str]) -> None:
        """Restart these processes. A start in progress is cancelled."""
        for name in names:
            self._due.add(name)
            if (start := self._starting.pop(name, None)) is not None:
                start.cancel()
        self._advance()

    def is_alive(self, name: str) -> bool:
        """Return whether the process runs or is being started."""
        return self._state(name).status in (Status.STARTING, *AT_WORK)

    def stops_all(self, process: Process, state: WorkerState) -> bool:
        """Return whether everything stops because ``process`` has ended with ``state``."""
        if process.essential:
            return True
        failed_job = process.is_job and state.status is Status.FAILED and not process.watch
        return failed_job and any(process.name in self._ancestors[name] for name in self._due - self._started)

    async def close(self) -> None:
        """Cancel all starts."""
        self._open = False
        starts = [*self._starting.values()]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)

    def _advance(self) -> None:
        for name, process in self._processes.items():
            if self._open and name in self._due and self._may_start(process):
                self._due.discard(name)
                self._starting[name] = asyncio.create_task(self._start(process), name=f"start of {name}")

    def _may_start(self, process: Process) -> bool:
        if any(name in self._due or name in self._starting for name in self._ancestors[process.name]):
            return False
        return process.name in self._started or all(name in self._up for name in self._needs(process))

    async def _start(self, process: Process) -> None:
        name = process.name
        self._up.discard(name)
        try:
            await self._restart_or_retry(process)
            if not process.is_job or await self._reaches(name, Status.FINISHED):
                self._up.add(name)
            elif self.stops_all(process, self._state(name)):
                self._supervisor.ask_to_stop()
        except WorkerFailed:
            if name not in self._started:
                self._supervisor.ask_to_stop()
            elif self._supervisor.status in AT_WORK:
                self._console.info(f"{name}: waiting for the next change")
        except InvalidTransition:
            if name in self._started:
                self._console.info(f"{name} is not restarted because all processes are being stopped")
        self._started.add(name)
        del self._starting[name]
        if name not in self._up:
            self._drop_restarts(name)
        self._advance()
        self._on_settled()

    async def _reaches(self, name: str, *wanted: Status) -> bool:
        """Wait for one of the states ``wanted``, even across manual restarts. Returns False if the process fails."""
        changes = self._supervisor.watch()
        if (status := self._state(name).status) in (*wanted, Status.FAILED):
            return status is not Status.FAILED
        async for event in changes:
            # An end after a requested stop is not a failure.
            if event.component == name and event.old != Status.STOPPING and event.new in (*wanted, Status.FAILED):
                return event.new != Status.FAILED
        return False

    async def _restart(self, name: str) -> None:
        """Restart ``name``. If a manual restart replaces this one, wait for the manual one."""
        try:
            await self._supervisor.restart(name)
        except WorkerFailed:
            if not await self._reaches(name, Status.RUNNING, Status.FINISHED):
                raise

    async def _restart_or_retry(self, process: Process) -> None:
        """Restart ``process``. With ``first_start`` "retry", repeat a first start that fails, after its backoff."""
        delays = map(Backoff(initial=process.backoff).delay, count())
        while process.first_start == "retry" and process.name not in self._started:
            with suppress(WorkerFailed):
                await self._restart(process.name)
                return
            if self._supervisor.status not in AT_WORK:
                break
            delay = next(delays)
            self._console.info(f"{process.name} is started again in {delay:.1f} s")
            await asyncio.sleep(delay)
        await self._restart(process.name)

    def _drop_restarts(self, failed: str) -> None:
        """Cancel the pending restarts of processes that depend on ``failed``."""
        for name in sorted(self._due & self._started):
            if failed in self._ancestors[name]:
                self._due.discard(name)
                self._console.info(f"{name} is not restarted because {failed} failed")

    def _state(self, name: str) -> WorkerState:
        return next(each for each in self._supervisor.workers() if each.name == name)

    def _needs(self, process: Process) -> list[str]:
        """Return the direct dependencies among the selected processes."""
        return [name for name in process.after if name in self._processes]

    def _ancestors_of(self, process: Process) -> set[str]:
        """Return the direct and indirect dependencies."""
        found: set[str] = set()
        left = self._needs(process)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._needs(self._processes[name])
        return found


class _Program:
    """One run of `lifecycle up`: the supervisor, the starts and the output."""

    def __init__(self, processes: Sequence[Process], directory: Path, screen: Screen) -> None:
        self._processes = processes
        self._directory = directory
        self._env_file = directory / ".env"
        self._screen = screen
        self._supervisor = Supervisor(
            _NAME,
            *map(self._spec, processes),
            auto_shutdown="any_significant",
            # Without dependencies, all processes stop at the same time, so a slow one does not delay the others.
            stop_order="reverse" if any(each.after for each in processes) else "parallel",
        )
        self._starts = _Starts(processes, self._supervisor, screen.console, self._end_if_over)
        self._changes = Changes(processes, self._environment, self._starts, screen.console, logs=screen.logs)
        self._outcomes: list[Outcome] = []

    def run(self) -> int:
        """Run until an essential process or all of them have ended, or a stop is requested. Returns the exit status."""
        from lifecycle.cli.run import OptionalControlSocket, program_name
        from lifecycle.runtime import run

        control = OptionalControlSocket(program_name("up", self._directory), self._screen.console)
        router = self._file_router()
        limit = sum(each.stop_timeout + _MARGIN for each in self._processes)
        hooks.forced_exit.connect(self._kill)
        try:
            # Shutdown hooks may take a fifth of the time.
            run(control, *([router] if router else []), self._main, exit_timeout=max(25.0, limit * 1.25))
        except SourceFailed as error:
            self._screen.console.error(str(error))
            return FAILED
        finally:
            hooks.forced_exit.disconnect(self._kill)
        self._summarise()
        return exit_status(self._outcomes)

    def _file_router(self) -> Router | None:
        """Return a router that restarts processes when their files change; None if no process watches files."""
        if not self._changes.paths:
            return None
        router = Router("up")
        self._changes.add_to(router)
        # Without a terminal, SIGHUP stops `lifecycle up`, as it does without a router.
        router.handle("lifecycle/reload", lambda _: _shut_down())
        return router

    async def _main(self) -> None:
        """Run the processes. This starts after the sources, so that no change is missed."""
        async with learning(self._changes.learn()):
            await self._live()

    async def _live(self) -> None:
        for process in self._processes:
            # The supervisor would start its children one by one; `_Starts` starts them instead.
            await self._supervisor.stop_child(process.name)
        printing = asyncio.create_task(self._print_events(self._supervisor.watch()), name="status printer")
        try:
            with suppress(WorkerFailed):
                await self._supervisor.start()
                self._starts.begin()
            await self._supervisor.wait()
        finally:
            await self._starts.close()
            await self._supervisor.stop()
            await printing
            self._outcomes = [await self._outcome(each.name) for each in self._processes]

    async def _print_events(self, events: AsyncIterator[StatusEvent]) -> None:
        printer = StatusPrinter(self._processes, self._screen.console, self._starts.stops_all)
        async for event in events:
            if self._screen.is_read:
                printer.print(event)
            self._end_if_over()

    def _end_if_over(self) -> None:
        """Stop if no process runs and none will be started."""
        if not self._starts.active and all(map(self._has_ended, self._supervisor.workers(), self._processes)):
            self._supervisor.ask_to_stop()

    @staticmethod
    def _has_ended(state: WorkerState, process: Process) -> bool:
        if state.status not in FINAL or process.watch:
            return False
        # The circuit opens only after the supervisor has decided against a restart.
        return state.circuit == "open" or not process.comes_back(failed=state.error is not None)

    async def _outcome(self, name: str) -> Outcome:
        [state] = (each for each in self._supervisor.workers() if each.name == name)
        try:
            return Outcome(state, await self._supervisor[name].wait())
        except KeyError:
            return Outcome(state)

    def _summarise(self) -> None:
        if not self._screen.is_read:
            return
        for outcome, line in zip(self._outcomes, summary(self._outcomes), strict=True):
            (self._screen.console.error if outcome.failed else self._screen.console.info)(line)

    def _kill(self, _: object, **__: object) -> None:
        """Kill the processes at a forced exit, even without a guard process."""
        for state in self._supervisor.workers():
            if state.name in self._supervisor and state.status not in FINAL and state.pid is not None:
                worker = self._supervisor[state.name]
                assert isinstance(worker, ProcessWorker), "what its spec makes"
                worker.send_signal(signal.SIGKILL, group=True)

    # -- the supervisor's children --------------------------------------------------------------------------------

    def _spec(self, process: Process) -> Spec:
        # Report errors in the environment files before any process starts.
        self._environment(process)
        return Spec(
            process.name,
            lambda: self._worker(process),
            restart=process.restart or "never",
            backoff=Backoff(initial=process.backoff, max_restarts=process.max_restarts),
            significant=process.essential,
            probe=process.probe,
            probe_interval=process.probe_interval if process.probe else None,
            restart_unhealthy=process.restart_unhealthy,
        )

    def _environment(self, process: Process) -> dict[str, str]:
        return environment(process, self._env_file)

    def _worker(self, process: Process) -> ProcessWorker:
        """Return the worker for one start. Its env files are read now."""
        return ProcessWorker(
            process.name,
            *process.argv,
            env=self._environment(process),
            cwd=process.cwd,
            user=process.user,
            stop_signal=process.stop_signal,
            stop_timeout=process.stop_timeout,
            output=self._screen.output(process.name),
            ready=process.ready,
            start_timeout=process.start_timeout,
        )


def _shut_down() -> None:
    from lifecycle.runtime import shutdown

    shutdown()
