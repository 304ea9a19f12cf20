"""The single task that makes all decisions about a supervisor's children.

Every event is a message in the task's mailbox: a child has ended, a start has finished, a backoff has expired, or a
caller has requested an operation. Messages are handled one at a time. A report from a worker includes the child's
generation, and is ignored if the worker has been replaced in the meantime. The loop never waits for a child to start,
because a start that hangs would block the other children. It does wait for children to stop, because the time for that
is limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._util import reason_of, with_stderr
from lifecycle.errors import DoNotRestart, InvalidTransition, LifecycleError, RestartLimitReached, WorkerFailed
from lifecycle.events import StatusEvent
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.containment.guard import GuardRef
from lifecycle.workers.model import (
    FINAL,
    NOT_RESTARTED,
    End,
    Status,
    as_failure,
    cannot_start,
    failed,
    note_stderr,
    stopped_early,
)
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.specs import (
    CONTROL_EXCEPTIONS,
    AutoShutdown,
    Budget,
    OnLimit,
    Spec,
    StopOrder,
    Strategy,
    Verdict,
    affected,
    cause_of,
    ends_with,
    verdict,
)
from lifecycle.workers.supervision.child import Child, end_of
from lifecycle.workers.supervision.stopping import Stopper, resume_all, suspend_all
from lifecycle.workers.supervision.watch import Watches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from lifecycle.backoff import Intensity
    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit, ProbeResult

    Message: TypeAlias = Callable[[], Awaitable[None]]
    #: A function that is called with its caller's future. When the future is done, the caller is no longer waiting.
    Operation: TypeAlias = Callable[[asyncio.Future[Any]], Awaitable[Any]]

__all__ = ["SupervisorLoop"]

_log = logging.getLogger("lifecycle.workers")


class SupervisorLoop:
    """Manages the children of ``supervisor``.

    Calls ``on_failure`` when the supervisor starts shutting down because of an error.
    """

    def __init__(
        self,
        supervisor: BaseWorker,
        on_failure: Callable[[], None],
        *,
        strategy: Strategy,
        intensity: Intensity | None,
        on_limit: OnLimit,
        auto_shutdown: AutoShutdown,
        stop_order: StopOrder,
    ) -> None:
        self.supervisor = supervisor
        self.name: str = supervisor.name
        #: The children by name, in start order.
        self.children: dict[str, Child] = {}
        self.watches: Final = Watches()
        #: The names of the significant children whose end ended the supervisor.
        self.ended_by: tuple[str, ...] = ()
        self._on_failure = on_failure
        self._strategy = strategy
        self._auto_shutdown = auto_shutdown
        self._budget = Budget(supervisor.name, intensity, pauses=on_limit is OnLimit.PAUSE)
        self._mailbox = Mailbox()
        self._stopper = Stopper(stop_order, self.note, self._end_with)
        self._queue = StartQueue(self._mailbox)
        # Keeps the guard process running, so that restarts don't have to wait for a new guard.
        self._guard = GuardRef()
        # True while the supervisor is suspended. During this time, no child is started.
        self._suspended = False
        # Messages delayed until the supervisor is resumed, with the child that each message starts and the child's
        # generation.
        self._held: deque[tuple[Child, int, Message]] = deque()
        # Set when the supervisor must stop, so that long operations give up.
        self._halted = asyncio.Event()
        # True once the supervisor is shutting down for any reason.
        self._ending = False
        # How the supervisor ends, including its error, if any.
        self._end = End()
        self._started: asyncio.Future[WorkerFailed | None] | None = None

    # -- from the start to the end ----------------------------------------------------------------------------------

    def begin(self) -> asyncio.Task[End]:
        """Start the children in order. Return a task that finishes when the supervisor ends."""
        self._started = asyncio.get_running_loop().create_future()
        return start_task(self._run(self._started), name=f"supervisor {self.name}")

    async def wait_started(self) -> None:
        """Wait until all children have started.

        Raises:
            WorkerFailed: if a child could not start. All other children have already been stopped.
        """
        assert self._started is not None, "begin() comes first"
        if error := await asyncio.shield(self._started):
            raise error

    def halt(self) -> None:
        """Stop all children, and end the loop."""
        self._halted.set()
        self._mailbox.post(self._halt)

    def kill(self) -> None:
        """Kill all children that are still running."""
        self._stopper.kill(self.children.values())

    @property
    def error(self) -> BaseException | None:
        """The error that caused or is causing the supervisor to end."""
        return self._end.error

    async def _run(self, started: asyncio.Future[WorkerFailed | None]) -> End:
        # Don't start children that were stopped before the supervisor was started.
        self._queue.fill([child for child in self.children.values() if child.idle_status is Status.CREATED])
        try:
            while not self._ending:
                message = await self._mailbox.take()
                await message()
                self._advance()
        finally:
            self._ending = True
            self._queue.clear()
            await self._stopper.stop_all(list(self.children.values()))
            await self._stopper.wait_killed()
            await self._guard.release()
            self._dismiss(started)
        return self._end

    async def _halt(self) -> None:
        self._ending = True

    def _end_with(self, error: BaseException | None) -> None:
        """End the supervisor. If ``error`` is given, the supervisor fails. Only the first call has an effect."""
        if not self._ending:
            self._ending, self._end = True, End(error=error)
            if error is not None:
                self._on_failure()

    def _advance(self) -> None:
        """Start the next child in the queue. When the queue is empty for the first time, the supervisor has started."""
        child = self._queue.next()
        if child is not None and not self._suspended and not self._ending:
            self._start(child)
        if self._queue.empty and self._starting_up and not self._ending:
            assert self._started is not None, "it is starting up"
            self._started.set_result(None)

    @property
    def _starting_up(self) -> bool:
        return self._started is not None and not self._started.done()

    def _dismiss(self, started: asyncio.Future[WorkerFailed | None]) -> None:
        """Complete the futures of all callers that are still waiting."""
        for child in self.children.values():
            if child.has_callers:
                child.answer_callers(stopped_early(child.spec.name))
        self._mailbox.dismiss(InvalidTransition(f"the supervisor {self.name!r} has ended; nothing was done"))
        if not started.done():
            error = self._end.error
            started.set_result(None if error is None else as_failure(self.name, error))

    def note(self, child: Child) -> None:
        """If the details of ``child`` have changed, announce and publish them."""
        watched = self.watches.used and self.watches.active
        if not (watched or hooks.component_changed.receivers):
            return
        before, now = child.announce()
        if now == before:
            return
        hooks.component_changed.announce(self.supervisor, component=self.supervisor)
        if watched and now.in_events != before.in_events:
            self.watches.publish(StatusEvent(child.spec.name, before.status, now.status, child.state()))

    # -- a start ----------------------------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        """Begin to start ``child``, which has no worker. A message passes the outcome to `_start_done`."""
        generation = child.begin_start(self._worker_changed)
        assert child.starting is not None, "it was begun"
        child.starting.add_done_callback(lambda _: self._mailbox.post(partial(self._start_done, child, generation)))
        if child.restarts:
            hooks.worker_restarted.announce(self.supervisor, child=child.spec.name, restarts=child.restarts)
        self.note(child)

    async def _start_done(self, child: Child, generation: int) -> None:
        if child.generation != generation or child.starting is None:
            return
        starting, child.starting = child.starting, None
        error = asyncio.CancelledError("cancelled") if starting.cancelled() else starting.result()
        if error is not None:
            await self._start_failed(child, error)
            return
        assert child.worker is not None, "a start that succeeded has made one"
        child.note_started()
        if isinstance(child.worker, ProcessWorker):
            self._guard.acquire()
        self._queue.discard(child)
        self._expect_end(child, child.worker)
        self.note(child)
        child.answer_callers()

    async def _start_failed(self, child: Child, error: BaseException) -> None:
        """Handle a failed start: pass the error to the waiting callers, or apply the policy if no caller is waiting."""
        ended = await self._stopper.reap(child, error)
        child.note_ended(ended)
        # If ``first`` is true, the supervisor itself is still starting, so a child that fails to start makes it fail.
        cause, first = cause_of(error), self._starting_up and child in self._queue
        if isinstance(cause, CONTROL_EXCEPTIONS):
            self._queue.discard(child)
            if isinstance(cause, DoNotRestart):
                # The child has nothing to do, as with `ignore` in OTP. This is not a failure, and does not end the
                # supervisor even if the child is significant.
                child.idle_status = Status.STOPPED
            else:
                self._end_with(cause)
        elif child.has_callers:
            self._refuse(child, error)
        elif child.retries_first_start:
            self._retry_first_start(child, error)
        elif first:
            self._end_with(cannot_start(self.name, error, child=child.spec.name))
        elif verdict(child.spec.restart, ended) is Verdict.RESTART:
            await self._schedule_restart(child, child.generation, error)
        else:
            self._queue.discard(child)
            self._log_failure(child, ended)
            self._leave(child)
        child.answer_callers(None if isinstance(cause, DoNotRestart) else error)
        self.note(child)

    def _refuse(self, child: Child, error: BaseException | None = None) -> None:
        """Report to the callers that ``child`` was not started. If it has just been added, remove it."""
        self._queue.discard(child)
        if child.provisional:
            self.forget(child)
        child.answer_callers(error or stopped_early(child.spec.name))

    def forget(self, child: Child) -> None:
        """Remove ``child``, which has no worker."""
        del self.children[child.spec.name]
        hooks.component_changed.announce(self.supervisor, component=self.supervisor)

    # -- an end -----------------------------------------------------------------------------------------------------

    def _expect_end(self, child: Child, worker: Worker) -> None:
        """Watch ``worker`` and probe its health. When the worker ends, a message is posted.

        A `BaseWorker` reports through `_worker_changed` that it has ended. For other workers, we need a task that
        waits.
        """
        generation = child.generation
        if worker.status in FINAL:
            self._report_end(child, generation)
        elif not isinstance(worker, BaseWorker):
            waiting = self._wait_for_end(child, generation, worker)
            child.wait_task = start_task(waiting, name=f"end of {child.spec.name}")
        if child.spec.probe_interval is not None:
            probing = child.keep_probing(child.spec.probe_interval, partial(self._probed, child, generation))
            child.probe_task = start_task(probing, name=f"health of {child.spec.name}")

    def _worker_changed(self, child: Child, generation: int, _old: Status, new: Status) -> None:
        """Record a status change of a `BaseWorker`. If it has ended, report that, unless it was stopped or replaced."""
        if new is Status.STARTING and isinstance(watches := getattr(child.worker, "_watches", None), Watches):
            watches.attach(self.watches, child.spec.name)
        self.note(child)
        if new in FINAL and child.live and child.generation == generation:
            self._report_end(child, generation)

    async def _wait_for_end(self, child: Child, generation: int, worker: Worker) -> None:
        self._report_end(child, generation, await end_of(worker))

    def _report_end(self, child: Child, generation: int, ended: Exit | None = None) -> None:
        self._mailbox.post(partial(self._worker_ended, child, generation, ended))

    async def _worker_ended(self, child: Child, generation: int, ended: Exit | None) -> None:
        if child.generation != generation or child.worker is None:
            return
        if ended is None:
            ended = await end_of(child.worker)
        elif child.worker.status not in FINAL:
            # The worker's `wait` failed, so the worker may still be running. It must not overlap with its successor.
            await self._stopper.stop_worker(child.worker, child.spec.stop_timeout)
        child.note_ended(ended)
        self.note(child)
        match verdict(child.spec.restart, ended):
            case Verdict.ESCALATE:
                self._end_with(cause_of(ended.error))
            case Verdict.LEAVE:
                self._log_failure(child, ended)
                self._leave(child)
            case Verdict.RESTART:
                await self._schedule_restart(child, generation, ended.error)

    def _log_failure(self, child: Child, ended: Exit) -> None:
        """Log that ``child`` failed and will not be restarted. Don't log a `DoNotRestart`."""
        error = ended.error
        if error is not None and not isinstance(cause_of(error), DoNotRestart):
            _log.error(NOT_RESTARTED, child.spec.name, _reason(error), exc_info=_with_traceback(error))

    def _leave(self, child: Child) -> None:
        """Leave ``child`` stopped, which may end the supervisor."""
        # This is a generator, because most supervisors don't have to look at the other children.
        others = (each for each in self.children.values() if each is not child and each.spec.significant)
        at_work = (each for each in others if self._is_at_work(each))
        if ends_with(self._auto_shutdown, significant=child.spec.significant, others=at_work):
            _log.info("%r ends because its significant child %r is %s", self.name, child.spec.name, child.status)
            every = self._auto_shutdown is AutoShutdown.ALL_SIGNIFICANT
            self.ended_by = tuple(
                each.spec.name for each in self.children.values() if each is child or (every and each.spec.significant)
            )
            self._end_with(None)

    def _is_at_work(self, child: Child) -> bool:
        """Return True if ``child`` is running or will be started."""
        return child.active or child in self._queue or self._is_held(child)

    def _probed(self, child: Child, generation: int, bad: int, answer: ProbeResult) -> None:
        self.note(child)
        if child.spec.restart_unhealthy and bad == child.spec.failures:
            self._mailbox.post(partial(self._unhealthy, child, generation, answer))

    async def _unhealthy(self, child: Child, generation: int, answer: ProbeResult) -> None:
        if child.generation != generation or not child.live:
            return
        failures = child.spec.failures
        error = WorkerFailed(f"{child.spec.name!r} was unhealthy {failures} times in a row: {answer.message}")
        await self._stopper.stop(child)
        ended = child.exit or failed(error)
        note_stderr(error, ended.stderr)
        child.note_ended(replace(ended, status=Status.FAILED, error=error))
        self.note(child)
        await self._schedule_restart(child, child.generation, error)

    # -- a restart --------------------------------------------------------------------------------------------------

    async def _schedule_restart(self, child: Child, generation: int, error: BaseException | None) -> None:
        """Restart ``child`` and its group after the backoff, if the circuit breaker and the restart limit allow it."""
        if child.generation != generation:
            # A suspension delayed the message, and a caller has started or stopped the child in the meantime.
            return
        if self._suspended:
            self._held.append((child, generation, partial(self._schedule_restart, child, generation, error)))
            return
        now, name = asyncio.get_running_loop().time(), child.spec.name
        if child.count_restart(now):
            self._open_circuit(child, error)
            return
        error = error or WorkerFailed(f"{name!r} {child.status}, and has to run")
        try:
            at = self._budget.spend(now, name, error)
        except RestartLimitReached as limit:
            _log.error("%s", limit)
            self._end_with(limit)
            return
        delay = max(at - now, child.take_delay())
        self._announce_restart(child, delay, error)
        if self._strategy is Strategy.ONE_FOR_ONE:
            self._start_after(delay, child)
        else:
            await self._restart_group(child, delay)

    def _retry_first_start(self, child: Child, error: BaseException) -> None:
        """Start ``child``, which has never run, after its backoff. Its siblings are not restarted."""
        self._queue.discard(child)
        if child.count_restart(asyncio.get_running_loop().time()):
            self._open_circuit(child, error)
            return
        delay = child.take_delay()
        self._announce_restart(child, delay, error)
        self._start_after(delay, child)

    def _announce_restart(self, child: Child, delay: float, error: BaseException) -> None:
        name, reason = child.spec.name, _reason(error)
        _log.warning("%r will be restarted in %.1f s: %s", name, delay, reason, exc_info=_with_traceback(error))
        hooks.restart_scheduled.announce(self.supervisor, child=name, delay=delay, error=error)

    def _start_after(self, delay: float, child: Child) -> None:
        self._show_pending(child)
        child.backoff_timer = self._mailbox.post_after(delay, partial(self._start_due, child, child.generation))

    async def _restart_group(self, child: Child, delay: float) -> None:
        group = affected(self._strategy, list(self.children.values()), child)
        self._queue.clear()
        await self._stopper.stop_all([each for each in group if each is not child])
        restarted = [each for each in group if each is child or each.restarts_with_group]
        for each in group:
            if each in restarted:
                self._show_pending(each)
            elif each.has_callers:
                # A caller requested this start, but the child has been stopped, and its policy does not allow a
                # restart.
                self._refuse(each)
        self._queue.fill(restarted, delay)

    async def _start_due(self, child: Child, generation: int) -> None:
        """Start ``child`` now, unless it has been started or stopped in the meantime."""
        if child.generation != generation:
            return
        if self._suspended:
            self._held.append((child, generation, partial(self._start_due, child, generation)))
        else:
            self._start(child)

    def _show_pending(self, child: Child) -> None:
        child.idle_status = Status.PENDING
        self.note(child)

    def _open_circuit(self, child: Child, error: BaseException | None) -> None:
        """Open the circuit breaker after ``child`` ended with ``error``. The supervisor and siblings keep running."""
        backoff, name = child.spec.backoff, child.spec.name
        many = f"more than {backoff.max_restarts} restart{'s'[: backoff.max_restarts != 1]} within {backoff.within:g} s"
        _log.error("gave up on %r after %s", name, many, exc_info=_with_traceback(error))
        child.circuit_open, child.idle_status = True, Status.FAILED
        self._queue.discard(child)
        self.note(child)
        hooks.circuit_opened.announce(self.supervisor, child=name, restarts=child.restarts)
        self._leave(child)

    # -- operations requested by callers ------------------------------------------------------------------------------

    def child(self, name: str) -> Child:
        """Return the child ``name``.

        Raises:
            KeyError: if there is no such child. The message lists the names of the children.
        """
        if name not in self.children:
            known = ", ".join(map(repr, self.children)) or "no children"
            raise KeyError(f"{self.name!r} has no child {name!r}; it has {known}")
        return self.children[name]

    def register(self, spec: Any) -> Child:
        """Add a child after the others, without starting it. A child of the same name that has ended is replaced.

        Raises:
            TypeError, ValueError: if ``spec`` is not a valid child.
        """
        if not isinstance(spec, Spec):
            several = "; unpack a list with *specs" if isinstance(spec, list | tuple) else ""
            raise TypeError(f"a child of {self.name!r} must be a Spec(name, child), got {spec!r}{several}")
        former = self.children.get(spec.name)
        if former is not None and (former.idle_status not in FINAL or self._is_at_work(former)):
            raise ValueError(
                f"{self.name!r} already has a child {spec.name!r}, which is {former.status}; remove it first"
            )
        if spec.significant and self._auto_shutdown is AutoShutdown.NEVER:
            raise ValueError(f"{spec.name!r} is significant, but auto_shutdown of {self.name!r} is 'never'")
        if former is not None:
            self.forget(former)
        child = self.children[spec.name] = Child(spec)
        return child

    async def by_hand(self, operation: Callable[[Any], Awaitable[asyncio.Future[None] | None]], on: Any) -> None:
        """Run one of the following operations as a message. If it starts a child, wait for the outcome.

        If the caller stops waiting and the child then fails to start, its restart policy applies.
        """
        started: asyncio.Future[None] | None = None

        async def in_turn(caller: asyncio.Future[Any]) -> None:
            nonlocal started
            started = await operation(on)
            if started is not None and caller.done():
                started.cancel()

        try:
            await self._mailbox.call(in_turn)
            if started is not None:
                await started
        finally:
            if started is not None:
                started.cancel()

    async def add(self, spec: Spec) -> asyncio.Future[None] | None:
        """Add a child and start it. Return a future for the outcome, or None if the supervisor is suspended."""
        child = self.register(spec)
        if self._suspended:
            self._hold(child)
            return None
        child.provisional = True
        outcome = child.add_caller()
        if self._queue.empty:
            self._start(child)
        else:
            self._queue.add(child)
            if not self._starting_up:
                # The queue is not empty, because a group is waiting to be restarted.
                self._show_pending(child)
        return outcome

    async def remove(self, name: str) -> None:
        """Stop the child ``name`` and remove it."""
        child = await self.stop_now(name)
        self.forget(child)
        child.answer_callers(stopped_early(name))

    async def stop_child(self, name: str) -> None:
        """Stop the child ``name`` but keep it. If `add` is still waiting for it to start, remove the child."""
        child = await self.stop_now(name)
        if child.provisional and child.has_callers:
            self._refuse(child)
        else:
            child.answer_callers(stopped_early(name))

    async def restart(self, name: str) -> asyncio.Future[None] | None:
        """Stop the child ``name`` if it is running, and start it. Forget any earlier failures."""
        child = await self.stop_now(name)
        if not (child.provisional and child.has_callers):
            # Otherwise, a caller of `add` is waiting. Make it wait for the new start instead of the one that was
            # stopped.
            child.provisional = False
            child.answer_callers(stopped_early(name))
        child.reset_failures()
        if self._suspended:
            self._hold(child)
            return None
        outcome = child.add_caller()
        self._start(child)
        return outcome

    async def stop_now(self, name: str) -> Child:
        """Stop the child ``name`` as part of the current message.

        Raises:
            InvalidTransition: if the supervisor stops meanwhile. It then stops all children, including this one.
        """
        child = self.child(name)
        self._queue.discard(child)
        await self._unless_given_up(self._stopper.stop(child))
        return child

    # -- suspension -------------------------------------------------------------------------------------------------

    async def suspend(self, done: Callable[[], object]) -> None:
        """Suspend the children and call ``done``, unless the supervisor is already suspended.

        If the caller stops waiting or the supervisor stops, the suspended children are resumed. A child that is
        starting is stopped, and is started again when the supervisor is resumed.

        Raises:
            WorkerFailed: if a child cannot be suspended. The other children are then resumed.
        """
        await self._mailbox.call(partial(self._suspend, done))

    async def _suspend(self, done: Callable[[], object], caller: asyncio.Future[Any]) -> None:
        if self.supervisor.status is Status.SUSPENDED:
            return
        self._suspended = True
        try:
            for child in list(self.children.values()):
                if child.starting is not None:
                    await self._stopper.stop(child)
                    self._hold(child)
                # Wake callers waiting for the child to start. Otherwise, a task that starts a child and then resumes
                # the supervisor would deadlock.
                child.answer_callers()
            await self._unless_given_up(suspend_all(list(self.children.values())), caller)
            done()
        except BaseException:
            await self._release()
            raise

    async def resume(self, done: Callable[[], object]) -> None:
        """Resume the children, call ``done``, and start the delayed children. Do nothing if we are not suspended.

        Raises:
            WorkerFailed: if a child cannot be resumed. The other children are then suspended again.
        """
        await self._mailbox.call(partial(self._resume, done))

    async def _resume(self, done: Callable[[], object], caller: asyncio.Future[Any]) -> None:
        if self.supervisor.status is Status.RUNNING:
            return
        await self._unless_given_up(resume_all(list(self.children.values())), caller)
        done()
        await self._release()

    def _hold(self, child: Child) -> None:
        """Don't start ``child``, which has no worker, until the supervisor is resumed."""
        self._show_pending(child)
        if child not in self._queue:
            generation = child.generation
            self._held.append((child, generation, partial(self._start_due, child, generation)))

    def _is_held(self, child: Child) -> bool:
        """Return True if ``child`` will be started once the supervisor is resumed."""
        return any(held is child and generation == child.generation for held, generation, _message in self._held)

    async def _release(self) -> None:
        self._suspended = False
        # Remove the messages one at a time. Children with a delayed message are treated as running, which keeps the
        # supervisor from ending too early.
        while self._held:
            _child, _generation, message = self._held.popleft()
            if not (self._halted.is_set() or self._ending):
                await message()

    async def _unless_given_up(self, work: Coroutine[Any, Any, None], *callers: asyncio.Future[Any]) -> None:
        """Await ``work``, but cancel it if a caller or the supervisor gives up.

        Otherwise, this could wait forever, because a gate might never be reached.
        """
        doing = start_task(work)
        halted = start_task(self._halted.wait())
        try:
            await asyncio.wait([doing, halted, *callers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            halted.cancel()
            doing.cancel()
            await asyncio.wait([doing, halted])
        if doing.cancelled():
            raise InvalidTransition(
                f"{self.name!r} abandoned the change, because it must stop or its caller is no longer waiting"
            )
        doing.result()


def _reason(error: BaseException) -> str:
    """Describe for the log why a child ended with ``error``."""
    return with_stderr(reason_of(error), error)


def _with_traceback(error: BaseException | None) -> BaseException | None:
    """Return ``error`` if the log should show its traceback. This library's own errors only need one line."""
    return None if isinstance(error, LifecycleError) else error


class Mailbox:
    """A queue of messages, which are functions. Callers can wait for a message's result."""

    def __init__(self) -> None:
        # The queue needs no limit, because it contains at most two messages per worker and one per caller.
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._calls: set[asyncio.Future[Any]] = set()
        # The error to raise in callers after the mailbox has been closed.
        self._closed: Exception | None = None

    async def take(self) -> Message:
        """Wait for the next message, and return it."""
        return await self._messages.get()

    def post(self, message: Message) -> None:
        """Add ``message``."""
        self._messages.put_nowait(message)

    def post_after(self, delay: float, message: Message) -> asyncio.TimerHandle | None:
        """Post ``message`` after ``delay`` seconds, and return the timer. If there is no delay, return None."""
        if delay <= 0:
            self.post(message)
            return None
        return asyncio.get_running_loop().call_later(delay, self.post, message)

    async def call(self, operation: Operation) -> Any:
        """Run ``operation`` as a message, unless the caller gives up first. Return its result or raise its error."""
        if self._closed is not None:
            raise self._closed
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.add(future)
        self.post(partial(_answer, future, operation))
        try:
            return await future
        finally:
            self._calls.discard(future)

    def dismiss(self, error: Exception) -> None:
        """Raise ``error`` in all current and future callers, because no more messages will be handled."""
        self._closed = error
        for future in self._calls:
            if not future.done():
                future.set_exception(error)


async def _answer(future: asyncio.Future[Any], operation: Operation) -> None:
    if future.done():
        return
    try:
        result = await operation(future)
    except Exception as error:  # noqa: BLE001  # raised in the caller
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class StartQueue:
    """A queue of children to start one at a time.

    A supervisor uses the same queue to start its children initially and to restart groups.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        # Only the first child can be in the process of starting.
        self._children: list[Child] = []
        # Incremented when the contents are replaced, which invalidates timers for earlier contents.
        self._number = 0
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, child: Child) -> bool:
        return child in self._children

    @property
    def empty(self) -> bool:
        """True if the queue is empty."""
        return not self._children

    def fill(self, children: Sequence[Child], delay: float = 0.0) -> None:
        """Replace the contents of the queue with ``children``. The first one starts after ``delay`` seconds."""
        self.clear()
        self._children = list(children)
        number, self._waiting = self._number, True

        async def due() -> None:
            if number == self._number:
                self._waiting = False

        self._timer = self._mailbox.post_after(delay, due)

    def add(self, child: Child) -> None:
        """Add ``child`` to the end of the queue."""
        self._children.append(child)

    def discard(self, child: Child) -> None:
        """Remove ``child`` from the queue, if present."""
        if child in self._children:
            self._children.remove(child)

    def next(self) -> Child | None:
        """Return the first child if the delay has passed and it is not starting yet; otherwise, return None."""
        first = self._children[0] if self._children and not self._waiting else None
        return None if first is None or first.starting is not None else first

    def clear(self) -> None:
        """Remove all children."""
        if self._timer is not None:
            self._timer.cancel()
        self._children, self._timer = [], None
        self._number += 1
