"""Sources, and `SourceRunner`: the task that enters a source, emits its events, restarts it and exits it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from lifecycle import hooks
from lifecycle._async import start_task, was_cancelled
from lifecycle._util import error_text, name_of
from lifecycle.control.deliveries import current
from lifecycle.errors import SourceFailed
from lifecycle.events.base import Topical

if TYPE_CHECKING:
    from contextvars import Context

    from lifecycle.backoff import Backoff
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Lanes
    from lifecycle.control.records import SourceInfo

__all__ = ["Emit", "RestartSource", "Source", "SourceObject", "SourceRunner", "source_name"]

_log = logging.getLogger("lifecycle.control")

#: Whether a source is restarted if it fails after it has started.
RestartSource: TypeAlias = Literal["on_failure", "on-failure", "never"]


class Emit(Protocol):
    """The function that a source calls to emit an event. It waits for space in the lane and returns the delivery."""

    def __call__(self, event: Topical, /) -> Awaitable[Delivery]:
        """Emit ``event``.

        If no route takes it, this call does not raise `NotHandled`, but awaiting the returned delivery does.
        """
        ...


class SourceObject(Protocol):
    """A source that pushes events. ``run`` emits events until it has no more or is cancelled.

    The router uses these optional methods:

    - ``__aenter__`` and ``__aexit__``: the source is entered first. If ``__aenter__`` raises an error, the source has
      failed to start.
    - ``def close()`` is called when the router stops, so that ``run`` can emit its last events and return. Without
      ``close``, the source is cancelled.
    - ``async def settle()`` is awaited after the router has stopped and each `Delivery` has ended.
    - ``def hold()`` and ``def release()`` are called by `Router.hold_source` and `Router.release_source`. Without them,
      a held source waits when it emits its next event.
    - ``def use_router(router)`` and ``def use_commands(commands)`` are called when the source is added.
    """

    async def run(self, emit: Emit, /) -> None:
        """Emit events with ``await emit(event)``."""
        ...


#: An iterable of events, an object with ``run``, or a function that returns an iterable. The function is called again
#: when the source is restarted.
Source: TypeAlias = AsyncIterable[Topical] | Callable[[], AsyncIterable[Topical]] | SourceObject


def source_name(source: object) -> str:
    """Return the name of a source for messages."""
    own = getattr(source, "name", None)
    return own if isinstance(own, str) else name_of(source)


class SourceRunner:
    """Keeps one source running while its router runs.

    Raises:
        TypeError: if ``source`` is not a source.
        ValueError: if ``restart`` is unknown.
    """

    def __init__(
        self, source: Source, restart: RestartSource, backoff: Backoff, *, router: object, emit: Emit, lanes: Lanes
    ) -> None:
        _check(source)
        if restart not in ("on_failure", "on-failure", "never"):
            raise ValueError(f"restart={restart!r} is unknown; use 'on_failure' or 'never'")
        self.source = source
        self.name: str = source_name(source)
        self._router = router
        self._emit = emit
        self._lanes = lanes
        # An async generator that has failed is exhausted, so it cannot be restarted.
        self._is_final = restart == "never" or inspect.isasyncgen(source)
        self._backoff = backoff
        self._failures = 0
        self._error: str | None = None
        # The times of recent failures, for a backoff that gives up after too many.
        self._recent: list[float] = []
        # The number of failures since the last healthy period.
        self._row = 0
        # True while the source is waiting to be restarted. It has no events at that time, so it can stop immediately.
        self._is_waiting = False
        self._task: asyncio.Task[None] | None = None
        # The context of a source with a ``settle`` method. We exit it once all of the source's deliveries have ended.
        self._entered = AsyncExitStack()
        # While the source is held, emitting waits for this `asyncio.Event`, which is set when the source is released.
        self._gate: asyncio.Event | None = None
        self.held: bool = False

    @property
    def running(self) -> bool:
        """True if the source's task is running."""
        return self._task is not None and not self._task.done()

    def info(self) -> SourceInfo:
        """Return the state of the source."""
        from lifecycle.control.records import SourceInfo

        return SourceInfo(self.name, self.running, self.held, self._failures, self._error)

    # -- holding ---------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Accept no events until `release` is called.

        A source with the methods ``hold`` and ``release`` does this itself. Any other source waits when it emits its
        next event. This is independent of ``suspend``, which a `SuspendHandler` calls.
        """
        if self.held:
            return
        if _holds_itself(self.source):
            cast("Any", self.source).hold()
        else:
            self._gate = asyncio.Event()
        self.held = True

    def release(self) -> None:
        """Accept events again."""
        if not self.held:
            return
        if self._gate is None:
            cast("Any", self.source).release()
        else:
            self._gate.set()
            self._gate = None
        self.held = False

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def start(self, ready: Callable[[SourceFailed | None], None], context: Context) -> asyncio.Task[None]:
        """Start the task in ``context``. It calls ``ready`` once, when the source has started or failed to start."""
        self._task = start_task(self._run(ready), name=f"source {self.name}", context=context)
        return self._task

    def stop(self) -> None:
        """Stop the source.

        If it has a plain ``close()`` method, call it so that the source can deliver its buffered events first.
        Otherwise, cancel the source.
        """
        if self._gate is not None:
            self.release()
        close = getattr(self.source, "close", None)
        if self._is_waiting or not callable(close) or not hasattr(self.source, "run") or iscoroutinefunction(close):
            self.cancel()
            return
        try:
            close()
        except Exception:  # noqa: BLE001  # user code; the other sources must stop too
            _log.exception("source %r could not be closed and is being cancelled", self.name)
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()

    def reset(self) -> None:
        """Release the source. Called when its router has stopped."""
        try:
            self.release()
        except Exception:  # noqa: BLE001  # user code; the other sources are released too
            _log.exception("source %r could not be released", self.name)

    @property
    def settles(self) -> bool:
        """True if the source has an async method ``settle``."""
        return iscoroutinefunction(getattr(self.source, "settle", None))

    async def settle(self) -> None:
        """Exit the source's context, and let the source store the results of its events.

        By this time, all deliveries of these events have ended.
        """
        source: Any = self.source
        entered, self._entered = self._entered, AsyncExitStack()
        try:
            await entered.aclose()
            await source.settle()
        except Exception:  # noqa: BLE001  # user code; the other sources must settle too
            _log.exception("source %r could not settle", self.name)

    # -- running -----------------------------------------------------------------------------------------------------

    async def _run(self, ready: Callable[[SourceFailed | None], None]) -> None:
        current.set(None)
        self._is_waiting = False
        self._row = 0
        now, started = asyncio.get_running_loop().time, False

        def mark() -> None:
            nonlocal started
            if not started:
                started = True
                ready(None)

        while True:
            began = now()
            try:
                await self._attempt(mark)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and was_cancelled():
                    raise
                if not started:
                    ready(self._start_failed(error))
                    return
                delay = self._failed(error, began=began, now=now())
                if delay is None:
                    return
                self._is_waiting = True
                await asyncio.sleep(delay)
                self._is_waiting = False
            else:
                return

    async def _attempt(self, mark: Callable[[], None]) -> None:
        source: Any = self.source
        async with AsyncExitStack() as stack:
            if hasattr(source, "__aenter__") and hasattr(source, "__aexit__"):
                await stack.enter_async_context(source)
            if hasattr(source, "run"):
                mark()
                await source.run(self._accept)
                if self.settles and self._lanes.draining:
                    self._entered = stack.pop_all()
            else:
                iterator = self._iterator(source)
                if hasattr(iterator, "aclose"):
                    await stack.enter_async_context(aclosing(iterator))
                mark()
                emit = self._emit
                async for event in iterator:
                    await (emit(event) if self._gate is None else self._accept_later(event, self._gate))

    def _accept(self, event: Topical) -> Awaitable[Delivery]:
        """Accept an event from the source. Every event passes through here, so this adds only one call."""
        return self._emit(event) if self._gate is None else self._accept_later(event, self._gate)

    async def _accept_later(self, event: Topical, gate: asyncio.Event) -> Delivery:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if self._lanes.draining:
                # Don't lose the event that the source is emitting. If we are cancelled again, it enters the lane even
                # if the lane is full.
                await self._emit(event)
            raise
        return await self._accept(event)

    def _iterator(self, source: Any) -> Any:
        events: Any = source if hasattr(source, "__aiter__") else source()
        if isinstance(events, AsyncIterable):
            return events.__aiter__()  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]  # of any type
        if inspect.iscoroutine(events):
            events.close()
        raise TypeError(f"source {self.name!r} returned {events!r}; it must return an async iterable of events")

    # -- failures ----------------------------------------------------------------------------------------------------

    def _start_failed(self, error: BaseException) -> SourceFailed:
        """Report that the source failed to start, and return the error that ends the router."""
        self._report(error, None)
        failure = SourceFailed(f"source {self.name!r} could not start: {error_text(error)}")
        failure.__cause__ = error
        return failure

    def _failed(self, error: BaseException, *, began: float, now: float) -> float | None:
        """Report that the source failed. Return the seconds until its restart, or None if it is not restarted."""
        if now - began >= self._backoff.reset_after:
            self._row = 0
        self._recent = [*(at for at in self._recent if at >= now - self._backoff.within), now]
        is_spent = 0 < self._backoff.max_restarts < len(self._recent)
        delay = None if self._is_final or is_spent else self._backoff.delay(self._row)
        self._row += 1
        then = "it is not restarted" if delay is None else f"it is restarted in {delay:.1f} s"
        _log.error("source %r failed: %s; %s", self.name, error_text(error), then, exc_info=error)
        self._report(error, delay)
        return delay

    def _report(self, error: BaseException, delay: float | None) -> None:
        self._failures += 1
        self._error = error_text(error)
        hooks.source_failed.announce(self._router, source=self.source, error=error, restart_in=delay)


def _check(source: Any) -> None:
    """Check that ``source`` is a source.

    Raises:
        TypeError: if it is not a source. The message lists the accepted kinds of sources.
    """
    if isinstance(source, type):
        raise TypeError(f"{source.__qualname__} is a class; add an instance: {source.__qualname__}(…)")
    if inspect.iscoroutinefunction(source):
        raise TypeError(f"{name_of(source)} returns a coroutine; make it an async generator with `yield Event(…)`")
    if not (hasattr(source, "run") or hasattr(source, "__aiter__") or callable(source)):
        raise TypeError(
            f"{source!r} is not a source: expected an async iterable of events, a function that returns one, "
            "or an object with `async def run(emit)`"
        )
    settle = getattr(source, "settle", None)
    if callable(settle) and not iscoroutinefunction(settle):
        raise TypeError(f"settle() of the source {source_name(source)!r} would never run; define it with `async def`")


def _holds_itself(source: object) -> bool:
    methods = [getattr(source, name, None) for name in ("hold", "release")]
    return all(callable(each) and not iscoroutinefunction(each) for each in methods)
