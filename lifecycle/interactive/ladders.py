"""What Ctrl+C does at a prompt: a ladder, whose first step is the mildest thing that there is to do."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle._steering.answers import say
from lifecycle.control.routing import as_async
from lifecycle.errors import NotHandled
from lifecycle.events import ClearLineEvent, InterruptEvent, ShutdownEvent, SuspendEvent, Topical
from lifecycle.handlers import Escalator
from lifecycle.runtime import current
from lifecycle.runtime.lifetimes import current_life
from lifecycle.sources.signals import SignalSource

if TYPE_CHECKING:
    from typing import Self

    from lifecycle.control import Delivery, Handler
    from lifecycle.interactive.actions import Actions
    from lifecycle.interactive.running import RunningCommands

__all__ = ["Ladder", "Signals"]

#: Seconds within which a second Ctrl+C quits, where there is nothing to suspend.
_AGAIN = 2.0


class Signals(SignalSource):
    """SIGINT and SIGTERM, and what is made up for where they began the shutdown before the router had them."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self._actions = actions

    async def __aenter__(self) -> Self:
        with suppress(LookupError):
            current().on_shutdown(self._actions.farewell)
        return await super().__aenter__()


class Ladder:
    """What Ctrl+C does: the mildest thing that there is to do."""

    def __init__(self, actions: Actions, running: RunningCommands, interrupt: Handler | None) -> None:
        self._actions = actions
        self._running = running
        # The suspension that Ctrl+C asked for last.
        self._asked: Delivery | None = None
        self._interrupt = None if interrupt is None else as_async(interrupt)
        first: Handler = self._ask_for_another
        if interrupt is not None:
            first = self._hand_over
        elif actions.suspender is not None:
            first = self._suspend_first
        window = _AGAIN if first == self._ask_for_another else None
        self._escalator = Escalator(first, self._quit, window=window)
        if actions.suspender is not None:
            actions.suspender.when_resumed(self._begin_anew)

    async def __call__(self, event: Topical) -> None:
        """Take one step."""
        actions = self._actions
        if actions.keyboard is not None and actions.keyboard.clear_line():
            _forgive_press()
            with suppress(NotHandled):
                await actions.router.emit(ClearLineEvent())
        elif self._running.cancel():
            _forgive_press()
        else:
            await self._escalator(event)

    async def _hand_over(self, _: Topical) -> None:
        assert self._interrupt is not None
        await self._interrupt(InterruptEvent())
        _press_handled()

    async def _suspend_first(self, _: Topical) -> None:
        suspender, asked = self._actions.suspender, self._asked
        assert suspender is not None
        if asked is not None and (not asked.done or asked.error is not None):
            raise NotHandled("the suspension that was asked for has not ended, or has failed")
        if suspender.state() in ("suspended", "suspending"):
            raise NotHandled("suspended already")
        self._asked = await self._actions.router.emit(SuspendEvent())
        _press_handled()

    async def _ask_for_another(self, _: Topical) -> None:
        say("press Ctrl+C again to quit")
        _press_handled()

    async def _quit(self, _: Topical) -> None:
        await self._actions.router.dispatch(ShutdownEvent("Ctrl+C"))

    def _begin_anew(self) -> None:
        self._asked = None
        self._escalator.reset()
        with suppress(LookupError):
            current().reset_signals()


def _forgive_press() -> None:
    """Do not count this Ctrl+C towards force exit: it cleared a line or cancelled a command."""
    if (life := current_life.get(None)) is not None:
        life.escalation.uncount()


def _press_handled() -> None:
    """Let this Ctrl+C be the first of the two that quit, whatever was pressed before it."""
    if (life := current_life.get(None)) is not None:
        life.escalation.handled()
