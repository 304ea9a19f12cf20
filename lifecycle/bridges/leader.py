"""`Leader`: a source that emits an event when this process becomes the leader, and when it loses the leadership.

`Elector` takes the lease when it is free and keeps it. `LeaseWatcher` decides when to request the lease: as soon as its
holder gives it back or falls silent. It subscribes to the key, which a holder writes three times per lease. A watch of
the bucket would be a consumer on one node of a cluster, and would end silently with that node. A subscription is
restored with the connection.
"""

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
    from lifecycle.control import Emit

__all__ = ["Elector", "Leader", "LeaderState", "LeaseWatcher"]


_log = logging.getLogger("lifecycle.bridges")

#: Maximum characters of a name on the server.
_LONGEST = 200

#: Seconds until an unanswered write is tried again.
_AGAIN = 0.2

#: Seconds for the route of a removed leader to accept the last event.
_FINAL_ANSWERS = 1.0


@dataclass(frozen=True, slots=True)
class LeaderState:
    """A snapshot of a leader."""

    name: str
    #: Whether the server is reachable.
    up: bool
    #: The fencing token if this process leads, else None.
    token: int | None
    #: The leader as far as this process knows, as ``host:pid``; empty if there is none.
    holder: str


class Leader:
    """Elects one of all processes that have a `Leader` of this name; added to a router with ``add_source``.

    It emits ``leader/<name>/gained`` when this process becomes the leader, and ``leader/<name>/lost`` when it loses the
    leadership, both as `LeaderEvent`. The leader has a lease on the server, which it renews three times per period. If
    a leader dies or is cut off, another follows about a second after the lease has ended. On a clean stop, it emits the
    loss, waits for its handlers, and gives the lease back. Another then follows immediately.

    A leader that cannot renew its lease gives up before the lease ends, by its own clock. A process that was suspended
    meanwhile has lost the lease before it does anything else: `token` is None, and `put` raises `NotLeader`. Include
    the token in every other action of a leader. The receiver can then refuse a token lower than the highest so far.

    Args:
        name: name of the leadership; one segment of a topic.
        url: the server's URL, or a `NatsServer` for credentials, TLS or several servers.
        lease: maximum seconds of silence of a leader. A cluster that has lost a node is silent for up to seven seconds.

    Raises:
        ValueError: for a name that is not a segment or is too long, and a lease of less than a second.
    """

    def __init__(self, name: str, url: str | NatsServer, *, lease: float = 15.0) -> None:
        if not name or "/" in name or len(as_token(name)) > _LONGEST:
            raise ValueError(
                f"{name[:40]!r} is not a leader's name; give a short word without a slash: it becomes part of a topic"
            )
        if not 1 <= lease < math.inf:
            raise ValueError(f"lease={lease!r} is too short to be renewed; give 1 second or more")
        self.name = name
        self._server = NatsServer.of(url)
        self._seconds = lease
        self._elector: Elector | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Events that were not emitted yet: at most a loss and the following gain.
        self._news: deque[LeaderEvent] = deque()
        # The token of the last `gained` without a `lost` after it.
        self._told_token = 0
        self._closing = False
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"Leader({self.name!r}, {self._server!r})"

    @property
    def token(self) -> int | None:
        """The fencing token, which grows with each leader; None if this process does not lead, by its own clock."""
        elector = self._elector
        return elector.lease.token if elector is not None and elector.lease.is_ours else None

    def state(self) -> LeaderState:
        """Return a snapshot."""
        elector = self._elector
        if elector is None:
            return LeaderState(self.name, up=False, token=None, holder="")
        return LeaderState(self.name, elector.connection.is_up, self.token, elector.watcher.holder.place)

    async def put(self, key: str, value: bytes, *, token: int | None = None) -> int:
        """Store ``value`` on the server, if this process is still the leader at the moment of the write.

        The server compares in the same step, and refuses the write if there is another leader. If the server does not
        answer, the write is repeated while this process has the lease.

        Args:
            key: a topic below the leader's name, such as ``last/run``.
            value: any bytes, up to the server's limit for a message.
            token: the token at the start of the work, so that its result is stored only if no other process has led
                since; None for the current token.

        Returns:
            The revision of the value; revisions only increase.

        Raises:
            NotLeader: if this process does not lead. The value may still have been written if an earlier answer was
                lost.
            Unpublishable: if the key is too long or the value too large.
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
        """Return the value that the last leader stored under ``key``, or None if there is none.

        Raises:
            BridgeError: if the server does not answer.
        """
        if self._elector is None:
            raise BridgeError(f"{key!r} cannot be read: {self!r} does not run")
        try:
            return await self._elector.lease.key.get(key)
        except unanswered() as error:
            raise BridgeError(f"{self._server!r} did not return {key!r}; try again") from error

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
        """Give the lease back and disconnect; after a stop, the router calls this when every delivery has ended."""
        elector, self._elector = self._elector, None
        if elector is None:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            # `run` has reported the error.
            await asyncio.gather(self._keeper, return_exceptions=True)
            await elector.lease.release()
        finally:
            await elector.connection.close()

    async def run(self, emit: Emit) -> None:
        """Emit changes of the leadership until `close`; called by the router.

        Raises:
            BridgeError: if the connection is closed for good; the router starts the leader again.
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
        """Give up the leadership; the lease is kept until running handlers have ended."""
        if self._elector is not None:
            self._elector.resign()
        self._turned(0, "this process stops")
        self._closing = True
        self._stirred.set()

    async def settle(self) -> None:
        """Do nothing; because of this method, the router leaves the source only when every delivery has ended."""

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
                raise BridgeError(f"the connection to {self._server!r} is closed permanently; a new one is needed")
            self._stirred.clear()
            await self._stirred.wait()

    async def _last_words(self, emit: Emit) -> None:
        """Emit the loss of a leader that was removed or has failed."""
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
            _log.warning("the leader %r could not emit its loss: its route is full", self.name)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.up else logging.WARNING
        _log.log(level, "the leader %r is %s%s", self.name, "connected" if change.up else "cut off: ", change.reason)
        if change.up and self._elector is not None:
            self._elector.stir()

    def _turned(self, token: int, reason: str) -> None:
        """Queue the event of a gain or loss; drop a loss and gain that were not emitted in time."""
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


#: Renewals per lease, and retries per lease after an unanswered renewal.
_RENEWALS, _TRIES = 3, 20


class Elector:
    """Gets the lease and keeps it, in turn.

    ``told`` gets the token after a gain, and 0 with the reason after a loss.
    """

    def __init__(self, connection: Connection, name: str, seconds: float, told: Callable[[int, str], None]) -> None:
        self.connection = connection
        self.lease: Final = Lease(connection, name, seconds)
        self.watcher: Final = LeaseWatcher(self.lease.key.subject)
        self._name = name
        self._told = told
        self._stirred = asyncio.Event()
        self._ending = False

    async def prepare(self) -> None:
        """Create the bucket if it is missing, and subscribe to the key.

        Raises:
            UnfitServer: if the server cannot be used.
        """
        await ensure_bucket(self.connection)
        await self.watcher.listen(self.connection)

    async def run(self) -> None:
        """Lead whenever possible, until cancelled, or until the leadership ends after `resign`."""
        while not self._ending:
            if await self._gained():
                self._told(self.lease.token, "")
                why = await self._held()
                self.lease.forget()
                self._told(0, why)
            elif not self._ending:
                await self.watcher.wait()

    def stir(self) -> None:
        """Request the lease again after a reconnect."""
        self.doubt()
        self.watcher.stir()

    def doubt(self) -> None:
        """Renew immediately, to find out why a write was refused."""
        self._stirred.set()

    def resign(self) -> None:
        """Do not lead again after this leadership; the lease is kept while `run` runs."""
        self._ending = True
        self.watcher.stir()

    async def _gained(self) -> bool:
        try:
            holder = await self.lease.take()
        except unanswered() as error:
            _log.debug("the leader %r cannot request its lease: %r", self._name, error)
            self.connection.missed(reason_of(error))
            return False
        self.connection.answered()
        self.watcher.saw(holder)
        return self.lease.is_ours

    async def _held(self) -> str:
        """Renew the lease as long as possible, and return the reason for the loss."""
        seconds = self.lease.seconds
        pause = seconds / _RENEWALS
        while True:
            await self._wait(min(pause, self.lease.left))
            if not self.lease.is_ours:
                return "it could not be renewed in time"
            try:
                # Even if the server is slow, the loss must be reported before the lease ends.
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

#: The part of a lease after which a silent holder may be dead: slightly more than one renewal.
_SILENCE = 0.4

#: Seconds between two reads of the key of a silent holder; the server ends leases once a second.
_LOOK = 0.25


class LeaseWatcher:
    """Follows the holder of the lease with the key ``subject``."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        #: The last known holder.
        self.holder: Holder = _NO_HOLDER
        # The time of the holder's last write.
        self._last_seen = 0.0
        self._stirred = asyncio.Event()

    async def listen(self, connection: Connection) -> None:
        """Receive writes to the key while ``connection`` is open."""
        await connection.client.subscribe(self.subject, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    def saw(self, holder: Holder) -> None:
        """Record ``holder`` as the current one."""
        if holder.id != self.holder.id:
            self._last_seen = asyncio.get_running_loop().time()
        self.holder = holder

    def stir(self) -> None:
        """Let `wait` return immediately."""
        self._stirred.set()

    async def wait(self) -> None:
        """Return when the lease may be free."""
        now = asyncio.get_running_loop().time
        pause = _LOOK
        while pause > 0 and not await wait_within(pause, self._stirred):
            pause = self._last_seen + self.holder.lease * _SILENCE - now()
        self._stirred.clear()

    async def _hear(self, message: Msg) -> None:
        if OPERATION in (message.headers or {}):
            self.holder = _NO_HOLDER
            self._stirred.set()
            return
        self.holder = read_holder(message.data)
        self._last_seen = asyncio.get_running_loop().time()
