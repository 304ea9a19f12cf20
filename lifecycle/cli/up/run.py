"""`lifecycle up` from its command line to its exit status."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.cli.logs import logging_to
from lifecycle.cli.output import FAILED
from lifecycle.cli.paths import PathRules, absolute, available, own_output
from lifecycle.cli.up.processes import environment, find_file, read_file, selected
from lifecycle.cli.up.screen import Outcome, Screen, StatusPrinter, exit_status, summary
from lifecycle.cli.watch.settings import Settings
from lifecycle.control import Debounce, Router, merge_files
from lifecycle.errors import InvalidTransition, SourceFailed, WorkerFailed
from lifecycle.workers import ProcessWorker, Spec, Supervisor
from lifecycle.workers.model import AT_WORK, FINAL, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Process
    from lifecycle.control import FileBatch
    from lifecycle.events import Change, StatusEvent
    from lifecycle.workers import WorkerState

__all__ = ["up"]

#: Of the supervisor: no process can have it.
_NAME: Final = "lifecycle up"
#: Seconds that each process may take besides its stop time-out, before we are ended by force.
_MARGIN: Final = 2.0

#: Act once it was quiet for so long, or after the other time where it never is.
_QUIET: Final = 0.1
_LONGEST_WAIT: Final = 2.0


def up(
    file: Path | None, names: Sequence[str], log_dir: Path | None = None, *, log_format: LogFormat | None = None
) -> int:
    """Run the processes of ``file``, or those called ``names``, to their end; the status to exit with.

    Raises:
        CliError: for what cannot begin.
    """
    file = find_file(Path.cwd()) if file is None else Path.cwd() / file
    processes = selected(read_file(file), names, file)
    screen = Screen([each.name for each in processes], log_dir=log_dir, gone=_shut_down, log_format=log_format)
    with screen, logging_to(screen.console):
        program = _Program(processes, file.parent, screen)
        screen.console.info(f"{file.name}: {', '.join(each.name for each in processes)}")
        return program.run()


class _Starts:
    """Starts and restarts ``processes``, the children of ``supervisor``: each once those that it is after are up.

    A process is up when it has started and is ready, a job when it has succeeded. Processes that are not after one
    another start at the same time. If a first start fails, or a job without which others cannot start, all is stopped.
    ``settled`` is called when a start has come to its end.
    """

    def __init__(
        self, processes: Sequence[Process], supervisor: Supervisor, console: Console, settled: Callable[[], None]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._supervisor = supervisor
        self._console = console
        self._settled = settled
        self._ancestors = {each.name: self._ancestors_of(each) for each in processes}
        # Those that are to be started, those that are being started, those that were up at least once, those that are.
        self._due: set[str] = set(self._processes)
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()
        self._up: set[str] = set()
        self._open = False

    @property
    def at_work(self) -> bool:
        """Whether a process is being started, or will be."""
        return bool(self._due or self._busy)

    def begin(self) -> None:
        """Start all processes, now that the supervisor runs."""
        self._open = True
        self._advance()

    def restart(self, names: Iterable[str]) -> None:
        """Restart the processes ``names``; a start of theirs that goes on is given up."""
        for name in names:
            self._due.add(name)
            if (start := self._busy.pop(name, None)) is not None:
                start.cancel()
        self._advance()

    def stops_all(self, process: Process, state: WorkerState) -> bool:
        """Whether nothing goes on once ``process`` has ended as ``state`` says."""
        if process.essential:
            return True
        failed_job = process.is_job and state.status is Status.FAILED and not process.watch
        return failed_job and any(process.name in self._ancestors[name] for name in self._due - self._begun)

    async def close(self) -> None:
        """Start nothing any more."""
        self._open = False
        starts = [*self._busy.values()]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)

    def _advance(self) -> None:
        for name, process in self._processes.items():
            if self._open and name in self._due and self._may_start(process):
                self._due.discard(name)
                self._busy[name] = asyncio.create_task(self._start(process), name=f"start of {name}")

    def _may_start(self, process: Process) -> bool:
        if any(name in self._due or name in self._busy for name in self._ancestors[process.name]):
            return False
        return process.name in self._begun or all(name in self._up for name in self._needs(process))

    async def _start(self, process: Process) -> None:
        name = process.name
        self._up.discard(name)
        try:
            await self._restart(name)
            if not process.is_job or await self._reaches(name, Status.FINISHED):
                self._up.add(name)
            elif self.stops_all(process, self._state(name)):
                self._supervisor.ask_to_stop()
        except WorkerFailed:
            # The reason is told where all ends are.
            if name not in self._begun:
                self._supervisor.ask_to_stop()
            elif self._supervisor.status in AT_WORK:
                self._console.info(f"{name} waits for the next change")
        except InvalidTransition:
            if name in self._begun:
                self._console.info(f"{name} is not restarted: everything is being stopped")
        self._begun.add(name)
        del self._busy[name]
        if name not in self._up:
            self._give_up_restarts(name)
        self._advance()
        self._settled()

    async def _reaches(self, name: str, *wanted: Status) -> bool:
        """Wait until ``name`` is in a state of ``wanted``, also after restarts by hand; False if it fails."""
        changes = self._supervisor.watch()
        if (status := self._state(name).status) in (*wanted, Status.FAILED):
            return status is not Status.FAILED
        async for event in changes:
            # An end that was asked for is no failure.
            if event.component == name and event.old != Status.STOPPING and event.new in (*wanted, Status.FAILED):
                return event.new != Status.FAILED
        return False

    async def _restart(self, name: str) -> None:
        """Restart ``name``; if a restart by hand takes the place of this one, wait for that."""
        try:
            await self._supervisor.restart(name)
        except WorkerFailed:
            if not await self._reaches(name, Status.RUNNING, Status.FINISHED):
                raise

    def _give_up_restarts(self, failed: str) -> None:
        """Those that run, and were to be restarted after ``failed``, stay as they are."""
        for name in sorted(self._due & self._begun):
            if failed in self._ancestors[name]:
                self._due.discard(name)
                self._console.info(f"{name} is not restarted, since {failed} failed")

    def _state(self, name: str) -> WorkerState:
        return next(each for each in self._supervisor.workers() if each.name == name)

    def _needs(self, process: Process) -> list[str]:
        """Those that it is after; of those that run here."""
        return [name for name in process.after if name in self._processes]

    def _ancestors_of(self, process: Process) -> set[str]:
        """Those that it is after, those that these are after, and so on."""
        found: set[str] = set()
        left = self._needs(process)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._needs(self._processes[name])
        return found


class _Program:
    """The processes of one `lifecycle up`."""

    def __init__(self, processes: Sequence[Process], directory: Path, screen: Screen) -> None:
        self._processes = processes
        self._directory = directory
        self._env_file = directory / ".env"
        self._screen = screen
        self._supervisor = Supervisor(
            _NAME,
            *map(self._spec, processes),
            auto_shutdown="any_significant",
            # Where nobody needs another, one that takes its time keeps nobody else running.
            stop_order="reverse" if any(each.after for each in processes) else "parallel",
        )
        self._starts = _Starts(processes, self._supervisor, screen.console, self._end_if_over)
        self._outcomes: list[Outcome] = []

    def run(self) -> int:
        """Until all have ended, one that is essential has, or we are asked to stop."""
        from lifecycle.cli.run import OptionalControlSocket, program_name
        from lifecycle.runtime import run

        steered = OptionalControlSocket(program_name("up", self._directory), self._screen.console)
        router = watching(self._processes, self._starts.restart, self._screen.console, logs=self._screen.logs)
        if router is not None:
            # SIGHUP where there is no terminal: it ends us as it does where nothing is watched.
            router.handle("lifecycle/reload", lambda _: _shut_down())
        limit = sum(each.stop_timeout + _MARGIN for each in self._processes)
        hooks.forced_exit.connect(self._kill)
        try:
            # A fifth of the time belongs to hooks.
            run(steered, *([router] if router else []), self._live, exit_timeout=max(25.0, limit * 1.25))
        except SourceFailed as error:
            self._screen.console.error(str(error))
            return FAILED
        finally:
            hooks.forced_exit.disconnect(self._kill)
        self._summarise()
        return exit_status(self._outcomes)

    async def _live(self) -> None:
        for process in self._processes:
            # The supervisor starts its children one after the other; we start them by what they are after.
            await self._supervisor.stop_child(process.name)
        telling = asyncio.create_task(self._tell(self._supervisor.watch()), name="narrator")
        try:
            with suppress(WorkerFailed):
                await self._supervisor.start()
                self._starts.begin()
            await self._supervisor.wait()
        finally:
            await self._starts.close()
            await self._supervisor.stop()
            await telling
            self._outcomes = [await self._outcome(each.name) for each in self._processes]

    async def _tell(self, events: AsyncIterator[StatusEvent]) -> None:
        narrator = StatusPrinter(self._processes, self._screen.console, self._starts.stops_all)
        async for event in events:
            if self._screen.read:
                narrator.tell(event)
            self._end_if_over()

    def _end_if_over(self) -> None:
        """Stop if nothing runs, and nothing will start any more."""
        if not self._starts.at_work and all(map(self._has_ended, self._supervisor.workers(), self._processes)):
            self._supervisor.ask_to_stop()

    @staticmethod
    def _has_ended(state: WorkerState, process: Process) -> bool:
        if state.status not in FINAL or process.watch:
            return False
        # Between its end and the decision about it, it is not given up, and has no other state.
        return state.circuit == "open" or not process.comes_back(failed=state.error is not None)

    async def _outcome(self, name: str) -> Outcome:
        [state] = (each for each in self._supervisor.workers() if each.name == name)
        try:
            return Outcome(state, await self._supervisor[name].wait())
        except KeyError:
            return Outcome(state)

    def _summarise(self) -> None:
        if not self._screen.read:
            return
        for outcome, line in zip(self._outcomes, summary(self._outcomes), strict=True):
            (self._screen.console.error if outcome.failed else self._screen.console.info)(line)

    def _kill(self, _: object, **__: object) -> None:
        """We are ended by force: so are they, also where no guard sees to it."""
        for state in self._supervisor.workers():
            if state.name in self._supervisor and state.status not in FINAL and state.pid is not None:
                worker = self._supervisor[state.name]
                assert isinstance(worker, ProcessWorker), "what its spec makes"
                worker.send_signal(signal.SIGKILL, group=True)

    # -- the supervisor's children --------------------------------------------------------------------------------

    def _spec(self, process: Process) -> Spec:
        # What is wrong with it is to be said before anything starts.
        environment(process, self._env_file)
        return Spec(
            process.name,
            lambda: self._worker(process),
            restart=process.restart or "never",
            backoff=Backoff(initial=process.backoff, max_restarts=process.max_restarts),
            significant=process.essential,
        )

    def _worker(self, process: Process) -> ProcessWorker:
        """A new one; what its environment has is read anew."""
        return ProcessWorker(
            process.name,
            *process.argv,
            env=environment(process, self._env_file),
            cwd=process.cwd,
            stop_signal=process.stop_signal,
            stop_timeout=process.stop_timeout,
            output=self._screen.output(process.name),
            ready=process.ready,
            start_timeout=process.start_timeout,
        )


def _shut_down() -> None:
    """Nobody reads any more, or it is asked for."""
    from lifecycle.runtime import shutdown

    shutdown()


def watching(
    processes: Sequence[Process],
    restart: Callable[[Sequence[str]], None],
    console: Console,
    *,
    logs: Sequence[int] = (),
) -> Router | None:
    """A router that has processes restarted by ``restart``, which does not wait; None if no process watches files."""
    watches = [_Watch(each, logs) for each in processes if each.watch]
    if not watches:
        return None
    from lifecycle.sources import FileWatchSource

    async def files(batch: FileBatch) -> None:
        concerned: list[str] = []
        for watch in watches:
            if changes := watch.of_interest(batch):
                console.info(f"{watch.rules.describe(changes)}; restarting {watch.name}")
                concerned.append(watch.name)
        restart(concerned)

    router = Router("up")
    router.handle("file/*", files, debounce=Debounce(_QUIET, max_wait=_LONGEST_WAIT, merge=merge_files))
    router.add_source(FileWatchSource(*(path for watch in watches for path in watch.paths)))
    return router


class _Watch:
    """What one process watches."""

    def __init__(self, process: Process, logs: Sequence[int]) -> None:
        self.name = process.name
        self.paths = tuple(absolute(path, Path.cwd()) for path in process.watch)
        settings = Settings(command=process.argv, paths=self.paths)
        self.rules = PathRules(settings, Path.cwd(), git=available(), outputs=own_output(*logs))

    def of_interest(self, batch: FileBatch) -> dict[Path, Change]:
        """The changes that this one wants to know."""
        return {
            path: change
            for path, change in batch.changes.items()
            if any(path.is_relative_to(root) for root in self.paths) and self.rules.action(path) != "ignore"
        }
