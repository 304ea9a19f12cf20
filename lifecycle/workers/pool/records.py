"""The records with which a pool describes itself: figures, phases of its workers, and changes between phases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from lifecycle.workers.model import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Health", "Phase", "PhaseChange", "PoolStats", "Reason", "end_reason", "phase_of"]


class Health(StrEnum):
    """The health of a pool worker as far as it is known."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Phase(StrEnum):
    """The phase of a pool worker."""

    INITIALIZING = "initializing"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"
    TERMINATING = "terminating"
    TERMINATED = "terminated"

    @property
    def alive(self) -> bool:
        """Whether it is neither terminating nor terminated."""
        return self is not Phase.TERMINATING and self is not Phase.TERMINATED


#: Why a worker changed its phase.
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


# The reasons to end a worker in each phase, and what to report in place of a reason that its phase does not have.
_END_REASONS: Final[Mapping[Phase, frozenset[Reason]]] = {
    Phase.INITIALIZING: frozenset({"shutdown", "cancelled"}),
    Phase.READY: frozenset({"shutdown", "recycle", "idle_timeout", "health_limit", "replaced"}),
    Phase.BUSY: frozenset({"timeout", "cancelled", "error", "recycle", "shutdown", "health_limit", "client_lost"}),
    Phase.DEGRADED: frozenset({"health_limit", "shutdown", "recycle"}),
}
_INSTEAD: Final[Mapping[Reason, Reason]] = {
    "error": "health_limit",
    "timeout": "health_limit",
    "replaced": "recycle",
    "recycle": "cancelled",
}


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A change of a worker's phase from ``source`` to ``target``."""

    source: Phase
    target: Phase
    reason: Reason
    #: Seconds in ``source``.
    duration: float
    #: Seconds since the epoch.
    at: float
    #: Details of this change, such as the session.
    meta: Mapping[str, object]


def phase_of(status: Status, *, leased: bool, healthy: bool) -> Phase:
    """Return the phase of a worker; ``healthy`` means that it is not known to be unhealthy."""
    if status is Status.RUNNING:
        return Phase.BUSY if leased else Phase.READY if healthy else Phase.DEGRADED
    if status is Status.SUSPENDED:
        return Phase.BUSY if leased else Phase.DEGRADED
    if status is Status.STOPPING:
        return Phase.TERMINATING
    return Phase.TERMINATED if status in FINAL else Phase.INITIALIZING


def end_reason(wanted: Reason, phase: Phase) -> Reason:
    """Return the reason to report for a worker that is ended in ``phase``: ``wanted``, or the closest that fits."""
    while wanted not in _END_REASONS[phase]:
        wanted = _INSTEAD.get(wanted, "shutdown")
    return wanted


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The figures of a pool at one moment."""

    #: Workers that run or start: idle + busy + degraded + starting.
    size: int
    #: Workers that are ready and have no call.
    idle: int
    #: Workers that have a call.
    busy: int
    #: Unhealthy workers, which get no calls until they recover.
    degraded: int
    #: Workers that are not ready yet, including those that wait to be started.
    starting: int
    #: Workers that finish their last call or end.
    stopping: int
    #: Calls that wait for a worker.
    queued: int
    #: The share of all slots that are taken, at the largest size of the pool.
    saturation: float
    #: Calls that have ended, whatever their outcome.
    calls: int
    #: Workers that were started in place of a lost one.
    restarts: int
    #: Seconds that calls waited for a worker and that they ran: percentiles of the last 1000 calls.
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float
