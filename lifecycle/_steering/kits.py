"""The commands that a running program has while somebody can steer it from outside.

They are lent to its routers: a command that the program registers under one of these words, before or later, wins.
What they do stands in ``words``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._steering.words import Words, event_of, refuse_emit, routers_of
from lifecycle.control import Command
from lifecycle.control.commands import Commands, lifecycle_commands
from lifecycle.errors import RouteConflict, RouteNotFound

if TYPE_CHECKING:
    import asyncio

    from lifecycle.control import Router
    from lifecycle.runtime import Lifetime

__all__ = ["Kit", "Steering", "lent"]

#: Restarts that may be under way at once.
_RESTARTS = 20


class Steering:
    """Lends the commands to every router under ``lifetime``, also to those that start later, for a block."""

    def __init__(self, lifetime: Lifetime, loop: asyncio.AbstractEventLoop) -> None:
        self._lifetime = lifetime
        self._loop = loop
        self._kits: dict[Router, Kit] = {}
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
        for router in tuple(self._kits):
            self._stopped(router)

    def _started(self, _sender: object, **_: object) -> None:
        # The lifetime learns of the router in this very announcement, perhaps after us.
        self._loop.call_soon_threadsafe(self._look)

    def _stopped(self, router: Any, /, **_: object) -> None:
        kit = self._kits.pop(router, None)
        if kit is not None:
            kit.release()

    def _look(self) -> None:
        if self._open:
            for router in routers_of(self._lifetime):
                if router not in self._kits:
                    self._kits[router] = Kit.of(router, self._lifetime)


def lent(router: Router) -> frozenset[str]:
    """The patterns of the routes that only carry out what ``router`` was lent."""
    return frozenset(each for kit in router.commands.borrowed if isinstance(kit, Kit) for each in kit.patterns)


class Kit(Commands):
    """The commands that one router is lent, and what carries them out; several may hold it at once."""

    def __init__(self, router: Router, lifetime: Lifetime) -> None:
        super().__init__(*(each for each in lifecycle_commands() if each.name in ("suspend", "resume", "reload")))
        self._router = router
        self._lifetime = lifetime
        self._holders = 0
        #: Of its routes, which are there as long as somebody holds it.
        self.patterns: list[str] = []

    @classmethod
    def of(cls, router: Router, lifetime: Lifetime) -> Kit:
        """That of ``router``; made and lent, if it has none."""
        found = next((each for each in router.commands.borrowed if isinstance(each, Kit)), None)
        kit = found or cls(router, lifetime)
        kit.hold()
        return kit

    def hold(self) -> None:
        """Lend it, the first time."""
        self._holders += 1
        if self._holders == 1:
            self._equip()
            self._router.commands.borrow(self)

    def release(self) -> None:
        """Hold it no longer; the last one takes it back."""
        self._holders -= 1
        if self._holders:
            return
        self._router.commands.give_back(self)
        for pattern in self.patterns:
            with suppress(RouteNotFound):
                self._router.remove(pattern)

    def _equip(self) -> None:
        words = Words(self._router, self._lifetime)
        self._serve("status", "Show how the program is.", words.status)
        self._serve("stop", "End the program.", words.stop)
        self._serve("terminate", "Suspend, so that state is saved, then end the program.", words.terminate)
        self._serve("restart", "Restart a worker: NAME, or its path.", words.restart, complete=words.restartable)
        self._serve("emit", "Send an event: TOPIC, and its data as JSON.", refuse_emit, event=event_of)
        self._serve("pause", "Let the events of a source wait: SOURCE.", words.pause, complete=words.sources)
        self._serve("unpause", "Take the events of a source again: SOURCE.", words.unpause, complete=words.sources)

    def _serve(self, word: str, text: str, handler: Any, *, event: Any = None, complete: Any = None) -> None:
        """A route that no other conflicts with: the program's own for this topic, which is exact, comes before it."""
        self.add(Command(word, text, event, complete))
        pattern = f"command/[{word[0]}]{word[1:]}"
        with suppress(RouteConflict):
            self._router.handle(pattern, handler, concurrency=_RESTARTS if word == "restart" else 1)
            self.patterns.append(pattern)
