"""A pool's records: requested calls, statistics, worker phases, and changes between phases."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from lifecycle._durations import in_seconds
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.pool.settings import function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle._durations import Duration
    from lifecycle.workers.pool.settings import PoolSettings

__all__ = ["CallSpec", "Health", "Phase", "PhaseChange", "PoolStats", "Reason", "end_reason", "phase_of"]


class CallSpec:
    """A requested call. Its deadline is measured from the creation of this record.

    Args:
        settings: The pool's settings.
        function: The function, or its name.
        args: The positional arguments.
        kwargs: The keyword arguments.
        session: The session. The call is sent to the worker that holds the session.
        deadline: Seconds to wait for the result, starting now. Defaults to the pool's deadline.
        patient: Whether the call can wait even if the queue is full.

    Raises:
        TypeError, ValueError: if no worker could run the call.
    """

    __slots__ = ("args", "began", "deadline", "function", "kwargs", "patient", "payload", "session", "until")

    def __init__(
        self,
        settings: PoolSettings,
        function: str | Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        session: str | None = None,
        deadline: Duration | None = None,
        patient: bool = False,
    ) -> None:
        if session is not None and not isinstance(session, str):
            raise TypeError(f"session must be a string, got {session!r}")
        plain = isinstance(function, str) and function.isidentifier()
        self.function: str = function if plain else function_name(function)  # type: ignore[assignment]  # it is a str here
        self.args: list[Any] = list(args)
        self.kwargs: dict[str, Any] = kwargs or {}
        self.session: str | None = session
        self.deadline: float = settings.deadline if deadline is None else in_seconds("deadline", deadline)
        self.patient: bool = patient
        #: The arguments as they will be sent, if `CallDispatcher.prepare` or `encode` has set them. Otherwise, the
        #: connection encodes them when it sends the call.
        self.payload: tuple[Any, Any] | None = None
        self.start_clock()

    def start_clock(self) -> None:
        """Set the deadline, starting from now."""
        self.began: float = asyncio.get_running_loop().time()
        #: The deadline in loop time.
        self.until: float = self.began + self.deadline

    def unsendable(self, error: Exception) -> Exception:
        """Return the error for arguments that the codec cannot encode."""
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(f"{self.function!r} was not called, because its arguments cannot be sent: {error}")

    def timed_out(self, where: str) -> TimeoutError:
        """Return the error for a missed deadline. ``where`` describes how far the call had got."""
        session = "" if self.session is None else f" of session {self.session!r}"
        return TimeoutError(f"{self.function!r}{session} did not finish within {self.deadline:g} s: it was {where}")


class Health(StrEnum):
    """A pool worker's health, if known."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Phase(StrEnum):
    """A pool worker's phase."""

    INITIALIZING = "initializing"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"
    TERMINATING = "terminating"
    TERMINATED = "terminated"

    @property
    def alive(self) -> bool:
        """True unless the worker is terminating or terminated."""
        return self is not Phase.TERMINATING and self is not Phase.TERMINATED


#: Why a worker's phase changed. These names are part of the documented API.
Reason: TypeAlias = Literal[
    "cancelled",
    "checkin",
    "checkin_error",
    "checkout",
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


# The possible reasons why a worker in each phase can end.
_END_REASONS: Final[Mapping[Phase, frozenset[Reason]]] = {
    Phase.INITIALIZING: frozenset({"shutdown", "cancelled"}),
    Phase.READY: frozenset({"error", "shutdown", "recycle", "idle_timeout", "health_limit", "replaced"}),
    Phase.BUSY: frozenset({"timeout", "cancelled", "error", "recycle", "shutdown", "health_limit"}),
    Phase.DEGRADED: frozenset({"error", "health_limit", "shutdown", "recycle"}),
}
# The reasons to use instead of those that are not possible in a phase.
_INSTEAD: Final[Mapping[Reason, Reason]] = {
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
    #: How long the worker was in ``source``, in seconds.
    duration: float
    #: When the phase changed, in seconds since the epoch.
    at: float
    #: Details of this change, such as the session.
    meta: Mapping[str, object]


def phase_of(status: Status, *, leased: bool, healthy: bool) -> Phase:
    """Return a worker's phase. ``healthy`` is False only if the worker is known to be unhealthy."""
    if status is Status.RUNNING:
        return Phase.BUSY if leased else Phase.READY if healthy else Phase.DEGRADED
    if status is Status.SUSPENDED:
        return Phase.BUSY if leased else Phase.DEGRADED
    if status is Status.STOPPING:
        return Phase.TERMINATING
    return Phase.TERMINATED if status in FINAL else Phase.INITIALIZING


def end_reason(wanted: Reason, phase: Phase) -> Reason:
    """Return ``wanted`` if it is possible in ``phase``; otherwise, return the closest possible reason."""
    while wanted not in _END_REASONS[phase]:
        wanted = _INSTEAD.get(wanted, "shutdown")
    return wanted


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool's statistics."""

    #: The number of running and starting workers: idle + busy + degraded + starting.
    size: int
    #: The number of workers that are ready but have no calls.
    idle: int
    #: The number of workers with at least one call.
    busy: int
    #: The number of unhealthy workers, which do not receive calls until they recover.
    degraded: int
    #: The number of workers that are not ready yet, including those waiting to be started.
    starting: int
    #: The number of workers that are stopping or finishing their last calls.
    stopping: int
    #: The number of calls waiting for a worker.
    queued: int
    #: The fraction of slots that are occupied, relative to the pool's maximum size.
    saturation: float
    #: The number of calls that have finished, regardless of their outcome.
    calls: int
    #: The number of lost workers that have been replaced.
    restarts: int
    #: The median waiting time of the last 1,000 calls, in seconds.
    wait_p50: float
    #: The 95th percentile of the last 1,000 calls' waiting times, in seconds.
    wait_p95: float
    #: The median running time of the last 1,000 calls, in seconds.
    run_p50: float
    #: The 95th percentile of the last 1,000 calls' running times, in seconds.
    run_p95: float
