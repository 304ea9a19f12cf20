"""Observation and control of a running program.

`snapshot` collects the state of all components, and `watch` reports changes to it. `EventLog` records events and their
outcomes. `Dashboard` serves a web page, and `ControlSocket` lets `lifecycle ctl` query and control the program; both
are built on a `Console`. `ProbeServer` responds to probes from Kubernetes and load balancers. `PrometheusMetrics`,
`OpenTelemetryMetrics` and `OpenTelemetryTraces` export metrics and spans, and `mermaid` draws states as diagrams.

This package calls ``state()`` and listens to hooks. The objects it observes do not depend on it, and it imports only
the records that describe workers and flows. To add a metrics exporter, write a module that uses the table in `metrics`.
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
