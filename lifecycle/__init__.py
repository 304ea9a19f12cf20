"""The control plane of a long-running Python program.

Whatever happens to it (a signal, a line at a prompt, a webhook, a changed
file, a timer, a health check) becomes an event; a `Router` gives each event
to the handler whose pattern fits best; handlers suspend, resume, reload, shut
down and drive workers; `run` gives all of it one life with one clean end.

    from lifecycle import FileEvent, FileWatchSource, Router, run

    router = Router()
    router.add_source(FileWatchSource("."))

    @router.on("file/*", debounce=0.2)
    async def changed(event: FileEvent) -> None:
        print(event.path, event.change)

    run(router)

The rooms, and the names in them that most programs need; those are to be had
from `lifecycle` itself.

lifecycle.control          what an event is, and where it goes
    Router                 handlers by pattern; sources, middleware
    Event, Delivery        a topic with data, and what becomes of it
    NotHandled             raised by a handler: let the next one have it
    Debounce, merge_files  one call for a burst, with all its files
    FileEvent, FileBatch, TickEvent, CommandEvent, WebhookEvent
    recover, timeout       middleware: survive errors, limit the time
lifecycle.sources          where events come from
    FileWatchSource        files that change
    TickerSource           every so many seconds
    WebhookSource, GitHub  what is posted, and whether it is from there
    QueueSource            what the rest of the program puts
    HealthCheckSource      something goes down, or comes up again
lifecycle.handlers         what events cause
    SuspendHandler, ReloadHandler, ShutdownHandler
lifecycle.interactive      a prompt, its commands, and what Ctrl+C means
    new_interactive_router
lifecycle.runtime          a program's life
    run, lifetime          all of it; as a block inside another framework
    go, Group              tasks in the background; tasks that end together
    shutdown, on_shutdown  end it, and what is then to be done
    sleep                  ends early when the program stops
lifecycle.workers          what is kept alive
    ProcessWorker          a program, with all its processes
    TaskWorker, Gate       an async function, and where it can be held
    Supervisor, Spec       starts workers again, and how
    Backoff                how soon, and how often
lifecycle.workers.pool     processes that answer calls
    Pool                   what they load stays loaded
lifecycle.flows            work that survives a crash
    Flows, task, linear    carries out tasks, in order, and keeps each step
lifecycle.errors           LifecycleError, and everything under it
lifecycle.observe          seen and steered: a live page, meters, traces
lifecycle.bridges          the same topics and handlers on several machines
lifecycle.testing          virtual time, fakes, a pytest plugin

``import lifecycle`` alone is light: a name is imported when it is first used.
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
            "SourceFailed VerificationError WorkerFailed WorkerLost"
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
            "QueueSource SignalSource TickerSource WebhookSource"
        ),
        ".workers": (
            "Backoff BaseWorker ContainerWorker DoNotRestart Exit Gate Intensity ProbeResult ProcessWorker Restart "
            "Spec Status StopTree Strategy Supervisor TaskWorker ThreadWorker WorkerState handover stop_and_wait"
        ),
        ".workers.pool": "Heartbeat Pool Recycle Sessions",
    },
)
