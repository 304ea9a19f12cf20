"""`NatsBridge`: a source that receives events from other machines and relays this process's events to them.

`NatsBridge` is the interface to the router. `Session` does the work for one connection: it sets up the stream and the
consumer, receives messages, and acknowledges or rejects them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from lifecycle._async import start_task, wait_within
from lifecycle._durations import in_seconds
from lifecycle._util import current_span
from lifecycle.backoff import Backoff
from lifecycle.bridges.cloudevents import to_binary
from lifecycle.bridges.connection import Connection, NatsServer
from lifecycle.bridges.consumer import Counts, MessageHandler, Pull, PullFailed
from lifecycle.bridges.dedupe import DedupeCache, Failures
from lifecycle.bridges.events import BusEvent, LeaderEvent
from lifecycle.bridges.publisher import Publisher, message_key
from lifecycle.bridges.streams import Settings, Subscriptions, ensure_consumer, ensure_stream, patterns_of
from lifecycle.bridges.subjects import as_subject
from lifecycle.control.router import add_relay
from lifecycle.errors import BridgeError, NotHandled
from lifecycle.events import HealthEvent
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

    from nats.js.api import ConsumerInfo

    from lifecycle._durations import Duration
    from lifecycle.bridges.connection import Change
    from lifecycle.control import Emit
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.router import Router
    from lifecycle.events import Topical

__all__ = ["BridgeState", "NatsBridge", "Session"]


_log = logging.getLogger("lifecycle.bridges")

_BACKOFF = Backoff(initial=1.0, maximum=60.0)

#: The maximum number of events per pattern that wait to be published. Any further events wait in the router's queue.
#: The timeout for publishing an event starts when it leaves that queue.
_WAITING = 1024

#: The maximum number of connection changes waiting to be emitted. Older changes are dropped.
_NEWS = 16


@dataclass(frozen=True, slots=True)
class BridgeState:
    """A snapshot of a bridge. The counts start when the bridge is created."""

    name: str
    #: Whether the server is reachable.
    up: bool
    #: The number of events from the bus that this process has not acknowledged yet.
    in_flight: int
    #: The number of events from the bus that were handled.
    handled: int
    #: The number of events from the bus that were returned to be delivered again.
    given_back: int
    #: The number of events from the bus that became dead letters.
    dead: int
    #: The number of events from this process that the bus accepted.
    published: int
    #: The number of published events that were already on the bus.
    duplicates: int


class NatsBridge(Source):
    """Shares events with other machines through a NATS JetStream stream. Add a bridge to a router with ``add_source``.

    Events that match ``subscribe`` arrive from the bus as `BusEvent`. Each event is delivered to one member of
    ``group``, that is, to one process in the group with free capacity. A message is acknowledged only once it has been
    handled. If a handler fails or no route handles the event, the message is delivered again after ``backoff``. After
    ``max_deliver`` failures, the event is published under ``dead/<topic>``.

    Events that match ``publish`` are sent to the bus before they are passed to local routes. Once the `Delivery` has
    finished, both the bus and the routes have received the event. Events that also match ``subscribe`` are only sent to
    the bus, and one member of the group receives them from there. Events from the bus are never sent back to it.

    Args:
        url: The server's URL, or a `NatsServer` for credentials, TLS or several servers.
        stream: The name of the stream on the server, which is created if it is missing.
        prefix: The first token of every subject.
        group: The name of the group of processes that share the work. It is also the bridge's name.
        subscribe: Patterns of events to receive.
        publish: Patterns of events to send.
        max_in_flight: The maximum number of events from the bus that can be in this process at the same time. The same
            limit applies to events being published. Up to 1,024 more events per pattern wait for capacity, but still
            time out after thirty seconds. If this is 1, the whole group handles one event at a time, in strict order
            even after failures.
        ack_wait: Seconds until a crashed member's events are delivered to another member. Long-running handlers do not
            trigger a new delivery.
        max_deliver: How many times an event's handlers may fail, counted across all processes in the group. Deliveries
            without a handler failure, such as those to a process that stops or is killed, are not counted.
        backoff: The delays after failures. Settings that only apply to restarts are ignored.
        sync: Wait for the server to confirm each acknowledgement. This is slower, but leads to fewer duplicates if the
            server is killed.

    Raises:
        ValueError: if the server would not accept a name, or if a limit would prevent all deliveries.
        InvalidPattern: if a pattern is invalid.
    """

    def __init__(  # noqa: PLR0913  # the names are promised
        self,
        url: str | NatsServer,
        *,
        stream: str = "EVENTS",
        prefix: str = "ev",
        group: str,
        subscribe: Iterable[str | Pattern] | str = (),
        publish: Iterable[str | Pattern] | str = (),
        max_in_flight: int = 64,
        ack_wait: Duration = 15.0,
        max_deliver: int = 5,
        backoff: Backoff = _BACKOFF,
        sync: bool | None = None,
    ) -> None:
        self.name: str = group
        self._server = NatsServer.of(url)
        self._settings = Settings(
            stream=stream,
            prefix=prefix,
            group=group,
            subscribe=patterns_of("subscribe", subscribe),
            publish=patterns_of("publish", publish),
            max_in_flight=max_in_flight,
            ack_wait=in_seconds("ack_wait", ack_wait, least=1, finite=True),
            max_deliver=max_deliver,
            backoff=backoff,
            sync=bool(sync),
        )
        self._source = f"/{socket.gethostname()}/{group}"
        self._publisher = Publisher(stream, prefix, max_in_flight)
        self._counts = Counts()
        self._dedupe = DedupeCache()
        self._session: Session | None = None
        self._router: Router | None = None
        # True if the router has removed the bridge. Events that match `publish` then stay in this process.
        self._left = False
        self._news: deque[Change] = deque(maxlen=_NEWS)
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"NatsBridge({self._server!r}, group={self.name!r})"

    def state(self) -> BridgeState:
        """Return a snapshot."""
        session, counts, publisher = self._session, self._counts, self._publisher
        return BridgeState(
            name=self.name,
            up=session is not None and session.connection.is_up,
            in_flight=0 if session is None else session.in_flight,
            handled=counts.handled,
            given_back=counts.given_back,
            dead=counts.dead,
            published=publisher.published,
            duplicates=publisher.duplicates,
        )

    # -- for the router --------------------------------------------------------------------------------------------

    def use_router(self, router: Router) -> None:
        """Relay the events that match ``publish``. The router calls this.

        Raises:
            ValueError: if the bridge already belongs to a different router.
        """
        if self._router is router:
            return
        if self._router is not None:
            raise ValueError(f"{self!r} already belongs to {self._router!r}; create a second bridge")
        self._router = router
        patterns = self._settings.publish
        for at, pattern in enumerate(patterns):
            # The publisher already limits the number of events in flight. If we limited the lane instead, each event's
            # timeout would start too late.
            add_relay(router, pattern, partial(self._send, earlier=patterns[:at]), concurrency=_WAITING)

    async def __aenter__(self) -> Self:
        self._left = False
        self._stirred = asyncio.Event()
        if self._session is not None:
            await self._session.settle()
        connection = await Connection(self._server, f"lifecycle {self.name}", self._changed).__aenter__()
        session = Session(connection, self._settings, self._publisher, self._counts, self._dedupe)
        try:
            await session.prepare()
            await self._publisher.use(connection)
        except BaseException:
            await session.abandon()
            raise
        self._session = session
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection if there was a failure. Otherwise, it stays open until all deliveries have finished."""
        if isinstance(error, Exception):
            await self._close()
        else:
            self._left = kind is not None

    async def run(self, emit: Emit) -> None:
        """Emit events from the bus until `close` is called. The router calls this.

        Raises:
            BridgeError: if the connection is closed permanently. The router then restarts the bridge.
        """
        assert self._session is not None
        telling = start_task(self._tell(emit), name=f"bridge {self.name}: health")
        try:
            await self._session.run(emit)
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    def close(self) -> None:
        """Stop receiving events from the bus.

        Events that have already arrived are still handled, and publishing continues.
        """
        if self._session is not None:
            self._session.stop()

    async def settle(self) -> None:
        """Send the last acknowledgements and disconnect. The router calls this once all deliveries have finished."""
        session, self._session = self._session, None
        if session is not None:
            await session.settle()
        await self._publisher.leave()

    async def _close(self) -> None:
        session, self._session = self._session, None
        await self._publisher.leave()
        if session is not None:
            await session.abandon()

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def _send(self, event: Topical, earlier: tuple[Pattern, ...]) -> bool:
        """Publish ``event``, and return whether local routes should also receive it."""
        topic = event.topic
        if self._left or _stays(event) or (earlier and any(each.matches(topic) for each in earlier)):
            raise NotHandled(f"no local route matches {topic!r}, and it is not published to the bus")
        subject = as_subject(topic, self._settings.prefix)
        headers, body = to_binary(event, self._source)
        span = current_span.get()
        if span:
            headers["traceparent"] = span
        await self._publisher.publish(subject, headers, body, message_key(subject, headers["ce-id"]))
        return not self._settings.is_subscribed(topic)

    # -- health ------------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.up else logging.WARNING
        _log.log(level, "the bridge %r is %s%s", self.name, "up" if change.up else "down: ", change.reason)
        self._publisher.changed(up=change.up)
        if change.up and self._session is not None:
            self._session.renew()
        self._news.append(change)
        self._stirred.set()

    async def _tell(self, emit: Emit) -> None:
        while True:
            while self._news:
                change = self._news.popleft()
                await emit(HealthEvent(f"bridge/{self.name}", change.up, change.reason))
            self._stirred.clear()
            await self._stirred.wait()


def _stays(event: Topical) -> bool:
    """Return whether ``event`` came from a bus, describes a bridge, or only concerns this process."""
    return isinstance(event, (BusEvent, LeaderEvent)) or (
        isinstance(event, HealthEvent) and event.name.startswith("bridge/")
    )


#: How many seconds to allow for sending the last acknowledgements.
_FINAL_ANSWERS = 4.0

#: Seconds between reads of the consumer's settings, which other members and operators may change.
_LOOK = 5.0

_RETRY = Backoff(initial=0.1, maximum=2.0)


class Session:
    """A bridge's work during one connection."""

    def __init__(
        self, connection: Connection, settings: Settings, publisher: Publisher, counts: Counts, dedupe: DedupeCache
    ) -> None:
        self.connection = connection
        self._settings = settings
        self._subscriptions = Subscriptions(settings)
        self._messages = MessageHandler(
            settings,
            publisher,
            self._subscriptions,
            counts=counts,
            dedupe=dedupe,
            look=self._look,
            failures=Failures(connection, settings, dedupe),
            freed=self._pull_more,
        )
        self._pull = Pull(connection, settings.stream, settings.group, self._room)
        self._background: list[asyncio.Task[None]] = []
        # When the operator's pause ends, as a timestamp from the server. Empty if the group is not paused.
        self._paused = ""
        self._ending = asyncio.Event()
        # The number of consumer reads that have begun, and the number of the last read that finished.
        self._begun = self._seen = 0
        self._looking = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        """The number of unacknowledged messages in this process."""
        return self._messages.held + len(self._pull.waiting)

    async def prepare(self) -> None:
        """Create the stream and the consumer if they are missing.

        Raises:
            UnfitServer: if the server cannot be used.
        """
        settings = self._settings
        await ensure_stream(self.connection, settings.stream, settings.prefix)
        if settings.subscribe:
            await ensure_consumer(self.connection, settings.stream, self._subscriptions)
            for work in (self._keep_alive(), self._watch()):
                task = start_task(work, name=f"bridge {settings.group}: in progress")
                self._background.append(task)

    async def run(self, emit: Emit) -> None:
        """Pass messages to the router until `stop` is called.

        Raises:
            BridgeError: if the client is closed permanently.
        """
        work: asyncio.Task[object] = start_task(self._carry(emit) if self._settings.subscribe else self._ending.wait())
        closed = start_task(self.connection.closed.wait())
        try:
            await asyncio.wait([work, closed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The handlers are about to be cancelled. Their messages are then delivered to other members.
            self._messages.end()
            raise
        finally:
            is_over = work.done()
            await _end(work, closed)
        if not is_over:
            raise BridgeError(f"the connection to {self.connection.server!r} is permanently closed; create a new one")
        work.result()

    def renew(self) -> None:
        """Request messages again after a reconnect."""
        self._pull.renew()

    def stop(self) -> None:
        """Stop receiving messages from the bus, and let `run` return."""
        self._messages.end()
        self._ending.set()
        self._pull.stop()

    async def settle(self) -> None:
        """Wait for deliveries to finish, send the last acknowledgements, and close.

        If this takes more than a few seconds, close immediately.
        """
        try:
            async with asyncio.timeout(_FINAL_ANSWERS):
                # Otherwise, other members would receive messages in transit only after `ack_wait`.
                await self._pull.close()
                await self._nak_waiting()
                await self._messages.settle()
                await self.connection.drain()
        except TimeoutError:
            _log.warning("the bridge %r did not have time to acknowledge all of its messages", self._settings.group)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close immediately. Unacknowledged messages are delivered again."""
        tasks = [*self._messages.abandon(), *self._background]
        for task in self._background:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.connection.close()

    async def _carry(self, emit: Emit) -> None:
        """Pull messages and handle them. After a server error, set up the stream and the consumer again."""
        tries = 0
        while not self._ending.is_set():
            try:
                await self._pull.open()
                while (message := await self._pull.next()) is not None:
                    tries = 0
                    await self._messages.take(message, emit)
            except _server_errors() as error:
                _log.info(
                    "the group %r is not receiving any events (%s); setting up its consumer again",
                    self._settings.group,
                    error,
                )
                await wait_within(_RETRY.delay(tries), self._ending)
                tries += 1
                await self._unless_ending(self._recover())
        await self._pull.close()
        await self._nak_waiting()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ack_wait / 3)
            await self._messages.keep_alive(self._pull.waiting)

    async def _watch(self) -> None:
        """Watch the group's consumer for new patterns from other members, and for pauses by an operator."""
        settings = self._settings
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await self._look()
                if self._subscriptions.is_due():
                    await ensure_consumer(self.connection, settings.stream, self._subscriptions)
            except BridgeError as error:
                _log.warning("%s", error)
            except _server_errors() as error:
                _log.debug("cannot read the consumer of the group %r: %r", settings.group, error)

    async def _look(self) -> None:
        """Read the consumer's settings. All calls that are waiting when a read begins share its result."""
        begun = self._begun
        async with self._looking:
            if self._seen > begun:
                return
            self._begun = number = self._begun + 1
            info = await self.connection.js.consumer_info(self._settings.stream, self._settings.group)
            self._subscriptions.read(info.config)
            self._note_pause(info)
            self._seen = number

    def _note_pause(self, info: ConsumerInfo) -> None:
        paused = (info.config.pause_until or "further notice") if info.paused else ""
        stream, group = self._settings.stream, self._settings.group
        if paused and paused != self._paused:
            _log.warning(
                "the group %r is paused until %s and receives nothing; resume it with: nats consumer resume %s %s",
                group,
                paused,
                stream,
                group,
            )
        elif self._paused and not paused:
            _log.info("the group %r is no longer paused", group)
        self._paused = paused

    async def _recover(self) -> None:
        """Create the stream and the consumer again if they are missing."""
        settings = self._settings
        with suppress(*_server_errors()):
            if await ensure_stream(self.connection, settings.stream, settings.prefix):
                _log.warning("the stream %r was missing, so its events are lost; creating it again", settings.stream)
            await ensure_consumer(self.connection, settings.stream, self._subscriptions)

    async def _unless_ending(self, work: Coroutine[object, object, None]) -> None:
        """Run ``work``, but cancel it when `stop` is called."""
        task, ending = start_task(work), start_task(self._ending.wait())
        try:
            await asyncio.wait([task, ending], return_when=asyncio.FIRST_COMPLETED)
            is_over = task.done()
        finally:
            await _end(task, ending)
        if is_over:
            task.result()

    async def _nak_waiting(self) -> None:
        waiting, self._pull.waiting = list(self._pull.waiting), type(self._pull.waiting)()
        await self._messages.nak(waiting)

    def _room(self) -> int:
        return self._settings.max_in_flight - self._messages.held

    def _pull_more(self) -> None:
        self._pull.stir()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _server_errors() -> tuple[type[Exception], ...]:
    """Return the exception types for rejected requests and for failures to reach the server."""
    from nats.errors import Error as NatsError

    return (PullFailed, NatsError, TimeoutError, OSError)
