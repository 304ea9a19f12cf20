"""What a worker says about itself and about its end, as frozen records."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifecycle.workers.status import Status

__all__ = ["End", "Exit", "ProbeResult", "WorkerState"]


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended, as its kind saw it; whether that was wanted is decided elsewhere."""

    error: BaseException | None = None
    #: Of a process; negative for a signal. None where there is no such thing.
    exit_code: int | None = None
    #: The last of what it wrote as errors.
    stderr: str = ""

    @classmethod
    def of(cls, life: asyncio.Future[End | None] | None) -> End:
        """How ``life`` ended; empty for one that never began, or has not ended."""
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
    #: What went wrong; None where nothing did, also for a stop that was obeyed.
    error: BaseException | None = None
    #: Of a process; minus the number of the signal that it died of. None where there is no such thing.
    exit_code: int | None = None
    #: The number of the signal that a process died of.
    signal: int | None = None
    #: Seconds from its start to its end.
    duration: float = 0.0
    #: The last 4 KiB of what a process wrote to stderr.
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The answer of a worker that was asked how it feels."""

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
    #: What went wrong, for people.
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
