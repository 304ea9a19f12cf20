"""`lifecycle up` from its command line to its exit status: a supervisor, and who listens to it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.cli.failures import FAILED
from lifecycle.cli.logs import heard
from lifecycle.cli.up.changes import watching
from lifecycle.cli.up.environments import environment
from lifecycle.cli.up.files import find_file, read_file
from lifecycle.cli.up.narration import Narrator
from lifecycle.cli.up.outcomes import Outcome, exit_status, summary
from lifecycle.cli.up.processes import selected
from lifecycle.cli.up.screens import Screen
from lifecycle.errors import SourceFailed, WorkerFailed
from lifecycle.workers import ProcessWorker, Spec, Supervisor
from lifecycle.workers.status import FINAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from lifecycle.cli.up.processes import Process
    from lifecycle.cli.values import LogFormat
    from lifecycle.events import StatusEvent
    from lifecycle.workers import WorkerState

__all__ = ["up"]

#: Of the supervisor: no process can have it.
_NAME: Final = "lifecycle up"
#: Seconds that each process may take besides its stop time-out, before we are ended by force.
_MARGIN: Final = 2.0


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
    with screen, heard(screen.voice):
        program = _Program(processes, file.parent, screen)
        screen.voice.say(f"{file.name}: {', '.join(each.name for each in processes)}")
        return program.run()


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
        self._outcomes: list[Outcome] = []

    def run(self) -> int:
        """Until all have ended, one that is essential has, or we are asked to stop."""
        from lifecycle.cli.steered import Steered, named_after
        from lifecycle.runtime import run

        steered = Steered(named_after("up", self._directory), self._screen.voice)
        router = watching(self._processes, self._supervisor, self._screen.voice, logs=self._screen.logs)
        if router is not None:
            # SIGHUP where there is no terminal: it ends us as it does where nothing is watched.
            router.handle("lifecycle/reload", lambda _: _shut_down())
        limit = sum(each.stop_timeout + _MARGIN for each in self._processes)
        hooks.forced_exit.connect(self._kill)
        try:
            # A fifth of the time belongs to hooks.
            run(steered, *([router] if router else []), self._live, exit_timeout=max(25.0, limit * 1.25))
        except SourceFailed as error:
            self._screen.voice.bad(str(error))
            return FAILED
        finally:
            hooks.forced_exit.disconnect(self._kill)
        self._summarise()
        return exit_status(self._outcomes)

    async def _live(self) -> None:
        telling = asyncio.create_task(self._tell(self._supervisor.watch()), name="narrator")
        try:
            # What cannot start is told of as any end is.
            with suppress(WorkerFailed):
                await self._supervisor.start()
            await self._supervisor.wait()
        finally:
            await self._supervisor.stop()
            await telling
            self._outcomes = [await self._outcome(each.name) for each in self._processes]

    async def _tell(self, events: AsyncIterator[StatusEvent]) -> None:
        narrator = Narrator(self._processes, self._screen.voice)
        async for event in events:
            if self._screen.read:
                narrator.tell(event)
            if self._is_over():
                await self._supervisor.stop()

    def _is_over(self) -> bool:
        """Whether nothing runs, and nothing will start any more."""
        return all(map(self._has_ended, self._supervisor.workers(), self._processes))

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
            (self._screen.voice.bad if outcome.failed else self._screen.voice.say)(line)

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
