"""The meters: what is counted, timed and read, in one table, whoever it is told to.

Each is something that somebody would be woken for, or looks at once they are; what else the hooks tell of can be
counted with a line of your own. ``docs/reference/meters.md`` says of each when to be alarmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle import hooks
from lifecycle.control.source_runner import source_name
from lifecycle.observe._meters.readings import FLOWS, INBOXES, JOBS, LANES, SATURATION, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.hooks import Hook
    from lifecycle.observe.labels import LabelPolicy

    #: What a hook announces: in whose name, and its arguments. Gives the values of the labels.
    Labelled: TypeAlias = Callable[[Any, Mapping[str, Any]], tuple[object, ...]]

__all__ = ["BUCKETS", "COUNTED", "READ", "TIMED", "Counted", "Meter", "Read", "Timed"]

#: Bounds of histograms, in seconds: from what a handler takes that only computes to what a build may take.
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Meter:
    """Something that has a value for each set of labels.

    The name is OpenTelemetry's; Prometheus has ``_`` for dots, and the unit and ``_total`` at the end.
    """

    name: str
    help: str
    labels: tuple[str, ...]

    @property
    def plain_name(self) -> str:
        """For Prometheus, without unit and ``_total``."""
        return self.name.replace(".", "_")

    def attributes(self, labels: tuple[str, ...]) -> dict[str, str]:
        """The values of its labels with their names."""
        return dict(zip(self.labels, labels, strict=True))


def _always(_facts: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Counted(Meter):
    """How often something happened."""

    hook: Hook
    told: Labelled
    #: Whether an announcement counts.
    counts: Callable[[Mapping[str, Any]], bool] = _always


@dataclass(frozen=True, slots=True)
class Timed(Meter):
    """How many seconds something took."""

    hook: Hook
    told: Labelled
    #: The argument of the hook that says how long.
    seconds: str


@dataclass(frozen=True, slots=True)
class Read(Meter):
    """How something is, read when somebody asks; see `readings`."""

    #: What becomes of two readings that the policy gives the same labels.
    join: Callable[[float, float], float] = float.__add__

    def settled(
        self, readings: Mapping[tuple[object, ...], float], policy: LabelPolicy
    ) -> dict[tuple[str, ...], float]:
        """``readings`` with the labels that they may have."""
        series: dict[tuple[str, ...], float] = {}
        for values, amount in readings.items():
            labels = policy.settle_all(self.labels, values)
            if labels is None:
                continue
            if labels not in series and len(series) >= policy.max_series:
                labels = policy.fold(labels)
            series[labels] = self.join(series[labels], amount) if labels in series else amount
        return series


def _nothing(_sender: Any, _facts: Mapping[str, Any]) -> tuple[object, ...]:
    return ()


def _pattern(_sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return (facts["pattern"] or "",)


def _pattern_error(_sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return facts["pattern"] or "", type(facts["error"]).__name__


def _source(_sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return (source_name(facts["source"]),)


def _worker_type(_sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return (getattr(facts["worker"], "kind", ""),)


def _restarted(sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return sender.name, facts["worker"].name


def _given_up(sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return sender.name, facts["child"]


def _call(sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return sender.name, facts["function"]


def _call_error(sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return sender.name, type(facts["error"]).__name__


def _flow(sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return sender.name, facts["state"]


def _success(_sender: Any, facts: Mapping[str, Any]) -> tuple[object, ...]:
    return ("false" if facts["error"] else "true",)


def _failed(facts: Mapping[str, Any]) -> bool:
    return facts["error"] is not None


#: What is timed.
TIMED: Final = (
    Timed(
        "lifecycle.handler.duration",
        "Seconds that a handler took, of those that returned.",
        ("pattern",),
        hooks.handler_finished,
        _pattern,
        "duration",
    ),
    Timed(
        "lifecycle.pool.call.wait",
        "Seconds that a call waited for a member of its pool.",
        ("pool", "function"),
        hooks.call_finished,
        _call,
        "waited",
    ),
    Timed(
        "lifecycle.pool.call.duration",
        "Seconds that a call ran in a member of its pool.",
        ("pool", "function"),
        hooks.call_finished,
        _call,
        "ran",
    ),
)

#: What is counted.
COUNTED: Final = (
    Counted(
        "lifecycle.handler.errors",
        "Handlers that raised.",
        ("pattern", "error"),
        hooks.handler_failed,
        _pattern_error,
    ),
    Counted("lifecycle.events.dropped", "Events that were given up.", ("pattern",), hooks.event_dropped, _pattern),
    Counted("lifecycle.events.unrouted", "Events that nobody took.", (), hooks.event_unrouted, _nothing),
    Counted("lifecycle.source.failures", "Sources that raised.", ("source",), hooks.source_failed, _source),
    Counted(
        "lifecycle.worker.failed",
        "Workers that ended with an error.",
        ("worker_type",),
        hooks.worker_failed,
        _worker_type,
    ),
    Counted(
        "lifecycle.worker.killed",
        "Workers that were killed after their grace period.",
        ("worker_type",),
        hooks.worker_killed,
        _worker_type,
    ),
    Counted(
        "lifecycle.child.restarts",
        "Workers that a supervisor started again.",
        ("supervisor", "child"),
        hooks.worker_restarted,
        _restarted,
    ),
    Counted(
        "lifecycle.circuit_breaker.triggered",
        "Workers that a supervisor has given up.",
        ("supervisor", "child"),
        hooks.circuit_opened,
        _given_up,
    ),
    Counted(
        "lifecycle.pool.call.errors",
        "Calls of a pool that failed.",
        ("pool", "error"),
        hooks.call_finished,
        _call_error,
        _failed,
    ),
    Counted("lifecycle.flow.ended", "Flows that came to their end.", ("flow", "state"), hooks.flow_ended, _flow),
    Counted("lifecycle.task.crashed", "Background tasks that raised.", (), hooks.task_crashed, _nothing),
    Counted(
        "lifecycle.critical_section.finished",
        "Critical sections that came to their end.",
        ("success",),
        hooks.critical_finished,
        _success,
    ),
    Counted("lifecycle.hook.errors", "Shutdown hooks that raised.", (), hooks.hook_finished, _nothing, _failed),
)

#: What is read.
READ: Final = (
    Read(LANES, "Events that wait in a lane.", ("lane",)),
    Read(WORKERS, "Workers, those in supervisors and pools too.", ("worker_type", "status")),
    Read(SATURATION, "The share of a pool's seats that is taken.", ("pool",), max),
    Read(FLOWS, "Flows that have not come to their end.", ("flow", "state")),
    Read(INBOXES, "Webhooks that were accepted and not handled.", ("inbox", "state")),
    Read(JOBS, "Jobs on a queue that this program works off.", ("queue", "state")),
)
