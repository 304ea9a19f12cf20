"""`Leader`: a source that emits events when this process gains or loses the leadership.

`Elector` takes the lease when it is free, and then keeps renewing it. `LeaseWatcher` decides when to request the lease:
as soon as the current holder gives it back or stops renewing it. The watcher subscribes to the key, which the holder
writes three times per lease. We don't watch the bucket, because a watch is a consumer on one cluster node and silently
ends along with that node. A subscription, in contrast, is restored along with the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from lifecycle._async import start_task, wait_within
from lifecycle._durations import in_seconds
from lifecycle._util import reason_of
from lifecycle.bridges.connection import Connection, NatsServer
from lifecycle.bridges.events import LeaderEvent
from lifecycle.bridges.lease import BUCKET, OPERATION, Holder, Lease, ensure_bucket, read_holder, unanswered
from lifecycle.bridges.subjects import as_token
from lifecycle.errors import BridgeError, NotLeader
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from lifecycle._durations import Duration
    from lifecycle.bridges.connection import Change
    from lifecycle.control import Emit

__all__ = ["Elector", "Leader", "LeaderState", "LeaseWatcher"]


_log = logging.getLogger("lifecycle.bridges")

#: The maximum number of characters in a name on the server.
_LONGEST = 200

#: Seconds before retrying a write that got no response.
_AGAIN = 0.2

#: How many seconds the route may take to accept the last event from a removed leader.
_FINAL_ANSWERS = 1.0


@dataclass(frozen=True, slots=True)
class LeaderState:
    """A snapshot of a leader."""

    name: str
    #: Whether the server is reachable.
    up: bool
    #: The fencing token if this process is the leader, otherwise None.
    token: int | None
    #: The last known leader as ``host:pid``, or empty if unknown.
    holder: str


class Leader(Source):
    """Elects one of the processes that have a `Leader` with the same name. Add it to a router with ``add_source``.

    A `Leader` emits ``leader/<name>/gained`` when this process becomes the leader, and ``leader/<name>/lost`` when it
    loses the leadership. Both events are `LeaderEvent` objects. The leader holds a lease on the server, and renews it
    three times per ``lease`` seconds. If the leader dies or is cut off, another process becomes the leader about a
    second after the lease expires. On a clean shutdown, the leader emits the ``lost`` event, waits for its handlers,
    and gives the lease back. Another process can then become the leader immediately.

    If a leader cannot renew its lease, it gives up the leadership before the lease expires according to its own clock.
    If a process is suspended for too long, it is no longer the leader when it continues: `token` is None, and `put`
    raises `NotLeader`. Include the token in everything else that the leader sends, so that receivers can reject a token
    that is lower than the highest one they have seen.

    Args:
        name: The name of the leadership, which must be a single topic segment.
        url: The server's URL, or a `NatsServer` for credentials, TLS or several servers.
        lease: How many seconds the leadership lasts without a renewal. Keep in mind that a cluster that has lost a node
            may not respond for up to seven seconds.

    Raises:
        ValueError: if the name is not a single segment or is too long, or if the lease is less than a second.
    """

    def __init__(self, name: str, url: str | NatsServer, *, lease: Duration = 15.0) -> None:
        if not name or "/" in name or len(as_token(name)) > _LONGEST:
            raise ValueError(f"a leader's name must be a short topic segment without a slash, got {name[:40]!r}")
        self.name: str = name
        self._server = NatsServer.of(url)
        self._seconds = in_seconds("lease", lease, least=1, finite=True)
        self._elector: Elector | None = None
        self._keeper: asyncio.Task[None] | None = None
        # The events that have not been emitted yet: at most one loss and the gain that follows it.
        self._news: deque[LeaderEvent] = deque()
        # The token in the last `gained` event, or 0 after a `lost` event.
        self._told_token = 0
        self._closing = False
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"Leader({self.name!r}, {self._server!r})"

    @property
    def token(self) -> int | None:
        """The fencing token, which increases with each new leader.

        None if this process has no valid lease according to its own clock.
        """
        elector = self._elector
        return elector.lease.token if elector is not None and elector.lease.is_ours else None

    def state(self) -> LeaderState:
        """Return a snapshot."""
        elector = self._elector
        if elector is None:
            return LeaderState(self.name, up=False, token=None, holder="")
        return LeaderState(self.name, elector.connection.is_up, self.token, elector.watcher.holder.place)

    async def put(self, key: str, value: bytes, *, token: int | None = None) -> int:
        """Store ``value`` on the server, provided that this process is still the leader when it is written.

        The server checks the leadership and writes the value in a single step. It rejects the write if another process
        is the leader. If the server does not respond, the write is retried while this process has the lease.

        Args:
            key: A topic below the leader's name, such as ``last/run``.
            value: The bytes to store, up to the server's message size limit.
            token: The token at the time the work started. The value is stored only if no other process has been the
                leader since then. The default is the current token.

        Returns:
            The value's revision. Revisions always increase.

        Raises:
            NotLeader: if this process is not the leader. If an earlier response was lost, the value may have been
            written anyway.
            Unpublishable: if the key is too long or the value is too large.
        """
        token = self.token or 0 if token is None else token
        while (elector := self._elector) is not None:
            try:
                return await elector.lease.put(key, value, token)
            except NotLeader:
                elector.doubt()
                raise
            except unanswered() as error:
                _log.debug("%r: writing %r got no response: %r", self, key, error)
                await asyncio.sleep(_AGAIN)
        raise NotLeader(f"{key!r} was not written: {self!r} is not running")

    async def get(self, key: str) -> bytes | None:
        """Return the value that was last stored under ``key``, or None if there is none.

        Raises:
            BridgeError: if the server does not respond.
        """
        if self._elector is None:
            raise BridgeError(f"{key!r} cannot be read: {self!r} is not running")
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
        self._keeper = start_task(elector.run(), name=f"leader {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the lease back and disconnect. On shutdown, the router calls this once all deliveries have finished."""
        elector, self._elector = self._elector, None
        if elector is None:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            # If this failed, `run` has already raised the error.
            await asyncio.gather(self._keeper, return_exceptions=True)
            await elector.lease.release()
        finally:
            await elector.connection.close()

    async def run(self, emit: Emit) -> None:
        """Emit leadership changes until `close` is called. The router calls this.

        Raises:
            BridgeError: if the connection is closed permanently. The router then restarts the leader.
        """
        assert self._elector is not None
        assert self._keeper is not None
        closed = start_task(self._elector.connection.closed.wait())
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
        """Give up the leadership, but keep the lease until running handlers have finished."""
        if self._elector is not None:
            self._elector.resign()
        self._turned(0, "this process stops")
        self._closing = True
        self._stirred.set()

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
                raise BridgeError(f"the connection to {self._server!r} is permanently closed; create a new one")
            self._stirred.clear()
            await self._stirred.wait()

    async def _last_words(self, emit: Emit) -> None:
        """Emit a ``lost`` event if this process was the leader, because the source was removed or has failed."""
        assert self._elector is not None
        self._elector.resign()
        self._elector.lease.forget()
        self._turned(0, "this leader was removed or has failed")
        self._closing = True
        try:
            async with asyncio.timeout(_FINAL_ANSWERS):
                while self._news:
                    await emit(self._news.popleft())
        except TimeoutError:
            _log.warning("the leader %r could not report losing the leadership: its route is full", self.name)

    # -- gaining and losing the leadership ----------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.up else logging.WARNING
        _log.log(level, "the leader %r is %s%s", self.name, "connected" if change.up else "cut off: ", change.reason)
        if change.up and self._elector is not None:
            self._elector.stir()

    def _turned(self, token: int, reason: str) -> None:
        """Queue an event after gaining or losing the leadership.

        If the leadership is lost before the gain is emitted, drop both events.
        """
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


#: How many times a lease is renewed in the time that it lasts, and how many times a renewal is tried in that time if
#: the server does not respond.
_RENEWALS, _TRIES = 3, 20


class Elector:
    """Acquires the lease whenever possible, and keeps it for as long as possible.

    ``told`` is called with the token when the lease is gained, and with 0 and the reason when it is lost.
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
            UnfitServer: if the server is not suitable.
        """
        await ensure_bucket(self.connection)
        await self.watcher.listen(self.connection)

    async def run(self) -> None:
        """Be the leader whenever possible, until this is cancelled or the leadership ends after `resign`."""
        while not self._ending:
            if await self._gained():
                self._told(self.lease.token, "")
                why = await self._held()
                self.lease.forget()
                self._told(0, why)
            elif not self._ending:
                await self.watcher.wait()

    def stir(self) -> None:
        """Request the lease again after the connection is restored."""
        self.doubt()
        self.watcher.stir()

    def doubt(self) -> None:
        """Renew the lease immediately, to find out why a write was rejected."""
        self._stirred.set()

    def resign(self) -> None:
        """Don't try to become the leader again. The current lease is kept until `run` ends."""
        self._ending = True
        self.watcher.stir()

    async def _gained(self) -> bool:
        try:
            holder = await self.lease.take()
        except unanswered() as error:
            _log.debug("the leader %r cannot request its lease: %r", self._name, error)
            self.connection.missed(reason_of(error))
            if self.connection.is_up:
                await self._restore()
            return False
        self.connection.answered()
        self.watcher.saw(holder)
        return self.lease.is_ours

    async def _restore(self) -> None:
        """Create the bucket again if it is missing, because a write to a missing bucket gets no response.

        Raises:
            UnfitServer: if the bucket cannot be used.
        """
        try:
            if await ensure_bucket(self.connection):
                _log.warning("the bucket %r was missing, so its values are lost; creating it again", BUCKET)
        except unanswered() as error:
            _log.debug("the leader %r cannot find its bucket: %r", self._name, error)

    async def _held(self) -> str:
        """Keep renewing the lease until it is lost, then return the reason."""
        seconds = self.lease.seconds
        pause = seconds / _RENEWALS
        while True:
            await self._wait(min(pause, self.lease.left))
            if not self.lease.is_ours:
                return "it could not be renewed in time"
            try:
                # Even if the server is slow, we have to report the loss before the lease expires.
                async with asyncio.timeout(self.lease.left):
                    await self.lease.renew()
                self.connection.answered()
                pause = seconds / _RENEWALS
            except NotLeader as error:
                return str(error)
            except unanswered() as error:
                _log.debug("the leader %r gets no response: %r", self._name, error)
                self.connection.missed(reason_of(error))
                pause = seconds / _TRIES

    async def _wait(self, seconds: float) -> None:
        if await wait_within(seconds, self._stirred):
            self._stirred.clear()


_NO_HOLDER = Holder("", "", 0.0)

#: The fraction of a lease after which a silent holder may be dead: slightly more than a renewal interval.
_SILENCE = 0.4

#: Seconds between reads of a silent holder's key. The server expires leases once per second.
_LOOK = 0.25


class LeaseWatcher:
    """Keeps track of which process holds the lease with the key ``subject``."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        #: The last known holder.
        self.holder: Holder = _NO_HOLDER
        # When the holder last wrote its key.
        self._last_seen = 0.0
        self._stirred = asyncio.Event()

    async def listen(self, connection: Connection) -> None:
        """Watch for writes to the key while ``connection`` is open."""
        await connection.client.subscribe(self.subject, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    def saw(self, holder: Holder) -> None:
        """Record ``holder`` as the current holder."""
        if holder.id != self.holder.id:
            self._last_seen = asyncio.get_running_loop().time()
        self.holder = holder

    def stir(self) -> None:
        """Make `wait` return immediately."""
        self._stirred.set()

    async def wait(self) -> None:
        """Wait until the lease may be free."""
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
