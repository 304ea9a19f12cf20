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
        ".context": "TaskContext current_task",
        ".decisions": "Options",
        ".definition": "Depth Flow Task graph linear task unordered",
        ".jobs.jobs": "Job",
        ".jobs.queues": "JobQueue JobQueueState",
        ".jobs.rows": "Claim JobRow Priority",
        ".jobs.stores": "JobStore",
        ".memory": "MemoryStore",
        ".outboxes": "Outbox SentEvent",
        ".owners": "Owners",
        ".postgres": "PostgresStore",
        ".records": (
            "Batch Change FailedDelivery Failure FlowRow FlowsState "
            "ItemInfo OutboxRow RunInfo Snapshot StepRow StepView"
        ),
        ".retries": "AlwaysRevert AlwaysRevertAll Attempt ForEach ParameterizedForEach Retry Times Verdict",
        ".run": "Run",
        ".sending": "send",
        ".serializers": "Codec JSON",
        ".sqlite": "SQLiteStore",
        ".states": "EngineState FlowState Intention JobState StepState",
        ".stores": "OutboxStore Store",
    },
)
