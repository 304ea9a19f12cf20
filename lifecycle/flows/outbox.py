"""`Outbox`: delivers the events that tasks send. Each event is stored together with its task's success.

Several processes may deliver events from the same store. A process takes a lease on an event, renews the lease during
the delivery, and deletes the event after it is handled. If the process ends earlier, another process delivers the
event. An event may therefore be delivered twice, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle._async import wait_within
from lifecycle._util import error_text, reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError, JournalError
from lifecycle.flows.records import UNENDED, FailedDelivery, OutboxRow
from lifecycle.flows.stores.base import clock_of, storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["SENT", "Outbox", "SentEvent"]

_log = logging.getLogger("lifecycle.flows")

#: The message that an event may be waiting for delivery.
SENT = "sent"

#: Seconds until a lease on an event expires.
_LEASE = 10.0
#: The maximum number of events that are being delivered at the same time.
_ROOM = 64
#: Seconds after which the store is checked even if no message has arrived.
_LOOK = 5.0
#: After this many deliveries without a result, an event may be the cause of crashes and is delivered alone.
_SUSPECT = 20
#: The delay after a failed delivery.
_AGAIN = Backoff(initial=0.5, maximum=60.0)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that a task has sent."""

    topic: str
    data: Any
    #: The event's id, which is the same for every delivery.
    id: str


class _Flows(Protocol):
    """The part of `Flows` that an outbox uses."""

    store: Store
    presence: Presence

    @property
    def codec(self) -> Codec: ...

    def check_open(self) -> None: ...


class Outbox:
    """A source for a router that delivers stored events sent by tasks; `Flows.outbox` creates it.

    A delivered event is deleted. If the delivery fails or no route handles the event, the event is delivered again
    after half a second, then at growing intervals of up to a minute. After ``max_attempts`` failures, the event becomes
    a dead letter. It stays in the store until you replay or drop it with ``lifecycle flows dead``. If only one process
    delivers events, they are delivered in the order in which they were stored, except for repeated deliveries.
    """

    def __init__(self, flows: _Flows, max_attempts: int) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {max_attempts!r}")
        self._flows, self._max_attempts = flows, max_attempts
        self._store = flows.store.outbox()
        self._news = asyncio.Event()
        # The tasks that wait for the end of each delivery, by event number.
        self._under_way: dict[int, asyncio.Task[None]] = {}
        # The results to write, by event number: True if delivered, False to end the lease, or a record of the failure.
        self._ended: dict[int, bool | FailedDelivery] = {}

    def __repr__(self) -> str:
        return f"<Outbox of {self._flows.store!r}: {len(self._under_way)} under way>"

    async def run(self, emit: Callable[[Any], Awaitable[Awaitable[None]]]) -> None:
        """Deliver events until cancelled.

        Raises:
            FlowError: if the `Flows` are not open.
        """
        self._flows.check_open()
        silence = self._flows.presence.listen(SENT, self._news.set)
        renewing = asyncio.create_task(self._renew(), name="renew leases of the outbox")
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
            renewing.cancel()
            await asyncio.wait([renewing])

    async def settle(self) -> None:
        """Write the results of deliveries, and end the leases on events whose delivery has not ended."""
        # The result of a delivery that has just ended arrives in the next loop iteration.
        await asyncio.sleep(0)
        for task in self._under_way.values():
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))
        try:
            await self._write_results()
        except JournalError as error:
            _log.warning("delivery results could not be written; the events will be delivered again: %s", error)

    async def _take(self) -> list[OutboxRow]:
        """Write the results of deliveries, then take more events, up to the limit."""
        try:
            await self._write_results()
            room = _ROOM - len(self._under_way)
            rows = await self._claim(room) if room else []
            if any(map(_is_suspect, rows)) and len(rows) + len(self._under_way) > 1:
                # This event may crash the process, so no other event is delivered at the same time.
                self._ended |= {row.number: False for row in rows}
                await self._idle()
                await self._write_results()
                rows = await self._claim(1)
        except JournalError as error:
            _log.warning("sent events cannot be delivered now: %s", error)
            return []
        return rows

    async def _claim(self, limit: int) -> list[OutboxRow]:
        now = self._now()
        rows = await self._store.take(limit, now=now, until=now + _LEASE)
        # This process's leases may have expired while the loop was blocked or the store could not be written.
        return [row for row in rows if row.number not in self._under_way and row.number not in self._ended]

    async def _idle(self) -> None:
        """Wait until no delivery is running, but no longer than a lease, so that other events are not blocked."""
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
        except Exception as error:  # noqa: BLE001  # after any error, the event is delivered again
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
        _log.warning("%r from %s is delivered again in %.1f s: %s", row.topic, row.id, delay, reason)
        self._ended[row.number] = FailedDelivery(row.number, failures, storable(error_text(error)), self._now() + delay)
        # If the delay is longer, the regular check finds the event.
        if delay < _LOOK:
            asyncio.get_running_loop().call_later(delay, self._news.set)

    async def _write_results(self) -> None:
        """Write the results of deliveries that have ended."""
        ended = dict(self._ended)
        if not ended:
            return
        await self._store.settle(
            delivered=[number for number, how in ended.items() if how is True],
            freed=[number for number, how in ended.items() if how is False],
            failed=[how for how in ended.values() if isinstance(how, FailedDelivery)],
        )
        for number in ended:
            del self._ended[number]

    async def _renew(self) -> None:
        """Renew the leases before they expire, until cancelled."""
        while True:
            await asyncio.sleep(_LEASE / 3)
            if numbers := [*self._under_way, *self._ended]:
                try:
                    await self._store.hold(numbers, until=self._now() + _LEASE)
                except JournalError as error:
                    _log.warning("leases are not renewed, and other processes may deliver the same events: %s", error)

    @cached_property
    def _now(self) -> Callable[[], float]:
        return clock_of(self._flows.store)


def _is_suspect(row: OutboxRow) -> bool:
    return row.error == UNENDED and row.failures >= _SUSPECT
