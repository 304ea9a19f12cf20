"""A webhook source's inbox, which stores requests on disk until they are handled, so that none are lost in a crash.

`InboxDelivery` delivers the messages in the file to the handlers, and stores the results. Messages that this process
has accepted are delivered from memory, after the messages that were already in the file. The process reads the file
when it takes over the inbox, when a failed message is due again, and periodically, to find changes made by other
processes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._durations import duration, store_seconds
from lifecycle._owners import own_component
from lifecycle._util import error_text
from lifecycle.backoff import Backoff
from lifecycle.control.deliveries import emits_stored
from lifecycle.errors import Dropped, JournalError, NotHandled, Refused
from lifecycle.journal.queues import CachedCounts
from lifecycle.sources._inbox_store import WEBHOOKS, InboxStore, Message

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable

    from lifecycle._durations import DurationField
    from lifecycle.control import Emit
    from lifecycle.control.deliveries import Delivery
    from lifecycle.events import WebhookEvent

__all__ = ["Inbox", "InboxDelivery", "InboxState"]

_log = logging.getLogger("lifecycle.sources")

_BACKOFF = Backoff(initial=1.0, maximum=300.0)

#: Seconds between reads of the file. We have to poll, because other processes do not announce their changes.
_LOOK_EVERY = 1.0

#: Seconds between attempts to take a lock that another process holds. Waiting for the lock would block a thread.
_LOCK_EVERY = 0.1

#: The number of attempts after which we log that another process is delivering from the file.
_PATIENCE = 3

#: Seconds between attempts to write to a file if writing fails.
_PAUSE = 1.0

#: The time limit, in seconds, for writing the last results during a shutdown.
_LAST_WRITES = 4.0

#: The maximum number of characters in a stored error.
_LONGEST_ERROR = 1000

#: How long, in seconds, handled messages are collected so that they can be written together. Nothing waits for this.
_GATHER = 0.02


@dataclass(frozen=True, slots=True)
class Inbox:
    """Stores the requests of a `WebhookSource` in an SQLite file until they are handled.

    A request is on disk before the response 202 is sent, and stays there until its handler has returned, even during a
    debounce. Messages left behind by a crash or a shutdown are delivered again at the next start, in the order in which
    they were accepted. This means that messages are delivered at least once, so handlers should be idempotent.
    ``delivery().attempt`` is 1 only if no earlier attempt could have called a handler. After a shutdown, an attempt is
    counted only if its handler was called. After a crash, it is counted for every message that the process had in
    memory, because calls to handlers are not recorded on disk.

    If a handler raises an error, the event is delivered again after a delay. Other events are delivered in the
    meantime. After ``max_attempts`` failures, the event becomes a dead letter, which stays in the file until you replay
    or drop it with ``lifecycle inbox``. An event without a matching route becomes a dead letter immediately. An attempt
    interrupted by a crash is not considered a failure. An event that its route drops on purpose (``busy="drop"``,
    ``busy="restart"``) is considered done.

    Only one process at a time delivers messages from a file. Other processes can accept requests in the meantime. When
    the first process exits, one of the others takes over. The lock file is ``<path>-lock``.

    Args:
        path: The SQLite file, which is created if necessary.
        dedupe: How long, in seconds, to remember the id that the verifier returns (for Stripe and Slack, the signed
            time and body). A repeated request gets the same response as the first one and is not delivered again. 0
            turns this off.
        max_attempts: How many times a handler may fail before the event becomes a dead letter.
        backoff: The delays between attempts. Its limit on restarts is ignored.

    Raises:
        ValueError: if ``dedupe`` is negative or not finite, or ``max_attempts`` is less than 1.
    """

    path: str | os.PathLike[str]
    #: How long, in seconds, a request's id is remembered.
    dedupe: DurationField = duration(600.0)
    max_attempts: int = 5
    backoff: Backoff = _BACKOFF

    def __post_init__(self) -> None:
        store_seconds(self, "dedupe", least=0, finite=True)
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts!r} would never deliver anything; use 1 or more")


@dataclass(frozen=True, slots=True)
class InboxState:
    """The state of an open inbox."""

    #: The path of the file.
    name: str
    #: The number of messages in each state: ``waiting``, ``under_way`` and ``dead``. Empty before the first count.
    depths: dict[str, int]
    #: True if this process delivers the messages in the file.
    delivers: bool
    suspended: bool
    kind: str = "inbox"


class InboxDelivery:
    """Delivers the messages in one inbox, from `open` to `settle`. A source may run it several times in between."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        # We replace this each time the file is closed, because a source may be added again while the old store is still
        # closing.
        self._store = InboxStore(inbox.path, dedupe=inbox.dedupe)
        # The number of calls to `open` that have not been matched by a call to `leave`.
        self._users = 0
        # Messages that the router has not accepted yet. Messages found in the file are delivered first, followed by
        # messages that this process has accepted since then. To avoid losing messages, we remove each message only
        # after the router has accepted it.
        self._found: deque[Message] = deque()
        self._ready: deque[Message] = deque()
        # Messages that the router has accepted. Each task waits until a delivery ends and stores its result.
        self._followed: dict[asyncio.Task[None], Delivery] = {}
        # The ids of messages that the router dropped before calling their handlers.
        self._unused: list[int] = []
        # The ids of handled messages, and the task that writes them to the file. The task exists only while there
        # are such messages.
        self._done: list[int] = []
        self._writing: asyncio.Task[None] | None = None
        # True once this process delivers messages. Until then, it only stores accepted messages in the file.
        self._is_ours = False
        self._ending = False
        # If true, no messages are delivered, and accepted ones are kept.
        self._suspended = False
        # When to read the file next, in loop time.
        self._look_at = 0.0
        self._wake = asyncio.Event()
        # True if the last write to the file failed, so that repeated failures are logged only once.
        self._in_trouble = False
        self._tally = CachedCounts(lambda: self._store.run(WEBHOOKS.counts), self._announce_change)
        self._is_open = False

    @property
    def waiting(self) -> int:
        """The number of messages waiting for space in a lane."""
        return len(self._ready)

    def state(self) -> InboxState:
        """Return the state of the inbox. Its counts are at most a second old."""
        self._tally.renew()
        depths, taken = dict[str, int](), len(self._followed)
        if counted := self._tally.figures:
            waiting = max(0, counted["waiting"] - taken)
            depths = {"waiting": waiting, "under_way": taken, "dead": counted["dead"]}
        return InboxState(self._store.path, depths, self._is_ours, self._suspended)

    async def open(self) -> None:
        """Open the file, and start accepting requests.

        Raises:
            JournalError: if the file cannot be used. The message contains the reason.
        """
        if not self._users:
            self._wake = asyncio.Event()
        await self._store.open()
        self._users += 1
        if not self._is_open:
            self._is_open = True
            self._tally.open()
            self._owned = own_component(self)
            hooks.component_opened.announce(self, component=self)

    async def accept(self, event: WebhookEvent, key: str) -> None:
        """Store ``event`` on disk, unless it is already stored.

        Raises:
            JournalError: if ``event`` could not be written to the file.
        """
        ours = self._is_ours
        try:
            number = await self._store.accept(event, key, ours=ours)
        except JournalError as error:
            self._log_trouble(error)
            raise
        self._in_trouble = False
        self._tally.renew()
        if number is not None and ours:
            self._ready.append(Message(number, event))
            self._wake.set()

    async def run(self, emit: Emit) -> None:
        """Deliver messages until `end` is called. Deliveries that the router has already accepted continue."""
        self._ending = False
        emits_stored.set(True)
        try:
            await self._acquire()
            await self._deliver(emit)
        finally:
            # If the router is cancelled, it cancels this task before its handlers. From now on, any messages that it
            # drops stay in the file for the next start.
            self._ending = True

    def suspend(self, *, suspended: bool) -> None:
        """Suspend or resume the delivery of messages to the router."""
        self._suspended = suspended
        self._wake.set()

    def end(self) -> None:
        """Make `run` return once the router has accepted the current message."""
        self._ending = True
        self._wake.set()

    async def leave(self) -> None:
        """Stop accepting requests. If the router has no messages left, close the file."""
        self._users -= 1
        if not self._users and not self._followed:
            await self.settle()

    async def settle(self) -> None:
        """Store the results of deliveries that have ended, and close the file.

        All other messages are delivered at the next start.
        """
        try:
            with suppress(JournalError, TimeoutError):
                async with asyncio.timeout(_LAST_WRITES):
                    await self._wait_written()
                    unused = [*self._unused, *(message.id for message in (*self._found, *self._ready))]
                    if unused:
                        await self._store.run(lambda db: WEBHOOKS.release(db, *unused))
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._tasks():
            task.cancel()
        self._found.clear()
        self._ready.clear()
        self._unused.clear()
        self._is_ours = False
        store, self._store = self._store, InboxStore(self._inbox.path, dedupe=self._inbox.dedupe)
        try:
            if self._is_open:
                self._is_open = False
                self._owned.end()
                hooks.component_closed.announce(self, component=self)
                await self._tally.close()
        finally:
            await store.close()

    def _announce_change(self) -> None:
        hooks.component_changed.announce(self, component=self)

    # -- delivery --------------------------------------------------------------------------------------------------

    async def _deliver(self, emit: Emit) -> None:
        clock = asyncio.get_running_loop().time
        self._look_at = clock()
        while not self._ending:
            if self._suspended:
                await self._rest(math.inf)
            elif self._found:
                await self._send(emit, self._found)
            elif clock() >= self._look_at:
                await self._look()
            elif self._ready:
                await self._send(emit, self._ready)
            else:
                await self._rest()

    async def _acquire(self) -> None:
        """Wait until no other process is delivering from the file, and take over."""
        if self._is_ours:
            return
        tries = 0
        while not self._ending and not self._store.take_lock():
            tries += 1
            # During the first few attempts, the lock may be held by a command that only reads the file.
            if tries == _PATIENCE:
                _log.warning(
                    "another process is delivering from the inbox %s; this one takes over when it exits",
                    self._store.path,
                )
            await self._rest(_LOCK_EVERY)
        if not self._ending:
            await self._store.run(WEBHOOKS.release_all)
            # Messages accepted before this line are not delivered from memory. The next read of the file finds them.
            self._is_ours = True

    async def _look(self) -> None:
        """Read the messages that are due from the file."""
        clock = asyncio.get_running_loop().time
        if not self._store.has_lock():
            self._is_ours = False
            self._found.clear()
            self._ready.clear()
            await self._acquire()
        try:
            messages, wait = await self._store.due()
        except JournalError as error:
            self._log_trouble(error)
            self._look_at = clock() + _PAUSE
            return
        self._look_at = clock() + min(wait, _LOOK_EVERY)
        self._tally.renew()
        self._found.extend(messages)

    async def _send(self, emit: Emit, messages: deque[Message]) -> None:
        """Put the first of ``messages`` into its lane."""
        message = messages[0]
        delivery = await emit(message.event)
        messages.popleft()
        delivery.again(message.attempt)
        following = self._follow(message, delivery)
        task = start_task(following, name=f"inbox message {message.id}")
        self._followed[task] = delivery
        task.add_done_callback(self._followed.pop)

    async def _rest(self, seconds: float | None = None) -> None:
        """Wait for ``seconds``, or until `_wake` is set. By default, wait until it is time to read the file again."""
        self._wake.clear()
        until = self._look_at if seconds is None else asyncio.get_running_loop().time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until if until < math.inf else None):
                await self._wake.wait()

    # -- results ---------------------------------------------------------------------------------------------------

    async def _follow(self, message: Message, delivery: Delivery) -> None:
        """Wait until ``delivery`` ends, and store its result."""
        with suppress(Exception):
            await delivery
        error = delivery.error
        if isinstance(error, Dropped) and self._ending:
            # The router dropped the event because it is shutting down, so keep it in the file for the next start.
            if error.queued:
                self._unused.append(message.id)
            return
        if error is None or isinstance(error, Dropped):
            self._done.append(message.id)
            if self._writing is None:
                self._writing = start_task(self._write_done(), name="inbox messages done")
            return
        text, delay = error_text(error)[:_LONGEST_ERROR], None
        if _is_final(error) or message.failures + 1 >= self._inbox.max_attempts:
            _log.error("%s in the inbox is now a dead letter: %s", message.event.topic, text)
        else:
            delay = self._inbox.backoff.delay(message.failures)
        await self._write(lambda: self._store.end(message.id, text, delay=delay))
        if delay is not None:
            self._look_at = min(self._look_at, asyncio.get_running_loop().time() + delay)
            self._wake.set()

    async def _write_done(self) -> None:
        try:
            while self._done:
                await asyncio.sleep(_GATHER)
                done, self._done = self._done, []
                await self._write(lambda ids=done: self._store.run(lambda db: WEBHOOKS.done(db, *ids)))  # type: ignore[misc]  # a bound default
        finally:
            self._writing = None

    async def _write(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run ``step``. If the file cannot be written, keep trying until it can."""
        while True:
            try:
                await step()
            except JournalError as error:
                self._log_trouble(error)
                await asyncio.sleep(_PAUSE)
            else:
                self._tally.renew()
                return

    async def _wait_written(self) -> None:
        """Stop waiting for deliveries that have not ended, then wait until all results are on disk."""
        for task, delivery in self._followed.items():
            if not delivery.done:
                task.cancel()
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._followed, *([self._writing] if self._writing else ())]

    def _log_trouble(self, error: JournalError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            _log.error("%s", error)


def _is_final(error: BaseException) -> bool:
    """Return whether another attempt would end with the same error."""
    return isinstance(error, NotHandled) or (isinstance(error, Refused) and error.retry_after is None)
