"""The book of sessions: which member has the state of which session.

It is a pure sum: time is an argument, and who asks announces. Every operation takes the same time, however many
sessions there are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.workers.pool.settings import Sessions

__all__ = ["SessionBook"]


def _say_nothing(_session: str, _member: str) -> None:
    """Nobody wants to know of evictions."""


class SessionBook:
    """Which session is bound to which member.

    A session is bound to one member, a member has any number of sessions. A binding is forgotten ``ttl`` seconds after
    it was last used, with its member, and, above ``limit``, when no other has been unused for longer. While the
    session has a call it is pinned: then it is neither too old nor in excess.

    ``now`` is a time of one clock that never goes back.

    Args:
        settings: the mode, the ttl and the limit.
        evicted: called with the session and the member of each binding that had to go above the limit.
    """

    def __init__(self, settings: Sessions, *, evicted: Callable[[str, str], None] = _say_nothing) -> None:
        self._limit = settings.limit
        self._remembers_losses = settings.mode != "hint"
        self._evicted = evicted
        # How many calls each session has now, bound or not: one that was lost during a call may be bound anew.
        self._calls: Counter[str] = Counter()
        # A binding is in one of these, and there in the row of its member, whose values say nothing.
        self._pinned: dict[str, str] = {}
        self._idle = _Ageing(settings.ttl)
        self._members: dict[str, dict[str, None]] = {}
        # The sessions whose member has ended and who have not been told.
        self._lost = _Ageing(settings.ttl)

    def __len__(self) -> int:
        """How many are bound; with those that are too old until `expire` or `find` comes across them."""
        return len(self._pinned) + len(self._idle)

    def find(self, session: str, now: float) -> str | None:
        """The member that ``session`` is bound to; None if it is not, or no longer."""
        if (member := self._pinned.get(session)) is not None:
            return member
        if (member := self._idle.get(session, now)) is None:
            self._forget(session)
        return member

    def take_loss(self, session: str, now: float) -> str | None:
        """The member that ``session`` was lost with, told once; None if it was not, or the mode is ``"hint"``."""
        member = self._lost.get(session, now)
        self._lost.pop(session)
        return member

    def bind(self, session: str, member: str, now: float) -> None:
        """Bind ``session`` to ``member``, in place of any other; above the limit, others are evicted for it."""
        self.unbind(session)
        self._shrink(self._limit - 1, now)
        self._members.setdefault(member, {})[session] = None
        if session in self._calls:
            self._pinned[session] = member
        else:
            self._idle.put(session, member, now)

    def pin(self, session: str, now: float) -> None:
        """A call of ``session`` begins; it may be bound before or after that."""
        self._calls[session] += 1
        if (member := self._idle.get(session, now)) is not None:
            self._idle.pop(session)
            self._pinned[session] = member

    def unpin(self, session: str, now: float) -> None:
        """A call of ``session`` is over; when the last one is, its age is 0."""
        self._calls[session] -= 1
        if self._calls[session] > 0:
            return
        del self._calls[session]
        if (member := self._pinned.pop(session, None)) is not None:
            self._idle.put(session, member, now)
            self._shrink(self._limit, now)

    def unbind(self, session: str) -> None:
        """Forget ``session``, and also that it was lost; that there is nothing to forget is no error."""
        self._forget(session)
        self._lost.pop(session)

    def holds(self, member: str, now: float) -> bool:
        """Whether ``member`` has a session that is not too old."""
        return any(self.find(session, now) is not None for session in tuple(self._members.get(member, ())))

    def drop(self, member: str, now: float) -> tuple[str, ...]:
        """Forget the sessions of ``member``, which ends; those that are lost with it, in the order they were bound."""
        bound = tuple(self._members.get(member, ()))
        lost = tuple(session for session in bound if self.find(session, now) is not None)
        for session in lost:
            self._forget(session)
            if self._remembers_losses:
                self._lost.put(session, member, now)
        while len(self._lost) > self._limit:
            self._lost.pop(self._lost.oldest()[0])
        return lost

    def expire(self, now: float) -> tuple[str, ...]:
        """Forget the sessions that are too old, and say which, the oldest first."""
        old = tuple(self._idle.old(now))
        for session in old:
            self._forget(session)
        for session in tuple(self._lost.old(now)):
            self._lost.pop(session)
        return old

    def _shrink(self, most: int, now: float) -> None:
        """Forget the old and evict others until at most ``most`` are left, or those that are pinned."""
        if len(self) > most:
            self.expire(now)
        while len(self) > most and len(self._idle):
            session, member = self._idle.oldest()
            self._forget(session)
            self._evicted(session, member)

    def _forget(self, session: str) -> None:
        member = self._pinned.pop(session, None)
        if member is None and (member := self._idle.pop(session)) is None:
            return
        row = self._members[member]
        del row[session]
        if not row:
            del self._members[member]


class _Ageing:
    """Sessions with their members, in the order of their last use."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._entries: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, session: str, member: str, now: float) -> None:
        assert session not in self._entries, "it would keep its place in the row"
        self._entries[session] = member, now

    def get(self, session: str, now: float) -> str | None:
        """Its member, unless it is too old."""
        entry = self._entries.get(session)
        return None if entry is None or self._is_old(entry[1], now) else entry[0]

    def pop(self, session: str) -> str | None:
        """Its member, however old."""
        entry = self._entries.pop(session, None)
        return None if entry is None else entry[0]

    def oldest(self) -> tuple[str, str]:
        session = next(iter(self._entries))
        return session, self._entries[session][0]

    def old(self, now: float) -> Iterator[str]:
        """Those that are too old, the oldest first."""
        for session, (_, since) in self._entries.items():
            if not self._is_old(since, now):
                return
            yield session

    def _is_old(self, since: float, now: float) -> bool:
        # The one place that says so; the sum is that of a timer set for the end of the ttl, to the last bit.
        return now >= since + self._ttl
