"""`Engine`: runs one flow in phases. Each of the scheduler's decisions is stored, then announced, then carried out.

The first phase is RESUMING. After that, SCHEDULING, WAITING and ANALYZING repeat. Each change is stored before it is
announced, and before it causes a function call.

If no function is called between two phases, their changes are written in one transaction. For example, the changes from
RESUMING are written together with those from the first SCHEDULING. The changes from each ANALYZING are written with
those from the next SCHEDULING, or with the flow's final SUCCESS. A flow with one task therefore needs two transactions.

If the flow is suspended before a SCHEDULING phase's changes are announced, these changes are deleted from the store,
and their steps do not run. The decisions themselves are made in `decisions`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle._async import Condition, start_task, wait_within
from lifecycle._owners import program_stops
from lifecycle._util import current_flow, error_text
from lifecycle.errors import FlowError, InvalidTopic
from lifecycle.flows.decisions import Scheduler, StepResult
from lifecycle.flows.execution import NOTHING
from lifecycle.flows.records import Failure, OutboxRow, StepView, TaskContext
from lifecycle.flows.serializers import JSON, is_large, keep
from lifecycle.flows.states import ENGINES, FLOWS, EngineState, FlowState, StepState
from lifecycle.flows.stores.base import always, clock_of, is_storable, lost
from lifecycle.journal.threads import LoopThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.flows.decisions import Call, Options
    from lifecycle.flows.definition import Step, StepFunction
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import Change, Snapshot
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.states import Machine

__all__ = ["RUNNING", "STOP_MARGIN", "THREADS", "Engine", "Running", "current_task", "log_interrupted", "send"]

_log = logging.getLogger("lifecycle.flows")

#: A placeholder for the result of a function that the engine has cancelled.
_CANCELLED: Any = object()
#: Seconds to wait for a cancelled function to finish.
_CANCEL_TIMEOUT = 5.0
#: The maximum number of synchronous functions that run at the same time, each in a thread.
THREADS = 32
#: The maximum number of seconds until a flow stops after its tasks are cancelled. This includes waiting for tasks that
#: don't finish, and writing results.
STOP_MARGIN = _CANCEL_TIMEOUT + 2.0


class Engine:
    """Runs ``plan`` from the state in ``snapshot``. Call `prepare`, then `run`."""

    plan: Plan

    def __init__(  # the plan, its state, and the store
        self,
        plan: Plan,
        snapshot: Snapshot,
        *,
        store: Store,
        codec: Codec,
        options: Options,
        sender: object = None,
        threads: LoopThreads | None = None,
    ) -> None:
        self.plan, self._store, self._codec, self._options = plan, store, codec, options
        self.id: str = snapshot.flow.id
        self._epoch = snapshot.flow.epoch
        self.scheduler: Final = Scheduler(plan, snapshot, codec, options)
        self._work = self.scheduler.work
        #: Notified after changes are stored and announced.
        self.changed: Condition = Condition()
        #: Called in order with each change after it is stored. If a listener raises an error, the engine stops.
        self.listeners: list[Callable[[Change], object]] = []
        #: Called with each engine state, before the phase for that state runs.
        self.watchers: list[Callable[[EngineState], object]] = []
        #: Called once events sent by tasks have been stored.
        self.on_sent: Callable[[], object] | None = None
        self._sender = self if sender is None else sender
        # The flow's state machine, which is updated when a change is announced.
        self.flow: Machine[FlowState] = FLOWS.machine(self.id, self.scheduler.state)
        # The steps' state machines, by step name.
        self.steps: dict[str, Machine[StepState]] = {
            node.name: node.table.machine(node.name, node.state) for node in self.scheduler.steps
        }
        self.machine: Machine[EngineState] = ENGINES.machine(self.id)
        # The threads that run synchronous functions. If none are passed, the engine creates its own and closes them.
        self._threads, self._own_threads = threads or LoopThreads(f"flow {self.id}", THREADS), threads is None
        #: Returns False once this process's claim on the flow has expired.
        self.is_claimed: Callable[[], bool] = always
        self._executor = self._new_executor()
        self._clock: Callable[[], float] = store.time

    async def prepare(self, *, write: bool = True) -> None:
        """Change the state of a loaded flow so that it can run.

        If ``write`` is False, `run` stores the new rows later.

        Raises:
            ClaimLost: if another process has taken the flow.
        """
        self._work.now = time.time()
        self.scheduler.prepare()
        if write or self._work.pending:
            await self._flush()

    async def reset(self) -> None:
        """Delete all results, so that the flow can run again from the start.

        Raises:
            InvalidState: if the flow is neither PENDING nor ended.
            ClaimLost: if another process has taken the flow.
        """
        self._work.now = time.time()
        self.scheduler.reset()
        await self._flush()

    async def run(self) -> FlowState:
        """Run the flow until no more steps can run, and return its state.

        Raises:
            MissingDependencies: if an argument for a step is missing. No step has started.
            InvalidState: if the flow cannot run from its current state.
            ClaimLost: if another process has taken the flow; all running functions are cancelled.
            JournalError: if the store cannot be written to; all running functions are cancelled.
        """
        self.plan.check(self.scheduler.values.store.keys())
        self.machine, self._executor = ENGINES.machine(self.id), self._new_executor()
        self._work.now = time.time()
        self._clock = clock_of(self._store)
        self.scheduler.begin()
        try:
            await self._run_phases()
            return await self._end()
        finally:
            await self._executor.close()
            if self._own_threads:
                self._threads.close()

    def _new_executor(self) -> Executor:
        executor = Executor(self.id, self._codec, self._threads, self._sender)
        executor.is_claimed = self.is_claimed
        return executor

    def suspend(self, *, cancel_after: float | None = None) -> bool:
        """Stop starting steps. Return False if the flow cannot be suspended from its current state.

        Functions that are already running continue until they finish. If ``cancel_after`` is set, they are cancelled
        after that many seconds.
        """
        self._work.now = time.time()
        moved = self._work.move_flow(FlowState.SUSPENDING)
        if self.scheduler.state is FlowState.SUSPENDING:
            self._executor.suspend(cancel_after)
        return moved

    def result(self) -> dict[str, Any]:
        """Return all values that steps provide, by name."""
        return self.scheduler.values.provided()

    def error(self) -> BaseException | None:
        """Return the error or exception group that made the flow fail, or None if it did not fail."""
        return self.scheduler.error()

    def view(self) -> dict[str, StepView]:
        """Return the current data of all tasks and retries, by name."""
        return {
            node.name: StepView(
                node.kind,
                self.steps[node.name].state,
                node.intention,
                node.attempt,
                str(node.revert_failure or node.failure or ""),
            )
            for node in self.scheduler.steps
        }

    # -- the phases ---------------------------------------------------------------------------------------------------

    async def _run_phases(self) -> None:
        self._enter(EngineState.RESUMING)
        self.scheduler.resume()
        scheduling = True
        while scheduling or self._executor.is_busy:
            if scheduling and not await self._schedule():
                scheduling = False
                continue
            self._enter(EngineState.WAITING)
            await self._wait()
            self._enter(EngineState.ANALYZING)
            await self._analyze()
            scheduling = self.scheduler.may_schedule

    async def _schedule(self) -> bool:
        """Store the changes for steps that can run, then start them. Return False if the flow was suspended."""
        limit = self._options.concurrency
        before = self._work.pending
        self.scheduler.now = self._clock()
        calls = self.scheduler.schedule(None if limit is None else limit - len(self._executor))
        changes = await self._commit()
        for change in changes[:before]:
            self._announce(change)
        suspended = self.machine.state is EngineState.ANALYZING and self.scheduler.state is not FlowState.RUNNING
        if not suspended:
            self._enter(EngineState.SCHEDULING)
        if self.scheduler.state is FlowState.RUNNING:
            for change in changes[before:]:
                self._announce(change)
        elif begun := changes[before:]:
            self.scheduler.take_back(begun[0].seq)
            calls = []
        self.changed.notify_all()
        if self._work.is_open:
            await self._flush()
        for call in calls:
            self._executor.start(call)
        return not suspended

    async def _wait(self) -> None:
        if self._work.is_open:
            await self._flush()
        if self._executor and self._executor.finished:
            # Some steps had nothing to do and finished immediately. We wait for two loop iterations to give other fast
            # steps a chance to finish, so that all of them are written in one transaction.
            for _ in range(2):
                await asyncio.sleep(0)
        while self._executor and not self._executor.finished:
            await self._executor.changed.wait()
            self._executor.changed.clear()
            await self._flush()
        if self._executor.lost:
            raise lost(self.id, self._epoch)

    async def _analyze(self) -> None:
        finished, self._executor.finished = self._executor.finished, []
        for call, outcome in finished:
            if outcome is _CANCELLED:
                self.scheduler.cancel(call.node)
            elif isinstance(outcome, Failure) and program_stops():
                # The shutdown is not the outcome of a task. The task runs again when the flow continues.
                log_interrupted(self.id, call.node.name, outcome)
                self.suspend()
                self.scheduler.cancel(call.node)
            elif isinstance(outcome, Failure):
                self.scheduler.finish(call, outcome)
            else:
                large = is_large(outcome)
                self.scheduler.finish(call, await self._encode_large(call, outcome) if large else self._encode(outcome))
        self.scheduler.find_ready()
        if self.scheduler.may_schedule:
            return
        # If the flow succeeds, these changes are written together with its final state. If it is being reverted, they
        # have to be written first. Otherwise, a crash could cause a second revert, because a REVERTED flow that runs
        # again starts from the beginning.
        if self._executor.is_busy or self.scheduler.ending() is not FlowState.SUCCESS:
            await self._flush()

    async def _end(self) -> FlowState:
        """Store the flow's final state together with any earlier changes, and return it."""
        before = self._work.pending
        state = self.scheduler.end()
        changes = await self._commit()
        for change in changes[:before]:
            self._announce(change)
        self._enter(EngineState.GAME_OVER)
        for change in changes[before:]:
            self._announce(change)
        self.changed.notify_all()
        await self._flush()
        self._enter(EngineState(state.value))
        return state

    def _encode(self, outcome: Any) -> StepResult | Failure:
        try:
            return StepResult(*keep(self._codec, outcome))
        except Exception as error:  # noqa: BLE001  # a result that cannot be stored is its task's failure
            return Failure.of(error)

    async def _encode_large(self, call: Call, outcome: Any) -> StepResult | Failure:
        """Encode a large result in a thread. Decode a copy only if the value is needed in memory."""
        try:
            text = await self._threads.call(partial(self._codec.encode, outcome))
            # Listeners and retries need the value in memory. A custom codec may also fail to decode the value, which
            # has to be detected here.
            decodes = self._has_listeners or call.node.kind == "retry" or type(self._codec) is not JSON
            value = await self._threads.call(partial(self._codec.decode, text)) if decodes else NOTHING
        except Exception as error:  # noqa: BLE001  # a failure of the task
            return Failure.of(error)
        return StepResult(text, value)

    # -- storing and announcing ---------------------------------------------------------------------------------------

    def _enter(self, state: EngineState) -> None:
        self._work.now = time.time()
        self.machine.to(state)
        if state is not EngineState.GAME_OVER:
            for watcher in self.watchers:
                watcher(state)

    async def _flush(self) -> None:
        """Store all changes, then announce them. Repeat while listeners cause further changes."""
        while changes := await self._commit():
            for change in changes:
                self._announce(change)
            self.changed.notify_all()

    async def _commit(self) -> Sequence[Change]:
        """Store all changes, and return the changes to announce, in order."""
        changes: list[Change] = []
        while not changes and (batch := self._work.drain()) is not None:
            await self._store.commit(batch)
            changes = batch.changes
            if batch.sent and self.on_sent is not None:
                self.on_sent()
        return changes

    @property
    def _has_listeners(self) -> bool:
        """True if any listener or hook receives changes."""
        return bool(self.listeners or hooks.flow_changed.receivers or hooks.state_changed.receivers)

    def _announce(self, change: Change) -> None:
        if change.kind == "flow":
            self.flow.to(FlowState(change.new), change.reason)
        elif change.old != change.new:
            self.steps[change.name].to(StepState(change.new), change.reason)
        for listener in self.listeners:
            listener(change)
        if hooks.flow_changed.receivers:
            hooks.flow_changed.announce(self._sender, change=change)


def log_interrupted(flow: str, name: str, reason: object) -> None:
    """Log that a function failed while the program was stopping."""
    text = "flow %s: %s failed while the program was stopping, and runs again when the flow continues: %s"
    _log.warning(text, flow, name, error_text(reason) if isinstance(reason, BaseException) else reason)


class Running:
    """The context of a running function, and the events that the function sends."""

    def __init__(self, context: TaskContext, prefix: str, codec: Codec, rows: list[OutboxRow] | None = None) -> None:
        self.context = context
        #: The events that the function has sent. Their ids begin with ``prefix``.
        self.rows: list[OutboxRow] = [] if rows is None else rows
        self._prefix, self._codec = prefix, codec
        #: True once the function has finished.
        self.over: bool = False

    def send(self, topic: str, data: Any) -> str:
        """Queue an event to be sent, and return its id."""
        if self.over:
            raise FlowError(
                f"send({topic!r}) was called after {self._prefix} finished; call it before the task returns"
            )
        row = OutboxRow(f"{self._prefix}/{len(self.rows) + 1}", topic, keep(self._codec, data)[0])
        self.rows.append(row)
        return row.id


#: The function that the current task calls for a flow.
RUNNING: ContextVar[Running] = ContextVar("lifecycle_flow_task")
#: The maximum number of characters in a topic; routers have the same limit.
_LONGEST_TOPIC = 1024


def current_task() -> TaskContext:
    """Return the context of the running task.

    Raises:
        LookupError: if called outside a task.
    """
    try:
        return RUNNING.get().context
    except LookupError:
        raise LookupError("current_task() was called outside a task; call it from a flow's task") from None


def send(topic: str, data: Any = None) -> str:
    """Send an event from a task or its revert; `Flows.outbox` delivers it.

    The event is stored in the same transaction as the task's success, so a task that fails or is interrupted sends
    nothing. The event may be delivered more than once, but always with the same id. The id contains the flow's id, the
    task's name and the event's number within the task. It also contains a number that increases each time the task
    starts over.

    Returns:
        The event's id.

    Raises:
        LookupError: if called outside a task.
        InvalidTopic: if the topic is empty, too long or not a string.
        FlowError: if the data cannot be stored, or if the task has already finished.
    """
    try:
        running = RUNNING.get()
    except LookupError:
        raise LookupError("send() was called outside a task; call it from a flow's task") from None
    if not _is_topic(topic):
        raise InvalidTopic(f"a topic must be a string of 1 to {_LONGEST_TOPIC} characters, got {topic!r}")
    return running.send(topic, data)


def _is_topic(topic: object) -> bool:
    return isinstance(topic, str) and 0 < len(topic) <= _LONGEST_TOPIC and is_storable(topic)


class Executor:
    """Runs one flow's functions, each in a separate task, and collects their results."""

    def __init__(self, flow: str, codec: Codec, threads: LoopThreads, sender: object = None) -> None:
        self._flow, self._codec, self._threads = flow, codec, threads
        # Passed to hooks as the sender.
        self._sender = sender
        self._running: dict[asyncio.Task[Any], Call] = {}
        #: The calls that have finished but have not been analyzed yet, each with its result, a `Failure` or
        #: `_CANCELLED`.
        self.finished: list[tuple[Call, Any]] = []
        #: Returns False once this process's claim on the flow has expired, and True if a call was refused for that.
        self.is_claimed: Callable[[], bool] = always
        self.lost: bool = False
        #: Set when a function finishes or the flow is suspended.
        self.changed: Final = asyncio.Event()
        # Set when the flow is suspended, so that steps waiting for their next attempt stop waiting.
        self._suspended = asyncio.Event()
        # True once the tasks have been cancelled.
        self._cancelling = False
        # The tasks that did not finish in time. Their results are ignored.
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._timers: list[asyncio.TimerHandle] = []

    def __len__(self) -> int:
        return len(self._running)

    @property
    def is_busy(self) -> bool:
        """True if any functions are running, or have finished but have not been analyzed yet."""
        return bool(self._running or self.finished)

    def start(self, call: Call) -> None:
        """Run ``call`` in the background."""
        assert call.node.step is not None
        if self._cancelling:
            self._finish(call, _CANCELLED)
        elif call.reverting and call.node.undo is None:
            self._finish(call, None)
        else:
            announced = hooks.flow_task_started.receivers or hooks.flow_task_ended.receivers
            work = self._announced(call) if announced else self._carry_out(call)
            task = start_task(work, name=f"{self._flow}/{call.node.name}")
            self._running[task] = call
            task.add_done_callback(self._done)

    async def _announced(self, call: Call) -> Any:
        """Run ``call``, and call the hooks when it starts and finishes."""
        task = _context(self._flow, call)
        hooks.flow_task_started.announce(self._sender, task=task)
        failure: BaseException | None = None
        try:
            return await self._carry_out(call)
        except BaseException as error:
            failure = error
            raise
        finally:
            hooks.flow_task_ended.announce(self._sender, task=task, error=failure)

    async def _carry_out(self, call: Call) -> Any:
        prefix = _key(self._flow, call, call.node.round)
        running = Running(_context(self._flow, call), prefix, self._codec, call.sent)
        RUNNING.set(running)
        current_flow.set(self._flow)
        try:
            if call.pause:
                await wait_within(call.pause, self._suspended)
                if self._suspended.is_set() and call.node.kind == "task":
                    return _CANCELLED
            function = _function(call)
            if function.in_thread:
                # Waiting for a thread does not count towards the task's timeout. `_call` releases the slot.
                await self._threads.slots.acquire()
            if not self.is_claimed():
                # Another process may run the flow.
                self.lost = True
                if function.in_thread:
                    self._threads.slots.release()
                return _CANCELLED
            if call.node.step is None or call.reverting or call.node.step.timeout is None:
                return await self._call(function, call.arguments)
            return await self._call_within(call.node.step.timeout, call.node.step, call.arguments)
        finally:
            running.over = True

    async def _call(self, function: StepFunction, arguments: dict[str, Any]) -> Any:
        if function.in_thread:
            try:
                result = await self._threads.finish(partial(function.fn, **arguments))
            finally:
                self._threads.slots.release()
        else:
            result = function.fn(**arguments)
        return await result if inspect.isawaitable(result) else result

    async def _call_within(self, seconds: float, step: Step, arguments: dict[str, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        overdue = asyncio.get_running_loop().call_later(seconds + _CANCEL_TIMEOUT, self._give_up_overdue, task, seconds)
        task.add_done_callback(lambda _: overdue.cancel())
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                result = await self._call(step.function, arguments)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _too_long(step.name, seconds) from None
        if step.function.in_thread and limit.expired():
            # Since a thread cannot be stopped, a result can arrive after the timeout.
            raise _too_long(step.name, seconds)
        return result

    def _done(self, task: asyncio.Task[Any]) -> None:
        call = self._running.pop(task, None)
        if call is None:
            self._abandoned.discard(task)
            if not task.cancelled():
                # The step was abandoned, so its error is ignored. Retrieve it anyway, because asyncio logs errors that
                # are never retrieved.
                task.exception()
            return
        if task.cancelled():
            outcome = _CANCELLED if self._cancelling else Failure.of(asyncio.CancelledError("cancelled itself"))
        else:
            error = task.exception()
            outcome = task.result() if error is None else Failure.of(error)
        self._finish(call, outcome)

    def _finish(self, call: Call, outcome: Any) -> None:
        self.finished.append((call, outcome))
        self.changed.set()

    # -- stopping -----------------------------------------------------------------------------------------------------

    def suspend(self, cancel_after: float | None) -> None:
        """Stop waiting between attempts. If ``cancel_after`` is set, cancel running functions after that many seconds.

        If a cancelled function does not finish within a few seconds, its result is ignored.
        """
        self._suspended.set()
        self.changed.set()
        if cancel_after is not None:
            self._timers.append(asyncio.get_running_loop().call_later(cancel_after, self._cancel))

    def _cancel(self) -> None:
        self._cancelling = True
        for task in list(self._running):
            task.cancel()
        self._timers.append(asyncio.get_running_loop().call_later(_CANCEL_TIMEOUT, self._give_up))

    def _give_up(self) -> None:
        for task, call in list(self._running.items()):
            _log.warning(
                "flow %s: %s was cancelled but did not finish; it was abandoned, and runs again when the flow resumes",
                self._flow,
                call.node.name,
            )
            self._abandon(task, _CANCELLED)

    def _give_up_overdue(self, task: asyncio.Task[Any], seconds: float) -> None:
        if (call := self._running.get(task)) is not None:
            _log.warning("flow %s: %s did not stop after its timeout; it was abandoned", self._flow, call.node.name)
            self._abandon(task, Failure.of(_too_long(call.node.name, seconds)))

    def _abandon(self, task: asyncio.Task[Any], outcome: Any) -> None:
        """Record ``outcome`` as the result of the call that ``task`` runs, and ignore the task's own result."""
        call = self._running.pop(task)
        self._abandoned.add(task)
        if _function(call).in_thread:
            # The task is still waiting for its thread. Cancelling it a second time ends that wait.
            task.cancel()
        self._finish(call, outcome)

    async def close(self) -> None:
        """Stop all running functions."""
        for timer in self._timers:
            timer.cancel()
        if self._running:
            self._cancel()
            await asyncio.wait(list(self._running), timeout=_CANCEL_TIMEOUT)
            self._give_up()
        for timer in self._timers:
            timer.cancel()


def _function(call: Call) -> StepFunction:
    node = call.node
    assert node.step is not None
    function = node.undo if call.reverting else node.step.function
    assert function is not None
    return function


def _too_long(name: str, seconds: float | None) -> TimeoutError:
    return TimeoutError(f"task {name!r} took longer than {seconds:g} s")


def _context(flow: str, call: Call) -> TaskContext:
    node = call.node
    return TaskContext(flow, node.name, node.attempt, _key(flow, call, node.effect), call.reverting)


def _key(flow: str, call: Call, number: int) -> str:
    return f"{flow}/{call.node.name}/{number}{'/revert' if call.reverting else ''}"
