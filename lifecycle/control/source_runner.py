"""`SourceRunner`: the task that enters a source, emits its events, restarts it and exits it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias, cast, runtime_checkable

from lifecycle import hooks
from lifecycle._async import is_async, start_task, was_cancelled
from lifecycle._util import error_text, name_of
from lifecycle.control.deliveries import current
from lifecycle.errors import SourceFailed
from lifecycle.events.base import Topical
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from contextvars import Context
    from types import TracebackType

    from lifecycle.backoff import Backoff
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Lanes
    from lifecycle.control.records import SourceInfo

__all__ = ["STEPS", "Emit", "Phase", "RestartSource", "SourceLike", "SourceObject", "SourceRunner", "Step"]

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


@runtime_checkable
class SourceObject(Protocol):
    """An object that emits events and is not a `Source`.

    If it is an async context manager, the router enters it first. Its ``name``, if it has one, is the source's name. To
    use the other methods of `Source`, inherit from `Source`.
    """

    async def run(self, emit: Emit, /) -> None:
        """Emit events with ``await emit(event)`` until there are no more, or until cancelled."""
        ...


#: A `Source`, an object with ``run``, an iterable of events, or a function that returns an iterable. The function is
#: called again when the source is restarted.
SourceLike: TypeAlias = Source | SourceObject | AsyncIterable[Topical] | Callable[[], AsyncIterable[Topical]]


class Phase(StrEnum):
    """A step in the life of a `SourceRunner`."""

    STOPPED = "stopped"
    #: It enters the source for the first time since the router has started.
    STARTING = "starting"
    RUNNING = "running"
    #: The source has failed. It has no events, so it can stop immediately.
    WAITING = "waiting"
    #: It enters the source again.
    RESTARTING = "restarting"


class Step(StrEnum):
    """An input that changes the `Phase` of a runner."""

    ENTERED = "entered"
    FAILED = "failed"
    DUE = "due"
    ENDED = "ended"


#: The next `Phase`, by the current one and the step. Each run begins with `Phase.STARTING`.
STEPS: Final[dict[Phase, dict[Step, Phase]]] = {
    Phase.STOPPED: {},
    Phase.STARTING: {Step.ENTERED: Phase.RUNNING, Step.ENDED: Phase.STOPPED},
    Phase.RUNNING: {Step.FAILED: Phase.WAITING, Step.ENDED: Phase.STOPPED},
    Phase.WAITING: {Step.DUE: Phase.RESTARTING, Step.ENDED: Phase.STOPPED},
    Phase.RESTARTING: {Step.ENTERED: Phase.RUNNING, Step.FAILED: Phase.WAITING, Step.ENDED: Phase.STOPPED},
}


class SourceRunner:
    """Keeps one source running while its router runs.

    Raises:
        TypeError: if ``given`` is not a source.
        ValueError: if ``restart`` is unknown.
    """

    def __init__(
        self, given: SourceLike, restart: RestartSource, backoff: Backoff, *, router: object, emit: Emit, lanes: Lanes
    ) -> None:
        if restart not in ("on_failure", "on-failure", "never"):
            raise ValueError(f"restart={restart!r} is unknown; use 'on_failure' or 'never'")
        #: The source as it was passed to the router.
        self.given: SourceLike = given
        self.source: Source = _as_source(given)
        self.name: str = self.source.name or name_of(self.source)
        self._router = router
        self._emit = emit
        self._lanes = lanes
        # An async generator that has failed is exhausted, so it cannot be restarted.
        self._is_final = restart == "never" or inspect.isasyncgen(given)
        self._backoff = backoff
        self._failures = 0
        self._error: str | None = None
        # The times of recent failures, for a backoff that gives up after too many.
        self._recent: list[float] = []
        # The number of failures since the last healthy period.
        self._row = 0
        self._phase = Phase.STOPPED
        self._task: asyncio.Task[None] | None = None
        # The context of a source that returned while the router drains. We exit it once all deliveries have ended.
        self._entered = AsyncExitStack()

    @property
    def running(self) -> bool:
        """True if the source's task is running."""
        return self._task is not None and not self._task.done()

    def info(self) -> SourceInfo:
        """Return the state of the source."""
        from lifecycle.control.records import SourceInfo

        return SourceInfo(self.name, self.running, self.source.held, self._failures, self._error)

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def start(self, ready: Callable[[SourceFailed | None], None], context: Context) -> asyncio.Task[None]:
        """Start the task in ``context``. It calls ``ready`` once, when the source has started or failed to start."""
        self._phase = Phase.STARTING
        self._task = start_task(self._run(ready), name=f"source {self.name}", context=context)
        return self._task

    def stop(self) -> None:
        """Close the source, so that it can deliver its buffered events, or cancel it.

        A paused source delivers the event that it is emitting, because the lanes are draining. A source that the router
        has not started yet keeps its events for the next run.
        """
        if self._task is None:
            return
        try:
            if (gate := self.source.gate) is not None:
                self.source.release()
                gate.notify_all()
            if self._phase is Phase.WAITING or self.source.close() is False:
                self.cancel()
        except Exception:  # noqa: BLE001  # user code; the other sources must stop too
            _log.exception("source %r could not be closed and is being cancelled", self.name)
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()

    def reset(self) -> None:
        """Release the source, and prepare for the next run. Called when the router has stopped."""
        self._task = None
        try:
            self.source.release()
        except Exception:  # noqa: BLE001  # user code; the other sources are released too
            _log.exception("source %r could not be released", self.name)

    async def settle(self) -> None:
        """Exit the source, unless it has been exited, and let it store the results of its events.

        By this time, all deliveries of these events have ended.
        """
        if self._task is None:
            return
        entered, self._entered = self._entered, AsyncExitStack()
        try:
            await entered.aclose()
            await self.source.settle()
        except Exception:  # noqa: BLE001  # user code; the other sources must settle too
            _log.exception("source %r could not settle", self.name)

    # -- running -----------------------------------------------------------------------------------------------------

    def _advance(self, step: Step) -> None:
        self._phase = STEPS[self._phase][step]

    async def _run(self, ready: Callable[[SourceFailed | None], None]) -> None:
        current.set(None)
        self._row = 0
        now = asyncio.get_running_loop().time
        try:
            while True:
                began = now()
                try:
                    await self._attempt(ready)
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and was_cancelled():
                        raise
                    if self._phase is Phase.STARTING:
                        ready(self._start_failed(error))
                        return
                    delay = self._failed(error, began=began, now=now())
                    if delay is None:
                        return
                    self._advance(Step.FAILED)
                    await asyncio.sleep(delay)
                    self._advance(Step.DUE)
                else:
                    return
        finally:
            self._advance(Step.ENDED)

    async def _attempt(self, ready: Callable[[SourceFailed | None], None]) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.source)
            self._advance(Step.ENTERED)
            ready(None)
            await self.source.run(self._accept)
            # Closed by `stop`, not cancelled.
            if self._lanes.draining and not was_cancelled():
                self._entered = stack.pop_all()

    def _accept(self, event: Topical) -> Awaitable[Delivery]:
        """Accept an event from the source. Every event passes through here, so this adds only one call."""
        return self._emit(event) if self.source.gate is None else self._accept_later(event)

    async def _accept_later(self, event: Topical) -> Delivery:
        try:
            while (gate := self.source.gate) is not None and not self._lanes.draining:
                await gate.wait()
        except asyncio.CancelledError:
            if self._lanes.draining:
                # Don't lose the event that the source is emitting. If we are cancelled again, it enters the lane even
                # if the lane is full.
                await self._emit(event)
            raise
        return await self._emit(event)

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
        hooks.source_failed.announce(self._router, source=self.given, name=self.name, error=error, restart_in=delay)


# -- sources that are not a `Source` -------------------------------------------------------------------------------


@runtime_checkable
class _Named(Protocol):
    name: object


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> object: ...


class _Adapter(Source):
    """A source that enters ``given`` if it is an async context manager."""

    def __init__(self, given: Any) -> None:
        self._given: Any = given
        own = given.name if isinstance(given, _Named) else None
        self.name: str = own if isinstance(own, str) else name_of(given)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if isinstance(self._given, AbstractAsyncContextManager):
                context = cast("AbstractAsyncContextManager[Any]", self._given)  # pyright: ignore[reportUnknownMemberType]  # of any type
                await stack.enter_async_context(context)
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what `run` needs. By default, nothing."""


class _ObjectSource(_Adapter):
    """An object with ``run(emit)``."""

    async def run(self, emit: Emit, /) -> None:
        await self._given.run(emit)


class _IterableSource(_Adapter):
    """The items of an async iterable, or of the one that a function returns."""

    _iterator: AsyncIterator[Topical]

    async def _open(self, stack: AsyncExitStack) -> None:
        given: Any = self._given
        events: Any = given() if not isinstance(given, AsyncIterable) else given  # pyright: ignore[reportUnknownVariableType]  # of any type
        if not isinstance(events, AsyncIterable):
            if inspect.iscoroutine(events):
                events.close()
            raise TypeError(f"source {self.name!r} returned {events!r}; it must return an async iterable of events")
        self._iterator = aiter(events)  # pyright: ignore[reportUnknownArgumentType]  # of any type
        if isinstance(self._iterator, _Closable):
            await stack.enter_async_context(aclosing(self._iterator))

    async def run(self, emit: Emit, /) -> None:
        async for event in self._iterator:
            await emit(event)


def _as_source(given: Any) -> Source:
    """Return ``given`` as a `Source`.

    Raises:
        TypeError: if it is not a source. The message lists the accepted kinds of sources.
    """
    if isinstance(given, type):
        raise TypeError(f"{given.__qualname__} is a class; add an instance: {given.__qualname__}(…)")
    if inspect.iscoroutinefunction(given):
        raise TypeError(f"{name_of(given)} returns a coroutine; make it an async generator with `yield Event(…)`")
    if isinstance(given, Source):
        if not is_async(given.settle):
            raise TypeError(f"settle() of the source {given.name!r} would never run; define it with `async def`")
        return given
    if isinstance(given, SourceObject):
        return _ObjectSource(given)
    if isinstance(given, AsyncIterable) or callable(given):
        return _IterableSource(given)
    raise TypeError(
        f"{given!r} is not a source: expected a Source, an async iterable of events, a function that returns one, "
        "or an object with `async def run(emit)`"
    )
