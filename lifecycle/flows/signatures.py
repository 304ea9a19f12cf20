"""What a function asks for: the names of its parameters are the names of what it wants to be given."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Wants", "wants_of"]


class Wants(NamedTuple):
    """The parameters of a function."""

    required: tuple[str, ...] = ()
    #: Those with a default, which are given where there is something to give.
    optional: tuple[str, ...] = ()
    #: Whether it takes any name (``**kwargs``).
    anything: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.required + self.optional


def wants_of(fn: Callable[..., Any]) -> Wants:
    """What ``fn`` asks for.

    Raises:
        TypeError: for parameters that have no name to be given by.
    """
    required: list[str] = []
    optional: list[str] = []
    anything = False
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            anything = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(f"{name_of(fn)} takes {parameter}, which cannot be given by name; name its parameters")
        else:
            (required if parameter.default is parameter.empty else optional).append(parameter.name)
    return Wants(tuple(required), tuple(optional), anything)
