"""What can be said of a function before it is called, the same in every room."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["is_async"]


def is_async(fn: object) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Whether calling ``fn`` gives something to await, for functions and for objects that are called like one."""
    # Of a class it would be the function of its instances.
    call = None if isinstance(fn, type) else getattr(fn, "__call__", None)  # noqa: B004  # its kind is asked for
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
