"""Events, as frozen records.

Any object with a ``topic`` can be dispatched, even if it does not inherit from `Event`. For ``@router.on(MyEvent)`` to
work, your class must define the topics of its events. Use either a class attribute ``topics`` (a pattern), or a field
``topic`` with a default.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": (
            "ClearLineEvent EndOfInputEvent Event InterruptEvent ReloadEvent ResumeEvent SuspendEvent TerminateEvent "
            "Topical topics_of"
        ),
        ".records": (
            "Change CommandEvent FileBatch FileEvent HealthEvent LineEvent ShutdownEvent SignalEvent StatusEvent "
            "TickEvent UnknownCommandEvent WebhookEvent"
        ),
    },
)
