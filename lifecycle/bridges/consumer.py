"""Messages from the bus: pulling them, passing them to the router, and acknowledging or rejecting them.

A message is answered once its delivery has finished. The answer acknowledges the message, requests another delivery
after a delay, or terminates the message because its dead letter is on the bus. Until then, the bridge reports progress
to the server three times per ``ack_wait``.

Only handler failures turn an event into a dead letter. We can't go by the number of deliveries, because the server also
counts messages that were prefetched and returned. If an event was delivered far more often than it failed, it may have
killed its process. However, another event in the process at the time could also have been the cause. We therefore
handle such events one at a time, and record a failure for each before it starts.

`Pull` requests as many messages as there is capacity for, and makes the next request before the last one is used up.
All messages arrive through one inbox. `Pull` raises `PullFailed` if the server is silent for a long time, if the
consumer is missing or if there is a new leader. The caller then restores the consumer and opens the pull again. We
don't use nats-py's ``fetch``, because it loses received messages when it is cancelled, and requests missing ones twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lifecycle._async import Condition, start_task, wait_within
from lifecycle._masking import error_masked
from lifecycle.backoff import Backoff
from lifecycle.bridges.cloudevents import from_binary
from lifecycle.bridges.dedupe import PastAttempts
from lifecycle.bridges.publisher import LONGEST_REASON, dead_letter
from lifecycle.bridges.subjects import as_topic
from lifecycle.errors import BridgeError, Dropped, Unpublishable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from lifecycle.bridges.connection import Connection
    from lifecycle.bridges.dedupe import DedupeCache, Failures, Key
    from lifecycle.bridges.events import BusEvent
    from lifecycle.bridges.publisher import DeadLetter, Publisher
    from lifecycle.bridges.streams import Settings, Subscriptions
    from lifecycle.control import Emit
    from lifecycle.control.deliveries import Delivery

__all__ = ["Counts", "MessageHandler", "Pull", "PullFailed"]


_log = logging.getLogger("lifecycle.bridges")

#: After this many deliveries without a failure, an event is handled alone.
_SUSPECT = 20

#: If no member is subscribed, an event becomes a dead letter after this many deliveries.
_UNWANTED = 20

#: After this many deliveries to members without a subscription, each further delivery is recorded. Recorded deliveries
#: don't make us suspect that the event kills its process.
_NOTED = 10

#: How long to delay the next delivery of an event that this process is not subscribed to. Another member may receive
#: it.
_ELSEWHERE = Backoff(initial=0.2, maximum=10.0)

#: The number of tokens in a reply subject that contains neither a domain nor an account.
_WORDS = 9

#: How many seconds the server may take to confirm an acknowledgement, if `sync` is set.
_CONFIRMED = 5.0


@dataclass(slots=True)
class Counts:
    """The number of messages with each result, across all of a bridge's connections."""

    handled: int = 0
    given_back: int = 0
    dead: int = 0


class _Held:
    """A message that has not been answered yet."""

    __slots__ = ("is_alone", "key", "message", "past", "topic")

    def __init__(self, message: Msg, key: Key, topic: str) -> None:
        # The latest delivery. The server ignores an answer to an earlier delivery of the same event.
        self.message = message
        self.key = key
        self.topic = topic
        self.past = PastAttempts()
        # Whether the event is running alone, with a failure recorded before it started.
        self.is_alone = False

    @property
    def attempt(self) -> int:
        return self.past.failures + 1


class MessageHandler:
    """Passes one connection's messages to the router, and keeps them until they are answered."""

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        subscriptions: Subscriptions,
        *,
        counts: Counts,
        dedupe: DedupeCache,
        failures: Failures,
        look: Callable[[], Awaitable[None]],
        freed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._counts = counts
        self._held: dict[Key, _Held] = {}
        self._dedupe = dedupe
        self._failures = failures
        self._subscriptions = subscriptions
        # A callback that reads the other members' patterns.
        self._look = look
        self._pull_more = freed
        self._wants = lru_cache(4096)(settings.is_subscribed)
        # Notified when an event is finished, and when the bridge is closing.
        self._changed = Condition()
        # Tasks that each wait for a delivery to finish.
        self._tasks: set[asyncio.Task[None]] = set()
        #: True if the program is shutting down, in which case dropped deliveries are not counted as failures.
        self.is_ending: bool = False

    def end(self) -> None:
        """From now on, attribute dropped deliveries to the program's shutdown instead of treating them as failures."""
        self.is_ending = True
        self._changed.notify_all()

    @property
    def held(self) -> int:
        """The number of received messages that have not been answered yet."""
        return len(self._held)

    async def take(self, message: Msg, emit: Emit) -> None:
        """Emit the event in ``message``, and return once the router has accepted it."""
        key, delivered = _known(message.reply)
        if key in self._held:
            # The server assumed that the message was lost while this process was suspended, but its first delivery is
            # still running.
            self._held[key].message = message
            return
        topic = as_topic(message.subject, self._settings.prefix)
        if self._dedupe.was_handled(key):
            await _said(message.ack())
            self._pull_more()
            return
        held = self._held[key] = _Held(message, key, topic)
        if not self._wants(topic):
            self._spawn(self._refuse(held, delivered))
            return
        if delivered > 1:
            held.past = await self._failures.past(key)
            past = held.past
            if delivered - past.failures - past.refused > _SUSPECT and past.failures < self._settings.max_deliver:
                await self._be_alone(held, delivered)
        event = self._read(held)
        if event is None:
            return
        delivery = await emit(event)
        delivery.again(held.attempt)
        self._spawn(self._follow(held, delivery))
        if held.is_alone:
            await self._wait_while(lambda: key in self._held)

    def _read(self, held: _Held) -> BusEvent | None:
        """Return the event in a message, or write a dead letter if the message cannot be read."""
        if held.past.failures >= self._settings.max_deliver:
            self._spawn(self._write_dead_letter(held, held.past.reason))
            return None
        message, name = held.message, f"{self._settings.stream}/{held.key[0]}"
        try:
            return from_binary(held.topic, message.headers or {}, message.data, id=name, attempt=held.attempt)
        except ValueError as error:
            self._spawn(self._write_dead_letter(held, f"it cannot be read: {error}", readable=False))
            return None

    async def _refuse(self, held: _Held, delivered: int) -> None:
        """Answer a message that does not match this member's subscriptions, but may match another member's."""
        topic, subject = held.topic, held.message.subject
        is_wide = self._subscriptions.is_ours(subject)
        elsewhere = self._subscriptions.is_elsewhere(topic)
        if not elsewhere and (is_wide or delivered > _UNWANTED):
            # Another member may have started since the last read.
            elsewhere = await self._may_be_elsewhere(topic)
        if not elsewhere and is_wide:
            # The consumer's filter can be wider than its members' patterns.
            await _said(held.message.ack())
        elif not elsewhere and delivered > _UNWANTED:
            await self._write_dead_letter(held, "no member of the group subscribes to it any longer")
            return
        else:
            if delivered % _NOTED == 0:
                past = await self._failures.past(held.key)
                await self._failures.note(held.key, past._replace(refused=delivered))
            await _said(held.message.nak(delay=_ELSEWHERE.delay(delivered - 1)))
        self._release(held)

    async def _may_be_elsewhere(self, topic: str) -> bool:
        """Return whether another member subscribes to ``topic``.

        If the server does not respond, assume that another member does subscribe.
        """
        from nats.errors import Error as NatsError

        try:
            await self._look()
        except (NatsError, TimeoutError, OSError) as error:
            _log.debug("cannot read the group's patterns: %r", error)
            return True
        return self._subscriptions.is_elsewhere(topic)

    async def _be_alone(self, held: _Held, delivered: int) -> None:
        """Wait until no other events are running, then record a failure in case this event kills the process."""
        _log.warning(
            "%s (event %d) was delivered %d times and failed %d times; it may kill its process, so it is handled alone",
            held.topic,
            held.key[0],
            delivered,
            held.past.failures,
        )
        await self._wait_while(lambda: len(self._held) > 1)
        held.is_alone = True
        reason = "its process stopped or died while handling only this event"
        await self._failures.note(held.key, held.past._replace(failures=held.attempt, reason=reason))
        if not self._failures.is_shared:
            # The next process cannot read our record, so it relies on the number of deliveries.
            held.past = PastAttempts(max(held.past.failures, delivered - _SUSPECT - 1), reason)

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        """Wait while ``condition`` is true. To avoid blocking on a slow handler, give up after ``ack_wait`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ack_wait):
                while condition() and not self.is_ending:
                    await self._changed.wait()

    async def keep_alive(self, waiting: Iterable[Msg]) -> None:
        """Report progress to the server for all unanswered messages, and for those in ``waiting``."""
        for message in [*waiting, *(held.message for held in self._held.values())]:
            await _said(message.in_progress())

    async def settle(self) -> None:
        """Send the remaining answers once all deliveries have finished, and return all other messages to the server."""
        self.end()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for held in self._held.values():
            if held.is_alone:
                # The event was stopped before it could fail, so remove the failure that was recorded in advance.
                await self._failures.note(held.key, held.past)
        await self.nak(held.message for held in self._held.values())
        self._held.clear()

    def abandon(self) -> list[asyncio.Task[None]]:
        """Stop without waiting. Unanswered messages are delivered again after ``ack_wait``."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    @staticmethod
    async def nak(messages: Iterable[Msg]) -> None:
        """Return ``messages`` to the server, to be delivered to other members immediately."""
        for message in list(messages):
            await _said(message.nak())

    # -- finished deliveries ------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = start_task(work, name=f"event for {self._settings.group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, held: _Held, delivery: Delivery) -> None:
        with suppress(Exception):
            await delivery
        error = delivery.error
        if isinstance(error, Dropped) and self.is_ending:
            # No route in this process handles the event, but one in another member does.
            return
        if error is None or isinstance(error, Dropped):
            await self._accept(held)
        elif held.attempt >= self._settings.max_deliver:
            await self._write_dead_letter(held, error_masked(error))
        else:
            await self._return(held, error_masked(error))

    async def _accept(self, held: _Held) -> None:
        self._counts.handled += 1
        message = held.message
        await _said(message.ack_sync(timeout=_CONFIRMED) if self._settings.sync else message.ack())
        self._forget(held)

    async def _return(self, held: _Held, reason: str) -> None:
        """Record a failure, and request another delivery after an increasing delay."""
        self._counts.given_back += 1
        if not held.is_alone:
            # If the server was killed, it has lost its delivery counts. In that case, we did not read this event's
            # failures when the event arrived.
            held.past = await self._failures.past(held.key)
        delay = self._settings.backoff.delay(held.past.failures)
        _log.info("%s (event %d) will be delivered again in %.1f s: %s", held.topic, held.key[0], delay, reason)
        note = held.past._replace(failures=held.attempt, reason=reason[:LONGEST_REASON])
        await self._failures.note(held.key, note)
        await _said(held.message.nak(delay=delay))
        self._release(held)

    async def _write_dead_letter(self, held: _Held, reason: str, *, readable: bool = True) -> None:
        """Publish a dead letter, and only then terminate the message."""
        message, topic, settings = held.message, held.topic, self._settings
        _log.error("%s (event %d of %s) is now a dead letter: %s", topic, held.key[0], settings.stream, reason)
        attempts = min(held.attempt, settings.max_deliver)
        if topic.partition("/")[0] != "dead":
            try:
                await self._write(
                    dead_letter(message, topic, settings, reason=reason, attempts=attempts, readable=readable)
                )
            except BridgeError as error:
                _log.warning("the dead letter for %s is not on the bus yet: %s", topic, error)
                await self._return(held, reason)
                return
        self._counts.dead += 1
        await _said(message.term())
        self._forget(held)

    async def _write(self, kinds: Iterable[DeadLetter]) -> None:
        """Publish the first of ``kinds`` that the bus accepts. If it accepts none, only log the event."""
        for letter in kinds:
            try:
                await self._publisher.publish(*letter)
            except Unpublishable as error:
                _log.warning("a dead letter is too large: %s", error)
            else:
                return

    def _forget(self, held: _Held) -> None:
        self._dedupe.handled(held.key)
        self._release(held)

    def _release(self, held: _Held) -> None:
        del self._held[held.key]
        self._changed.notify_all()
        self._pull_more()


def _known(reply: str) -> tuple[Key, int]:
    """Parse a message's reply subject, and return its sequence number, its time and its delivery count.

    nats-py's own parser reads more fields, and takes as long as a short handler.
    """
    # A reply subject contains $JS.ACK, the domain and account (from version 2.12 on), the stream, the consumer, the
    # delivery count, the sequence numbers in the stream and in the consumer, the time, and further values.
    words = reply.split(".")
    first = 4 if len(words) == _WORDS else 6
    return (int(words[first + 1]), words[first + 3]), int(words[first])


async def _said(answer: Awaitable[object]) -> None:
    """Send an answer. If the answer is lost, the server delivers the event again."""
    from nats.errors import Error as NatsError

    try:
        await answer
    except (NatsError, OSError) as error:
        _log.debug("an answer to the bus was lost: %r", error)


#: Seconds until a request expires on the server.
_EXPIRES = 30.0

#: Seconds between heartbeats when the server has no messages, and seconds of silence after which the pull fails.
_HEARTBEAT, _SILENCE = 2.0, 7.0

#: Seconds to wait for messages that the server has already sent.
_DRAINING = 1.0

#: The status codes of requests that ended normally: there were no messages, the request expired, or all messages were
#: delivered.
_USUAL = {"404", "408"}


class PullFailed(Exception):
    """Raised when the server will not send any more messages. The text is the server's last status."""


class Pull:
    """Requests as many messages as there is capacity for, and keeps them until they are taken."""

    def __init__(self, connection: Connection, stream: str, group: str, room: Callable[[], int]) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{group}"
        self._room = room
        #: Messages that have been received but not taken yet.
        self.waiting: deque[Msg] = deque()
        # The number of messages that have been requested but not received yet.
        self._wanted = 0
        self._stirred = asyncio.Event()
        self._last_seen = 0.0
        self._trouble = ""
        self._ending = False
        self._inbox = ""
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Start the pull, or restart it after `PullFailed`."""
        if self._subscription is None:
            self._inbox = self._connection.client.new_inbox()
            client = self._connection.client
            self._subscription = await client.subscribe(self._inbox, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        self._wanted, self._trouble = 0, ""
        self._last_seen = asyncio.get_running_loop().time()

    async def next(self) -> Msg | None:
        """Return the next message, or None once `stop` has been called.

        Raises:
            PullFailed: if no more messages will arrive until the pull is opened again.
        """
        while not self._ending:
            if self.waiting:
                return self.waiting.popleft()
            if self._trouble:
                raise PullFailed(self._trouble)
            self._stirred.clear()
            await self._ask()
            await self._listen()
        return None

    def stir(self) -> None:
        """Request more messages because there is free capacity."""
        self._stirred.set()

    def renew(self) -> None:
        """Request messages again over a new connection, since the server has forgotten the earlier requests."""
        if self._subscription is not None:
            self._trouble = "the connection was lost and restored"
            self._stirred.set()

    def stop(self) -> None:
        """Make `next` return None."""
        self._ending = True
        self._stirred.set()

    async def close(self) -> None:
        """Cancel pending requests. Messages that have already arrived stay in ``waiting``."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(Exception):
                async with asyncio.timeout(_DRAINING):
                    await subscription.drain()  # type: ignore[no-untyped-call]  # of nats-py

    async def _ask(self) -> None:
        """Request as many messages as there is capacity for, unless most of them have already been requested."""
        room = self._room() - len(self.waiting) - self._wanted
        if room <= 0 or room < self._wanted or not self._connection.is_up:
            return
        if not self._wanted:
            self._last_seen = asyncio.get_running_loop().time()
        self._wanted += room
        request = {"batch": room, "expires": int(_EXPIRES * 1e9), "idle_heartbeat": int(_HEARTBEAT * 1e9)}
        await self._connection.client.publish(self._subject, json.dumps(request).encode(), self._inbox)

    async def _listen(self) -> None:
        """Wait until a message arrives or capacity is freed.

        If the server has been silent for too long, make `next` fail.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _HEARTBEAT
        if await wait_within(_HEARTBEAT, self._stirred):
            return
        # If this process was suspended, it has missed the server's heartbeats.
        slept = clock() > until + 1.0
        if self._wanted and not slept and clock() - self._last_seen > _SILENCE:
            self._trouble = f"nothing received from the server for {_SILENCE:g} s"
            self._connection.missed(self._trouble, seconds=_SILENCE)

    async def _hear(self, message: Msg) -> None:
        self._last_seen = asyncio.get_running_loop().time()
        if message.reply.startswith("$JS.ACK."):
            self._wanted = max(0, self._wanted - 1)
            self.waiting.append(message)
        else:
            self._note(message.headers or {})
        self._stirred.set()

    def _note(self, said: dict[str, str]) -> None:
        """Process a status message, which shows whether a request has ended or is still active."""
        status, text = said.get("Status", ""), said.get("Description", "")
        if status in ("100", ""):
            return
        undelivered = said.get("Nats-Pending-Messages", "")
        self._wanted = max(0, self._wanted - int(undelivered)) if undelivered.isdigit() else 0
        if status not in _USUAL and "Batch Completed" not in text:
            self._trouble = f"{status} {text}".strip()
