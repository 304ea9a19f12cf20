"""The ten states of a worker, the moves between them, and the one rule that says how a worker ended.

What moves a worker is in `base`.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from lifecycle.errors import InvalidTransition
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.workers.records import End

__all__ = ["AT_WORK", "FINAL", "TABLE", "UNSTARTED", "WRONG", "Listener", "Status", "StatusMachine", "final_status"]

#: Called with the old and the new status, in the turn of the loop in which it moved; it MUST NOT raise.
Listener: TypeAlias = "Callable[[Status, Status], None]"


class Status(StrEnum):
    """Where a worker is in its life; the last four are final."""

    #: Made, and not started.
    CREATED = "created"
    #: Held back by whoever governs it, for instance until a backoff has passed.
    PENDING = "pending"
    #: `start` was called; not yet ready.
    STARTING = "starting"
    #: At work.
    RUNNING = "running"
    #: Paused; it keeps what it has.
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


TABLE: Final[Mapping[Status, frozenset[Status]]] = {
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

# Sets also where two would do: to look up a member of an enum takes longer than all the rest of a test.
FINAL: Final = frozenset(status for status, row in TABLE.items() if not row)
UNSTARTED: Final = frozenset({Status.CREATED, Status.PENDING})
AT_WORK: Final = frozenset({Status.RUNNING, Status.SUSPENDED})
WRONG: Final = frozenset({Status.FAILED, Status.KILLED})

# Not every system has a name for it, and this is only compared.
_SIGKILL: Final = 9


class StatusMachine(Machine[Status]):
    """The ten states of one worker, and those who listen to its moves."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TABLE, Status.CREATED)
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at every move from now on."""
        self._listeners = (*self._listeners, listener)

    @property
    def moved_at(self) -> float | None:
        """When it changed last, in seconds since the epoch; None before the first change."""
        return self._history[-1][3] if self._history else None

    def resume(self) -> bool:
        """Go on from SUSPENDED; False if it runs anyway.

        Raises:
            InvalidTransition: from anywhere else: a start, too, may go to RUNNING, but by itself alone.
        """
        if self._state is Status.RUNNING:
            return False
        self.require_suspended()
        return self.to(Status.RUNNING)

    def require_suspended(self) -> None:
        """Raise `InvalidTransition` unless it is suspended: a start, too, may go to RUNNING, but by itself alone."""
        if self._state is not Status.SUSPENDED:
            raise InvalidTransition(f"{self.name!r} is {self._state}; only what is suspended can be resumed")

    def to(self, target: Status, reason: str = "") -> bool:
        """Move as `Machine.to`, and tell who listens."""
        old = self._state
        moved = super().to(target, reason)
        if moved:
            for listener in self._listeners:
                listener(old, target)
        return moved


def final_status(end: End, *, asked: bool, forced: bool, sent: int | None = None) -> Status:
    """What a worker is for good after ``end``; the first that fits, as in the table of the tests.

    Args:
        end: how it ended.
        asked: whether a stop was asked for.
        forced: whether we killed or abandoned it after the grace period. A process that ended by itself before
            the kill reached it was not killed.
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
    """Whether a process died of the signal ``sent``, or says so as shells do."""
    return sent is not None and exit_code in (-sent, 128 + sent)
