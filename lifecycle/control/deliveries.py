"""`Delivery`, which ``emit`` returns, and its outcome, which `Delivery.finish` counts, logs and announces.

Await a delivery to wait until the event has been handled. No other module announces the outcome of an event.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks
from lifecycle._util import error_text, name_of, was_logged
from lifecycle.errors import Dropped, LaneFull, LifecycleError, NotHandled, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from lifecycle.control.commands import Commands
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.types import RouteHandler
    from lifecycle.events import Topical

__all__ = ["Counts", "Delivery", "Relayed", "current", "current_lane", "delegated", "delivery", "emits_stored"]

_log = logging.getLogger("lifecycle.control")

_numbers = itertools.count(1)

# A hook keeps the same dictionary of receivers for as long as it exists, so we can keep a reference to it. The
# dictionary is empty if the hook has no receivers.
_FINISHED, _ENDED = hooks.handler_finished.receivers, hooks.delivery_ended.receivers


class _Router(Protocol):
    @property
    def commands(self) -> Commands: ...


class _Route(Protocol):
    """The part of a route that a delivery uses."""

    pattern: Pattern
    text: str
    handler: RouteHandler
    counts: Counts
    routed: int
    handled: int
    failed: int
    dropped: int

    def holds(self, call: Delivery) -> bool: ...

    @property
    def lane(self) -> object: ...


class _Taker(Protocol):
    def take(self, delivery: Delivery, passed: NotHandled | None = None, /) -> Coroutine[Any, Any, None] | None: ...


class _Match(Protocol):
    """The routes that may still get an event."""

    @property
    def first(self) -> _Taker: ...

    @property
    def route(self) -> _Route | None: ...

    def rest(self, *, relayed: bool) -> _Match: ...


class _Lane(Protocol):
    """The part of a lane that a delivery uses."""

    def awaiting(self, delivery: Delivery, /) -> AbstractContextManager[None]:
        """Mark the current handler as waiting for ``delivery``, or raise an error if the wait would never end."""
        ...

    def check_call(self, event: Topical, route: _Route, /) -> None:
        """Raise an error if the current handler would wait for itself by calling ``route``."""
        ...


#: The delivery that the current handler is processing. It becomes the parent of the events that the handler emits.
current: ContextVar[Delivery | None] = ContextVar("lifecycle_delivery", default=None)

#: The lane whose task calls the current handler.
current_lane: ContextVar[_Lane | None] = ContextVar("lifecycle_lane", default=None)

#: The task in which middleware runs a handler, and the task of the lane, which waits for it. Other tasks that inherit
#: the value do not belong to the handler.
delegated: ContextVar[tuple[asyncio.Task[Any] | None, asyncio.Task[Any] | None] | None] = ContextVar(
    "lifecycle_delegated", default=None
)

#: True in the task of a source that stores its events. Such a task may be cancelled before it receives the delivery.
emits_stored: ContextVar[bool] = ContextVar("lifecycle_emits_stored", default=False)

#: The maximum number of ancestors that a delivery keeps in memory after it has ended.
_GENERATIONS = 16


def delivery() -> Delivery:
    """Return the delivery that the current handler is processing.

    Raises:
        LookupError: if called outside a handler that received its event through a lane.
    """
    here = current.get()
    if here is None:
        raise LookupError("no event is being handled; call delivery() only inside a handler that a lane has called")
    return here


class Relayed(NotHandled):
    """Raised when a relay passes an event to its routes. It never leaves this package."""


class Counts:
    """The counts of a router's events, except those that its present routes count."""

    __slots__ = ("dropped", "failed", "handled", "routed", "router", "unrouted")

    def __init__(self, router: _Router) -> None:
        #: The sender of the hooks.
        self.router: _Router = router
        self.routed: int = 0
        self.handled: int = 0
        self.failed: int = 0
        self.dropped: int = 0
        self.unrouted: int = 0

    def unroute(self, delivery: Delivery) -> None:
        """Count an event that no route took. The fallback may still get it."""
        self.unrouted += 1
        hooks.event_unrouted.announce(self.router, event=delivery.event)

    def take_over(self, route: _Route) -> None:
        """Count the events of a route that was removed and has finished them."""
        for name in ("routed", "handled", "failed", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(route, name))
            # If another event still reaches the route, it is counted when the route has finished it.
            setattr(route, name, 0)


class _Ended:
    """How a delivery has ended."""


_SUCCEEDED, _FAILED = _Ended(), _Ended()


class Delivery:
    """The delivery of one event. Await it to wait until the handler has finished.

    Awaiting a delivery returns the handler's value once the handler has returned. If the handler failed, it raises the
    handler's error. If the event was not handled or was dropped, it raises `NotHandled` or `Dropped`. If a debounce
    merged the event into another one, the delivery ends when the merged call ends. Several tasks can await the same
    delivery.

    A handler that awaits a delivery which its own lane can only handle afterwards would wait for itself, directly or
    through other lanes. Awaiting then raises `LifecycleError`, and the event is still handled.
    """

    __slots__ = (
        "_into",
        "_outcome",
        "_stored",
        "_traceback",
        "_waiters",
        "event",
        "id",
        "match",
        "parent",
        "route",
    )

    # The handler's value, or the error. It is set when the delivery ends.
    _outcome: Any
    # The error's traceback at the time the delivery ended. It is set together with the error.
    _traceback: TracebackType | None

    def __init__(
        self,
        event: Topical,
        match: _Match | None = None,
        route: _Route | None = None,
        parent: Delivery | None = None,
    ) -> None:
        #: The delivery's number, unique within the process.
        self.id: int = next(_numbers)
        self.event: Topical = event
        # The routes that may get the event, the current one first. None if only the current route may.
        self.match: _Match | None = match
        # The current route. None if no route or fallback takes the event.
        self.route: _Route | None = route
        #: The delivery that the emitting handler was processing. Older ancestors are removed after a few generations.
        self.parent: Delivery | None = parent
        # The attempt number, if the source has stored the event.
        self._stored = 0
        # The call into which this delivery was merged. This delivery ends when that call ends.
        self._into: Delivery | None = None
        # The tasks that wait for the end, or the kind of end. This is a single attribute, because a delivery is created
        # for every event.
        self._waiters: list[asyncio.Future[None]] | _Ended | None = None

    def __repr__(self) -> str:
        state = "pending" if not self.done else f"failed: {self.error!r}" if self.error else "delivered"
        return f"<Delivery {self.id} of {self.event!r}: {state}>"

    def __await__(self) -> Generator[asyncio.Future[None], None, Any]:
        last = self._last()
        if not last.done:
            home = current_lane.get()
            while not last.done:
                # Check again after each step of the event, because it may have entered another lane.
                with nullcontext() if home is None else home.awaiting(last):
                    yield from last._wait()  # noqa: SLF001  # merged deliveries are of this class
                last = last._last()  # noqa: SLF001
        if last._waiters is _FAILED:  # noqa: SLF001
            # Use the saved traceback. Otherwise, every task that awaits this delivery would add frames to the error's
            # traceback.
            raise last._outcome.with_traceback(last._traceback)  # noqa: SLF001
        return last._outcome  # noqa: SLF001

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def into(self) -> Delivery | None:
        """The delivery into which a debounce merged this one, or None."""
        return self._into

    @property
    def done(self) -> bool:
        """True if the delivery has ended, with or without an error."""
        return isinstance(self._last()._waiters, _Ended)  # noqa: SLF001

    @property
    def error(self) -> BaseException | None:
        """The error that ended the delivery, or None if the delivery succeeded or has not ended yet."""
        last = self._last()
        return last._outcome if last._waiters is _FAILED else None  # noqa: SLF001

    @property
    def attempt(self) -> int:
        """The attempt number: 1, or more if a durable source may already have delivered the event."""
        return self._stored or 1

    @property
    def is_stored(self) -> bool:
        """True if the source has stored the event, and will deliver it again if it is dropped now."""
        return self._stored > 0

    @property
    def params(self) -> Mapping[str, str]:
        """A read-only mapping from the names in the current route's pattern to their values.

        It is empty if the topic does not match the pattern.

        The mapping is computed on each access.
        """
        pattern = None if self.route is None else self.route.pattern
        return MappingProxyType((pattern and pattern.params(self.event.topic)) or {})

    def _last(self) -> Delivery:
        last = self
        while last._into is not None:
            last = last._into
        return last

    def _wait(self) -> Generator[asyncio.Future[None], None, None]:
        """Wait until the delivery ends or is merged. Cancelling one waiter does not affect the others."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters
        if not isinstance(waiters, list):
            waiters = self._waiters = []
        waiters.append(waiter)
        try:
            yield from waiter
        except asyncio.CancelledError:
            if waiter in waiters:
                waiters.remove(waiter)
            raise

    # -- on the way --------------------------------------------------------------------------------------------------

    def announce(self, counts: Counts, *, routed: bool) -> None:
        """Announce that the event was accepted and, if ``routed``, that a route gets it."""
        hooks.delivery_accepted.announce(counts.router, delivery=self)
        if routed:
            self._announce(hooks.event_routed, delivery=self)

    def start(self) -> float:
        """Announce that the handler is about to be called, and return the time."""
        self._announce(hooks.handler_started, delivery=self)
        return asyncio.get_running_loop().time()

    def again(self, attempt: int) -> None:
        """Set the attempt number of this delivery. A source that stores its events calls this right after ``emit``.

        If several events are merged into one call, the call gets the highest attempt among them.
        """
        call = self._last()
        self._stored, call._stored = attempt, max(call._stored, attempt)  # noqa: SLF001  # of this class

    def keep(self, *, stored: bool) -> None:
        """Note whether the source of this event has stored it."""
        self._stored = int(stored)

    def another(self, event: Topical) -> Delivery:
        """Return a delivery for a merged event, which goes the same way as this one."""
        return Delivery(event, self.match, self.route, self.parent)

    def merge_into(self, call: Delivery) -> None:
        """Make this delivery end when ``call`` ends."""
        self._into = call
        waiters, self._waiters = self._waiters, None
        _wake(waiters)
        self._announce(hooks.event_merged, delivery=self)

    async def pass_on(self, error: NotHandled) -> None:
        """Give the event to the next route, because its handler raised ``error``. This is the only step back."""
        self._announce(hooks.handler_passed, delivery=self)
        if self.match is None:
            self.end(error)
            return
        is_relayed = isinstance(error, Relayed)
        if is_relayed:
            self._count("handled")
        before, self.match = self.route, self.match.rest(relayed=is_relayed)
        self.route = self.match.route or before
        try:
            waiting = self.match.first.take(self, error)
            if isinstance(self._waiters, list):
                waiters, self._waiters = self._waiters, None
                _wake(waiters)
            if waiting is not None:
                await waiting
        except LaneFull as full:
            self.finish(error=full)
        except asyncio.CancelledError:
            self.route = before
            self.drop("its handler was cancelled while it passed the event on")
            raise

    # -- the outcome -------------------------------------------------------------------------------------------------

    def finish(self, value: Any = None, error: BaseException | None = None, began: float | None = None) -> None:
        """End the delivery with the outcome of its handler: count it, log it and announce it.

        Args:
            value: The handler's result.
            error: The handler's error, unless it is a `NotHandled` that passes the event on.
            began: The start of the call in the time of the event loop, if it is known.
        """
        if error is not None:
            self._finish_with(error)
            return
        self.route.handled += 1  # type: ignore[union-attr]  # a handler was called, so there is a route
        self._outcome = value
        waiters, self._waiters = self._waiters, _SUCCEEDED
        if self.parent is not None:
            self._forget_ancestors()
        if waiters is not None:
            _wake(waiters)
        # Check now, because receivers may have connected or disconnected while the handler was running.
        if _FINISHED or _ENDED:
            if began is not None:
                self._announce(hooks.handler_finished, duration=asyncio.get_running_loop().time() - began)
            self._announce_end()

    def _finish_with(self, error: BaseException) -> None:
        """End the delivery because its handler raised ``error``."""
        route, topic = self.route, self.event.topic
        assert route is not None
        name = name_of(route.handler)
        if isinstance(error, Dropped):
            self._count("dropped")
            _log.debug("%s (route %r)", error, route.text)
            self._set(error)
            self._announce(hooks.event_dropped, reason=str(error))
        elif isinstance(error, UsageError | Refused):
            # The user or the sender made the mistake, not the handler.
            self._count("handled")
            if isinstance(error, UsageError):
                _log.warning("%s", _with_usage(error, route.counts.router.commands, topic))
            else:
                _log.warning("%s refused %s: %s (route %r)", name, topic, error, route.text)
            self._set(error)
            self._announce(hooks.handler_finished, duration=0.0)
        else:
            level = logging.DEBUG if was_logged(error) else logging.ERROR
            if isinstance(error, asyncio.CancelledError):
                # A task that awaits the delivery would mistake the original for its own cancellation.
                error = _caused(f"{name} raised CancelledError, although it was not cancelled", error)
            elif not isinstance(error, Exception):
                # The original would also end every task that awaits the delivery. It is raised in the lane's task.
                level = logging.DEBUG
                error = _caused(f"{name} raised {error_text(error)}, which is not an Exception", error)
            self._count("failed")
            _log.log(level, "%s failed on %s (route %r)", name, topic, route.text, exc_info=error)
            self._set(error)
            self._announce(hooks.handler_failed, error=error)
        self._announce_end()

    def drop(self, reason: str, *, superseded: bool = False, queued: bool = False) -> None:
        """Drop the event. ``superseded`` and ``queued`` are described in `Dropped`."""
        error = Dropped(f"{self.event.topic!r} was dropped: {reason}")
        error.superseded, error.queued = superseded, queued
        self._finish_with(error)

    def refuse(self, error: LaneFull) -> None:
        """End the delivery of an event that stays with its emitter, so that it is not counted."""
        assert self.route is not None
        self._count("routed", -1)
        self.end(error)

    def decline(self, error: NotHandled, counts: Counts) -> None:
        """End the delivery of an event that no route took."""
        _log.debug("no handler took an event: %s", error)
        self._set(error)
        counts.unroute(self)
        hooks.delivery_ended.announce(counts.router, delivery=self)

    def end(self, error: BaseException | None = None) -> None:
        """End the delivery without a handler. It is not counted."""
        self._set(error)
        self._announce_end()

    def _count(self, what: str, by: int = 1) -> None:
        setattr(self.route, what, getattr(self.route, what) + by)

    def _set(self, error: BaseException | None) -> None:
        self._outcome = error
        waiters, self._waiters = self._waiters, _SUCCEEDED
        if error is not None:
            self._waiters, self._traceback = _FAILED, error.__traceback__
        if self.parent is not None:
            self._forget_ancestors()
        _wake(waiters)

    def _forget_ancestors(self) -> None:
        """Cut the chain of parents. Otherwise, it would grow without limit if every event caused another one."""
        ancestor: Delivery | None = self
        for _ in range(_GENERATIONS):
            ancestor = ancestor.parent if ancestor is not None else None
        if ancestor is not None:
            ancestor.parent = None

    def _announce(self, hook: hooks.Hook, **about: Any) -> None:
        """Announce something about the event and its route."""
        if hook.receivers and self.route is not None:
            hook.announce(self.route.counts.router, event=self.event, pattern=self.route.text, **about)

    def _announce_end(self) -> None:
        if _ENDED and self.route is not None:
            hooks.delivery_ended.announce(self.route.counts.router, delivery=self)


def _wake(waiters: list[asyncio.Future[None]] | _Ended | None) -> None:
    if isinstance(waiters, list):
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _caused(text: str, cause: BaseException) -> LifecycleError:
    failure = LifecycleError(text)
    failure.__cause__ = cause
    return failure


def _with_usage(error: UsageError, commands: Commands, topic: str) -> str:
    """Return the text of ``error`` together with the usage of the command."""
    command, text = commands.get(topic.rpartition("/")[2]), str(error)
    if command is None or "usage:" in text:
        return text
    return text + (f"; usage: {command.usage}" if command.usage else f"; {command.name}: {command.help}".rstrip(": "))
