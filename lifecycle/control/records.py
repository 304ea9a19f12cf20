"""The state of a router and its parts, as frozen records. They are created only when a program reads them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LaneInfo", "RouteInfo", "RouterState", "SourceInfo"]


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """The state of a lane. A lane is created when its first event arrives."""

    name: str
    #: The number of events in its queue.
    waiting: int
    #: The number of handlers that are running.
    running: int
    #: The capacity of the queue: the router's buffer, plus one for each handler that could start.
    limit: int
    #: The maximum number of handlers that run at the same time.
    concurrency: int
    #: The number of keys that have events. None unless the lane is keyed.
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """The state of a route, with counts of the events that passed through its lane."""

    pattern: str
    handler: str
    lane: str
    busy: str
    #: The number of events sent to the route, including events merged by its debounce.
    routed: int
    #: The number of calls that returned.
    handled: int
    #: The number of calls that raised an error.
    failed: int
    #: The number of events that were dropped.
    dropped: int
    #: The file and line where the route was registered.
    place: str
    #: A burst ends after this many seconds without an event. None if the route has no debounce.
    debounce: float | None = None
    #: The number of bursts that have not ended.
    held: int = 0
    #: True for an observer, which sees the event in addition to its route.
    also: bool = False
    #: The name of the router from which `Router.include` took the route.
    included_from: str | None = None


@dataclass(frozen=True, slots=True)
class RouterState:
    """How many routes and sources a router has, and how many events passed through its lanes."""

    name: str
    routes: int
    middlewares: int
    sources: int
    running: bool
    routed: int
    handled: int
    failed: int
    unrouted: int
    dropped: int
    #: The handler for events that no route takes.
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The state of a source."""

    name: str
    #: True if the source is running or waiting to be restarted.
    running: bool
    #: True if the source is held by `Router.hold_source`.
    held: bool = False
    #: The number of failures.
    failures: int = 0
    #: The error message of the last failure.
    error: str | None = None
