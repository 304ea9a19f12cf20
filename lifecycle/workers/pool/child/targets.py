"""In a member: what is called, found by its name."""

from __future__ import annotations

import sys
from importlib import import_module

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Target", "is_async"]

#: What the code of ``async def`` has, with and without a ``yield``; inspect would slow a member's start.
_ASYNC = 0x0080 | 0x0200


class Target:
    """What the pool was given: a function and its module, or a class of which one object is made.

    Args:
        name: ``module:qualname``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._given = _resolve(name)
        self._object: Any = None
        # What was asked for as ``module:qualname``, and found.
        self._found: dict[str, Callable[..., Any]] = {}

    @property
    def is_async(self) -> bool:
        """Whether it is an async function, or a class with an async method that can be called."""
        if not isinstance(self._given, type):
            return is_async(self._given)
        return any(is_async(getattr(self._given, name, None)) for name in dir(self._given) if name[0] != "_")

    def make(self, init: list[Any]) -> None:
        """Make the object, where the target is a class.

        Raises:
            TypeError: if ``init`` was given for a function, or the target cannot be called.
        """
        if isinstance(self._given, type):
            self._object = self._given(*init)
        elif not callable(self._given):
            raise TypeError(f"target={self._name!r} is {self._given!r:.200}, which cannot be called")
        elif init:
            raise TypeError(f"init={init!r:.200} was given, but {self._name!r} is a function; init is for a class")

    def find(self, function: str) -> Callable[..., Any]:
        """The function or method of that name; ``module:qualname`` names one elsewhere.

        Raises:
            AttributeError: if there is none.
            ImportError: if there is no such module.
        """
        if ":" in function:
            if function not in self._found:
                self._found[function] = _resolve(function)
            return self._found[function]
        if self._object is not None:
            found: Callable[..., Any] = getattr(self._object, function)
            return found
        module, _, qualname = self._name.partition(":")
        if function == qualname.rpartition(".")[2]:
            return self._given  # type: ignore[no-any-return]  # make() saw that it can be called
        return getattr(sys.modules[module], function)  # type: ignore[no-any-return]  # the call will see


def is_async(function: object) -> bool:
    """Whether ``function`` is an ``async def``, with or without a ``yield``."""
    return bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & _ASYNC)


def _resolve(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found
