"""Which requests were here before: the ids of those that were accepted lately, in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Repeats"]

#: Ids that are remembered; beyond it the oldest is forgotten.
_MOST = 65_536


class Repeats:
    """Remembers ids for ``seconds``."""

    def __init__(self, seconds: float, *, most: int = _MOST) -> None:
        self._seconds = seconds
        self._most = most
        # When each came, the oldest first; and whether it was accepted, once that is known.
        self._ids: dict[str, tuple[float, asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    async def once(self, key: str, take: Callable[[], Awaitable[None]]) -> None:
        """Call ``take``, unless something with the same ``key`` was accepted lately; while one is, wait for it.

        What ``take`` raises comes out, and is not remembered.
        """
        while (first := self._find(key)) is not None:
            await asyncio.wait([first])
            if first.result():
                return
        outcome = self._begin(key)
        try:
            await take()
        except BaseException:
            self._ids.pop(key, None)
            outcome.set_result(False)
            raise
        outcome.set_result(True)

    def _find(self, key: str) -> asyncio.Future[bool] | None:
        now = asyncio.get_running_loop().time()
        while self._ids:
            oldest, (since, outcome) = next(iter(self._ids.items()))
            if now < since + self._seconds or not outcome.done():
                break
            del self._ids[oldest]
        came = self._ids.get(key)
        return None if came is None else came[1]

    def _begin(self, key: str) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[bool] = loop.create_future()
        self._ids[key] = loop.time(), outcome
        if len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]
        return outcome
