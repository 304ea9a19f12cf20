"""`NatsBridge`: a source that brings events of other machines, and a relay that sends them ours.

Here is how it meets a router; what it does while it is connected stands in ``sessions``.
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

from lifecycle._async import wait_within
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
from lifecycle.errors import BridgeError, NotHandled
from lifecycle.events import HealthEvent

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

    from nats.js.api import ConsumerInfo

    from lifecycle.bridges.connection import Change
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.router import Router
    from lifecycle.control.types import Emit
    from lifecycle.events import Topical

__all__ = ["BridgeState", "NatsBridge", "Session"]


_log = logging.getLogger("lifecycle.bridges")

_BACKOFF = Backoff(initial=1.0, maximum=60.0)

#: Events of a pattern that may wait to be published; more wait in the router, before their time begins.
_WAITING = 1024

#: Comings and goings of the connection that nobody has been told of; older ones are no news.
_NEWS = 16


@dataclass(frozen=True, slots=True)
class BridgeState:
    """What can be seen of a bridge; the counts are since it was made."""

    name: str
    #: Whether the server can be talked to.
    up: bool
    #: Events from the bus that are here and not answered.
    in_flight: int
    #: Events from the bus that were handled, were given back to be delivered again, and became dead letters.
    handled: int
    given_back: int
    dead: int
    #: Events of ours that the bus has, and those among them that it had already.
    published: int
    duplicates: int


class NatsBridge:
    """Shares events with other machines through a stream of NATS JetStream; added to a router with ``add_source``.

    Events that match ``subscribe`` come from the bus, as `BusEvent`, each to one member of ``group``: to whichever
    process with that group has room. What was handled is acknowledged, and nothing before; what failed, or was not
    handled, is delivered again after ``backoff``, and after ``max_deliver`` failures it is put under ``dead/<topic>``.

    Events that match ``publish`` go to the bus before they go to their routes here: awaiting the `Delivery` tells that
    both have them. Those that match ``subscribe`` too go to the bus alone, and come back to one member of the group.
    What came from the bus does not go there again.

    Args:
        url: of the server, or a `NatsServer` where it takes more than that.
        stream: its stream, which is made if there is none.
        prefix: with what every subject begins.
        group: who shares the work; also the name of the bridge.
        subscribe: patterns of what comes.
        publish: patterns of what goes.
        max_in_flight: how many events of the bus this process has at a time, and how many of ours are on their way.
            Up to 1,024 more of each pattern wait for a place, within their thirty seconds. With 1 the whole group has
            one at a time, in strict order, failures included.
        ack_wait: seconds after which another member gets what a dead one had; a long handler is no reason.
        max_deliver: how often the handlers of an event may fail, in all processes of the group together. Deliveries
            that no handler failed do not count, such as those to a process that stops or is killed.
        backoff: how long after a failure; its figures for restarts have no meaning here.
        sync: wait until the server confirms that an event is done: slower, and fewer duplicates when it is killed.

    Raises:
        ValueError: for names that a server could not take, and figures that would deliver nothing.
        InvalidPattern: for a pattern that cannot be read.
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
        ack_wait: float = 15.0,
        max_deliver: int = 5,
        backoff: Backoff = _BACKOFF,
        sync: bool | None = None,
    ) -> None:
        self.name = group
        self._server = NatsServer.of(url)
        self._settings = Settings(
            stream=stream,
            prefix=prefix,
            group=group,
            subscribe=patterns_of("subscribe", subscribe),
            publish=patterns_of("publish", publish),
            max_in_flight=max_in_flight,
            ack_wait=ack_wait,
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
        # Whether the router has taken it out, so that what matches `publish` is no longer ours.
        self._left = False
        self._news: deque[Change] = deque(maxlen=_NEWS)
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"NatsBridge({self._server!r}, group={self.name!r})"

    def state(self) -> BridgeState:
        """What can be seen of it now."""
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
        """Have what matches ``publish``; the router calls this.

        Raises:
            ValueError: when it belongs to another router.
        """
        if self._router is router:
            return
        if self._router is not None:
            raise ValueError(f"{self!r} belongs to {self._router!r} already; make a second bridge")
        self._router = router
        patterns = self._settings.publish
        for at, pattern in enumerate(patterns):
            # The publisher bounds what is on its way. A lane that did would not let the others' time begin.
            router.relay(pattern, partial(self._send, earlier=patterns[:at]), concurrency=_WAITING)

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
        """Close a connection that failed; any other is needed until every event has come to its end."""
        if isinstance(error, Exception):
            await self._close()
        else:
            self._left = kind is not None

    async def run(self, emit: Emit) -> None:
        """Bring events until `close`; the router calls this.

        Raises:
            BridgeError: when the connection is gone for good; the router starts the bridge anew.
        """
        assert self._session is not None
        telling = asyncio.get_running_loop().create_task(self._tell(emit), name=f"bridge {self.name}: health")
        try:
            await self._session.run(emit)
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    def close(self) -> None:
        """Take nothing more from the bus; what is here is still handled, and what goes out still goes."""
        if self._session is not None:
            self._session.stop()

    async def settle(self) -> None:
        """Answer the last events and leave; the router calls this when all have come to their end."""
        session, self._session = self._session, None
        if session is not None:
            await session.settle()
        await self._publisher.leave()

    async def _close(self) -> None:
        session, self._session = self._session, None
        await self._publisher.leave()
        if session is not None:
            await session.abandon()

    # -- out ---------------------------------------------------------------------------------------------------------

    async def _send(self, event: Topical, earlier: tuple[Pattern, ...]) -> bool:
        """Give ``event`` to the bus, and say whether it goes on here."""
        topic = event.topic
        if self._left or _stays(event) or (earlier and any(each.matches(topic) for each in earlier)):
            raise NotHandled(f"no route here matches {topic!r}, and it does not go to the bus")
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
    """Whether it came from a bus, tells of the way to one, or is true on this machine alone."""
    return isinstance(event, (BusEvent, LeaderEvent)) or (
        isinstance(event, HealthEvent) and event.name.startswith("bridge/")
    )


#: Seconds that the last answers have to get out.
_FINAL_ANSWERS = 4.0

#: Seconds between two looks at the group's consumer, which other members and operators may change.
_LOOK = 5.0

_RETRY = Backoff(initial=0.1, maximum=2.0)


class Session:
    """What a bridge does while one client lives."""

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
        # Until when an operator has paused the consumer, as the server says it.
        self._paused = ""
        self._ending = asyncio.Event()
        # Looks at the consumer that have begun, and the last one of them that was answered.
        self._begun = self._seen = 0
        self._looking = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        """Messages that are here and not answered."""
        return self._messages.held + len(self._pull.waiting)

    async def prepare(self) -> None:
        """See that the server has what it takes.

        Raises:
            UnfitServer: when it cannot.
        """
        settings = self._settings
        await ensure_stream(self.connection, settings.stream, settings.prefix)
        if settings.subscribe:
            await ensure_consumer(self.connection, settings.stream, self._subscriptions)
            for work in (self._keep_alive(), self._watch()):
                task = asyncio.get_running_loop().create_task(work, name=f"bridge {settings.group}: in progress")
                self._background.append(task)

    async def run(self, emit: Emit) -> None:
        """Carry messages to the router until `stop`.

        Raises:
            BridgeError: when the client is closed for good.
        """
        loop = asyncio.get_running_loop()
        work: asyncio.Task[object] = loop.create_task(
            self._carry(emit) if self._settings.subscribe else self._ending.wait()
        )
        closed = loop.create_task(self.connection.closed.wait())
        try:
            await asyncio.wait([work, closed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Handlers are cancelled next: what they drop is for others.
            self._messages.end()
            raise
        finally:
            is_over = work.done()
            await _end(work, closed)
        if not is_over:
            raise BridgeError(f"the connection to {self.connection.server!r} is closed for good; it takes a new one")
        work.result()

    def renew(self) -> None:
        """The connection was lost, and is back."""
        self._pull.renew()

    def stop(self) -> None:
        """Take nothing more from the bus, and let `run` return."""
        self._messages.end()
        self._ending.set()
        self._pull.stop()

    async def settle(self) -> None:
        """Every delivery has ended: say the last words, and close the connection; all within a few seconds."""
        try:
            async with asyncio.timeout(_FINAL_ANSWERS):
                # What is on its way here would else be nobody's until its time is over.
                await self._pull.close()
                await self._nak_waiting()
                await self._messages.settle()
                await self.connection.drain()
        except TimeoutError:
            _log.warning("the bridge %r had no time to say what became of its events", self._settings.group)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close; what was not answered comes again."""
        tasks = [*self._messages.abandon(), *self._background]
        for task in self._background:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.connection.close()

    async def _carry(self, emit: Emit) -> None:
        """Pull and hand over; whatever the server says against it, begin anew."""
        tries = 0
        while not self._ending.is_set():
            try:
                await self._pull.open()
                while (message := await self._pull.next()) is not None:
                    tries = 0
                    await self._messages.take(message, emit)
            except _server_errors() as error:
                _log.info("the group %r gets nothing (%s); it is set up again", self._settings.group, error)
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
        """Keep up with changes of the group's consumer: other members' patterns, and an operator's pause."""
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
                _log.debug("the group %r cannot be looked at: %r", settings.group, error)

    async def _look(self) -> None:
        """Return after a look at the consumer that began after this call; calls at the same time share one."""
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
                "the group %r is paused until %s and gets nothing; resume it with: nats consumer resume %s %s",
                group,
                paused,
                stream,
                group,
            )
        elif self._paused and not paused:
            _log.info("the group %r is not paused any more", group)
        self._paused = paused

    async def _recover(self) -> None:
        """Make what is missing on the server."""
        settings = self._settings
        with suppress(*_server_errors()):
            if await ensure_stream(self.connection, settings.stream, settings.prefix):
                _log.warning("the stream %r was gone, with its events; it is made again", settings.stream)
            await ensure_consumer(self.connection, settings.stream, self._subscriptions)

    async def _unless_ending(self, work: Coroutine[object, object, None]) -> None:
        """Do ``work``, but no longer than until `stop`."""
        loop = asyncio.get_running_loop()
        task, ending = loop.create_task(work), loop.create_task(self._ending.wait())
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
    """What is not ours: the server's refusals, and that it cannot be talked to."""
    from nats.errors import Error as NatsError

    return (PullFailed, NatsError, TimeoutError, OSError)
