"""`Run`: one flow under one id, from when it is started until nobody asks for it any more."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from lifecycle.errors import FlowError, InvalidState
from lifecycle.flows.bells import Bell
from lifecycle.flows.tables import EngineState, FlowState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping

    from lifecycle.flows.engines import Engine
    from lifecycle.flows.keeping import Keeping
    from lifecycle.flows.patterns import Item
    from lifecycle.flows.plans import Plan
    from lifecycle.flows.records import Change, FlowRow, Snapshot
    from lifecycle.flows.views import AtomView, RunInfo

__all__ = ["Run"]

_log = logging.getLogger("lifecycle.flows")

_ENDS = (FlowState.SUCCESS, FlowState.FAILURE, FlowState.REVERTED)

#: States of an engine that who looks slowly can be behind; older ones are dropped.
_BEHIND = 1000


class Run:
    """A flow that is carried out; `Flows.start` and `Flows.recover` make them.

    Awaited, it gives what the flow's tasks provided, by name, or raises what it failed with: the error itself, an
    ``ExceptionGroup`` of several, or, where that was before a restart of the program, `AtomFailed`. It waits while the
    flow is suspended.
    """

    def __init__(self, plan: Plan, row: FlowRow, keeping: Keeping, driven: Callable[[Run], None]) -> None:
        self.id = row.id
        self.name = plan.name
        self._plan, self._row, self._keeping = plan, row, keeping
        # Told when it begins to be driven, and when it is no more.
        self._driven = driven
        self._engine: Engine | None = None
        # Whether the flow was taken, so that it may be written.
        self._mine = False
        # The task that drives the engine, while one does.
        self._driver: asyncio.Task[None] | None = None
        # What stopped it that was no task's failure; awaiting it raises that.
        self._error: BaseException | None = None
        # Whether it is to be suspended as soon as it runs, and how much time its tasks have.
        self._asked: tuple[float | None] | None = None
        # Rung when something is otherwise.
        self._bell = Bell()
        self._watchers: list[deque[EngineState]] = []

    def __repr__(self) -> str:
        return f"<Run {self.name!r} {self.id!r}: {self.state}>"

    # -- what it is at -------------------------------------------------------------------------------------------

    @property
    def state(self) -> FlowState:
        """Of the flow, as it is stored."""
        return FlowState(self._row.state) if self._engine is None else self._engine.flow.state

    @property
    def engine_state(self) -> EngineState:
        """What the engine is at."""
        return EngineState.UNDEFINED if self._engine is None else self._engine.machine.state

    @property
    def atoms(self) -> Mapping[str, AtomView]:
        """The tasks and retries by name."""
        return {} if self._engine is None else self._engine.view()

    def info(self) -> RunInfo:
        """What can be seen of it now, and how it is built; `lifecycle.observe.mermaid.flow` draws it."""
        from lifecycle.flows.views import built

        error = "" if self._error is None else f"{type(self._error).__name__}: {self._error}"
        return built(self._plan.flow, self._row._replace(state=self.state, error=error), self.atoms)

    @property
    def running(self) -> bool:
        """Whether something is done, or about to be."""
        return self._driver is not None and not self._driver.done()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end: SUCCESS, FAILURE or REVERTED."""
        return not self.running and self.state in _ENDS

    @property
    def stopped(self) -> bool:
        """Whether something stopped it that was no failure of a task; it can be resumed."""
        return self._error is not None and not self.running

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._outcome().__await__()

    async def _outcome(self) -> dict[str, Any]:
        while not self._ended:
            await self._bell.heard()
        if self._error is not None:
            raise self._error
        assert self._engine is not None
        if (error := self._engine.error()) is not None:
            raise error
        if self.state is not FlowState.SUCCESS:
            raise FlowError(f"flow {self.id!r} is {self.state}, and what failed in it is not known")
        return self._engine.core.values.provided()

    async def __aiter__(self) -> AsyncGenerator[Change, None]:
        """Each change from the first on, once it is stored; ends when the flow has come to an end."""
        seq = 0
        while True:
            rung, ended = self._bell.rung, self._ended
            changes = await self._keeping.changes(self.id, after=seq)
            for change in changes:
                yield change
                seq = change.seq
            if ended and not changes:
                return
            if not changes and rung == self._bell.rung:
                await self._bell.heard()

    @property
    def _ended(self) -> bool:
        return self.ended or self.stopped

    async def states(self) -> AsyncGenerator[EngineState, None]:
        """What the engine enters from now on, until the flow is at rest."""
        seen: deque[EngineState] = deque(maxlen=_BEHIND)
        self._watchers.append(seen)
        try:
            while True:
                while seen:
                    yield seen.popleft()
                if not self.running:
                    return
                await self._bell.heard()
        finally:
            self._watchers.remove(seen)

    # -- what is asked of it ---------------------------------------------------------------------------------------

    def suspend(self, *, cancel_after: float | None = None) -> Awaitable[FlowState]:
        """Have nothing more begun, from now on; awaiting what this returns waits until nothing is at work.

        Tasks at work end by themselves; after ``cancel_after`` seconds they are cancelled, and are done again when the
        flow goes on. A flow that does not run stays as it is; one that had nothing left to do comes to its end.
        """
        if self.running:
            self._asked = (cancel_after,)
        if self._engine is not None:
            self._engine.suspend(cancel_after=cancel_after)
        return _Rest(self)

    async def resume(self) -> None:
        """Go on, if the flow is suspended or something stopped it; it goes on in the background."""
        await self.settle()
        if self.stopped or self.state not in _ENDS:
            self.drive()

    async def reset(self) -> None:
        """Forget what was done: results, failures, and what retries remember; not how often tasks were started.

        Raises:
            InvalidState: unless the flow is at its end: SUCCESS, FAILURE or REVERTED.
        """
        self._check_idle()
        engine = await self._ready(anew=True)
        assert engine is not None
        await engine.reset()
        self._bell.ring()

    async def again(self, flow: Item | None = None) -> None:
        """Run it once more, in the background: what is done stays done; a flow that was undone begins anew.

        With ``flow``, its tasks take the place of those before: of the same name are the same, new ones are done.

        Raises:
            InvalidState: while it runs.
            FlowError: for a flow of another name, or one that cannot be carried out.
        """
        self._check_idle()
        if flow is not None:
            self._plan, self._engine = self._keeping.plan(flow, self.name), None
        self.drive(anew=True)

    def _check_idle(self) -> None:
        if self.running:
            raise InvalidState(f"flow {self.id!r} is {self.state} and runs; await run.suspend(), or await run")

    # -- how it is driven ------------------------------------------------------------------------------------------

    def drive(self, *, anew: bool = False) -> None:
        """Begin, or go on, in the background; ``anew`` also where the flow has come to an end before."""
        self._asked = None
        if self._error is not None:
            # What is in memory may be ahead of what is stored.
            self._engine, self._error = None, None
        self._driver = asyncio.create_task(self._drive(anew=anew), name=f"flow {self.id}")
        self._driven(self)

    async def _drive(self, *, anew: bool) -> None:
        try:
            engine = await self._ready(anew=anew)
            if engine is not None:
                await engine.prepare()
                await engine.run()
            self._report()
        except Exception as error:  # noqa: BLE001  # who awaits the run gets it
            self._stop(error)
            _log.warning("flow %s %r stopped, and can be resumed: %s", self.name, self.id, error)
        finally:
            self._driver = None
            self._driven(self)
            self._bell.ring()

    def _report(self) -> None:
        if self._engine is not None and (error := self._engine.error()) is not None:
            _log.warning("flow %s %r ends %s: %s", self.name, self.id, self.state, error)

    async def _ready(self, *, anew: bool) -> Engine | None:
        """The engine, if there is anything for it to do; where it has to be, the flow is taken."""
        if self._engine is None or not self._mine:
            snapshot, self._mine = await self._keeping.open(self._row)
            if not self._mine and (anew or snapshot.flow.state not in _ENDS):
                snapshot, self._mine = await self._keeping.take(snapshot), True
            self._use(snapshot)
        return self._engine if self._mine else None

    def adopt(self, snapshot: Snapshot) -> None:
        """Go on from there: the flow was taken for this run."""
        self._mine = snapshot.flow.state not in _ENDS
        self._use(snapshot)

    def _use(self, snapshot: Snapshot) -> None:
        self._engine = self._keeping.engine(self._plan, snapshot, self)
        self._engine.listeners.append(self._told)
        self._engine.watchers.append(self._watch)

    def _stop(self, error: Exception) -> None:
        """Something is wrong with more than a task: what is stored stays, and nothing is at work."""
        self._error = error
        flow = None if self._engine is None else self._engine.flow
        if flow is not None and flow.state in (FlowState.RUNNING, FlowState.SUSPENDING):
            flow.to(FlowState.SUSPENDING, "error")
            flow.to(FlowState.SUSPENDED, "error")

    async def close(self) -> None:
        """Stop at once what still runs, and tell who waits that nothing will come."""
        await self.abandon(
            FlowError(
                f"flow {self.id!r} is {self.state}, and the Flows that ran it was left; recover or start it again"
            )
        )

    async def abandon(self, error: Exception) -> None:
        """Cancel at once what is at work and write nothing more; who waits gets ``error``."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
        if not self._ended:
            self._error = error
            self._bell.ring()

    def _told(self, _: Change) -> None:
        self._bell.ring()

    def _watch(self, state: EngineState) -> None:
        for seen in self._watchers:
            seen.append(state)
        self._bell.ring()
        if self._asked is not None and self._engine is not None and state is EngineState.RESUMING:
            self._engine.suspend(cancel_after=self._asked[0])

    async def settle(self) -> None:
        """Wait until nothing is at work."""
        while self.running:
            await self._bell.heard()


class _Rest:
    """What `Run.suspend` returns: awaited, it waits until nothing is at work, and gives the state of the flow."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, FlowState]:
        yield from self._run.settle().__await__()
        return self._run.state
