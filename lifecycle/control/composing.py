"""From what a user registers to what a lane awaits: handlers made alike, middleware wrapped around them.

All the thinking is done here, at registration, so that an event only runs through the result.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from lifecycle.control.types import AsyncHandler, Handler, Middleware

__all__ = ["Chain", "as_async", "wrap"]

#: Marks a plain function that always returns an awaitable, so that it is not wrapped once more.
_AWAITABLE = "returns_awaitable"


def as_async(handler: Handler) -> AsyncHandler:
    """``handler`` as something to await; an ``async def`` is returned as it is.

    Raises:
        TypeError: for what is no callable of one argument.
    """
    if getattr(handler, _AWAITABLE, False):
        return handler
    _check(handler)
    if inspect.iscoroutinefunction(handler):
        return handler
    return _method(handler) or _awaiting(handler)


def _method(handler: Handler) -> AsyncHandler | None:
    """The async method of an object that is called like a function: awaiting it is faster than the object."""
    # Of a class it would be the function of its instances.
    method = None if isinstance(handler, type) else getattr(handler, "__call__", None)  # noqa: B004
    return method if inspect.iscoroutinefunction(method) else None


def _check(handler: Handler) -> None:
    if not callable(handler):
        raise TypeError(f"{handler!r} is no handler: give a function of one argument, the event")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(f"{name_of(handler)} is a generator and would never run: a handler has no `yield`")
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some callables written in C have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{name_of(handler)}{signature} is no handler: it must be callable with one argument, the event"
        ) from None


def _awaiting(handler: Handler) -> AsyncHandler:
    """A plain function, called where it is awaited; what it returns is awaited too if it can be."""

    @functools.wraps(handler, updated=())
    async def call(event: Any) -> None:
        result = handler(event)
        if result is not None and inspect.isawaitable(result):
            await result

    return call


def wrap(handler: AsyncHandler, middleware: Iterable[Middleware]) -> AsyncHandler:
    """``handler`` inside ``middleware``, the first of which is the outermost."""
    for each in reversed(tuple(middleware)):
        wrapped = each(handler)
        if not callable(wrapped):
            raise TypeError(f"middleware {name_of(each)} returned {wrapped!r}; it must return a handler")
        handler = as_async(wrapped)
    return handler


class Chain:
    """A handler inside middleware that keeps coming: each wraps it exactly once, the latest comer the closest.

    What a middleware remembers (`once` does) therefore lives as long as the route.
    """

    __slots__ = ("_handler", "_seat", "call")

    def __init__(self, handler: AsyncHandler) -> None:
        self.call: AsyncHandler = handler
        self._handler = handler
        # Puts a handler where the innermost middleware looks for its next.
        self._seat: Callable[[AsyncHandler], None] | None = None

    def add(self, middleware: Iterable[Middleware]) -> None:
        """Wrap ``middleware`` around the handler, inside what is wrapped around it already."""
        enter, seat = _seat(self._handler)
        wrapped = wrap(enter, middleware)
        if self._seat is None:
            self.call = wrapped
        else:
            self._seat(wrapped)
        self._seat = seat


def _seat(handler: AsyncHandler) -> tuple[AsyncHandler, Callable[[AsyncHandler], None]]:
    """A handler that calls another, which can be exchanged."""

    @functools.wraps(handler, updated=())
    def enter(event: Any) -> Awaitable[Any]:
        return handler(event)

    setattr(enter, _AWAITABLE, True)

    def exchange(other: AsyncHandler) -> None:
        nonlocal handler
        handler = other

    return enter, exchange
