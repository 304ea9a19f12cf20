"""Seeing what a program does.

`mermaid` draws what ``state()`` says: a worker, a lifetime, a supervisor's tree, or all of a program; it looks at
records that were handed to it. `EventLog` remembers events and what became of each.
`snapshot` asks everything that lives for its state, and `watch` tells what changes in it.
`Dashboard` serves a page that shows it, and `ControlSocket` lets `lifecycle ctl` ask and steer a program; what it can
be asked and told is a `Console`'s.
`PrometheusMetrics`, `OpenTelemetryMetrics` and `OpenTelemetryTraces` tell systems that others run.
"""

from __future__ import annotations

from lifecycle._lazy import lazy_names

# What a type checker reads.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lifecycle.observe import mermaid as mermaid
    from lifecycle.observe._here import context
    from lifecycle.observe.console import Console, Outcome, TooMany, Verdict
    from lifecycle.observe.control import ControlSocket
    from lifecycle.observe.dashboard import Dashboard
    from lifecycle.observe.eventlog import Entry, EventLog, EventLogState, Fate, Following, Node, Trace
    from lifecycle.observe.explaining import Explanation, Match, NearMiss, Silence
    from lifecycle.observe.labels import LabelPolicy
    from lifecycle.observe.logs import ContextFilter, JsonFormatter, structlog_context
    from lifecycle.observe.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTraces
    from lifecycle.observe.prometheus import PrometheusMetrics
    from lifecycle.observe.snapshots import Snapshot, Update, Watch, nodes, snapshot, snapshot_schema, watch

__all__ = [
    "Console",
    "ContextFilter",
    "ControlSocket",
    "Dashboard",
    "Entry",
    "EventLog",
    "EventLogState",
    "Explanation",
    "Fate",
    "Following",
    "JsonFormatter",
    "LabelPolicy",
    "Match",
    "NearMiss",
    "Node",
    "OpenTelemetryMetrics",
    "OpenTelemetryTraces",
    "Outcome",
    "PrometheusMetrics",
    "Silence",
    "Snapshot",
    "TooMany",
    "Trace",
    "Update",
    "Verdict",
    "Watch",
    "context",
    "nodes",
    "snapshot",
    "snapshot_schema",
    "structlog_context",
    "watch",
]

# Module: what it offers.
_ROOMS = {
    "_here": "context",
    "console": "Console Outcome TooMany Verdict",
    "control": "ControlSocket",
    "dashboard": "Dashboard",
    "eventlog": "Entry EventLog EventLogState Fate Following Node Trace",
    "explaining": "Explanation Match NearMiss Silence",
    "labels": "LabelPolicy",
    "logs": "ContextFilter JsonFormatter structlog_context",
    "opentelemetry": "OpenTelemetryMetrics OpenTelemetryTraces",
    "prometheus": "PrometheusMetrics",
    "snapshots": "Snapshot Update Watch nodes snapshot snapshot_schema watch",
}

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _ROOMS.items() for name in names.split()}
    | {"mermaid": f"{__name__}.mermaid"},
)
