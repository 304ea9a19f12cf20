"""What an interactive program does where it is asked to: suspend, resume, quit, say how it is and what it knows.

What Ctrl+C leads to stands in ``ladders``.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._steering.answers import reply, say
from lifecycle._steering.commands import status_text
from lifecycle._util import reason_of
from lifecycle.control.commands import lifecycle_commands
from lifecycle.errors import NotHandled, RouteNotFound
from lifecycle.events import ShutdownEvent, Topical
from lifecycle.handlers import ShutdownHandler
from lifecycle.runtime import current

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.control import Router
    from lifecycle.events import UnknownCommandEvent
    from lifecycle.handlers import SuspendHandler
    from lifecycle.runtime import Lifetime
    from lifecycle.sources.prompt import PromptSource

__all__ = ["Actions", "tell_unknown", "tell_unrouted"]

#: What of a stranger's line is repeated to its author.
_SHOWN = 60


class Actions:
    """What an interactive program can be asked for: each is a handler, carries it out, and says so."""

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
        """Shut down, or stop the router where there is no lifetime. Lines that follow are not obeyed."""
        if self.keyboard is not None:
            self.keyboard.discard_rest()
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
    first = "".join(event.command.split(maxsplit=1)[:1])
    if first != event.command and first in event.known:
        say(f"{first!r} takes no arguments, so {word!r} is not a command. Give {first!r} alone.")
    else:
        say(f"Unknown command {word!r}. Try: {', '.join(event.known)}")


def tell_unrouted(event: Topical) -> None:
    """A command of the lifecycle that this program does not know what to do with."""
    known = {each.make(()).topic: each.name for each in lifecycle_commands()}
    if event.topic not in known:
        raise NotHandled(f"no route matches {event.topic!r}")
    say(f"There is nothing to {known[event.topic]} here.")
