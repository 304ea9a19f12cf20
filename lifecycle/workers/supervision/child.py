"""A child of a supervisor, which outlives each of its workers.

A `Child` starts and probes its worker, and counts failures. All decisions are made by the supervisor's `loop`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle._async import start_task, was_cancelled
from lifecycle._util import error_text, reason_of
from lifecycle.backoff import Intensity
from lifecycle.errors import WorkerFailed
from lifecycle.workers.base import ATTEMPT, PREV_EXIT, RESUME_ID, BaseWorker, Worker, previous_exit
from lifecycle.workers.model import AT_WORK, ProbeResult, Status, WorkerState, as_failure, failed, stopped_early
from lifecycle.workers.probes import answer_of, parse_probe
from lifecycle.workers.specs import FirstStart, Restart
from lifecycle.workers.stdio import RecentLines

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable

    from lifecycle.workers.model import Exit
    from lifecycle.workers.probes import Probe
    from lifecycle.workers.specs import Spec

    #: A function called with the child, its worker's generation, and the worker's old and new status.
    Listener = Callable[["Child", int, Status, Status], None]

__all__ = ["Child", "end_of", "probe_all"]

_log = logging.getLogger("lifecycle.workers")


class Announced(NamedTuple):
    """The details of a child that its supervisor announces when they change."""

    status: Status
    health: ProbeResult | None
    circuit_open: bool

    @property
    def in_events(self) -> tuple[Status, bool, bool]:
        """The details that cause a `StatusEvent` when they change. These don't include probe messages."""
        return self.status, self.health is None or self.health.healthy, self.circuit_open


class Child:
    """A child of a supervisor, with its current worker."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        # An id that remains the same for all of the child's workers.
        self._resume_id = secrets.token_hex(16)
        self._probe = None if spec.probe is None else parse_probe(spec.probe, spec.name)
        self._created_at = time.time()
        #: Incremented whenever the child is started or stopped. Reports with a lower number are outdated, so they are
        #: ignored.
        self.generation: int = 0
        #: The current or most recent worker. None before the first worker, and while a new worker is being created.
        self.worker: Worker | None = None
        #: True from when the worker has started until it has ended.
        self.live: bool = False
        #: True if a worker has ever been running.
        self.has_run: bool = False
        #: The task that is starting a worker, or None if no start is in progress.
        self.starting: asyncio.Task[BaseException | None] | None = None
        self._idle_status = Status.CREATED
        # When the idle status or health last changed, in seconds since the epoch.
        self._changed_at = 0.0
        #: True while `add` is waiting for a new child to start for the first time. If it fails to start, it is removed.
        self.provisional: bool = False
        self._announced = Announced(Status.CREATED, None, circuit_open=False)
        #: How the most recent worker ended.
        self.exit: Exit | None = None
        self._health: ProbeResult | None = None
        #: True if the circuit breaker is open. In that case, the child stays stopped until a caller restarts it.
        self.circuit_open: bool = False
        #: The backoff timer.
        self.backoff_timer: asyncio.TimerHandle | None = None
        #: The task that probes the worker.
        self.probe_task: asyncio.Task[None] | None = None
        #: The task that waits until a worker without `on_change` has ended.
        self.wait_task: asyncio.Task[None] | None = None
        # Futures for callers waiting until the child has started or failed to start.
        self._callers: list[asyncio.Future[None]] = []
        # The most recent lines of output, across all of the child's workers.
        self._recent: RecentLines | None = None
        # How many times the child has been started.
        self._attempt = 0
        # How many times the child has failed in a row.
        self._retry = 0
        # The loop's clock, and the time when the worker started running.
        self._clock: Callable[[], float] = time.monotonic
        self._running_since: float | None = None
        # How long the worker ran before the last failure, in seconds.
        self._ran = 0.0
        # The times of the restarts counted by the circuit breaker, newest first.
        self._restarts: deque[float] | tuple[()] = ()

    def __repr__(self) -> str:
        return f"<Child {self.spec.name!r}: {self.status}, generation {self.generation}>"

    # -- its state ------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """The child's status, whether or not it has a worker."""
        if self.live or self.starting is not None:
            worker = self.worker
            return Status.STARTING if worker is None or worker.status == Status.CREATED else worker.status
        return self._idle_status

    @property
    def idle_status(self) -> Status:
        """The status while no worker is running."""
        return self._idle_status

    @idle_status.setter
    def idle_status(self, status: Status) -> None:
        if status is not self._idle_status:
            self._idle_status, self._changed_at = status, time.time()

    @property
    def restarts(self) -> int:
        """How many times the child has been restarted."""
        return max(0, self._attempt - 1)

    @property
    def active(self) -> bool:
        """True if the child is running, starting, or waiting for a restart."""
        return self.live or self.starting is not None or self._idle_status == Status.PENDING

    @property
    def retries_first_start(self) -> bool:
        """True if a failed start should be retried because the child has never run."""
        return self.spec.first_start == FirstStart.RETRY and not self.has_run

    @property
    def restarts_with_group(self) -> bool:
        """True if the child should be restarted along with a sibling."""
        return self.spec.restart != Restart.NEVER and not self.circuit_open

    def state(self) -> WorkerState:
        """Return the state of the child's worker, including the information that only a supervisor has."""
        known: dict[str, Any] = {
            "status": self.status,
            "restarts": self.restarts,
            "circuit": "open" if self.circuit_open else "closed",
            "health": self._health,
        }
        name = self.spec.name
        if isinstance(self.worker, BaseWorker):
            return self.worker._state_as(name, changed_at=self._changed_at, **known)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # same package
        error = None if self.exit is None or self.exit.error is None else reason_of(self.exit.error)
        if self.worker is not None:
            try:
                state = self.worker.state()
                return replace(state, name=name, updated_at=max(state.updated_at, self._changed_at), **known)
            except Exception as failure:  # noqa: BLE001  # an error in user code must not hide the siblings
                error = f"state() failed: {reason_of(failure)}"
        at = self._created_at
        updated_at = max(at, self._changed_at)
        return WorkerState(name, self.spec.kind, error=error, created_at=at, updated_at=updated_at, **known)

    def announce(self) -> tuple[Announced, Announced]:
        """Return the previously announced and the current details, and mark the latter as announced."""
        before, self._announced = self._announced, Announced(self.status, self._health, self.circuit_open)
        return before, self._announced

    # -- a start --------------------------------------------------------------------------------------------------

    def begin_start(self, listener: Listener) -> int:
        """Start a new worker in the task `starting`, and return the worker's generation.

        The task's result is the error that prevented the start, or None.
        """
        self.generation += 1
        self._attempt += 1
        self.worker, self._health = None, None
        self.starting = start_task(self._start(listener), name=f"start of {self.spec.name}")
        return self.generation

    async def _start(self, listener: Listener) -> BaseException | None:
        generation = self.generation
        try:
            worker = await _make(self.spec)
            if self.generation != generation:
                # The child was stopped in the meantime, but user code swallowed the cancellation.
                return stopped_early(self.spec.name)
            self.worker = worker
            if isinstance(worker, BaseWorker):
                worker.on_change(partial(listener, self, generation))
                worker.supervised = True
            if isinstance(recent := getattr(worker, "recent", None), RecentLines):
                # A new worker's lines are appended to the previous worker's.
                self._recent = worker.recent = self._recent or recent  # type: ignore[attr-defined]  # checked above
            if callable(set_env := getattr(worker, "set_env", None)):
                set_env(RESUME_ID, self._resume_id)
                set_env(PREV_EXIT, previous_exit(self.exit))
                set_env(ATTEMPT, str(self._attempt))
            await worker.start()
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            return error
        except BaseException as error:  # noqa: BLE001  # the loop decides what to do, even for SystemExit
            return error
        return None

    def note_started(self) -> None:
        """Record that the start has succeeded."""
        self.live = self.has_run = True
        self._clock = asyncio.get_running_loop().time
        self._running_since, self.provisional = self._clock(), False

    def note_ended(self, ended: Exit) -> None:
        """Record that the worker has ended, or that it could not start."""
        # Don't update `_changed_at`, because the worker itself records when it ended.
        self.live, self.exit, self._idle_status = False, ended, ended.status
        if self._running_since is not None:
            # Compute this now. A suspension may delay the restart, and that delay is not part of the running time.
            self._ran = self._clock() - self._running_since
            self._running_since = None
        self.cancel_timers()

    def cancel_timers(self) -> None:
        """Cancel the backoff timer, the probes, and the task that waits for the worker to end."""
        if self.backoff_timer is None and self.probe_task is None and self.wait_task is None:
            # The usual case must be fast, because a supervisor may have thousands of children.
            return
        for each in (self.backoff_timer, self.probe_task, self.wait_task):
            if each is not None:
                each.cancel()
        self.backoff_timer = self.probe_task = self.wait_task = None

    # -- restarts ---------------------------------------------------------------------------------------------------

    def count_restart(self, now: float) -> bool:
        """Record a restart. Return True if it exceeds the limit, in which case the circuit breaker opens."""
        backoff = self.spec.backoff
        if not (backoff.max_restarts and backoff.within):
            return False
        circuit = Intensity(backoff.max_restarts, backoff.within)
        self._restarts = circuit.add(self._restarts, now)
        return circuit.exceeded(self._restarts)

    def take_delay(self) -> float:
        """Record a failure, and return how many seconds to wait before the next start.

        The delay grows with each failure, and is reset once a worker has run for ``reset_after`` seconds.
        """
        if self._ran >= self.spec.backoff.reset_after:
            self._retry = 0
        self._ran = 0.0
        self._retry += 1
        return self.spec.backoff.delay(self._retry - 1)

    def reset_failures(self) -> None:
        """Close the circuit breaker and forget earlier failures, because a caller is starting the child explicitly."""
        self.circuit_open, self._restarts, self._retry = False, (), 0

    # -- callers waiting for a start ------------------------------------------------------------------------------

    @property
    def has_callers(self) -> bool:
        """True if a caller is waiting until the child has started or failed to start."""
        return bool(self._callers) and any(not caller.done() for caller in self._callers)

    def add_caller(self) -> asyncio.Future[None]:
        """Return a future that completes once the child has started or failed to start."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers.append(future)
        return future

    def answer_callers(self, error: BaseException | None = None) -> None:
        """Pass the outcome of the start to the callers. A child that has started is no longer provisional."""
        self.provisional &= error is not None
        callers, self._callers = self._callers, []
        for future in callers:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(as_failure(self.spec.name, error))

    # -- health -----------------------------------------------------------------------------------------------------

    async def probe(self) -> ProbeResult:
        """Probe the worker, and store the result. The probe fails if it raises, it times out, or there is no worker."""
        worker, status = self.worker, self.status
        if worker is None or status not in AT_WORK:
            return ProbeResult(healthy=False, message=f"is {status}")
        generation = self.generation
        # A suspended worker cannot respond.
        extra = self._probe if status == Status.RUNNING else None
        result = await _answer(worker, extra, self.spec.probe_timeout)
        if self.generation == generation and result != self._health:
            self._health, self._changed_at = result, time.time()
        return result

    async def keep_probing(self, interval: float, report: Callable[[int, ProbeResult], None]) -> None:
        """Probe the worker every ``interval`` seconds. Report each result with the number of consecutive failures."""
        bad = 0
        while True:
            # The random variation prevents children that started together from being probed at the same time.
            await asyncio.sleep(interval * random.uniform(0.9, 1.1))  # noqa: S311  # no secret
            if self.status != Status.RUNNING:
                continue
            result = await self.probe()
            bad = 0 if result.healthy else bad + 1
            report(bad, result)


async def probe_all(children: Iterable[Child]) -> ProbeResult:
    """Probe all children concurrently. The result is healthy if all children that should be running are healthy."""
    # Ignore children that have finished or that a caller has stopped, because they are not unhealthy.
    probed = [child for child in children if child.status not in (Status.FINISHED, Status.STOPPED)]
    answers = zip(probed, await asyncio.gather(*(child.probe() for child in probed)), strict=True)
    ill = [f"{child.spec.name}: {answer.message or 'unhealthy'}" for child, answer in answers if not answer.healthy]
    return ProbeResult(not ill, "; ".join(ill))


async def _answer(worker: Any, extra: Probe | None, timeout: float) -> ProbeResult:
    """Run the worker's own probe and, if it succeeds, ``extra``. Return the last result."""
    probe = getattr(worker, "probe", None)
    answer: Any = ProbeResult(healthy=True)
    try:
        async with asyncio.timeout(timeout):
            if probe is not None:
                answer = await probe()
            if extra is not None and isinstance(answer, ProbeResult) and answer.healthy:
                checked = await answer_of(extra, worker)
                answer = answer if checked.healthy else checked
    except TimeoutError:
        return ProbeResult(healthy=False, message=f"no response within {timeout:g} s")
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        # The probe was awaiting a task that was cancelled by other code.
        return ProbeResult(healthy=False, message="cancelled")
    except Exception as error:  # noqa: BLE001  # the error is the result of the probe
        return ProbeResult(healthy=False, message=error_text(error))
    if isinstance(answer, ProbeResult):
        return answer
    return ProbeResult(healthy=False, message=f"its probe must return a ProbeResult, got {answer!r}")


async def _make(spec: Spec) -> Worker:
    """Create a new worker for ``spec``.

    Raises:
        WorkerFailed: if the spec's function returns a worker that has been started, or anything that is not a worker.
    """
    made = spec.make()
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, type) or not isinstance(made, Worker):
        raise WorkerFailed(f"the function of {spec.name!r} returned {made!r}, which is not a worker; return a new one")
    if made.status != "created":
        raise WorkerFailed(
            f"the function of {spec.name!r} returned {made!r}, which has been started before; "
            "return a new one each time"
        )
    return made


async def end_of(worker: Worker) -> Exit:
    """Wait until ``worker`` has ended. If its `wait` raises, log the error and treat the worker as failed."""
    try:
        return await worker.wait()
    except BaseException as error:  # the loop handles every error, even SystemExit
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            raise
        _log.exception("%r cannot report when it ends, so it is treated as failed", worker)
        return failed(error)
