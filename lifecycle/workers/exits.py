"""The end of a worker, put into words: what its kind saw and what was asked of it become one `Exit`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle._util import reason_of
from lifecycle.errors import WorkerFailed
from lifecycle.workers import _platform
from lifecycle.workers.records import Exit
from lifecycle.workers.status import WRONG, Status, final_status

if TYPE_CHECKING:
    from lifecycle.workers.records import End

__all__ = ["Circumstances", "as_failure", "cannot_start", "exit_of", "failed", "fault_of_exit", "stopped_early"]


@dataclass(slots=True)
class Circumstances:
    """What was going on when a worker ended."""

    #: A stop was asked for.
    asked: bool
    #: It was killed after its grace period.
    forced: bool = False
    #: It could not even be killed.
    abandoned: bool = False
    #: The signal that asked it to stop, of a process.
    sent: int | None = None
    #: Why it could not start.
    because: WorkerFailed | None = None


def exit_of(name: str, end: End, how: Circumstances, *, duration: float) -> Exit:
    """The verdict on ``end``."""
    if how.because is not None:
        status = Status.FAILED
    else:
        status = final_status(end, asked=how.asked, forced=how.forced or how.abandoned, sent=how.sent)
    error = _error(name, status, end, how) if status in WRONG else None
    code = end.exit_code
    return Exit(status, error, code, -code if code is not None and code < 0 else None, duration, end.stderr)


def _error(name: str, status: Status, end: End, how: Circumstances) -> BaseException | None:
    """What went wrong with one that failed or was killed."""
    if how.because is not None:
        return how.because
    if status is Status.KILLED:
        return WorkerFailed(f"{name!r} did not stop in time and was {'abandoned' if how.abandoned else 'killed'}")
    if end.error is not None and (words := end.stderr.strip()):
        # For who sees the error alone, in a traceback or in the group that a supervisor gives up with.
        end.error.add_note(f"the last of its stderr:\n{words}")
    return end.error


def fault_of_exit(name: str, code: int | None) -> WorkerFailed | None:
    """What is wrong with an exit code, were it not asked for."""
    if code == 0:
        return None
    if code is None:
        return WorkerFailed(
            f"{name!r} ended, and its exit status is lost: somebody else reaped it; don't ignore SIGCHLD, "
            "and don't wait for children that are not yours"
        )
    if code > 0:
        return WorkerFailed(f"{name!r} exited with status {code}")
    if code == -signal.SIGKILL:
        return WorkerFailed(f"{name!r} was killed by signal 9, perhaps out of memory")
    return WorkerFailed(f"{name!r} was killed by signal {-code} ({_platform.signal_name(-code)})")


def failed(error: BaseException) -> Exit:
    """The exit of what failed before there was a worker to ask."""
    return Exit(Status.FAILED, error)


def cannot_start(name: str, error: BaseException, *, child: str | None = None) -> WorkerFailed:
    """What to raise when ``name`` cannot start because of ``error``, perhaps one of its ``child``."""
    since = "" if child is None else f", since its child {child!r} cannot"
    failure = WorkerFailed(f"{name!r} cannot start{since}: {reason_of(error)}")
    failure.__cause__ = error
    return failure


def stopped_early(name: str) -> WorkerFailed:
    """What to raise where a start was waited for that did not come about."""
    return WorkerFailed(f"{name!r} was stopped before it had started")


def as_failure(name: str, error: BaseException) -> WorkerFailed:
    """``error``, in a `WorkerFailed` that names the worker if it is none itself."""
    return error if isinstance(error, WorkerFailed) else cannot_start(name, error)
