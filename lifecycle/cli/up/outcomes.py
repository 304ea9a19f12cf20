"""What became of the processes: in words, as the lines of a summary, and as the status to exit with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lifecycle.cli.failures import DONE, FAILED
from lifecycle.cli.listing import columns, several
from lifecycle.cli.messages import brief, signal_name
from lifecycle.workers.model import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.workers import Exit, WorkerState

__all__ = ["Outcome", "exit_status", "how", "summary"]

#: What a shell adds to the number of a signal.
_SIGNALLED: Final = 128
#: What a shell ends with for a program that is not there, and for one that it may not execute.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


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


def how(state: WorkerState) -> str:
    """How a process ended, to follow its name."""
    after = "" if state.started_at is None else f" after {_duration(state)}"
    if state.error is None:
        return f"{state.status}{after}"
    told = brief(state.error).removeprefix(f"{state.name!r} ")
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
    restarts = several(state.restarts, "restart") if state.restarts else ""
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
