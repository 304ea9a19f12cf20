"""`WorkflowEngine`: runs a workflow's function, and records what its operations return.

An operation with a recorded outcome returns it at once. Any other operation is carried out in the task of the branch
that calls it, and `WorkflowLog` collects its row. `WorkflowEngine.run` writes all collected rows in one transaction,
and meanwhile the branches wait. So a step needs one transaction, and steps that end at the same time share it.

A branch that waits for a time, a signal or a child is *at rest*. When all branches are, and nothing is due soon, the
workflow is parked: the engine stores what it waits for, cancels the function, and ends.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from lifecycle import hooks
from lifecycle._async import Condition, cancel_later, is_async, start_task, was_cancelled
from lifecycle._owners import program_stops
from lifecycle._util import current_flow, error_text
from lifecycle.errors import (
    ClaimLost,
    FlowCancelled,
    FlowError,
    InvalidState,
    JournalError,
    StepFailed,
    WorkflowChanged,
)
from lifecycle.flows.engine import RUNNING, Running, log_interrupted
from lifecycle.flows.operations import BRANCH, Branch, Watched
from lifecycle.flows.records import (
    CANCEL,
    DUE_NOW,
    Batch,
    Change,
    Failure,
    FlowRow,
    StepRow,
    StepView,
    TaskContext,
    step_failed,
)
from lifecycle.flows.retries import Attempt
from lifecycle.flows.serializers import is_large, keep
from lifecycle.flows.states import ENDS, WORKFLOW_ENGINES, WORKFLOWS, EngineState, FlowState, StepState
from lifecycle.flows.stores.base import always, cancelled, clock_of, lost
from lifecycle.flows.workflow_log import WorkflowLog, order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from lifecycle.flows.decisions import Options
    from lifecycle.flows.definition import Item, Workflow
    from lifecycle.flows.operations import Call
    from lifecycle.flows.records import SignalRow, Snapshot
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.journal.threads import LoopThreads
    from lifecycle.states import Machine

__all__ = ["Children", "WorkflowEngine"]

_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.flows")

#: Seconds for which a workflow at rest stays in memory.
GRACE = 1.0
#: Seconds to wait for a cancelled function to finish.
_CANCEL_TIMEOUT = 5.0
#: Seconds after which a workflow is due again if at least two processes do not have the code that it matches.
_OTHER_CODE = 60.0
_DONE = (StepState.SUCCESS, StepState.FAILURE)


class Children(Protocol):
    """The runs of this process, for workflows that start children."""

    def child(self, item: Item, id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], parent: str) -> FlowRow:  # noqa: A002  # the natural name
        """Return the row of a new child that belongs to this process."""
        ...

    async def ensure(self, item: Item, row: FlowRow, *, again: bool) -> None:
        """Start the stored child in this process, unless it has ended, waits, or runs elsewhere."""
        ...

    async def outcome(self, item: Item, id: str) -> tuple[Any, BaseException | None]:  # noqa: A002  # the natural name
        """Return the result and the error of a child that has ended."""
        ...

    async def cancel(self, id: str) -> None:  # noqa: A002  # the natural name
        """Cancel a child if it is a workflow. A flow is left to run to its end."""
        ...


# -- the engine --------------------------------------------------------------------------------------------------------


class _Wait:
    """A durable wait of one branch."""

    __slots__ = ("child", "due", "future", "signal", "timer")

    def __init__(self, *, due: float = 0.0, signal: str = "", child: str = "") -> None:
        #: When it ends by itself, or 0.
        self.due, self.signal, self.child = due, signal, child
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class _Attempted(NamedTuple):
    """The outcome of one attempt."""

    row: StepRow
    value: Any = None
    error: BaseException | None = None


class WorkflowEngine:
    """Runs ``workflow`` from the state in ``snapshot``, once. Call `prepare`, then `run`."""

    def __init__(  # the workflow, its state, and the store
        self,
        workflow: Workflow[..., Any],
        snapshot: Snapshot,
        *,
        store: Store,
        codec: Codec,
        options: Options,
        threads: LoopThreads,
        children: Children,
        sender: object = None,
    ) -> None:
        self.id: str = snapshot.flow.id
        self._workflow, self._store, self._codec, self._options = workflow, store, codec, options
        self._children, self._sender = children, self if sender is None else sender
        self._given: Mapping[str, Any] = codec.decode(snapshot.flow.store)
        self._records = WorkflowLog(snapshot)
        #: Notified after changes are stored and announced.
        self.changed: Condition = Condition()
        #: Called with each engine state.
        self.watchers: list[Callable[[EngineState], object]] = []
        #: Called once events sent by steps have been stored.
        self.on_sent: Callable[[], object] | None = None
        #: Returns False once this process's claim on the workflow has expired.
        self.is_claimed: Callable[[], bool] = always
        # The stored state, and the phase.
        self.flow: Machine[FlowState] = WORKFLOWS.machine(self.id, self._records.state)
        self.machine: Machine[EngineState] = WORKFLOW_ENGINES.machine(self.id)
        self._threads = threads
        self._clock: Callable[[], float] = store.time
        # Set when there is something to write or to read, or when the function has ended.
        self._news = asyncio.Event()
        # Notified after each transaction.
        self._stored = Condition()
        # The signals that were read with the snapshot, or None if they must be read.
        self._given_signals = snapshot.signals
        # True until the signals are read again after that.
        self._unasked = False
        # True if there may be new signals, or children may have ended.
        self._unread = False
        self._last_signal = 0
        # The signals that have not been received, by name.
        self._signals: dict[str, deque[SignalRow]] = {}
        self._cancelling: list[str] = []
        self._branches: set[Branch] = set()
        # The branches' waits, oldest first, and the number of branches that are not at rest.
        self._waits: dict[_Wait, None] = {}
        self._active = 0
        self._timers: tuple[asyncio.TimerHandle, ...] = ()
        self._parking: asyncio.TimerHandle | None = None
        # Why the engine stops before the function has ended: the state to store, or an error.
        self._stop: FlowState | BaseException | None = None
        self._suspending = False
        self._undoing = False
        self._checking = False
        self._undos: tuple[Call, ...] = ()
        self._error: BaseException | None = None
        self._undo_failed = False

    # -- what `Run` calls ---------------------------------------------------------------------------------------------

    async def prepare(self, *, write: bool = True) -> None:
        """Make failed operations run again, or all of them if they were undone.

        If ``write`` is False, `run` stores the new rows later.
        """
        if self._records.state in (FlowState.REVERTED, FlowState.CANCELLED):
            await self._reset()
        elif self._records.state is FlowState.FAILURE:
            self._records.clear_failed()
        if write:
            await self._commit()

    async def reset(self) -> None:
        """Delete all results, so that the workflow can run again from the start.

        Raises:
            InvalidState: if the workflow is neither PENDING nor ended.
            ClaimLost: if another process has taken it.
        """
        await self._reset()
        await self._commit()
        # More signals may be sent before the workflow runs.
        self._given_signals = None

    async def _reset(self) -> None:
        if self._records.state not in (FlowState.PENDING, *ENDS):
            raise InvalidState(f"workflow {self.id!r} is {self._records.state} and cannot be reset; it must have ended")
        self._given_signals = [self._withdrawn(row) for row in await self._store.signals(self.id)]
        self._records.reset()
        self._records.move(FlowState.PENDING, "reset")

    def _withdrawn(self, row: SignalRow) -> SignalRow:
        """Return ``row``, and record that it was received if it cancels the workflow."""
        if row.name != CANCEL or row.taken:
            return row
        self._records.take(row.number)
        return row._replace(taken=True)

    def suspend(self, *, cancel_after: float | None = None) -> bool:
        """Start no more operations. Return False if the workflow does not run.

        Steps that are running continue until they finish. If ``cancel_after`` is set, they are cancelled after that
        many seconds.
        """
        if self._records.state is not FlowState.RUNNING or self._stop is not None:
            return False
        self._suspending = self._records.move(FlowState.SUSPENDING)
        self._write_soon()
        if not self._active and self._branches:
            self._stop_with(FlowState.SUSPENDED)
        elif cancel_after is not None:
            loop = asyncio.get_running_loop()
            self._timers += (loop.call_later(cancel_after, self._stop_with, FlowState.SUSPENDED),)
        return True

    def wake(self) -> None:
        """Read the signals, and look whether children have ended."""
        self._unread = True
        self._news.set()

    def result(self) -> Any:
        """Return the workflow's return value."""
        text = self._records.result
        return None if text is None else self._codec.decode(text)

    def error(self) -> BaseException | None:
        """Return the error that made the workflow fail, or None."""
        failure = self._records.failure
        if self._error is not None or failure is None or self._records.state not in ENDS:
            return self._error
        return self._exception(failure)

    def _exception(self, failure: Failure) -> BaseException:
        if failure.type == FlowCancelled.__name__:
            return cancelled(self.id)
        return failure.exception(self._workflow.name)

    def view(self) -> dict[str, StepView]:
        """Return the operations that have started, by name, in order."""
        running = {branch.step for branch in self._branches} - {""}
        views = {row.name: _view(row) for row in self._records.rows.values() if row.kind != "gather"}
        for name in running:
            views[name] = StepView("step", StepState.RUNNING)
        return {name: views[name] for name in sorted(views, key=order)}

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> FlowState:
        """Run the function until it ends, waits for long, or is suspended, and return the workflow's state.

        Raises:
            WorkflowChanged: if the function does not match the records.
            InvalidState: if the workflow cannot run from its current state.
            ClaimLost: if another process has taken the workflow; all running functions are cancelled.
            JournalError: if the store cannot be written to; all running functions are cancelled.
        """
        self._clock = clock_of(self._store)
        self._records.move(FlowState.RUNNING)
        self._enter(EngineState.RESUMING)
        await self._begin_reading()
        try:
            main: asyncio.Task[Any] | None = self._begin()
            while main is not None:
                await self._serve(main)
                await self._halt()
                main = await self._end()
        finally:
            await self._halt()
        return self._records.state

    def _begin(self) -> asyncio.Task[Any]:
        loop = asyncio.get_running_loop()
        # If nothing else is written soon, show that the workflow is running.
        self._timers += (loop.call_later(GRACE, self._write_soon),)
        if self.flow.state in ENDS:
            # From now on, the workflow can receive signals again.
            self._write_soon()
        self._enter(EngineState.SCHEDULING)
        self._active = 1
        return self._start(Branch(self), self._execute())

    def _start(self, branch: Branch, work: Awaitable[Any]) -> asyncio.Task[Any]:
        branch.task = task = start_task(_within(branch, work), name=f"{self.id} {branch.prefix}")
        self._branches.add(branch)
        task.add_done_callback(partial(self._ended, branch, work))
        return task

    def _ended(self, branch: Branch, work: Awaitable[Any], task: asyncio.Task[Any]) -> None:
        self._branches.discard(branch)
        if not branch.prefix:
            self._news.set()
        _close(work)
        if not task.cancelled():
            # `gather` raises the error. If it has been cancelled, asyncio would log the error.
            task.exception()

    async def _serve(self, main: asyncio.Task[Any]) -> None:
        """Write and read for the branches until the function has ended or the engine must stop."""
        while self._stop is None and not main.done():
            if self._records.urgent:
                await self._commit()
            elif self._unread:
                await self._read()
            elif self._cancelling:
                await self._children.cancel(self._cancelling.pop())
            else:
                await self._news.wait()
                self._news.clear()
        if main.done() and not main.cancelled() and (error := main.exception()) is not None:
            raise error

    async def _execute(self) -> None:
        """Call the function, and undo what it has done if it fails."""
        current_flow.set(self.id)
        await self._call_function()
        if self._options.check_replay and self._records.failure is None and self._stop is None:
            await self._check_replay()
        if self._stop is None and self._records.failure is None:
            self._do(self._records.check_visited)
        if self._stop is None and (self._error is not None or self._records.failure is not None):
            await self._undo_all()

    async def _call_function(self) -> None:
        self._error = None
        try:
            text, _ = await self._keep(await self._workflow.call(self._given))
        except asyncio.CancelledError as error:
            if self._stop is not None:
                raise
            self._error = error
        except Exception as error:  # noqa: BLE001  # it makes the workflow fail
            if program_stops():
                self._interrupted(self._workflow.name, error)
                self._stop_with(FlowState.SUSPENDED)
                return
            self._error = error
        else:
            self._records.result = text

    def _interrupted(self, name: str, error: BaseException) -> None:
        """Suspend the workflow after an error that is not an outcome, because the program stops."""
        log_interrupted(self.id, name, error)
        self.suspend()

    async def _check_replay(self) -> None:
        """Run the function again with the records only, and compare the outcomes."""
        before = self._records.result, _described(self._error)
        self._checking = True
        self._records.unvisited = set(self._records.rows)
        self._undos = ()
        BRANCH.get().count = 0
        await self._call_function()
        self._checking = False
        after = self._records.result, _described(self._error)
        if self._stop is None and after != before:
            self._stop_with(self._records.changed(f"it returned {before} first, and {after} when it ran again"))

    async def _undo_all(self) -> None:
        """Run the undo functions that the function has registered, the last one first."""
        self._undoing = BRANCH.get().busy = True
        if self._records.failure is None and self._undos:
            assert self._error is not None
            self._records.fail(Failure.of(self._error))
            await self._until_stored()
        for call in sorted(self._undos, key=lambda each: order(each.name), reverse=True):
            try:
                await self.step(call)
            except StepFailed as error:
                _log.warning("flow %s: %s", self.id, error)
                self._undo_failed = True

    async def _undo_cancelled(self) -> None:
        """Undo what the function has done, because a cancellation was stored before its success."""
        current_flow.set(self.id)
        if self._stop is None:
            await self._undo_all()

    async def give_back(self, error: WorkflowChanged) -> None:
        """Store that this code cannot continue the workflow. Processes with other code try at once, then in a minute.

        This drops the operations recorded since the last transaction. A workflow that had ended keeps its state.

        Raises:
            ClaimLost: if another process has taken the workflow.
        """
        flow, old = self._records.flow, self.flow.state
        if old in ENDS:
            return
        seq, now = self._records.written + 1, time.time()
        reason, due = type(error).__name__, self._clock() + _OTHER_CODE if flow.error else DUE_NOW
        change = Change("flow", flow.name, old, FlowState.WAITING, None, reason, 0, self.id, seq, now)
        rest = Batch(self.id, flow.epoch, FlowState.WAITING, seq, now, [], [change], kind="workflow")
        await self._store.commit(rest._replace(error=error_text(error), due=due))
        if hooks.flow_changed.receivers:
            hooks.flow_changed.announce(self._sender, change=change)

    async def _end(self) -> asyncio.Task[Any] | None:
        """Store the state in which the engine stops. If a cancellation prevents that, return a task that undoes."""
        if isinstance(self._stop, BaseException):
            raise self._stop
        if self._stop is not None:
            await self._rest_in(self._stop)
            return None
        records, failure = self._records, self._failure()
        if failure is not None and records.failure is None:
            records.fail(failure)
        records.move(self._end_state(failure))
        try:
            await self._commit(error="" if failure is None else str(failure))
        except FlowCancelled:
            await self._read()
            self._active = 1
            return self._start(Branch(self), self._undo_cancelled())
        self._enter(EngineState.GAME_OVER)
        self._enter(EngineState(records.state.value))
        return None

    def _failure(self) -> Failure | None:
        """Return why the workflow has failed. A reason that was recorded before wins over the function's error."""
        if (failure := self._records.failure) is None:
            return None if self._error is None else Failure.of(self._error)
        if failure.error is None or failure.error is not self._error:
            self._error = self._exception(failure)
        return failure

    def _end_state(self, failure: Failure | None) -> FlowState:
        if failure is None:
            return FlowState.SUCCESS
        if self._undo_failed:
            return FlowState.FAILURE
        if failure.type == FlowCancelled.__name__:
            return FlowState.CANCELLED
        return FlowState.REVERTED if self._undos else FlowState.FAILURE

    async def _rest_in(self, state: FlowState) -> None:
        """Store that the workflow waits or is suspended."""
        self._records.move(state)
        if state is FlowState.WAITING:
            self._enter(EngineState.WAITING)
            await self._commit(
                due=self._nearest() or 0.0,
                awaited=[wait.signal for wait in self._waits if wait.signal],
                awaited_children=[wait.child for wait in self._waits if wait.child],
            )
        else:
            self._enter(EngineState.GAME_OVER)
            await self._commit()
            self._enter(EngineState.SUSPENDED)

    def _enter(self, state: EngineState) -> None:
        self.machine.to(state)
        if state is not EngineState.GAME_OVER:
            for watcher in self.watchers:
                watcher(state)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        self._records.urgent = True
        self._news.set()

    async def _commit(self, **ends: Any) -> None:
        """Write everything that the branches have recorded in one transaction, then announce it."""
        batch = self._records.drain(**ends)
        try:
            await self._store.commit(batch)
        except FlowCancelled:
            self._records.restore(batch)
            raise
        self._records.written = batch.seq
        self._stored.notify_all()
        for change in batch.changes:
            self._announce(change)
        self.changed.notify_all()
        if batch.sent and self.on_sent is not None:
            self.on_sent()

    def _announce(self, change: Change) -> None:
        if change.kind == "flow":
            self.flow.to(FlowState(change.new), change.reason)
        if hooks.flow_changed.receivers:
            hooks.flow_changed.announce(self._sender, change=change)

    def _put(self, row: StepRow, **change: Any) -> None:
        self._records.put(row, **change)
        self._news.set()

    async def _until_stored(self) -> None:
        """Wait until everything recorded so far is stored, even if the caller is cancelled meanwhile."""
        seq, cancelled = self._records.seq, None
        self._news.set()
        while self._records.written < seq:
            try:
                await self._stored.wait()
            except asyncio.CancelledError as error:
                if self._stop is not None:
                    raise
                cancelled = error
        if cancelled is not None:
            cancel_later(cancelled)

    async def _keep(self, value: Any) -> tuple[str, Any]:
        if is_large(value):
            return await self._threads.call(partial(keep, self._codec, value))
        return keep(self._codec, value)

    # -- steps --------------------------------------------------------------------------------------------------------

    async def step(self, call: Call) -> Any:
        """Call a step's function until it succeeds or has no attempts left, and store the outcome."""
        row = self._find(call.name, call.kind)
        if row.state in _DONE:
            return self._recall(row)
        branch = self._branch()
        while True:
            await self._gate(branch)
            if row.state == StepState.RETRYING:
                await self._sleep_until(branch, row.due)
                await self._gate(branch)
            row, value, error = await self._attempt(branch, call, row)
            if row.state in _DONE:
                await self._until_stored()
                if row.state == StepState.SUCCESS:
                    return value
                raise _failed(row) from error

    def _find(self, name: str, kind: str) -> StepRow:
        """Return the recorded row of an operation. If the function no longer matches the records, stop."""
        if self._stop is not None:
            raise asyncio.CancelledError("the workflow stops")
        row: StepRow = self._do(partial(self._records.find, name, kind))
        return row

    def _do(self, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except WorkflowChanged as error:
            self._stop_with(error)
            raise asyncio.CancelledError(str(error)) from None

    def _recall(self, row: StepRow) -> Any:
        if row.state == StepState.FAILURE:
            raise _failed(row)
        return None if row.result is None else self._codec.decode(row.result)

    def _branch(self) -> Branch:
        """Return the branch that carries out an operation. `gather` may have moved it to a branch of its own."""
        branch = BRANCH.get()
        if branch.task is not asyncio.current_task():
            raise FlowError(
                "an operation of a workflow was awaited in a task that the workflow does not know; use gather from "
                "lifecycle.flows instead of asyncio.gather, create_task or a task group"
            )
        return branch

    async def _gate(self, branch: Branch) -> None:
        """Let an operation without a recorded outcome start, unless the workflow is suspended, cancelled or undone."""
        if self._stop is not None or (self._records.failure is not None and not self._undoing):
            raise asyncio.CancelledError("the workflow starts nothing more")
        if self._checking:
            self._do(self._raise_unrecorded)
        if self._suspending:
            await self._wait(branch, _Wait())
        self._check_claim()

    def _check_claim(self) -> None:
        """Stop if this process's claim on the workflow has expired, because another process may run it."""
        if not self.is_claimed():
            self._stop_with(lost(self.id, self._records.flow.epoch))
            raise asyncio.CancelledError("the claim has expired")

    def _raise_unrecorded(self) -> None:
        raise self._records.changed("it called an operation when it ran again that it had not called before")

    async def _attempt(self, branch: Branch, call: Call, row: StepRow) -> _Attempted:
        """Call a step's function once, and record the outcome."""
        number = row.attempt + 1
        key = f"{self.id}/{call.name}/{row.undone + 1}"
        running = Running(TaskContext(self.id, call.name, number, key, call.kind == "undo"), key, self._codec)
        try:
            text, value = await self._keep(await self._call(branch, call, running))
        except asyncio.CancelledError as error:
            if self._take_interrupt(branch) or self._stop is not None or was_cancelled():
                raise
            # The function has raised it by itself.
            return self._failing(call, row, error)
        except Exception as error:  # noqa: BLE001  # it makes the step fail
            return self._failing(call, row, error)
        self._take_interrupt(branch)
        done = StepRow(
            *(call.name, call.kind, StepState.SUCCESS, "EXECUTE", number, row.undone + 1, text), undone=row.undone
        )
        self._records.send(running.rows)
        self._records.put(done, value=value, text=text)
        return _Attempted(done, value)

    @staticmethod
    def _take_interrupt(branch: Branch) -> bool:
        """Return True if the engine has cancelled the step of ``branch``, and withdraw the cancellation."""
        was, branch.interrupted = branch.interrupted, False
        if was and branch.task is not None:
            branch.task.uncancel()
        return was

    def _failing(self, call: Call, row: StepRow, error: BaseException) -> _Attempted:
        """Record a failed attempt, and when the next one is due. An attempt that the shutdown ends is not recorded."""
        if program_stops():
            self._interrupted(call.name, error)
            return _Attempted(row, None, error)
        failure = Failure.of(error)
        tried = 1 + (int(row.history or 0) if row.state == StepState.RETRYING else 0)
        history = [Attempt(None, {call.name: failure})] * tried
        failed = row._replace(
            attempt=row.attempt + 1, round=row.undone + 1, failure=failure.encode(), state=StepState.FAILURE
        )
        if call.retry is not None and call.retry.allows(history):
            due = self._clock() + call.retry.delay(history)
            failed = failed._replace(state=StepState.RETRYING, history=str(tried), due=due)
        text = failed.failure if failed.state == StepState.FAILURE else None
        self._put(failed, value=failure, text=text)
        return _Attempted(failed, None, error)

    async def _call(self, branch: Branch, call: Call, running: Running) -> Any:
        branch.step = call.name
        token = RUNNING.set(running)
        try:
            if hooks.flow_task_started.receivers or hooks.flow_task_ended.receivers:
                return await self._announced(call, running.context)
            return await self._invoke(call)
        finally:
            running.over = True
            RUNNING.reset(token)
            branch.step = ""

    async def _announced(self, call: Call, task: TaskContext) -> Any:
        """Call a step's function, and the hooks when it starts and finishes."""
        hooks.flow_task_started.announce(self._sender, task=task)
        failure: BaseException | None = None
        try:
            return await self._invoke(call)
        except BaseException as error:
            failure = error
            raise
        finally:
            hooks.flow_task_ended.announce(self._sender, task=task, error=failure)

    def _invoke(self, call: Call) -> Awaitable[Any]:
        """Call a function, and limit the time that it takes."""
        if not is_async(call.fn):
            return self._in_a_thread(call)
        work = call.fn(*call.args, **call.kwargs)
        return work if call.timeout is None else _limited(call, work)

    async def _in_a_thread(self, call: Call) -> Any:
        # Waiting for a thread does not count towards the timeout.
        await self._threads.slots.acquire()
        try:
            self._check_claim()
            return await _limited(call, self._in_thread(partial(call.fn, *call.args, **call.kwargs)))
        finally:
            self._threads.slots.release()

    async def _in_thread(self, fn: Callable[[], Any]) -> Any:
        result = await self._threads.finish(fn)
        return await result if inspect.isawaitable(result) else result

    # -- other operations ---------------------------------------------------------------------------------------------

    def undo(self, call: Call) -> None:
        """Register a call for the case that the workflow fails."""
        self._find(call.name, "undo")
        self._undos += (call,)

    def refuse(self, error: FlowError) -> None:
        """Stop because the workflow's function does what it must not do. Nothing is recorded."""
        self._stop_with(error)

    def patch(self, branch: Branch, name: str) -> bool:
        """Return True if the new code must run."""
        return self._records.patch(name, branch.prefix, branch.count)

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait until the recorded time."""
        row = self._find(name, "sleep")
        if row.state == StepState.SUCCESS:
            return
        branch = self._branch()
        await self._gate(branch)
        if row.state == StepState.PENDING:
            row = row._replace(state=StepState.RUNNING, due=self._clock() + seconds)
            self._put(row)
        await self._sleep_until(branch, row.due)
        self._put(row._replace(state=StepState.SUCCESS), urgent=False)

    async def wait_for(self, name: str, signal: str, limit: float | None) -> Any:
        """Wait for a signal, and record that it was received."""
        row = self._find(name, "wait")
        if row.state == StepState.FAILURE:
            raise TimeoutError(f"no signal {signal!r} in time")
        if row.state == StepState.SUCCESS:
            return self._recall(row)
        branch = self._branch()
        await self._gate(branch)
        if row.state == StepState.PENDING:
            # A due time of 0 means never, and virtual time begins at 0.
            due = 0.0 if limit is None else max(DUE_NOW, self._clock() + limit)
            row = row._replace(state=StepState.RUNNING, due=due)
            self._put(row, urgent=limit is not None)
        return await self._receive(branch, row, signal)

    async def _receive(self, branch: Branch, row: StepRow, name: str) -> Any:
        signal = await self._next_signal(branch, name, row.due)
        if signal is None:
            error = TimeoutError(f"no signal {name!r} in time")
            row = row._replace(state=StepState.FAILURE, failure=Failure.of(error).encode())
            self._put(row, value=Failure.of(error), text=row.failure)
            await self._until_stored()
            raise error
        self._records.take(signal.number)
        value = self._codec.decode(signal.data)
        self._put(row._replace(state=StepState.SUCCESS, result=signal.data), value=value, text=signal.data)
        await self._until_stored()
        return value

    async def child(
        self,
        name: str,
        item: Item,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002  # the natural name
    ) -> Any:
        """Start a child, wait for its end, and record its result."""
        row = self._find(name, "child")
        if row.state in _DONE:
            return self._recall(row)
        branch = self._branch()
        if row.state == StepState.PENDING:
            await self._gate(branch)
        number = name.partition(" ")[0]
        key = id or (f"{self.id}/{number}/{row.undone + 1}" if row.undone else f"{self.id}/{number}")
        made = self._children.child(item, key, args, kwargs, self.id)
        # A child that has failed continues if the workflow does.
        again = row.state == StepState.PENDING and row.round > row.undone
        if row.state == StepState.PENDING:
            row = row._replace(state=StepState.RUNNING, attempt=row.attempt + 1, history=key, round=row.undone + 1)
            self._records.create(made)
            self._put(row)
            await self._until_stored()
        await self._from_store(self._children.ensure(item, made, again=again))
        return await self._join(branch, row, item, key)

    async def _from_store(self, work: Awaitable[_T]) -> _T:
        """Await ``work``. If the store fails, the engine stops, because that is not an outcome of the workflow."""
        try:
            return await work
        except (ClaimLost, JournalError) as error:
            self._stop_with(error)
            raise asyncio.CancelledError(str(error)) from None

    async def _join(self, branch: Branch, row: StepRow, item: Item, id: str) -> Any:  # noqa: A002  # the natural name
        if self._records.failure is not None and not self._undoing:
            self._cancelling.append(id)
        self.wake()
        await self._wait(branch, _Wait(child=id))
        result, error = await self._from_store(self._children.outcome(item, id))
        if error is not None:
            failure = _failure_of(error, item.name)
            row = row._replace(state=StepState.FAILURE, failure=failure.encode())
            self._put(row, value=failure, text=row.failure)
            await self._until_stored()
            raise _failed(row) from error
        text, value = await self._keep(result)
        self._put(row._replace(state=StepState.SUCCESS, result=text), value=value, text=text)
        await self._until_stored()
        return value

    async def gather(self, number: str, awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
        """Run ``awaitables`` at the same time, each in a branch of its own, and return their results in order."""
        try:
            return await self._gather(number, awaitables)
        finally:
            for each in awaitables:
                _close(each)

    async def _gather(self, number: str, awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
        self._branch()
        if self._stop is not None:
            raise asyncio.CancelledError("the workflow stops")
        self._do(partial(self._records.gather, number, len(awaitables)))
        if not awaitables:
            return []
        # This branch is blocked until the last of the new ones has ended.
        self._active += len(awaitables) - 1
        left = len(awaitables)

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if left:
                self._relax()

        tasks: list[asyncio.Task[Any]] = []
        for place, each in enumerate(awaitables, 1):
            task = self._start(Branch(self, f"{number}.{place}."), each)
            task.add_done_callback(ended)
            tasks.append(task)
        await _all(tasks)
        return [task.result() for task in tasks]

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _sleep_until(self, branch: Branch, due: float) -> None:
        if due > self._clock():
            await self._wait(branch, _Wait(due=due))

    async def _next_signal(self, branch: Branch, name: str, due: float) -> SignalRow | None:
        """Return the next signal of this name, or None at the time ``due``."""
        if waiting := self._signals.get(name):
            return waiting.popleft()
        if due and due <= self._clock():
            return None
        if self._unasked:
            # A signal may have been sent since the snapshot was read.
            self._unasked = False
            self.wake()
        wait = _Wait(due=due, signal=name)
        try:
            signal: SignalRow | None = await self._wait(branch, wait)
        except asyncio.CancelledError:
            if wait.future.done() and not wait.future.cancelled() and (lost := wait.future.result()) is not None:
                self._signals.setdefault(name, deque()).appendleft(lost)
            raise
        return signal

    async def _wait(self, branch: Branch, wait: _Wait) -> Any:
        """Wait durably. Meanwhile the branch is at rest."""
        branch.wait = wait
        self._waits[wait] = None
        if wait.due:
            seconds = max(0.0, wait.due - self._clock())
            wait.timer = asyncio.get_running_loop().call_later(seconds, self._resolve, wait, None)
        self._relax()
        try:
            return await wait.future
        finally:
            if wait.future.cancelled():
                self._activate()
            branch.wait = None
            if self._stop is None:
                # A workflow that is parked stores its waits after its branches were cancelled.
                del self._waits[wait]
            if wait.timer is not None:
                wait.timer.cancel()

    def _resolve(self, wait: _Wait, value: Any) -> None:
        """End a wait, and make its branch active again."""
        if self._stop is None and not wait.future.done():
            self._activate()
            wait.future.set_result(value)

    def _activate(self) -> None:
        self._active += 1
        if self._parking is not None:
            self._parking.cancel()
            self._parking = None

    def _relax(self) -> None:
        """Count a branch as at rest. If all branches are, stop if the workflow is suspended, or else park it soon."""
        self._active -= 1
        if self._active or self._stop is not None:
            return
        due = self._nearest()
        if self._suspending:
            self._stop_with(FlowState.SUSPENDED)
        elif due is None or due > self._clock() + GRACE:
            self._parking = asyncio.get_running_loop().call_later(GRACE, self._park)

    def _park(self) -> None:
        """Stop, and let the store continue the workflow, unless a cancellation has to interrupt branches first."""
        if self._cancelling or any(wait.future.done() for wait in self._waits):
            self._parking = asyncio.get_running_loop().call_later(GRACE, self._park)
        else:
            self._stop_with(FlowState.WAITING)

    def _nearest(self) -> float | None:
        return min((wait.due for wait in self._waits if wait.due), default=None)

    # -- signals, cancellation and children ---------------------------------------------------------------------------

    async def _begin_reading(self) -> None:
        """Deliver the signals that were sent before the workflow runs."""
        given, self._given_signals = self._given_signals, None
        self._unasked = given is not None
        if given is None:
            await self._read()
        else:
            self._deliver_all(given)

    async def _read(self) -> None:
        """Read new signals, and look whether children have ended."""
        self._unread = False
        rows = await self._store.signals(self.id, after=self._last_signal)
        if self._stop is not None:
            # The stored signals continue the workflow.
            return
        self._deliver_all(rows)
        for wait in [each for each in self._waits if each.child]:
            child = await self._store.get(wait.child)
            if child is not None and child.state in ENDS:
                self._resolve(wait, None)

    def _deliver_all(self, rows: Iterable[SignalRow]) -> None:
        for row in rows:
            self._last_signal = row.number
            if not row.taken:
                self._deliver(row)

    def _deliver(self, row: SignalRow) -> None:
        if row.name == CANCEL:
            self._cancel(row.number)
            return
        for wait in self._waits:
            if wait.signal == row.name and not wait.future.done():
                self._resolve(wait, row)
                return
        self._signals.setdefault(row.name, deque()).append(row)

    def _cancel(self, number: int) -> None:
        """Record that the workflow is cancelled, and interrupt what its branches do."""
        self._records.take(number)
        if self._records.failure is None and not self._undoing:
            self._records.fail(Failure.of(cancelled(self.id)))
            for branch in list(self._branches):
                self._interrupt(branch)
        self._write_soon()

    def _interrupt(self, branch: Branch) -> None:
        wait: _Wait | None = branch.wait
        if wait is not None and wait.child:
            self._cancelling.append(wait.child)
        elif wait is not None:
            wait.future.cancel()
        elif branch.step and branch.task is not None:
            branch.interrupted = True
            branch.task.cancel()

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _stop_with(self, reason: FlowState | BaseException) -> None:
        if self._stop is None:
            self._stop = reason
            self._news.set()

    async def _halt(self) -> None:
        """Cancel the function and its steps. A function that does not stop in time is abandoned."""
        tasks = {task for branch in self._branches if (task := branch.task) is not None and not task.done()}
        if tasks and self._stop is None:
            self._stop = asyncio.CancelledError("the engine stops")
        for timer in self._timers:
            timer.cancel()
        if self._parking is not None:
            self._parking.cancel()
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT)
            for task in left:
                _log.warning("flow %s: a step was cancelled but did not finish; it was abandoned", self.id)
                # It may wait for a thread. Cancelling it a second time ends that wait.
                task.cancel()
            self._branches.clear()


async def _within(branch: Branch, work: Awaitable[Any]) -> Any:
    BRANCH.set(branch)
    return await (Watched(branch, work) if inspect.iscoroutine(work) else work)


def _close(work: Awaitable[Any]) -> None:
    """Close a coroutine that was never started, because its task was cancelled before."""
    if inspect.iscoroutine(work):
        work.close()


async def _all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all tasks are done. If the caller is cancelled, cancel them."""
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


async def _limited(call: Call, work: Awaitable[Any]) -> Any:
    """Await ``work`` within the timeout of ``call``."""
    if call.timeout is None:
        return await work
    limit = asyncio.timeout(call.timeout)
    words = "flow %s: step %r was cancelled after its timeout but does not finish"
    warn = partial(_log.warning, words, current_flow.get(), call.name)
    grace = asyncio.get_running_loop().call_later(call.timeout + _CANCEL_TIMEOUT, warn)
    try:
        # A thread cannot be stopped. The second cancellation ends the wait for it.
        async with asyncio.timeout(call.timeout + _CANCEL_TIMEOUT), limit:
            result = await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise _too_long(call) from None
    finally:
        grace.cancel()
    if limit.expired():
        raise _too_long(call)
    return result


def _too_long(call: Call) -> TimeoutError:
    return TimeoutError(f"step {call.name!r} took longer than {call.timeout:g} s")


def _failed(row: StepRow) -> StepFailed:
    return step_failed(row.name, Failure.decode(row.failure or ""))


def _failure_of(error: BaseException, name: str) -> Failure:
    """Return the failure of the child ``name``. `error` wraps it if the child was loaded from the store."""
    if isinstance(error, StepFailed) and error.step == name:
        return Failure(error.type, error.message, error=error)
    return Failure.of(error)


def _described(error: BaseException | None) -> str:
    return "" if error is None else str(Failure.of(error))


def _view(row: StepRow) -> StepView:
    error = "" if row.failure is None else str(Failure.decode(row.failure))
    return StepView(row.kind, StepState(row.state), attempt=row.attempt, error=error)
