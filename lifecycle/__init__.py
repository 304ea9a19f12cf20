"""The control plane of a long-running Python program.

Everything that happens to it (signals, lines at a prompt, webhooks, changed files, timers, health checks) becomes an
event; a `Router` gives each event to the handler whose pattern fits best; handlers suspend, resume, reload, shut down
and drive workers; `run` gives the program a life with one clean end.

The rooms, each a sub-package that can be imported alone:

==================  ============================================================================
lifecycle.control   events, patterns, `Router`, middleware, `debounce`, `notify`
lifecycle.runtime   `run`, `lifetime`, background tasks, signals, the shutdown in its order
lifecycle.sources   where events come from
lifecycle.handlers  what events cause: suspend, reload, shut down, call, start a flow, escalate
lifecycle.workers   what is kept alive; in ``workers.pool``, processes that answer calls
lifecycle.flows     work that survives a crash: tasks in order, undone or tried again, and jobs
lifecycle.observe   diagrams of what ``state()`` says
lifecycle.bridges   the same topics and handlers on several machines
lifecycle.testing   virtual time, fakes, a pytest plugin
==================  ============================================================================

``import lifecycle`` alone is light: each name is imported when it is first used.
"""

from __future__ import annotations

from lifecycle._lazy import lazy_names

# Checkers know the name; importing it from typing would cost more than all the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lifecycle.control import (
        ClearLineEvent,
        CommandEvent,
        Debounce,
        Delivery,
        Dropped,
        EndOfInputEvent,
        Event,
        FileBatch,
        FileEvent,
        HealthEvent,
        InterruptEvent,
        LineEvent,
        NotHandled,
        Pattern,
        ReloadEvent,
        ResumeEvent,
        Router,
        ShutdownEvent,
        SignalEvent,
        StatusEvent,
        SuspendEvent,
        TerminateEvent,
        TickEvent,
        UnknownCommandEvent,
        WebhookEvent,
        debounce,
        delivery,
        log,
        merge_files,
        notify,
        once,
        recover,
        timeout,
    )
    from lifecycle.errors import (
        AmbiguousDependency,
        AtomFailed,
        ClaimLost,
        FlowError,
        Interrupted,
        InvalidPattern,
        InvalidState,
        InvalidTransition,
        LaneFull,
        LifecycleError,
        MissingDependencies,
        PoolBusy,
        PoolClosed,
        PoolError,
        PoolFailed,
        RemoteError,
        RestartLimitReached,
        RouteConflict,
        RouteNotFound,
        RouterRunning,
        SessionLost,
        SourceClosed,
        SourceFailed,
        VerificationError,
        WorkerFailed,
        WorkerLost,
    )
    from lifecycle.flows import Board, Flows, ForEach, Times, current_task, graph, linear, task, unordered
    from lifecycle.handlers import (
        Escalator,
        FlowHandler,
        PoolHandler,
        ReloadHandler,
        ShutdownHandler,
        SuspendHandler,
        TerminateHandler,
    )
    from lifecycle.interactive import new_interactive_router
    from lifecycle.runtime import (
        Group,
        Lifetime,
        Reason,
        current,
        do,
        do_detached,
        go,
        lifetime,
        on_shutdown,
        read_line,
        run,
        shutdown,
        sleep,
    )
    from lifecycle.sources import (
        BaseSource,
        FileWatchSource,
        GitHub,
        HealthCheckSource,
        Inbox,
        InputSource,
        Limits,
        ProbeServer,
        PromptSource,
        QueueSource,
        SignalSource,
        TickerSource,
        WebhookSource,
    )
    from lifecycle.workers import (
        Backoff,
        BaseWorker,
        ContainerWorker,
        DoNotRestart,
        Exit,
        Gate,
        Intensity,
        ProbeResult,
        ProcessWorker,
        Restart,
        Spec,
        Status,
        StopTree,
        Strategy,
        Supervisor,
        TaskWorker,
        ThreadWorker,
        WorkerState,
        handover,
        stop_and_wait,
    )
    from lifecycle.workers.pool import Heartbeat, Pool, Recycle, Sessions

_ROOMS = {
    "lifecycle.control": (
        "ClearLineEvent CommandEvent Debounce Delivery Dropped EndOfInputEvent Event FileBatch FileEvent HealthEvent "
        "InterruptEvent LineEvent NotHandled Pattern ReloadEvent ResumeEvent Router ShutdownEvent SignalEvent "
        "StatusEvent SuspendEvent TerminateEvent TickEvent UnknownCommandEvent WebhookEvent debounce delivery log "
        "merge_files notify once recover timeout"
    ),
    "lifecycle.errors": (
        "AmbiguousDependency AtomFailed ClaimLost FlowError Interrupted InvalidPattern InvalidState InvalidTransition "
        "LaneFull LifecycleError MissingDependencies PoolBusy PoolClosed PoolError PoolFailed RemoteError "
        "RestartLimitReached RouteConflict RouteNotFound RouterRunning SessionLost SourceClosed SourceFailed "
        "VerificationError WorkerFailed WorkerLost"
    ),
    "lifecycle.flows": "Board Flows ForEach Times current_task graph linear task unordered",
    "lifecycle.handlers": (
        "Escalator FlowHandler PoolHandler ReloadHandler ShutdownHandler SuspendHandler TerminateHandler"
    ),
    "lifecycle.interactive": "new_interactive_router",
    "lifecycle.runtime": (
        "Group Lifetime Reason current do do_detached go lifetime on_shutdown read_line run shutdown sleep"
    ),
    "lifecycle.sources": (
        "BaseSource FileWatchSource GitHub HealthCheckSource Inbox InputSource Limits ProbeServer PromptSource "
        "QueueSource SignalSource TickerSource WebhookSource"
    ),
    "lifecycle.workers": (
        "Backoff BaseWorker ContainerWorker DoNotRestart Exit Gate Intensity ProbeResult ProcessWorker Restart Spec "
        "Status StopTree Strategy Supervisor TaskWorker ThreadWorker WorkerState handover stop_and_wait"
    ),
    "lifecycle.workers.pool": "Heartbeat Pool Recycle Sessions",
}

__all__ = [
    "AmbiguousDependency",
    "AtomFailed",
    "Backoff",
    "BaseSource",
    "BaseWorker",
    "Board",
    "ClaimLost",
    "ClearLineEvent",
    "CommandEvent",
    "ContainerWorker",
    "Debounce",
    "Delivery",
    "DoNotRestart",
    "Dropped",
    "EndOfInputEvent",
    "Escalator",
    "Event",
    "Exit",
    "FileBatch",
    "FileEvent",
    "FileWatchSource",
    "FlowError",
    "FlowHandler",
    "Flows",
    "ForEach",
    "Gate",
    "GitHub",
    "Group",
    "HealthCheckSource",
    "HealthEvent",
    "Heartbeat",
    "Inbox",
    "InputSource",
    "Intensity",
    "InterruptEvent",
    "Interrupted",
    "InvalidPattern",
    "InvalidState",
    "InvalidTransition",
    "LaneFull",
    "LifecycleError",
    "Lifetime",
    "Limits",
    "LineEvent",
    "MissingDependencies",
    "NotHandled",
    "Pattern",
    "Pool",
    "PoolBusy",
    "PoolClosed",
    "PoolError",
    "PoolFailed",
    "PoolHandler",
    "ProbeResult",
    "ProbeServer",
    "ProcessWorker",
    "PromptSource",
    "QueueSource",
    "Reason",
    "Recycle",
    "ReloadEvent",
    "ReloadHandler",
    "RemoteError",
    "Restart",
    "RestartLimitReached",
    "ResumeEvent",
    "RouteConflict",
    "RouteNotFound",
    "Router",
    "RouterRunning",
    "SessionLost",
    "Sessions",
    "ShutdownEvent",
    "ShutdownHandler",
    "SignalEvent",
    "SignalSource",
    "SourceClosed",
    "SourceFailed",
    "Spec",
    "Status",
    "StatusEvent",
    "StopTree",
    "Strategy",
    "Supervisor",
    "SuspendEvent",
    "SuspendHandler",
    "TaskWorker",
    "TerminateEvent",
    "TerminateHandler",
    "ThreadWorker",
    "TickEvent",
    "TickerSource",
    "Times",
    "UnknownCommandEvent",
    "VerificationError",
    "WebhookEvent",
    "WebhookSource",
    "WorkerFailed",
    "WorkerLost",
    "WorkerState",
    "current",
    "current_task",
    "debounce",
    "delivery",
    "do",
    "do_detached",
    "go",
    "graph",
    "handover",
    "lifetime",
    "linear",
    "log",
    "merge_files",
    "new_interactive_router",
    "notify",
    "on_shutdown",
    "once",
    "read_line",
    "recover",
    "run",
    "shutdown",
    "sleep",
    "stop_and_wait",
    "task",
    "timeout",
    "unordered",
]

__getattr__, __dir__ = lazy_names(__name__, {name: room for room, names in _ROOMS.items() for name in names.split()})
