"""`Run`: a single execution of a flow, which you can await, suspend, resume, reset and watch.

Before a process runs a flow, it takes the flow. This increments the flow's epoch, so that writes with an older epoch
are rejected. If another live process has taken the flow, the run waits for that process and returns the same outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from lifecycle import hooks
from lifecycle._async import Condition, start_task, wait_within
from lifecycle._durations import in_seconds_or_none
from lifecycle._util import error_text, reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError, InvalidState, JournalError, WorkflowChanged
from lifecycle.flows.definition import Task, Workflow
from lifecycle.flows.engine import Engine
from lifecycle.flows.outbox import SENT
from lifecycle.flows.plan import Plan, compile_flow, order_of
from lifecycle.flows.records import Failure, ItemInfo, RunInfo, Snapshot, StepView
from lifecycle.flows.states import ENDS, EngineState, FlowState, Intention, StepState
from lifecycle.flows.stores.base import always, clock_of, unknown
from lifecycle.flows.stores.presence import AT_REST, FOLLOW, GONE, WAKE, end_of_job
from lifecycle.flows.workflow_engine import WorkflowEngine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from typing import Self

    # Python 3.13 has defaults of type variables, and type checkers accept this import for older versions.
    from typing_extensions import TypeVar

    from lifecycle._durations import Duration
    from lifecycle.flows.decisions import Options
    from lifecycle.flows.definition import Flow, Item, Part
    from lifecycle.flows.records import Change, FlowRow, StepRow
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence
    from lifecycle.flows.workflow_engine import Children
    from lifecycle.journal.threads import LoopThreads

    R_co = TypeVar("R_co", default=dict[str, Any], covariant=True)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

__all__ = ["FlowLoader", "Run", "run_info", "step_view"]

_log = logging.getLogger("lifecycle.flows")

#: Seconds between checks on a flow that another process is running. Usually, that process sends a message before the
#: next check.
_POLLING = Backoff(initial=0.1, maximum=5.0)
#: The maximum number of engine states kept for a slow watcher. Older states are dropped.
_BACKLOG = 1000
_FAILED = (StepState.FAILURE, StepState.REVERT_FAILURE)


@dataclass(frozen=True, slots=True)
class FlowLoader:
    """A store and everything else that flows need to run."""

    store: Store
    codec: Codec
    options: Options
    #: The processes that have the store open.
    presence: Presence
    #: The threads that run synchronous functions.
    threads: LoopThreads

    def plan(self, flow: Item | Plan, name: str) -> Plan:
        """Return the plan for ``flow``, whose name must be ``name``.

        Raises:
            FlowError: if the flow has a different name or is invalid.
        """
        plan = flow if isinstance(flow, Plan) else compile_flow(flow)
        if plan.name != name:
            raise FlowError(f"the flow must be called {name!r}, got {plan.flow!r}; a flow's name must not change")
        return plan

    async def open(self, row: FlowRow, *, same: bool = False) -> tuple[Snapshot, bool]:
        """Return the stored flow with the id in ``row``, and whether this call created the flow for this process.

        Raises:
            FlowError: if the id belongs to a different flow or, if ``same`` is true, to different values.
        """
        mine = row._replace(epoch=1, owner=self.presence.token)
        if not row.epoch and await self.store.create(mine):
            return Snapshot(mine, {}, ()), True
        snapshot = await self.store.load(row.id)
        if snapshot.flow.name != row.name:
            raise FlowError(
                f"the id {row.id!r} belongs to flow {snapshot.flow.name!r}, not {row.name!r}; use a different id"
            )
        if same:
            self.check_values(row.id, row.store, snapshot.flow.store)
        return snapshot, False

    def check_values(self, id: str, given: str, kept: str) -> None:  # noqa: A002  # the natural name
        """Raise an error if the encoded values ``given`` differ from ``kept``, the values stored for the flow ``id``.

        Raises:
            FlowError: if the values differ.
        """
        if given != kept and self.codec.decode(given) != self.codec.decode(kept):
            raise FlowError(f"flow {id!r} was started with different values: {kept}, not {given}; use a different id")

    async def take(self, flow: FlowRow, *, ended: bool = False) -> Snapshot:
        """Take ``flow`` for this process, and return its snapshot.

        Raises:
            ClaimLost: if another process took the flow first, or if the flow has ended and ``ended`` is false.
        """
        return await self.store.take(flow.id, self.presence.token, seen=flow.epoch, ended=ended)

    async def is_elsewhere(self, flow: FlowRow) -> bool:
        """Return True if the flow is unfinished, does not wait, and belongs to another live process."""
        mine = flow.owner in ("", self.presence.token)
        return not mine and flow.state not in (*ENDS, FlowState.WAITING) and not await self.presence.is_gone(flow.owner)

    async def cancel_job(self, id: str) -> bool:  # noqa: A002  # the natural name
        """Cancel the job with this id if its flow has not started. Return False if there is no such job."""
        jobs = self.store.jobs(self.presence)
        if not await jobs.unfinished([id]) or not await jobs.cancel(id, now=clock_of(self.store)()):
            return False
        for news in (end_of_job(id), f"{AT_REST} {id}"):
            self.presence.notify(news)
        return True

    async def has_job(self, id: str) -> bool:  # noqa: A002  # the natural name
        """Return True if the flow belongs to a job that is not complete."""
        return bool(await self.store.jobs(self.presence).unfinished([id]))

    def engine(self, plan: Plan, snapshot: Snapshot, sender: object, children: Children) -> Engine | WorkflowEngine:
        """Return an engine for a flow that this process has taken or created.

        Raises:
            FlowError: if the stored steps are damaged or do not match ``plan``.
        """
        try:
            engine = self._workflow_engine(plan, snapshot, sender, children) or Engine(
                plan,
                snapshot,
                store=self.store,
                codec=self.codec,
                options=self.options,
                sender=sender,
                threads=self.threads,
            )
        except (ValueError, TypeError) as error:
            raise FlowError(
                f"the stored state of flow {snapshot.flow.id!r} is damaged or from a different version ({error}); "
                "restore a backup, or start the flow with a different id"
            ) from error
        engine.on_sent = self._notify_sent
        return engine

    def _notify_sent(self) -> None:
        self.presence.notify(SENT)

    def _workflow_engine(
        self, plan: Plan, snapshot: Snapshot, sender: object, children: Children
    ) -> WorkflowEngine | None:
        if not isinstance(plan.flow, Workflow):
            return None
        return WorkflowEngine(
            plan.flow,
            snapshot,
            store=self.store,
            codec=self.codec,
            options=self.options,
            threads=self.threads,
            children=children,
            sender=sender,
        )

    async def changes(self, id: str, *, after: int) -> list[Change]:  # noqa: A002  # the natural name
        """Return a flow's changes that follow change number ``after``."""
        return [self._decoded(change) for change in await self.store.changes(id, after=after)]

    def _decoded(self, change: Change) -> Change:
        if change.text is None:
            return change
        result = Failure.decode(change.text) if change.new in _FAILED else self.codec.decode(change.text)
        return change._replace(result=result)


class Run(Generic[R_co]):
    """A flow that was started or recovered, returned by `Flows.start` and `Flows.recover`.

    Await a run to get the workflow's return value, or the values that the flow's tasks provided, by name. If the flow
    failed, this raises the task's error, an ``ExceptionGroup`` if there were several, or `StepFailed` if the program
    was restarted in the meantime. While the flow is suspended, this keeps waiting. If the store does not respond, this
    raises `JournalError`; the run continues when the store answers again, and you can then await it again.
    """

    def __init__(
        self,
        plan: Plan,
        row: FlowRow,
        loader: FlowLoader,
        on_change: Callable[[Any], None],
        *,
        children: Children,
        same: bool = False,
    ) -> None:
        self.id: str = row.id
        self.name: str = plan.name
        self._plan, self._row, self._loader, self._children = plan, row, loader, children
        # True if a flow that is already stored with this id must have the same values.
        self._same = same
        # True if ``row`` was just read and can be taken, so that it is not loaded again.
        self._known = row.epoch > 0 and row.state not in (*ENDS, FlowState.WAITING)
        # Set when we should check again whether another process still has the flow.
        self._look_again = asyncio.Event()
        # True if there may be signals that were sent after the flow was created or taken.
        self._woken = False
        # True if another process is waiting for this run to stop.
        self._followed = False
        self._is_claimed: Callable[[], bool] = always
        # Called when the run starts and when it stops.
        self._on_change = on_change
        self._engine: Engine | WorkflowEngine | None = None
        # True if this process has taken the flow and may write to it.
        self._mine = False
        # True if the flow is known to be in the store.
        self._stored = False
        self._task: asyncio.Task[None] | None = None
        # The error that stopped the run, other than a failed task.
        self._error: BaseException | None = None
        # The ``cancel_after`` of the requested suspension, in a tuple, or None if no suspension was requested.
        self._suspend_after: tuple[float | None] | None = None
        # Notified after any change.
        self._changed = Condition()
        # Notified when the run stops.
        self._rest = Condition()
        # The engine states that each watcher has not read yet.
        self._watchers: list[deque[EngineState]] = []

    def __repr__(self) -> str:
        return f"<Run {self.name!r} {self.id!r}: {self.state}>"

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> FlowState:
        """The flow's stored state."""
        return FlowState(self._row.state) if self._engine is None else self._engine.flow.state

    @property
    def engine_state(self) -> EngineState:
        """The engine's current phase."""
        return EngineState.UNDEFINED if self._engine is None else self._engine.machine.state

    @property
    def steps(self) -> Mapping[str, StepView]:
        """The tasks and retries, by name."""
        return {} if self._engine is None else self._engine.view()

    @property
    def given(self) -> str:
        """The values that the flow was started with, encoded."""
        return self._row.store

    @property
    def running(self) -> bool:
        """True if the flow is running in the background or is about to start."""
        return self._task is not None and not self._task.done()

    @property
    def ended(self) -> bool:
        """True if the flow has ended: SUCCESS, FAILURE, REVERTED or CANCELLED."""
        return not self.running and self.state in ENDS

    @property
    def stopped(self) -> bool:
        """True if the run was stopped by an error other than a failed task. Such a run can be resumed."""
        return not self.running and self._error is not None

    @property
    def interrupted(self) -> bool:
        """True if the run was stopped because the store did not respond, so that it continues when the store does."""
        return self.stopped and self._stored and isinstance(self._error, JournalError)

    @property
    def parked(self) -> bool:
        """True if the workflow waits in the store, so that this run needs neither a task nor an engine."""
        return not self.running and self.state is FlowState.WAITING and self._error is None

    @property
    def given_back(self) -> bool:
        """True if the workflow waits in the store for a process with the code that it matches."""
        return self.stopped and self.state is FlowState.WAITING

    @property
    def status(self) -> str:
        """The state, or ``STOPPED`` and the class of the error that stopped the run."""
        return f"STOPPED ({type(self._error).__name__})" if self.stopped else self.state

    @property
    def refused(self) -> bool:
        """True if the run stopped before its flow was stored, for example because a different flow has its id."""
        return self.stopped and not self._stored

    def info(self) -> RunInfo:
        """Return a snapshot of the run and its flow's structure. To draw it, use `lifecycle.observe.mermaid.flow`."""
        error = "" if self._error is None else error_text(self._error)
        return run_info(self._plan.flow, self._row._replace(state=self.status, error=error), self.steps)

    # -- waiting and watching -----------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, R_co]:
        return self._outcome().__await__()

    async def _outcome(self) -> Any:
        while not (self.ended or self.stopped):
            await (self._until_resumed() if self.parked else self._rest.wait())
        if self._error is not None:
            raise self._error
        assert self._engine is not None
        if (error := self._engine.error()) is not None:
            raise error
        if self.state is not FlowState.SUCCESS:
            raise FlowError(f"flow {self.id!r} is {self.state}: {self._row.error or 'the error is unknown'}")
        return self._engine.result()

    async def _until_resumed(self) -> None:
        """Wait until this process, or another one, has continued a workflow that waits."""
        loader, tries = self._loader, 0
        silence = loader.presence.listen(f"{AT_REST} {self.id}", self._look_again.set)
        try:
            while self.parked:
                self._look_again.clear()
                await wait_within(_POLLING.delay(tries), self._look_again)
                tries += 1
                row = await loader.store.get(self.id)
                if row is None or row.state != FlowState.WAITING:
                    self._follow(row)
        finally:
            silence()

    def _follow(self, row: FlowRow | None) -> None:
        """Continue with a workflow that no longer waits in the store."""
        if not self.parked:
            return
        if row is None:
            self._stop(unknown(self.id))
        else:
            self.proceed()

    async def __aiter__(self) -> AsyncGenerator[Change, None]:
        """Yield each stored change, starting with the first one, until the flow has ended."""
        seq = 0
        while True:
            before, over = self._changed.notified, self.ended or self.stopped
            changes = await self._loader.changes(self.id, after=seq)
            for change in changes:
                yield change
                seq = change.seq
            if over and not changes:
                return
            if not changes and before == self._changed.notified:
                await self._changed.wait()

    async def states(self) -> AsyncGenerator[EngineState, None]:
        """Yield each state that the engine enters after this call, until the run stops."""
        seen: deque[EngineState] = deque(maxlen=_BACKLOG)
        self._watchers.append(seen)
        try:
            while True:
                while seen:
                    yield seen.popleft()
                if not self.running:
                    return
                await self._changed.wait()
        finally:
            self._watchers.remove(seen)

    async def stored(self) -> Self:
        """Wait until the flow is stored, so that it survives a crash, and return the run.

        Raises:
            FlowError: if the id belongs to a different flow, or if the `Flows` were closed first.
            JournalError: if the store cannot be written to.
        """
        while not self._stored:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self

    async def wait_over(self) -> None:
        """Wait until the flow has ended, waits in the store, or was stopped by an error."""
        while not (self.ended or self.stopped or self.parked):
            await self._rest.wait()

    async def wait_restarted(self) -> None:
        """Wait until a flow that had ended is stored as running again, or has ended again."""
        while self.running and self.state in ENDS:
            await self._changed.wait()

    async def wait_at_rest(self) -> None:
        """Wait until no tasks are running."""
        while self.running:
            await self._rest.wait()

    # -- commands -----------------------------------------------------------------------------------------------------

    def suspend(self, *, cancel_after: Duration | None = None) -> Awaitable[FlowState]:
        """Stop starting tasks. Await the result to wait until no tasks are running.

        Tasks that are already running continue until they finish. If you pass ``cancel_after``, they are cancelled
        after that many seconds, and run again when the flow is resumed. If the flow is not running, this has no effect.
        If all of the flow's tasks have finished, it ends instead of being suspended.
        """
        limit = in_seconds_or_none("cancel_after", cancel_after, least=0)
        if self.running:
            self._suspend_after = (limit,)
            self._look_again.set()
        if self._engine is not None:
            self._engine.suspend(cancel_after=limit)
        return _Rest(self)

    async def resume(self) -> None:
        """Continue the flow in the background if it was suspended or stopped by an error."""
        while self.running and self._suspend_after is not None:
            await self._rest.wait()
        if self.stopped or not (self.ended or self.parked):
            self.proceed()

    async def reset(self) -> None:
        """Delete the flow's results, failures and retry histories, but keep the attempt counts.

        Afterwards, the flow is PENDING. It starts over when you call `resume` or `again`, or start a flow with the same
        id.

        Raises:
            InvalidState: if the flow has not ended.
        """
        self._check_idle()
        engine = await self._ready(again=True)
        assert engine is not None
        await engine.reset()
        self._notify()

    async def again(self, flow: Item | None = None) -> None:
        """Run the flow again in the background. Finished steps are skipped, but a reverted flow starts over.

        If you pass ``flow``, it replaces the flow's definition. Tasks whose names are unchanged keep their state, and
        new tasks run.

        Raises:
            InvalidState: if the flow is running.
            FlowError: if ``flow`` has a different name or is invalid.
        """
        self._check_idle()
        if flow is not None:
            self._plan, self._engine = self._loader.plan(flow, self.name), None
        self.proceed(again=True)

    def _check_idle(self) -> None:
        if self.running:
            raise InvalidState(
                f"flow {self.id!r} is still running (state {self.state}); await run.suspend(), or await run"
            )

    async def close(self) -> None:
        """Stop the run immediately, because its `Flows` is being closed."""
        left = f"flow {self.id!r} is {self.state}, and its Flows was closed; recover or start the flow again"
        await self.abandon(FlowError(left))

    async def abandon(self, error: Exception) -> None:
        """Cancel the running functions, write nothing more, and raise ``error`` in callers awaiting the run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self.ended and not self.stopped:
            self._error = error
            self._notify()

    # -- running ------------------------------------------------------------------------------------------------------

    def use(self, plan: Plan) -> None:
        """Use a newer definition of the flow from the next start on."""
        if not self.running and plan.flow is not self._plan.flow:
            self._plan, self._engine = plan, None

    def adopt(self, snapshot: Snapshot, is_claimed: Callable[[], bool]) -> None:
        """Use ``snapshot`` as the current state. This process has already taken the flow.

        ``is_claimed`` returns False once the claim has expired. From then on, the run starts no tasks.
        """
        self._is_claimed = is_claimed
        self._mine = snapshot.flow.state not in ENDS
        # If this run is used again later, the row may be out of date.
        self._known = False
        self._stored, self._error = True, None
        # This run was not notified of signals sent since then.
        self._use(snapshot._replace(signals=None))
        self._look_again.set()

    def wake(self) -> None:
        """Look for new signals and ended children."""
        self._woken = True
        if self.running and isinstance(self._engine, WorkflowEngine):
            self._engine.wake()

    def proceed(self, *, again: bool = False) -> None:
        """Start or continue the flow in the background. If ``again`` is true, do so even if the flow has ended."""
        if self.running:
            return
        self._suspend_after = None
        self._task = start_task(self._proceed(again=again), name=f"flow {self.id}")
        self._on_change(self)

    async def _proceed(self, *, again: bool) -> None:
        try:
            engine = await self._ready(again=again)
            if engine is not None:
                await engine.prepare(write=False)
                state = await engine.run()
                self._finished(engine, state)
            self._log_failure()
        except Exception as error:  # noqa: BLE001  # raised when the run is awaited
            self._stop(await self._give_back(error))
        finally:
            self._task = None
            self._on_change(self)
            self._notify()
            if self._followed:
                self._followed = False
                self._loader.presence.notify(f"{AT_REST} {self.id}")

    def _finished(self, engine: Engine | WorkflowEngine, state: FlowState) -> None:
        if state in ENDS and hooks.flow_ended.receivers:
            hooks.flow_ended.announce(self, state=state, error=engine.error())
        if state in ENDS and self._row.parent:
            for news in (f"{WAKE} {self._row.parent}", WAKE):
                self._loader.presence.notify(news)
        if state is FlowState.WAITING:
            self._drop_engine()

    async def _give_back(self, error: Exception) -> Exception:
        """If the workflow does not match this code, leave it to other processes. Return why the run stops."""
        if not isinstance(error, WorkflowChanged) or not isinstance(self._engine, WorkflowEngine):
            return error
        try:
            await self._engine.give_back(error)
        except Exception as other:  # noqa: BLE001  # raised when the run is awaited
            return other
        if self.state not in ENDS:
            self._drop_engine()
            self._row = self._row._replace(state=FlowState.WAITING)
            self._loader.presence.notify(WAKE)
        return error

    def _drop_engine(self) -> None:
        """Forget the engine of a workflow, which can be used only once. The next one is loaded from the store."""
        self._row = self._row._replace(state=self.state)
        self._engine, self._mine = None, False

    def be_followed(self) -> None:
        """Arrange to notify other processes when the run stops."""
        self._followed = True

    async def _ready(self, *, again: bool) -> Engine | WorkflowEngine | None:
        """Take the flow if necessary. Return its engine, or None if this process must not run the flow."""
        if self._error is not None:
            # Discard the state in memory, which may be ahead of the store.
            self._engine, self._error = None, None
        if isinstance(self._engine, WorkflowEngine) and self._engine.machine.state is not EngineState.UNDEFINED:
            self._drop_engine()
        if self._engine is None or not self._mine:
            self._is_claimed = always
            snapshot, fresh = await self._open()
            self._mine, self._stored = fresh, True
            self._changed.notify_all()
            if not fresh and (again or snapshot.flow.state not in (*ENDS, FlowState.WAITING)):
                snapshot = await self._take(snapshot, again=again)
            if snapshot.flow.state == FlowState.WAITING:
                # A timer continues it.
                self._row = snapshot.flow
                return None
            self._use(snapshot)
        return self._engine if self._mine else None

    async def _open(self) -> tuple[Snapshot, bool]:
        if self._known:
            self._known = False
            return Snapshot(self._row, {}), False
        return await self._loader.open(self._row, same=self._same)

    async def _take(self, snapshot: Snapshot, *, again: bool) -> Snapshot:
        """Take the flow. If another live process owns it, wait until the flow has ended or this run is suspended."""
        loader, presence, tries = self._loader, self._loader.presence, 0
        silences: list[Callable[[], None]] = []
        try:
            while True:
                self._look_again.clear()
                # If the flow belongs to a job, the next process that claims the job continues the flow.
                if not (await loader.is_elsewhere(snapshot.flow) or (tries and await loader.has_job(self.id))):
                    if (taken := await self._try_to_take(snapshot, again=again)) is not None:
                        return taken
                elif again:
                    raise ClaimLost(
                        f"flow {self.id!r} is {snapshot.flow.state} in another live process ({snapshot.flow.owner}); "
                        "wait until the flow ends, or suspend it there"
                    )
                elif self._suspend_after is not None:
                    return snapshot
                elif not silences:
                    # Look again after this, in case the flow has stopped in the meantime.
                    silences = self._listen(f"{AT_REST} {self.id}", GONE)
                else:
                    presence.notify(f"{FOLLOW} {self.id}")
                    await wait_within(_POLLING.delay(tries), self._look_again)
                    tries += 1
                snapshot = await loader.store.load(self.id)
                if snapshot.flow.state in (*ENDS, FlowState.WAITING):
                    return snapshot
                self._row = self._row._replace(state=snapshot.flow.state)
                self._changed.notify_all()
        finally:
            for silence in silences:
                silence()

    async def _try_to_take(self, snapshot: Snapshot, *, again: bool) -> Snapshot | None:
        self._woken = False
        try:
            taken = await self._loader.take(snapshot.flow, ended=again)
        except ClaimLost:
            if again:
                raise
            return None
        self._mine = True
        return taken

    def _listen(self, *messages: str) -> list[Callable[[], None]]:
        return [self._loader.presence.listen(each, self._look_again.set) for each in messages]

    def _use(self, snapshot: Snapshot) -> None:
        if self._woken:
            snapshot = snapshot._replace(signals=None)
        self._row = self._row._replace(error=snapshot.flow.error, parent=snapshot.flow.parent)
        self._engine = self._loader.engine(self._plan, snapshot, self, self._children)
        self._engine.changed = self._changed
        self._engine.is_claimed = self._is_claimed
        self._engine.watchers.append(self._entered)

    def _entered(self, state: EngineState) -> None:
        for seen in self._watchers:
            seen.append(state)
        self._changed.notify_all()
        if self._suspend_after is not None and self._engine is not None and state is EngineState.RESUMING:
            self._engine.suspend(cancel_after=self._suspend_after[0])

    def _log_failure(self) -> None:
        if self._engine is None or self.state not in ENDS:
            return
        if (error := self._engine.error()) is not None:
            _log.warning("flow %s %r ended in state %s: %s", self.name, self.id, self.state, reason_of(error))

    def _stop(self, error: Exception) -> None:
        """Stop the run because of an error other than a failed task. The stored state stays unchanged."""
        self._error = error
        then = "can be resumed"
        if isinstance(error, JournalError) and self._stored:
            then = "continues when the store answers"
        elif isinstance(error, WorkflowChanged) and self.state is FlowState.WAITING:
            then = "waits for a process with the code that it matches"
        _log.warning("flow %s %r stopped, and %s: %s", self.name, self.id, then, reason_of(error))
        flow = None if self._engine is None else self._engine.flow
        if flow is not None and flow.state in (FlowState.RUNNING, FlowState.SUSPENDING):
            flow.to(FlowState.SUSPENDING, "error")
            flow.to(FlowState.SUSPENDED, "error")

    def _notify(self) -> None:
        """Wake all tasks that are waiting for a change or for the run to stop."""
        self._changed.notify_all()
        self._rest.notify_all()


class _Rest:
    """The result of `Run.suspend`. Await it to wait until no tasks are running, and to get the flow's state."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, FlowState]:
        yield from self._run.wait_at_rest().__await__()
        return self._run.state


# -- descriptions ------------------------------------------------------------------------------------------------------


def run_info(flow: Item | None, row: FlowRow, steps: Mapping[str, StepView]) -> RunInfo:
    """Return a record of the run stored in ``row``.

    If ``flow`` is None, the order of the steps is unknown. A step that is missing from ``steps`` has not started.
    """
    if flow is None or isinstance(flow, Workflow):
        root = ItemInfo(
            row.name,
            "" if flow is None else flow.pattern,
            items=tuple(_step_info(name, each) for name, each in steps.items()),
        )
    else:
        root = _item_info(flow, steps)
    return RunInfo(row.id, row.name, row.state, row.error, root)


def step_view(row: StepRow) -> StepView:
    """Convert a stored task or retry to the kind of record that `Run.steps` contains."""
    failed = row.revert_failure or row.failure
    error = str(Failure.decode(failed)) if failed else ""
    return StepView(row.kind, StepState(row.state), Intention(row.intention), row.attempt, error)


def _item_info(item: Part, steps: Mapping[str, StepView]) -> ItemInfo:
    if isinstance(item, Task):
        return _step_info(item.name, steps.get(item.name) or StepView("task"))
    items, follow = order_of(item)
    infos = tuple(_item_info(each, steps) for each in items)
    if item.retry is None:
        return ItemInfo(item.name, item.pattern, items=infos, follow=follow)
    return _with_retry(item, infos, follow, steps)


def _with_retry(
    flow: Flow, items: tuple[ItemInfo, ...], follow: tuple[tuple[int, ...], ...], steps: Mapping[str, StepView]
) -> ItemInfo:
    """Return a record of a flow with a retry. The retry comes first, directly before the flow's first items."""
    assert flow.retry is not None
    followers = {place for row in follow for place in row}
    first = tuple(place + 1 for place in range(len(items)) if place not in followers)
    moved = tuple(tuple(place + 1 for place in row) for row in follow)
    retry = _step_info(flow.retry.name, steps.get(flow.retry.name) or StepView("retry"))
    return ItemInfo(flow.name, flow.pattern, items=(retry, *items), follow=(first, *moved))


def _step_info(name: str, view: StepView) -> ItemInfo:
    return ItemInfo(name, view.kind, view.state, view.intention, view.attempt, view.error)
