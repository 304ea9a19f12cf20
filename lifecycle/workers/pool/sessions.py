"""A table that maps each session to the worker that holds its state.

The table does no I/O and does not read the clock. Instead, its methods take the current time as an argument. Each
operation takes constant time per affected session.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.workers.pool.settings import Sessions

__all__ = ["SessionTable"]


class SessionTable:
    """Keeps track of which sessions are bound to which workers.

    Each session is bound to one worker, and a worker can have many sessions. A binding is removed when its worker
    exits, or ``ttl`` seconds after its last use. When there are more than ``limit`` bindings, the least recently used
    one is evicted. While a session has a running call, it is pinned, which means that it neither expires nor is
    evicted.

    All ``now`` arguments must come from the same monotonic clock.

    Args:
        settings: The mode, ttl and limit.
        on_evict: A function to call with the session and the worker of each evicted binding.
    """

    def __init__(
        self, settings: Sessions, *, on_evict: Callable[[str, str], object] = lambda _session, _worker: None
    ) -> None:
        self._limit = settings.limit
        self._remembers_losses = settings.mode != "hint"
        self._on_evict = on_evict
        # The number of running calls per session. This includes sessions without a binding, because a session that is
        # lost during a call can be bound again.
        self._calls: Counter[str] = Counter()
        # Sessions with a running call, and their workers. Each binding is either here or in `_idle`.
        self._pinned: dict[str, str] = {}
        # Sessions without a running call, and their workers.
        self._idle = _Expiring(settings.ttl)
        # All bound sessions of each worker.
        self._by_worker: dict[str, dict[str, None]] = {}
        # Sessions whose worker has exited. A session is removed once its loss has been reported.
        self._lost = _Expiring(settings.ttl)

    def __len__(self) -> int:
        """The number of bindings, including those that have expired but have not been removed yet."""
        return len(self._pinned) + len(self._idle)

    def find(self, session: str, now: float) -> str | None:
        """Return the worker of ``session``, or None if the session is not bound or its binding has expired."""
        if (worker := self._pinned.get(session)) is not None:
            return worker
        if (worker := self._idle.get(session, now)) is None:
            self._forget(session)
        return worker

    def take_loss(self, session: str, now: float) -> str | None:
        """Return the worker that held ``session`` if the session was lost. Otherwise, return None.

        Each loss is only returned once.
        """
        worker = self._lost.get(session, now)
        self._lost.pop(session)
        return worker

    def bind(self, session: str, worker: str, now: float) -> None:
        """Bind ``session`` to ``worker``, replacing any earlier binding. If the table is full, evict other bindings."""
        self._forget(session)
        self._lost.pop(session)
        self._shrink(self._limit - 1, now)
        self._by_worker.setdefault(worker, {})[session] = None
        if session in self._calls:
            self._pinned[session] = worker
        else:
            self._idle.put(session, worker, now)

    def pin(self, session: str, now: float) -> None:
        """Record that a call has started in ``session``, whether or not the session is bound."""
        self._calls[session] += 1
        if (worker := self._idle.get(session, now)) is not None:
            self._idle.pop(session)
            self._pinned[session] = worker

    def unpin(self, session: str, now: float) -> None:
        """Record that a call in ``session`` has finished. The ttl starts once no call is running."""
        self._calls[session] -= 1
        if self._calls[session] > 0:
            return
        del self._calls[session]
        if (worker := self._pinned.pop(session, None)) is not None:
            self._idle.put(session, worker, now)
            self._shrink(self._limit, now)

    def holds(self, worker: str, now: float) -> bool:
        """Return True if ``worker`` has a session that has not expired."""
        return any(self.find(session, now) is not None for session in tuple(self._by_worker.get(worker, ())))

    def drop(self, worker: str, now: float) -> tuple[str, ...]:
        """Remove the sessions of ``worker``. Return those that had not expired, in the order they were bound."""
        bound = tuple(self._by_worker.get(worker, ()))
        lost = tuple(session for session in bound if self.find(session, now) is not None)
        for session in lost:
            self._forget(session)
            if self._remembers_losses:
                self._lost.put(session, worker, now)
        while len(self._lost) > self._limit:
            self._lost.pop(self._lost.oldest()[0])
        return lost

    def expire(self, now: float) -> tuple[str, ...]:
        """Remove the expired sessions and return them, oldest first."""
        expired = tuple(self._idle.expired(now))
        for session in expired:
            self._forget(session)
        for session in tuple(self._lost.expired(now)):
            self._lost.pop(session)
        return expired

    def _shrink(self, most: int, now: float) -> None:
        """Evict unpinned bindings until at most ``most`` bindings are left."""
        if len(self) > most:
            self.expire(now)
        while len(self) > most and len(self._idle):
            session, worker = self._idle.oldest()
            self._forget(session)
            self._on_evict(session, worker)

    def _forget(self, session: str) -> None:
        worker = self._pinned.pop(session, None)
        if worker is None and (worker := self._idle.pop(session)) is None:
            return
        row = self._by_worker[worker]
        del row[session]
        if not row:
            del self._by_worker[worker]


class _Expiring:
    """Sessions with their workers and expiry times, least recently used first."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._entries: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, session: str, worker: str, now: float) -> None:
        assert session not in self._entries, "otherwise it would keep its position"
        self._entries[session] = worker, now

    def get(self, session: str, now: float) -> str | None:
        """Return the worker of ``session``, or None if its entry has expired or does not exist."""
        entry = self._entries.get(session)
        return None if entry is None or self._has_expired(entry[1], now) else entry[0]

    def pop(self, session: str) -> str | None:
        """Remove the entry for ``session`` and return its worker, even if the entry has expired."""
        entry = self._entries.pop(session, None)
        return None if entry is None else entry[0]

    def oldest(self) -> tuple[str, str]:
        session = next(iter(self._entries))
        return session, self._entries[session][0]

    def expired(self, now: float) -> Iterator[str]:
        """Yield the expired sessions, oldest first."""
        for session, (_, since) in self._entries.items():
            if not self._has_expired(since, now):
                return
            yield session

    def _has_expired(self, since: float, now: float) -> bool:
        # Use the same formula as the timers that expire sessions. A different one could be off by a rounding error.
        return now >= since + self._ttl
