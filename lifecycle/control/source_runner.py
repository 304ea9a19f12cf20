"""One task a source: it is entered, fed into the router, restarted when it fails, and left."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle._util import error_text, name_of
from lifecycle.control.deliveries import current
from lifecycle.errors import SourceFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from lifecycle.backoff import Backoff
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.dispatcher import Traffic
    from lifecycle.control.router import Router
    from lifecycle.control.types import Source
    from lifecycle.events import Topical

__all__ = ["Failures", "Pump", "RestartSource", "SourceInfo", "introduce", "source_name"]

_log = logging.getLogger("lifecycle.control")


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What can be seen of a source."""

    name: str
    #: Whether it is at work, or will be after a pause.
    running: bool
    #: Whether its events wait until it is released.
    held: bool = False
    #: How often it has failed, and how the last time, for people.
    failures: int = 0
    error: str | None = None


def source_name(source: object) -> str:
    """What a source is called in messages."""
    own = getattr(source, "name", None)
    return own if isinstance(own, str) else name_of(source)


def _check(source: Any) -> None:
    """Refuse what is no source.

    Raises:
        TypeError: saying what a source is.
    """
    if isinstance(source, type):
        raise TypeError(f"{source.__qualname__} is a class; add an instance of it: {source.__qualname__}(…)")
    if inspect.iscoroutinefunction(source):
        raise TypeError(f"{name_of(source)} returns a coroutine; make it an async generator with `yield Event(…)`")
    if not (hasattr(source, "run") or hasattr(source, "__aiter__") or callable(source)):
        raise TypeError(
            f"{source!r} is no source: give an async iterable of events, a function that returns one, "
            "or an object with `async def run(emit)`"
        )


def introduce(router: Router, source: object) -> None:
    """Let a source that wants to know them have the commands of its router, or the router."""
    use_commands = getattr(source, "use_commands", None)
    if use_commands is not None:
        use_commands(router.commands)
    use_router = getattr(source, "use_router", None)
    if use_router is not None:
        use_router(router)


class Pump:
    """Keeps one source running while its router runs."""

    def __init__(self, source: Source, restart: RestartSource, backoff: Backoff, traffic: Traffic) -> None:
        _check(source)
        self.source = source
        self.name: str = source_name(source)
        self._failures = Failures(source, self.name, restart, backoff)
        self._traffic = traffic
        # Whether it waits to be started again: then it holds nothing, and ends at once.
        self._resting = False
        self._task: asyncio.Task[None] | None = None
        # What is left only when all of its events have come to their end.
        self._held = AsyncExitStack()
        # What the events of a held source wait for.
        self._gate: asyncio.Event | None = None
        self.held: bool = False

    @property
    def running(self) -> bool:
        """Whether its task is at work."""
        return self._task is not None and not self._task.done()

    def info(self) -> SourceInfo:
        """What can be seen of it now."""
        return SourceInfo(self.name, self.running, self.held, self._failures.count, self._failures.last)

    def hold(self) -> None:
        """Take no events until `release`: a source that can suspend itself does so, any other waits with its next."""
        if self.held:
            return
        if _suspends(self.source):
            cast("Any", self.source).suspend()
        else:
            self._gate = asyncio.Event()
        self.held = True

    def release(self) -> None:
        """Take events again."""
        if not self.held:
            return
        if self._gate is None:
            cast("Any", self.source).resume()
        else:
            self._gate.set()
            self._gate = None
        self.held = False

    def start(self, ready: Callable[[SourceFailed | None], None], context: Context) -> asyncio.Task[None]:
        """Start the task in ``context``; ``ready`` is told, once, that the source has started or why it could not."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(ready), name=f"source {self.name}", context=context)
        return self._task

    def stop(self) -> None:
        """Ask the source to end: one with a plain ``close()`` delivers what it holds first, any other is cancelled."""
        if self._gate is not None:
            self.release()
        close = getattr(self.source, "close", None)
        if self._resting or not callable(close) or not hasattr(self.source, "run") or iscoroutinefunction(close):
            self.cancel()
            return
        try:
            close()
        except Exception:  # noqa: BLE001  # a source of the program's; the others have to end too
            _log.exception("source %r could not be closed; it is cancelled", self.name)
            self.cancel()

    def cancel(self) -> None:
        """End the source now."""
        if self._task is not None:
            self._task.cancel()

    def rest(self) -> None:
        """The router has come to rest, and with it a hold ends."""
        try:
            self.release()
        except Exception:  # noqa: BLE001  # a source of the program's; the others come to rest too
            _log.exception("source %r could not be resumed", self.name)

    @property
    def settles(self) -> bool:
        """Whether the source wants to know when all of its events have come to their end."""
        return iscoroutinefunction(getattr(self.source, "settle", None))

    async def settle(self) -> None:
        """All of its events have: leave the source if that was put off, and let it put down what became of them."""
        source: Any = self.source
        held, self._held = self._held, AsyncExitStack()
        try:
            await held.aclose()
            await source.settle()
        except Exception:  # noqa: BLE001  # a source of the program's; the others have to settle too
            _log.exception("source %r could not settle", self.name)

    async def _run(self, ready: Callable[[SourceFailed | None], None]) -> None:
        current.set(None)
        self._resting = False
        self._failures.begin()
        now, router = asyncio.get_running_loop().time, self._traffic.router
        started = False

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
                    ready(self._failures.at_start(error, router))
                    return
                delay = self._failures.later(error, router, began=began, now=now())
                if delay is None:
                    return
                self._resting = True
                await asyncio.sleep(delay)
                self._resting = False
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
                if self.settles and self._traffic.draining:
                    self._held = stack.pop_all()
            else:
                iterator = self._iterator(source)
                if hasattr(iterator, "aclose"):
                    await stack.enter_async_context(aclosing(iterator))
                mark()
                emit = self._accept
                async for event in iterator:
                    await emit(event)

    def _accept(self, event: Topical) -> Awaitable[Delivery]:
        """Every event of the source comes through here: where it is not held, at the cost of a call."""
        return self._traffic.accept(event) if self._gate is None else self._accept_later(event, self._gate)

    async def _accept_later(self, event: Topical, gate: asyncio.Event) -> Delivery:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if self._traffic.draining:
                # What the source has in its hands is not lost; a second cancellation lets it in over the limit.
                await self._traffic.accept(event)
            raise
        return await self._accept(event)

    def _iterator(self, source: Any) -> Any:
        events: Any = source if hasattr(source, "__aiter__") else source()
        if isinstance(events, AsyncIterable):
            return events.__aiter__()  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]  # of whatever
        if inspect.iscoroutine(events):
            events.close()
        raise TypeError(f"source {self.name!r} gave {events!r}; it must give an async iterable of events")


def _suspends(source: object) -> bool:
    methods = [getattr(source, name, None) for name in ("suspend", "resume")]
    return all(callable(each) and not iscoroutinefunction(each) for each in methods)


_log = logging.getLogger("lifecycle.control")

#: Whether a source that failed after its start is started again.
RestartSource: TypeAlias = Literal["on_failure", "never"]


class Failures:
    """Those of one source, announced in the name of its router.

    Raises:
        ValueError: for another ``restart``.
    """

    def __init__(self, source: object, name: str, restart: RestartSource, backoff: Backoff) -> None:
        if restart not in ("on_failure", "never"):
            raise ValueError(f"restart={restart!r} is unknown; give 'on_failure' or 'never'")
        self._source = source
        self._name = name
        # An async generator that has failed is used up.
        self._final = restart == "never" or inspect.isasyncgen(source)
        self._backoff = backoff
        #: How many, and how the last one was, for people.
        self.count: int = 0
        self.last: str | None = None
        # When the last ones were, for a backoff that gives up after too many.
        self._recent: list[float] = []
        # How many in a row, none of them after a healthy while.
        self._row = 0

    def begin(self) -> None:
        """A new life: what failed in the one before is no reason to wait longer."""
        self._row = 0

    def at_start(self, error: BaseException, router: object) -> SourceFailed:
        """It could not start: the error that ends the router."""
        self._tell(error, None, router)
        failure = SourceFailed(f"source {self._name!r} could not start: {error_text(error)}")
        failure.__cause__ = error
        return failure

    def later(self, error: BaseException, router: object, *, began: float, now: float) -> float | None:
        """It failed ``now``, at work since ``began``: the seconds until its next start, None if there is none."""
        if now - began >= self._backoff.reset_after:
            self._row = 0
        self._recent = [*(at for at in self._recent if at >= now - self._backoff.within), now]
        spent = 0 < self._backoff.max_restarts < len(self._recent)
        delay = None if self._final or spent else self._backoff.delay(self._row)
        self._row += 1
        told = "it is not started again" if delay is None else f"it is started again in {delay:.1f} s"
        _log.error("source %r failed: %s; %s", self._name, error_text(error), told, exc_info=error)
        self._tell(error, delay, router)
        return delay

    def _tell(self, error: BaseException, delay: float | None, router: object) -> None:
        self.count += 1
        self.last = error_text(error)
        hooks.source_failed.announce(router, source=self._source, error=error, restart_in=delay)
