"""`Outbox`: delivers events sent by tasks. Each event is stored in the same transaction as its task's success.

Several processes may deliver events from the same store. A process takes a lease on an event, renews the lease during
delivery, and deletes the event once it has been handled. If the process exits before that, another process delivers the
event, so an event may be delivered twice with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle._async import start_task, wait_within
from lifecycle._util import error_text, reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError, JournalError
from lifecycle.events.sources import Source
from lifecycle.flows.records import UNENDED, FailedDelivery, OutboxRow
from lifecycle.flows.stores.base import clock_of, storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["SENT", "Outbox", "SentEvent"]

_log = logging.getLogger("lifecycle.flows")

#: The message announcing that an event may be waiting for delivery.
SENT = "sent"

#: Seconds until a lease on an event expires.
_LEASE = 10.0
#: The maximum number of events being delivered at the same time.
_ROOM = 64
#: Seconds after which the store is checked even if no message arrives.
_LOOK = 5.0
#: After this many deliveries without a result, we suspect that the event crashes the process, and deliver it alone.
_SUSPECT = 20
#: The delay after a failed delivery.
_AGAIN = Backoff(initial=0.5, maximum=60.0)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that a task has sent."""

    topic: str
    data: Any
    #: The event's id, which is the same in every delivery.
    id: str


class _Flows(Protocol):
    """The part of `Flows` that an outbox uses."""

    store: Store
    presence: Presence

    @property
    def codec(self) -> Codec: ...


class Outbox(Source):
    """A router source that delivers the events sent by tasks. Create it with `Flows.outbox`.

    Once an event has been delivered, it is deleted. If the delivery fails or no route handles the event, it is retried
    after half a second, and then at increasing intervals of up to a minute. After ``max_attempts`` failures, the event
    becomes a dead letter, which stays in the store until you replay or drop it with ``lifecycle flows dead``. If only
    one process delivers events, they are delivered in the order in which they were stored, except for retries.
    """

    def __init__(self, flows: _Flows, max_attempts: int, check_open: Callable[[], None]) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {max_attempts!r}")
        self._flows, self._max_attempts, self._check_open = flows, max_attempts, check_open
        self._store = flows.store.outbox()
        self._news = asyncio.Event()
        # The tasks waiting for deliveries to finish, by event number.
        self._under_way: dict[int, asyncio.Task[None]] = {}
        # The results to write, by event number: True if delivered, False to give up the lease, or a record of the
        # failure.
        self._ended: dict[int, bool | FailedDelivery] = {}

    def __repr__(self) -> str:
        return f"<Outbox of {self._flows.store!r}: {len(self._under_way)} under way>"

    async def run(self, emit: Callable[[Any], Awaitable[Awaitable[None]]]) -> None:
        """Deliver events until cancelled.

        Raises:
            FlowError: if the `Flows` are not open.
        """
        self._check_open()
        silence = self._flows.presence.listen(SENT, self._news.set)
        renewing = start_task(self._renew(), name="renew leases of the outbox")
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
        """Write the results of finished deliveries, and give up the leases on all other events."""
        # The result of a finished delivery arrives in the next loop iteration.
        await asyncio.sleep(0)
        for task in self._under_way.values():
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))
        try:
            await self._write_results()
        except JournalError as error:
            _log.warning("could not write delivery results; the events will be delivered again: %s", error)

    async def _take(self) -> list[OutboxRow]:
        """Write the results of finished deliveries, then take more events, up to the limit."""
        try:
            await self._write_results()
            room = _ROOM - len(self._under_way)
            rows = await self._claim(room) if room else []
            if any(map(_is_suspect, rows)) and len(rows) + len(self._under_way) > 1:
                # This event may crash the process, so we don't deliver any other events at the same time.
                self._ended |= {row.number: False for row in rows}
                await self._idle()
                await self._write_results()
                rows = await self._claim(1)
        except JournalError as error:
            _log.warning("cannot deliver sent events now: %s", error)
            return []
        return rows

    async def _claim(self, limit: int) -> list[OutboxRow]:
        now = self._now()
        rows = await self._store.take(limit, now=now, until=now + _LEASE)
        # This process may still be delivering some of these events, because our leases may have expired while the loop
        # was blocked or the store could not be written to.
        return [row for row in rows if row.number not in self._under_way and row.number not in self._ended]

    async def _idle(self) -> None:
        """Wait until no deliveries are running.

        To avoid blocking other processes, this waits for at most one lease period.
        """
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
            self._under_way[row.number] = task = start_task(self._see(row, delivery), name=f"sent {row.id}")
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
            _log.error("%r from %s failed %d times and is now a dead letter: %s", row.topic, row.id, failures, reason)
            self._ended[row.number] = FailedDelivery(row.number, failures, storable(error_text(error)), None)
            self._news.set()
            return
        delay = _AGAIN.delay(failures - 1)
        _log.warning("delivery of %r from %s failed; retrying in %.1f s: %s", row.topic, row.id, delay, reason)
        self._ended[row.number] = FailedDelivery(row.number, failures, storable(error_text(error)), self._now() + delay)
        # If the delay is longer, the regular check finds the event.
        if delay < _LOOK:
            asyncio.get_running_loop().call_later(delay, self._news.set)

    async def _write_results(self) -> None:
        """Write the results of finished deliveries."""
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
                    _log.warning("could not renew leases, so other processes may deliver the same events: %s", error)

    @cached_property
    def _now(self) -> Callable[[], float]:
        return clock_of(self._flows.store)


def _is_suspect(row: OutboxRow) -> bool:
    return row.error == UNENDED and row.failures >= _SUSPECT
