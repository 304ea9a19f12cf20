"""Calls of user functions, async or plain, with as many of the offered arguments as they take."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Call", "adapted", "trimmed"]

#: A user function after `adapted`: always awaited, and called with all offered arguments.
Call: TypeAlias = "Callable[..., Awaitable[Any]]"


def adapted(fn: Callable[..., Any], role: str, *offered: str, default: int = 0) -> Call:
    """Return ``fn`` as an async function that takes all ``offered`` arguments and passes on as many as ``fn`` takes.

    A function without a signature, such as `dict.update` and others written in C, is called with ``default`` arguments.

    Raises:
        TypeError: if ``fn`` cannot be called with any number of them. The message contains its ``role``.
    """
    trim = trimmed(fn, role, *offered, default=default)

    async def call(*arguments: Any) -> Any:
        result = trim(*arguments)
        return await result if inspect.isawaitable(result) else result

    return call


def trimmed(fn: Callable[..., Any], role: str, *offered: str, default: int = 0) -> Callable[..., Any]:
    """Return ``fn`` like `adapted`, but without awaiting a coroutine that it returns."""
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be {role}: give a function, async or plain")
    taken = _taken(fn, role, offered, default)
    return lambda *arguments: fn(*arguments[:taken])


def _taken(fn: Callable[..., Any], role: str, offered: tuple[str, ...], default: int) -> int:
    """Return the maximum number of offered arguments that ``fn`` takes."""
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
