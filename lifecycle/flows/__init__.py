"""Work that survives a crash.

A flow is tasks and their order: `linear`, `unordered` or `graph`, one in another. `Flows` carries it out and keeps each
step before and after it happens, in memory or in a file, so that whoever starts it again goes on where it was; what
failed is undone, or tried again if a retry such as `Times` says so. A task is done at least once, and has one outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.errors import (
        AmbiguousDependency,
        AtomFailed,
        ClaimLost,
        FlowError,
        InvalidState,
        MissingDependencies,
    )
    from lifecycle.flows.boards import Board, BoardState
    from lifecycle.flows.codecs import JSON, Codec
    from lifecycle.flows.contexts import TaskContext, current_task
    from lifecycle.flows.failures import Failure
    from lifecycle.flows.jobs import Job, JobRow, Priority
    from lifecycle.flows.memory import MemoryStore
    from lifecycle.flows.options import Options
    from lifecycle.flows.outboxes import Outbox, OutboxStore, SentEvent
    from lifecycle.flows.owners import Owners
    from lifecycle.flows.patterns import Depth, Flow, graph, linear, unordered
    from lifecycle.flows.postgres import PostgresStore
    from lifecycle.flows.postings import Claim, JobStore
    from lifecycle.flows.records import AtomRow, Batch, Change, FlowRow, OutboxRow, Snapshot
    from lifecycle.flows.retries import (
        AlwaysRevert,
        AlwaysRevertAll,
        Attempt,
        ForEach,
        ParameterizedForEach,
        Retry,
        Times,
        Verdict,
    )
    from lifecycle.flows.runs import Run
    from lifecycle.flows.sending import send
    from lifecycle.flows.sessions import Flows
    from lifecycle.flows.sqlite import SQLiteStore
    from lifecycle.flows.stores import Store
    from lifecycle.flows.tables import AtomState, EngineState, FlowState, Intention, JobState
    from lifecycle.flows.tasks import Task, task
    from lifecycle.flows.views import AtomView, FlowsState, ItemInfo, RunInfo

__all__ = [
    "JSON",
    "AlwaysRevert",
    "AlwaysRevertAll",
    "AmbiguousDependency",
    "AtomFailed",
    "AtomRow",
    "AtomState",
    "AtomView",
    "Attempt",
    "Batch",
    "Board",
    "BoardState",
    "Change",
    "Claim",
    "ClaimLost",
    "Codec",
    "Depth",
    "EngineState",
    "Failure",
    "Flow",
    "FlowError",
    "FlowRow",
    "FlowState",
    "Flows",
    "FlowsState",
    "ForEach",
    "Intention",
    "InvalidState",
    "ItemInfo",
    "Job",
    "JobRow",
    "JobState",
    "JobStore",
    "MemoryStore",
    "MissingDependencies",
    "Options",
    "Outbox",
    "OutboxRow",
    "OutboxStore",
    "Owners",
    "ParameterizedForEach",
    "PostgresStore",
    "Priority",
    "Retry",
    "Run",
    "RunInfo",
    "SQLiteStore",
    "SentEvent",
    "Snapshot",
    "Store",
    "Task",
    "TaskContext",
    "Times",
    "Verdict",
    "current_task",
    "graph",
    "linear",
    "send",
    "task",
    "unordered",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AlwaysRevert": "lifecycle.flows.retries",
        "AlwaysRevertAll": "lifecycle.flows.retries",
        "AmbiguousDependency": "lifecycle.errors",
        "AtomFailed": "lifecycle.errors",
        "AtomRow": "lifecycle.flows.records",
        "AtomState": "lifecycle.flows.tables",
        "AtomView": "lifecycle.flows.views",
        "Attempt": "lifecycle.flows.retries",
        "Batch": "lifecycle.flows.records",
        "Board": "lifecycle.flows.boards",
        "BoardState": "lifecycle.flows.boards",
        "Change": "lifecycle.flows.records",
        "Claim": "lifecycle.flows.postings",
        "ClaimLost": "lifecycle.errors",
        "Codec": "lifecycle.flows.codecs",
        "Depth": "lifecycle.flows.patterns",
        "EngineState": "lifecycle.flows.tables",
        "Failure": "lifecycle.flows.failures",
        "Flow": "lifecycle.flows.patterns",
        "FlowError": "lifecycle.errors",
        "FlowRow": "lifecycle.flows.records",
        "FlowState": "lifecycle.flows.tables",
        "Flows": "lifecycle.flows.sessions",
        "FlowsState": "lifecycle.flows.views",
        "ForEach": "lifecycle.flows.retries",
        "Intention": "lifecycle.flows.tables",
        "InvalidState": "lifecycle.errors",
        "ItemInfo": "lifecycle.flows.views",
        "JSON": "lifecycle.flows.codecs",
        "Job": "lifecycle.flows.jobs",
        "JobRow": "lifecycle.flows.jobs",
        "JobState": "lifecycle.flows.tables",
        "JobStore": "lifecycle.flows.postings",
        "MemoryStore": "lifecycle.flows.memory",
        "MissingDependencies": "lifecycle.errors",
        "Options": "lifecycle.flows.options",
        "Outbox": "lifecycle.flows.outboxes",
        "OutboxRow": "lifecycle.flows.records",
        "OutboxStore": "lifecycle.flows.outboxes",
        "Owners": "lifecycle.flows.owners",
        "ParameterizedForEach": "lifecycle.flows.retries",
        "PostgresStore": "lifecycle.flows.postgres",
        "Priority": "lifecycle.flows.jobs",
        "Retry": "lifecycle.flows.retries",
        "Run": "lifecycle.flows.runs",
        "RunInfo": "lifecycle.flows.views",
        "SQLiteStore": "lifecycle.flows.sqlite",
        "SentEvent": "lifecycle.flows.outboxes",
        "Snapshot": "lifecycle.flows.records",
        "Store": "lifecycle.flows.stores",
        "Task": "lifecycle.flows.tasks",
        "TaskContext": "lifecycle.flows.contexts",
        "Times": "lifecycle.flows.retries",
        "Verdict": "lifecycle.flows.retries",
        "current_task": "lifecycle.flows.contexts",
        "graph": "lifecycle.flows.patterns",
        "linear": "lifecycle.flows.patterns",
        "send": "lifecycle.flows.sending",
        "task": "lifecycle.flows.tasks",
        "unordered": "lifecycle.flows.patterns",
    },
)
