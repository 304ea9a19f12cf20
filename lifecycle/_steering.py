"""The commands that a running program has while somebody can steer it from outside.

They are lent to its routers: a command that the program registers under one of these words, before or later, wins.
Where nothing of the program's would end it, its lifetime is shut down.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._answers import reply
from lifecycle._steering_children import children, named
from lifecycle.control import Command, Router
from lifecycle.control.commands import Commands, lifecycle_commands
from lifecycle.errors import Dropped, NotHandled, RouteConflict, RouteNotFound
from lifecycle.events import CommandEvent, Event, ShutdownEvent, SuspendEvent, TerminateEvent, Topical

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from lifecycle.runtime import Lifetime

__all__ = ["Kit", "Steering", "is_made_for", "lent", "routers_of", "status_text"]

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


def routers_of(lifetime: Lifetime) -> tuple[Router, ...]:
    """Those that run under it."""
    return tuple(each for each in lifetime.components() if isinstance(each, Router))


def is_made_for(router: Router, topic: str) -> bool:
    """Whether the program has a route for the room of ``topic``; a catch-all is none, or a logger would be one."""
    room = f"{topic.partition('/')[0]}/"
    return any(route.pattern.startswith(room) for route in router.explain(topic))


def lent(router: Router) -> frozenset[str]:
    """The patterns of the routes that only carry out what ``router`` was lent."""
    return frozenset(each for kit in router.commands.borrowed if isinstance(kit, Kit) for each in kit.patterns)


def status_text(lifetime: Lifetime | None, routers: Iterable[Router], *, suspended: str | None = None) -> str:
    """How the program is, a fact a line."""
    rows = [("program", _of_lifetime(lifetime)), *([("state", suspended)] if suspended else ())]
    return "\n".join(f"{name:9}  {value}" for name, value in [*rows, *_of_routers(routers)])


def _of_lifetime(lifetime: Lifetime | None) -> str:
    if lifetime is None:
        return "no lifetime"
    state = lifetime.state()
    how = f"stopping ({state.reason})" if state.stopping else "running"
    return f"{how}, {len(state.tasks)} tasks, {len(state.workers)} workers"


def _of_routers(routers: Iterable[Router]) -> Iterator[tuple[str, str]]:
    for router in routers:
        state = router.state()
        yield "router", f"{state.routes} routes, {state.sources} sources"
        yield (
            "events",
            f"{state.handled} handled, {state.failed} failed, {state.dropped} dropped, {state.unrouted} unrouted",
        )


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
        self._serve("status", "Show how the program is.", self._status)
        self._serve("stop", "End the program.", self._stop)
        self._serve("terminate", "Suspend, so that state is saved, then end the program.", self._terminate)
        self._serve("restart", "Restart a worker: NAME, or its path.", self._restart, complete=self._restartable)
        self._serve("emit", "Send an event: TOPIC, and its data as JSON.", _refuse_emit, event=_event)
        self._serve("pause", "Let the events of a source wait: SOURCE.", self._pause, complete=self._sources)
        self._serve("unpause", "Take the events of a source again: SOURCE.", self._unpause, complete=self._sources)

    def _serve(self, word: str, text: str, handler: Any, *, event: Any = None, complete: Any = None) -> None:
        """A route that no other conflicts with: the program's own for this topic, which is exact, comes before it."""
        self.add(Command(word, text, event, complete))
        pattern = f"command/[{word[0]}]{word[1:]}"
        with suppress(RouteConflict):
            self._router.handle(pattern, handler, concurrency=_RESTARTS if word == "restart" else 1)
            self.patterns.append(pattern)

    # -- what the words do

    def _status(self, _: CommandEvent) -> None:
        reply(status_text(self._lifetime, routers_of(self._lifetime)))

    async def _stop(self, _: CommandEvent) -> None:
        await self._shut_down(ShutdownEvent("stop"))

    async def _terminate(self, event: CommandEvent) -> None:
        if is_made_for(self._router, TerminateEvent.topic):
            await self._shut_down(TerminateEvent())
            return
        try:
            if is_made_for(self._router, SuspendEvent.topic):
                with suppress(NotHandled):
                    await self._router.dispatch(SuspendEvent())
        finally:
            await self._stop(event)

    async def _shut_down(self, order: Topical) -> None:
        """As the program wants it, or at once where it does not say."""
        if is_made_for(self._router, order.topic):
            with suppress(NotHandled):
                await self._router.dispatch(order)
                return
        self._lifetime.shutdown()

    async def _restart(self, event: CommandEvent) -> None:
        [name] = _words(event, "restart NAME")
        try:
            child = named(name, children(self._lifetime.components()))
        except LookupError as error:
            raise _refused(str(error)) from None
        await child.restart()

    def _pause(self, event: CommandEvent) -> None:
        [name] = _words(event, "pause SOURCE")
        for router in self._owners_of(name):
            router.pause_source(name)

    def _unpause(self, event: CommandEvent) -> None:
        [name] = _words(event, "unpause SOURCE")
        for router in self._owners_of(name):
            router.unpause_source(name)

    def _owners_of(self, source: str) -> list[Router]:
        """All that have one of that name, as a router itself takes all of its own that have it."""
        running = routers_of(self._lifetime)
        found = [router for router in running if any(each.name == source for each in router.sources())]
        if not found:
            raise _refused(f"no source is called {source!r}; there is {', '.join(self._sources()) or 'none'}")
        return found

    # -- completions

    def _restartable(self, _: str) -> list[str]:
        # What no supervisor has is its own path.
        return [word for each in children(self._lifetime.components()) for word in {each.name, each.path}]

    def _sources(self, _: str = "") -> list[str]:
        return sorted({each.name for router in routers_of(self._lifetime) for each in router.sources()})


def _event(args: tuple[str, ...]) -> Topical:
    """The event that is to be emitted; where that cannot be read, one that is refused."""
    if len(args) in (1, 2) and args[0]:
        with suppress(ValueError, RecursionError):
            return Event(args[0], json.loads(args[1]) if args[1:] else None)
    return CommandEvent("emit", args)


def _refuse_emit(event: CommandEvent) -> None:
    raise _refused(f"emit {' '.join(event.args)}: give a topic, and data as JSON in single quotes: emit a/b '[1, 2]'")


def _words(event: CommandEvent, usage: str) -> tuple[str, ...]:
    if len(event.args) != 1:
        raise _refused(f"usage: {usage}")
    return event.args


def _refused(text: str) -> Dropped:
    """No failure of the program's: who gave the command is told."""
    reply(text)
    return Dropped(text)
