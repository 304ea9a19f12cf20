"""The commands that a running program has while somebody can steer it from outside.

They are lent to its routers: a command that the program registers under one of these words, before or later, wins.
What they do stands in ``actions``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._steering.actions import Actions, event_of, refuse_emit, routers_of
from lifecycle.control import Command
from lifecycle.control.commands import Commands, lifecycle_commands
from lifecycle.errors import RouteConflict, RouteNotFound

if TYPE_CHECKING:
    import asyncio

    from lifecycle.control import Router
    from lifecycle.runtime import Lifetime

__all__ = ["LentCommands", "Steering", "lent"]

#: Restarts that may be under way at once.
_RESTARTS = 20


class Steering:
    """Lends the commands to every router under ``lifetime``, also to those that start later, for a block."""

    def __init__(self, lifetime: Lifetime, loop: asyncio.AbstractEventLoop) -> None:
        self._lifetime = lifetime
        self._loop = loop
        self._lent: dict[Router, LentCommands] = {}
        self._open = False

    def __enter__(self) -> None:
        """Lend them."""
        self._open = True
        hooks.router_started.connect(self._started)
        hooks.router_stopped.connect(self._stopped)
        self._look()

    def __exit__(self, *_: object) -> None:
        """Take them back."""
        self._open = False
        hooks.router_started.disconnect(self._started)
        hooks.router_stopped.disconnect(self._stopped)
        for router in tuple(self._lent):
            self._stopped(router)

    def _started(self, _sender: object, **_: object) -> None:
        # The lifetime learns of the router in this very announcement, perhaps after us.
        self._loop.call_soon_threadsafe(self._look)

    def _stopped(self, router: Any, /, **_: object) -> None:
        commands = self._lent.pop(router, None)
        if commands is not None:
            commands.release()

    def _look(self) -> None:
        if self._open:
            for router in routers_of(self._lifetime):
                if router not in self._lent:
                    self._lent[router] = LentCommands.of(router, self._lifetime)


def lent(router: Router) -> frozenset[str]:
    """The patterns of the routes that only carry out what ``router`` was lent."""
    loans = [each for each in router.commands.borrowed if isinstance(each, LentCommands)]
    return frozenset(pattern for each in loans for pattern in each.patterns)


class LentCommands(Commands):
    """The commands that one router is lent, and the routes that carry them out; several may hold them at once."""

    def __init__(self, router: Router, lifetime: Lifetime) -> None:
        super().__init__(*(each for each in lifecycle_commands() if each.name in ("suspend", "resume", "reload")))
        self._router = router
        self._lifetime = lifetime
        self._holders = 0
        #: Of those routes, which are there as long as somebody holds the commands.
        self.patterns: list[str] = []

    @classmethod
    def of(cls, router: Router, lifetime: Lifetime) -> LentCommands:
        """Those of ``router``; made and lent, if it has none."""
        found = next((each for each in router.commands.borrowed if isinstance(each, LentCommands)), None)
        commands = found or cls(router, lifetime)
        commands.hold()
        return commands

    def hold(self) -> None:
        """Lend them, the first time."""
        self._holders += 1
        if self._holders == 1:
            self._equip()
            self._router.commands.borrow(self)

    def release(self) -> None:
        """Hold them no longer; the last one takes them back."""
        self._holders -= 1
        if self._holders:
            return
        self._router.commands.give_back(self)
        for pattern in self.patterns:
            with suppress(RouteNotFound):
                self._router.remove(pattern)

    def _equip(self) -> None:
        actions = Actions(self._router, self._lifetime)
        self._serve("status", "Show how the program is.", actions.status)
        self._serve("stop", "End the program.", actions.stop, alone=True)
        self._serve(
            "terminate", "Suspend, so that state is saved, then end the program.", actions.terminate, alone=True
        )
        self._serve("restart", "Restart a worker: NAME, or its path.", actions.restart, complete=actions.restartable)
        self._serve("emit", "Send an event: TOPIC, and its data as JSON.", refuse_emit, event=event_of)
        self._serve("hold", "Let the events of a source wait: SOURCE.", actions.hold, complete=actions.sources)
        self._serve("release", "Take the events of a source again: SOURCE.", actions.release, complete=actions.sources)

    def _serve(
        self, word: str, text: str, handler: Any, *, event: Any = None, complete: Any = None, alone: bool = False
    ) -> None:
        """A route that no other conflicts with: the program's own for this topic, which is exact, comes before it."""
        self.add(Command(word, text, event, complete, takes_arguments=not alone))
        pattern = f"command/[{word[0]}]{word[1:]}"
        with suppress(RouteConflict):
            self._router.handle(pattern, handler, concurrency=_RESTARTS if word == "restart" else 1)
            self.patterns.append(pattern)
