"""Asking components for their states, each by itself: one that fails becomes an error in its place.

Rooms that this one does not know are told by what they have: a worker's state has a kind, a status and children, that
of flows has runs, that of a queue has depths; a pool is a worker that has stats.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle._masking import masked
from lifecycle._text import component_name
from lifecycle.control.router import Router
from lifecycle.observe._snapshot.encoding import misfit, plain, told
from lifecycle.observe._snapshot.views import (
    ComponentView,
    FlowsView,
    FlowView,
    HealthView,
    ItemView,
    PoolView,
    QueueView,
    RouterView,
    WorkerView,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Survey"]

_R = TypeVar("_R")

#: The statuses of a worker that has ended or has not begun: it is not up.
_DOWN = frozenset({"created", "pending", "starting", "stopped", "finished", "failed", "killed"})


class Survey:
    """The views of components, by their kinds, as of one moment."""

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

    def take(self, components: Iterable[object]) -> None:
        """Ask each of them."""
        for component in components:
            if isinstance(component, Router):
                self.routers.append(self._router(component))
            else:
                self._take(component)

    def _take(self, component: Any) -> None:
        name = component_name(component)
        state, error = self._asked(name, lambda: component.state())  # noqa: PLW0108  # it may have none
        try:
            if error is not None:
                self._missing(component, name, error)
            elif _has(state, "name", "kind", "status", "children"):
                self._worker(component, state)
            elif _has(state, "store", "runs"):
                self.flows.append(FlowsView(masked(told(state.store)), tuple(map(_flow, state.runs))))
            elif _has(state, "kind", "depths"):
                (self.inboxes if state.kind == "inbox" else self.queues).append(_sound(_queue(state)))
            else:
                self.others.append(ComponentView(name, type(component).__name__, plain(state)))
        except Exception as error:  # noqa: BLE001  # a record that is not what it looks like
            self._missing(component, name, self._note(name, error))

    def _asked(self, name: str, ask: Callable[[], Any]) -> tuple[Any, str | None]:
        """What ``ask`` says, or the error."""
        try:
            said = ask()
        except Exception as error:  # noqa: BLE001  # of others: shown in its place
            return None, self._note(name, error)
        if inspect.iscoroutine(said):
            said.close()
            return None, self._note(name, TypeError("state() is async; it has to answer at once"))
        return said, None

    def _note(self, name: str, error: Exception) -> str:
        text = masked(told(error))
        self.errors.append(f"{name}: {text}")
        return text

    def _missing(self, component: Any, name: str, error: str) -> None:
        """What could not be asked is shown where it belongs."""
        if all(callable(getattr(component, each, None)) for each in ("start", "stop", "wait")):
            view = WorkerView(name, told(getattr(component, "kind", "worker")), "unknown", error=error)
            if _is_pool(component):
                self.pools.append(PoolView(view, error=error))
            else:
                self.workers.append(view)
        else:
            self.others.append(ComponentView(name, type(component).__name__, error=error))

    # -- routers --------------------------------------------------------------------------------------------------

    def _router(self, router: Router) -> RouterView:
        name = component_name(router)
        state, error = self._asked(name, router.state)
        parts: dict[str, Any] = {}
        for part in ("routes", "lanes", "sources", "taps"):
            found, failed = self._asked(f"{name} {part}", partial(_infos, router, part))
            parts[part], error = found or (), error or failed
        if state is None:
            return RouterView(name, **parts, error=error)
        counts = {each: getattr(state, each) for each in _COUNTS}
        return RouterView(name, state.running, state.middlewares, **counts, **parts, error=error)

    # -- workers --------------------------------------------------------------------------------------------------

    def _worker(self, component: Any, state: Any) -> None:
        view = self._view(state)
        if not _is_pool(component):
            self.workers.append(view)
            return
        stats, error = self._asked(f"{view.name} stats", component.stats)
        figures: dict[str, float] = {} if error or not dataclasses.is_dataclass(stats) else plain(stats)
        self.pools.append(PoolView(view, figures, error))

    def _view(self, state: Any) -> WorkerView:
        try:
            known = _worker_fields(state)
        except AttributeError:
            known = tuple(getattr(state, name, default) for name, default in _WORKER.items())
        name, kind, status, *rest, health, created_at, started_at, updated_at, abandoned, contain, children = known
        status = str(status)
        pid, exit_code, error, restarts, circuit = rest
        view = WorkerView(
            name,
            kind,
            status,
            pid,
            exit_code,
            _masked(error),
            restarts,
            circuit,
            None if health is None else HealthView(bool(health.healthy), masked(told(health.message))),
            created_at,
            started_at,
            updated_at,
            None if started_at is None or status in _DOWN else max(0.0, self._now - started_at),
            abandoned,
            contain,
            tuple(map(self._child, children)) if children else (),
        )
        # For nearly all one look at the types, and one at the times.
        types = tuple(map(type, known))
        if types not in _FITTING or not isfinite(created_at + updated_at + (started_at or 0.0)):
            _sound(view)
            if len(_FITTING) < _SHAPES:
                _FITTING.add(types)
        return view

    def _child(self, state: Any) -> WorkerView:
        try:
            return self._view(state)
        except Exception as error:  # noqa: BLE001  # of others: its siblings are shown
            name = told(getattr(state, "name", ""))
            return WorkerView(name, told(getattr(state, "kind", "worker")), "unknown", error=self._note(name, error))


_COUNTS = ("routed", "handled", "failed", "unrouted", "dropped")

#: What is read of a worker's state, and what stands for it where somebody else's has not got it.
_WORKER: dict[str, Any] = {
    **{each.name: each.default for each in dataclasses.fields(WorkerView) if each.name != "uptime"},
    "name": "",
    "kind": "worker",
    "status": "unknown",
}
_worker_fields = attrgetter(*_WORKER)


def _sound(record: _R) -> _R:
    """``record``, unless something in it is not what its type says: others may fill ours with anything."""
    if wrong := misfit(record):
        raise TypeError(wrong)
    return record


def _infos(router: Router, part: str) -> tuple[Any, ...]:
    return tuple(_with_masked_error(_sound(each)) for each in getattr(router, part)())


def _with_masked_error(info: Any) -> Any:
    return dataclasses.replace(info, error=masked(info.error)) if getattr(info, "error", None) else info


def _masked(error: Any) -> Any:
    """``error`` masked where it is text; anything else is refused later."""
    return masked(error) if isinstance(error, str) else error


def _is_pool(component: Any) -> bool:
    return callable(getattr(component, "stats", None))


#: What the fields that are read of workers were when they fitted, and how many such combinations are remembered.
_FITTING: set[tuple[type, ...]] = set()
_SHAPES = 256


def _flow(run: Any) -> FlowView:
    return _sound(FlowView(run.id, run.name, str(run.state), _masked(run.error), _item(run.root)))


def _item(info: Any) -> ItemView:
    view = ItemView(
        info.name,
        info.kind,
        str(info.state),
        str(info.intention),
        info.attempt,
        _masked(info.error),
        tuple(map(_item, info.items)),
        tuple(tuple(each) for each in info.follow),
    )
    return _sound(view)


def _queue(state: Any) -> QueueView:
    details = plain(state)
    name, depths, _ = details.pop("name"), details.pop("depths"), details.pop("kind")
    return QueueView(name, depths, details)


def _has(state: Any, *names: str) -> bool:
    return dataclasses.is_dataclass(state) and all(hasattr(state, name) for name in names)
