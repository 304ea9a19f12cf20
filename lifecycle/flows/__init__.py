"""Durable work that survives a crash.

A flow consists of tasks and their order: `linear`, `unordered` or `graph`, which can be nested. `Flows` runs a flow and
stores each step before and after it runs, in memory, in a file or on a server. A restarted program continues the flow.
If a task fails, the finished tasks are reverted, or a retry such as `Times` repeats them. A task runs at least once and
has one result.
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
