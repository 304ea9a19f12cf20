"""Where a member of a pool is, in the pool's words, and what may follow what for which reason.

A phase is a *projection* of what its worker, its leases and its health say: nothing here keeps a state. `TABLE` and
`REASONS` are what the projection can do and no more; a `PhaseLog` remembers how it went, and refuses what they do not
have.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from lifecycle.errors import InvalidTransition
from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REASONS", "TABLE", "Phase", "PhaseChange", "PhaseLog", "Reason", "fitting", "phase_of"]

_log = logging.getLogger("lifecycle.workers")


class Phase(StrEnum):
    """Where a member of a pool is."""

    INITIALIZING = "initializing"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"
    TERMINATING = "terminating"
    TERMINATED = "terminated"

    @property
    def leasable(self) -> bool:
        """Whether a call may be given to a member that has none: ready says that it is sound, too."""
        return self is Phase.READY

    @property
    def alive(self) -> bool:
        """Whether it is neither on its way out nor gone."""
        return self is not Phase.TERMINATING and self is not Phase.TERMINATED

    @property
    def drainable(self) -> bool:
        """Whether there is something to wait for before it can be stopped or used: a call, or its recovery."""
        return self is Phase.BUSY or self is Phase.DEGRADED


Reason: TypeAlias = Literal[
    "cancel_unconfirmed",
    "cancelled",
    "checkin",
    "checkin_error",
    "checkout",
    "client_lost",
    "error",
    "exited",
    "health_check_failed",
    "health_limit",
    "health_restored",
    "idle_timeout",
    "init_complete",
    "init_degraded",
    "init_failed",
    "init_timeout",
    "killed",
    "recycle",
    "replaced",
    "shutdown",
    "timeout",
]

_I, _R, _B, _D, _T, _E = Phase

#: Each move that there is, with all the reasons that it may have.
REASONS: Final[Mapping[tuple[Phase, Phase], frozenset[Reason]]] = {
    (_I, _R): frozenset({"init_complete"}),
    (_I, _D): frozenset({"init_degraded"}),
    (_I, _T): frozenset({"shutdown", "cancelled"}),
    (_I, _E): frozenset({"init_failed", "init_timeout", "exited"}),
    (_R, _B): frozenset({"checkout"}),
    (_R, _D): frozenset({"health_check_failed"}),
    (_R, _T): frozenset({"shutdown", "recycle", "idle_timeout", "health_limit", "replaced"}),
    (_R, _E): frozenset({"exited"}),
    (_B, _R): frozenset({"checkin"}),
    (_B, _D): frozenset({"checkin_error", "cancel_unconfirmed"}),
    (_B, _T): frozenset({"timeout", "cancelled", "error", "recycle", "shutdown", "health_limit", "client_lost"}),
    (_B, _E): frozenset({"exited"}),
    (_D, _R): frozenset({"health_restored"}),
    (_D, _T): frozenset({"health_limit", "shutdown", "recycle"}),
    (_D, _E): frozenset({"exited"}),
    (_T, _E): frozenset({"exited", "killed"}),
}

#: For each phase, those that may follow it; nothing follows the last.
TABLE: Final[Mapping[Phase, frozenset[Phase]]] = {
    phase: frozenset(target for source, target in REASONS if source is phase) for phase in Phase
}


#: What to say in place of a wish that a move has not among its reasons; in the end, all have "shutdown".
_INSTEAD: Final[Mapping[Reason, Reason]] = {
    "error": "health_limit",
    "timeout": "health_limit",
    "replaced": "recycle",
    "recycle": "cancelled",
}


def fitting(wish: Reason, phase: Phase) -> Reason:
    """The reason to end a member in ``phase`` that says ``wish``, or comes nearest to it there."""
    while wish not in REASONS[phase, Phase.TERMINATING]:
        wish = _INSTEAD.get(wish, "shutdown")
    return wish


def phase_of(status: Status, *, leased: bool, sound: bool) -> Phase:
    """The phase of a member whose worker is ``status``, which has a call or not, and is not known to be unhealthy."""
    if status is Status.RUNNING:
        return Phase.BUSY if leased else Phase.READY if sound else Phase.DEGRADED
    if status is Status.SUSPENDED:
        return Phase.BUSY if leased else Phase.DEGRADED
    if status is Status.STOPPING:
        return Phase.TERMINATING
    return Phase.TERMINATED if status in FINAL else Phase.INITIALIZING


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """One move of a member from phase to phase, as it happened."""

    source: Phase
    target: Phase
    #: Why; one of those that `REASONS` has for this move.
    reason: Reason
    #: Seconds that it spent in ``source``.
    duration: float
    #: When, in seconds since the epoch.
    at: float
    #: What else is known of it, such as the session; it belongs to this move and is carried no further.
    meta: Mapping[str, object]


class PhaseLog:
    """How a member came to where it is; the last 32 moves are kept.

    It is told of every move, and has no opinion on where the member is now: that is `phase_of`'s. What it is told
    goes to the log: calls at level DEBUG, what is bad news at WARNING, the rest at INFO.

    Args:
        name: whose moves they are, for messages.
        now: when the member came to be, by the clock that `record` is given.
    """

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._since = now
        # The fields of changes, newest first: there are two to a call, and few are ever looked at.
        self._moves: deque[tuple[Phase, Phase, Reason, float, float, Mapping[str, object]]] = deque(maxlen=32)

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def changes(self) -> tuple[PhaseChange, ...]:
        """The last moves, newest first."""
        return tuple(PhaseChange(*move) for move in self._moves)

    @property
    def newest(self) -> PhaseChange | None:
        """The last move, if there was one."""
        return PhaseChange(*self._moves[0]) if self._moves else None

    def record(self, source: Phase, target: Phase, reason: Reason, *, now: float, **meta: object) -> None:
        """Note that the member moved.

        Raises:
            InvalidTransition: for a move or a reason that is not in `REASONS`, or one from where the last did not
                lead: then a move was not told. Nothing is noted.
        """
        if reason not in REASONS.get((source, target), ()) or source is not self._last_target():
            raise InvalidTransition(self._objection(source, target, reason))
        self._moves.appendleft((source, target, reason, now - self._since, time.time(), meta))
        self._since = now
        if _log.isEnabledFor(level := _level(target, reason)):
            _log.log(level, "%s: %s -> %s (%s)", self._name, source, target, reason)

    def _last_target(self) -> Phase:
        return self._moves[0][1] if self._moves else Phase.INITIALIZING

    def _objection(self, source: Phase, target: Phase, reason: str) -> str:
        move = f"{self._name!r} cannot go from {source} to {target}"
        if target not in TABLE[source]:
            return f"{move}; legal: {', '.join(sorted(TABLE[source])) or f'nothing, {source} is final'}"
        known = REASONS[source, target]
        if reason not in known:
            return f"{move} because of {reason!r}; the reasons for that are: {', '.join(sorted(known))}"
        return f"{move}: it is {self._last_target()}; record every move, in order"


def _level(target: Phase, reason: Reason) -> int:
    if reason in ("checkout", "checkin"):
        return logging.DEBUG
    return logging.WARNING if target is Phase.DEGRADED or reason == "killed" else logging.INFO
