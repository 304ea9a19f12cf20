"""Seeing what a program does.

`mermaid` draws what ``state()`` says: a worker, a lifetime, a supervisor's tree, or all of a program; it looks at
records that were handed to it. `EventLog` remembers events and what became of each.
`PrometheusMetrics`, `OpenTelemetryMetrics` and `OpenTelemetryTraces` tell systems that others run.
"""

from __future__ import annotations

from lifecycle._lazy import lazy_names

# What a type checker reads.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lifecycle.observe import mermaid as mermaid
    from lifecycle.observe.eventlog import Entry, EventLog, EventLogState, Fate, Following, Node, Trace
    from lifecycle.observe.labels import LabelPolicy
    from lifecycle.observe.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTraces
    from lifecycle.observe.prometheus import PrometheusMetrics

__all__ = [
    "Entry",
    "EventLog",
    "EventLogState",
    "Fate",
    "Following",
    "LabelPolicy",
    "Node",
    "OpenTelemetryMetrics",
    "OpenTelemetryTraces",
    "PrometheusMetrics",
    "Trace",
]

# Module: what it offers.
_ROOMS = {
    "eventlog": "Entry EventLog EventLogState Fate Following Node Trace",
    "labels": "LabelPolicy",
    "opentelemetry": "OpenTelemetryMetrics OpenTelemetryTraces",
    "prometheus": "PrometheusMetrics",
}

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _ROOMS.items() for name in names.split()}
    | {"mermaid": f"{__name__}.mermaid"},
)
