"""The signatures of handlers and middleware; a function fits by its shape alone, without inheritance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["AsyncHandler", "Handler", "Middleware", "Wrapper"]

_E = TypeVar("_E")

#: A function that a user registers: ``async def`` or plain, of one argument.
Handler: TypeAlias = Callable[[Any], Any]

#: A handler after registration, and what middleware wraps.
AsyncHandler: TypeAlias = Callable[[Any], Awaitable[Any]]

#: From handler to handler.
Middleware: TypeAlias = Callable[[AsyncHandler], Handler]


class Wrapper(Protocol):
    """Middleware that may also be called directly, with any handler, as the library's own."""

    def __call__(self, handler: Callable[[_E], Any], /) -> Callable[[_E], Coroutine[Any, Any, None]]:
        """Return ``handler``, wrapped; it takes the same events."""
        ...
