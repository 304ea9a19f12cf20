"""What is read of the things that live under a lifetime when somebody asks for figures.

Each is known by its shape: a router has lanes, `Flows` has runs, a worker has a status, an inbox and a queue have
depths. One that cannot be read is logged, and the others are read all the same.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle._text import component_name
from lifecycle.observe.eventlog.summaries import masked_error

if TYPE_CHECKING:
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["FLOWS", "INBOXES", "JOBS", "LANES", "SATURATION", "WORKERS", "Reader", "Readings"]

_log = logging.getLogger("lifecycle.observe")

FLOWS: Final = "lifecycle.flows"
INBOXES: Final = "lifecycle.inbox.letters"
JOBS: Final = "lifecycle.queue.jobs"
LANES: Final = "lifecycle.lane.waiting"
SATURATION: Final = "lifecycle.pool.saturation"
WORKERS: Final = "lifecycle.workers"

#: For each meter, the values of its labels and how much it is.
Readings: TypeAlias = dict[str, dict[tuple[object, ...], float]]

#: Seconds that another thread waits for the loop; one that is blocked has no figures to show.
_PATIENCE: Final = 2.0


class Reader:
    """Reads what lives under ``lifetime``, always in the thread of its loop; nothing without a lifetime."""

    def __init__(self, lifetime: Lifetime | None) -> None:
        self._lifetime = lifetime
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # What could not be read; it is said once of each, and not at every scrape.
        self._unread: set[int] = set()

    def take(self) -> Readings:
        """What there is to read now; nothing where the loop does not answer."""
        if threading.get_ident() == self._thread:
            return self._take()
        readings: Future[Readings] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: readings.set_result(self._take()))
            return readings.result(_PATIENCE)
        except (RuntimeError, TimeoutError):  # the loop is closed, or blocked
            return {}

    def _take(self) -> Readings:
        readings: Readings = {FLOWS: {}, INBOXES: {}, JOBS: {}, LANES: {}, SATURATION: {}, WORKERS: {}}
        for each in () if self._lifetime is None else self._lifetime.components():
            try:
                _read(each, readings)
            except Exception as error:  # noqa: BLE001  # a state() that raises hides nothing else
                self._miss(each, error)
        return readings

    def _miss(self, component: object, error: Exception) -> None:
        if id(component) not in self._unread:
            self._unread.add(id(component))
            kind, name = type(component).__name__, component_name(component)
            told = kind if name == kind else f"{kind} {name!r}"
            _log.warning("%s cannot be read for meters: %s (said once)", told, masked_error(error))


def _read(component: Any, into: Readings) -> None:
    if callable(getattr(component, "lanes", None)):
        for lane in component.lanes():
            _add(into[LANES], (lane.name,), lane.waiting)
    elif isinstance(getattr(component, "runs", None), tuple):
        for run in component.runs:
            _add(into[FLOWS], (run.name, run.state), 1)
    elif hasattr(component, "status"):
        _read_worker(component.state(), component, into)
    else:
        _read_queue(component.state(), into)


def _read_queue(state: Any, into: Readings) -> None:
    """An inbox or a queue; what has no depths is neither."""
    for name, depth in getattr(state, "depths", {}).items():
        _add(into[INBOXES if state.kind == "inbox" else JOBS], (state.name, name), depth)


def _read_worker(state: Any, worker: Any, into: Readings) -> None:
    """Count a worker and those below it; ``worker`` itself is asked only for what no state has."""
    _add(into[WORKERS], (state.kind, state.status), 1)
    if state.kind == "pool":
        _read_pool(state, worker, into)
    for child in state.children:
        if child.children or child.kind == "pool":
            _read_worker(child, _child(worker, child.name), into)
        else:
            _add(into[WORKERS], (child.kind, child.status), 1)


def _read_pool(state: Any, pool: Any, into: Readings) -> None:
    if pool is not None and state.status in ("running", "suspended"):
        into[SATURATION][(state.name,)] = pool.stats().saturation


def _child(worker: Any, name: str) -> Any:
    """The worker that stands for a child of a supervisor; None where there is none just now."""
    try:
        return worker[name]
    except (KeyError, TypeError):
        return None


def _add(series: dict[tuple[object, ...], float], labels: tuple[object, ...], amount: float) -> None:
    series[labels] = series.get(labels, 0.0) + amount
