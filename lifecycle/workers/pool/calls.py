"""Calls to a pool, from the request until the function has stopped running.

A call waits for a slot, is sent to the worker as soon as it gets one, and releases the slot as soon as the response
arrives. None of these steps depends on another task, so the caller can be cancelled at any time. To cancel a call, the
pool first sends a cancel request to the worker. If the call does not stop within the grace period, the pool kills the
worker.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle._util import current_span
from lifecycle.errors import PoolClosed, PoolError, RemoteError, WorkerLost
from lifecycle.workers.pool.connection import CallCancelled, ConnectionClosed
from lifecycle.workers.pool.manager import WorkerManager
from lifecycle.workers.pool.protocol import LARGE, PLAIN_TYPES, size_of
from lifecycle.workers.pool.records import Phase, PoolStats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from lifecycle.workers.pool.connection import WireCall
    from lifecycle.workers.pool.records import CallSpec, Reason
    from lifecycle.workers.pool.scheduler import Waiter
    from lifecycle.workers.pool.settings import PoolSettings
    from lifecycle.workers.pool.worker import PoolWorker

__all__ = ["CallDispatcher", "PendingCall", "Permit"]

#: The number of recent calls used to compute percentiles.
_LAST = 1000


class CallDispatcher:
    """The entry point for calls to a running pool, along with the state that the calls share.

    Args:
        pool: The pool, which hooks receive as their sender.
        settings: The pool's settings.
    """

    def __init__(self, pool: Any, settings: PoolSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.manager: Final = WorkerManager(pool, settings)
        self.scheduler: Final = self.manager.scheduler
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        #: How error messages describe a call that has no worker yet.
        self.queued: str = f"queued in {pool.name!r}"
        self._count = 0
        self._waits: deque[float] = deque(maxlen=_LAST)
        self._runs: deque[float] = deque(maxlen=_LAST)
        # For each session, a future for the latest call whose arguments are being encoded.
        self._encoding: Final[dict[str | None, asyncio.Future[None]]] = {}

    async def call(self, spec: CallSpec, *, idempotent: bool = False) -> Any:
        """Run a call. If its worker is lost and the call is ``idempotent``, run it once more."""
        if not self.prepare(spec):
            await self.encode(spec)
        call = PendingCall(self, spec)
        try:
            return await call.outcome()
        except WorkerLost as error:
            late = self.loop.time() >= spec.until
            if not idempotent or late or self.scheduler.refusal is not None:
                raise
            assert call.worker is not None, "only a call that was sent can be lost"
            lost = error
            reason, worker = call.worker.end_cause or "exited", call.worker.id
            hooks.pool_recovered.announce(self.pool, action="retry", member=worker, reason=reason, error=error)
        # The deadline stays the same, but the second run's waiting time must not include the first run.
        spec.began = self.loop.time()
        try:
            return await PendingCall(self, spec).outcome()
        except (PoolError, TimeoutError) as error:
            if error.__cause__ is None:
                error.__cause__ = lost
            raise
        finally:
            # Break the reference cycle between this frame and the traceback of ``lost``, which would keep the arguments
            # alive.
            del lost

    def prepare(self, spec: CallSpec) -> bool:
        """Prepare the payload of ``spec``. Return True if it need not be encoded in a thread.

        A thread is not needed if the arguments are small and no earlier call in the session is still being encoded.
        Plain arguments are used as the payload directly, without separate encoding.
        """
        args, kwargs = spec.args, spec.kwargs
        if spec.session in self._encoding:
            return False
        if PLAIN_TYPES.issuperset(map(type, args)) and (
            not kwargs or PLAIN_TYPES.issuperset(map(type, kwargs.values()))
        ):
            spec.payload = args, kwargs
            return True
        return size_of(args) + size_of(kwargs.values()) < LARGE

    async def encode(self, spec: CallSpec) -> None:
        """Encode large arguments in a thread, so that they don't block the loop.

        This method returns once all earlier calls in the session have been sent or queued. To preserve the order, the
        caller must then send or queue this call before awaiting anything else.

        Raises:
            TypeError, ValueError: if the arguments cannot be sent.
            TimeoutError: if the deadline passes while the arguments are being encoded.
        """
        encode = self.settings.codec.encode_payload_in_thread
        limit = asyncio.timeout_at(None if spec.until == math.inf else spec.until)
        session, made = spec.session, self.loop.create_future()
        before = self._encoding.get(session)
        if session is not None:
            self._encoding[session] = made
        try:
            async with limit:
                args = await asyncio.to_thread(encode, spec.args)
                spec.payload = args, await asyncio.to_thread(encode, spec.kwargs)
                if before is not None:
                    await asyncio.wait({before})
        except (TypeError, ValueError) as error:
            raise spec.unsendable(error) from error
        except TimeoutError:
            if limit.expired():
                raise spec.timed_out("being encoded") from None
            raise
        finally:
            if before is None or before.done():
                self._encoded(session, made)
            else:
                # Although this call was abandoned, later calls must still wait for earlier ones.
                before.add_done_callback(lambda _: self._encoded(session, made))

    def _encoded(self, session: str | None, made: asyncio.Future[None]) -> None:
        made.set_result(None)
        if self._encoding.get(session) is made:
            del self._encoding[session]

    async def acquire(self, spec: CallSpec) -> Permit:
        """Take a slot for several calls. If none is free, wait in order of arrival, until the deadline of ``spec``."""
        worker = self.scheduler.take(spec.session)
        if worker is None:
            worker = await self._wait_for_slot(spec)
        return Permit(self.manager, worker, spec.session)

    async def _wait_for_slot(self, spec: CallSpec) -> PoolWorker:
        future: asyncio.Future[PoolWorker] = self.loop.create_future()

        def use(worker: PoolWorker) -> bool:
            future.set_result(worker)
            return True

        def expire() -> None:
            if not future.done():
                future.set_exception(spec.timed_out(self.queued))

        waiter = self.scheduler.wait(spec, future, use)
        timer = None if spec.until == math.inf else self.loop.call_at(spec.until, expire)
        try:
            return await future
        except asyncio.CancelledError:
            # A slot may have been assigned in the same loop iteration in which the task was cancelled.
            if future.done() and not future.cancelled() and future.exception() is None:
                self.manager.give_back_slot(future.result(), spec.session)
            raise
        finally:
            self.scheduler.queue.leave(waiter)
            if timer is not None:
                timer.cancel()

    # -- statistics -------------------------------------------------------------------------------------------------

    def count(self, waited: float, ran: float) -> None:
        """Record a finished call, with its waiting and running times in seconds."""
        self._count += 1
        self._waits.append(waited)
        self._runs.append(ran)

    def stats(self) -> PoolStats:
        """Return the current statistics."""
        pool = self.manager.workers
        workers = list(pool)
        phases = [worker.phase for worker in workers if pool.stays(worker)]
        waits, runs = sorted(self._waits), sorted(self._runs)
        return PoolStats(
            size=len(phases),
            idle=phases.count(Phase.READY),
            busy=phases.count(Phase.BUSY),
            degraded=phases.count(Phase.DEGRADED),
            starting=phases.count(Phase.INITIALIZING),
            stopping=len(workers) - len(phases),
            queued=len(self.scheduler.queue),
            saturation=sum(worker.leases for worker in workers) / (pool.high * pool.concurrency),
            calls=self._count,
            restarts=self.manager.restarts,
            wait_p50=_percentile(waits, 0.5),
            wait_p95=_percentile(waits, 0.95),
            run_p50=_percentile(runs, 0.5),
            run_p95=_percentile(runs, 0.95),
        )


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class PendingCall:
    """A single call. `outcome` runs it and waits for the result. Streams use `begin`, `translate` and `close` instead.

    Args:
        dispatcher: The call's dispatcher.
        spec: The requested call.
        permit: The slot to use. By default, the call takes a slot of its own.
        window: For a stream, the maximum number of unacknowledged values.
    """

    __slots__ = (
        "_began",
        "_dispatcher",
        "_ended",
        "_future",
        "_permit",
        "_reason",
        "_stopped",
        "_timer",
        "_waiter",
        "_window",
        "spec",
        "traceparent",
        "wire",
        "worker",
    )

    def __init__(
        self, dispatcher: CallDispatcher, spec: CallSpec, permit: Permit | None = None, *, window: int = 0
    ) -> None:
        self.spec: CallSpec = spec
        #: The worker that runs the call, or None if the call is still waiting.
        self.worker: PoolWorker | None = None
        #: The call on the worker's connection, or None if the call is still waiting.
        self.wire: WireCall | None = None
        #: The W3C traceparent to send with the call. Receivers of ``call_started`` can change it.
        self.traceparent: str = current_span.get()
        self._dispatcher = dispatcher
        self._permit = permit
        self._window = window
        self._future: asyncio.Future[Any] = dispatcher.loop.create_future()
        self._waiter: Waiter | None = None
        # When the call was sent.
        self._began = 0.0
        # When the call stopped running.
        self._ended = 0.0
        # Why the call was cancelled, or None if it was not.
        self._reason: Reason | None = None
        # A future that completes once a cancelled call has stopped.
        self._stopped: asyncio.Future[None] | None = None
        # The deadline timer, which is cancelled once the call has finished.
        self._timer: asyncio.TimerHandle | None = None

    async def outcome(self) -> Any:
        """Run the call. Once it has stopped running, return its result or raise its error."""
        self.begin()
        try:
            result = await self.translate(self._future)
        except BaseException as error:
            self.close(error)
            raise
        self.close(None)
        return result

    def begin(self) -> None:
        """Send the call if a slot is free; otherwise, queue it.

        Raises:
            TypeError, ValueError: if the arguments cannot be sent. The worker receives nothing in that case.
            PoolBusy, PoolClosed, PoolFailed, SessionLost: if the call cannot get a worker.
        """
        spec, dispatcher = self.spec, self._dispatcher
        if hooks.call_started.receivers:
            hooks.call_started.announce(dispatcher.pool, call=self)
        try:
            self._send_or_queue()
        except Exception as error:
            self._announce(error)
            raise
        if spec.until != math.inf:
            self._timer = dispatcher.loop.call_at(spec.until, self._deadline_passed)

    async def translate(self, answer: Awaitable[Any]) -> Any:
        """Await ``answer``, and translate connection errors into pool errors."""
        try:
            result = await answer
        except asyncio.CancelledError:
            await self._caller_cancelled()
            raise
        except ConnectionClosed:
            assert self.worker is not None, "the call had a connection"
            # Read the reason before waiting. If the deadline passes during the wait, we still want to report the lost
            # worker.
            timed_out = self._reason == "timeout"
            end = await self.worker.wait()
            if timed_out:
                raise self._timed_out() from None
            lost, refusal = self.worker.lost_during(self.spec.function, end), self._dispatcher.scheduler.refusal
            if self.worker.end_cause == "shutdown" and refusal is not None:
                refused = refusal()
                raise refused from refused.__cause__ or lost
            raise lost from None
        except (CallCancelled, RemoteError):
            if self._reason == "timeout":
                raise self._timed_out() from None
            raise
        if self._reason == "timeout":
            raise self._timed_out()
        return result

    def cancel(self, reason: Reason) -> asyncio.Future[None]:
        """Stop the call, killing its worker if necessary. Return a future that completes once the call has stopped."""
        assert self.wire is not None, "the call was sent"
        if self._stopped is None:
            self._reason = reason
            self._stopped = self.wire.cancel(reason)
            if not self._stopped.done():
                self._kill_unless(self._stopped)
        return self._stopped

    def close(self, error: BaseException | None) -> None:
        """Record and announce the call's outcome."""
        if self._timer is not None:
            self._timer.cancel()
        self._announce(error)

    def _deadline_passed(self) -> None:
        if self.wire is not None:
            self.cancel("timeout")
        elif not self._future.done():
            self._leave_queue()
            self._future.set_exception(self._timed_out())

    # -- phases --------------------------------------------------------------------------------------------------

    def _send_or_queue(self) -> None:
        scheduler, permit, session = self._dispatcher.scheduler, self._permit, self.spec.session
        if permit is not None:
            permit.begin_call()
            try:
                self._send(permit.worker)
            except BaseException:
                permit.end_call()
                raise
            return
        worker = scheduler.take(session)
        if worker is None:
            self._waiter = scheduler.wait(self.spec, self._future, self._use)
            return
        try:
            self._send(worker)
        except BaseException:
            self._dispatcher.manager.give_back_slot(worker, session)
            raise

    def _use(self, worker: PoolWorker) -> bool:
        """Send the queued call to ``worker``. Return False if that fails."""
        try:
            self._send(worker)
        except Exception as error:  # noqa: BLE001  # raised in the caller
            self._dispatcher.scheduler.end_call(self.spec.session)
            self._future.set_exception(error)
            return False
        return True

    def _send(self, worker: PoolWorker) -> None:
        spec, dispatcher = self.spec, self._dispatcher
        self.worker, self._began = worker, dispatcher.loop.time()
        try:
            self.wire = worker.connection.call(
                spec,
                window=self._window,
                traceparent=self.traceparent,
                future=self._future,
                on_end=self._on_end,
            )
        except (TypeError, ValueError) as error:
            raise spec.unsendable(error) from error
        dispatcher.manager.call_sent(worker)
        if hooks.call_dispatched.receivers:
            hooks.call_dispatched.announce(
                dispatcher.pool,
                function=spec.function,
                session=spec.session,
                member=worker.id,
                waited=self._began - spec.began,
            )

    def _on_end(self) -> None:
        """Release the slot once the call has stopped running."""
        assert self.worker is not None, "the call was sent"
        self._ended = self._dispatcher.loop.time()
        if not self.worker.connection.closed:
            self.worker.has_answered = True
        if self._permit is None:
            self._dispatcher.manager.give_back_slot(self.worker, self.spec.session)
        else:
            self._permit.end_call()

    async def _caller_cancelled(self) -> None:
        """Stop the call after its caller was cancelled, and wait until it is no longer running."""
        if self._future.done() and not self._future.cancelled():
            # Mark the exception as retrieved to avoid a warning.
            self._future.exception()
        if self.wire is None:
            self._leave_queue()
        else:
            await asyncio.wait({self.cancel("cancelled")})

    def _leave_queue(self) -> None:
        if self._waiter is not None:
            self._dispatcher.scheduler.queue.leave(self._waiter)

    def _timed_out(self) -> TimeoutError:
        worker = self.worker
        return self.spec.timed_out(self._dispatcher.queued if worker is None else f"running on {worker.id!r}")

    def _kill_unless(self, stopped: asyncio.Future[None]) -> None:
        """Kill the worker if ``stopped`` is not done within the grace period. Halfway through, dump its call stacks."""
        assert self.worker is not None, "the call was sent"
        loop, grace = self._dispatcher.loop, self._dispatcher.settings.process.grace
        timers = [loop.call_later(grace / 2, self.worker.dump_stacks), loop.call_later(grace, self._kill)]

        def spare(_: object) -> None:
            for timer in timers:
                timer.cancel()

        stopped.add_done_callback(spare)

    def _kill(self) -> None:
        assert self.worker is not None, "the call was sent"
        fault = f"{self.spec.function!r} did not stop within {self._dispatcher.settings.process.grace:g} s"
        self._dispatcher.manager.kill(self.worker, self._reason or "cancelled", fault)

    def _announce(self, error: BaseException | None) -> None:
        spec, dispatcher = self.spec, self._dispatcher
        ended = self._ended or dispatcher.loop.time()
        began = ended if self.worker is None else self._began
        waited, ran = began - spec.began, ended - began
        dispatcher.count(waited, ran)
        if hooks.call_ended.receivers:
            hooks.call_ended.announce(dispatcher.pool, call=self, error=error)
        if hooks.call_finished.receivers:
            hooks.call_finished.announce(
                dispatcher.pool,
                function=spec.function,
                session=spec.session,
                member=None if self.worker is None else self.worker.id,
                waited=waited,
                ran=ran,
                error=error,
            )


class Permit:
    """A slot for several calls. It is released once the permit is closed and its last call has finished."""

    __slots__ = ("_closed", "_manager", "_running", "_session", "worker")

    def __init__(self, manager: WorkerManager, worker: PoolWorker, session: str | None) -> None:
        self.worker: PoolWorker = worker
        self._manager = manager
        self._session = session
        self._running = 0
        self._closed = False

    def close(self) -> None:
        """Close the permit, so that no more calls can use it. Idempotent."""
        if not self._closed:
            self._closed = True
            self._release()

    def begin_call(self) -> None:
        """Record that a call starts using the slot.

        Raises:
            PoolClosed: if the permit is closed, in which case a different call may already be using the slot.
        """
        if self._closed:
            raise PoolClosed(f"this lease of {self.worker.id!r} has ended; use it within 'async with pool.lease()'")
        self._running += 1

    def end_call(self) -> None:
        """Record that a call has finished using the slot."""
        self._running -= 1
        self._release()

    def _release(self) -> None:
        if self._closed and not self._running:
            self._manager.give_back_slot(self.worker, self._session)
