"""Assigns calls to workers, and keeps track of free slots, the queue for slots, and sessions.

When a slot becomes free, it is immediately assigned to the next waiting call, so it is never assigned to a caller that
has already given up.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.errors import PoolBusy, SessionLost
from lifecycle.workers.pool.sessions import SessionTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.workers.pool.records import CallSpec
    from lifecycle.workers.pool.settings import PoolSettings
    from lifecycle.workers.pool.worker import PoolWorker, WorkerSet

__all__ = ["Scheduler", "SlotQueue", "Waiter"]


class Scheduler:
    """A pool's scheduler, which assigns calls to workers.

    Args:
        pool: The sender of hooks.
        settings: The pool's settings.
        workers: The pool's workers.
        on_wait: A function to call when a call starts waiting, because the pool may need another worker.
    """

    def __init__(self, pool: Any, settings: PoolSettings, workers: WorkerSet, *, on_wait: Callable[[], object]) -> None:
        self.queue: SlotQueue = SlotQueue(settings.concurrency)
        #: A function that returns the error for rejected calls, or None while calls are accepted.
        self.refusal: Callable[[], Exception] | None = None
        self._sessions = SessionTable(settings.sessions, on_evict=self._evicted)
        self._pool = pool
        self._mode = settings.sessions.mode
        self._limit = settings.queue
        self._workers = workers
        self._on_wait = on_wait
        self._loop = asyncio.get_running_loop()

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Stop accepting calls. Queued and new calls fail with ``error()``."""
        if self.refusal is None:
            self.refusal = error
            for waiter in self.queue.waiters():
                self.queue.dismiss(waiter, error())

    # -- calls ------------------------------------------------------------------------------------------------------

    def take(self, session: str | None) -> PoolWorker | None:
        """Take a slot for a call in ``session``. Return the worker, or None if the call must wait.

        Raises:
            PoolClosed, PoolFailed: if calls are no longer accepted.
            SessionLost: if the session's worker has exited or, in mode ``"fail"``, is busy.
        """
        if self.refusal is not None:
            raise self.refusal()
        if session is None:
            return self.queue.take()
        now = self._loop.time()
        bound = self._bound(session, now)
        if bound is not None and self.queue.take(session, bound) is not None:
            self._hit(session, bound, now)
            return bound
        if bound is not None and self._mode == "strict":
            return None
        if bound is not None and self._mode == "fail":
            if self.queue.paused:
                return None
            raise _busy(session, bound)
        worker = self.queue.take(session)
        if worker is not None:
            self._bind(session, worker, now)
        return worker

    def wait(self, spec: CallSpec, future: asyncio.Future[Any], use: Callable[[PoolWorker], bool]) -> Waiter:
        """Queue a call. A caller that gives up before ``future`` is done must call `SlotQueue.leave`.

        Args:
            spec: The call.
            future: The future that receives an error if the call gets no slot.
            use: A function to call with the worker once the call gets one of its slots. If the function returns False,
                the call has failed, and the next call gets the slot.

        Raises:
            PoolBusy: if the queue is full.
        """
        self._check_limit(spec)
        session = spec.session

        def use_if_bound(worker: PoolWorker) -> bool:
            return (session is None or self._claim(waiter, session, worker)) and use(worker)

        waiter = Waiter(future, use_if_bound, session)
        if hooks.call_queued.receivers:
            hooks.call_queued.announce(self._pool, function=spec.function, session=session)
        wanted = None
        # In mode "fail", a call waits for the session's worker only while the pool is suspended.
        if session is not None and (self._mode == "strict" or (self._mode == "fail" and self.queue.paused)):
            wanted = self._bound(session, self._loop.time())
        self.queue.add(waiter, wanted)
        self._on_wait()
        return waiter

    def release(self, worker: PoolWorker, session: str | None) -> None:
        """Release a slot after a call in ``session``."""
        self.end_call(session)
        self.queue.release(worker)

    def end_call(self, session: str | None) -> None:
        """Unpin ``session`` after one of its calls. If the worker has exited, nothing else needs to be done."""
        if session is not None:
            self._sessions.unpin(session, self._loop.time())

    def resume(self) -> None:
        """Resume assigning slots after `SlotQueue.pause`.

        In mode ``"fail"``, waiting calls are treated like new calls: they fail if their worker is still busy.
        """
        self.queue.resume()
        if self._mode == "fail":
            for worker in self._workers:
                for waiter in self.queue.waiters(worker):
                    self.queue.dismiss(waiter, _busy(str(waiter.session), worker))

    # -- workers ----------------------------------------------------------------------------------------------------

    def hold(self, worker: PoolWorker) -> None:
        """Stop assigning calls to ``worker``, which is unhealthy, until it is offered again."""
        self.queue.withdraw(worker)
        if self._mode == "hint":
            self._sessions.drop(worker.id, self._loop.time())

    def is_needed(self, worker: PoolWorker) -> bool:
        """Return True if a session would be lost if ``worker`` exited, because the session cannot move."""
        return self._mode != "hint" and self._sessions.holds(worker.id, self._loop.time())

    def remove(self, worker: PoolWorker) -> None:
        """Remove ``worker``, which is exiting, and its sessions. Idempotent."""
        self.queue.withdraw(worker)
        now = self._loop.time()
        for session in self._sessions.drop(worker.id, now):
            hooks.session_lost.announce(self._pool, session=session, member=worker.id)
        for waiter in self.queue.waiters(worker):
            # This error reports the loss of the session, so the next call can start the session again.
            self._sessions.take_loss(waiter.session or "", now)
            self.queue.dismiss(waiter, _lost(waiter.session, worker.id))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _claim(self, waiter: Waiter, session: str, worker: PoolWorker) -> bool:
        """Return True if a call in ``session`` can use ``worker``. The session may now be bound to another worker."""
        now = self._loop.time()
        try:
            bound = self._bound(session, now)
            if bound is worker:
                self._hit(session, worker, now)
            elif bound is None or self._mode == "hint":
                self._bind(session, worker, now)
            elif self._mode == "strict":
                self.queue.add(waiter, bound)
                return False
            else:
                raise _busy(session, bound)
        except SessionLost as error:
            waiter.future.set_exception(error)
            return False
        return True

    def _check_limit(self, spec: CallSpec) -> None:
        queued = len(self.queue)
        # Check `free_capacity` last, because it iterates over all workers.
        if queued < self._limit or spec.patient or queued < self._limit + self._workers.free_capacity:
            return
        hooks.pool_saturated.announce(self._pool, queued=queued, function=spec.function)
        raise PoolBusy(
            f"{queued} calls are already waiting for a worker of {self._pool.name!r}, which is the maximum; "
            "retry later, or increase the pool's size or queue"
        )

    def _bound(self, session: str, now: float) -> PoolWorker | None:
        """Return the worker of ``session``, or None if the session is not bound. Raise SessionLost if it was lost."""
        worker = self._sessions.find(session, now)
        if worker is not None:
            return self._workers.by_id[worker]
        if (lost := self._sessions.take_loss(session, now)) is not None:
            raise _lost(session, lost)
        return None

    def _hit(self, session: str, worker: PoolWorker, now: float) -> None:
        self._sessions.pin(session, now)
        hooks.session_hit.announce(self._pool, session=session, member=worker.id)

    def _bind(self, session: str, worker: PoolWorker, now: float) -> None:
        before = self._sessions.find(session, now)
        self._sessions.pin(session, now)
        self._sessions.bind(session, worker.id, now)
        hooks.session_missed.announce(self._pool, session=session, member=before)
        hooks.session_bound.announce(self._pool, session=session, member=worker.id)

    def _evicted(self, session: str, worker: str) -> None:
        hooks.session_evicted.announce(self._pool, session=session, member=worker)


def _busy(session: str, worker: PoolWorker) -> SessionLost:
    return SessionLost(
        f"{worker.id!r}, which has the session {session!r}, is {worker.phase} and cannot accept a call now; "
        "to wait for it, use Sessions(mode='strict')"
    )


def _lost(session: str | None, worker: str) -> SessionLost:
    return SessionLost(f"the session {session!r} was lost when {worker!r} exited; create its state again")


# -- slots -----------------------------------------------------------------------------------------------------------


class Waiter:
    """A call waiting for a slot in a particular worker or in any worker.

    Args:
        future: A future that is done once the call has stopped waiting.
        use: A function to call with the worker once the call gets a slot. It returns False if the call does not use the
            slot.
        session: The call's session.
    """

    __slots__ = ("future", "number", "session", "use", "worker")

    def __init__(
        self, future: asyncio.Future[Any], use: Callable[[PoolWorker], bool], session: str | None = None
    ) -> None:
        self.future: asyncio.Future[Any] = future
        self.use: Callable[[PoolWorker], bool] = use
        self.session: str | None = session
        self.worker: PoolWorker | None = None
        #: The call's sequence number, in order of arrival.
        self.number: int = -1


class SlotQueue:
    """The workers' free slots, and the queue of calls waiting for a slot.

    The next call is assigned to the worker with the fewest calls. Among equals, the most recently used worker is
    chosen, so that surplus workers stay idle and can be stopped. Calls are served in order of arrival, but a call
    waiting for a particular worker does not delay others. Unless the queue is paused, no call waits while a slot that
    it could use is free. This class does no I/O and does not read the clock.

    Args:
        slots: The number of slots per worker.
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        #: True while no slots are being assigned.
        self.paused: bool = False
        # Workers with a free slot, grouped by their number of occupied slots. In each dict, the most recently used
        # worker comes last.
        self._free: tuple[dict[PoolWorker, None], ...] = tuple({} for _ in range(slots))
        self._offered: set[PoolWorker] = set()
        # Calls waiting for any worker, in order of arrival.
        self._anywhere: dict[Waiter, None] = {}
        # Calls waiting for a particular worker, in order of arrival.
        self._strict: dict[PoolWorker, dict[Waiter, None]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        """The number of waiting calls."""
        return len(self._anywhere) + (sum(map(len, self._strict.values())) if self._strict else 0)

    @property
    def anywhere(self) -> int:
        """The number of waiting calls that can use any worker."""
        return len(self._anywhere)

    def idle(self) -> Iterator[PoolWorker]:
        """Return the idle workers, starting with the one that has been idle the longest."""
        return iter(tuple(self._free[0]))

    def waiters(self, worker: PoolWorker | None = None) -> list[Waiter]:
        """Return the calls waiting specifically for ``worker``, or all waiting calls if ``worker`` is None."""
        if worker is not None:
            return list(self._strict.get(worker, ()))
        return [*self._anywhere, *(waiter for row in self._strict.values() for waiter in row)]

    # -- slots ------------------------------------------------------------------------------------------------------

    def take(self, session: str | None = None, worker: PoolWorker | None = None) -> PoolWorker | None:
        """Take a slot from ``worker`` or, by default, the best worker. Return None if no slot is free.

        This never overtakes a waiting call, because a slot is only free if no waiting call can use it.
        """
        if self.paused:
            return None
        if worker is None:
            for row in self._free:
                if row:
                    worker = next(reversed(row))
                    break
            else:
                return None
        elif not self._has_slot(worker):
            return None
        self._check_out(worker, session)
        return worker

    def release(self, worker: PoolWorker) -> None:
        """Release a slot, and immediately assign it to the next waiting call."""
        self._check_in(worker)
        self._serve(worker)

    def offer(self, worker: PoolWorker) -> None:
        """Start assigning calls to ``worker``. Idempotent."""
        if worker not in self._offered:
            self._offered.add(worker)
            if worker.leases < self._slots:
                self._free[worker.leases][worker] = None
                self._serve(worker)

    def withdraw(self, worker: PoolWorker) -> None:
        """Stop assigning calls to ``worker``. Calls waiting for it keep waiting. Idempotent."""
        if worker in self._offered:
            self._offered.remove(worker)
            if worker.leases < self._slots:
                del self._free[worker.leases][worker]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def add(self, waiter: Waiter, worker: PoolWorker | None = None) -> None:
        """Add ``waiter`` to the queue for ``worker``, or for any worker.

        A waiter that is added again keeps its place in the queue.
        """
        if waiter.number < 0:
            waiter.number = next(self._numbers)
        waiter.worker = worker
        row = self._anywhere if worker is None else self._strict.setdefault(worker, {})
        row[waiter] = None
        if worker is not None:
            self._serve(worker)

    def leave(self, waiter: Waiter) -> None:
        """Remove ``waiter``. Idempotent."""
        row = self._anywhere if waiter.worker is None else self._strict.get(waiter.worker, {})
        row.pop(waiter, None)
        if waiter.worker is not None and not row:
            self._strict.pop(waiter.worker, None)

    def dismiss(self, waiter: Waiter, error: Exception) -> None:
        """Remove ``waiter``, and set ``error`` on its future."""
        self.leave(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def pause(self) -> None:
        """Stop assigning slots until `resume` is called. Occupied slots stay occupied."""
        self.paused = True

    def resume(self) -> None:
        """Resume assigning slots. Waiting calls are served first."""
        self.paused = False
        for worker in [worker for row in self._free for worker in reversed(row)]:
            self._serve(worker)

    # -- assignment ---------------------------------------------------------------------------------------------------

    def _serve(self, worker: PoolWorker) -> None:
        """Assign the free slots of ``worker`` to the first calls that may use them."""
        while not self.paused and self._has_slot(worker):
            waiter = self._first(worker)
            if waiter is None:
                return
            self.leave(waiter)
            self._check_out(worker, waiter.session)
            if not waiter.use(worker):
                self._check_in(worker)

    def _first(self, worker: PoolWorker) -> Waiter | None:
        """Return the first call that may use a slot of ``worker``, skipping calls whose future is already done."""
        anyone, strict = (
            next((waiter for waiter in row if not waiter.future.done()), None)
            for row in (self._anywhere, self._strict.get(worker, {}))
        )
        if anyone is None or strict is None:
            return anyone or strict
        return anyone if anyone.number < strict.number else strict

    def _has_slot(self, worker: PoolWorker) -> bool:
        return worker in self._offered and worker.leases < self._slots

    def _check_out(self, worker: PoolWorker, session: str | None) -> None:
        del self._free[worker.leases][worker]
        worker.check_out(session)
        if worker.leases < self._slots:
            self._free[worker.leases][worker] = None

    def _check_in(self, worker: PoolWorker) -> None:
        if worker not in self._offered:
            worker.check_in()
            return
        if worker.leases < self._slots:
            del self._free[worker.leases][worker]
        worker.check_in()
        self._free[worker.leases][worker] = None
