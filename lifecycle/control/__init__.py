"""What an event is and where it goes.

`Router` gives each event to the handler whose pattern fits best; middleware wraps handlers, windows debounce, lanes
order. An event goes from a source (``pumps``) through ``traffic``, which asks ``table`` who gets it, by a window
(``windows``) into a lane (``lanes``), whose task calls the handler; ``outcomes`` says what became of it.
"""

from lifecycle.control.commands import Command, Commands
from lifecycle.control.debouncing import Debounce, debounce, merge_files
from lifecycle.control.deliveries import Delivery, delivery
from lifecycle.control.lanes import Busy, LaneInfo
from lifecycle.control.middleware import log, once, recover, timeout
from lifecycle.control.patterns import Pattern
from lifecycle.control.router import Router, RouterState
from lifecycle.control.routing import Route, RouteInfo
from lifecycle.control.source_runner import SourceInfo
from lifecycle.control.taps import Relay, Subscription, Tap, TapInfo, notify
from lifecycle.control.types import AsyncHandler, Emit, Handler, Middleware, Source, SourceObject, Wrapper
from lifecycle.errors import (
    Dropped,
    InvalidPattern,
    InvalidTopic,
    LaneFull,
    NotHandled,
    RouteConflict,
    RouteNotFound,
    RouterRunning,
    SourceFailed,
)
from lifecycle.events import (
    Change,
    ClearLineEvent,
    CommandEvent,
    EndOfInputEvent,
    Event,
    FileBatch,
    FileEvent,
    HealthEvent,
    InterruptEvent,
    LineEvent,
    ReloadEvent,
    ResumeEvent,
    ShutdownEvent,
    SignalEvent,
    StatusEvent,
    SuspendEvent,
    TerminateEvent,
    TickEvent,
    Topical,
    UnknownCommandEvent,
    WebhookEvent,
)

__all__ = [
    "AsyncHandler",
    "Busy",
    "Change",
    "ClearLineEvent",
    "Command",
    "CommandEvent",
    "Commands",
    "Debounce",
    "Delivery",
    "Dropped",
    "Emit",
    "EndOfInputEvent",
    "Event",
    "FileBatch",
    "FileEvent",
    "Handler",
    "HealthEvent",
    "InterruptEvent",
    "InvalidPattern",
    "InvalidTopic",
    "LaneFull",
    "LaneInfo",
    "LineEvent",
    "Middleware",
    "NotHandled",
    "Pattern",
    "Relay",
    "ReloadEvent",
    "ResumeEvent",
    "Route",
    "RouteConflict",
    "RouteInfo",
    "RouteNotFound",
    "Router",
    "RouterRunning",
    "RouterState",
    "ShutdownEvent",
    "SignalEvent",
    "Source",
    "SourceFailed",
    "SourceInfo",
    "SourceObject",
    "StatusEvent",
    "Subscription",
    "SuspendEvent",
    "Tap",
    "TapInfo",
    "TerminateEvent",
    "TickEvent",
    "Topical",
    "UnknownCommandEvent",
    "WebhookEvent",
    "Wrapper",
    "debounce",
    "delivery",
    "log",
    "merge_files",
    "notify",
    "once",
    "recover",
    "timeout",
]
