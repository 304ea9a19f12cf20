"""`Outbox`: the source that delivers what tasks have sent.

Several may deliver from one store: who takes an event has it for a while, keeps it as long as it is under way, and
forgets it when it was handled. Whoever dies leaves it to the others, so that it may come twice, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lifecycle._async import wait_within
from lifecycle._util import error_text, reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError, JournalError
from lifecycle.flows.records import UNENDED, FailedDelivery
from lifecycle.flows.stores import clock_of, storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.flows.client import Flows
    from lifecycle.flows.records import OutboxRow

__all__ = ["SENT", "Outbox", "SentEvent"]

_log = logging.getLogger("lifecycle.flows")

#: What is rung when there may be something to deliver.
SENT = "sent"

#: Seconds that who has taken an event has it, unless he says that he still has; and events under way at a time.
_LEASE, _ROOM = 10.0, 64
#: Seconds after which who delivers looks even if nobody rang.
_LOOK = 5.0
#: Deliveries that never ended, after which an event is suspected of killing its process and is delivered alone.
_SUSPECT = 20
#: The wait of an event whose delivery failed.
_AGAIN = Backoff(initial=0.5, maximum=60.0)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """What a task has sent."""

    topic: str
    data: Any
    #: The same each time that it is delivered.
    id: str


class Outbox:
    """A source for a router, made by `Flows.outbox`: delivers what tasks have sent, once it is stored.

    An event is forgotten when its delivery has succeeded. One that failed, or that no route takes, comes again, after
    half a second and ever later, up to a minute. After ``max_attempts`` failures it is a dead letter, which stays in
    the store until you replay or drop it (``lifecycle flows dead``). Events come in the order in which they were
    stored, but for those that come again, and where several deliver.
    """

    def __init__(self, flows: Flows, max_attempts: int) -> None:
        if max_attempts < 1:
            raise ValueError(f"outbox(max_attempts={max_attempts!r}) would deliver nothing; give 1 or more")
        self._flows, self._max_attempts = flows, max_attempts
        self._store = flows.store.outbox()
        self._news = asyncio.Event()
        # Those under way by their numbers, each watched by a task.
        self._under_way: dict[int, asyncio.Task[None]] = {}
        # Those that have ended and are not put down yet: whether they were delivered, or how they failed.
        self._ended: dict[int, bool | FailedDelivery] = {}

    def __repr__(self) -> str:
        return f"<Outbox of {self._flows.store!r}: {len(self._under_way)} under way>"

    async def run(self, emit: Callable[[Any], Awaitable[Awaitable[None]]]) -> None:
        """Deliver, until cancelled.

        Raises:
            FlowError: unless the flows are entered.
        """
        self._flows.check_open()
        silence = self._flows.owners.listen(SENT, self._news.set)
        keeping = asyncio.create_task(self._keep(), name="keep what is under way")
        try:
            while True:
                self._news.clear()
                rows = await self._take()
                await self._deliver(rows, emit)
                if any(map(_is_suspect, rows)):
                    await self._idle()
                if not rows:
                    await wait_within(_LOOK, self._news)
        finally:
            silence()
            keeping.cancel()
            await asyncio.wait([keeping])

    async def settle(self) -> None:
        """Put down what has become of what was under way; the rest is anybody's."""
        # Who waits for a delivery that has ended has heard of it by the next turn of the loop.
        await asyncio.sleep(0)
        for task in self._under_way.values():
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))
        try:
            await self._put_down()
        except JournalError as error:
            _log.warning("what was delivered could not be put down, and will be delivered again: %s", error)

    async def _take(self) -> list[OutboxRow]:
        """Put down what has ended, and take as many as there is room for."""
        try:
            await self._put_down()
            room = _ROOM - len(self._under_way)
            rows = await self._claim(room) if room else []
            if any(map(_is_suspect, rows)) and len(rows) + len(self._under_way) > 1:
                # The process may die of the suspect. Nothing else may then have a lease that runs out.
                self._ended |= {row.number: False for row in rows}
                await self._idle()
                await self._put_down()
                rows = await self._claim(1)
        except JournalError as error:
            _log.warning("what was sent cannot be delivered now: %s", error)
            return []
        return rows

    async def _claim(self, limit: int) -> list[OutboxRow]:
        now = self._now()
        rows = await self._store.take(limit, now=now, until=now + _LEASE)
        # Leases of our own may have run out, while the loop was blocked or the store could not be written.
        return [row for row in rows if row.number not in self._under_way and row.number not in self._ended]

    async def _idle(self) -> None:
        """Wait until nothing is under way, or for the time of a lease: a long delivery does not block the rest."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()), timeout=_LEASE)

    async def _deliver(self, rows: list[OutboxRow], emit: Callable[[Any], Awaitable[Awaitable[None]]]) -> None:
        self._ended |= {row.number: False for row in rows}
        for row in rows:
            if _is_suspect(row) and row.failures >= _SUSPECT + self._max_attempts:
                unended = FlowError(f"{UNENDED}, {row.failures} times; does it kill the process?")
                self._fail(row._replace(failures=row.failures - 1), unended)
                continue
            try:
                event = SentEvent(row.topic, self._flows.codec.decode(row.data), row.id)
            except Exception as error:  # noqa: BLE001  # a codec may raise anything
                self._fail(row, error)
                continue
            delivery = await emit(event)
            del self._ended[row.number]
            self._under_way[row.number] = task = asyncio.create_task(self._see(row, delivery), name=f"sent {row.id}")
            task.add_done_callback(self._seen)

    async def _see(self, row: OutboxRow, delivery: Awaitable[None]) -> None:
        try:
            await delivery
            self._ended[row.number] = True
        except Exception as error:  # noqa: BLE001  # whatever it is, it comes again
            self._fail(row, error)
        except asyncio.CancelledError:
            self._ended[row.number] = False
            raise
        finally:
            del self._under_way[row.number]

    def _seen(self, _: object) -> None:
        self._news.set()

    def _fail(self, row: OutboxRow, error: Exception) -> None:
        failures, reason = row.failures + 1, reason_of(error)
        if failures >= self._max_attempts:
            _log.error("%r from %s failed %d times and is a dead letter: %s", row.topic, row.id, failures, reason)
            self._ended[row.number] = FailedDelivery(row.number, failures, storable(error_text(error)), None)
            self._news.set()
            return
        delay = _AGAIN.delay(failures - 1)
        _log.warning("%r from %s comes again in %.1f s: %s", row.topic, row.id, delay, reason)
        self._ended[row.number] = FailedDelivery(row.number, failures, storable(error_text(error)), self._now() + delay)
        # Who looks anyway need not be woken.
        if delay < _LOOK:
            asyncio.get_running_loop().call_later(delay, self._news.set)

    async def _put_down(self) -> None:
        """Write the results of those that have ended."""
        ended = dict(self._ended)
        if not ended:
            return
        await self._store.put_down(
            delivered=[number for number, how in ended.items() if how is True],
            freed=[number for number, how in ended.items() if how is False],
            failed=[how for how in ended.values() if isinstance(how, FailedDelivery)],
        )
        for number in ended:
            del self._ended[number]

    async def _keep(self) -> None:
        """Say that we still have what is under way, in time, until cancelled."""
        while True:
            await asyncio.sleep(_LEASE / 3)
            if numbers := [*self._under_way, *self._ended]:
                try:
                    await self._store.hold(numbers, until=self._now() + _LEASE)
                except JournalError as error:
                    _log.warning("what is under way may be delivered by others too: %s", error)

    @cached_property
    def _now(self) -> Callable[[], float]:
        return clock_of(self._flows.store)


def _is_suspect(row: OutboxRow) -> bool:
    return row.error == UNENDED and row.failures >= _SUSPECT
