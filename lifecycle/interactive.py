"""`new_interactive_router`: a router with a prompt, the commands that every program needs, and a Ctrl+C ladder.

It only wires sources and handlers together: what can be done without a person at the keyboard belongs to them.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle.control import Command, Router
from lifecycle.control.commands import lifecycle_commands
from lifecycle.control.composing import as_async
from lifecycle.errors import Dropped, NotHandled, RouteNotFound
from lifecycle.events import (
    ClearLineEvent,
    InterruptEvent,
    LineEvent,
    ShutdownEvent,
    SuspendEvent,
    Topical,
)
from lifecycle.handlers import Escalator, ShutdownHandler, Suspendable, SuspendHandler, TerminateHandler
from lifecycle.runtime import current
from lifecycle.sources.prompt import PromptSource
from lifecycle.sources.signals import SignalSource

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Self

    from lifecycle.control import AsyncHandler, Delivery, Handler
    from lifecycle.events import UnknownCommandEvent

__all__ = ["new_interactive_router"]

#: Seconds within which a second Ctrl+C quits, where there is nothing to suspend.
_AGAIN = 2.0

#: What of a stranger's line is repeated to its author.
_SHOWN = 60


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
    desk = _Desk(router, _as_suspend_handler(suspend), shutdown, keyboard)
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
    router.handle("input/unknown", unknown or _tell_unknown)
    router.handle("input/eof", desk.end_of_input)
    router.fallback(_tell_unrouted)
    return router


# -- wiring ----------------------------------------------------------------------------------------------------


def _add_commands(router: Router, desk: _Desk, commands: Mapping[str, Handler]) -> None:
    for command in lifecycle_commands():
        router.commands.add(command)
    router.commands.add(Command("status", "Show how the program is."))
    router.handle("command/status", desk.tell_status, lane="command")
    router.commands.add(Command("help", "List the commands.", aliases=("?",)))
    router.handle("command/help", desk.tell_help, lane="command")
    for name, handler in commands.items():
        router.command(name, handler)


def _add_lifecycle(router: Router, desk: _Desk) -> None:
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


# -- what is done ----------------------------------------------------------------------------------------------


class _Desk:
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
                _say(f"{name} was cancelled")
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
        _say("\n".join(f"{words:{width}}  {''.join(text.splitlines()[:1])}".rstrip() for words, text in table))

    def tell_status(self, _: Topical) -> None:
        """Say how the program is."""
        _say("\n".join(f"{name:9}  {value}" for name, value in self._status()))

    def _status(self) -> list[tuple[str, str]]:
        state = self.router.state()
        rows = [("program", _lifetime())]
        if self.suspender is not None:
            rows.append(("state", self.suspender.state()))
        rows.append(("router", f"{state.routes} routes, {state.sources} sources"))
        counts = f"{state.handled} handled, {state.failed} failed, {state.dropped} dropped, {state.unrouted} unrouted"
        rows.append(("events", counts))
        return rows

    # -- lifecycle

    async def suspend(self, event: Topical) -> None:
        """Suspend, and say so."""
        assert self.suspender is not None
        if self.suspender.suspended and not self.suspender.transitioning:
            _say("already suspended; `resume` goes on")
            return
        await _told("suspending", self.suspender(event))
        _say("suspended; `resume` goes on, Ctrl+C quits")

    async def resume(self, event: Topical) -> None:
        """Resume, and say so."""
        assert self.suspender is not None
        if not self.suspender.suspended and not self.suspender.transitioning:
            _say("running already")
            return
        await _told("resuming", self.suspender(event))
        _say("resumed")

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


class _Signals(SignalSource):
    """SIGINT and SIGTERM."""

    def __init__(self, desk: _Desk) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self._desk = desk

    async def __aenter__(self) -> Self:
        with suppress(LookupError):
            current().on_shutdown(self._desk.farewell)
        return await super().__aenter__()


class _Ladder:
    """What Ctrl+C does: the mildest thing that there is to do."""

    def __init__(self, desk: _Desk, interrupt: Handler | None) -> None:
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
        _say("press Ctrl+C again to quit")

    async def _quit(self, _: Topical) -> None:
        await self._desk.router.dispatch(ShutdownEvent("Ctrl+C"))

    def _begin_anew(self) -> None:
        self._asked = None
        self._escalator.reset()
        _forgive()


async def _awaited(handler: AsyncHandler, event: Topical) -> Any:
    return await handler(event)


async def _told(what: str, doing: Any) -> None:
    """Await ``doing``; a failure is said at the prompt, and comes out for the log."""
    try:
        await doing
    except Exception as error:
        _say(f"{what} failed: {str(error) or type(error).__name__}")
        raise


def _forgive() -> None:
    """A Ctrl+C that did what it was meant for is no step towards force exit."""
    with suppress(LookupError):
        current().reset_signals()


# -- what is said ----------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # to talk is its purpose


def _lifetime() -> str:
    try:
        state = current().state()
    except LookupError:
        return "no lifetime"
    how = f"stopping ({state.reason})" if state.stopping else "running"
    return f"{how}, {len(state.tasks)} tasks, {len(state.workers)} workers"


def _tell_unknown(event: UnknownCommandEvent) -> None:
    word = event.command if len(event.command) <= _SHOWN else f"{event.command[:_SHOWN]}…"
    _say(f"Unknown command {word!r}. Try: {', '.join(event.known)}")


def _tell_unrouted(event: Topical) -> None:
    """A command of the lifecycle that this program does not know what to do with."""
    known = {each.make(()).topic: each.name for each in lifecycle_commands()}
    if event.topic not in known:
        raise NotHandled(f"no route matches {event.topic!r}")
    _say(f"There is nothing to {known[event.topic]} here.")
