"""Waiting until a burst is over: trailing-edge windows, before a route or without a router.

One timer a window: an event only moves the time when it is due, which costs a fiftieth of setting a timer anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle._util import name_of
from lifecycle.control.deliveries import Delivery
from lifecycle.control.routing import as_async
from lifecycle.errors import NotHandled
from lifecycle.events import Change, FileBatch, FileEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lifecycle.control.types import Handler
    from lifecycle.events import Topical

__all__ = ["Debounce", "Debounced", "Merge", "Window", "debounce", "merge_files"]

_log = logging.getLogger("lifecycle.control")

#: Folds the pending event and a new one into what is pending then.
Merge: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Debounce:
    """How long to wait for a burst to settle, and what to keep of it.

    An event waits until ``wait`` seconds have passed without another, but no longer than ``max_wait`` seconds from
    the first of the burst. The newest event wins, unless ``merge(pending, new)`` folds them; a ``merge`` with an
    attribute ``first`` is given the first of a burst too. ``key(event)`` gives each key a window of its own.

    Raises:
        ValueError: for a negative ``wait``, or a ``max_wait`` shorter than ``wait``.
        TypeError: for a ``merge`` or ``key`` that cannot be called.
    """

    wait: float
    max_wait: float | None = None
    merge: Merge | None = None
    key: Callable[[Any], Hashable] | None = None

    def __post_init__(self) -> None:
        if self.wait < 0:
            raise ValueError(f"Debounce(wait={self.wait!r}) is negative; give seconds of 0 or more")
        if self.max_wait is not None and self.max_wait < self.wait:
            raise ValueError(f"max_wait={self.max_wait!r} is shorter than wait={self.wait!r}; make it longer")
        for name, function, example in (
            ("merge", self.merge, "lambda pending, new: new"),
            ("key", self.key, "lambda event: event.topic"),
        ):
            if function is not None and not callable(function):
                raise TypeError(
                    f"expected a function as Debounce({name}=…), got {function!r}; give one such as {example}"
                )


class _Burst:
    """What one window holds."""

    __slots__ = ("call", "clock", "due", "event", "latest", "timer")

    def __init__(self, event: Topical, call: Delivery, clock: Callable[[], float]) -> None:
        self.event = event
        # Ends when the merged call ends; every delivery of the burst is merged into it.
        self.call = call
        self.clock = clock
        self.due = self.latest = float("inf")
        self.timer: asyncio.TimerHandle | None = None


class Window:
    """Holds the events of one route until their burst is over, then releases one.

    ``release(key, call)`` hands the call on, its event settled; where it returns False there is no room yet, and the
    burst stays open (and goes on merging) until `retry` is called for its key.
    """

    __slots__ = ("_bursts", "_first", "_key", "_max_wait", "_merge", "_release", "closed", "wait")

    wait: float

    def __init__(self, settings: Debounce, release: Callable[[Hashable, Delivery], bool]) -> None:
        self.wait, self._max_wait = settings.wait, settings.max_wait
        self._merge, self._key = settings.merge, settings.key
        self._first: Callable[[Any], Any] | None = getattr(settings.merge, "first", None)
        self._release = release
        # Open windows by key; one with no key has the key None.
        self._bursts: dict[Hashable, _Burst] = {}
        # Once closed, an event goes straight through.
        self.closed: bool = False

    def __len__(self) -> int:
        return len(self._bursts)

    def fold(self, event: Topical, delivery: Delivery | None = None) -> Delivery:
        """Take an event in, and return the call that it will be part of; what ``key`` or ``merge`` raises comes out.

        ``delivery`` is that of the event, where it has one: the call of a new burst is of its route and parent.
        """
        key = None if self._key is None else self._key(event)
        burst = self._bursts.get(key)
        if burst is None:
            return self._open(key, event, delivery)
        burst.event = event if self._merge is None else self._merge(burst.event, event)
        due = burst.clock() + self.wait
        burst.due = due if due < burst.latest else burst.latest  # noqa: FURB136  # min() costs more here
        return burst.call

    def _open(self, key: Hashable, event: Topical, like: Delivery | None) -> Delivery:
        event = event if self._first is None else self._first(event)
        call = Delivery(event) if like is None else Delivery(event, like.parent, like.route, like.plan)
        loop = asyncio.get_running_loop()
        burst = self._bursts[key] = _Burst(event, call, loop.time)
        if self.closed:
            self._let_go(key)
            return call
        now = loop.time()
        if self._max_wait is not None:
            burst.latest = now + self._max_wait
        burst.due = min(now + self.wait, burst.latest)
        burst.timer = loop.call_at(burst.due, self._ring, key)
        return call

    def _ring(self, key: Hashable) -> None:
        """The timer: release what is due, or sleep on until it is."""
        burst = self._bursts[key]
        # Not the clock: a loop may call a hair too early, and would do so again at once.
        if burst.timer is not None and burst.due > burst.timer.when():
            burst.timer = asyncio.get_running_loop().call_at(burst.due, self._ring, key)
        else:
            self._let_go(key)

    def _let_go(self, key: Hashable) -> None:
        burst = self._bursts[key]
        if burst.timer is not None:
            burst.timer.cancel()
        burst.timer = None
        burst.call.event = burst.event
        del self._bursts[key]
        if not self._release(key, burst.call):
            self._bursts[key] = burst

    def retry(self, key: Hashable) -> bool:
        """Release a burst that found no room; False if it does not wait for it any more."""
        burst = self._bursts.get(key)
        if burst is None or burst.timer is not None:
            return False
        self._let_go(key)
        return True

    def flush(self) -> None:
        """Release everything now; what waits for room already goes on waiting."""
        for key, burst in list(self._bursts.items()):
            if burst.timer is not None:
                self._let_go(key)

    def calls(self) -> list[Delivery]:
        """The calls that are still to be made."""
        return [burst.call for burst in self._bursts.values()]

    def discard(self) -> list[Delivery]:
        """Give up what is held; the calls that will not be made."""
        calls: list[Delivery] = []
        for burst in self._bursts.values():
            if burst.timer is not None:
                burst.timer.cancel()
            burst.call.event = burst.event
            calls.append(burst.call)
        self._bursts.clear()
        return calls


class Debounced:
    """A handler behind a window; calling it returns at once. Made by `debounce`."""

    def __init__(self, handler: Handler, settings: Debounce) -> None:
        self._call = as_async(handler)
        self._name = name_of(handler)
        self._window = Window(settings, self._start)
        # One call a key at a time, and the tasks that make them.
        self._running: dict[Hashable, Delivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, event: Topical) -> None:
        """Take ``event`` into the window."""
        self._window.fold(event)

    async def flush(self) -> None:
        """Deliver what is pending now, and wait until its calls have ended; what comes meanwhile is not waited for."""
        calls = [*self._running.values(), *self._window.calls()]
        self._window.flush()
        while any(not call.done for call in calls):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, key: Hashable, call: Delivery) -> bool:
        if key in self._running:
            return False
        task = asyncio.get_running_loop().create_task(self._run(call), name=f"debounced {self._name}")
        self._running[key] = call
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[key]
            self._tasks.discard(task)
            if not call.done:  # cancelled before it began
                call.end(asyncio.CancelledError())
            self._window.retry(key)

        task.add_done_callback(ended)
        return True

    async def _run(self, call: Delivery) -> None:
        try:
            await self._call(call.event)
        except NotHandled as passed:
            call.end(passed)
        except (Exception, asyncio.CancelledError) as error:  # reported as any handler's error
            call.end(error)
            if isinstance(error, asyncio.CancelledError) and was_cancelled():
                raise
            _log.exception("the debounced handler %s failed on %s", self._name, call.event.topic)
            hooks.handler_failed.announce(self, event=call.event, pattern=None, error=error)
        else:
            call.end()


def debounce(
    handler: Handler,
    wait: float,
    *,
    max_wait: float | None = None,
    merge: Merge | None = None,
    key: Callable[[Any], Hashable] | None = None,
) -> Debounced:
    """``handler`` behind a window of ``wait`` seconds, without a router; see `Debounce` for the settings.

    The result is a handler that returns at once. Calls of ``handler`` never overlap for one key; its errors are
    logged and announced on ``hooks.handler_failed``. ``await result.flush()`` delivers what is pending; do so before
    the loop ends (a router does it for its handlers).
    """
    return Debounced(handler, Debounce(wait, max_wait, merge, key))


#: What two changes of one path come to; what is missing here comes to the newer one, None to nothing at all.
_NET: Mapping[tuple[Change, Change], Change | None] = {
    ("added", "modified"): "added",
    ("added", "deleted"): None,
    ("deleted", "added"): "modified",
}


class _Growing(dict["Path", Change]):
    """The changes of a batch that is still being folded: it belongs to the fold and grows in place."""


class _MergeFiles:
    """Folds `FileEvent`s into one `FileBatch`, which tells what became of each path in the end.

    Added then deleted cancels out; added then modified is added; deleted then added is modified. It takes amortised
    constant time an event, and uses the pending batch up; go on with what is returned.
    """

    def __call__(self, pending: FileEvent | FileBatch, new: FileEvent | FileBatch) -> FileBatch:
        is_growing = isinstance(pending, FileBatch) and isinstance(pending.changes, _Growing)
        batch = cast("FileBatch", pending) if is_growing else self.first(pending)
        changes = cast("_Growing", batch.changes)
        for path, change in _changes(new).items():
            old = changes.get(path)
            net = change if old is None else _NET.get((old, change), change)
            if net is None:
                del changes[path]
            else:
                changes[path] = net
        return batch

    def first(self, event: FileEvent | FileBatch) -> FileBatch:
        """A batch of ``event`` alone, so that a handler gets a batch also where a burst was one event."""
        return FileBatch(_Growing(_changes(event)))


def _changes(event: FileEvent | FileBatch) -> Mapping[Path, Change]:
    if isinstance(event, FileEvent):
        return {event.path: event.change}
    if isinstance(event, FileBatch):
        return event.changes
    raise TypeError(f"merge_files got {event!r}; it folds FileEvent and FileBatch only")


merge_files: _MergeFiles = _MergeFiles()
