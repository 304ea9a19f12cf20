"""`lifecycle up`: from the command line to the exit status.

A `Supervisor` runs the processes. `Starts` starts and restarts them in the order of their dependencies.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._steering.answers import refused, reply
from lifecycle._util import file_mode
from lifecycle.cli.files import did_you_mean, permissions_checked, secret_in
from lifecycle.cli.logs import console_for, logging_to
from lifecycle.cli.output import DONE, FAILED, CliError, UsageError, write
from lifecycle.cli.streams import threaded_output
from lifecycle.cli.up.processes import environment, find_file, read_file
from lifecycle.cli.up.screen import Outcome, Screen, StatusPrinter, exit_status, plan, summary
from lifecycle.cli.up.selection import counts, selected
from lifecycle.cli.up.starts import OrderedWorker, Starts
from lifecycle.control import Router
from lifecycle.errors import InvalidTransition, NotHandled, SourceFailed, WorkerFailed
from lifecycle.observe.dashboard import Dashboard
from lifecycle.workers import ProcessWorker, Spec, Supervisor
from lifecycle.workers.model import AT_WORK, FINAL, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from lifecycle.cli.output import Console
    from lifecycle.cli.up.changes import Changes
    from lifecycle.cli.up.processes import Process
    from lifecycle.cli.up.selection import Formation, UpSettings
    from lifecycle.cli.watch.session import ChangeSource
    from lifecycle.events import CommandEvent, StatusEvent
    from lifecycle.workers import WorkerState

__all__ = ["env_files_of", "up"]

#: The name of the supervisor. It contains a space, so no process can have it.
_NAME: Final = "lifecycle up"
#: The number of seconds per process, in addition to its stop timeout, before the exit is forced.
_MARGIN: Final = 2.0


def up(settings: UpSettings) -> int:
    """Run the processes in a file until they exit, and return the exit status.

    Raises:
        CliError: if an error is detected before the processes start.
    """
    with permissions_checked():
        file = find_file(Path.cwd()) if settings.file is None else Path.cwd() / settings.file
        env_files = env_files_of(settings.env_file, file)
        warn = console_for(settings.log_format).warning
        formation = selected(read_file(file, *env_files, warn=warn), settings, file)
    processes = formation.copies
    if settings.dry_run:
        write(sys.stdout, plan(processes, {each.name: environment(each, *env_files) for each in processes}))
        return DONE
    screen = Screen(
        [each.name for each in processes],
        log_dir=settings.log_dir,
        on_reader_gone=_shut_down,
        log_format=settings.log_format,
        timestamps=settings.timestamps,
    )
    output = threaded_output(screen.console.not_shown, screen.reader_gone)
    with screen, output as streams, logging_to(screen.console):
        with permissions_checked():
            program = _Program(formation, file.parent, env_files, screen, page=_page(settings, screen.console))
        screen.console.info(f"{file.name}: {', '.join(each.name for each in processes)}")
        try:
            return program.run()
        finally:
            streams.is_stopped = program.is_stopped


def env_files_of(given: Sequence[Path], file: Path) -> tuple[Path, ...]:
    """Return the shared env files: the ``given`` files or, by default, ``.env`` in the directory of ``file``."""
    for each in given:
        if not S_ISREG(file_mode(each)):
            raise UsageError(f"--env-file {each}: no such file")
    return tuple(each.absolute() for each in given) or (file.parent / ".env",)


def _page(settings: UpSettings, console: Console) -> Dashboard | None:
    """Return the page that ``settings`` request.

    Raises:
        ConfigError: if the variable with the token is not set.
        UsageError: if there is a token but no page, or the token cannot be sent in a header.
    """
    name = settings.dashboard_token_env
    if settings.dashboard is None:
        if name is not None:
            raise UsageError(f"--dashboard-token-env {name} has no effect without --dashboard; add --dashboard PORT")
        return None
    token = None if name is None else secret_in(name, "--dashboard-token-env")
    try:
        return _AnnouncedDashboard(settings.dashboard, token, console)
    except ValueError as error:
        raise UsageError(f"--dashboard-token-env {name}: {error}") from None


class _AnnouncedDashboard(Dashboard):
    """A dashboard that prints its address on ``console``, even if that is not a terminal."""

    def __init__(self, port: int, token: str | None, console: Console) -> None:
        super().__init__(port=port, token=token)
        self._console = console

    def _announce(self) -> None:
        if not self._generated or sys.stderr.isatty():
            self._console.info(f"dashboard: {self.url}")
        else:
            self._console.warning(
                f"dashboard: {self._base}/ needs its token, which is printed only on a terminal; "
                "set one with --dashboard-token-env NAME"
            )


class _Program:
    """One run of `lifecycle up`, with its supervisor, starts and output."""

    def __init__(
        self,
        formation: Formation,
        directory: Path,
        env_files: Sequence[Path],
        screen: Screen,
        *,
        page: Dashboard | None = None,
    ) -> None:
        self._formation = formation
        processes = formation.copies
        self._processes = {each.name: each for each in processes}
        self._directory = directory
        self._env_files = env_files
        self._screen = screen
        self._pages = [] if page is None else [page]
        self._supervisor = Supervisor(
            _NAME,
            *map(self._spec, processes),
            # Each worker waits for its dependents to stop.
            stop_order="parallel",
        )
        self._starts = Starts(processes, self._supervisor, screen.console, self._end_if_over)
        self._changes = self._new_changes()
        # The names of processes that `lifecycle ctl` has scaled to 0. They can be started again.
        self._emptied: set[str] = set()
        self._router = self._new_router()
        self._files: list[ChangeSource] = [] if self._changes is None else self._changes.handle(self._router)
        self._spawned = asyncio.Event()
        self._outcomes: list[Outcome] = []
        #: True if a signal or a command has stopped the program.
        self.is_stopped: bool = False

    def run(self) -> int:
        """Run until all processes or an essential one have exited, or a stop is requested. Returns the exit status."""
        from lifecycle.cli.run import OptionalControlSocket, program_name
        from lifecycle.runtime import run

        control = OptionalControlSocket(program_name("up", self._directory), self._screen.console)
        # Copies of a process stop at the same time.
        limit = sum(each.stop_timeout + _MARGIN for each in self._formation.processes)
        hooks.forced_exit.connect(self._kill)
        try:
            # Shutdown hooks can use a fifth of the time.
            run(control, *self._pages, self._router, self._main, exit_timeout=max(25.0, limit * 1.25))
        except SourceFailed as error:
            self._screen.console.error(str(error))
            return FAILED
        except OSError as error:  # the page cannot be served
            self._screen.console.error(error.strerror or str(error))
            return FAILED
        finally:
            hooks.forced_exit.disconnect(self._kill)
        self._summarise()
        return exit_status(self._outcomes)

    def _new_changes(self) -> Changes | None:
        """Return the handlers for changed files, or None if no process watches files."""
        if not any(each.watch for each in self._formation.processes):
            return None
        from lifecycle.cli.up.changes import Changes

        screen = self._screen
        return Changes(self._formation.processes, self._environment, self._starts, screen.console, logs=screen.logs)

    def _new_router(self) -> Router:
        """Return a router for the command `scale`, which also checks files before the built-in command `restart`."""
        router = Router("up")
        router.command("scale", self._scale, help="Change the number of copies: NAME=N.", complete=self._scalings)
        if self._changes is not None:
            router.handle("command/restart", self._check_restart, concurrency=len(self._processes))
        # Otherwise, a program with a router ignores SIGHUP if there is no terminal.
        router.handle("signal/hangup", lambda _: _shut_down())
        return router

    async def _main(self) -> None:
        """Run the processes. Their files are watched before they start, so that no change is missed."""
        if self._changes is None:
            await self._live()
            return
        from lifecycle.cli.watch.session import watching

        async with watching(self._router, self._files, self._changes.learn(), self._spawned):
            await self._live()

    async def _live(self) -> None:
        from lifecycle.runtime import current

        for name in self._processes:
            # The supervisor would start its children one by one, so `Starts` starts them in parallel instead.
            await self._supervisor.stop_child(name)
        printing = start_task(self._print_events(self._supervisor.watch()), name="status printer")
        try:
            with suppress(WorkerFailed):
                await self._supervisor.start()
                self._starts.begin()
                self._spawned.set()
            await self._supervisor.wait()
        finally:
            self.is_stopped = current().stopping
            await self._starts.close()
            await self._supervisor.stop()
            await printing
            # A command that changes the copies may still be running.
            self._outcomes = [await self._outcome(name) for name in (*self._processes,) if name in self._supervisor]

    async def _print_events(self, events: AsyncIterator[StatusEvent]) -> None:
        printer = StatusPrinter(self._processes, self._screen.console, self._starts)
        async for event in events:
            if self._screen.is_read:
                printer.print(event)
            self._starts.note(event)
            self._end_if_over()

    def _end_if_over(self) -> None:
        """Stop if no process is running or waiting to start."""
        if not self._starts.active and not self._emptied and all(map(self._has_ended, self._supervisor.workers())):
            self._supervisor.ask_to_stop()

    def _has_ended(self, state: WorkerState) -> bool:
        process = self._processes.get(state.name)
        if process is None:  # this is a copy that could not be added
            return True
        # A manually stopped process can be started again.
        if state.status not in FINAL or state.status is Status.STOPPED or process.watch:
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
        """Kill the processes on a forced exit, even without a guard process."""
        for state in self._supervisor.workers():
            if state.name in self._supervisor and state.status not in FINAL and state.pid is not None:
                worker = self._supervisor[state.name]
                assert isinstance(worker, ProcessWorker), "what its spec makes"
                worker.send_signal(signal.SIGKILL, group=True)

    async def _check_restart(self, event: CommandEvent) -> None:
        """Refuse to restart a process if one of its files is broken."""
        assert self._changes is not None, "it handles the command only then"
        names = [word.rpartition("/")[2].partition(".")[0] for word in event.args]
        known = self._formation.numbers()
        for name in known if "all" in names and "all" not in known else names:
            if why_not := await self._changes.why_not(name):
                self._screen.console.error(why_not)
                raise refused(why_not)
        raise NotHandled("the built-in command restarts the process")

    # -- copies ---------------------------------------------------------------------------------------------------

    def _scalings(self, _: str) -> list[str]:
        """Return the completions of `scale`, which change the number of a process's copies by one."""
        numbers = self._formation.numbers().items()
        return [f"{name}={each}" for name, number in numbers for each in (number - 1, number + 1) if each >= 0]

    async def _scale(self, event: CommandEvent) -> None:
        """Change the number of copies of processes, until the program stops."""
        given = self._read_counts(event.args)
        if self._supervisor.status not in AT_WORK:
            raise refused("the program is starting or stopping; try again")
        from lifecycle.runtime import current

        change = start_task(self._change_numbers(given), name="scale")
        stop = start_task(current().wait_stopping(), name="end of scale")
        try:
            # Otherwise, the router would wait for this command before the processes are stopped.
            await asyncio.wait([change, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            stop.cancel()
            await asyncio.gather(change, stop, return_exceptions=True)
        if change.cancelled():
            raise refused("the program is stopping")
        await change
        for name in given:
            reply(f"{name}: {', '.join(self._names_of(name)) or 'no copy'}")

    async def _change_numbers(self, given: Mapping[str, int]) -> None:
        for name, number in given.items():
            if not number:
                self._emptied.add(name)
            try:
                while (now := self._formation.numbers()[name]) != number:
                    await (self._add_copy if now < number else self._remove_copy)(name)
            finally:
                if self._formation.numbers()[name]:
                    self._emptied.discard(name)

    def _names_of(self, name: str) -> list[str]:
        """Return the names of the copies of the process ``name``."""
        return [each for each in self._processes if each.partition(".")[0] == name]

    def _read_counts(self, words: Sequence[str]) -> dict[str, int]:
        known = self._formation.numbers()
        if not words:
            raise refused("scale: use NAME=N, such as " + " or ".join(f"{name}=2" for name in known))
        try:
            given = dict(pair for word in words for pair in counts(word))
        except ValueError as error:
            raise refused(f"scale {' '.join(words)}: {error}") from None
        for name in given:
            if name not in known:
                raise refused(f"no process {name!r} runs here; {did_you_mean(name, known)}")
        return given

    async def _add_copy(self, name: str) -> None:
        """Add a copy of the process ``name``, and wait until it has started."""
        before = self._formation.numbers()[name]
        self._formation.scale(name, before + 1)
        [process] = (each for each in self._formation.copies if each.name not in self._processes)
        if waits := self._starts.awaited(process):
            self._formation.scale(name, before)
            raise refused(f"{process.name} cannot start yet: it waits for {', '.join(waits)}")
        try:
            self._screen.add(process.name)
            if self._changes is not None:
                self._changes.ignore(*self._screen.logs)
            spec = self._spec(process)
            self._use_copies()
            await self._supervisor.add(spec)
        except (CliError, InvalidTransition, WorkerFailed) as error:
            self._formation.scale(name, before)
            self._use_copies()
            raise refused(f"{process.name} was not added: {error}") from None

    async def _remove_copy(self, name: str) -> None:
        """Stop the last copy of the process ``name``."""
        *kept, last = self._names_of(name)
        self._starts.use([each for each in self._formation.copies if each.name != last])
        try:
            await self._supervisor.remove(last)
            self._formation.scale(name, len(kept))
        except InvalidTransition:
            raise refused(f"{last} was not removed because the program is stopping") from None
        finally:
            self._use_copies()

    def _use_copies(self) -> None:
        """Pass the formation's current processes to the other components."""
        # The printer uses the same dict.
        self._processes.clear()
        self._processes.update({each.name: each for each in self._formation.copies})
        self._starts.use(self._formation.copies)

    # -- the supervisor's children --------------------------------------------------------------------------------

    def _spec(self, process: Process) -> Spec:
        # Report errors in the environment files before any process starts.
        self._environment(process)
        return Spec(
            process.name,
            lambda: self._worker(process),
            restart=process.restart or "never",
            backoff=process.delays,
            probe=process.probe,
            probe_interval=process.probe_interval if process.probe else None,
            probe_timeout=process.probe_timeout,
            failures=process.probe_failures,
            restart_unhealthy=process.restart_unhealthy,
        )

    def _environment(self, process: Process) -> dict[str, str]:
        return environment(process, *self._env_files)

    def _worker(self, process: Process) -> OrderedWorker:
        """Return the worker for one start. The env files are read again each time."""
        return OrderedWorker(
            process.name,
            *process.argv,
            supervisor=self._supervisor,
            starts=self._starts,
            success=process.success_exit_codes,
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
