"""`Leader`: a source that tells this process when it is the one to do something, and when no longer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from lifecycle._async import wait_within
from lifecycle._util import reason_of
from lifecycle.bridges.connection import Connection, NatsServer
from lifecycle.bridges.events import LeaderEvent
from lifecycle.bridges.lease import OPERATION, Holder, Lease, ensure_bucket, read_holder, unanswered
from lifecycle.bridges.subjects import as_token
from lifecycle.errors import BridgeError, NotLeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from lifecycle.bridges.connection import Change
    from lifecycle.control.types import Emit

__all__ = ["Elector", "Leader", "LeaderState", "LeaseWatcher"]


_log = logging.getLogger("lifecycle.bridges")

#: Characters of a name on the server.
_LONGEST = 200

#: Seconds until a write that got no answer is tried again.
_AGAIN = 0.2

#: Seconds that its route has to take the last event of one who is removed.
_FINAL_ANSWERS = 1.0


@dataclass(frozen=True, slots=True)
class LeaderState:
    """What can be seen of a leader."""

    name: str
    #: Whether the server can be talked to.
    up: bool
    #: The fencing token if this process leads, else None.
    token: int | None
    #: Who leads as far as is known here, as ``host:pid``; empty for nobody.
    holder: str


class Leader:
    """Of all processes that have a `Leader` of this name one leads; added to a router with ``add_source``.

    It emits ``leader/<name>/gained`` when this process leads, and ``leader/<name>/lost`` when no longer, both as
    `LeaderEvent`. To lead is to have a lease on the server, which is renewed three times in its time. A leader that
    dies, or is cut off, is followed by another when the lease is over, a second or so later; one that stops cleanly, at
    once: it tells that it is lost, its handlers end, and then the lease is given back.

    A leader that cannot renew gives up before the lease ends, by its own clock. One that was frozen meanwhile has lost
    it before it does anything else: `token` is None, and `put` raises `NotLeader`. Whatever else a leader does should
    carry the token, so that who it is done to can refuse a lower one than the highest that they have seen.

    Args:
        name: of what is led; one segment of a topic.
        url: of the server, or a `NatsServer` where it takes more than that.
        lease: seconds for which a leader may be silent. A cluster that has lost a node is silent for up to seven.

    Raises:
        ValueError: for a name that is no segment or too long, and a lease of less than a second.
    """

    def __init__(self, name: str, url: str | NatsServer, *, lease: float = 15.0) -> None:
        if not name or "/" in name or len(as_token(name)) > _LONGEST:
            raise ValueError(
                f"{name[:40]!r} is no name of a leader: it becomes one segment of a topic; give a short word, no slash"
            )
        if not 1 <= lease < math.inf:
            raise ValueError(f"lease={lease!r} is no time to keep renewing in; give a second or more")
        self.name = name
        self._server = NatsServer.of(url)
        self._seconds = lease
        self._elector: Elector | None = None
        self._keeper: asyncio.Task[None] | None = None
        # What was not emitted yet: at most that it is lost, and then gained again.
        self._news: deque[LeaderEvent] = deque()
        # The token of the last `gained` that no `lost` has followed.
        self._told_token = 0
        self._closing = False
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"Leader({self.name!r}, {self._server!r})"

    @property
    def token(self) -> int | None:
        """The fencing token if this process leads now, by its own clock, else None; it is higher for every leader."""
        elector = self._elector
        return elector.lease.token if elector is not None and elector.lease.is_ours else None

    def state(self) -> LeaderState:
        """What can be seen of it now."""
        elector = self._elector
        if elector is None:
            return LeaderState(self.name, up=False, token=None, holder="")
        return LeaderState(self.name, elector.connection.is_up, self.token, elector.watcher.holder.place)

    async def put(self, key: str, value: bytes, *, token: int | None = None) -> int:
        """Keep ``value`` on the server, if this process still leads at the moment when it is written there.

        The server compares in the same step: once there is another leader, nothing of this one is written. A server
        that does not answer is asked again as long as the lease is ours.

        Args:
            key: a topic of its own below the leader's name, such as ``last/run``.
            value: any bytes, up to the server's limit for a message.
            token: with which the work was begun whose result this is, so that it counts only if nobody else has led
                since; the present one if None.

        Returns:
            Its revision, which only grows.

        Raises:
            NotLeader: if it does not lead; where an answer was lost before, it may have been written all the same.
            Unpublishable: for too long a key, and too big a value.
        """
        token = self.token or 0 if token is None else token
        while (elector := self._elector) is not None:
            try:
                return await elector.lease.put(key, value, token)
            except NotLeader:
                elector.doubt()
                raise
            except unanswered() as error:
                _log.debug("%r: %r was not answered: %r", self, key, error)
                await asyncio.sleep(_AGAIN)
        raise NotLeader(f"{key!r} was not written: {self!r} does not run")

    async def get(self, key: str) -> bytes | None:
        """What the last leader that put something under ``key`` has put there; None if nobody has.

        Raises:
            BridgeError: when the server does not answer.
        """
        if self._elector is None:
            raise BridgeError(f"{key!r} cannot be read: {self!r} does not run")
        try:
            return await self._elector.lease.key.get(key)
        except unanswered() as error:
            raise BridgeError(f"{self._server!r} does not say what is under {key!r}; try again") from error

    # -- for the router --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._closing = False
        self._stirred = asyncio.Event()
        connection = await Connection(self._server, f"lifecycle leader {self.name}", self._changed).__aenter__()
        elector = Elector(connection, self.name, self._seconds, self._turned)
        try:
            await elector.prepare()
        except BaseException:
            await connection.close()
            raise
        self._elector = elector
        self._keeper = asyncio.get_running_loop().create_task(elector.run(), name=f"leader {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the lease back and leave; after a stop the router does so when all that was emitted has ended."""
        elector, self._elector = self._elector, None
        if elector is None:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            # What it failed with was told by `run`.
            await asyncio.gather(self._keeper, return_exceptions=True)
            await elector.lease.release()
        finally:
            await elector.connection.close()

    async def run(self, emit: Emit) -> None:
        """Tell who leads until `close`; the router calls this.

        Raises:
            BridgeError: when the connection is gone for good; the router starts the leader anew.
        """
        assert self._elector is not None
        assert self._keeper is not None
        closed = asyncio.get_running_loop().create_task(self._elector.connection.closed.wait())
        try:
            for task in (closed, self._keeper):
                task.add_done_callback(lambda _: self._stirred.set())
            await self._tell(emit, closed)
        finally:
            closed.cancel()
            await asyncio.wait([closed])
            if not self._closing:
                await self._last_words(emit)

    def close(self) -> None:
        """Lead no more; the lease is kept until the handlers that were called have ended."""
        if self._elector is not None:
            self._elector.resign()
        self._turned(0, "this process stops")
        self._closing = True
        self._stirred.set()

    async def settle(self) -> None:
        """Nothing is left to put down; for who has this, the router leaves a source only when all events have ended."""

    async def _tell(self, emit: Emit, closed: asyncio.Task[object]) -> None:
        assert self._keeper is not None
        while True:
            while self._news:
                await emit(self._news.popleft())
            if self._closing:
                return
            if self._keeper.done():
                self._keeper.result()
            if closed.done():
                raise BridgeError(f"the connection to {self._server!r} is closed for good; it takes a new one")
            self._stirred.clear()
            await self._stirred.wait()

    async def _last_words(self, emit: Emit) -> None:
        """Who was removed, or has failed, leads no more."""
        assert self._elector is not None
        self._elector.resign()
        self._elector.lease.forget()
        self._turned(0, "this leader was removed, or failed")
        self._closing = True
        try:
            async with asyncio.timeout(_FINAL_ANSWERS):
                while self._news:
                    await emit(self._news.popleft())
        except TimeoutError:
            _log.warning("the leader %r could not tell that it is lost: its route has no room", self.name)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.up else logging.WARNING
        _log.log(level, "the leader %r is %s%s", self.name, "connected" if change.up else "cut off: ", change.reason)
        if change.up and self._elector is not None:
            self._elector.stir()

    def _turned(self, token: int, reason: str) -> None:
        """It leads with ``token``, or for ``reason`` no longer: what was not told in time is not told at all."""
        if self._closing or token == self._told_token:
            return
        event = LeaderEvent(self.name, leading=bool(token), token=token or self._told_token, reason=reason)
        self._told_token = token
        if not token and self._news and self._news[-1].leading:
            self._news.pop()
        else:
            self._news.append(event)
        _log.info("%s, token %d%s%s", event.topic, event.token, reason and ": ", reason)
        self._stirred.set()


#: How often in a lease it is renewed; and in how many parts of a lease one without an answer is tried again.
_RENEWALS, _TRIES = 3, 20


class Elector:
    """Campaigns and holds, in turn; ``told`` gets the token when it leads, and 0 and the reason when no longer."""

    def __init__(self, connection: Connection, name: str, seconds: float, told: Callable[[int, str], None]) -> None:
        self.connection = connection
        self.lease: Final = Lease(connection, name, seconds)
        self.watcher: Final = LeaseWatcher(self.lease.key.subject)
        self._name = name
        self._told = told
        self._stirred = asyncio.Event()
        self._ending = False

    async def prepare(self) -> None:
        """See that the server has what it takes.

        Raises:
            UnfitServer: when it cannot.
        """
        await ensure_bucket(self.connection)
        await self.watcher.listen(self.connection)

    async def run(self) -> None:
        """Lead whenever it can be, until cancelled, or until it does not lead after `resign`."""
        while not self._ending:
            if await self._gained():
                self._told(self.lease.token, "")
                why = await self._held()
                self.lease.forget()
                self._told(0, why)
            elif not self._ending:
                await self.watcher.wait()

    def stir(self) -> None:
        """The connection is back: see how things stand, whoever leads."""
        self.doubt()
        self.watcher.stir()

    def doubt(self) -> None:
        """A write was refused: who leads finds out why."""
        self._stirred.set()

    def resign(self) -> None:
        """Lead no more after this time; the lease is kept as long as `run` runs."""
        self._ending = True
        self.watcher.stir()

    async def _gained(self) -> bool:
        try:
            holder = await self.lease.take()
        except unanswered() as error:
            _log.debug("the leader %r cannot ask for its lease: %r", self._name, error)
            self.connection.missed(reason_of(error))
            return False
        self.connection.answered()
        self.watcher.saw(holder)
        return self.lease.is_ours

    async def _held(self) -> str:
        """Renew as long as it goes; why it does not."""
        seconds = self.lease.seconds
        pause = seconds / _RENEWALS
        while True:
            await self._wait(min(pause, self.lease.left))
            if not self.lease.is_ours:
                return "it could not be renewed in time"
            try:
                # Whatever the server takes its time for: by then somebody has been told.
                async with asyncio.timeout(self.lease.left):
                    await self.lease.renew()
                self.connection.answered()
                pause = seconds / _RENEWALS
            except NotLeader as error:
                return str(error)
            except unanswered() as error:
                _log.debug("the leader %r gets no answer: %r", self._name, error)
                self.connection.missed(reason_of(error))
                pause = seconds / _TRIES

    async def _wait(self, seconds: float) -> None:
        if await wait_within(seconds, self._stirred):
            self._stirred.clear()


_NO_HOLDER = Holder("", "", 0.0)

#: The part of a lease after which a holder who has said nothing may be dead: one renewal, and a little.
_SILENCE = 0.4

#: Seconds between two looks at the lease of one that is silent; the server ends leases once a second.
_LOOK = 0.25


class LeaseWatcher:
    """Hears who holds the lease with the key ``subject``."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        #: Who has it, as far as is known.
        self.holder: Holder = _NO_HOLDER
        # When the holder was last heard of.
        self._heard = 0.0
        self._stirred = asyncio.Event()

    async def listen(self, connection: Connection) -> None:
        """Hear what is written to the key, as long as ``connection`` lives."""
        await connection.client.subscribe(self.subject, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    def saw(self, holder: Holder) -> None:
        """This one has the lease now."""
        if holder.id != self.holder.id:
            self._heard = asyncio.get_running_loop().time()
        self.holder = holder

    def stir(self) -> None:
        """It is worth a look, whatever was heard."""
        self._stirred.set()

    async def wait(self) -> None:
        """Return when the lease may be free."""
        now = asyncio.get_running_loop().time
        pause = _LOOK
        while pause > 0 and not await wait_within(pause, self._stirred):
            pause = self._heard + self.holder.lease * _SILENCE - now()
        self._stirred.clear()

    async def _hear(self, message: Msg) -> None:
        if OPERATION in (message.headers or {}):
            self.holder = _NO_HOLDER
            self._stirred.set()
            return
        self.holder = read_holder(message.data)
        self._heard = asyncio.get_running_loop().time()
