"""The sources, routes and handlers of an interactive program: `new_interactive_router`."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._steering.answers import reply, say
from lifecycle._steering.commands import status_text
from lifecycle._util import reason_of
from lifecycle.control import Command, Router
from lifecycle.control.commands import lifecycle_commands
from lifecycle.control.router import call_directly
from lifecycle.errors import NotHandled, RouteNotFound
from lifecycle.events import LineEvent, ShutdownEvent
from lifecycle.handlers import ShutdownHandler, Suspendable, SuspendHandler, TerminateHandler
from lifecycle.interactive.interrupts import InterruptPolicy, RunningHandlers, Signals
from lifecycle.runtime import current
from lifecycle.sources.prompt import PromptSource

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping

    from lifecycle.control import Handler
    from lifecycle.events import Topical, UnknownCommandEvent
    from lifecycle.runtime import Lifetime

__all__ = ["new_interactive_router"]

#: The maximum number of characters to repeat from an unknown line in the reply.
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
    toolbar: str | Callable[[], str] | None = None,
    command_prefix: str = "",
) -> Router:
    """Return a router that reads commands from a prompt or a pipe.

    The built-in commands are ``suspend``, ``resume``, ``reload``, ``status``, ``terminate``, ``quit`` and ``help``. For
    ``reload`` to work, register a handler for ``lifecycle/reload``.

    ``quit``, SIGTERM, Ctrl+D and the end of a pipe make the program quit: they shut down the lifetime, or stop the
    router if there is no lifetime. If a pipe ends without any lines, the program does not quit. Commands that fail or
    are unknown do not change the exit status. To set it, record the failure in your handler or in ``unknown``, and call
    `sys.exit` after `run`.

    Ctrl+C clears a half-typed line or a search in the history, or else cancels running handlers of commands and other
    lines. If there is neither, the first Ctrl+C suspends the program, and the next one quits unless the program was
    resumed. If nothing can be suspended, pressing Ctrl+C twice within 2 seconds quits.

    Args:
        suspend: A `SuspendHandler`, or any object with ``suspend()`` and ``resume()``.
        shutdown: An async or synchronous function to call once before the lifetime is shut down. It receives the event
            if it has a parameter for it.
        interrupt: Called with an `InterruptEvent` when Ctrl+C would suspend. If it raises `NotHandled`, the program
            quits.
        commands: Handlers for additional commands, by name. You can also add commands with `Router.command`.
        default: Called with a `LineEvent` for each line that is not a command.
        unknown: Called with an `UnknownCommandEvent` for each line that is not a command, if there is no ``default``.
            By default, the reply suggests similar commands.
        input: Whether to read lines from stdin.
        signals: Whether to handle SIGINT and SIGTERM.
        prompt: The text of the prompt at a terminal.
        history: A file for the prompt's history. By default, the history is lost when the program exits.
        toolbar: See `PromptSource`.
        command_prefix: The text that every typed command begins with, such as ``/``: the user types ``/quit``, and
            ``quit`` goes to ``default``. Names are registered without it.

    Raises:
        RouteConflict: if a command has the same name as a built-in one.
        ValueError: if ``command_prefix`` contains blanks.
        TypeError: if a handler is not callable, or if ``suspend`` lacks these methods.
    """
    router = Router("interactive")
    fallback = default and LineEvent
    keyboard = (
        PromptSource(prompt=prompt, history=history, toolbar=toolbar, fallback=fallback, command_prefix=command_prefix)
        if input
        else None
    )
    actions = _Actions(router, _as_suspend_handler(suspend), shutdown, keyboard, command_prefix)
    running = RunningHandlers()
    interrupts = InterruptPolicy(router, keyboard, running, actions.suspender, interrupt)
    router.use(running.track)
    _add_commands(router, actions, commands or {})
    _add_lifecycle(router, actions)
    for topic in ("lifecycle/interrupt", *(("signal/interrupt",) if signals else ())):
        router.handle(topic, interrupts, lane="interrupt")
    if signals:
        router.add_source(Signals(actions.replace_signal_event))
        router.handle("signal/terminate", actions.quit)
    if keyboard is not None:
        # Add the input source after the signal source, because Ctrl+C must work once the prompt is shown.
        router.add_source(keyboard)
    if default is not None:
        router.handle("input/line", default)
    router.handle("input/unknown", unknown or actions.unknown)
    router.handle("input/eof", actions.end_of_input)
    # Use the least specific pattern, so that any handler that the program defines takes precedence.
    router.handle("lifecycle/**", _answer_unrouted, lane="lifecycle")
    return router


def _add_commands(router: Router, actions: _Actions, commands: Mapping[str, Handler]) -> None:
    for command in lifecycle_commands():
        router.commands.add(command)
    router.commands.add(Command("status", "Show the state of the program."))
    router.handle("command/status", actions.status, lane="command")
    router.commands.add(Command("help", "List the commands.", aliases=("?",)))
    router.handle("command/help", actions.help, lane="command")
    for name, handler in commands.items():
        router.command(name, handler)


def _add_lifecycle(router: Router, actions: _Actions) -> None:
    if actions.suspender is not None:
        router.handle("lifecycle/suspend", actions.suspend, lane="lifecycle")
        router.handle("lifecycle/resume", actions.resume, lane="lifecycle")
    router.handle("lifecycle/shutdown", actions.quit, lane="lifecycle")
    router.handle("lifecycle/terminate", TerminateHandler(actions.suspender, actions.quit), lane="lifecycle")


def _as_suspend_handler(suspend: SuspendHandler | Suspendable | None) -> SuspendHandler | None:
    if suspend is None or isinstance(suspend, SuspendHandler):
        return suspend
    handler = SuspendHandler()
    handler.manage(suspend)
    return handler


class _Actions:
    """Handlers for built-in commands and lifecycle events. Each handler prints its result."""

    def __init__(
        self,
        router: Router,
        suspender: SuspendHandler | None,
        shutdown: Callable[..., Any] | None,
        keyboard: PromptSource | None,
        prefix: str,
    ) -> None:
        self._router = router
        self._prefix = prefix
        self.suspender = suspender
        self._keyboard = keyboard
        self._shutdown = shutdown if isinstance(shutdown, ShutdownHandler) else ShutdownHandler(shutdown)

    def help(self, _: Topical) -> None:
        """Print all commands with the first line of their help."""
        table = [
            (", ".join(self._prefix + word for word in (each.usage or each.name, *each.aliases)), each.help.strip())
            for each in self._router.commands
        ]
        width = max(len(words) for words, _ in table)
        reply("\n".join(f"{words:{width}}  {''.join(text.splitlines()[:1])}".rstrip() for words, text in table))

    def unknown(self, event: UnknownCommandEvent) -> None:
        """Reply to a line that is not a command."""
        word = event.command if len(event.command) <= _SHOWN else f"{event.command[:_SHOWN]}…"
        first = "".join(event.command.split(maxsplit=1)[:1])
        if first != event.command and first in event.known:
            say(f"{first!r} takes no arguments, so {word!r} is not a command. Type only {first!r}.")
        else:
            import difflib

            known = event.known if first != self._prefix else ()
            near = difflib.get_close_matches(first, known, cutoff=0.5) or [f"{self._prefix}help"]
            say(f"Unknown command {word!r}. Try: {', '.join(near)}")

    def status(self, _: Topical) -> None:
        """Print the program's status."""
        state = None if self.suspender is None else str(self.suspender.state())
        reply(status_text(_lifetime(), [self._router], suspended=state))

    # -- lifecycle

    async def suspend(self, event: Topical) -> None:
        """Suspend, and print the result."""
        assert self.suspender is not None
        if self.suspender.suspended and not self.suspender.transitioning:
            say(f"already suspended; `{self._prefix}resume` continues")
            return
        await _reported("suspending", self.suspender(event))
        at_terminal = self._keyboard is not None and self._keyboard.is_terminal
        say(f"suspended; `{self._prefix}resume` continues, Ctrl+C quits" if at_terminal else "suspended")

    async def resume(self, event: Topical) -> None:
        """Resume, and print the result."""
        assert self.suspender is not None
        if not self.suspender.suspended and not self.suspender.transitioning:
            say("already running")
            return
        await _reported("resuming", self.suspender(event))
        say("resumed")

    async def quit(self, event: Topical) -> None:
        """Shut down, or stop the router if there is no lifetime. Later lines are ignored."""
        if self._keyboard is not None:
            self._keyboard.discard_rest()
            with suppress(RouteNotFound):
                self._router.remove_source(self._keyboard)
        try:
            await self._shutdown(event)
        finally:
            try:
                current()
            except LookupError:
                self._router.stop()

    async def replace_signal_event(self) -> None:
        """Handle the signal that started the shutdown, because its event may be too late for the router."""
        signum = current().signum
        if signum is not None:
            await self._shutdown(ShutdownEvent(signal.Signals(signum).name))

    async def end_of_input(self, _: Topical) -> None:
        """Quit, unless the input is a pipe without any lines. Services are started with an empty stdin."""
        if self._keyboard is None or self._keyboard.is_terminal or self._keyboard.lines:
            await call_directly(self._router, ShutdownEvent("end of input"))


async def _reported(what: str, doing: Awaitable[None]) -> None:
    """Await ``doing``. If it fails, print the error at the prompt, and reraise it so that it is logged."""
    try:
        await doing
    except Exception as error:
        say(f"{what} failed: {reason_of(error)}")
        raise


def _lifetime() -> Lifetime | None:
    with suppress(LookupError):
        return current()
    return None


def _answer_unrouted(event: Topical) -> None:
    """Reply to a lifecycle command that this program has no handler for."""
    known = {each.make(()).topic: each.name for each in lifecycle_commands()}
    if event.topic not in known:
        raise NotHandled(f"no route matches {event.topic!r}")
    say(f"There is nothing to {known[event.topic]} here.")
