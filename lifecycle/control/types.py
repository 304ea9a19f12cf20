"""The signatures of handlers and middleware. Any function with the right signature is accepted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["AsyncHandler", "Handler", "LaneKey", "Middleware", "RouteHandler", "Wrapper"]

_E = TypeVar("_E")

#: An async or plain function of one argument, which a user registers.
Handler: TypeAlias = Callable[[Any], Any]

#: A handler after registration, which middleware wraps.
AsyncHandler: TypeAlias = Callable[[Any], Awaitable[Any]]

#: A function that takes a handler and returns a wrapped handler.
Middleware: TypeAlias = Callable[[AsyncHandler], Handler]

#: A function that takes an event and returns its key within a keyed lane.
LaneKey: TypeAlias = Callable[[Any], Hashable]


class RouteHandler(Protocol):
    """An async or plain function that a user registers for a pattern.

    Its first argument is the event. Other parameters get the values of the names in the pattern.
    """

    def __call__(self, event: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Handle ``event``."""
        ...


class Wrapper(Protocol):
    """Middleware provided by this library. It can also be called directly with any handler."""

    def __call__(self, handler: Callable[[_E], Any], /) -> Callable[[_E], Coroutine[Any, Any, None]]:
        """Return the wrapped ``handler``, which takes the same events."""
        ...
