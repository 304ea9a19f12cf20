"""Calls user functions, async or synchronous, with as many of the offered arguments as they accept."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Call", "adapted", "trimmed"]

#: A user function that `adapted` has wrapped. It is always awaited, and always called with all offered arguments.
Call: TypeAlias = "Callable[..., Awaitable[Any]]"


def adapted(fn: Callable[..., Any], role: str, *offered: str, default: int = 0) -> Call:
    """Wrap ``fn`` in an async function that takes all ``offered`` arguments and passes on as many as ``fn`` accepts.

    Functions without a signature, such as `dict.update` and others written in C, are called with ``default`` arguments.

    Raises:
        TypeError: if ``fn`` cannot be called with all of these arguments or with the first few of them. The message
            contains ``role``.
    """
    trim = trimmed(fn, role, *offered, default=default)

    async def call(*arguments: Any) -> Any:
        result = trim(*arguments)
        return await result if inspect.isawaitable(result) else result

    return call


def trimmed(fn: Callable[..., Any], role: str, *offered: str, default: int = 0) -> Callable[..., Any]:
    """Wrap ``fn`` like `adapted` does, but don't await the coroutine if it returns one."""
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be {role}: pass an async or synchronous function")
    taken = _taken(fn, role, offered, default)
    return lambda *arguments: fn(*arguments[:taken])


def _taken(fn: Callable[..., Any], role: str, offered: tuple[str, ...], default: int) -> int:
    """Return the maximum number of offered arguments that ``fn`` accepts."""
    try:
        signature = inspect.signature(fn)
    except ValueError:
        return default
    for count in range(len(offered), -1, -1):
        try:
            signature.bind(*offered[:count])
        except TypeError:
            continue
        return count
    most = f"at most {', '.join(offered)}" if offered else "no arguments"
    raise TypeError(f"{name_of(fn)}{signature} cannot be {role}: it is called with {most}")
