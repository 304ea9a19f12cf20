"""The few signatures that run through everything: handler, middleware, source.

Whatever a user writes fits one of these by its shape alone; nothing has to inherit from them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from lifecycle.events import Topical

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from lifecycle.control.debouncing import Debounce
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Busy

__all__ = ["AsyncHandler", "Emit", "Handler", "Middleware", "RouteSettings", "Source", "SourceObject", "Wrapper"]

_E = TypeVar("_E")

#: What a user registers: ``async def`` or plain, of one argument.
Handler: TypeAlias = Callable[[Any], Any]

#: What a handler is after registration, and what middleware wraps.
AsyncHandler: TypeAlias = Callable[[Any], Awaitable[Any]]

#: From handler to handler.
Middleware: TypeAlias = Callable[[AsyncHandler], Handler]


class Wrapper(Protocol):
    """Middleware that may also be called by hand, with any handler: what the library's own is."""

    def __call__(self, handler: Callable[[_E], Any], /) -> Callable[[_E], Coroutine[Any, Any, None]]:
        """``handler``, wrapped; it takes the same events."""
        ...


class RouteSettings(TypedDict, total=False):
    """How a route treats its events; `Router.handle` says what each means, and what it is where it is not given."""

    debounce: float | Debounce | None
    busy: Busy | Literal["queue", "drop", "restart"]
    concurrency: int
    lane: str | None
    middleware: Iterable[Middleware]
    replace: bool


class Emit(Protocol):
    """How a source hands over an event: waits for room, returns what will become of it."""

    def __call__(self, event: Topical, /) -> Awaitable[Delivery]:
        """Never raises for an event that nobody takes; awaiting the `Delivery` tells."""
        ...


class SourceObject(Protocol):
    """A source that pushes: ``run`` emits until it has nothing more or is cancelled.

    One that is also an async context manager is entered first; what fails there is a failure to start. Where it has
    ``async def settle()`` too, that is awaited once the router has come to rest and every `Delivery` has ended; if that
    drains, the source is also left only then. One that also wants events has ``def use_router(router)``, which is
    called when it is added; `Router.relay` and `Router.tap` are for that.
    """

    async def run(self, emit: Emit, /) -> None:
        """Emit events."""
        ...


#: An iterable of events, a function that returns one (so that it can be started again), or an object with ``run``.
Source: TypeAlias = AsyncIterable[Topical] | Callable[[], AsyncIterable[Topical]] | SourceObject
