"""Manages a pool's workers: starts, checks, recycles, replaces and stops them.

Each worker has one task, which runs as long as the worker exists. Everything else is done by plain functions that react
to events instead of polling.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import warnings
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle._async import Condition, start_task
from lifecycle._util import with_stderr
from lifecycle.backoff import Backoff
from lifecycle.errors import PoolFailed, RestartLimitReached, WorkerFailed
from lifecycle.workers.model import FINAL, UNSTARTED, ProbeResult, Status
from lifecycle.workers.pool.scheduler import Scheduler
from lifecycle.workers.pool.worker import PoolWorker, WorkerSet
from lifecycle.workers.specs import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.connection import Pong
    from lifecycle.workers.pool.records import Reason
    from lifecycle.workers.pool.settings import PoolSettings

__all__ = ["WorkerManager", "warn_unstopped"]

_log = logging.getLogger("lifecycle.workers")

#: The maximum number of workers to start at the same time.
_STARTS: Final = 2 * (os.cpu_count() or 2)
#: The factor by which the time between health checks increases while a worker is unhealthy, from 2 s to 5 s by default.
_UNHEALTHY_FACTOR: Final = 2.5
#: How many seconds a worker may take to exit after it has closed its streams.
_EXIT_TIME: Final = 1.0


class WorkerManager:
    """Owns a pool's workers for as long as the pool exists.

    Args:
        pool: The sender of hooks.
        settings: The pool's settings.
    """

    def __init__(self, pool: Any, settings: PoolSettings) -> None:
        self.workers: Final = WorkerSet(settings.size, settings.concurrency)
        self.scheduler: Final = Scheduler(pool, settings, self.workers, on_wait=self._start_missing)
        #: The number of lost workers that have been replaced.
        self.restarts: int = 0
        self._pool = pool
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._starts = asyncio.Semaphore(_STARTS)
        self._backoff = Backoff()
        self._budget = Budget(settings.name, settings.intensity)
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        # A future that completes once no more workers will be started.
        self._closed: asyncio.Future[None] = self._loop.create_future()
        # A function that returns the pool's error, or None if the pool has not failed.
        self._failure: Callable[[], PoolFailed] | None = None
        # True if a worker has ever been ready, or the pool was able to start without workers.
        self._has_started = False
        self._kill_timer: asyncio.TimerHandle | None = None
        # The timer for the next check for idle workers, or None if no check is scheduled.
        self._idle_timer: asyncio.TimerHandle | None = None
        # Notified when a worker becomes ready or exits, and when the pool is closed.
        self._changed = Condition()

    # -- the pool ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Maintain the pool's size until it is closed. Return once no workers are left.

        Raises:
            PoolFailed: if the pool failed.
        """
        self._start_missing()
        try:
            await self._closed
            while self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            # The loop is closing, in which case each worker's task kills its process.
            warn_unstopped(self._pool)
            raise
        finally:
            for timer in (self._kill_timer, self._idle_timer):
                if timer is not None:
                    timer.cancel()
        if self._failure is not None:
            raise self._failure()

    async def wait_filled(self) -> None:
        """Wait until the minimum number of workers is ready. If the pool ends first, raise PoolClosed or PoolFailed."""
        await self._wait(lambda: self.workers.ready >= self.workers.low)
        self._has_started = True

    async def refresh(self) -> None:
        """Replace all current workers. If the pool ends first, raise PoolClosed or PoolFailed."""
        self.workers.generation += 1
        generation = self.workers.generation
        self._start_missing()
        self._drain_outdated()
        await self._wait(lambda: all(worker.generation >= generation for worker in self.workers))

    async def resize(self, low: int, high: int) -> None:
        """Change the minimum and maximum size. If the pool ends first, raise PoolClosed or PoolFailed."""
        self.workers.low, self.workers.high = low, high
        for worker in self.workers.in_excess():
            self.drain(worker, "shutdown")
        self._start_missing()
        await self.wait_filled()

    def close(self, error: Callable[[], Exception]) -> None:
        """Reject queued and new calls with ``error()``, and stop each worker once its running calls have finished."""
        self.scheduler.refuse(error)
        if not self._closed.done():
            self._closed.set_result(None)
            for worker in self.workers:
                self.drain(worker, "shutdown")
        self._changed.notify_all()

    def kill_all(self) -> None:
        """Kill all workers."""
        for worker in self.workers:
            worker.request_stop("shutdown", 0)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.scheduler.refusal is not None:
                raise self.scheduler.refusal()
            await self._changed.wait()

    # -- the life cycle of a worker -----------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        size = self.workers.size
        if size < self.workers.high and not self._closed.done():
            for _ in range(self.workers.wanted(self.scheduler.queue.anywhere) - size):
                self._start()

    def _start(self, attempt: int = 0, *, planned: bool = True) -> None:
        """Create a worker. ``attempt`` is the number of consecutive workers that failed before it.

        ``planned`` is False if it replaces a lost worker.
        """
        worker = PoolWorker(
            f"{self._settings.name}-{next(self._numbers)}",
            self._settings,
            pool=self._pool,
            generation=self.workers.generation,
            planned=planned,
            on_close=self._connection_closed,
            on_protocol_error=self._protocol_broken,
        )
        worker.attempt = attempt
        self.workers.by_id[worker.id] = worker
        worker.on_change(partial(self._status_changed, worker))
        task = start_task(self._live(worker), name=f"life of {worker.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, worker: PoolWorker) -> None:
        # The worker may have been drained before this task started running.
        if worker.attempt > 1 and worker.status in UNSTARTED:
            worker.mark_pending()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.delay(worker.attempt - 2)):
                    await worker.wait()
        async with self._starts:
            if worker.status in UNSTARTED:
                # `_status_changed` handles the failure.
                with suppress(WorkerFailed):
                    await worker.start()
        if worker.is_up:
            self._worker_ready(worker)
            checks = start_task(self._check_regularly(worker), name=f"health of {worker.id}")
            try:
                await worker.wait()
            finally:
                checks.cancel()
                await asyncio.wait({checks})
        # If the start was abandoned, the process may still be running.
        await worker.wait()

    def _worker_ready(self, worker: PoolWorker) -> None:
        self._has_started = True
        recycle = self._settings.recycle
        worker.ready_at = worker.idle_since = self._loop.time()
        # Round up, so that small limits remain unchanged.
        worker.max_calls = math.inf if recycle.calls is None else math.ceil(recycle.calls * _jitter())
        worker.max_rss = math.inf if recycle.rss is None else recycle.rss * _jitter()
        if recycle.age is not None:
            worker.timers.append(self._loop.call_later(recycle.age * _jitter(), self.drain, worker, "recycle"))
        self._schedule_idle_check()
        if worker.healthy:
            self.scheduler.queue.offer(worker)
        else:
            self._degrade(worker, TimeoutError(f"{worker.id!r} did not answer its first health check"))
        self._drain_outdated(replaced=True)
        self._changed.notify_all()

    def _status_changed(self, worker: PoolWorker, _old: Status, new: Status) -> None:
        """Update the pool immediately after a status change, so that its statistics are always consistent."""
        if new is Status.STOPPING or new in FINAL:
            self.scheduler.remove(worker)
        if new in FINAL:
            del self.workers.by_id[worker.id]
            worker.cancel_timers()
            if worker.end_cause is None:
                self._replace(worker, worker.history[0].reason, worker.end_error())
            self._start_missing()
            self._drain_outdated()
            self._changed.notify_all()

    # -- loss and replacement ---------------------------------------------------------------------------------------

    def kill(self, worker: PoolWorker, reason: Reason, fault: str, *, counted: bool = False) -> None:
        """Kill and replace ``worker`` because of ``fault``.

        If ``counted`` is true, the loss counts towards the limit set by ``intensity``.
        """
        if worker.phase.alive:
            worker.fault = fault
            worker.request_stop(reason, 0)
            self._replace(worker, reason, worker.lost_error(f"{worker.id!r} was killed: {fault}"), counted=counted)

    def _connection_closed(self, worker: PoolWorker) -> None:
        self.scheduler.queue.withdraw(worker)
        if worker.status is Status.RUNNING:
            kill = partial(self.kill, worker, "error", "it closed its streams but did not exit", counted=True)
            worker.timers.append(self._loop.call_later(_EXIT_TIME, kill))

    def _protocol_broken(self, worker: PoolWorker, error: Exception) -> None:
        if worker.status is Status.RUNNING:
            self.kill(worker, "error", f"it violated the protocol: {error}", counted=True)

    def _degrade(self, worker: PoolWorker, error: Exception) -> None:
        """Stop assigning calls to ``worker`` until it passes a health check."""
        self.scheduler.hold(worker)
        self._announce("degrade", worker, "health_check_failed", error)

    def _replace(self, worker: PoolWorker, reason: Reason, error: Exception, *, counted: bool = True) -> None:
        """Replace a lost worker if the pool needs one. If the intensity is exceeded, fail the pool."""
        if self._closed.done():
            return
        if reason == "init_timeout":
            _log.warning("%s", with_stderr(str(error), error))
            if not self._has_started:
                # Don't retry. If every attempt takes the full `start_timeout`, the intensity might never be exceeded,
                # and we would keep starting workers forever.
                self._announce("remove", worker, reason, error)
                more = "if loading takes longer, set process=Process(start_timeout=…)"
                self._give_up(f"{self._settings.name!r} cannot start: {error}; {more}", error)
                return
        if counted:
            try:
                self._budget.spend(self._loop.time(), worker.id, error)
            except RestartLimitReached as limit:
                self._announce("remove", worker, reason, error)
                self._give_up(str(limit), error)
                return
        needed = self.workers.wanted(self.scheduler.queue.anywhere) > self.workers.size
        if needed:
            # If the lost worker had completed a call or run for long enough, replace it without delay.
            good = worker.has_answered or self._loop.time() - worker.ready_at >= self._backoff.reset_after
            self._start(0 if good else worker.attempt + 1, planned=False)
            if worker.attempt and not good:
                times, text = worker.attempt + 1, with_stderr(str(error), error)
                _log.warning("%r failed %d times in a row: %s", self._settings.name, times, text)
            self.restarts += 1
        self._announce("replace" if needed else "remove", worker, reason, error)
        self._start_missing()

    def _give_up(self, message: str, error: Exception) -> None:
        def failure() -> PoolFailed:
            failed = PoolFailed(message)
            failed.__cause__ = error
            return failed

        self._failure = failure
        self._kill_timer = self._loop.call_later(self._settings.process.stop_timeout, self.kill_all)
        self.close(failure)

    def _announce(self, action: str, worker: PoolWorker, reason: Reason, error: Exception) -> None:
        hooks.pool_recovered.announce(self._pool, action=action, member=worker.id, reason=reason, error=error)

    # -- health checks ----------------------------------------------------------------------------------------------

    async def _check_regularly(self, worker: PoolWorker) -> None:
        while not worker.connection.closed:
            interval = self._settings.heartbeat.every * (1 if worker.healthy else _UNHEALTHY_FACTOR)
            await asyncio.sleep(interval * random.uniform(0.9, 1.1))  # noqa: S311  # not used for secrets
            await self._check(worker)

    async def _check(self, worker: PoolWorker) -> None:
        timeout = self._settings.heartbeat.timeout
        began = self._loop.time()
        reply = worker.connection.ping()
        # Accept a reply even after the timeout, because this loop may have been too busy to read it in time.
        await asyncio.wait({reply}, timeout=timeout)
        pong = reply.result() if reply.done() and reply.exception() is None else None
        closed, late = worker.connection.closed, f"no answer within {timeout:g} s"
        result = ProbeResult(pong is not None, "" if pong else "the connection is closed" if closed else late)
        now = self._loop.time()
        hooks.health_checked.announce(self._pool, member=worker.id, result=result, duration=now - began)
        if worker.status is not Status.RUNNING or closed:
            # The worker has exited, which is handled elsewhere.
            return
        if pong is not None:
            worker.mark_healthy(pong)
            self._recycle_if_due(worker)
            if worker.end_cause is None:
                self.scheduler.queue.offer(worker)
        elif now >= worker.connection.busy_until:
            # Until its deadline passes, a call is allowed to block the interpreter, which delays the reply.
            self._check_failed(worker, f"{worker.id!r} gave {late}")

    def _check_failed(self, worker: PoolWorker, message: str) -> None:
        heartbeat = self._settings.heartbeat
        worker.mark_unhealthy()
        worker.dump_stacks()
        if worker.failures >= heartbeat.misses:
            times = f"{worker.failures} time{'s'[: worker.failures != 1]} in a row"
            fault = f"it did not answer within {heartbeat.timeout:g} s, {times}"
            self.kill(worker, "health_limit", fault, counted=True)
        else:
            self._degrade(worker, TimeoutError(message))

    # -- drain and recycle --------------------------------------------------------------------------------------------

    def drain(self, worker: PoolWorker, reason: Reason) -> None:
        """Stop assigning calls to ``worker``, and stop it after its last call.

        If the pool needs a replacement, start one.
        """
        if not worker.phase.alive:
            return
        worker.end_cause = reason
        self.scheduler.queue.withdraw(worker)
        if not worker.leases:
            worker.request_stop(reason)
        self._start_missing()

    def call_sent(self, worker: PoolWorker) -> None:
        """Record that a call has been sent to ``worker``."""
        worker.calls += 1
        self._recycle_if_due(worker)

    def give_back_slot(self, worker: PoolWorker, session: str | None) -> None:
        """Release a slot taken for ``session``, whether or not its call was sent."""
        if worker.connection.closed:
            # The worker is dead, even if we don't know yet how it exited. Don't assign its slot to another call.
            self.scheduler.end_call(session)
            return
        if worker.leases == 1:
            if worker.end_cause is not None:
                worker.request_stop(worker.end_cause)
            else:
                worker.idle_since = self._loop.time()
                self._schedule_idle_check()
                if self._settings.recycle.rss is not None:
                    worker.connection.ping().add_done_callback(partial(self._memory_reported, worker))
        self.scheduler.release(worker, session)

    def _recycle_if_due(self, worker: PoolWorker) -> None:
        if worker.end_cause is None and (worker.calls >= worker.max_calls or (worker.rss or 0) > worker.max_rss):
            self.drain(worker, "recycle")

    def _memory_reported(self, worker: PoolWorker, pong: asyncio.Future[Pong]) -> None:
        if pong.exception() is None:
            worker.rss = pong.result().rss
            self._recycle_if_due(worker)

    def _schedule_idle_check(self) -> None:
        idle = self._settings.recycle.idle
        if self._idle_timer is None and idle is not None and len(self.workers) > self.workers.low:
            self._idle_timer = self._loop.call_later(idle, self._drain_idle, idle)

    def _drain_idle(self, idle: float) -> None:
        self._idle_timer = None
        now = self._loop.time()
        for worker in self.scheduler.queue.idle():
            if self.workers.size <= self.workers.low:
                return
            due = worker.idle_since + idle
            if due > now:
                self._idle_timer = self._loop.call_at(due, self._drain_idle, idle)
                return
            if self.scheduler.is_needed(worker):
                # Check the worker again after a full idle period.
                worker.idle_since = now
                self._schedule_idle_check()
            else:
                self.drain(worker, "idle_timeout")

    def _drain_outdated(self, *, replaced: bool = False) -> None:
        """Drain outdated workers.

        While a new worker is starting, only outdated workers that are not ready are drained. However, if all outdated
        workers are ready and ``replaced`` is true, one of them is drained.
        """
        outdated = self.workers.outdated
        if not outdated:
            return
        starting = any(self.workers.stays(worker) and not worker.is_up for worker in self.workers)
        # Drain workers that are not ready first, followed by those with the fewest calls.
        outdated.sort(key=_is_up_and_busy)
        most = sum(not worker.is_up for worker in outdated) or int(replaced)
        for worker in outdated[:most] if starting else outdated:
            self.drain(worker, "replaced")


def _is_up_and_busy(worker: PoolWorker) -> tuple[bool, int]:
    return worker.is_up, worker.leases


def _jitter() -> float:
    """Return a random factor between 0.9 and 1, which keeps workers from being recycled at the same time."""
    return 1 - 0.1 * random.random()  # noqa: S311  # not used for secrets


def warn_unstopped(pool: object) -> None:
    """Warn that the loop was closed before ``pool`` was stopped."""
    warnings.warn(f"{pool!r} was not stopped before its loop was closed", ResourceWarning, stacklevel=3, source=pool)
