"""Work that must be seen through: `do` observes it, `do_detached` shields it from the caller's cancellation."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lifecycle import hooks
from lifecycle._cancelling import see_through
from lifecycle._naming import name_of
from lifecycle.runtime.background import check_callable
from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["do", "do_detached"]

_T = TypeVar("_T")


@overload
async def do(fn: Callable[..., Awaitable[_T]], *args: Any) -> _T: ...


@overload
async def do(fn: Callable[..., _T], *args: Any) -> _T: ...


async def do(fn: Callable[..., Any], *args: Any) -> Any:
    """Run ``fn(*args)`` here and now, and announce its end on `hooks.critical_finished`.

    ``fn`` may be async or plain; a plain one runs in this thread. What it raises comes out.

    Raises:
        TypeError: for what is no function.
    """
    check_callable(fn)
    loop = asyncio.get_running_loop()
    began = loop.time()
    failure: BaseException | None = None
    try:
        result = fn(*args)
        return await result if inspect.isawaitable(result) else result
    except BaseException as error:
        failure = error
        raise
    finally:
        life = current_life.get(None)
        sender = life.lifetime if life else None
        duration = loop.time() - began
        hooks.critical_finished.announce(sender, name=name_of(fn), duration=duration, error=failure)


@overload
async def do_detached(fn: Callable[..., Awaitable[_T]], *args: Any) -> _T: ...


@overload
async def do_detached(fn: Callable[..., _T], *args: Any) -> _T: ...


async def do_detached(fn: Callable[..., Any], *args: Any) -> Any:
    """As `do`, but who calls it cannot cancel it.

    When the caller is cancelled, this waits for ``fn`` to end and lets the cancellation through then; if ``fn``
    raised, its error comes out instead.
    """
    check_callable(fn)
    return await see_through(asyncio.create_task(do(fn, *args), name=name_of(fn)))
