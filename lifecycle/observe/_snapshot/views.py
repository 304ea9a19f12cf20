"""The records that a snapshot consists of: plain values and each other, so that any of them can be written as JSON.

Those of workers and flows stand here once more, field by field, because this room may not know theirs and the schema
has to: whoever has the same fields is one of them. A test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lifecycle.control.lanes import LaneInfo  # noqa: TC001  # the schema asks for the types
from lifecycle.control.routing import RouteInfo  # noqa: TC001  # the schema asks for the types
from lifecycle.control.source_runner import SourceInfo  # noqa: TC001  # the schema asks for the types
from lifecycle.control.taps import TapInfo  # noqa: TC001  # the schema asks for the types
from lifecycle.runtime.lifetimes import LifetimeState  # noqa: TC001  # the schema asks for the types

__all__ = [
    "ComponentView",
    "FlowView",
    "FlowsView",
    "HealthView",
    "ItemView",
    "PoolView",
    "ProgramView",
    "QueueView",
    "RouterView",
    "Snapshot",
    "WorkerView",
]


@dataclass(frozen=True, slots=True)
class ProgramView:
    """The process that was asked."""

    name: str
    pid: int
    host: str
    #: Versions of Python and of this library.
    python: str
    version: str
    #: When its lifetime began, in seconds since the epoch, and how many seconds ago; None outside of one.
    started_at: float | None
    uptime: float | None


@dataclass(frozen=True, slots=True)
class HealthView:
    """What a worker answered when it was asked after its health."""

    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, and those within it."""

    name: str
    kind: str
    #: One of the ten statuses, or ``unknown`` where it could not be asked.
    status: str
    pid: int | None = None
    exit_code: int | None = None
    #: What went wrong, for people.
    error: str | None = None
    restarts: int = 0
    circuit: str = "closed"
    health: HealthView | None = None
    #: Seconds since the epoch, as the two below.
    created_at: float = 0.0
    started_at: float | None = None
    updated_at: float = 0.0
    #: Seconds since it was running; None where it does not.
    uptime: float | None = None
    abandoned: bool = False
    contain: str | None = None
    children: tuple[WorkerView, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool: the worker that it is, whose children are its members, and its figures."""

    worker: WorkerView
    #: As `PoolStats` has them, by name; empty where they could not be had.
    stats: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RouterView:
    """A router and what belongs to it; counts are of events that came through lanes."""

    name: str
    running: bool = False
    middlewares: int = 0
    routed: int = 0
    handled: int = 0
    failed: int = 0
    unrouted: int = 0
    dropped: int = 0
    routes: tuple[RouteInfo, ...] = ()
    lanes: tuple[LaneInfo, ...] = ()
    sources: tuple[SourceInfo, ...] = ()
    taps: tuple[TapInfo, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ItemView:
    """A task, a retry, or a flow in another, as `ItemInfo` has it."""

    name: str
    kind: str
    state: str = ""
    intention: str = ""
    attempt: int = 0
    error: str = ""
    items: tuple[ItemView, ...] = ()
    #: For each of these the places of those that follow at once.
    follow: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class FlowView:
    """A flow that was started, as `RunInfo` has it."""

    id: str
    name: str
    state: str
    error: str
    root: ItemView


@dataclass(frozen=True, slots=True)
class FlowsView:
    """A store that is open, and the flows in it that have not come to an end."""

    store: str
    runs: tuple[FlowView, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits to be done somewhere: the jobs of a queue, the letters of an inbox."""

    name: str
    #: How many there are in each state; empty before the first count.
    depths: dict[str, int] = field(default_factory=dict[str, int])
    #: What else it says of itself.
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ComponentView:
    """Anything else that said that it lives here."""

    name: str
    #: The name of its class.
    kind: str
    #: What its ``state()`` says.
    state: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A program at one moment. ``dataclasses.asdict`` of it can be written as JSON, and `to_dict` is the quick way."""

    #: Seconds since the epoch.
    time: float
    program: ProgramView
    #: None outside of one.
    lifetime: LifetimeState | None = None
    routers: tuple[RouterView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    flows: tuple[FlowsView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    inboxes: tuple[QueueView, ...] = ()
    others: tuple[ComponentView, ...] = ()
    #: What could not be asked, for people; the rest is as it is.
    errors: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists and plain values."""
        from lifecycle.observe._snapshot.encoding import unpacked

        return unpacked(self)
