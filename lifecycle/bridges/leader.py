"""`Leader`: a source that tells this process when it is the one to do something, and when no longer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lifecycle.bridges.candidates import Candidate
from lifecycle.bridges.events import LeaderEvent
from lifecycle.bridges.leases import unanswered
from lifecycle.bridges.links import Link, NatsServer
from lifecycle.bridges.subjects import as_token
from lifecycle.errors import BridgeError, NotLeader

if TYPE_CHECKING:
    from lifecycle.bridges.links import Change
    from lifecycle.control.types import Emit

__all__ = ["Leader", "LeaderState"]

_log = logging.getLogger("lifecycle.bridges")

#: Characters of a name on the server.
_LONGEST = 200

#: Seconds until a write that got no answer is tried again.
_AGAIN = 0.2

#: Seconds that its route has to take the last event of one who is removed.
_LAST_WORDS = 1.0


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
        self._candidate: Candidate | None = None
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
        candidate = self._candidate
        return candidate.lease.token if candidate is not None and candidate.lease.is_ours else None

    def state(self) -> LeaderState:
        """What can be seen of it now."""
        candidate = self._candidate
        if candidate is None:
            return LeaderState(self.name, up=False, token=None, holder="")
        return LeaderState(self.name, candidate.link.is_up, self.token, candidate.vacancy.holder.place)

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
        while (candidate := self._candidate) is not None:
            try:
                return await candidate.lease.put(key, value, token)
            except NotLeader:
                candidate.doubt()
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
        if self._candidate is None:
            raise BridgeError(f"{key!r} cannot be read: {self!r} does not run")
        try:
            return await self._candidate.lease.key.get(key)
        except unanswered() as error:
            raise BridgeError(f"{self._server!r} does not say what is under {key!r}; try again") from error

    # -- for the router --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._closing = False
        self._stirred = asyncio.Event()
        link = await Link(self._server, f"lifecycle leader {self.name}", self._changed).__aenter__()
        candidate = Candidate(link, self.name, self._seconds, self._turned)
        try:
            await candidate.prepare()
        except BaseException:
            await link.close()
            raise
        self._candidate = candidate
        self._keeper = asyncio.get_running_loop().create_task(candidate.run(), name=f"leader {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the lease back and leave; after a stop the router does so when all that was emitted has ended."""
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            return
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            # What it failed with was told by `run`.
            await asyncio.gather(self._keeper, return_exceptions=True)
            await candidate.lease.release()
        finally:
            await candidate.link.close()

    async def run(self, emit: Emit) -> None:
        """Tell who leads until `close`; the router calls this.

        Raises:
            BridgeError: when the connection is gone for good; the router starts the leader anew.
        """
        assert self._candidate is not None
        assert self._keeper is not None
        closed = asyncio.get_running_loop().create_task(self._candidate.link.closed.wait())
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
        if self._candidate is not None:
            self._candidate.retire()
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
        assert self._candidate is not None
        self._candidate.retire()
        self._candidate.lease.forget()
        self._turned(0, "this leader was removed, or failed")
        self._closing = True
        try:
            async with asyncio.timeout(_LAST_WORDS):
                while self._news:
                    await emit(self._news.popleft())
        except TimeoutError:
            _log.warning("the leader %r could not tell that it is lost: its route has no room", self.name)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.up else logging.WARNING
        _log.log(level, "the leader %r is %s%s", self.name, "connected" if change.up else "cut off: ", change.reason)
        if change.up and self._candidate is not None:
            self._candidate.stir()

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
