"""The metrics: a single table that defines all counters, histograms and gauges, and the policy for their label values.

The Prometheus and OpenTelemetry modules only export this table. Each metric either triggers an alert or helps to
diagnose one; ``docs/reference/metrics.md`` suggests alerts. To count other hooks, connect your own receiver.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from lifecycle import hooks
from lifecycle._masking import error_masked
from lifecycle._text import component_name, shorten, utf8
from lifecycle.control.router import Router
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.hooks import Hook
    from lifecycle.runtime.lifetimes import Lifetime

    #: Returns the label values for a hook's sender and arguments.
    LabelsOf: TypeAlias = Callable[[Any, Mapping[str, Any]], tuple[object, ...]]

__all__ = [
    "BUCKETS",
    "COUNTERS",
    "GAUGES",
    "HISTOGRAMS",
    "LABELS",
    "Counter",
    "Gauge",
    "GaugeReader",
    "Histogram",
    "LabelPolicy",
    "Metric",
    "Series",
    "checked_policy",
    "counting",
    "exported_values",
    "timing",
]

_log = logging.getLogger("lifecycle.observe")

T = TypeVar("T")

#: Histogram bounds in seconds. They range from quick computations to builds.
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0)

#: How many seconds other threads wait for the loop to read the gauges. If the loop is blocked for longer, no gauges are
#: exported.
_LOOP_TIMEOUT: Final = 2.0

#: The maximum length of a logged error, in characters.
_ERROR: Final = 500

_UNKNOWN, _OTHER = "unknown", "other"

FLOWS: Final = "lifecycle.flows"
INBOXES: Final = "lifecycle.inbox.letters"
JOBS: Final = "lifecycle.queue.jobs"
LANES: Final = "lifecycle.lane.waiting"
SATURATION: Final = "lifecycle.pool.saturation"
WORKERS: Final = "lifecycle.workers"

#: The values of each gauge, by the gauge's name and the label values.
Readings: TypeAlias = dict[str, dict[tuple[object, ...], float]]


# -- label values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """Restrictions on label values, so that names in your program cannot create an unbounded number of series.

    An empty value becomes ``unknown``, and a value that is too long is truncated and ends in ``…``. If ``allow`` lists
    the values for a label, any other value becomes ``other`` or, with ``strict``, is not counted at all.

    Raises:
        ValueError: if ``allow`` contains a label that no metric has, or a limit is below 1.
        TypeError: if a label's values are a single string.
    """

    #: The allowed values for each label. A label that is not listed accepts any value.
    allow: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    strict: bool = False
    #: The maximum length of a value, in characters.
    max_length: int = 64
    #: The maximum number of series per metric. Once it is reached, all new label values are recorded as ``other``.
    max_series: int = 1000

    def __post_init__(self) -> None:
        for label, values in self.allow.items():
            if label not in LABELS:
                raise ValueError(f"no metric has the label {label!r} in allow; expected one of {', '.join(LABELS)}")
            if isinstance(values, str):
                raise TypeError(f"allow={{{label!r}: {values!r}}} is a single string; pass a list of values")
        for name, number in {"max_length": self.max_length, "max_series": self.max_series}.items():
            if number < 1:
                raise ValueError(f"{name} must be 1 or more, got {number!r}")


def exported_values(policy: LabelPolicy, labels: tuple[str, ...], values: tuple[object, ...]) -> tuple[str, ...] | None:
    """Return one series' label values as ``policy`` exports them, or None if the series must not be counted."""
    exported = [_exported(policy, label, value) for label, value in zip(labels, values, strict=True)]
    kept = tuple(text for text in exported if text is not None)
    return kept if len(kept) == len(labels) else None


def _exported(policy: LabelPolicy, label: str, value: object) -> str | None:
    text = str(value).strip()
    if not text:
        return _UNKNOWN
    allowed = policy.allow.get(label)
    if allowed is not None and text not in allowed:
        return None if policy.strict else _OTHER
    return utf8(shorten(text, policy.max_length))


def checked_policy(labels: LabelPolicy | None) -> LabelPolicy:
    """Return ``labels``, or the default policy if it is None.

    Raises:
        TypeError: if ``labels`` is not a policy.
    """
    if labels is None:
        return LabelPolicy()
    if not isinstance(labels, LabelPolicy):
        raise TypeError(f"labels must be a LabelPolicy, got {labels!r}")
    return labels


# -- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with one value for each combination of label values.

    The name is in OpenTelemetry's format. For Prometheus, dots become ``_``, and the unit and ``_total`` are appended.
    """

    name: str
    help: str
    labels: tuple[str, ...]

    @property
    def plain_name(self) -> str:
        """The name for Prometheus, without the unit or ``_total``."""
        return self.name.replace(".", "_")

    def attributes(self, labels: tuple[str, ...]) -> dict[str, str]:
        """Return the label values by label name."""
        return dict(zip(self.labels, labels, strict=True))


def _always(_: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A metric that counts how many times a hook is called."""

    hook: Hook
    labels_of: LabelsOf
    #: Returns whether to count a call with these arguments.
    counts: Callable[[Mapping[str, Any]], bool] = _always


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A metric that records durations, in seconds, passed to a hook."""

    hook: Hook
    labels_of: LabelsOf
    #: The name of the hook's argument that contains the duration.
    seconds: str


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A metric whose value `GaugeReader` reads during each export."""

    #: Combines two readings whose labels become equal under the policy.
    combine: Callable[[float, float], float] = float.__add__

    def series(self, readings: Mapping[tuple[object, ...], float], policy: LabelPolicy) -> dict[tuple[str, ...], float]:
        """Return ``readings`` with the label values that ``policy`` allows."""
        series: dict[tuple[str, ...], float] = {}
        for values, amount in readings.items():
            labels = exported_values(policy, self.labels, values)
            if labels is None:
                continue
            if labels not in series and len(series) >= policy.max_series:
                labels = (_OTHER,) * len(labels)
            series[labels] = self.combine(series[labels], amount) if labels in series else amount
        return series


def _error(arguments: Mapping[str, Any]) -> str:
    return type(arguments["error"]).__name__


def _worker_labels(worker: Any) -> tuple[object, ...]:
    # The processes of a pool come and go, and each has a new name.
    return worker.kind, worker.pool_name if worker.kind == "member" else worker.name


def _has_error(arguments: Mapping[str, Any]) -> bool:
    return arguments["error"] is not None


HISTOGRAMS: Final = (
    Histogram(
        "lifecycle.handler.duration",
        "Duration of successful handler calls, in seconds.",
        ("pattern",),
        hooks.handler_finished,
        lambda _, given: (given["pattern"] or "",),
        "duration",
    ),
    Histogram(
        "lifecycle.pool.call.wait",
        "Time that pool calls spent waiting for a worker, in seconds.",
        ("pool", "function"),
        hooks.call_finished,
        lambda pool, given: (pool.name, given["function"]),
        "waited",
    ),
    Histogram(
        "lifecycle.pool.call.duration",
        "Time that pool calls spent running in a worker, in seconds.",
        ("pool", "function"),
        hooks.call_finished,
        lambda pool, given: (pool.name, given["function"]),
        "ran",
    ),
)

COUNTERS: Final = (
    Counter(
        "lifecycle.handler.errors",
        "Handler calls that raised an exception.",
        ("pattern", "error"),
        hooks.handler_failed,
        lambda _, given: (given["pattern"] or "", _error(given)),
    ),
    Counter(
        "lifecycle.events.dropped",
        "Events that were dropped.",
        ("pattern",),
        hooks.event_dropped,
        lambda _, given: (given["pattern"] or "",),
    ),
    Counter(
        "lifecycle.events.unrouted", "Events that no handler accepted.", (), hooks.event_unrouted, lambda _, __: ()
    ),
    Counter(
        "lifecycle.source.failures",
        "Exceptions raised by sources.",
        ("source",),
        hooks.source_failed,
        lambda _, given: (given["name"],),
    ),
    Counter(
        "lifecycle.webhook.refused",
        "Requests that a webhook source refused, by the status of the response.",
        ("source", "status"),
        hooks.webhook_refused,
        lambda source, given: (source.name, given["status"]),
    ),
    Counter(
        "lifecycle.worker.failed",
        "Workers that failed.",
        ("worker_type", "worker"),
        hooks.worker_failed,
        lambda _, given: _worker_labels(given["worker"]),
    ),
    Counter(
        "lifecycle.worker.killed",
        "Workers that were killed after their stop timeout.",
        ("worker_type", "worker"),
        hooks.worker_killed,
        lambda _, given: _worker_labels(given["worker"]),
    ),
    Counter(
        "lifecycle.child.restarts",
        "Times that a supervisor restarted a worker, even if it was not ready in the end.",
        ("supervisor", "child"),
        hooks.worker_restarted,
        lambda supervisor, given: (supervisor.name, given["child"]),
    ),
    Counter(
        "lifecycle.circuit_breaker.triggered",
        "Workers that a supervisor stopped restarting.",
        ("supervisor", "child"),
        hooks.circuit_opened,
        lambda supervisor, given: (supervisor.name, given["child"]),
    ),
    Counter(
        "lifecycle.pool.call.errors",
        "Pool calls that failed.",
        ("pool", "error"),
        hooks.call_finished,
        lambda pool, given: (pool.name, _error(given)),
        _has_error,
    ),
    Counter(
        "lifecycle.flow.ended",
        "Flows that finished.",
        ("flow", "state"),
        hooks.flow_ended,
        lambda flow, given: (flow.name, given["state"]),
    ),
    Counter(
        "lifecycle.task.crashed", "Background tasks that raised an exception.", (), hooks.task_crashed, lambda _, __: ()
    ),
    Counter(
        "lifecycle.critical_section.finished",
        "Critical sections that finished.",
        ("success",),
        hooks.critical_finished,
        lambda _, given: ("false" if given["error"] else "true",),
    ),
    Counter(
        "lifecycle.hook.errors",
        "Shutdown hooks that raised an exception.",
        (),
        hooks.hook_finished,
        lambda _, __: (),
        _has_error,
    ),
)

GAUGES: Final = (
    Gauge(LANES, "Events waiting in a lane.", ("lane",)),
    Gauge(WORKERS, "Workers, including those in supervisors and pools.", ("worker_type", "status")),
    Gauge(SATURATION, "Share of a pool's slots in use, from 0 to 1.", ("pool",), max),
    Gauge(FLOWS, "Flows that have not finished yet.", ("flow", "state")),
    Gauge(INBOXES, "Webhook messages that have been accepted but not handled yet.", ("inbox", "state")),
    Gauge(JOBS, "Jobs in the queues that this program processes.", ("queue", "state")),
)

#: All labels and their meanings.
LABELS: Final = {
    "child": "name of the worker within its supervisor",
    "error": "type of the exception",
    "flow": "name of the flow's definition",
    "function": "name of the called function",
    "inbox": "file of the inbox",
    "lane": "name of the lane, which serves one route or several routes that share it",
    "pattern": "pattern of the route",
    "pool": "name of the pool",
    "queue": "file or server of the job queue",
    "source": "name of the source",
    "state": "state of the flow, message or job",
    "status": "status of the worker",
    "success": "true or false",
    "supervisor": "name of the supervisor",
    "worker": "name of the worker; for a process of a pool, the pool's name",
    "worker_type": "kind of the worker, such as process, task, supervisor or pool",
}


# -- counting and timing -------------------------------------------------------------------------------------------


class Series(Generic[T]):
    """Finds the series for a set of label values. Sets that become equal under the policy share a series."""

    def __init__(self, labels: tuple[str, ...], policy: LabelPolicy, make: Callable[[tuple[str, ...]], T]) -> None:
        self._labels = labels
        self._policy = policy
        self._make = make
        self._series: dict[tuple[str, ...], T] = {}
        # Caches series by their original label values. Its size is limited to a multiple of the maximum number of
        # series.
        self._cache: dict[tuple[object, ...], T | None] = {}

    def of(self, values: tuple[object, ...]) -> T | None:
        """Return the series for ``values``, or None if they must not be counted."""
        try:
            return self._cache[values]
        except KeyError:
            return self._find(values)

    def _find(self, values: tuple[object, ...]) -> T | None:
        labels = exported_values(self._policy, self._labels, values)
        series = None if labels is None else self._make_once(labels)
        if len(self._cache) < 4 * self._policy.max_series:
            self._cache[values] = series
        return series

    def _make_once(self, labels: tuple[str, ...]) -> T:
        if labels not in self._series and len(self._series) >= self._policy.max_series:
            labels = (_OTHER,) * len(labels)
        if labels not in self._series:
            self._series[labels] = self._make(labels)
        return self._series[labels]


def timing(
    metric: Histogram, policy: LabelPolicy, make: Callable[[tuple[str, ...]], Callable[[float], object]]
) -> Callable[..., None]:
    """Return a hook receiver that records durations.

    ``make`` creates a series for the given label values, and returns a function that records a duration in it.
    """
    labels_of, seconds, series = metric.labels_of, metric.seconds, Series(metric.labels, policy, make)

    def time(sender: Any, **given: Any) -> None:
        if (observe := series.of(labels_of(sender, given))) is not None:
            observe(given[seconds])

    return time


def counting(
    metric: Counter, policy: LabelPolicy, make: Callable[[tuple[str, ...]], Callable[[], object]]
) -> Callable[..., None]:
    """Return a hook receiver that counts calls.

    ``make`` creates a series for the given label values, and returns a function that increments it.
    """
    labels_of, counts, series = metric.labels_of, metric.counts, Series(metric.labels, policy, make)

    def count(sender: Any, **given: Any) -> None:
        if counts(given) and (increment := series.of(labels_of(sender, given))) is not None:
            increment()

    return count


# -- reading gauges ------------------------------------------------------------------------------------------------


class GaugeReader:
    """Reads the gauges for all components under ``lifetime``, in the loop's thread.

    Without a lifetime, it reads nothing. If reading a component fails, the error is logged, and the other components
    are still read.
    """

    def __init__(self, lifetime: Lifetime | None) -> None:
        self._lifetime = lifetime
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Components that could not be read. The error is logged once per component rather than at every export.
        self._failed: set[int] = set()

    def read(self) -> Readings:
        """Return the current values, or an empty dict if the loop is blocked or closed."""
        if threading.get_ident() == self._thread:
            return self._read()
        readings: Future[Readings] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: readings.set_result(self._read()))
            return readings.result(_LOOP_TIMEOUT)
        except (RuntimeError, TimeoutError):  # the loop is closed, or blocked
            return {}

    def _read(self) -> Readings:
        readings: Readings = {FLOWS: {}, INBOXES: {}, JOBS: {}, LANES: {}, SATURATION: {}, WORKERS: {}}
        for each in () if self._lifetime is None else self._lifetime.components():
            try:
                _read(each, readings)
            except Exception as error:  # noqa: BLE001  # one failing state() must not hide the other components
                self._log_once(each, error)
        return readings

    def _log_once(self, component: object, error: Exception) -> None:
        if id(component) not in self._failed:
            self._failed.add(id(component))
            kind, name = type(component).__name__, component_name(component)
            text = kind if name == kind else f"{kind} {name!r}"
            _log.warning("%s cannot be read for metrics: %s (logged once)", text, error_masked(error, _ERROR))


def _read(component: Any, into: Readings) -> None:
    if isinstance(component, Router):
        for lane in component.lanes():
            _add(into[LANES], (lane.name,), lane.waiting)
        return
    # We read only the runs, because calling state() on `Flows` would describe every item in every run.
    if isinstance(getattr(component, "runs", None), tuple):
        for run in component.runs:
            _add(into[FLOWS], (run.name, run.status), 1)
        return
    state = component.state()
    if isinstance(state, WorkerState):
        _read_worker(state, component, into)
    else:
        for name, depth in getattr(state, "depths", {}).items():
            _add(into[INBOXES if state.kind == "inbox" else JOBS], (state.name, name), depth)


def _read_worker(state: WorkerState, worker: Any, into: Readings) -> None:
    """Count a worker and its children. ``worker`` itself is only needed for a pool's statistics."""
    _add(into[WORKERS], (state.kind, state.status), 1)
    if state.kind == "pool" and worker is not None and state.status in ("running", "suspended"):
        into[SATURATION][(state.name,)] = worker.stats().saturation
    for child in state.children:
        if child.children or child.kind == "pool":
            _read_worker(child, _child(worker, child.name), into)
        else:
            _add(into[WORKERS], (child.kind, child.status), 1)


def _child(worker: Any, name: str) -> Any:
    """Return the worker for a supervisor's child, or None if the child is not running."""
    try:
        return worker[name]
    except (KeyError, TypeError):
        return None


def _add(series: dict[tuple[object, ...], float], labels: tuple[object, ...], amount: float) -> None:
    series[labels] = series.get(labels, 0.0) + amount
