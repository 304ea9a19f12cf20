"""Output for `lifecycle up`: lines printed by its processes, status messages, and a final summary."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Final, cast

from lifecycle._text import plain_line, plural
from lifecycle.cli.files import Replaced
from lifecycle.cli.logs import console_for, json_line
from lifecycle.cli.output import (
    DONE,
    FAILED,
    UsageError,
    columns,
    has_colour,
    paint,
    shell_status,
    signal_name,
    time_of_day,
    without_output,
    write,
)
from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Process
    from lifecycle.cli.up.starts import Starts
    from lifecycle.events import StatusEvent
    from lifecycle.workers import Exit, WorkerState
    from lifecycle.workers.stdio import Output

__all__ = ["Outcome", "Screen", "StatusPrinter", "describe_end", "exit_status", "plan", "summary", "was_started"]

#: The name in the prefix of our own messages.
_OURSELVES: Final = "system"
#: Cyan, yellow, green, magenta, blue, and their bright variants. Red is reserved for errors.
_COLOURS: Final = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_ESCAPE, _RESET = "\x1b", "\x1b[0m"

#: A shell's exit statuses for a program that does not exist, and for one that cannot be executed.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Screen:
    """Standard output, shared by the processes called ``names``.

    As a context manager, it also appends each process's output to ``log_dir``/NAME.log.

    Args:
        names: the names of the processes.
        log_dir: a directory for log files.
        on_reader_gone: called when the reader has closed standard output.
        log_format: the format of output lines and messages.
        timestamps: whether to print the time before each line. JSON output always contains the time.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        log_dir: Path | None,
        on_reader_gone: Callable[[], object],
        log_format: LogFormat | None = None,
        timestamps: bool = False,
    ) -> None:
        self._width = width = max(map(len, (*names, _OURSELVES)))
        self._colours = cycle(_COLOURS) if has_colour(sys.stdout) else None
        self._prefixes = {name: self._prefix(name) for name in names}
        #: The console for our own messages.
        self.console: Final = replace(console_for(log_format, prefix=f"{_OURSELVES:<{width}} |"), timestamps=timestamps)
        self._timestamps = timestamps
        self._is_json = log_format == "json"
        #: False when the reader has closed standard output.
        self.is_read: bool = True
        self._on_reader_gone = on_reader_gone
        self._log_dir = log_dir
        self._logs: dict[str, BinaryIO] = {}
        # Processes whose log could not be written. Each failure is reported only once.
        self._failed: set[str] = set()
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Open the log files.

        Raises:
            UsageError: if a log file cannot be opened.
        """
        try:
            for name in self._prefixes:
                self._open_log(name)
        except UsageError:
            self._files.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, name: str) -> None:
        """Add a process, unless its name is known.

        Raises:
            UsageError: if its log file cannot be opened.
        """
        if name not in self._prefixes:
            self._open_log(name)
            self._prefixes[name] = self._prefix(name)

    def output(self, name: str) -> Output:
        """Return a function that prints output lines from the process ``name``."""
        prefix, log = self._prefixes[name], self._logs.get(name)

        def shown(line: str) -> str:
            return _prefixed(f"{time_of_day()} {prefix}" if self._timestamps else prefix, line)

        def take(line: str, stream: str) -> None:
            self._print(json_line(line, worker=name, stream=stream) if self._is_json else shown(line))
            if log is not None:
                self._log(name, log, line)

        return take

    @property
    def logs(self) -> tuple[int, ...]:
        """The descriptors of the log files."""
        return tuple(log.fileno() for log in self._logs.values())

    def reader_gone(self) -> None:
        """React when the reader has closed standard output. This may be called from any thread."""
        self.is_read = False
        self._on_reader_gone()

    def _print(self, text: str) -> None:
        if not write(sys.stdout, text):
            self.reader_gone()

    def _log(self, name: str, log: BinaryIO, line: str) -> None:
        try:
            log.write(f"{line}\n".encode(errors="replace"))
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                self.console.error(f"{log.name}: {error.strerror}; log lines of {name} are lost (reported once)")

    def _prefix(self, name: str) -> str:
        text = f"{name:<{self._width}} |"
        return text if self._colours is None else paint(text, next(self._colours))

    def _open_log(self, name: str) -> None:
        if self._log_dir is None:
            return
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that the text of a failed write is not written again later.
            log = (self._log_dir / f"{name}.log").open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--log-dir {self._log_dir}: {error.filename}: {error.strerror}") from None
        self._logs[name] = self._files.enter_context(log)


def _prefixed(prefix: str, line: str) -> str:
    # Progress bars return to the start of the line, so the prefix is printed again. Colours are reset after each line.
    parts = [plain_line(part) for part in line.split("\r")]
    reset = _RESET if any(_ESCAPE in part for part in parts) else ""
    return f"{prefix} " + f"\r{prefix} ".join(parts) + f"{reset}\n"


class StatusPrinter:
    """Prints when ``processes`` start and exit, and which dependents in ``starts`` are affected."""

    def __init__(self, processes: Mapping[str, Process], console: Console, starts: Starts) -> None:
        self._processes = processes
        self._console = console
        self._starts = starts

    def print(self, event: StatusEvent) -> None:
        """Print an event. Restarts are omitted, because the library logs them."""
        process = self._processes.get(event.component)
        if process is None:
            return
        state = cast("WorkerState", event.state)
        if event.new != event.old:
            self._print_change(process, event, state)
        elif state.circuit == "open" and process.watch:
            self._console.info(f"{process.name}: waiting for the next change")
        elif state.circuit == "open":
            self._print_blocked(process, state)

    def _print_change(self, process: Process, event: StatusEvent, state: WorkerState) -> None:
        match event.new:
            case Status.STARTING if process.ready is not None:
                self._console.info(f"starting {process.name}")
            case Status.RUNNING if event.old == Status.STARTING:
                self._print_start(process, state)
            case Status.STOPPING:
                self._console.info(f"stopping {process.name}")
            case new if new in FINAL:
                self._print_end(process, event.old, state)
            case _:
                pass

    def _print_start(self, process: Process, state: WorkerState) -> None:
        word = "started" if process.ready is None else "ready:"
        again = f", restart {state.restarts}" if state.restarts else ""
        self._console.success(f"{word} {process.name} (pid {state.pid}{again})")

    def _print_end(self, process: Process, old: str, state: WorkerState) -> None:
        if state.status is Status.STOPPED:
            return
        text = f"{process.name} {describe_end(state)}"
        if old == Status.STOPPING:
            self._console.warning(text)
        elif old == Status.STARTING:
            # A failed start stops everything only if it was the first one and is not retried.
            first = not state.restarts and not self._starts.was_added(process.name)
            stop = first and process.first_start == "fail"
            self._console.error(text + self._others(stop=stop))
            if stop:
                self._print_blocked(process, state)
        elif not process.comes_back(failed=state.error is not None):
            stop = self._starts.stops_all(process, state)
            then = "; waiting for a change" if process.watch else self._others(stop=stop)
            (self._console.success if state.error is None else self._console.error)(text + then)
            self._print_blocked(process, state)

    def _print_blocked(self, process: Process, state: WorkerState) -> None:
        """Print the processes that cannot start because ``process`` has exited."""
        verb = "waits" if process.watch else "does not start"
        end = "exited" if state.error is None else "failed"
        for name in self._starts.blocked(state):
            self._console.error(f"{name} {verb} because {process.name} {end}")

    def _others(self, *, stop: bool) -> str:
        return "; stopping the other processes" if stop and len(self._processes) > 1 else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A process's final state and, if it ever ran, the exit of its last run."""

    state: WorkerState
    ended: Exit | None = None

    @property
    def failed(self) -> bool:
        """True if the process failed."""
        return self.state.status in (Status.FAILED, Status.KILLED)

    @property
    def code(self) -> int:
        """The exit status that a shell would report."""
        code = self.state.exit_code
        # If we stopped a process because it did not become ready, its exit code is meaningless.
        if code and (code > 0 or self.state.started_at is not None):
            return shell_status(code)
        match self.ended and self.ended.error and self.ended.error.__cause__:
            case FileNotFoundError():
                return _NOT_FOUND
            case OSError():
                return _NOT_EXECUTABLE
            case _:
                return FAILED


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """Return the exit status of the process that failed first, or 0 if none failed."""
    failed = [each for each in outcomes if each.failed]
    return min(failed, key=lambda each: each.state.updated_at).code if failed else DONE


def was_started(state: WorkerState) -> bool:
    """Return whether a process has been started, even if it has ended since."""
    return state.pid is not None or state.exit_code is not None


def describe_end(state: WorkerState) -> str:
    """Describe how a process exited, for printing after its name."""
    after = "" if state.started_at is None else f" after {_duration(state)}"
    if state.error is None:
        return f"{state.status}{after}"
    text = without_output(state.error).removeprefix(f"{state.name!r} ")
    if state.status is Status.KILLED:
        return text
    fact, semicolon, advice = text.partition(";")
    return f"{fact}{after}{semicolon}{advice}"


def plan(processes: Iterable[Process], environments: Mapping[str, Mapping[str, str]]) -> str:
    """Describe the processes in their start order, with the variables set for each."""
    return "".join(_planned(each, environments[each.name]) for each in processes)


def _planned(process: Process, env: Mapping[str, str]) -> str:
    needs = [name if need == "up" else f"{name} ({need})" for name, need in process.needs.items()]
    facts = {
        "directory": str(process.cwd),
        "variables": ", ".join(sorted(name for name, value in env.items() if os.environ.get(name) != value)),
        "after": ", ".join(needs),
    }
    words = [each.written if isinstance(each, Replaced) else each for each in process.argv]
    command = process.command if isinstance(process.command, str) else shlex.join(words)
    return f"{process.name}: {command}\n" + "".join(f"  {fact}: {text}\n" for fact, text in facts.items() if text)


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line per process, with aligned columns."""
    return columns([_row(each.state) for each in outcomes]).splitlines()


def _row(state: WorkerState) -> tuple[str, str, str, str]:
    """Return a process's name, result, duration and restarts."""
    ran = state.started_at is not None
    restarts = plural(state.restarts, "restart") if state.restarts else ""
    given_up = "given up after " if state.circuit == "open" else ""
    return state.name, _end(state), f"after {_duration(state)}" if ran else "", given_up + restarts


def _end(state: WorkerState) -> str:
    if state.status is Status.STOPPED:
        return "stopped" if was_started(state) else "not started"
    if state.exit_code is None:
        return "could not start" if state.started_at is None else str(state.status)
    if state.started_at is None and state.exit_code < 0:
        return "not ready"
    code = state.exit_code
    return f"{state.status}, {f'status {code}' if code >= 0 else signal_name(-code)}"


def _duration(state: WorkerState) -> str:
    seconds = state.updated_at - (state.started_at or state.updated_at)
    if seconds < 60:  # noqa: PLR2004  # a minute
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
