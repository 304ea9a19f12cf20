"""The records that are drawn, told apart by what they have: rooms that this one does not know make some of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from lifecycle.control import RouteInfo, RouterState, SourceInfo
    from lifecycle.runtime import LifetimeState

__all__ = [
    "ItemRecord",
    "Parts",
    "RouterPart",
    "RunRecord",
    "WorkerRecord",
    "check_flow",
    "check_lifetime",
    "check_worker",
    "is_worker",
]


class HealthRecord(Protocol):
    """A probe's answer."""

    @property
    def healthy(self) -> bool: ...
    @property
    def message(self) -> str: ...


class WorkerRecord(Protocol):
    """A worker at one moment, as `lifecycle.workers.WorkerState`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def circuit(self) -> str: ...
    @property
    def health(self) -> HealthRecord | None: ...
    @property
    def abandoned(self) -> bool: ...
    @property
    def children(self) -> Sequence[WorkerRecord]: ...


class ItemRecord(Protocol):
    """A task, a retry or a flow in another, as `lifecycle.flows.ItemInfo`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def intention(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def items(self) -> Sequence[ItemRecord]: ...
    @property
    def follow(self) -> Sequence[Sequence[int]]: ...
    def counts(self) -> dict[str, int]: ...


class RunRecord(Protocol):
    """A flow that was started, as `lifecycle.flows.RunInfo`."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def root(self) -> ItemRecord: ...


@dataclass(slots=True)
class RouterPart:
    """A router with what it says of its routes and sources."""

    state: RouterState | None = None
    routes: list[RouteInfo] = field(default_factory=list["RouteInfo"])
    sources: list[SourceInfo] = field(default_factory=list["SourceInfo"])


#: What each record has that no other has.
_WORKER: Final = ("name", "kind", "status", "restarts", "circuit", "children")
_LIFETIME: Final = ("reason", "stopping", "signals", "force_exit_at")
_ROUTER: Final = ("name", "routed", "unrouted", "running")
_ROUTE: Final = ("pattern", "handler", "lane")
_SOURCE: Final = ("name", "running")
_RUN: Final = ("id", "name", "state", "root")
#: What a record of a whole program has, or some of it.
_PROGRAM: Final = ("lifetime", "router", "routes", "sources", "workers", "tree", "flows", "runs")


@dataclass(slots=True)
class Parts:
    """The records of one program, sorted by what they are."""

    lifetimes: list[LifetimeState] = field(default_factory=list["LifetimeState"])
    routers: list[RouterPart] = field(default_factory=list[RouterPart])
    workers: list[WorkerRecord] = field(default_factory=list[WorkerRecord])
    flows: list[RunRecord] = field(default_factory=list["RunRecord"])

    @classmethod
    def of(cls, state: object) -> Parts:
        """The records in ``state``.

        Raises:
            TypeError: naming what is none.
        """
        parts = cls()
        for record in _records(state):
            parts._add(record)
        return parts

    def _add(self, record: Any) -> None:
        if _has(record, _WORKER):
            self.workers.append(record)
        elif _has(record, _RUN):
            self.flows.append(record)
        elif _has(record, _LIFETIME):
            self.lifetimes.append(record)
        elif _has(record, _ROUTER):
            # Its routes may have come before it.
            router = self._router()
            if router.state is not None:
                self.routers.append(router := RouterPart())
            router.state = record
        elif _has(record, _ROUTE):
            self._router().routes.append(record)
        else:
            self._router().sources.append(record)

    def _router(self) -> RouterPart:
        if not self.routers:
            self.routers.append(RouterPart())
        return self.routers[-1]


def is_worker(state: object) -> bool:
    """Whether it is the state of a worker."""
    return _has(state, _WORKER)


def check_worker(state: object) -> None:
    """Refuse what is no worker's state.

    Raises:
        TypeError: saying what to give.
    """
    if not is_worker(state):
        raise TypeError(f"{state!r} is no worker's state; give worker.state(), or supervisor.state()")


def check_lifetime(state: object) -> None:
    """Refuse what is no lifetime's state.

    Raises:
        TypeError: saying what to give.
    """
    if not _has(state, _LIFETIME):
        raise TypeError(f"{state!r} is no lifetime's state; give life.state(), for instance current().state()")


def check_flow(state: object) -> None:
    """Refuse what is no flow's.

    Raises:
        TypeError: saying what to give.
    """
    if not _has(state, _RUN):
        raise TypeError(f"{state!r} is not how a flow is; give run.info(), or one of flows.state().runs")


def _records(state: Any) -> Iterator[object]:
    """The records in mappings, sequences, and records of a whole program, in their order."""
    if any(_has(state, names) for names in (_WORKER, _RUN, _LIFETIME, _ROUTER, _ROUTE, _SOURCE)):
        yield state
    elif state is not None:
        for each in _contents(state):
            yield from _records(each)


def _contents(state: Any) -> Sequence[object]:
    if isinstance(state, Mapping):
        return list(cast("Mapping[object, object]", state).values())
    if isinstance(state, Sequence) and not isinstance(state, (str, bytes, bytearray)):
        return cast("Sequence[object]", state)
    if not _lives(state) and any(hasattr(state, name) for name in _PROGRAM):
        return [getattr(state, name, None) for name in _PROGRAM]
    raise TypeError(
        f"{state!r} is nothing that a system consists of; give the state() of a lifetime, a router, a worker, a "
        "supervisor or flows, the routes() or sources() of a router, or a mapping or sequence of such"
    )


def _has(record: object, names: Sequence[str]) -> bool:
    return not _lives(record) and all(hasattr(record, name) for name in names)


def _lives(thing: object) -> bool:
    """Whether it is no record, and will give one."""
    return callable(getattr(thing, "state", None))
