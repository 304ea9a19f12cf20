"""What comes from the bus, on its way through the router and back as an answer to the bus.

A message is answered when its delivery has ended: acknowledged, given back with a delay, or ended for good once a dead
letter is on the bus. Until then the server hears every third of ``ack_wait`` that it is in good hands.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lifecycle.bridges.codec import from_binary
from lifecycle.bridges.letters import dead_letter
from lifecycle.bridges.subjects import as_topic
from lifecycle.errors import BridgeError, Dropped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from nats.aio.msg import Msg

    from lifecycle.bridges.publishing import Publisher
    from lifecycle.bridges.settings import Settings
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.types import Emit

__all__ = ["Counts", "Intake"]

_log = logging.getLogger("lifecycle.bridges")

#: Seconds after which what a stopping bridge had not handled goes to another.
_GIVEN_BACK = 0.1

#: Seconds for the server to confirm an acknowledgement, where that is wanted.
_CONFIRMED = 5.0

#: Events whose failures are remembered here.
_REMEMBERED = 10_000


@dataclass(slots=True)
class Counts:
    """What became of messages, over all connections of one bridge."""

    handled: int = 0
    given_back: int = 0
    dead: int = 0


class _Held:
    """A message that has not been answered."""

    __slots__ = ("attempt", "message")

    def __init__(self, message: Msg, attempt: int) -> None:
        # The latest of its kind: an answer to an older delivery of the same event would be too late.
        self.message = message
        self.attempt = attempt


class Intake:
    """Carries messages to the router, and holds them until they are answered; of one connection."""

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        counts: Counts,
        failures: dict[int, int],
        freed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._counts = counts
        # By the number that the stream gave them.
        self._held: dict[int, _Held] = {}
        # The server counts deliveries, but starts again when it was killed: what failed here is remembered here.
        self._failures = failures
        self._freed = freed
        self._wants = lru_cache(4096)(settings.is_subscribed)
        # Each waits for the end of one delivery.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Whether what is dropped from now on was dropped because the program ends.
        self.ending = False

    @property
    def held(self) -> int:
        """Messages that were taken and not answered."""
        return len(self._held)

    async def take(self, message: Msg, emit: Emit) -> None:
        """Give ``message`` to the router; returns when that has it."""
        known = message.metadata
        number = known.sequence.stream
        if number in self._held:
            # It was thought lost, as we were asleep: the first delivery of it still goes on.
            self._held[number].message = message
            return
        topic = as_topic(message.subject, self._settings.prefix)
        if not self._wants(topic):
            await _said(message.ack())
            self._freed()
            return
        attempt = max(known.num_delivered, self._failures.get(number, 0) + 1)
        held = self._held[number] = _Held(message, attempt)
        if attempt > self._settings.max_deliver:
            self._spawn(number, self._bury(number, held, topic, "whoever had it never answered: stopped or died"))
            return
        try:
            name = f"{self._settings.stream}/{number}"
            event = from_binary(topic, message.headers or {}, message.data, id=name, attempt=attempt)
        except ValueError as error:
            self._spawn(number, self._bury(number, held, topic, f"it cannot be read: {error}", readable=False))
            return
        delivery = await emit(event)
        delivery.again(attempt)
        self._spawn(number, self._follow(number, held, topic, delivery))

    async def keep_alive(self) -> None:
        """Tell the server again and again that what is held is being worked on."""
        while True:
            await asyncio.sleep(self._settings.ack_wait / 3)
            for held in list(self._held.values()):
                await _said(held.message.in_progress())

    async def settle(self) -> None:
        """Every delivery has ended: answer what can be answered, and give the rest back."""
        self.ending = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.give_back(held.message for held in self._held.values())
        self._held.clear()

    def abandon(self) -> list[asyncio.Task[None]]:
        """There is no time to wait; what is not answered is delivered again when its time is over."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    @staticmethod
    async def give_back(messages: Iterable[Msg]) -> None:
        """Let others have ``messages`` soon."""
        for message in list(messages):
            await _said(message.nak(delay=_GIVEN_BACK))

    # -- the end of a delivery ---------------------------------------------------------------------------------------

    def _spawn(self, number: int, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"event {number} of {self._settings.stream}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, number: int, held: _Held, topic: str, delivery: Delivery) -> None:
        with suppress(Exception):
            await delivery
        error = delivery.error
        if isinstance(error, Dropped) and self.ending:
            # Not by its route's own rules: another one handles it.
            return
        if error is None or isinstance(error, Dropped):
            await self._accept(number, held)
        elif held.attempt >= self._settings.max_deliver:
            await self._bury(number, held, topic, _told(error))
        else:
            await self._return(number, held, error)

    async def _accept(self, number: int, held: _Held) -> None:
        self._counts.handled += 1
        message = held.message
        await _said(message.ack_sync(timeout=_CONFIRMED) if self._settings.sync else message.ack())
        self._forget(number)

    async def _return(self, number: int, held: _Held, error: BaseException) -> None:
        """Have it delivered again, later each time."""
        self._counts.given_back += 1
        delay = self._settings.backoff.delay(held.attempt - 1)
        _log.info("event %d is given back for %.1f s: %s", number, delay, _told(error))
        if len(self._failures) >= _REMEMBERED:
            self._failures.pop(next(iter(self._failures)))
        self._failures[number] = held.attempt
        await _said(held.message.nak(delay=delay))
        del self._held[number]
        self._freed()

    async def _bury(self, number: int, held: _Held, topic: str, reason: str, *, readable: bool = True) -> None:
        """Put a dead letter on the bus, and only then end the message."""
        message, settings = held.message, self._settings
        _log.error("%s (event %d of %s) is a dead letter now: %s", topic, number, settings.stream, reason)
        if topic.partition("/")[0] != "dead":
            try:
                letter = dead_letter(message, topic, settings, reason=reason, attempts=held.attempt, readable=readable)
                await self._publisher.publish(*letter)
            except BridgeError as error:
                await self._return(number, held, error)
                return
        self._counts.dead += 1
        await _said(held.message.term())
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._failures.pop(number, None)
        del self._held[number]
        self._freed()


async def _said(answer: Awaitable[object]) -> None:
    """Send an answer; one that gets lost has the event delivered again, which is what is promised."""
    from nats.errors import Error as NatsError

    try:
        await answer
    except (NatsError, OSError) as error:
        _log.debug("an answer to the bus was lost: %r", error)


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # whatever a handler raises, its event has to be answered
        text = "what it says cannot be had"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
