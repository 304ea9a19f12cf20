"""Durable work that survives a crash.

A flow is a set of tasks that run one after another (`linear`), at the same time (`unordered`), or in order of their
dependencies (`graph`). Flows can be nested. `Flows` runs flows, and records each step before and after it runs. If the
records are kept in a file or on a server, a restarted program can continue its flows. If a task fails, the finished
tasks are reverted, and a retry such as `Times` can run the flow again. Each task runs at least once and has exactly one
result.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": (
            "AmbiguousDependency ClaimLost FlowCancelled FlowError InvalidState MissingDependencies StepFailed "
            "WorkflowChanged"
        ),
        ".client": "Flows",
        ".decisions": "Options",
        ".definition": "Depth Flow Task Workflow graph linear task unordered workflow",
        ".engine": "current_task send",
        ".operations": "child gather patch sleep step undo wait_for",
        ".outbox": "Outbox SentEvent",
        ".queue": "Job JobQueue JobQueueState",
        ".records": (
            "Batch Change Claim FailedDelivery Failure FlowInfo FlowRow FlowsState ItemInfo "
            "JobRow Limits OutboxRow Priority RunInfo SignalRow Snapshot StepRow StepView TaskContext"
        ),
        ".retries": "AlwaysRevert AlwaysRevertAll Attempt ForEach ParameterizedForEach Retry Times Verdict",
        ".run": "Run",
        ".serializers": "Codec JSON",
        ".states": "EngineState FlowState Intention JobState StepState",
        ".stores.base": "JobStore OutboxStore Store",
        ".stores.memory": "MemoryStore",
        ".stores.postgres": "PostgresStore",
        ".stores.presence": "Presence",
        ".stores.sqlite": "SQLiteStore",
    },
)
