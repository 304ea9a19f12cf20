"""Seeing what a program does, and steering it.

`mermaid` draws what ``state()`` says: a worker, a lifetime, a supervisor's tree, or all of a program; it looks at
records that were handed to it. `EventLog` remembers events and what became of each.
`snapshot` asks everything that lives for its state, and `watch` tells what changes in it.
`Dashboard` serves a page that shows it, and `ControlSocket` lets `lifecycle ctl` ask and steer a program; what it can
be asked and told is a `Console`'s.
`ProbeServer` answers the probes of Kubernetes and of load balancers.
`PrometheusMetrics`, `OpenTelemetryMetrics` and `OpenTelemetryTraces` tell systems that others run.

All of it asks for ``state()`` and listens to hooks; who is observed does not know. Control and runtime are known here,
workers and flows only by what they have. What stands behind the public modules lies in the folders with a
``_``; another system for metrics is one module that goes through the table in ``_meters``.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".mermaid": "mermaid",
        "._snapshot.nodes": "nodes",
        "._snapshot.schema": "snapshot_schema",
        "._snapshot.views": "Snapshot",
        ".console": "Console Outcome TooMany Verdict",
        ".control": "ControlSocket",
        ".dashboard": "Dashboard",
        ".eventlog.entries": "Entry EventOutcome Node Trace",
        ".eventlog.explanations": "Explanation Match NearMiss Silence",
        ".eventlog.log": "EventLog EventLogState",
        ".eventlog.recorder": "Following",
        ".labels": "LabelPolicy",
        ".logs": "ContextFilter JsonFormatter context structlog_context",
        ".opentelemetry": "OpenTelemetryMetrics OpenTelemetryTraces",
        ".probes": "ProbeServer",
        ".prometheus": "PrometheusMetrics",
        ".snapshots": "snapshot",
        ".watching": "Update Watch watch",
    },
)
