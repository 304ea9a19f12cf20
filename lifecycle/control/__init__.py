"""The router: delivers each event to the handler with the most specific matching pattern.

A source (``source_runner``) emits an event. The ``dispatcher`` looks up the routes for its topic (``routing``). The
event then passes through a debounce (``debouncing``) into a lane (``lanes``), whose tasks call the handler, wrapped in
its ``middleware``.
"""

from lifecycle.control.commands import Command, Commands
from lifecycle.control.debouncing import Debounce, debounce, merge_files
from lifecycle.control.deliveries import Delivery, delivery
from lifecycle.control.lanes import LaneInfo
from lifecycle.control.middleware import log, once, recover, timeout
from lifecycle.control.patterns import Pattern
from lifecycle.control.router import Router, RouterState
from lifecycle.control.routing import Busy, Route, RouteInfo
from lifecycle.control.source_runner import Emit, Source, SourceInfo, SourceObject
from lifecycle.control.taps import Subscription, Tap, TapInfo, notify
from lifecycle.control.types import AsyncHandler, Handler, Middleware, RouteHandler, Wrapper
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
    UsageError,
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
    "ReloadEvent",
    "ResumeEvent",
    "Route",
    "RouteConflict",
    "RouteHandler",
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
    "UsageError",
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


def __dir__() -> list[str]:
    return __all__
