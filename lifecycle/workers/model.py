"""The states of a worker, the records that describe it, and the rules that turn its end into an `Exit`.

This module contains only data and pure functions. `lifecycle.workers.base` changes a worker's state.
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
    "stopped_early",
    "with_stderr",
]

#: A function that is called with the old and the new status immediately after the change. It MUST NOT raise.
StatusListener: TypeAlias = "Callable[[Status, Status], None]"


class Status(StrEnum):
    """The status of a worker. The last four values are final."""

    #: Created, but not started.
    CREATED = "created"
    #: Not started yet, because its supervisor delays the start, for example during a backoff.
    PENDING = "pending"
    #: `start` was called, but the worker is not ready yet.
    STARTING = "starting"
    #: Started and ready.
    RUNNING = "running"
    #: Suspended without losing its memory.
    SUSPENDED = "suspended"
    #: A stop was requested, but the worker has not ended yet.
    STOPPING = "stopping"
    #: Ended because of a stop request.
    STOPPED = "stopped"
    #: Ended on its own, without an error.
    FINISHED = "finished"
    #: Ended with an error, or unable to start.
    FAILED = "failed"
    #: Killed because it did not stop within its grace period.
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

# These are sets even where two comparisons would do, because looking up an enum member is slower than a set lookup.
FINAL: Final = frozenset(status for status, targets in TRANSITIONS.items() if not targets)
UNSTARTED: Final = frozenset({Status.CREATED, Status.PENDING})
AT_WORK: Final = frozenset({Status.RUNNING, Status.SUSPENDED})
FAILURES: Final = frozenset({Status.FAILED, Status.KILLED})

#: The log message about a child that has failed and is not restarted. Its arguments are the child's name and the
#: reason.
NOT_RESTARTED: Final = "%r has failed and is not started again: %s"

#: The maximum number of characters of stderr in a message. The `Exit` of the process has more of them.
_STDERR_SHOWN: Final = 1000

# A plain number, because it is only compared and some systems do not define the name.
_SIGKILL: Final = 9


class StatusMachine(Machine[Status]):
    """The status of one worker, and the functions to call when it changes."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TRANSITIONS, Status.CREATED)
        self._listeners: tuple[StatusListener, ...] = ()

    def listen(self, listener: StatusListener) -> None:
        """Call ``listener`` after each change from now on."""
        self._listeners = (*self._listeners, listener)

    @property
    def moved_at(self) -> float | None:
        """The time of the last change, in seconds since the epoch. None before the first change."""
        return self._history[-1][3] if self._history else None

    def resume(self) -> bool:
        """Change the status from SUSPENDED to RUNNING. Return False if it is already RUNNING.

        Raises:
            InvalidTransition: if the status is neither. For example, a worker that is STARTING cannot be resumed.
        """
        if self._state is Status.RUNNING:
            return False
        self.require_suspended()
        return self.to(Status.RUNNING)

    def require_suspended(self) -> None:
        """Raise `InvalidTransition` unless the worker is suspended."""
        if self._state is not Status.SUSPENDED:
            raise InvalidTransition(f"{self.name!r} is {self._state}; only a suspended worker can be resumed")

    def to(self, target: Status, reason: str = "") -> bool:
        """Change the status to ``target`` as `Machine.to` does, and call the listeners."""
        old = self._state
        moved = super().to(target, reason)
        if moved:
            for listener in self._listeners:
                listener(old, target)
        return moved


# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The raw facts of a worker's end. `exit_of` turns them into an `Exit`."""

    error: BaseException | None = None
    #: The exit code of a process, or the negative number of the signal that killed it. None for other workers.
    exit_code: int | None = None
    #: The last part of the stderr of a process.
    stderr: str = ""

    @classmethod
    def of(cls, life: asyncio.Future[End | None] | None) -> End:
        """Return the end of ``life``, or an empty record if it never began or has not ended."""
        if life is None or not life.done():
            return cls()
        if life.cancelled():
            return cls(error=asyncio.CancelledError("cancelled"))
        if error := life.exception():
            return cls(error=error)
        return life.result() or cls()


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a worker. Each worker ends only once, so this record never changes."""

    status: Status
    #: The error, or None. It is None too if the worker obeyed a stop.
    error: BaseException | None = None
    #: The exit code of a process, or the negative number of the signal that killed it. None for other workers.
    exit_code: int | None = None
    #: The number of the signal that killed a process, or None.
    signal: int | None = None
    #: Seconds from the start to the end.
    duration: float = 0.0
    #: The last 4 KiB of the stderr of a process.
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a health probe."""

    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker at one moment. ``dataclasses.asdict`` turns it into a dict that JSON can encode."""

    name: str
    #: The kind of worker: ``"process"``, ``"task"``, …
    kind: str
    status: Status
    pid: int | None = None
    exit_code: int | None = None
    #: The error as text.
    error: str | None = None
    restarts: int = 0
    #: ``"open"`` for a child that its supervisor no longer restarts, and ``"closed"`` otherwise.
    circuit: str = "closed"
    #: The result of the last probe. None before the first probe.
    health: ProbeResult | None = None
    #: The time of creation, in seconds since the epoch.
    created_at: float = 0.0
    #: The time at which the worker became ready, in seconds since the epoch. None before then.
    started_at: float | None = None
    #: The time of the last change of status or health, in seconds since the epoch.
    updated_at: float = 0.0
    #: True if the worker was abandoned while alive, because neither a stop nor a kill ended it.
    abandoned: bool = False
    children: tuple[WorkerState, ...] = ()
    #: The level of containment of a worker that runs processes. None before its start. See `ProcessWorker`.
    contain: str | None = None


# -- from an end to an exit ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances in which a worker ended."""

    #: True if a stop was requested.
    asked: bool
    #: True if the worker was killed after its grace period.
    forced: bool = False
    #: True if even the kill did not end the worker.
    abandoned: bool = False
    #: The signal that was sent to request the stop of a process.
    sent: int | None = None
    #: The error if the start failed.
    start_error: WorkerFailed | None = None


def exit_of(name: str, end: End, how: Circumstances, *, duration: float) -> Exit:
    """Turn ``end``, the raw facts about the end of the worker ``name``, into an `Exit`."""
    if how.start_error is not None:
        status = Status.FAILED
    else:
        status = final_status(end, asked=how.asked, forced=how.forced or how.abandoned, sent=how.sent)
    error = _error(name, status, end, how) if status in FAILURES else None
    code = end.exit_code
    return Exit(status, error, code, -code if code is not None and code < 0 else None, duration, end.stderr)


def final_status(end: End, *, asked: bool, forced: bool, sent: int | None = None) -> Status:
    """Return the final status of a worker that ended with ``end``. The first matching rule decides.

    Args:
        end: The raw facts of the end.
        asked: Whether a stop was requested.
        forced: Whether the worker was killed or abandoned after the grace period. A process that exited just before the
            kill does not count as killed.
        sent: The signal that was sent to request the stop of a process.
    """
    if forced and end.exit_code in (None, -_SIGKILL):
        return Status.KILLED
    if asked and (isinstance(end.error, asyncio.CancelledError) or _obeyed(end.exit_code, sent)):
        return Status.STOPPED
    if end.error is not None or end.exit_code not in (None, 0):
        return Status.FAILED
    return Status.STOPPED if asked else Status.FINISHED


def _obeyed(exit_code: int | None, sent: int | None) -> bool:
    """Return whether a process was killed by the signal ``sent``, or exited with 128 + ``sent``, as shells do."""
    return sent is not None and exit_code in (-sent, 128 + sent)


def _error(name: str, status: Status, end: End, how: Circumstances) -> BaseException | None:
    """Return the error for a worker that failed or was killed."""
    if how.start_error is not None:
        return how.start_error
    if status is Status.KILLED:
        return WorkerFailed(f"{name!r} did not stop in time and was {'abandoned' if how.abandoned else 'killed'}")
    if end.error is not None and (stderr := end.stderr.strip()):
        # The error may be shown without the `Exit`, in a traceback or in a supervisor's exception group.
        end.error.add_note(f"the end of its stderr:\n{stderr}")
    return end.error


def with_stderr(message: str, stderr: str) -> str:
    """Return ``message`` with the last lines of ``stderr``, unless it already includes them. Secrets are masked."""
    if not stderr.strip() or "the end of its stderr:" in message:
        return message
    from lifecycle._masking import masked  # few processes fail

    text = masked(stderr).strip()
    end = text[-_STDERR_SHOWN:]
    # Drop a partial first line if other lines remain.
    whole = end.partition("\n")[2].strip() if len(text) > _STDERR_SHOWN else ""
    return f"{message}; the end of its stderr:\n{whole or end}"


def failed(error: BaseException) -> Exit:
    """Return the exit of a child that failed before it had a worker."""
    return Exit(Status.FAILED, error)


def cannot_start(name: str, error: BaseException, *, child: str | None = None) -> WorkerFailed:
    """Return the error to raise if ``error`` prevented the start of ``name`` or of its ``child``."""
    since = "" if child is None else f", because its child {child!r} cannot"
    failure = WorkerFailed(f"{name!r} cannot start{since}: {reason_of(error)}")
    failure.__cause__ = error
    return failure


def stopped_early(name: str) -> WorkerFailed:
    """Return the error for callers that are waiting for the start of a worker that is then stopped."""
    return WorkerFailed(f"{name!r} was stopped before it had started")


def as_failure(name: str, error: BaseException) -> WorkerFailed:
    """Return ``error`` if it is a `WorkerFailed`, and otherwise a `WorkerFailed` that wraps it and names the worker."""
    return error if isinstance(error, WorkerFailed) else cannot_start(name, error)
