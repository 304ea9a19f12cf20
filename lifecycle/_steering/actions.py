"""What the words do that steer a running program.

Where nothing of the program's would end it, its lifetime is shut down.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle._steering.answers import reply
from lifecycle._steering.children import children, named
from lifecycle.control import Router
from lifecycle.errors import Dropped, NotHandled
from lifecycle.events import CommandEvent, Event, ShutdownEvent, SuspendEvent, TerminateEvent, Topical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lifecycle.runtime import Lifetime

__all__ = ["Actions", "event_of", "is_made_for", "refuse_emit", "routers_of", "status_text"]


def routers_of(lifetime: Lifetime) -> tuple[Router, ...]:
    """Those that run under it."""
    return tuple(each for each in lifetime.components() if isinstance(each, Router))


def is_made_for(router: Router, topic: str) -> bool:
    """Whether the program has a route for the room of ``topic``; a catch-all is none, or a logger would be one."""
    room = f"{topic.partition('/')[0]}/"
    return any(route.pattern.startswith(room) for route in router.explain(topic))


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


class Actions:
    """Carries out what ``router`` is told, for all of the program under ``lifetime``."""

    def __init__(self, router: Router, lifetime: Lifetime) -> None:
        self._router = router
        self._lifetime = lifetime

    def status(self, _: CommandEvent) -> None:
        """Say how the program is."""
        reply(status_text(self._lifetime, routers_of(self._lifetime)))

    async def stop(self, _: CommandEvent) -> None:
        """End the program."""
        await self._shut_down(ShutdownEvent("stop"))

    async def terminate(self, event: CommandEvent) -> None:
        """Suspend, so that state is saved, then end the program."""
        if is_made_for(self._router, TerminateEvent.topic):
            await self._shut_down(TerminateEvent())
            return
        try:
            if is_made_for(self._router, SuspendEvent.topic):
                with suppress(NotHandled):
                    await self._router.dispatch(SuspendEvent())
        finally:
            await self.stop(event)

    async def _shut_down(self, order: Topical) -> None:
        """As the program wants it, or at once where it does not say."""
        if self._lifetime.state().embedded:
            reply("this lifetime ends; the program that runs its event loop continues, so stop that program too")
        if is_made_for(self._router, order.topic):
            with suppress(NotHandled):
                await self._router.dispatch(order)
                return
        self._lifetime.shutdown()

    async def restart(self, event: CommandEvent) -> None:
        """Restart a child of a supervisor, or refresh a pool."""
        [name] = _words(event, "restart NAME")
        try:
            child = named(name, children(self._lifetime.components()))
        except LookupError as error:
            raise _refused(str(error)) from None
        await child.restart()

    def hold(self, event: CommandEvent) -> None:
        """Let the events of a source wait."""
        [name] = _words(event, "hold SOURCE")
        for router in self._owners_of(name):
            router.hold_source(name)

    def release(self, event: CommandEvent) -> None:
        """Take the events of a source again."""
        [name] = _words(event, "release SOURCE")
        for router in self._owners_of(name):
            router.release_source(name)

    def _owners_of(self, source: str) -> list[Router]:
        """All that have one of that name, as a router itself takes all of its own that have it."""
        running = routers_of(self._lifetime)
        found = [router for router in running if any(each.name == source for each in router.sources())]
        if not found:
            raise _refused(f"no source is called {source!r}; there is {', '.join(self.sources()) or 'none'}")
        return found

    # -- completions

    def restartable(self, _: str) -> set[str]:
        """Names and paths of all that can be restarted."""
        return {word for each in children(self._lifetime.components()) for word in (each.name, each.path)}

    def sources(self, _: str = "") -> list[str]:
        """Names of all sources."""
        return sorted({each.name for router in routers_of(self._lifetime) for each in router.sources()})


def event_of(args: tuple[str, ...]) -> Topical:
    """The event that is to be emitted; where that cannot be read, one that is refused."""
    if len(args) in (1, 2) and args[0]:
        with suppress(ValueError, RecursionError):
            return Event(args[0], json.loads(args[1]) if args[1:] else None)
    return CommandEvent("emit", args)


def refuse_emit(event: CommandEvent) -> None:
    """What `event_of` could not read."""
    raise _refused(f"emit {' '.join(event.args)}: give a topic, and data as JSON in single quotes: emit a/b '[1, 2]'")


def _words(event: CommandEvent, usage: str) -> tuple[str, ...]:
    if len(event.args) != 1:
        raise _refused(f"usage: {usage}")
    return event.args


def _refused(text: str) -> Dropped:
    """No failure of the program's: who gave the command is told."""
    reply(text)
    return Dropped(text)
