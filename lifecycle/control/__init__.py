"""The router: delivers each event to the handler with the most specific matching pattern.

A source (``source_runner``) emits an event. ``routes`` finds the ``observers`` and routes of its topic. The event
passes through a debounce (``debouncing``) into a lane (``lanes``), whose tasks call the handler, wrapped in its
``middleware`` (``calls``). ``deliveries`` counts, logs and announces the outcome.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": (
            "Dropped InvalidPattern InvalidTopic LaneFull NotHandled RouteConflict RouteNotFound RouterRunning "
            "SourceFailed UsageError"
        ),
        "lifecycle.events": (
            "Change ClearLineEvent CommandEvent EndOfInputEvent Event FileBatch FileEvent HealthEvent "
            "InterruptEvent LineEvent ReloadEvent ResumeEvent ShutdownEvent SignalEvent StatusEvent SuspendEvent "
            "TerminateEvent TickEvent Topical UnknownCommandEvent WebhookEvent"
        ),
        ".commands": "Command Commands",
        ".debouncing": "Debounce debounce",
        ".deliveries": "Delivery delivery",
        ".lanes": "Busy",
        ".merging": "merge_files",
        ".middleware": "log once recover timeout",
        ".observers": "Observation Subscription notify",
        ".patterns": "Pattern",
        ".records": "LaneInfo RouteInfo RouterState SourceInfo",
        ".router": "Router",
        ".routes": "Route",
        ".source_runner": "Emit SourceLike SourceObject",
        ".types": "AsyncHandler Handler Middleware RouteHandler Wrapper",
    },
)
