"""Routes of every kind, for events from outside the program. `OUTCOMES` lists the possible results."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from lifecycle import Debounce, Dropped, Escalator, Event, NotHandled, current, delivery, go
from lifecycle.bridges import BusEvent
from lifecycle.control import log, once, recover, timeout

if TYPE_CHECKING:
    from lifecycle import Pool, Router
    from tests.soak.notes import Notes
    from tests.soak.tree import Tree

__all__ = ["OUTCOMES", "Routes"]

#: The console's possible responses, by topic. Any event may be dropped while the program stops.
OUTCOMES: dict[str, tuple[str, ...]] = {
    "sum/even": ("handled",),
    "sum/odd": ("handled",),
    "busy/queue": ("handled",),
    "busy/drop": ("handled", "dropped"),
    "busy/restart": ("handled", "dropped"),
    "settle/a": ("handled",),
    "fragile/a": ("handled",),
    "boom/a": ("failed",),
    "stuck/a": ("failed",),
    "block/a": ("handled",),
    "once/a": ("handled",),
    "alarm/a": ("handled", "dropped"),
    "crash/background": ("handled",),
    "crash/worker": ("handled",),
    "call/pool": ("handled", "failed"),
    # The prompt's router is the first one, so it receives this event.
    "nobody/knows": ("failed",),
}


class Routes:
    """Handlers for the topics in `OUTCOMES`. Each handler checks that it is called correctly."""

    def __init__(self, notes: Notes, tree: Tree, pool: Pool) -> None:
        self._notes, self._tree, self._pool = notes, tree, pool
        self._running: Counter[str] = Counter()
        self._onces = 0
        self._seen = 0

    def add_to(self, router: Router) -> None:
        """Add exact and wildcard routes, lanes, debounced routes, middleware, taps, and a fallback."""
        router.use(log(level=0))
        router.handle("sum/odd", self._even_only)
        router.handle("sum/*", self._any)
        router.handle("busy/queue", self._alone, lane="busy")
        router.handle("settle/*", self._alone, lane="busy", debounce=Debounce(0.1, max_wait=0.5, key=_topic))
        router.handle("busy/drop", self._slowly, busy="drop")
        router.handle("busy/restart", self._slowly, busy="restart")
        router.handle("fragile/*", self._boom, middleware=[recover()])
        router.handle("boom/*", self._boom)
        router.handle("stuck/*", self._forever, concurrency=3, middleware=[timeout(0.5)])
        router.handle("block/*", self._block)
        router.handle("once/*", once(self._once))
        router.handle("alarm/*", Escalator(self._calmly, self._any, window=0.2))
        router.handle("crash/background", self._crash_background)
        router.handle("crash/worker", self._crash_worker)
        router.handle("call/*", self._call, concurrency=2)
        router.handle("bus/**", self._from_the_bus, concurrency=4)
        router.observe("**", self._tapped)
        router.fallback(self._any)

    async def read(self, router: Router) -> None:
        """Subscribe and read events slowly. This runs as a background task of the program."""
        async with router.subscribe("**", maxsize=10) as events:
            async for _ in events:
                await asyncio.sleep(0.05)

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _any(self, _: Any) -> None:
        self._seen += 1

    def _tapped(self, _: Any) -> None:
        self._seen += 1

    def _even_only(self, _: Any) -> None:
        raise NotHandled("odd numbers belong to another handler")

    def _calmly(self, _: Any) -> None:
        if delivery().id % 3 == 0:
            raise Dropped("not this one") if delivery().id % 2 else NotHandled("more than I can do")

    async def _alone(self, event: Any) -> None:
        """Check that the lane handles one event at a time."""
        self._running["busy"] += 1
        if self._running["busy"] > 1:
            self._notes.wrong(f"{event.topic} is handled beside another of its lane")
        try:
            await asyncio.sleep(0.01)
        finally:
            self._running["busy"] -= 1

    async def _slowly(self, event: Any) -> None:
        self._running[event.topic] += 1
        if self._running[event.topic] > 1:
            self._notes.wrong(f"{event.topic} is handled twice at once")
        try:
            await asyncio.sleep(0.2)
        finally:
            self._running[event.topic] -= 1

    def _boom(self, event: Any) -> None:
        raise ValueError(f"{event.topic} was bound to fail")

    async def _forever(self, _: Any) -> None:
        await asyncio.Event().wait()

    def _block(self, _: Any) -> None:
        """Block the loop, which handlers should never do."""
        time.sleep(0.15)

    async def _once(self, _: Any) -> None:
        self._onces += 1
        if self._onces > 1:
            self._notes.wrong(f"what is to be called once was called {self._onces} times")

    async def _crash_background(self, _: Any) -> None:
        async def crash() -> None:
            await asyncio.sleep(0.01)
            raise ValueError("a background task broke")

        go(crash)
        if current().stopping:
            raise Dropped("the program ends")

    def _crash_worker(self, event: Event) -> None:
        self._tree.crash(event.data)

    async def _call(self, event: Event) -> None:
        await self._pool.call("do", -event.data, 0.01, idempotent=True)

    async def _from_the_bus(self, event: Any) -> None:
        if not isinstance(event, BusEvent):
            self._notes.wrong(f"{event.topic} was not delivered by the bus")
            return
        if event.attempt == 1 and event.data % 11 == 0:
            raise ValueError(f"{event.data} brings no luck")
        self._notes.note("bus", event.data, event.attempt)


def _topic(event: Any) -> str:
    return str(event.topic)
