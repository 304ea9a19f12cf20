"""`new_interactive_router`: it wires sources and handlers together, and does nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.control import Command, Router
from lifecycle.control.commands import lifecycle_commands
from lifecycle.events import LineEvent
from lifecycle.handlers import Suspendable, SuspendHandler, TerminateHandler
from lifecycle.interactive.actions import Actions, tell_unknown, tell_unrouted
from lifecycle.interactive.ladders import Ladder, Signals
from lifecycle.interactive.running import RunningCommands
from lifecycle.sources.prompt import PromptSource

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from lifecycle.control import Handler

__all__ = ["new_interactive_router"]


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
    actions = Actions(router, _as_suspend_handler(suspend), shutdown, keyboard)
    running = RunningCommands()
    ladder = Ladder(actions, running, interrupt)
    router.use(running.track)
    _add_commands(router, actions, commands or {})
    _add_lifecycle(router, actions)
    for topic in ("lifecycle/interrupt", *(("signal/interrupt",) if signals else ())):
        router.handle(topic, ladder, lane="interrupt")
    if signals:
        router.add_source(Signals(actions))
        router.handle("signal/terminate", actions.quit)
    if keyboard is not None:
        # After the signals: who sees a prompt may press Ctrl+C.
        router.add_source(keyboard)
    if default is not None:
        router.handle("input/line", default)
    router.handle("input/unknown", unknown or tell_unknown)
    router.handle("input/eof", actions.end_of_input)
    # The least specific of the patterns for them: whatever the program registers comes first.
    router.handle("lifecycle/**", tell_unrouted, lane="lifecycle")
    return router


def _add_commands(router: Router, actions: Actions, commands: Mapping[str, Handler]) -> None:
    for command in lifecycle_commands():
        router.commands.add(command)
    router.commands.add(Command("status", "Show how the program is."))
    router.handle("command/status", actions.tell_status, lane="command")
    router.commands.add(Command("help", "List the commands.", aliases=("?",)))
    router.handle("command/help", actions.tell_help, lane="command")
    for name, handler in commands.items():
        router.command(name, handler)


def _add_lifecycle(router: Router, actions: Actions) -> None:
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
