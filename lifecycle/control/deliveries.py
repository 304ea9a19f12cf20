"""`Delivery`, which ``emit`` returns. Await it to wait until the event has been handled."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from contextlib import nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from lifecycle.control.routing import Match, Route
    from lifecycle.events import Topical

__all__ = ["Begun", "Delivery", "current", "current_lane", "delegated", "delivery", "emits_stored"]

_numbers = itertools.count(1)


class _Lane(Protocol):
    """The part of a lane that a delivery uses."""

    def awaiting(self, delivery: Delivery, /) -> AbstractContextManager[None]:
        """Mark the current handler as waiting for ``delivery``, or raise an error if the wait would never end."""
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
        "_done",
        "_error",
        "_into",
        "_traceback",
        "_value",
        "_waiters",
        "attempt",
        "event",
        "id",
        "is_stored",
        "match",
        "parent",
        "route",
    )

    # The error's traceback at the time the delivery ended. It is set together with the error.
    _traceback: TracebackType | None
    # The handler's value. It is set when the delivery ends.
    _value: Any

    def __init__(
        self,
        event: Topical,
        parent: Delivery | None = None,
        route: Route | None = None,
        match: Match | None = None,
    ) -> None:
        #: The delivery's number, unique within the process.
        self.id: int = next(_numbers)
        self.event: Topical = event
        #: The delivery that the emitting handler was processing. Older ancestors are removed after a few generations.
        self.parent: Delivery | None = parent
        #: The attempt number: 1, or more if a durable source may already have delivered the event.
        self.attempt: int = 1
        #: True if the source has stored the event, and will deliver it again if it is dropped now.
        self.is_stored: bool = False
        # The current route. The dispatcher sets it.
        self.route: Route | None = route
        # The remaining routes, which get the event if it is passed on.
        self.match: Match | None = match
        # The call into which this delivery was merged. This delivery ends when that call ends.
        self._into: Delivery | None = None
        self._done = False
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    def __repr__(self) -> str:
        state = "pending" if not self.done else f"failed: {self.error!r}" if self.error else "delivered"
        return f"<Delivery {self.id} of {self.event!r}: {state}>"

    def __await__(self) -> Generator[asyncio.Future[None], None, Any]:
        last = self._last()
        if not last._done:  # noqa: SLF001  # merged deliveries are of this class
            home = current_lane.get()
            with nullcontext() if home is None else home.awaiting(last):
                while not last._done:  # noqa: SLF001
                    yield from last._wait()  # noqa: SLF001
                    last = last._last()  # noqa: SLF001
        if last._error is not None:  # noqa: SLF001
            # Use the saved traceback. Otherwise, every task that awaits this delivery would add frames to the error's
            # traceback.
            raise last._error.with_traceback(last._traceback)  # noqa: SLF001
        return last._value  # noqa: SLF001

    @property
    def into(self) -> Delivery | None:
        """The delivery into which a debounce merged this one, or None."""
        return self._into

    @property
    def done(self) -> bool:
        """True if the delivery has ended, with or without an error."""
        return self._last()._done  # noqa: SLF001

    @property
    def error(self) -> BaseException | None:
        """The error that ended the delivery, or None if the delivery succeeded or has not ended yet."""
        return self._last()._error  # noqa: SLF001

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
        if self._waiters is None:
            self._waiters = []
        waiters = self._waiters
        waiters.append(waiter)
        try:
            yield from waiter
        except asyncio.CancelledError:
            if waiter in waiters:
                waiters.remove(waiter)
            raise

    def end(self, error: BaseException | None = None, value: Any = None) -> None:
        """End the delivery, with ``error`` or the handler's ``value``. The dispatcher calls this exactly once."""
        self._done = True
        self._value = value
        if error is not None:
            self._error, self._traceback = error, error.__traceback__
        if self.parent is not None:
            self._forget_ancestors()
        if self._waiters is not None:
            self._wake()

    def _forget_ancestors(self) -> None:
        """Cut the chain of parents. Otherwise, it would grow without limit if every event caused another one."""
        ancestor: Delivery | None = self
        for _ in range(_GENERATIONS):
            ancestor = ancestor.parent if ancestor is not None else None
        if ancestor is not None:
            ancestor.parent = None

    def again(self, attempt: int) -> None:
        """Set the attempt number of this delivery. A source that stores its events calls this right after ``emit``.

        If several events are merged into one call, the call gets the highest attempt among them.
        """
        self.attempt, self.is_stored = attempt, True
        call = self._last()
        call.attempt, call.is_stored = max(call.attempt, attempt), True

    def merge_into(self, call: Delivery) -> None:
        """Make this delivery end when ``call`` ends."""
        self._into = call
        self._wake()

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class Begun(Delivery):
    """The delivery to a tap whose plain function has returned an awaitable, which the tap's lane awaits."""

    __slots__ = ("_work",)

    def __init__(self, event: Topical, route: Route, work: Awaitable[Any]) -> None:
        super().__init__(event, None, route)
        self._work: Awaitable[Any] | None = work

    def take(self, event: Topical) -> Awaitable[Any] | None:
        """Return the awaitable if it belongs to ``event``. It is returned only once."""
        if event is not self.event:
            return None
        work, self._work = self._work, None
        return work

    def end(self, error: BaseException | None = None, value: Any = None) -> None:
        """End the delivery. A coroutine that was never awaited is closed."""
        if inspect.iscoroutine(self._work):
            self._work.close()
        super().end(error, value)
