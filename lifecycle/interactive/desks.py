"""What the interactive router carries out and says: commands, suspending, quitting, help and status.

What Ctrl+C leads to stands in ``ladders``.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._naming import reason_of
from lifecycle._steering.answers import reply, say
from lifecycle._steering.words import status_text
from lifecycle.control.commands import lifecycle_commands
from lifecycle.errors import Dropped, NotHandled, RouteNotFound
from lifecycle.events import ShutdownEvent, Topical
from lifecycle.handlers import ShutdownHandler
from lifecycle.runtime import current

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.control import AsyncHandler, Router
    from lifecycle.events import UnknownCommandEvent
    from lifecycle.handlers import SuspendHandler
    from lifecycle.runtime import Lifetime
    from lifecycle.sources.prompt import PromptSource

__all__ = ["Desk", "tell_unknown", "tell_unrouted"]

#: What of a stranger's line is repeated to its author.
_SHOWN = 60


class Desk:
    """Carries out what is asked for, and says so."""

    def __init__(
        self,
        router: Router,
        suspender: SuspendHandler | None,
        shutdown: Callable[..., Any] | None,
        keyboard: PromptSource | None,
    ) -> None:
        self.router = router
        self.suspender = suspender
        self.keyboard = keyboard
        self._shutdown = shutdown if isinstance(shutdown, ShutdownHandler) else ShutdownHandler(shutdown)
        # Commands that are running, and those of them that Ctrl+C has cancelled.
        self._running: dict[asyncio.Task[Any], str] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()

    # -- commands

    def track(self, handler: AsyncHandler) -> AsyncHandler:
        """A middleware: commands run where Ctrl+C can reach them."""

        @functools.wraps(handler, updated=())
        async def tracked(event: Topical) -> None:
            if not event.topic.startswith("command/"):
                await handler(event)
                return
            await self._run(event.topic.removeprefix("command/"), handler, event)

        return tracked

    async def _run(self, name: str, handler: AsyncHandler, event: Topical) -> None:
        task = asyncio.ensure_future(_awaited(handler, event))
        self._running[task] = name
        try:
            await asyncio.wait({task})
            if task in self._cancelled and task.cancelled():
                say(f"{name} was cancelled")
                raise Dropped(f"the command {name!r} was cancelled by Ctrl+C")
            task.result()
        finally:
            del self._running[task]
            self._cancelled.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def cancel_commands(self) -> bool:
        """Cancel the commands that run; whether there were any."""
        running = [task for task in self._running if task not in self._cancelled]
        self._cancelled.update(running)
        for task in running:
            task.cancel("Ctrl+C")
        return bool(running)

    def tell_help(self, _: Topical) -> None:
        """List the commands, each with the first line of what it says of itself."""
        table = [(", ".join((each.name, *each.aliases)), each.help.strip()) for each in self.router.commands]
        width = max(len(words) for words, _ in table)
        reply("\n".join(f"{words:{width}}  {''.join(text.splitlines()[:1])}".rstrip() for words, text in table))

    def tell_status(self, _: Topical) -> None:
        """Say how the program is."""
        state = None if self.suspender is None else str(self.suspender.state())
        reply(status_text(_lifetime(), [self.router], suspended=state))

    # -- lifecycle

    async def suspend(self, event: Topical) -> None:
        """Suspend, and say so."""
        assert self.suspender is not None
        if self.suspender.suspended and not self.suspender.transitioning:
            say("already suspended; `resume` goes on")
            return
        await _told("suspending", self.suspender(event))
        say("suspended; `resume` goes on, Ctrl+C quits")

    async def resume(self, event: Topical) -> None:
        """Resume, and say so."""
        assert self.suspender is not None
        if not self.suspender.suspended and not self.suspender.transitioning:
            say("running already")
            return
        await _told("resuming", self.suspender(event))
        say("resumed")

    async def quit(self, event: Topical) -> None:
        """Shut down; where there is no lifetime, the router is all there is to stop. What follows is not read."""
        if self.keyboard is not None:
            with suppress(RouteNotFound):
                self.router.remove_source(self.keyboard)
        try:
            await self._shutdown(event)
        finally:
            try:
                current()
            except LookupError:
                self.router.stop()

    async def farewell(self) -> None:
        """Where a signal began the shutdown, its event may have come too late for the router: make up for it."""
        signum = current().signum
        if signum is not None:
            await self._shutdown(ShutdownEvent(signal.Signals(signum).name))

    async def end_of_input(self, _: Topical) -> None:
        """Quit, unless there never was anybody: an empty stdin is how services are started."""
        if self.keyboard is None or self.keyboard.is_terminal or self.keyboard.lines:
            await self.router.dispatch(ShutdownEvent("end of input"))


async def _awaited(handler: AsyncHandler, event: Topical) -> Any:
    return await handler(event)


async def _told(what: str, doing: Awaitable[None]) -> None:
    """Await ``doing``; a failure is said at the prompt, and comes out for the log."""
    try:
        await doing
    except Exception as error:
        say(f"{what} failed: {reason_of(error)}")
        raise


# -- what is said ----------------------------------------------------------------------------------------------


def _lifetime() -> Lifetime | None:
    with suppress(LookupError):
        return current()
    return None


def tell_unknown(event: UnknownCommandEvent) -> None:
    """A line that is no command, to whoever typed it."""
    word = event.command if len(event.command) <= _SHOWN else f"{event.command[:_SHOWN]}…"
    say(f"Unknown command {word!r}. Try: {', '.join(event.known)}")


def tell_unrouted(event: Topical) -> None:
    """A command of the lifecycle that this program does not know what to do with."""
    known = {each.make(()).topic: each.name for each in lifecycle_commands()}
    if event.topic not in known:
        raise NotHandled(f"no route matches {event.topic!r}")
    say(f"There is nothing to {known[event.topic]} here.")
