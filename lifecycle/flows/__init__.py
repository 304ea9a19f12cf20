"""Durable work that survives a crash.

A flow is a set of tasks and the order in which they run: `linear`, `unordered` or `graph`, which can be nested. `Flows`
runs flows. It records each step before and after the step runs, in memory, in a file or on a server, so that a
restarted program can continue its flows. If a task fails, the finished tasks are reverted, or a retry such as `Times`
runs them again. Each task runs at least once and has exactly one result.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "AmbiguousDependency ClaimLost FlowError InvalidState MissingDependencies StepFailed",
        ".client": "Flows",
        ".decisions": "Options",
        ".definition": "Depth Flow Task graph linear task unordered",
        ".engine": "current_task send",
        ".outbox": "Outbox SentEvent",
        ".queue": "Job JobQueue JobQueueState",
        ".records": (
            "Batch Change Claim FailedDelivery Failure FlowRow FlowsState ItemInfo "
            "JobRow OutboxRow Priority RunInfo Snapshot StepRow StepView TaskContext"
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
