"""Calling what a user gave: async or plain, taking as many of the offered arguments as it wants."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Call", "adapted", "trimmed"]

#: A user's function after `adapted`: always awaited, always given everything there is to give.
Call: TypeAlias = "Callable[..., Awaitable[Any]]"


def adapted(fn: Callable[..., Any], role: str, *offered: str, untold: int = 0) -> Call:
    """``fn`` as something to await that takes the arguments named ``offered``, or as many of the first as it takes.

    One that does not tell how many that is, as some written in C (`dict.update`), gets ``untold`` of them.

    Raises:
        TypeError: when ``fn`` cannot be called with any number of them; ``role`` says what it was meant for.
    """
    trim = trimmed(fn, role, *offered, untold=untold)

    async def call(*arguments: Any) -> Any:
        result = trim(*arguments)
        return await result if inspect.isawaitable(result) else result

    return call


def trimmed(fn: Callable[..., Any], role: str, *offered: str, untold: int = 0) -> Callable[..., Any]:
    """As `adapted`, but called as ``fn`` is: what an async function gives is still to be awaited."""
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be {role}: give a function, async or plain")
    taken = _taken(fn, role, offered, untold)
    return lambda *arguments: fn(*arguments[:taken])


def _taken(fn: Callable[..., Any], role: str, offered: tuple[str, ...], untold: int) -> int:
    """How many of the offered arguments ``fn`` takes, at most."""
    try:
        signature = inspect.signature(fn)
    except ValueError:
        return untold
    for count in range(len(offered), -1, -1):
        try:
            signature.bind(*offered[:count])
        except TypeError:
            continue
        return count
    most = f"at most {', '.join(offered)}" if offered else "no arguments"
    raise TypeError(f"{name_of(fn)}{signature} cannot be {role}: it is called with {most}")
