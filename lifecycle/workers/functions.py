"""What can be said of a function before it is called: what it has to be given."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["needed", "takes_one"]


def takes_one(fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` can be called with one positional argument, as far as anybody can know."""
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    except ValueError:
        # Some that are written in C do not tell.
        return True
    return True


def needed(fn: Callable[..., Any]) -> int | None:
    """How many positional arguments ``fn`` cannot do without; None if it needs keywords, or nobody can know."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
    if any(each.kind is each.KEYWORD_ONLY for each in required):
        return None
    return len(required)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
