"""A pool's worker process, and the set of all workers in a pool.

A worker's phase is not stored, but derived from its status, calls and health. Only the history of phases is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lifecycle import hooks
from lifecycle.errors import InvalidTransition, RemoteError, WorkerFailed, WorkerLost
from lifecycle.workers.containment.containment import Level
from lifecycle.workers.model import AT_WORK, FINAL, ProbeResult, Status, note_stderr
from lifecycle.workers.pool.connection import Connection, ConnectionClosed
from lifecycle.workers.pool.records import Health, Phase, PhaseChange, end_reason, phase_of
from lifecycle.workers.process import ProcessWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lifecycle.workers.model import Exit, WorkerState
    from lifecycle.workers.pool.connection import Pong
    from lifecycle.workers.pool.records import Reason
    from lifecycle.workers.pool.settings import PoolSettings

__all__ = ["PoolWorker", "WorkerSet"]

_log = logging.getLogger("lifecycle.workers")

_MIB: Final = 1024 * 1024


class PoolWorker(ProcessWorker):
    """A process in a pool, which serves as many simultaneous calls as the pool's ``concurrency`` allows.

    The pool starts and stops the worker. Applications should only read its attributes.

    Args:
        name: The pool's name followed by a number. This is also the worker's ID.
        settings: The pool's settings.
        pool: The pool, which hooks receive as their sender.
        generation: The pool's generation when the worker is created.
        planned: Whether the worker is started because the pool grows, or replaces a worker that it has ended itself.
        on_close: A function to call with the worker once it no longer accepts calls.
        on_protocol_error: A function to call with the worker and the error if the worker violates the protocol.
    """

    kind: ClassVar[str] = "member"
    supervised = True

    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        *,
        pool: object,
        generation: int,
        planned: bool,
        on_close: Callable[[PoolWorker], object],
        on_protocol_error: Callable[[PoolWorker, Exception], object],
    ) -> None:
        process = settings.process
        self.connection: Connection = Connection(
            name, settings, on_close=partial(on_close, self), on_protocol_error=partial(on_protocol_error, self)
        )
        super().__init__(
            name,
            *settings.target.argv,
            env=settings.environment(),
            cwd=process.cwd,
            stop_timeout=process.stop_timeout,
            start_timeout=process.start_timeout,
            contain=process.contain,
            stdio=self.connection.pipes,
        )
        #: The pool's name.
        self.pool_name: str = settings.name
        #: An ID that is unique among all of the pool's past and future workers.
        self.id = name
        self.generation = generation
        self.planned: bool = planned
        #: The number of running calls.
        self.leases: int = 0
        #: The total number of calls sent to the worker.
        self.calls = 0
        #: The most recently reported resident memory in bytes, or None if it has never been reported.
        self.rss: int | None = None
        self.health: Health = Health.UNKNOWN
        #: The number of health checks that have failed in a row.
        self.failures: int = 0
        #: Why the pool is draining, stopping or killing the worker. Once this has been set, the worker gets no more
        #: calls.
        self.end_cause: Reason | None = None
        #: A description of why the worker was killed. Empty if the exit code already shows the reason.
        self.fault = ""
        #: How many workers failed in a row before this worker replaced them.
        self.attempt = 0
        #: True once the worker has completed a call.
        self.has_answered = False
        #: When the worker became ready, in loop time.
        self.ready_at: float = math.inf
        #: When the most recent call finished, in loop time.
        self.idle_since: float = 0.0
        #: The number of calls after which the worker is recycled.
        self.max_calls: float = math.inf
        #: The resident memory in bytes above which the worker is recycled.
        self.max_rss: float = math.inf
        self.timers: list[asyncio.TimerHandle] = []
        self._pool = pool
        self._first_probe_timeout = settings.heartbeat.timeout
        # Only Python workers handle the signals for cancelling a call and dumping stacks.
        self._is_python = settings.target.name is not None
        self._loop = asyncio.get_running_loop()
        self._phase_since = self._loop.time()
        # Plain tuples, newest first. We don't create records here, because each call adds two changes and few of them
        # are ever read.
        self._changes: deque[tuple[Phase, Phase, Reason, float, float, Mapping[str, object]]] = deque(maxlen=32)
        self._start_failure: Reason = "init_failed"
        self.on_change(self._status_changed)

    @property
    def pid(self) -> int | None:
        """The process's pid, or None if the process has not been started yet."""
        return self._pid

    @property
    def phase(self) -> Phase:
        """The worker's current phase."""
        return self._phase(self._machine.state)

    @property
    def history(self) -> tuple[PhaseChange, ...]:
        """The last 32 phase changes, newest first."""
        return tuple(PhaseChange(*change) for change in self._changes)

    @property
    def healthy(self) -> bool:
        """True unless the worker is known to be unhealthy."""
        return self.health is not Health.UNHEALTHY

    @property
    def is_up(self) -> bool:
        """True if the worker is running and ready."""
        return self.status in AT_WORK

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Return the worker's state, including its health."""
        state = super()._state_as(name, **known)
        if state.health is None and self.health is not Health.UNKNOWN:
            return replace(state, health=ProbeResult(self.healthy, str(self.phase)))
        return state

    async def suspend(self) -> None:
        """Raise InvalidTransition, because only the pool as a whole can be suspended."""
        raise InvalidTransition(
            f"{self.name!r} cannot be suspended on its own, because it would appear dead; suspend its pool instead"
        )

    # -- calls ------------------------------------------------------------------------------------------------------

    def check_out(self, session: str | None) -> None:
        """Occupy one of the worker's slots for a call in ``session``."""
        self.leases += 1
        if self.leases == 1:
            self._record(Phase.READY, Phase.BUSY, "checkout", {} if session is None else {"session": session})

    def check_in(self) -> None:
        """Release one of the worker's slots."""
        self.leases -= 1
        if self.leases == 0 and self._machine.state is Status.RUNNING:
            if self.healthy:
                self._record(Phase.BUSY, Phase.READY, "checkin")
            else:
                self._record(Phase.BUSY, Phase.DEGRADED, "checkin_error")

    # -- health -----------------------------------------------------------------------------------------------------

    def mark_healthy(self, pong: Pong) -> None:
        """Record the response to a health check."""
        before = self.phase
        self.rss = pong.rss
        self.failures, self.health = 0, Health.HEALTHY
        if before is not self.phase:
            self._record(before, self.phase, "health_restored")

    def mark_unhealthy(self) -> None:
        """Record a failed health check."""
        before = self.phase
        self.failures, self.health = self.failures + 1, Health.UNHEALTHY
        if before is not self.phase:
            self._record(before, self.phase, "health_check_failed")

    def dump_stacks(self) -> None:
        """Ask the worker to write its stacks to stderr. This works even while a call is blocking the interpreter.

        Nothing is sent to processes that don't handle the signal.
        """
        if self._is_python and self._containment.level is not Level.PIDNS:
            self.send_signal(signal.SIGUSR2)

    # -- start and end ----------------------------------------------------------------------------------------------

    def mark_pending(self) -> None:
        """Record that the worker is waiting to be started."""
        self._machine.to(Status.PENDING)

    def request_stop(self, reason: Reason, timeout: float | None = None) -> None:
        """Ask the worker to exit. If this is called more than once, only the first reason is reported."""
        if self.phase.alive:
            self.end_cause = reason
        self.ask_to_stop(timeout)

    def kill_orphaned(self) -> None:
        """Kill the worker's process group after its loop was closed."""
        with suppress(OSError):
            # A child keeps its pid until it is reaped, even after it has exited, so the signal cannot reach a different
            # process.
            if self._pid is not None and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.killpg(self._pid, signal.SIGKILL)

    def cancel_timers(self) -> None:
        """Cancel all timers of the worker."""
        for timer in self.timers:
            timer.cancel()

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                await self.connection.ready()
                try:
                    async with asyncio.timeout(self._first_probe_timeout):
                        self.mark_healthy(await self.connection.ping())
                except TimeoutError:
                    self.mark_unhealthy()
        except TimeoutError as error:
            self._start_failure = "init_timeout"
            raise WorkerFailed(f"{self.name!r} was not ready within start_timeout={self._start_timeout:g} s") from error
        except ConnectionClosed as error:
            self._start_failure = "exited"
            raise WorkerFailed(f"{self.name!r} ended before it was ready") from error

    def _terminate(self, *, force: bool) -> None:
        if force or self.fault:
            # A worker with a fault might not respond to a stop request.
            super()._terminate(force=True)
        elif self._started_at is None:
            # Use a signal, because a worker that is still importing its target does not read frames.
            super()._terminate(force=False)
        else:
            # This frame makes the worker clean up and exit.
            self.connection.bye(self.stop_timeout)

    # -- phases -----------------------------------------------------------------------------------------------------

    def _phase(self, status: Status) -> Phase:
        return phase_of(status, leased=self.leases > 0, healthy=self.healthy)

    def _status_changed(self, old: Status, new: Status) -> None:
        if new is Status.STOPPING and self.end_cause is None:
            self.end_cause = "shutdown"
        before, after = self._phase(old), self._phase(new)
        if before is not after:
            self._record(before, after, self._reason(before, after))
        if new in FINAL:
            self.health = Health.UNKNOWN

    def _reason(self, before: Phase, after: Phase) -> Reason:
        """Return the reason for a phase change caused by a status change."""
        if after is Phase.TERMINATED:
            if before is Phase.INITIALIZING:
                return self._start_failure
            return "killed" if self._machine.state is Status.KILLED else "exited"
        if after is Phase.TERMINATING:
            return end_reason(self.end_cause or "shutdown", before)
        return "init_complete" if self.healthy else "init_degraded"

    def _record(self, before: Phase, after: Phase, reason: Reason, meta: Mapping[str, object] | None = None) -> None:
        now = self._loop.time()
        self._changes.appendleft((before, after, reason, now - self._phase_since, time.time(), meta or {}))
        self._phase_since = now
        level = logging.INFO
        if reason in ("checkout", "checkin"):
            level = logging.DEBUG
        elif after is Phase.DEGRADED or reason == "killed":
            level = logging.WARNING
        if _log.isEnabledFor(level):
            _log.log(level, "%s: %s -> %s (%s)", self.name, before, after, reason)
        if hooks.member_changed.receivers:
            hooks.member_changed.announce(self._pool, member=self.id, change=PhaseChange(*self._changes[0]))

    # -- errors -----------------------------------------------------------------------------------------------------

    def lost_during(self, function: str, end: Exit) -> WorkerLost:
        """Return the error for the caller of ``function``, which was running when this worker died."""
        return self.lost_error(f"{self.id!r} was lost while running {function!r}", end)

    def end_error(self) -> Exception:
        """Return the error for a worker that exited on its own, or the target's error if that was the cause."""
        end = self._exit
        if end is None or not isinstance(end.error, Exception):
            return self.lost_error(f"{self.id!r} exited unexpectedly")
        if isinstance(end.error.__cause__, RemoteError):
            return end.error.__cause__
        if isinstance(end.error.__cause__, ConnectionClosed):
            return self.lost_error(str(end.error), end)
        return end.error

    def lost_error(self, message: str, end: Exit | None = None) -> WorkerLost:
        """Return the error for a lost worker. Include details from ``end`` unless it is None."""
        stderr = self.connection.pipes.tail() if end is None else end.stderr
        lost = WorkerLost(
            message if end is None else f"{message}: {self._how(end)}",
            exit_code=end.exit_code if end else None,
            signal=end.signal if end else None,
            rss=self.rss,
            stderr=stderr,
        )
        note_stderr(lost, stderr)
        return lost

    def _how(self, end: Exit) -> str:
        """Describe how the worker exited. The text may reach an HTTP client, so it does not contain any output."""
        if self.fault:
            how = f"{self.fault}, and it was killed"
        elif end.signal is not None:
            how = f"it was killed by signal {end.signal}"
            if end.signal == 9:  # noqa: PLR2004  # not every system defines SIGKILL
                how += " (SIGKILL), perhaps because the system ran out of memory"
        elif end.exit_code is not None:
            how = f"it exited with status {end.exit_code}"
        else:
            how = f"it {end.status}"
        if self.rss is not None:
            how += f"; it last used {self.rss / _MIB:.0f} MiB of memory"
        return how


class WorkerSet:
    """The current workers of a pool, and how many workers there should be.

    Args:
        size: The minimum and maximum number of workers.
        concurrency: The number of slots per worker.
    """

    def __init__(self, size: tuple[int, int], concurrency: int) -> None:
        self.low: int = size[0]
        self.high: int = size[1]
        self.concurrency = concurrency
        self.generation = 0
        #: The workers by ID, oldest first.
        self.by_id: dict[str, PoolWorker] = {}

    def __iter__(self) -> Iterator[PoolWorker]:
        return iter(tuple(self.by_id.values()))

    def __len__(self) -> int:
        return len(self.by_id)

    def stays(self, worker: PoolWorker) -> bool:
        """Return True if ``worker`` is meant to stay in the pool, so it is neither being drained nor outdated."""
        return worker.end_cause is None and worker.generation == self.generation

    @property
    def size(self) -> int:
        """The number of workers meant to stay in the pool, including those still starting."""
        return sum(map(self.stays, self.by_id.values()))

    @property
    def ready(self) -> int:
        """The number of ready workers meant to stay in the pool."""
        return sum(self.stays(worker) and worker.is_up for worker in self.by_id.values())

    @property
    def available(self) -> bool:
        """True if a worker is ready and healthy, or no worker is expected to be.

        The latter applies while the pool starts its first worker for the first call, or recycles its only worker.
        """
        alive = [worker for worker in self.by_id.values() if worker.phase.alive]
        ready = any(worker.is_up and worker.healthy for worker in alive)
        return ready or all(worker.planned and not worker.is_up for worker in alive)

    @property
    def free_capacity(self) -> int:
        """How many more slots would be available if the pool grew to its maximum size and all workers were ready."""
        return self.concurrency * (self.high - self.ready)

    @property
    def outdated(self) -> list[PoolWorker]:
        """The workers from earlier generations that are not being drained yet."""
        return [worker for worker in self if worker.generation != self.generation and worker.end_cause is None]

    def wanted(self, waiting: int) -> int:
        """Return how many workers the pool needs if ``waiting`` calls are waiting."""
        usable = [worker for worker in self if worker.end_cause is None]
        calls = waiting + sum(worker.leases for worker in usable)
        unhealthy = sum(not worker.healthy for worker in usable)
        return min(self.high, max(self.low, unhealthy + math.ceil(calls / self.concurrency)))

    def in_excess(self) -> list[PoolWorker]:
        """Return the workers that exceed the maximum size, least useful first."""
        staying = sorted(filter(self.stays, self), key=_usefulness)
        return staying[: max(0, self.size - self.high)]


def _usefulness(worker: PoolWorker) -> tuple[bool, bool, int, float]:
    return (worker.is_up, worker.healthy, worker.leases, worker.idle_since)
