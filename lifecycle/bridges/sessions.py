"""One connection of a bridge, from its making to its end: stream and group on the server, messages in, answers out."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle._async import wait_within
from lifecycle.backoff import Backoff
from lifecycle.bridges.intake import Intake
from lifecycle.bridges.memories import Failures
from lifecycle.bridges.pulling import Pull, PullBroken
from lifecycle.bridges.streams import Subscriptions, ensure_consumer, ensure_stream
from lifecycle.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nats.js.api import ConsumerInfo

    from lifecycle.bridges.intake import Counts
    from lifecycle.bridges.links import Link
    from lifecycle.bridges.memories import Memory
    from lifecycle.bridges.publishing import Publisher
    from lifecycle.bridges.settings import Settings
    from lifecycle.control.types import Emit

__all__ = ["Session"]

_log = logging.getLogger("lifecycle.bridges")

#: Seconds that the last answers have to get out.
_LAST_WORDS = 4.0

#: Seconds between two looks at the group's consumer, which other members and operators may change.
_LOOK = 5.0

_BACKOFF = Backoff(initial=0.1, maximum=2.0)


class Session:
    """What a bridge does while one client lives."""

    def __init__(self, link: Link, settings: Settings, publisher: Publisher, counts: Counts, memory: Memory) -> None:
        self.link = link
        self._settings = settings
        self._subscriptions = Subscriptions(settings)
        self._intake = Intake(
            settings,
            publisher,
            self._subscriptions,
            counts=counts,
            memory=memory,
            look=self._look,
            failures=Failures(link, settings, memory),
            freed=self._pull_more,
        )
        self._pull = Pull(link, settings.stream, settings.group, self._room)
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
        return self._intake.held + len(self._pull.waiting)

    async def prepare(self) -> None:
        """See that the server has what it takes.

        Raises:
            UnfitServer: when it cannot.
        """
        settings = self._settings
        await ensure_stream(self.link, settings.stream, settings.prefix)
        if settings.subscribe:
            await ensure_consumer(self.link, settings.stream, self._subscriptions)
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
        closed = loop.create_task(self.link.closed.wait())
        try:
            await asyncio.wait([work, closed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Handlers are cancelled next: what they drop is for others.
            self._intake.end()
            raise
        finally:
            is_over = work.done()
            await _end(work, closed)
        if not is_over:
            raise BridgeError(f"the connection to {self.link.server!r} is closed for good; it takes a new one")
        work.result()

    def renew(self) -> None:
        """The connection was lost, and is back."""
        self._pull.renew()

    def stop(self) -> None:
        """Take nothing more from the bus, and let `run` return."""
        self._intake.end()
        self._ending.set()
        self._pull.stop()

    async def settle(self) -> None:
        """Every delivery has ended: say the last words, and close the connection; all within a few seconds."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                # What is on its way here would else be nobody's until its time is over.
                await self._pull.close()
                await self._give_back_waiting()
                await self._intake.settle()
                await self.link.drain()
        except TimeoutError:
            _log.warning("the bridge %r had no time to say what became of its events", self._settings.group)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close; what was not answered comes again."""
        tasks = [*self._intake.abandon(), *self._background]
        for task in self._background:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.link.close()

    async def _carry(self, emit: Emit) -> None:
        """Pull and hand over; whatever the server says against it, begin anew."""
        tries = 0
        while not self._ending.is_set():
            try:
                await self._pull.open()
                while (message := await self._pull.next()) is not None:
                    tries = 0
                    await self._intake.take(message, emit)
            except _told_by_server() as error:
                _log.info("the group %r gets nothing (%s); it is set up again", self._settings.group, error)
                await wait_within(_BACKOFF.delay(tries), self._ending)
                tries += 1
                await self._unless_ending(self._recover())
        await self._pull.close()
        await self._give_back_waiting()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ack_wait / 3)
            await self._intake.keep_alive(self._pull.waiting)

    async def _watch(self) -> None:
        """Keep up with changes of the group's consumer: other members' patterns, and an operator's pause."""
        settings = self._settings
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await self._look()
                if self._subscriptions.is_due():
                    await ensure_consumer(self.link, settings.stream, self._subscriptions)
            except BridgeError as error:
                _log.warning("%s", error)
            except _told_by_server() as error:
                _log.debug("the group %r cannot be looked at: %r", settings.group, error)

    async def _look(self) -> None:
        """Return after a look at the consumer that began after this call; calls at the same time share one."""
        begun = self._begun
        async with self._looking:
            if self._seen > begun:
                return
            self._begun = number = self._begun + 1
            info = await self.link.js.consumer_info(self._settings.stream, self._settings.group)
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
        with suppress(*_told_by_server()):
            if await ensure_stream(self.link, settings.stream, settings.prefix):
                _log.warning("the stream %r was gone, with its events; it is made again", settings.stream)
            await ensure_consumer(self.link, settings.stream, self._subscriptions)

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

    async def _give_back_waiting(self) -> None:
        waiting, self._pull.waiting = list(self._pull.waiting), type(self._pull.waiting)()
        await self._intake.give_back(waiting)

    def _room(self) -> int:
        return self._settings.max_in_flight - self._intake.held

    def _pull_more(self) -> None:
        self._pull.stir()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _told_by_server() -> tuple[type[Exception], ...]:
    """What is not ours: the server's refusals, and that it cannot be talked to."""
    from nats.errors import Error as NatsError

    return (PullBroken, NatsError, TimeoutError, OSError)
