"""Supervision, events and a clean shutdown for one asyncio program.

Sources produce events from signals, prompts, webhooks, changed files, timers
and health checks. A `Router` passes each event to the handler with the most
specific pattern. Handlers can suspend, resume, reload and restart workers.
`run` starts all components, and stops them in order.

    from lifecycle import FileEvent, FileWatchSource, Router, run

    router = Router()
    router.add_source(FileWatchSource("."))

    @router.on("file/*", debounce=0.2)
    async def changed(event: FileEvent) -> None:
        print(event.path, event.change)

    run(router)

The packages below contain the names that most programs need. Import these
names from `lifecycle` itself.

lifecycle.control          events and their routes
    Router                 handlers by pattern; sources, middleware
    Event, Delivery        a topic with data, and the result of handling it
    NotHandled             raised to pass the event to the next handler
    Debounce, merge_files  one call per burst, with all changed files
    FileEvent, FileBatch, TickEvent, CommandEvent, WebhookEvent
    recover, timeout       middleware: log errors, limit the time
lifecycle.sources          sources of events
    FileWatchSource        changed files
    TickerSource           a timer
    WebhookSource, GitHub  HTTP requests, and their signatures
    QueueSource            events from the rest of the program
    HealthCheckSource      changes between up and down
lifecycle.handlers         reactions to events
    SuspendHandler, ReloadHandler, ShutdownHandler
lifecycle.interactive      a prompt with commands, and Ctrl+C
    new_interactive_router
lifecycle.runtime          start, stop and background tasks of a program
    run, lifetime          for a whole program; for a block inside a framework
    go, Group              start background tasks; tasks that stop together
    shutdown, on_shutdown  begin the shutdown; run code during it
    sleep                  a sleep that is cut short when the program stops
lifecycle.workers          supervised processes, tasks and threads
    ProcessWorker          a program with all its child processes
    TaskWorker, Gate       an async function, and a point to suspend it
    Supervisor, Spec       restarts failed workers; describes such a worker
    Backoff                delays between restarts
lifecycle.workers.pool     worker processes that answer calls
    Pool                   keeps loaded models and state in memory
lifecycle.flows            durable work that survives a crash
    Flows, task, linear    run tasks in order, and store each result
lifecycle.errors           LifecycleError and its subclasses
lifecycle.observe          a live page, metrics, traces and commands
lifecycle.bridges          topics and leases shared by several machines
lifecycle.testing          virtual time, fakes, a pytest plugin

``import lifecycle`` is fast, because each name is imported when it is first used.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".control": (
            "ClearLineEvent CommandEvent Debounce Delivery Dropped EndOfInputEvent Event FileBatch FileEvent "
            "HealthEvent InterruptEvent LineEvent NotHandled Pattern ReloadEvent ResumeEvent Router ShutdownEvent "
            "SignalEvent StatusEvent SuspendEvent TerminateEvent TickEvent UnknownCommandEvent WebhookEvent "
            "debounce delivery log merge_files notify once recover timeout"
        ),
        ".errors": (
            "AmbiguousDependency StepFailed ClaimLost FlowError Interrupted InvalidPattern InvalidState "
            "InvalidTransition LaneFull LifecycleError MissingDependencies PoolBusy PoolClosed PoolError PoolFailed "
            "RemoteError RestartLimitReached RouteConflict RouteNotFound RouterRunning SessionLost SourceClosed "
            "SourceFailed UsageError VerificationError WorkerFailed WorkerLost"
        ),
        ".flows": "JobQueue Flows ForEach Times current_task graph linear task unordered",
        ".handlers": (
            "Escalator FlowHandler PoolHandler ReloadHandler ShutdownHandler SuspendHandler TerminateHandler"
        ),
        ".interactive": "new_interactive_router",
        ".observe": "ProbeServer",
        ".runtime": (
            "Group Lifetime Reason current do do_detached go lifetime on_shutdown read_line run shutdown sleep"
        ),
        ".sources": (
            "BaseSource FileWatchSource GitHub HealthCheckSource Inbox InputSource Limits PromptSource "
            "QueueSource ScheduleSource SignalSource TickerSource WebhookSource"
        ),
        ".workers": (
            "Backoff BaseWorker ContainerWorker DoNotRestart Exit Gate Intensity ProbeResult ProcessWorker Restart "
            "Spec Status StopTree Strategy Supervisor TaskWorker ThreadWorker WorkerState handover stop_and_wait"
        ),
        ".workers.pool": "Heartbeat Pool Recycle Sessions",
    },
)
