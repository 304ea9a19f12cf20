"""The owner of the running code, to which it adds what it starts.

A program's lifetime and its mains are owners. A router, worker or store calls one of the functions below when it
starts, and `Part.end` when it has ended. Nothing else makes it a part of a program. Code outside a lifetime has no
owner.
"""

from __future__ import annotations

from contextvars import ContextVar
from weakref import WeakSet

# Importing typing would take longer than importing this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Owner(Protocol):
        """A lifetime or a main."""

        @property
        def lifetime(self) -> Any:
            """The lifetime itself, or that of the main."""
            ...

        def own_component(self, component: object) -> Part:
            """List an object that has a ``state()`` method."""
            ...

        def own_router(self, router: Any) -> Part:
            """Drain a router when the shutdown begins, and send it signals."""
            ...

        def own_worker(self, worker: Any) -> Part:
            """Stop a worker during the shutdown."""
            ...


__all__ = ["Part", "current_owner", "outermost_lifetimes", "own_component", "own_router", "own_worker", "program_stops"]


class Part:
    """Something that belongs to an owner. By default, there is nothing to start, to stop, or to report."""

    async def start(self) -> None:
        """Start, and return once the next part may start."""

    async def stop(self, left: Callable[[], float]) -> None:
        """Stop, and return once that is done, if possible within ``left()`` seconds."""

    def state(self) -> object:
        """Return a record of the current state, or None."""
        return None

    def changed(self) -> None:
        """Record that the part has changed, such as the routes of a router."""

    def end(self, error: BaseException | None = None) -> None:
        """Record that the part has ended, and no longer has an owner. ``error`` is the reason if it has failed."""


current_owner: ContextVar[Owner] = ContextVar("lifecycle_owner")
#: The running lifetimes that are not inside another one.
outermost_lifetimes: WeakSet[Any] = WeakSet()


def own_component(component: object) -> Part:
    """Let the owner of the running code list ``component``, which has a ``state()`` method."""
    owner = current_owner.get(None)
    return Part() if owner is None else owner.own_component(component)


def own_router(router: Any) -> Part:
    """Let the owner of the running code drain ``router`` when the shutdown begins, and send it signals."""
    owner = current_owner.get(None)
    return Part() if owner is None else owner.own_router(router)


def own_worker(worker: Any) -> Part:
    """Let the owner of the running code stop ``worker`` during the shutdown."""
    owner = current_owner.get(None)
    return Part() if owner is None else owner.own_worker(worker)


def program_stops() -> bool:
    """Return whether the lifetime of the running code has begun to stop.

    Code outside a lifetime, such as the request of a web server, belongs to the only lifetime in the event loop.
    """
    owner = current_owner.get(None)
    found = [each for each in tuple(outermost_lifetimes) if each.in_loop()] if owner is None else [owner.lifetime]
    return len(found) == 1 and bool(found[0].stopping)
