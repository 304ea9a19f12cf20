"""What `lifecycle up` prints: the lines of its processes, status messages, and the summary at the end."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final, cast

from lifecycle._text import plural
from lifecycle.cli.logs import console_for, json_line
from lifecycle.cli.output import (
    DONE,
    FAILED,
    UsageError,
    columns,
    has_colour,
    paint,
    signal_name,
    without_output,
    write,
)
from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from lifecycle.cli.options import LogFormat
    from lifecycle.cli.output import Console
    from lifecycle.cli.up.processes import Process
    from lifecycle.events import StatusEvent
    from lifecycle.workers import Exit, WorkerState
    from lifecycle.workers.stdio import Output

__all__ = ["Outcome", "Screen", "StatusPrinter", "describe_end", "exit_status", "summary"]

#: Who speaks where we do.
_OURSELVES: Final = "system"
#: Cyan, yellow, green, magenta, blue, and the bright ones; red is for what goes wrong.
_COLOURS: Final = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_ESCAPE, _RESET = "\x1b", "\x1b[0m"

#: What a shell adds to the number of a signal.
_SIGNALLED: Final = 128
#: What a shell ends with for a program that is not there, and for one that it may not execute.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Screen:
    """Standard output, shared by processes called ``names``; ``gone`` is called when nobody reads it any more.

    As a context manager it also writes the lines of each to ``log_dir``/NAME.log, at the end of what is there.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        log_dir: Path | None,
        gone: Callable[[], object],
        log_format: LogFormat | None = None,
    ) -> None:
        width = max(map(len, (*names, _OURSELVES)))
        colour = has_colour(sys.stdout)
        self._prefixes = {
            name: paint(f"{name:<{width}} |", code) if colour else f"{name:<{width}} |"
            for name, code in zip(names, cycle(_COLOURS), strict=False)
        }
        #: For what we say ourselves.
        self.console: Final = console_for(log_format, prefix=f"{_OURSELVES:<{width}} |")
        self._is_json = log_format == "json"
        #: Whether somebody reads it.
        self.read: bool = True
        self._gone = gone
        self._log_dir = log_dir
        self._logs: dict[str, BinaryIO] = {}
        # Those that could not be written to, which is said once.
        self._failed: set[str] = set()
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Open the files.

        Raises:
            UsageError: if one cannot be written.
        """
        if self._log_dir is not None:
            try:
                self._log_dir.mkdir(parents=True, exist_ok=True)
                self._logs = {name: self._open(self._log_dir / f"{name}.log") for name in self._prefixes}
            except OSError as error:
                self._files.close()
                raise UsageError(f"--log-dir {self._log_dir}: {error.filename}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._files.close()

    def output(self, name: str) -> Output:
        """Takes the lines of the process ``name``."""
        prefix, log = self._prefixes[name], self._logs.get(name)

        def take(line: str, stream: str) -> None:
            self._print(json_line(line, worker=name, stream=stream) if self._is_json else _shown(prefix, line))
            if log is not None:
                self._keep(name, log, line)

        return take

    @property
    def logs(self) -> tuple[int, ...]:
        """The descriptors of the files."""
        return tuple(log.fileno() for log in self._logs.values())

    def _print(self, text: str) -> None:
        if not write(sys.stdout, text):
            self.read = False
            self._gone()

    def _keep(self, name: str, log: BinaryIO, line: str) -> None:
        try:
            log.write(f"{line}\n".encode(errors="replace"))
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                self.console.error(f"{log.name}: {error.strerror}; lines of {name} are lost (said once)")

    def _open(self, file: Path) -> BinaryIO:
        # Without a buffer: what cannot be written now does not come up again later.
        return self._files.enter_context(file.open("ab", buffering=0))


def _shown(prefix: str, line: str) -> str:
    # A line that begins anew, as progress bars do, begins behind the name; colours end with the line.
    shown = line.replace("\r", f"\r{prefix} ") + (_RESET if _ESCAPE in line else "")
    return f"{prefix} {shown}\n"


class StatusPrinter:
    """Tells of ``processes``; ``stops_all`` says whether all are stopped because one has ended."""

    def __init__(
        self, processes: Sequence[Process], console: Console, stops_all: Callable[[Process, WorkerState], bool]
    ) -> None:
        self._processes = {each.name: each for each in processes}
        self._console = console
        self._stops_all = stops_all

    def tell(self, event: StatusEvent) -> None:
        """Say what is news; restarts and what is given up are in the library's log."""
        process = self._processes.get(event.component)
        if process is None:
            return
        state = cast("WorkerState", event.state)
        if event.new != event.old:
            self._moved(process, event, state)
        elif state.circuit == "open" and process.watch:
            self._console.info(f"{process.name} waits for the next change")

    def _moved(self, process: Process, event: StatusEvent, state: WorkerState) -> None:
        match event.new:
            case Status.STARTING if process.ready is not None:
                self._console.info(f"starting {process.name}")
            case Status.RUNNING if event.old == Status.STARTING:
                self._started(process, state)
            case Status.STOPPING:
                self._console.info(f"stopping {process.name}")
            case new if new in FINAL:
                self._ended(process, event.old, state)
            case _:
                pass

    def _started(self, process: Process, state: WorkerState) -> None:
        word = "started" if process.ready is None else "ready:"
        again = f", restart {state.restarts}" if state.restarts else ""
        self._console.success(f"{word} {process.name} (pid {state.pid}{again})")

    def _ended(self, process: Process, old: str, state: WorkerState) -> None:
        if state.status is Status.STOPPED:
            return
        told = f"{process.name} {describe_end(state)}"
        if old == Status.STOPPING:
            self._console.warning(told)
        elif old == Status.STARTING:
            # Only at first is that the end of all.
            self._console.error(told + self._others(stop=not state.restarts))
        elif not process.comes_back(failed=state.error is not None):
            stop = self._stops_all(process, state)
            then = "; waiting for a change" if process.watch else self._others(stop=stop)
            (self._console.success if state.error is None else self._console.error)(told + then)

    def _others(self, *, stop: bool) -> str:
        return "; stopping the others" if stop and len(self._processes) > 1 else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A process at the end: its record, and the exit of its last run, if there was any."""

    state: WorkerState
    ended: Exit | None = None

    @property
    def failed(self) -> bool:
        """Whether it counts for the exit status."""
        return self.state.status in (Status.FAILED, Status.KILLED)

    @property
    def code(self) -> int:
        """The exit status that it stands for, as a shell would have it."""
        code = self.state.exit_code
        # One that was ended by us because it did not become ready has no code of its own.
        if code and (code > 0 or self.state.started_at is not None):
            return code if code > 0 else _SIGNALLED - code
        match self.ended and self.ended.error and self.ended.error.__cause__:
            case FileNotFoundError():
                return _NOT_FOUND
            case OSError():
                return _NOT_EXECUTABLE
            case _:
                return FAILED


def exit_status(outcomes: Iterable[Outcome]) -> int:
    """What the first failure stands for; 0 without one."""
    failed = [each for each in outcomes if each.failed]
    return min(failed, key=lambda each: each.state.updated_at).code if failed else DONE


def describe_end(state: WorkerState) -> str:
    """How a process ended, to follow its name."""
    after = "" if state.started_at is None else f" after {_duration(state)}"
    if state.error is None:
        return f"{state.status}{after}"
    told = without_output(state.error).removeprefix(f"{state.name!r} ")
    if state.status is Status.KILLED:
        return told
    fact, semicolon, advice = told.partition(";")
    return f"{fact}{after}{semicolon}{advice}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each, in columns."""
    return columns([_row(each.state) for each in outcomes]).splitlines()


def _row(state: WorkerState) -> tuple[str, str, str, str]:
    """Name, end, duration and restarts."""
    ran = state.started_at is not None
    restarts = plural(state.restarts, "restart") if state.restarts else ""
    given_up = "given up after " if state.circuit == "open" else ""
    return state.name, _end(state), f"after {_duration(state)}" if ran else "", given_up + restarts


def _end(state: WorkerState) -> str:
    if state.status is Status.STOPPED:
        return "not started" if state.pid is None else "stopped"
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
