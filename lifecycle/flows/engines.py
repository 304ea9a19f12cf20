"""`Engine`: runs one flow, phase by phase: what the core decides is written, then told, then done.

RESUMING, then SCHEDULING, WAITING and ANALYZING in turn. No change is told, nor a function called, before it is stored.
A phase that calls nothing is one transaction with the next: RESUMING and the first SCHEDULING, ANALYZING and the
SCHEDULING after it, the last ANALYZING and the SUCCESS of the flow. A flow of one task is two transactions. If the
flow is suspended before a change of a SCHEDULING was told, the SCHEDULING is taken back: the store forgets it, and
nothing has begun. Decisions belong into the core, functions into the crew.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle._async import Condition
from lifecycle.flows.core.cells import NOTHING
from lifecycle.flows.core.cores import Core
from lifecycle.flows.core.endings import ending, error_of
from lifecycle.flows.core.outcomes import Given, cancelled, ended
from lifecycle.flows.crews import CANCELLED, THREADS, Crew
from lifecycle.flows.plans.scopes import check
from lifecycle.flows.records import Failure, StepView
from lifecycle.flows.serializers import JSON, is_large, keep
from lifecycle.flows.states import ENGINES, FLOWS, EngineState, FlowState, StepState
from lifecycle.flows.stores import clock_of
from lifecycle.journal.threads import LoopThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.flows.core.cores import Call
    from lifecycle.flows.options import Options
    from lifecycle.flows.plans.compiling import Plan
    from lifecycle.flows.records import Change, Snapshot
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores import Store
    from lifecycle.states import Machine

__all__ = ["Engine"]


class Engine:
    """Runs ``plan`` from where ``snapshot`` says it is; nothing happens before `prepare` and `run`."""

    plan: Plan

    def __init__(  # a plan, where it is, and what it is kept with
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
        self.core: Final = Core(plan, snapshot, codec, options)
        #: Rung when something is stored and told.
        self.changed: Condition = Condition()
        #: Called with each change once it is stored, in order; what one raises ends the engine.
        self.listeners: list[Callable[[Change], object]] = []
        #: Called with each state of the engine, before what is done in it.
        self.watchers: list[Callable[[EngineState], object]] = []
        #: Called when something that was sent is stored.
        self.sent: Callable[[], object] = _nothing
        self._sender = self if sender is None else sender
        # The states as they are stored, one machine each: they move when who looks may know.
        self.flow: Machine[FlowState] = FLOWS.machine(self.id, self.core.state)
        self.steps: dict[str, Machine[StepState]] = {
            cell.name: cell.table.machine(cell.name, cell.state) for cell in self.core.steps
        }
        self.machine: Machine[EngineState] = ENGINES.machine(self.id)
        # Where plain functions are called; ours, if nobody has any.
        self._threads, self._spare = threads or LoopThreads(f"flow {self.id}", THREADS), threads is None
        self._crew = self._new_crew()
        self._clock: Callable[[], float] = store.time

    async def prepare(self, *, write: bool = True) -> None:
        """Bring what was loaded where it can be run from; without ``write`` new rows are written by `run`.

        Raises:
            ClaimLost: where the flow was taken by somebody else.
        """
        self.core.ledger.now = time.time()
        self.core.prepare()
        if write or self.core.ledger.changed:
            await self._flush()

    async def reset(self) -> None:
        """Forget all that was done.

        Raises:
            InvalidState: where the flow is neither PENDING nor at its end.
            ClaimLost: where the flow was taken by somebody else.
        """
        self.core.ledger.now = time.time()
        self.core.reset()
        await self._flush()

    async def run(self) -> FlowState:
        """Go on until nothing can be done any more, and return what has become of the flow.

        Raises:
            MissingDependencies: where somebody would not be given what he asks for; nothing has begun.
            InvalidState: from where the flow cannot be run.
            ClaimLost: where the flow was taken by somebody else; all that was at work is cancelled.
            JournalError: where the store cannot be written; all that was at work is cancelled.
        """
        check(self.plan, self.core.values.store.keys())
        self.machine, self._crew = ENGINES.machine(self.id), self._new_crew()
        self.core.ledger.now = time.time()
        self._clock = clock_of(self._store)
        self.core.begin()
        try:
            await self._go()
            return await self._end()
        finally:
            await self._crew.close()
            if self._spare:
                self._threads.close()

    def _new_crew(self) -> Crew:
        return Crew(self.id, self._codec, self._threads, self._sender)

    def suspend(self, *, cancel_after: float | None = None) -> bool:
        """Ask for nothing more to begin, at once; False where nothing runs.

        Those at work end by themselves, or are cancelled after ``cancel_after`` seconds.
        """
        self.core.ledger.now = time.time()
        asked = self.core.suspend()
        if self.core.state is not FlowState.SUSPENDING:
            return asked
        self._crew.hurry.set()
        self._crew.news.set()
        if cancel_after is not None:
            self._crew.cancel_after(cancel_after)
        return asked

    # -- the phases ----------------------------------------------------------------------------------------------

    async def _go(self) -> None:
        self._enter(EngineState.RESUMING)
        self.core.resume()
        scheduling = True
        while scheduling or self._crew or self._crew.ended:
            if scheduling and not await self._schedule():
                scheduling = False
                continue
            self._enter(EngineState.WAITING)
            await self._wait()
            self._enter(EngineState.ANALYZING)
            await self._analyze()
            scheduling = self.core.may_schedule

    async def _schedule(self) -> bool:
        """Write what is begun together with the changes before it; False if nothing is to begin any more."""
        limit = self._options.concurrency
        before = self.core.ledger.pending
        self.core.now = self._clock()
        calls = self.core.schedule(None if limit is None else limit - len(self._crew))
        changes = await self._commit()
        for change in changes[:before]:
            self._tell(change)
        suspended = self.machine.state is EngineState.ANALYZING and self.core.state is not FlowState.RUNNING
        if not suspended:
            self._enter(EngineState.SCHEDULING)
        if self.core.state is FlowState.RUNNING:
            for change in changes[before:]:
                self._tell(change)
        elif begun := changes[before:]:
            self.core.take_back(begun[0].seq)
            calls = []
        self.changed.notify_all()
        if self.core.ledger.is_open:
            await self._flush()
        for call in calls:
            self._crew.start(call)
        return not suspended

    async def _wait(self) -> None:
        if self.core.ledger.is_open:
            await self._flush()
        if self._crew and self._crew.ended:
            # Some had nothing to do. Those who are as quick are looked at together with them, and written at once.
            for _ in range(2):
                await asyncio.sleep(0)
        while self._crew and not self._crew.ended:
            await self._crew.news.wait()
            self._crew.news.clear()
            await self._flush()

    async def _analyze(self) -> None:
        over, self._crew.ended = self._crew.ended, []
        for call, outcome in over:
            large = is_large(outcome)
            self._take_in(call, await self._kept_apart(call, outcome) if large else self._kept(outcome))
        self.core.look()
        if self.core.may_schedule:
            return
        # A SUCCESS is written with the end of the flow. A REVERTED is not: a flow that is run again after its end as
        # REVERTED begins from the start, so a crash before the last revert was told would undo the flow twice.
        if self._crew or self._crew.ended or ending(self.core) is not FlowState.SUCCESS:
            await self._flush()

    async def _end(self) -> FlowState:
        """Write the end of the flow together with the changes before it, and return the state."""
        before = self.core.ledger.pending
        state = self.core.end()
        changes = await self._commit()
        for change in changes[:before]:
            self._tell(change)
        self._enter(EngineState.GAME_OVER)
        for change in changes[before:]:
            self._tell(change)
        self.changed.notify_all()
        await self._flush()
        self._enter(EngineState(state.value))
        return state

    def _take_in(self, call: Call, kept: Given | Failure | None) -> None:
        if kept is None:
            cancelled(self.core, call.cell)
        else:
            ended(self.core, call.cell, kept, back=call.back)
            if isinstance(kept, Given):
                self.core.ledger.send(call.sent)

    async def _kept_apart(self, call: Call, outcome: Any) -> Given | Failure:
        """The same in a thread; without a copy, if no listener is to be given one."""
        try:
            text = await self._threads.call(partial(self._codec.encode, outcome))
            # A retry remembers what it gave, and a codec of others may fail to decode.
            decodes = self._heeded or call.cell.node.kind == "retry" or type(self._codec) is not JSON
            return Given(text, await self._threads.call(partial(self._codec.decode, text)) if decodes else NOTHING)
        except Exception as error:  # noqa: BLE001  # as below
            return Failure.of(error)

    def _kept(self, outcome: Any) -> Given | Failure | None:
        if isinstance(outcome, Failure):
            return outcome
        if outcome is CANCELLED:
            return None
        try:
            return Given(*keep(self._codec, outcome))
        except Exception as error:  # noqa: BLE001  # what cannot be kept is the failure of who gave it
            return Failure.of(error)

    def error(self) -> BaseException | None:
        """What the flow failed with, one error or a group; None where it did not."""
        return error_of(self.core)

    def view(self) -> dict[str, StepView]:
        """The tasks and retries by name."""
        states = self.steps
        return {
            each.name: StepView(
                each.node.kind,
                states[each.name].state,
                each.intention,
                each.attempt,
                str(each.revert_failure or each.failure or ""),
            )
            for each in self.core.steps
        }

    # -- what is seen of it --------------------------------------------------------------------------------------

    def _enter(self, state: EngineState) -> None:
        self.core.ledger.now = time.time()
        self.machine.to(state)
        if state is not EngineState.GAME_OVER:
            for watcher in self.watchers:
                watcher(state)

    async def _flush(self) -> None:
        """Write what has changed, then tell of it; a receiver may change something again."""
        while changes := await self._commit():
            for change in changes:
                self._tell(change)
            self.changed.notify_all()

    async def _commit(self) -> Sequence[Change]:
        """Write what has changed; the changes that are to be told, in order."""
        changes: list[Change] = []
        while not changes and (batch := self.core.ledger.drain()) is not None:
            await self._store.commit(batch)
            changes = batch.changes
            if batch.sent:
                self.sent()
        return changes

    @property
    def _heeded(self) -> bool:
        """Whether changes, and the results in them, are given to anything."""
        return bool(self.listeners or hooks.flow_changed.receivers or hooks.state_changed.receivers)

    def _tell(self, change: Change) -> None:
        if change.kind == "flow":
            self.flow.to(FlowState(change.new), change.reason)
        elif change.old != change.new:
            self.steps[change.name].to(StepState(change.new), change.reason)
        for listener in self.listeners:
            listener(change)
        if hooks.flow_changed.receivers:
            hooks.flow_changed.announce(self._sender, change=change)


def _nothing() -> None:
    """Nobody delivers what is sent."""
