"""Which requests were here before: the ids of those that were accepted lately, in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.control.deliveries import Delivery

__all__ = ["Repeats"]

#: Ids that are remembered; beyond it the oldest is forgotten.
_MOST = 65_536


class Repeats:
    """Remembers ids for ``seconds``."""

    def __init__(self, seconds: float, *, most: int = _MOST) -> None:
        self._seconds = seconds
        self._most = most
        # When each came, the oldest first; and whether it was accepted, once that is known, or the delivery whose end
        # will tell.
        self._ids: dict[str, tuple[float, asyncio.Future[bool | Delivery]]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    async def once(self, key: str, take: Callable[[], Awaitable[Delivery | None]]) -> Delivery | None:
        """Call ``take``, unless something with the same ``key`` was accepted lately; while one is, wait for it.

        What ``take`` raises comes out, and is not remembered. Where it returns a delivery, that is returned to all
        who come with the key, until `conclude` says how it ended.
        """
        while (first := self._find(key)) is not None:
            await asyncio.wait([first])
            if came := first.result():
                return None if came is True else came
        outcome = self._begin(key)
        try:
            delivery = await take()
        except BaseException:
            self._ids.pop(key, None)
            outcome.set_result(False)
            raise
        outcome.set_result(delivery or True)
        return delivery

    def conclude(self, key: str, delivery: Delivery, *, accepted: bool) -> None:
        """Say how ``delivery`` ended; one that was not accepted may come again."""
        since, outcome = self._ids.get(key, (0.0, None))
        if outcome is None or not outcome.done() or outcome.result() is not delivery:
            # Somebody else said so before, or it was forgotten.
            return
        if accepted:
            self._ids[key] = since, _settled()
        else:
            del self._ids[key]

    def _find(self, key: str) -> asyncio.Future[bool | Delivery] | None:
        now = asyncio.get_running_loop().time()
        while self._ids:
            oldest, (since, outcome) = next(iter(self._ids.items()))
            if now < since + self._seconds or not outcome.done():
                break
            del self._ids[oldest]
        came = self._ids.get(key)
        return None if came is None else came[1]

    def _begin(self, key: str) -> asyncio.Future[bool | Delivery]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[bool | Delivery] = loop.create_future()
        self._ids[key] = loop.time(), outcome
        if len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]
        return outcome


def _settled() -> asyncio.Future[bool | Delivery]:
    """Accepted, with nothing more to know: a delivery would keep its event in memory."""
    outcome: asyncio.Future[bool | Delivery] = asyncio.get_running_loop().create_future()
    outcome.set_result(True)
    return outcome
