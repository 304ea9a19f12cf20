"""The library's own events, as blinker signals.

Connect a synchronous function to a hook. Names are in the past tense, and arguments are passed by keyword::

    from lifecycle import hooks

    @hooks.handler_failed.connect
    def count(sender, *, event, pattern, error):
        failures.inc(pattern)

If a receiver raises, the error is logged, and the other receivers are still called. Hooks keep strong references to
their receivers unless you pass ``weak=True``. The order of the receivers is undefined. Without receivers, an
announcement costs only a single check.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from blinker import ANY, Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Hook",
    "call_dispatched",
    "call_ended",
    "call_finished",
    "call_queued",
    "call_started",
    "circuit_opened",
    "component_changed",
    "component_closed",
    "component_opened",
    "critical_finished",
    "delivery_accepted",
    "delivery_ended",
    "event_dropped",
    "event_merged",
    "event_routed",
    "event_unrouted",
    "flow_changed",
    "flow_ended",
    "flow_task_ended",
    "flow_task_started",
    "forced_exit",
    "handler_failed",
    "handler_finished",
    "handler_passed",
    "handler_started",
    "health_checked",
    "hook_finished",
    "member_changed",
    "pool_recovered",
    "pool_saturated",
    "restart_scheduled",
    "router_started",
    "router_stopped",
    "session_bound",
    "session_evicted",
    "session_hit",
    "session_lost",
    "session_missed",
    "signal_received",
    "source_failed",
    "state_changed",
    "task_crashed",
    "task_finished",
    "task_started",
    "webhook_refused",
    "worker_failed",
    "worker_killed",
    "worker_restarted",
    "worker_started",
]

_log = logging.getLogger("lifecycle.hooks")
_Receiver = TypeVar("_Receiver", bound="Callable[..., object]")


class Hook(Signal):
    """A blinker signal that keeps strong references to its receivers and logs their errors."""

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(doc)
        self.name = name
        # A cache of the receivers, and their number when it was filled. It is empty unless all receivers have strong
        # references and are called for every sender. Looking them up each time would cost more than most calls.
        self._plain: tuple[Callable[..., object], ...] = ()
        self._decided_for = 0

    def connect(self, receiver: _Receiver, sender: Any = ANY, weak: bool = False) -> _Receiver:
        """Call ``receiver(sender, **arguments)`` for each announcement. You can use this method as a decorator.

        Raises:
            TypeError: if ``receiver`` is async, because announcements do not wait.
        """
        if inspect.iscoroutinefunction(receiver):
            raise TypeError(f"{receiver!r} is async, and hooks.{self.name} does not wait; connect a plain function")
        super().connect(receiver, sender, weak)
        self._gather()
        return receiver

    def disconnect(self, receiver: Any, sender: Any = ANY) -> None:
        """Stop calling ``receiver``."""
        super().disconnect(receiver, sender)
        self._gather()

    def _gather(self) -> None:
        receivers = tuple(self.receivers.values())
        is_plain = not any(isinstance(each, ref) for each in receivers)
        for_all_senders = sum(1 for _ in self.receivers_for(ANY))
        self._plain = receivers if is_plain and for_all_senders == len(receivers) else ()
        self._decided_for = len(receivers)

    def _look_up(self, sender: Any) -> tuple[Callable[..., object], ...]:
        """Return the receivers for ``sender``, unless all receivers are called for every sender."""
        if len(self.receivers) != self._decided_for:
            # A receiver held by a weak reference no longer exists.
            self._gather()
        return self._plain or tuple(self.receivers_for(sender))

    def announce(self, sender: Any, **arguments: Any) -> None:
        """Call every receiver, and log the errors they raise. Without receivers, return immediately."""
        if not self.receivers:
            return
        for receiver in self._plain or self._look_up(sender):
            try:
                receiver(sender, **arguments)
            except Exception:  # noqa: BLE001  # the error of a receiver does not reach the sender
                _log.exception("a receiver of hooks.%s failed: %r", self.name, receiver)


# -- events: the sender is the router ---------------------------------------------------------------------------

delivery_accepted: Hook = Hook(
    "delivery_accepted",
    "A route or the fallback accepted an event, or the event failed. Announced before its result. ``delivery``.",
)
event_routed: Hook = Hook("event_routed", "An event has a route. ``event``, ``pattern``, ``delivery``.")
event_unrouted: Hook = Hook("event_unrouted", "No route handled an event. ``event``.")
event_dropped: Hook = Hook("event_dropped", "An event was dropped. ``event``, ``pattern``, ``reason``.")
event_merged: Hook = Hook("event_merged", "An event was merged into a burst. ``event``, ``pattern``, ``delivery``.")
handler_started: Hook = Hook(
    "handler_started",
    "A handler is about to be called in the current task. It sees any context variables set by receivers. Its end is "
    "announced in the same task. ``event``, ``pattern``, ``delivery``.",
)
handler_passed: Hook = Hook(
    "handler_passed",
    "A handler raised NotHandled, and the next handler is tried. ``event``, ``pattern``, ``delivery``.",
)
handler_finished: Hook = Hook(
    "handler_finished", "A handler returned. ``event``, ``pattern``, ``duration`` in seconds."
)
handler_failed: Hook = Hook("handler_failed", "A handler raised. ``event``, ``pattern``, ``error``.")
delivery_ended: Hook = Hook(
    "delivery_ended",
    "An event has its result (``delivery.error``). This is the last announcement for the delivery. Merged events have "
    "a single announcement. ``delivery``.",
)
source_failed: Hook = Hook(
    "source_failed", "A source raised. ``source``, ``name``, ``error``, ``restart_in`` (seconds or None)."
)
webhook_refused: Hook = Hook(
    "webhook_refused",
    "A `WebhookSource` has refused a request. The sender is the source. ``status`` (of the response), ``reason``.",
)
router_started: Hook = Hook("router_started", "A router has started, and is about to start its sources. ``router``.")
router_stopped: Hook = Hook("router_stopped", "A router has stopped. ``router``.")

# -- components with a state: the sender is the component -------------------------------------------------

component_opened: Hook = Hook(
    "component_opened",
    "A component with a ``state()`` method was created, such as a starting worker. ``component``.",
)
component_changed: Hook = Hook(
    "component_changed", "A component's state has changed in a way that no other hook announces. ``component``."
)
component_closed: Hook = Hook("component_closed", "A component no longer exists. ``component``.")

# -- states: the sender is the machine --------------------------------------------------------------------------

state_changed: Hook = Hook("state_changed", "A state machine changed its state. ``machine``, ``transition``.")

# -- flows: the sender is the run ---------------------------------------------------------------------------------

flow_changed: Hook = Hook(
    "flow_changed",
    "The state of a flow, or of a task or retry in a flow, has changed. The change is stored. ``change``.",
)
flow_ended: Hook = Hook("flow_ended", "A flow has finished. ``state``, ``error`` (None if it failed without an error).")
flow_task_started: Hook = Hook(
    "flow_task_started", "A task, retry or revert has started. Announced in its own context. ``task`` (its record)."
)
flow_task_ended: Hook = Hook(
    "flow_task_ended",
    "A task, retry or revert has finished. Announced in its own context. ``task``, ``error`` (None if it returned; can "
    "also be a cancellation).",
)

# -- workers: the sender is the worker (or the supervisor that restarted it) --------------------------------------

worker_started: Hook = Hook("worker_started", "A worker has started. ``worker``.")
worker_failed: Hook = Hook("worker_failed", "A worker failed with an error. ``worker``, ``exit``.")
worker_killed: Hook = Hook("worker_killed", "A worker was killed after its grace period. ``worker``, ``exit``.")
restart_scheduled: Hook = Hook(
    "restart_scheduled",
    "A child, and any others that the supervisor's strategy includes, will be restarted after a delay. The sender is "
    "the supervisor. ``child``, ``delay`` in seconds, ``error``.",
)
worker_restarted: Hook = Hook(
    "worker_restarted", "A supervisor starts a child again, before it is ready. ``child``, ``restarts``."
)
circuit_opened: Hook = Hook("circuit_opened", "A child will not be restarted automatically. ``child``, ``restarts``.")

# -- pools: the sender is the pool; ``member`` is a worker's ID, and ``session`` is a name ---------------------

call_started: Hook = Hook(
    "call_started",
    "A call was made, but is not queued or sent yet. Announced in the caller's context. ``call``, with a ``spec`` and "
    "a ``traceparent`` that is sent to the worker.",
)
call_ended: Hook = Hook("call_ended", "A call has finished. ``call``, ``error`` (None if it returned).")
call_queued: Hook = Hook("call_queued", "A call is waiting for a worker. ``function``, ``session``.")
call_dispatched: Hook = Hook(
    "call_dispatched",
    "A call was sent to a worker. ``function``, ``session``, ``member``, ``waited`` in seconds.",
)
call_finished: Hook = Hook(
    "call_finished",
    "A call has returned or failed. ``function``, ``session``, ``member`` (None if it was not sent), ``waited`` and "
    "``ran`` in seconds, ``error`` (None if it returned).",
)
pool_saturated: Hook = Hook("pool_saturated", "The queue is full, so a call was rejected. ``queued``, ``function``.")
pool_recovered: Hook = Hook(
    "pool_recovered",
    "The pool handled a failure. ``action`` (``retry``, ``degrade``, ``remove`` or ``replace``), ``member``, "
    "``reason``, ``error``.",
)
member_changed: Hook = Hook("member_changed", "A worker's phase changed. ``member``, ``change``.")
health_checked: Hook = Hook(
    "health_checked", "A worker's health was checked. ``member``, ``result``, ``duration`` in seconds."
)
session_bound: Hook = Hook("session_bound", "A session was bound to a worker. ``session``, ``member``.")
session_hit: Hook = Hook("session_hit", "A call was sent to its session's worker. ``session``, ``member``.")
session_missed: Hook = Hook(
    "session_missed",
    "A call's session had no free worker. ``session``, ``member`` (None if the session had no worker).",
)
session_lost: Hook = Hook("session_lost", "A session's worker has exited. ``session``, ``member``.")
session_evicted: Hook = Hook("session_evicted", "Newer sessions have displaced a session. ``session``, ``member``.")

# -- the runtime: the sender is the lifetime -------------------------------------------------------------------

task_started: Hook = Hook("task_started", "A background task, or a function in a `Group`, has started. ``name``.")
task_finished: Hook = Hook(
    "task_finished", "A background task, or a function in a `Group`, has finished. ``name``, ``duration``."
)
task_crashed: Hook = Hook("task_crashed", "A background task raised. ``name``, ``error``.")
critical_finished: Hook = Hook(
    "critical_finished", "A `do` or `do_detached` has finished. ``name``, ``duration``, ``error``."
)
hook_finished: Hook = Hook("hook_finished", "A shutdown hook has finished. ``hook``, ``duration``, ``error``.")
signal_received: Hook = Hook("signal_received", "The process received a signal. ``signum``, ``count``.")
forced_exit: Hook = Hook("forced_exit", "The process is about to be forced to exit. ``status``, ``reason``.")
