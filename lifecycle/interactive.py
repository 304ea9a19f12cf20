"""`new_interactive_router`: a router with a prompt, the commands that every program needs, and a Ctrl+C ladder.

It only wires sources and handlers together: what can be done without a person at the keyboard belongs to them.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._answers import say
from lifecycle._desk import Desk, tell_unknown, tell_unrouted
from lifecycle.control import Command, Router
from lifecycle.control.commands import lifecycle_commands
from lifecycle.control.composing import as_async
from lifecycle.errors import NotHandled
from lifecycle.events import (
    ClearLineEvent,
    InterruptEvent,
    LineEvent,
    ShutdownEvent,
    SuspendEvent,
    Topical,
)
from lifecycle.handlers import Escalator, Suspendable, SuspendHandler, TerminateHandler
from lifecycle.runtime import current
from lifecycle.sources.prompt import PromptSource
from lifecycle.sources.signals import SignalSource

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Self

    from lifecycle.control import Delivery, Handler

__all__ = ["new_interactive_router"]

#: Seconds within which a second Ctrl+C quits, where there is nothing to suspend.
_AGAIN = 2.0


def new_interactive_router(  # noqa: PLR0913  # one function wires a whole program
    *,
    suspend: SuspendHandler | Suspendable | None = None,
    shutdown: Callable[..., Any] | None = None,
    interrupt: Handler | None = None,
    commands: Mapping[str, Handler] | None = None,
    default: Handler | None = None,
    unknown: Handler | None = None,
    input: bool = True,  # noqa: A002  # the field's word
    signals: bool = True,
    prompt: str = "> ",
    history: str | os.PathLike[str] | None = None,
) -> Router:
    """A router that takes commands from a person, or from a pipe.

    ``suspend``, ``resume``, ``reload``, ``status``, ``terminate``, ``quit`` and ``help`` are there; ``commands`` and
    ``router.command`` add more. ``suspend`` is a `SuspendHandler` or anything with ``suspend()`` and ``resume()``.
    For ``reload`` register a handler at ``lifecycle/reload``.

    Quitting calls ``shutdown`` (async or plain, with the event if it takes one) once and shuts the lifetime down, or
    stops the router where there is none; so does SIGTERM. Ctrl+C gives up a half-typed line; else it cancels a
    running command; else ``interrupt`` gets an `InterruptEvent`, and what it passes on (`NotHandled`) quits; without
    ``interrupt`` the first suspends and the next quits, until a resume; with nothing to suspend the first asks for a
    second, which quits within 2 seconds. Ctrl+D quits, and so does the end of a pipe that had at least one line.

    ``default`` gets the lines that are no command, as `LineEvent`; without it ``unknown`` gets an
    `UnknownCommandEvent`; without both such a line is answered with what would have done. ``input`` and ``signals``
    say whether lines and signals are read at all; ``prompt`` and ``history`` (a file) are for a terminal.

    Raises:
        RouteConflict: for a command that shadows a built-in.
        TypeError: for handlers that are none, and for what cannot suspend.
    """
    router = Router("interactive")
    keyboard = PromptSource(prompt=prompt, history=history, fallback=default and LineEvent) if input else None
    desk = Desk(router, _as_suspend_handler(suspend), shutdown, keyboard)
    ladder = _Ladder(desk, interrupt)
    router.use(desk.track)
    _add_commands(router, desk, commands or {})
    _add_lifecycle(router, desk)
    for topic in ("lifecycle/interrupt", *(("signal/interrupt",) if signals else ())):
        router.handle(topic, ladder, lane="interrupt")
    if signals:
        router.add_source(_Signals(desk))
        router.handle("signal/terminate", desk.quit)
    if keyboard is not None:
        # After the signals: who sees a prompt may press Ctrl+C.
        router.add_source(keyboard)
    if default is not None:
        router.handle("input/line", default)
    router.handle("input/unknown", unknown or tell_unknown)
    router.handle("input/eof", desk.end_of_input)
    # The least specific of the patterns for them: whatever the program registers comes first.
    router.handle("lifecycle/**", tell_unrouted, lane="lifecycle")
    return router


# -- wiring ----------------------------------------------------------------------------------------------------


def _add_commands(router: Router, desk: Desk, commands: Mapping[str, Handler]) -> None:
    for command in lifecycle_commands():
        router.commands.add(command)
    router.commands.add(Command("status", "Show how the program is."))
    router.handle("command/status", desk.tell_status, lane="command")
    router.commands.add(Command("help", "List the commands.", aliases=("?",)))
    router.handle("command/help", desk.tell_help, lane="command")
    for name, handler in commands.items():
        router.command(name, handler)


def _add_lifecycle(router: Router, desk: Desk) -> None:
    if desk.suspender is not None:
        router.handle("lifecycle/suspend", desk.suspend, lane="lifecycle")
        router.handle("lifecycle/resume", desk.resume, lane="lifecycle")
    router.handle("lifecycle/shutdown", desk.quit, lane="lifecycle")
    router.handle("lifecycle/terminate", TerminateHandler(desk.suspender, desk.quit), lane="lifecycle")


def _as_suspend_handler(suspend: SuspendHandler | Suspendable | None) -> SuspendHandler | None:
    if suspend is None or isinstance(suspend, SuspendHandler):
        return suspend
    handler = SuspendHandler()
    handler.manage(suspend)
    return handler


# -- Ctrl+C and other signals -------------------------------------------------------------------------------------


class _Signals(SignalSource):
    """SIGINT and SIGTERM."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self._desk = desk

    async def __aenter__(self) -> Self:
        with suppress(LookupError):
            current().on_shutdown(self._desk.farewell)
        return await super().__aenter__()


class _Ladder:
    """What Ctrl+C does: the mildest thing that there is to do."""

    def __init__(self, desk: Desk, interrupt: Handler | None) -> None:
        self._desk = desk
        # The suspension that Ctrl+C asked for last.
        self._asked: Delivery | None = None
        self._interrupt = None if interrupt is None else as_async(interrupt)
        first: Handler = self._ask_for_another
        if interrupt is not None:
            first = self._hand_over
        elif desk.suspender is not None:
            first = self._suspend_first
        window = _AGAIN if first == self._ask_for_another else None
        self._escalator = Escalator(first, self._quit, window=window)
        if desk.suspender is not None:
            desk.suspender.when_resumed(self._begin_anew)

    async def __call__(self, event: Topical) -> None:
        """Take one step."""
        desk = self._desk
        if desk.keyboard is not None and desk.keyboard.clear_line():
            _forgive()
            with suppress(NotHandled):
                await desk.router.emit(ClearLineEvent())
        elif desk.cancel_commands():
            _forgive()
        else:
            await self._escalator(event)

    async def _hand_over(self, _: Topical) -> None:
        assert self._interrupt is not None
        await self._interrupt(InterruptEvent())

    async def _suspend_first(self, _: Topical) -> None:
        suspender, asked = self._desk.suspender, self._asked
        assert suspender is not None
        if asked is not None and (not asked.done or asked.error is not None):
            raise NotHandled("the suspension that was asked for has not ended, or has failed")
        if suspender.state() in ("suspended", "suspending"):
            raise NotHandled("suspended already")
        self._asked = await self._desk.router.emit(SuspendEvent())

    async def _ask_for_another(self, _: Topical) -> None:
        say("press Ctrl+C again to quit")

    async def _quit(self, _: Topical) -> None:
        await self._desk.router.dispatch(ShutdownEvent("Ctrl+C"))

    def _begin_anew(self) -> None:
        self._asked = None
        self._escalator.reset()
        _forgive()


def _forgive() -> None:
    """A Ctrl+C that did what it was meant for is no step towards force exit."""
    with suppress(LookupError):
        current().reset_signals()
