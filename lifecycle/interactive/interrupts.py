"""Handling of Ctrl+C at a prompt.

It clears the line, cancels running commands and line handlers, suspends the program, or quits.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._async import start_task
from lifecycle._steering.answers import say
from lifecycle.control.calls import as_async
from lifecycle.control.deliveries import delegated
from lifecycle.control.router import call_directly
from lifecycle.errors import Dropped, NotHandled
from lifecycle.events import ClearLineEvent, InterruptEvent, ShutdownEvent, SuspendEvent, Topical
from lifecycle.handlers import Escalator
from lifecycle.runtime import current
from lifecycle.runtime.lifetimes import current_lifetime
from lifecycle.runtime.presses import Action, Presses
from lifecycle.sources.signals import SignalSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from lifecycle.control import AsyncHandler, Delivery, Handler, Router
    from lifecycle.handlers import SuspendHandler
    from lifecycle.sources.prompt import PromptSource

__all__ = ["InterruptPolicy", "RunningHandlers", "Signals"]

#: If there is nothing to suspend, a second Ctrl+C within this many seconds quits.
_AGAIN = 2.0

#: The topics of lines that are not commands.
_LINES = ("input/line", "input/unknown")


class InterruptPolicy:
    """The handler for Ctrl+C, which takes the mildest possible step.

    Ctrl+C clears a half-typed line in ``keyboard``, and leaves a search in its history. If there is neither, it cancels
    the handlers in ``running``. If none are running, it calls ``interrupt``, suspends ``suspender``, or asks the user
    to press Ctrl+C again. The next step is to quit.
    """

    def __init__(
        self,
        router: Router,
        keyboard: PromptSource | None,
        running: RunningHandlers,
        suspender: SuspendHandler | None,
        interrupt: Handler | None,
    ) -> None:
        self._router = router
        self._keyboard = keyboard
        self._running = running
        self._suspender = suspender
        # The last suspension that Ctrl+C requested.
        self._requested: Delivery | None = None
        self._interrupt = None if interrupt is None else as_async(interrupt)
        first: Handler = self._ask_for_another
        if interrupt is not None:
            first = self._hand_over
        elif suspender is not None:
            first = self._suspend_first
        window = _AGAIN if first == self._ask_for_another else None
        self._escalator = Escalator(first, self._quit, window=window)
        if suspender is not None:
            suspender.when_resumed(self._reset)

    async def __call__(self, event: Topical) -> None:
        """Take one step in response to Ctrl+C."""
        if self._keyboard is not None and self._keyboard.clear_line():
            self._forgive()
            with suppress(NotHandled):
                await self._router.emit(ClearLineEvent())
        elif self._running.cancel():
            self._forgive()
        else:
            await self._escalator(event)

    async def _hand_over(self, _: Topical) -> None:
        assert self._interrupt is not None
        await self._interrupt(InterruptEvent())
        self._handled()

    async def _suspend_first(self, _: Topical) -> None:
        suspender, requested = self._suspender, self._requested
        assert suspender is not None
        if requested is not None and (not requested.done or requested.error is not None):
            raise NotHandled("the requested suspension has not finished, or has failed")
        if suspender.state() in ("suspended", "suspending"):
            raise NotHandled("already suspended")
        self._requested = await self._router.emit(SuspendEvent())
        self._handled()

    async def _ask_for_another(self, _: Topical) -> None:
        say("press Ctrl+C again to quit")
        self._handled()

    async def _quit(self, _: Topical) -> None:
        await call_directly(self._router, ShutdownEvent("Ctrl+C"))

    def _forgive(self) -> None:
        """Do not count this Ctrl+C towards a forced exit, because it cleared a line or cancelled a handler."""
        if (presses := _presses()) is not None:
            presses.forgive()

    def _handled(self) -> None:
        """Treat this Ctrl+C as the first of the two presses that quit, ignoring any earlier presses."""
        if (presses := _presses()) is not None:
            presses.handled()

    def _reset(self) -> None:
        self._requested = None
        self._escalator.reset()
        with suppress(LookupError):
            current().reset_signals()


def _presses() -> Presses | None:
    """Return the state of the key presses that the current lifetime receives, or None if it receives no signals."""
    life = current_lifetime()
    return life.presses if life is not None and life.hears_signals else None


class Signals(SignalSource):
    """A source of SIGINT and SIGTERM that emits one event for each press of Ctrl+C.

    ``on_shutdown`` is called if a signal started the shutdown before the router received the signal's event.
    """

    def __init__(self, on_shutdown: Callable[[], Awaitable[None]]) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self._on_shutdown = on_shutdown
        # The lifetime's key presses, and those to count without a lifetime.
        self._shared: Presses | None = None
        self._own = Presses()

    async def __aenter__(self) -> Self:
        self._shared = _presses()
        with suppress(LookupError):
            current().on_shutdown(self._on_shutdown)
        return await super().__aenter__()

    def _receive(self, signum: int) -> None:
        # The lifetime was the first to receive this signal.
        action = self._own.signal(signum, self._loop.time()) if self._shared is None else self._shared.last
        if action is not Action.REPEAT:
            super()._receive(signum)


class RunningHandlers:
    """The running handlers of commands and other lines, each in a task that Ctrl+C can cancel."""

    def __init__(self) -> None:
        # The handlers' tasks, in the order they started.
        self._running: list[asyncio.Task[Any]] = []
        # The tasks that Ctrl+C has cancelled.
        self._cancelled: set[asyncio.Task[Any]] = set()

    def track(self, handler: AsyncHandler) -> AsyncHandler:
        """Middleware that runs the handler of each line in its own task."""

        @functools.wraps(handler, updated=())
        async def tracked(event: Topical) -> None:
            if event.topic.startswith("command/"):
                await self._run(event.topic.removeprefix("command/"), handler, event)
            elif event.topic in _LINES:
                await self._run("the line", handler, event)
            else:
                await handler(event)

        return tracked

    async def _run(self, name: str, handler: AsyncHandler, event: Topical) -> None:
        task = start_task(_awaited(handler, event, asyncio.current_task()))
        self._running.append(task)
        try:
            await asyncio.wait({task})
            if task in self._cancelled and task.cancelled():
                say(f"{name} was cancelled")
                raise Dropped(f"{name} was cancelled by Ctrl+C")
            task.result()
        finally:
            self._running.remove(task)
            self._cancelled.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def cancel(self) -> bool:
        """Cancel all running handlers, oldest first, and return whether there were any."""
        running = [task for task in self._running if task not in self._cancelled]
        self._cancelled.update(running)
        for task in running:
            task.cancel("Ctrl+C")
        return bool(running)


async def _awaited(handler: AsyncHandler, event: Topical, lane: asyncio.Task[Any] | None) -> Any:
    delegated.set((asyncio.current_task(), lane))
    return await handler(event)
