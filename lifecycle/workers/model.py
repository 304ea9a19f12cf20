"""Worker states, the records that describe a worker, and the rules that determine its `Exit`.

This module contains only data and pure functions. The code that changes a worker's state is in
`lifecycle.workers.base`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lifecycle._util import STDERR, reason_of
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "AT_WORK",
    "FAILURES",
    "FINAL",
    "NOT_RESTARTED",
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
    "note_stderr",
    "stopped_early",
]

#: A function called with the old and the new status immediately after each change. It MUST NOT raise.
StatusListener: TypeAlias = "Callable[[Status, Status], None]"


class Status(StrEnum):
    """A worker's status. The last four values are final."""

    #: Created but not started.
    CREATED = "created"
    #: Not started yet, because its supervisor has delayed the start, for example during a backoff.
    PENDING = "pending"
    #: `start` has been called, but the worker is not ready yet.
    STARTING = "starting"
    #: Started and ready.
    RUNNING = "running"
    #: Suspended, with its in-memory state intact.
    SUSPENDED = "suspended"
    #: A stop has been requested, but the worker has not ended yet.
    STOPPING = "stopping"
    #: Ended in response to a stop request.
    STOPPED = "stopped"
    #: Ended on its own, without an error.
    FINISHED = "finished"
    #: Ended with an error or could not start.
    FAILED = "failed"
    #: Killed because it did not stop within the grace period.
    KILLED = "killed"


#: The states that can follow each state.
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

# We use sets even where two comparisons would do, because accessing an enum member is slower than testing set
# membership.
FINAL: Final = frozenset(status for status, targets in TRANSITIONS.items() if not targets)
UNSTARTED: Final = frozenset({Status.CREATED, Status.PENDING})
AT_WORK: Final = frozenset({Status.RUNNING, Status.SUSPENDED})
FAILURES: Final = frozenset({Status.FAILED, Status.KILLED})

#: The log message for a failed child that is not restarted. Its arguments are the child's name and the reason.
NOT_RESTARTED: Final = "%r failed and will not be restarted: %s"

# A plain number, because `signal.SIGKILL` is not defined on every system. It is only compared with exit codes.
_SIGKILL: Final = 9


class StatusMachine(Machine[Status]):
    """A worker's status, along with the functions to call when it changes."""

    def __init__(self, name: str) -> None:
        #: The loop in which the worker was started. In Python 3.11, `get_running_loop` is a system call.
        self.loop: asyncio.AbstractEventLoop | None = None
        super().__init__(name, TRANSITIONS, Status.CREATED)
        self._listeners: tuple[StatusListener, ...] = ()

    def now(self) -> float:
        """Return the time of the worker's loop, like `Machine.now`."""
        return super().now() if self.loop is None else self.loop.time()

    def listen(self, listener: StatusListener) -> None:
        """Call ``listener`` after each subsequent change."""
        self._listeners = (*self._listeners, listener)

    @property
    def moved_at(self) -> float | None:
        """When the status last changed, in seconds since the epoch, or None if it has never changed."""
        return self._history[-1][3] if self._history else None

    def resume(self) -> bool:
        """Change the status from SUSPENDED to RUNNING. Return False if it was already RUNNING.

        Raises:
            InvalidTransition: if the status is neither SUSPENDED nor RUNNING.
        """
        if self._state is Status.RUNNING:
            return False
        self.require_suspended()
        return self.to(Status.RUNNING)

    def require_suspended(self) -> None:
        """Raise `InvalidTransition` if the worker is not suspended."""
        if self._state is not Status.SUSPENDED:
            raise InvalidTransition(f"{self.name!r} is {self._state}; only a suspended worker can be resumed")

    def to(self, target: Status, reason: str = "") -> bool:
        """Change the status to ``target``, like `Machine.to`, and call the listeners."""
        old = self._state
        moved = super().to(target, reason)
        if moved:
            for listener in self._listeners:
                listener(old, target)
        return moved


# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """Raw information about how a worker ended. `exit_of` turns it into an `Exit`."""

    error: BaseException | None = None
    #: A process's exit code, or the negated signal number if a signal killed it. None for other kinds of worker.
    exit_code: int | None = None
    #: The last part of a process's stderr.
    stderr: str = ""

    @classmethod
    def of(cls, life: asyncio.Future[End | None] | None) -> End:
        """Return the result of ``life``, or an empty `End` if ``life`` is None or not done."""
        if life is None or not life.done():
            return cls()
        if life.cancelled():
            return cls(error=asyncio.CancelledError("cancelled"))
        if error := life.exception():
            return cls(error=error)
        return life.result() or cls()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended. A worker ends only once, so this record never changes."""

    status: Status
    #: The error, or None if the worker succeeded or ended in response to a stop request.
    error: BaseException | None = None
    #: A process's exit code, or the negated signal number if a signal killed it. None for other kinds of worker.
    exit_code: int | None = None
    #: The number of the signal that killed the process, or None.
    signal: int | None = None
    #: How long the worker ran, in seconds.
    duration: float = 0.0
    #: The last 4 KiB of a process's stderr.
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a health probe."""

    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A snapshot of a worker's state. ``dataclasses.asdict`` turns it into a JSON-serializable dict."""

    name: str
    #: The kind of worker, such as ``"process"`` or ``"task"``.
    kind: str
    status: Status
    #: The process's pid. None before the process has been started, after it has ended, and for other kinds of worker.
    pid: int | None = None
    exit_code: int | None = None
    #: The error as text.
    error: str | None = None
    restarts: int = 0
    #: ``"open"`` if the worker's supervisor has given up restarting it, otherwise ``"closed"``.
    circuit: str = "closed"
    #: The result of the most recent probe, or None if there has been none.
    health: ProbeResult | None = None
    #: When the worker was created, in seconds since the epoch.
    created_at: float = 0.0
    #: When the worker became ready, in seconds since the epoch, or None if it has not been ready yet.
    started_at: float | None = None
    #: When the status or health last changed, in seconds since the epoch.
    updated_at: float = 0.0
    #: True if the worker was abandoned while it was still alive, because it could not be stopped or killed.
    abandoned: bool = False
    children: tuple[WorkerState, ...] = ()
    #: The containment level of a worker that runs processes; see `ProcessWorker`. None until the worker has started.
    contain: str | None = None


# -- from an end to an exit ------------------------------------------------------------------------------------------


class Circumstances(NamedTuple):
    """The circumstances in which a worker ended."""

    #: True if a stop was requested.
    asked: bool
    #: True if the worker was killed after its grace period.
    forced: bool = False
    #: True if the worker survived even being killed.
    abandoned: bool = False
    #: The signal sent to ask the process to stop.
    sent: int | None = None
    #: The error that caused the start to fail, if any.
    start_error: WorkerFailed | None = None


def exit_of(name: str, end: End, how: Circumstances, *, duration: float) -> Exit:
    """Turn ``end``, which describes how the worker ``name`` ended, into an `Exit`."""
    if how.start_error is not None:
        status = Status.FAILED
    else:
        status = final_status(end, asked=how.asked, forced=how.forced or how.abandoned, sent=how.sent)
    error = _error(name, status, end, how) if status in FAILURES else None
    code = end.exit_code
    return Exit(status, error, code, -code if code is not None and code < 0 else None, duration, end.stderr)


def final_status(end: End, *, asked: bool, forced: bool, sent: int | None = None) -> Status:
    """Return the final status of a worker that ended with ``end``. The first matching rule applies.

    Args:
        end: How the worker ended.
        asked: Whether a stop was requested.
        forced: Whether the worker was killed or abandoned after the grace period. A process that exited just before it
            was to be killed is not reported as killed.
        sent: The signal sent to ask the process to stop.
    """
    if forced and end.exit_code in (None, -_SIGKILL):
        return Status.KILLED
    if asked and (isinstance(end.error, asyncio.CancelledError) or _obeyed(end.exit_code, sent)):
        return Status.STOPPED
    if end.error is not None or end.exit_code not in (None, 0):
        return Status.FAILED
    return Status.STOPPED if asked else Status.FINISHED


def _obeyed(exit_code: int | None, sent: int | None) -> bool:
    """Return whether the process was killed by ``sent`` or exited with 128 + ``sent``, like a shell does."""
    return sent is not None and exit_code in (-sent, 128 + sent)


def _error(name: str, status: Status, end: End, how: Circumstances) -> BaseException | None:
    """Return the error if the worker failed or was killed; otherwise, return None."""
    if how.start_error is None and status is Status.KILLED:
        return WorkerFailed(f"{name!r} did not stop in time and was {'abandoned' if how.abandoned else 'killed'}")
    error = how.start_error or end.error
    if error is not None:
        note_stderr(error, end.stderr)
    return error


def note_stderr(error: BaseException, stderr: str) -> None:
    """Add the end of a process's ``stderr`` to ``error`` as a note, with secrets masked.

    Tracebacks and the log show the note. The message does not contain it, because messages reach HTTP clients.
    """
    if stderr.strip():
        from lifecycle._masking import masked  # imported only when needed, because few processes fail

        error.add_note(STDERR + masked(stderr).strip())


def failed(error: BaseException) -> Exit:
    """Return the `Exit` for a child that failed before its worker was created."""
    return Exit(Status.FAILED, error)


def cannot_start(name: str, error: BaseException, *, child: str | None = None) -> WorkerFailed:
    """Return the exception to raise when ``error`` prevented ``name`` or its ``child`` from starting."""
    since = "" if child is None else f", because its child {child!r} cannot"
    failure = WorkerFailed(f"{name!r} cannot start{since}: {reason_of(error)}")
    failure.__cause__ = error
    return failure


def stopped_early(name: str) -> WorkerFailed:
    """Return the error for callers that are waiting for a worker to start when it is stopped."""
    return WorkerFailed(f"{name!r} was stopped before it finished starting")


def as_failure(name: str, error: BaseException) -> WorkerFailed:
    """Return ``error`` if it is a `WorkerFailed`; otherwise, wrap it in a `WorkerFailed` that names the worker."""
    return error if isinstance(error, WorkerFailed) else cannot_start(name, error)
