"""Which worker of a pool gets which call: free slots, the queue for them, and the affinity of sessions.

A slot is handed to the next waiter in the same step in which it becomes free, so it is never on its way to a caller
that has left.
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
    """The assignment of calls to the workers of a pool.

    Args:
        pool: the sender of hooks.
        settings: those of the pool.
        workers: its workers.
        on_wait: called when a call begins to wait, since another worker may be needed.
    """

    def __init__(self, pool: Any, settings: PoolSettings, workers: WorkerSet, *, on_wait: Callable[[], object]) -> None:
        self.queue: SlotQueue = SlotQueue(settings.concurrency)
        #: Returns the error for calls once the pool ends; None as long as they are accepted.
        self.refusal: Callable[[], Exception] | None = None
        self._sessions = SessionTable(settings.sessions, on_evict=self._evicted)
        self._pool = pool
        self._mode = settings.sessions.mode
        self._limit = settings.queue
        self._workers = workers
        self._on_wait = on_wait
        self._loop = asyncio.get_running_loop()

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Accept no more calls: those that wait and those that come get an ``error``."""
        if self.refusal is None:
            self.refusal = error
            for waiter in self.queue.waiters():
                self.queue.dismiss(waiter, error())

    # -- calls ------------------------------------------------------------------------------------------------------

    def take(self, session: str | None) -> PoolWorker | None:
        """Take a slot for a call of ``session``; return its worker, or None if the call has to wait.

        Raises:
            PoolClosed, PoolFailed: if no more calls are accepted.
            SessionLost: if the worker of the session is gone, or, in mode ``"fail"``, busy.
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
        """Queue a call; its caller has to call `SlotQueue.leave` if it gives up while ``future`` is not done.

        Args:
            spec: the call.
            future: gets an error if the call will get no slot.
            use: called in its turn with a worker of which a slot was taken; returns False if the call has failed, and
                then the slot goes to the next.

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
        # In mode "fail" a call waits for its worker only while the pool is suspended.
        if session is not None and (self._mode == "strict" or (self._mode == "fail" and self.queue.paused)):
            wanted = self._bound(session, self._loop.time())
        self.queue.add(waiter, wanted)
        self._on_wait()
        return waiter

    def release(self, worker: PoolWorker, session: str | None) -> None:
        """Give a slot back after a call of ``session``."""
        self.end_call(session)
        self.queue.release(worker)

    def end_call(self, session: str | None) -> None:
        """Unpin ``session`` after one of its calls; that is all to do if the slot is gone with its worker."""
        if session is not None:
            self._sessions.unpin(session, self._loop.time())

    def resume(self) -> None:
        """Hand out slots again after `SlotQueue.pause`.

        In mode ``"fail"``, calls that were held back and whose worker is still busy fail, as if they came now.
        """
        self.queue.resume()
        if self._mode == "fail":
            for worker in self._workers:
                for waiter in self.queue.waiters(worker):
                    self.queue.dismiss(waiter, _busy(str(waiter.session), worker))

    # -- workers ----------------------------------------------------------------------------------------------------

    def hold(self, worker: PoolWorker) -> None:
        """Give ``worker``, which is unhealthy, no calls until it is offered again."""
        self.queue.withdraw(worker)
        if self._mode == "hint":
            self._sessions.drop(worker.id, self._loop.time())

    def is_needed(self, worker: PoolWorker) -> bool:
        """Whether a session that must not move would be lost with ``worker``."""
        return self._mode != "hint" and self._sessions.holds(worker.id, self._loop.time())

    def remove(self, worker: PoolWorker) -> None:
        """Remove ``worker``, which ends, and its sessions; idempotent."""
        self.queue.withdraw(worker)
        now = self._loop.time()
        for session in self._sessions.drop(worker.id, now):
            hooks.session_lost.announce(self._pool, session=session, member=worker.id)
        for waiter in self.queue.waiters(worker):
            # The error reports the loss; the next call starts the session again.
            self._sessions.take_loss(waiter.session or "", now)
            self.queue.dismiss(waiter, _lost(waiter.session, worker.id))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _claim(self, waiter: Waiter, session: str, worker: PoolWorker) -> bool:
        """Whether a call of ``session`` may use ``worker``; an earlier call may have bound the session meanwhile."""
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
        # `free_capacity` comes last, since it walks all workers.
        if queued < self._limit or spec.patient or queued < self._limit + self._workers.free_capacity:
            return
        hooks.pool_saturated.announce(self._pool, queued=queued, function=spec.function)
        raise PoolBusy(
            f"{queued} calls wait for a worker of {self._pool.name!r}, and no more may; "
            "call later, or give the pool more workers or a longer queue"
        )

    def _bound(self, session: str, now: float) -> PoolWorker | None:
        """Return the worker of ``session``; None if it has none yet. Raises SessionLost if it was lost."""
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
        f"{worker.id!r}, which has the session {session!r}, is {worker.phase} and takes no call now; "
        "wait for it with Sessions(mode='strict')"
    )


def _lost(session: str | None, worker: str) -> SessionLost:
    return SessionLost(
        f"the session {session!r} was lost with {worker!r}, which has ended; what it had there has to be made anew"
    )


# -- slots -----------------------------------------------------------------------------------------------------------


class Waiter:
    """A call that waits for a slot of ``worker``, or of any worker if that is None.

    Args:
        future: done when it does not wait any more.
        use: called with a worker of which a slot was taken for it; returns False if it does not use the slot.
        session: its session.
    """

    __slots__ = ("future", "number", "session", "use", "worker")

    def __init__(
        self, future: asyncio.Future[Any], use: Callable[[PoolWorker], bool], session: str | None = None
    ) -> None:
        self.future: asyncio.Future[Any] = future
        self.use: Callable[[PoolWorker], bool] = use
        self.session: str | None = session
        self.worker: PoolWorker | None = None
        #: Its rank in the order of arrival.
        self.number: int = -1


class SlotQueue:
    """The free slots of workers and the calls that wait for one, without clock or I/O.

    The worker with the fewest calls gets the next call; among equals the one that was used last, so that surplus
    workers can be seen to be idle. Calls are served in the order of arrival; one that waits for a certain worker
    delays no other. No call waits while a slot that it could use is free, unless the queue is paused.

    Args:
        slots: the slots of each worker.
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        #: Whether slots are withheld from all calls.
        self.paused: bool = False
        # Workers with a free slot, by the number of slots taken; the last one was used last.
        self._free: tuple[dict[PoolWorker, None], ...] = tuple({} for _ in range(slots))
        self._offered: set[PoolWorker] = set()
        # Calls that wait for any worker, and for a certain one, in the order of arrival.
        self._anywhere: dict[Waiter, None] = {}
        self._strict: dict[PoolWorker, dict[Waiter, None]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        """The number of waiting calls."""
        return len(self._anywhere) + (sum(map(len, self._strict.values())) if self._strict else 0)

    @property
    def anywhere(self) -> int:
        """The number of calls that wait for any worker."""
        return len(self._anywhere)

    def idle(self) -> Iterator[PoolWorker]:
        """Return the workers without a call; first the one that has been idle longest."""
        return iter(tuple(self._free[0]))

    def waiters(self, worker: PoolWorker | None = None) -> list[Waiter]:
        """Return the calls that wait for ``worker`` and no other; all of them if that is None."""
        if worker is not None:
            return list(self._strict.get(worker, ()))
        return [*self._anywhere, *(waiter for row in self._strict.values() for waiter in row)]

    # -- slots ------------------------------------------------------------------------------------------------------

    def take(self, session: str | None = None, worker: PoolWorker | None = None) -> PoolWorker | None:
        """Take a slot of ``worker``, or of the best one; None if none is free. This overtakes no waiting call."""
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
        """Give a slot back; the next waiter has it when this returns."""
        self._check_in(worker)
        self._serve(worker)

    def offer(self, worker: PoolWorker) -> None:
        """Give calls to ``worker`` from now on; idempotent."""
        if worker not in self._offered:
            self._offered.add(worker)
            if worker.leases < self._slots:
                self._free[worker.leases][worker] = None
                self._serve(worker)

    def withdraw(self, worker: PoolWorker) -> None:
        """Give no more calls to ``worker``; calls that wait for it continue to wait. Idempotent."""
        if worker in self._offered:
            self._offered.remove(worker)
            if worker.leases < self._slots:
                del self._free[worker.leases][worker]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def add(self, waiter: Waiter, worker: PoolWorker | None = None) -> None:
        """Let ``waiter`` wait for a slot of ``worker``, or of any; one that has waited before keeps its rank."""
        if waiter.number < 0:
            waiter.number = next(self._numbers)
        waiter.worker = worker
        row = self._anywhere if worker is None else self._strict.setdefault(worker, {})
        row[waiter] = None
        if worker is not None:
            self._serve(worker)

    def leave(self, waiter: Waiter) -> None:
        """Remove ``waiter``; idempotent."""
        row = self._anywhere if waiter.worker is None else self._strict.get(waiter.worker, {})
        row.pop(waiter, None)
        if waiter.worker is not None and not row:
            self._strict.pop(waiter.worker, None)

    def dismiss(self, waiter: Waiter, error: Exception) -> None:
        """Remove ``waiter`` with an error."""
        self.leave(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def pause(self) -> None:
        """Hand out no slots until `resume`; those that are taken stay so."""
        self.paused = True

    def resume(self) -> None:
        """Hand out slots again, first to the calls that wait."""
        self.paused = False
        for worker in [worker for row in self._free for worker in reversed(row)]:
            self._serve(worker)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _serve(self, worker: PoolWorker) -> None:
        """Give the free slots of ``worker`` to the first calls that may use them."""
        while not self.paused and self._has_slot(worker):
            waiter = self._first(worker)
            if waiter is None:
                return
            self.leave(waiter)
            self._check_out(worker, waiter.session)
            if not waiter.use(worker):
                self._check_in(worker)

    def _first(self, worker: PoolWorker) -> Waiter | None:
        """Return the first call that may use a slot of ``worker`` and was not cancelled in this very step."""
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
