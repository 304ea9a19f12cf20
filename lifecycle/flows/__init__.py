"""Work that survives a crash.

A flow is tasks and their order: `linear`, `unordered` or `graph`, one in another. `Flows` carries it out and keeps each
step before and after it happens, in memory or in a file, so that whoever starts it again goes on where it was; what
failed is undone, or tried again if a retry such as `Times` says so. A task is done at least once, and has one outcome.
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
