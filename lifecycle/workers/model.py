"""The states of a worker, the records that describe it, and the rules that turn its end into an `Exit`.

Everything here is data or a pure function. `lifecycle.workers.base` moves a worker from state to state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from lifecycle._util import reason_of
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "AT_WORK",
    "FAILURES",
    "FINAL",
    "TRANSITIONS",
    "UNSTARTED",
    "Circumstances",
    "End",
    "Exit",
    "ProbeResult",
    "Status",
    "StatusListener",
    "StatusMachine",
    "WorkerState",
    "as_failure",
    "cannot_start",
    "exit_of",
    "failed",
    "final_status",
    "stopped_early",
]

#: Called with the old and the new status, in the turn of the loop in which it changed; it MUST NOT raise.
StatusListener: TypeAlias = "Callable[[Status, Status], None]"


class Status(StrEnum):
    """The state of a worker; the last four are final."""

    #: Made, and not started.
    CREATED = "created"
    #: Held back by its supervisor, for instance until a backoff has passed.
    PENDING = "pending"
    #: `start` was called; not yet ready.
    STARTING = "starting"
    #: At work.
    RUNNING = "running"
    #: Suspended; its memory is kept.
    SUSPENDED = "suspended"
    #: Asked to stop.
    STOPPING = "stopping"
    #: Ended because it was asked to.
    STOPPED = "stopped"
    #: Ended by itself, without an error.
    FINISHED = "finished"
    #: Ended with an error, or could not start.
    FAILED = "failed"
    #: Did not stop within its grace period and was killed.
    KILLED = "killed"


#: The states that may follow each state.
TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.CREATED: frozenset({Status.PENDING, Status.STARTING, Status.STOPPED}),
    Status.PENDING: frozenset({Status.STARTING, Status.STOPPED}),
    Status.STARTING: frozenset({Status.RUNNING, Status.STOPPING, Status.STOPPED, Status.FINISHED, Status.FAILED}),
    Status.RUNNING: frozenset({Status.SUSPENDED, Status.STOPPING, Status.STOPPED, Status.FINISHED, Status.FAILED}),
    Status.SUSPENDED: frozenset({Status.RUNNING, Status.STOPPING, Status.FAILED}),
    Status.STOPPING: frozenset({Status.STOPPED, Status.FAILED, Status.KILLED}),
    Status.STOPPED: frozenset(),
    Status.FINISHED: frozenset(),
    Status.FAILED: frozenset(),
    Status.KILLED: frozenset(),
}

# Sets even where two comparisons would do: looking up a member of an enum costs more than the test in a set.
FINAL: Final = frozenset(status for status, targets in TRANSITIONS.items() if not targets)
UNSTARTED: Final = frozenset({Status.CREATED, Status.PENDING})
AT_WORK: Final = frozenset({Status.RUNNING, Status.SUSPENDED})
FAILURES: Final = frozenset({Status.FAILED, Status.KILLED})

# Compared only, and not every system has a name for it.
_SIGKILL: Final = 9


class StatusMachine(Machine[Status]):
    """The status of one worker, and the listeners to its changes."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TRANSITIONS, Status.CREATED)
        self._listeners: tuple[StatusListener, ...] = ()

    def listen(self, listener: StatusListener) -> None:
        """Call ``listener`` at every change from now on."""
        self._listeners = (*self._listeners, listener)

    @property
    def moved_at(self) -> float | None:
        """When it changed last, in seconds since the epoch; None before the first change."""
        return self._history[-1][3] if self._history else None

    def resume(self) -> bool:
        """Move from SUSPENDED to RUNNING; return False if it is RUNNING already.

        Raises:
            InvalidTransition: from any other state, also from STARTING: only the start itself moves on from there.
        """
        if self._state is Status.RUNNING:
            return False
        self.require_suspended()
        return self.to(Status.RUNNING)

    def require_suspended(self) -> None:
        """Raise `InvalidTransition` unless it is suspended."""
        if self._state is not Status.SUSPENDED:
            raise InvalidTransition(f"{self.name!r} is {self._state}; only a suspended worker can be resumed")

    def to(self, target: Status, reason: str = "") -> bool:
        """Move as `Machine.to`, and call the listeners."""
        old = self._state
        moved = super().to(target, reason)
        if moved:
            for listener in self._listeners:
                listener(old, target)
        return moved


# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The raw facts of a worker's end, as its kind saw it; `Exit` is the verdict on them, made by `exit_of`."""

    error: BaseException | None = None
    #: The exit code of a process, or minus the number of the signal that killed it; else None.
    exit_code: int | None = None
    #: The last of its stderr.
    stderr: str = ""

    @classmethod
    def of(cls, life: asyncio.Future[End | None] | None) -> End:
        """Return how ``life`` ended; an empty record if it never began or has not ended."""
        if life is None or not life.done():
            return cls()
        if life.cancelled():
            return cls(error=asyncio.CancelledError("cancelled"))
        if error := life.exception():
            return cls(error=error)
        return life.result() or cls()


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a worker; there is one for each, and it never changes."""

    status: Status
    #: The error, if there was one; None also for a stop that was obeyed.
    error: BaseException | None = None
    #: The exit code of a process, or minus the number of the signal that killed it; else None.
    exit_code: int | None = None
    #: The number of the signal that killed a process.
    signal: int | None = None
    #: Seconds from its start to its end.
    duration: float = 0.0
    #: The last 4 KiB that a process wrote to stderr.
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The answer of a health probe."""

    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker at one moment; ``dataclasses.asdict`` of it can be written as JSON."""

    name: str
    #: "process", "task", …
    kind: str
    status: Status
    pid: int | None = None
    exit_code: int | None = None
    #: The error, as text.
    error: str | None = None
    restarts: int = 0
    #: "closed", or "open" for a child that its supervisor has given up.
    circuit: str = "closed"
    #: The last probe's answer; None before the first.
    health: ProbeResult | None = None
    #: Seconds since the epoch, as the two below.
    created_at: float = 0.0
    #: When it was running; None before.
    started_at: float | None = None
    #: When its status or its health last changed.
    updated_at: float = 0.0
    #: Whether it was given up while still alive: it ignored being stopped, and could not be killed.
    abandoned: bool = False
    children: tuple[WorkerState, ...] = ()
    #: How the processes of one that has some are held together; None before it starts. See `ProcessWorker`.
    contain: str | None = None


# -- from an end to an exit ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of the end of a worker."""

    #: A stop was asked for.
    asked: bool
    #: It was killed after its grace period.
    forced: bool = False
    #: It could not even be killed.
    abandoned: bool = False
    #: The signal that asked a process to stop.
    sent: int | None = None
    #: Why it could not start.
    start_error: WorkerFailed | None = None


def exit_of(name: str, end: End, how: Circumstances, *, duration: float) -> Exit:
    """Judge ``end``, the end of the worker ``name``."""
    if how.start_error is not None:
        status = Status.FAILED
    else:
        status = final_status(end, asked=how.asked, forced=how.forced or how.abandoned, sent=how.sent)
    error = _error(name, status, end, how) if status in FAILURES else None
    code = end.exit_code
    return Exit(status, error, code, -code if code is not None and code < 0 else None, duration, end.stderr)


def final_status(end: End, *, asked: bool, forced: bool, sent: int | None = None) -> Status:
    """Return the final status of a worker with that ``end``; the first rule that fits decides.

    Args:
        end: how it ended.
        asked: whether a stop was asked for.
        forced: whether it was killed or abandoned after the grace period. A process that ended by itself before the
            kill reached it was not killed.
        sent: the signal that asked it to stop, for a process.
    """
    if forced and end.exit_code in (None, -_SIGKILL):
        return Status.KILLED
    if asked and (isinstance(end.error, asyncio.CancelledError) or _obeyed(end.exit_code, sent)):
        return Status.STOPPED
    if end.error is not None or end.exit_code not in (None, 0):
        return Status.FAILED
    return Status.STOPPED if asked else Status.FINISHED


def _obeyed(exit_code: int | None, sent: int | None) -> bool:
    """Return whether a process died of the signal ``sent``, or exited with 128 + ``sent`` as shells do."""
    return sent is not None and exit_code in (-sent, 128 + sent)


def _error(name: str, status: Status, end: End, how: Circumstances) -> BaseException | None:
    """Return what went wrong with a worker that failed or was killed."""
    if how.start_error is not None:
        return how.start_error
    if status is Status.KILLED:
        return WorkerFailed(f"{name!r} did not stop in time and was {'abandoned' if how.abandoned else 'killed'}")
    if end.error is not None and (stderr := end.stderr.strip()):
        # The error may be shown without the exit: in a traceback, or in the group with which a supervisor gives up.
        end.error.add_note(f"the last of its stderr:\n{stderr}")
    return end.error


def failed(error: BaseException) -> Exit:
    """Return the exit of a child that failed before it had a worker."""
    return Exit(Status.FAILED, error)


def cannot_start(name: str, error: BaseException, *, child: str | None = None) -> WorkerFailed:
    """Return the error to raise when ``name`` cannot start because of ``error``, perhaps of its ``child``."""
    since = "" if child is None else f", since its child {child!r} cannot"
    failure = WorkerFailed(f"{name!r} cannot start{since}: {reason_of(error)}")
    failure.__cause__ = error
    return failure


def stopped_early(name: str) -> WorkerFailed:
    """Return the error for callers that wait for a start that a stop has ended."""
    return WorkerFailed(f"{name!r} was stopped before it had started")


def as_failure(name: str, error: BaseException) -> WorkerFailed:
    """Return ``error``, wrapped in a `WorkerFailed` that names the worker unless it is one."""
    return error if isinstance(error, WorkerFailed) else cannot_start(name, error)
