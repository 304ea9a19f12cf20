"""Waiting for the end of a rush: what many want in the same moment is done once for all of them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["after_the_rush"]

#: Turns of the loop after which it is done however many more come.
_TURNS: Final = 32


def after_the_rush(size: Callable[[], int], call: Callable[[], object], *, seen: int = 0, turns: int = _TURNS) -> None:
    """Call ``call`` when the loop has gone round without ``size`` having grown: at once, where it is quiet."""
    now = size()
    if now > seen and turns:
        again = partial(after_the_rush, size, call, seen=now, turns=turns - 1)
        asyncio.get_running_loop().call_soon(again)
    else:
        call()
