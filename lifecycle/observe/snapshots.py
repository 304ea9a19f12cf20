"""`snapshot`: the state of a whole program at a particular moment, as records that can be converted to JSON.

Components are read separately: if one component's ``state()`` raises, the snapshot contains the error in its place.
The type that ``state()`` returns determines how a component is listed. The records of workers and flows are recognized
by their classes, and those of queues by their field ``depths``.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from lifecycle._masking import Limits, is_number, masked, masked_values
from lifecycle._text import component_name, text_of
from lifecycle._util import program_name
from lifecycle.control.records import LaneInfo, RouteInfo, SourceInfo  # noqa: TC001  # to_dict reads the types
from lifecycle.control.router import Router
from lifecycle.flows.records import FlowsState, ItemInfo, RunInfo
from lifecycle.runtime.lifetimes import Lifetime, current_lifetime
from lifecycle.runtime.records import LifetimeState  # noqa: TC001  # as above
from lifecycle.workers.model import FINAL, Status, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ComponentView",
    "FlowsView",
    "PoolView",
    "ProgramView",
    "QueueView",
    "RouterView",
    "Snapshot",
    "WorkerView",
    "needed_lifetime",
    "snapshot",
    "snapshot_of",
    "to_dict",
]

_R = TypeVar("_R")

#: Limits for state that is defined by the program's own classes.
_LIMITS = Limits(depth=8, text=10_000, items=1000, values=20_000)


# -- records -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramView:
    """The process and host, and the versions of Python and this library."""

    name: str
    pid: int
    host: str
    #: The Python version.
    python: str
    #: This library's version.
    version: str
    #: When the lifetime began, in seconds since the epoch; None outside a lifetime.
    started_at: float | None
    #: How many seconds ago the lifetime began; None outside a lifetime.
    uptime: float | None


@dataclass(frozen=True, slots=True)
class WorkerView(WorkerState):
    """A worker and its children. The status is ``unknown`` if the worker's state could not be read."""

    status: str  # type: ignore[assignment]  # a superset of Status
    children: tuple[WorkerView, ...] = ()
    #: How many seconds ago the worker started; None if it is not running.
    uptime: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool's statistics, and the pool as a worker whose children are the pool's workers."""

    worker: WorkerView
    #: The fields of `PoolStats`. Empty if they could not be read.
    stats: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RouterView:
    """A router and its parts. The counts only include events that passed through lanes."""

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
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FlowsView(FlowsState):
    """An open flow store and its unfinished flows."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """The jobs in a queue, or the messages in an inbox."""

    name: str
    #: The number of entries in each state; empty until they have been counted for the first time.
    depths: dict[str, int] = field(default_factory=dict[str, int])
    #: The other fields of the queue's state.
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ComponentView:
    """Any other component."""

    name: str
    #: The name of the component's class.
    kind: str
    #: The result of its ``state()``.
    state: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A program's state at one moment. `to_dict` does the same as ``dataclasses.asdict``, but faster."""

    #: When the snapshot was taken, in seconds since the epoch.
    time: float
    program: ProgramView
    #: The lifetime's state; None outside a lifetime.
    lifetime: LifetimeState | None = None
    routers: tuple[RouterView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    flows: tuple[FlowsView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    inboxes: tuple[QueueView, ...] = ()
    others: tuple[ComponentView, ...] = ()
    #: Errors from components whose state could not be read.
    errors: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as dictionaries, lists and plain values."""
        return to_dict(self)


# -- taking a snapshot ---------------------------------------------------------------------------------------------


def snapshot(*components: object) -> Snapshot:
    """Return the current state of all components in the lifetime or, if you pass any, of ``components``.

    Routers, workers, pools, flows, queues and inboxes have their own record types. All other components with a
    ``state()`` are listed in ``others``. If a component's ``state()`` raises, its record contains the error.

    Raises:
        LookupError: if you pass no components and there is no current lifetime.
    """
    if components:
        return snapshot_of(current_lifetime(), components)
    lifetime = needed_lifetime()
    return snapshot_of(lifetime, lifetime.components())


def needed_lifetime() -> Lifetime:
    """Return the current lifetime.

    Raises:
        LookupError: if there is none. The message suggests alternatives.
    """
    lifetime = current_lifetime()
    if lifetime is None:
        raise LookupError(
            "there is no lifetime here; call this below run(…) or inside `async with lifetime()`, or "
            "pass the components: snapshot(router, supervisor)"
        )
    return lifetime


def snapshot_of(lifetime: Lifetime | None, components: tuple[object, ...]) -> Snapshot:
    """Return a snapshot of ``components`` in a program with this lifetime."""
    now = time.time()
    state = None if lifetime is None else lifetime.state()
    started_at = None if lifetime is None else lifetime.started_at
    uptime = None if started_at is None else max(0.0, now - started_at)
    program = ProgramView(program_name(), os.getpid(), *_versions(), started_at, uptime)
    collector = _Collector(now)
    collector.collect(components)
    return Snapshot(
        now,
        program,
        state,
        tuple(collector.routers),
        tuple(collector.workers),
        tuple(collector.pools),
        tuple(collector.flows),
        tuple(collector.queues),
        tuple(collector.inboxes),
        tuple(collector.others),
        tuple(collector.errors),
    )


@cache
def _versions() -> tuple[str, str, str]:
    """Return the host name, the Python version, and this library's version."""
    try:
        library = version("lifecycle-control")
    except PackageNotFoundError:
        library = "unknown"
    return socket.gethostname(), platform.python_version(), library


class _Collector:
    """Collects the components' records by kind."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.routers: list[RouterView] = []
        self.workers: list[WorkerView] = []
        self.pools: list[PoolView] = []
        self.flows: list[FlowsView] = []
        self.queues: list[QueueView] = []
        self.inboxes: list[QueueView] = []
        self.others: list[ComponentView] = []
        self.errors: list[str] = []

    def collect(self, components: Iterable[object]) -> None:
        """Read the state of each component."""
        for component in components:
            if isinstance(component, Router):
                self.routers.append(self._router(component))
            else:
                self._collect(component)

    def _collect(self, component: Any) -> None:
        name = component_name(component)
        state, error = self._call(name, lambda: component.state())  # noqa: PLW0108  # the component may have no state()
        try:
            if error is not None:
                self._add_failed(component, name, error)
            elif isinstance(state, WorkerState):
                self._add_worker(component, state)
            elif isinstance(state, FlowsState):
                self.flows.append(FlowsView(masked(state.store), tuple(map(_run, state.runs))))
            elif _is_queue(state):
                (self.inboxes if state.kind == "inbox" else self.queues).append(_checked(_queue(state)))
            else:
                self.others.append(ComponentView(name, type(component).__name__, _plain(state)))
        except Exception as error:  # noqa: BLE001  # a record's fields may contain values of any type
            self._add_failed(component, name, self._note(name, error))

    def _call(self, name: str, function: Callable[[], Any]) -> tuple[Any, str | None]:
        """Return the result of ``function``, or its error."""
        try:
            result = function()
        except Exception as error:  # noqa: BLE001  # classes in the program may raise anything
            return None, self._note(name, error)
        if inspect.iscoroutine(result):
            result.close()
            return None, self._note(name, TypeError("state() is async; it must be a plain function"))
        return result, None

    def _note(self, name: str, error: Exception) -> str:
        text = masked(text_of(error))
        self.errors.append(f"{name}: {text}")
        return text

    def _add_failed(self, component: Any, name: str, error: str) -> None:
        """Add an unreadable component to the list for its kind."""
        if all(callable(getattr(component, each, None)) for each in ("start", "stop", "wait")):
            view = WorkerView(name, text_of(getattr(component, "kind", "worker")), "unknown", error=error)
            if _is_pool(component):
                self.pools.append(PoolView(view, error=error))
            else:
                self.workers.append(view)
        else:
            self.others.append(ComponentView(name, type(component).__name__, error=error))

    def _router(self, router: Router) -> RouterView:
        name = component_name(router)
        state, error = self._call(name, router.state)
        parts: dict[str, Any] = {}
        for part in ("routes", "lanes", "sources"):
            found, failed = self._call(f"{name} {part}", partial(_infos, router, part))
            parts[part], error = found or (), error or failed
        if state is None:
            return RouterView(name, **parts, error=error)
        counts = {each: getattr(state, each) for each in ("routed", "handled", "failed", "unrouted", "dropped")}
        return RouterView(name, state.running, state.middlewares, **counts, **parts, error=error)

    def _add_worker(self, component: Any, state: WorkerState) -> None:
        view = self._worker(state)
        if not _is_pool(component):
            self.workers.append(view)
            return
        stats, error = self._call(f"{view.name} stats", component.stats)
        figures: dict[str, float] = {} if error or not dataclasses.is_dataclass(stats) else _plain(stats)
        self.pools.append(PoolView(view, figures, error))

    def _worker(self, state: WorkerState) -> WorkerView:
        error, health, started_at = state.error, state.health, state.started_at
        values = (
            state.name,
            state.kind,
            str(state.status),
            state.pid,
            state.exit_code,
            masked(error) if isinstance(error, str) else error,
            state.restarts,
            state.circuit,
            None if health is None else dataclasses.replace(health, message=masked(text_of(health.message))),
            state.created_at,
            started_at,
            state.updated_at,
            state.abandoned,
        )
        children = tuple(map(self._child, state.children)) if state.children else ()
        uptime = None if started_at is None or state.status in _NOT_UP else max(0.0, self._now - started_at)
        view = WorkerView(*values, children, state.contain, uptime)
        # Checking every field is slow, so we cache the combinations of types that are known to be valid.
        types = tuple(map(type, (*values, state.contain)))
        if types not in _CHECKED or not isfinite(state.created_at + state.updated_at + (started_at or 0.0)):
            _checked(view)
            if len(_CHECKED) < _MAX_CHECKED:
                _CHECKED.add(types)
        return view

    def _child(self, state: WorkerState) -> WorkerView:
        try:
            return self._worker(state)
        except Exception as error:  # noqa: BLE001  # classes in the program may raise anything
            name = text_of(getattr(state, "name", ""))
            kind = text_of(getattr(state, "kind", "worker"))
            return WorkerView(name, kind, "unknown", error=self._note(name, error))


#: Workers with one of these statuses have no uptime.
_NOT_UP = {*FINAL, Status.CREATED, Status.PENDING, Status.STARTING}

#: Combinations of field types that are valid for a worker. At most `_MAX_CHECKED` of them are cached.
_CHECKED: set[tuple[type, ...]] = set()
_MAX_CHECKED = 256


def _checked(record: _R) -> _R:
    """Return ``record`` if the value of each field has the declared type.

    Raises:
        TypeError: if a value has a different type. A program can put any value into one of our records.
    """
    if wrong := _misfit(record):
        raise TypeError(wrong)
    return record


def _is_queue(state: object) -> bool:
    return dataclasses.is_dataclass(state) and hasattr(state, "kind") and hasattr(state, "depths")


def _is_pool(component: Any) -> bool:
    return callable(getattr(component, "stats", None))


def _infos(router: Router, part: str) -> tuple[Any, ...]:
    infos = [_checked(each) for each in getattr(router, part)()]
    return tuple(map(_mask_error, infos))


def _mask_error(record: _R) -> _R:
    error = getattr(record, "error", None)
    # The annotation is Any because the record classes have no common base.
    masked_record: Any = record
    return dataclasses.replace(masked_record, error=masked(error)) if isinstance(error, str) else record


def _run(run: RunInfo) -> RunInfo:
    return _checked(dataclasses.replace(_mask_error(run), state=str(run.state), root=_item(run.root)))


def _item(item: ItemInfo) -> ItemInfo:
    state, intention, items = str(item.state), str(item.intention), tuple(map(_item, item.items))
    return _checked(dataclasses.replace(_mask_error(item), state=state, intention=intention, items=items))


def _plain(value: object) -> Any:
    return masked_values(value, limits=_LIMITS)


def _queue(state: Any) -> QueueView:
    details = _plain(state)
    name, depths, _ = details.pop("name"), details.pop("depths"), details.pop("kind")
    return QueueView(name, depths, details)


# -- records as dictionaries -----------------------------------------------------------------------------------------


def to_dict(record: Any, *, without: str = "") -> dict[str, Any]:
    """Return a record as a dictionary. The value of the field named by ``without`` is not converted."""
    names, values_of, nested = _plan(record.__class__)
    values: dict[str, Any] = dict(zip(names, values_of(record), strict=True))
    for name, convert in nested:
        value = values[name]
        if value is not None and name != without:
            values[name] = convert(value)
    return values


_Plan = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Callable[[Any], Any]], ...]]


@cache
def _plan(kind: type) -> _Plan:
    """Return the field names, a function that gets the values, and the converters for nested values."""
    hints = get_type_hints(kind)
    names = tuple(each.name for each in dataclasses.fields(kind))
    nested = tuple((name, convert) for name in names if (convert := _converter(hints[name])) is not None)
    # Every record has at least two fields, so attrgetter always returns a tuple.
    return names, attrgetter(*names), nested


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((found for each in args if each is not NoneType and (found := _converter(each))), None)
    if origin is tuple:
        convert = _converter(args[0])
        # We use as few stack frames as possible, because records are nested as deeply as supervisors.
        return list if convert is None else lambda values: list(map(convert, values))
    if dataclasses.is_dataclass(hint):
        return to_dict
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    return None


def _misfit(record: Any) -> str | None:
    """Describe the first field whose value has the wrong type, or return None if all values are valid."""
    kind = record.__class__
    names, values_of, _ = _plan(kind)
    for name, allowed, value in zip(names, _types(kind), values_of(record), strict=True):
        if allowed and not _fits(value, allowed):
            return f"its state() has the invalid value {name}={text_of(value)}"
    return None


@cache
def _types(kind: type) -> tuple[tuple[type, ...], ...]:
    """Return a tuple of allowed types per field, which is empty for records and for fields that allow any value."""
    hints = get_type_hints(kind)
    return tuple(_allowed(hints[each.name]) for each in dataclasses.fields(kind))


def _allowed(hint: Any) -> tuple[type, ...]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [_allowed(each) for each in args]
        return tuple(each for part in parts for each in part) if all(parts) else ()
    if origin is dict and args[1] is not Any:
        return (dict,)
    return {str: (str,), bool: (bool,), int: (int,), float: (float, int), NoneType: (NoneType,)}.get(hint, ())


def _fits(value: Any, allowed: tuple[type, ...]) -> bool:
    if not isinstance(value, allowed):
        return False
    if allowed == (dict,):
        items = cast("dict[Any, Any]", value).items()
        return all(isinstance(key, str) and _fits(each, (int, float)) for key, each in items)
    return value is None or isinstance(value, str) or is_number(value)
