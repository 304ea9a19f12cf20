"""Waiting for the end of a rush: what many want in the same moment is done once for all of them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Rush", "after_the_rush"]

#: Turns of the loop after which it is done however many more come.
_TURNS: Final = 32

_T = TypeVar("_T")
_R = TypeVar("_R")


def after_the_rush(size: Callable[[], int], call: Callable[[], object], *, seen: int = 0, turns: int = _TURNS) -> None:
    """Call ``call`` when the loop has gone round without ``size`` having grown: at once, where it is quiet."""
    now = size()
    if now > seen and turns:
        again = partial(after_the_rush, size, call, seen=now, turns=turns - 1)
        asyncio.get_running_loop().call_soon(again)
    else:
        call()


class Rush(Generic[_T, _R]):
    """What ``work`` does at once for all who ask it in the same moment, in each loop; it MUST NOT raise."""

    def __init__(self, work: Callable[[Sequence[_T]], _R]) -> None:
        self._work = work
        self._askers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[_T, asyncio.Future[_R]]]]
        self._askers = WeakKeyDictionary()

    def ask(self, item: _T) -> asyncio.Future[_R]:
        """Have ``item`` among them: what ``work`` returned. Who is cancelled meanwhile is left out."""
        loop = asyncio.get_running_loop()
        asker: asyncio.Future[_R] = loop.create_future()
        askers = self._askers.setdefault(loop, [])
        askers.append((item, asker))
        if len(askers) == 1:
            after_the_rush(askers.__len__, partial(self._do, loop))
        return asker

    def _do(self, loop: asyncio.AbstractEventLoop) -> None:
        askers = [(item, asker) for item, asker in self._askers.pop(loop) if not asker.done()]
        result = self._work([item for item, _ in askers])
        for _, asker in askers:
            asker.set_result(result)
