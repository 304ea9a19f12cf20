"""Observing a running program, and controlling it.

`snapshot` collects the state of everything that lives, and `watch` reports what changes in it. `EventLog` records
events and their outcomes. `Dashboard` serves a page, `ControlSocket` lets `lifecycle ctl` query and control a program,
and both offer what a `Console` offers. `ProbeServer` answers the probes of Kubernetes and of load balancers.
`PrometheusMetrics`, `OpenTelemetryMetrics` and `OpenTelemetryTraces` export metrics and spans, and `mermaid` draws
states as diagrams.

Everything here calls ``state()`` and listens to hooks; observed objects do not know about it. Of workers and flows only
their records are imported. A new exporter of metrics is one module that uses the table in `metrics`.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".mermaid": "mermaid",
        ".console": "Console Outcome TooMany Verdict",
        ".control": "ControlSocket",
        ".dashboard": "Dashboard",
        ".eventlog.entries": "Entry EventOutcome Node Trace",
        ".eventlog.explanations": "Explanation Match NearMiss Silence",
        ".eventlog.log": "EventLog EventLogState",
        ".eventlog.recorder": "Following",
        ".logs": "ContextFilter JsonFormatter context structlog_context",
        ".metrics": "LabelPolicy",
        ".opentelemetry": "OpenTelemetryMetrics OpenTelemetryTraces",
        ".probes": "ProbeServer",
        ".prometheus": "PrometheusMetrics",
        ".snapshots": "Snapshot snapshot",
        ".watching": "Update Watch nodes watch",
    },
)
