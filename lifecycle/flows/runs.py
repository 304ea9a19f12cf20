"""`Run`: one flow under one id, from when it is started until nobody asks for it any more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from lifecycle._util import error_text
from lifecycle.errors import FlowError, InvalidState
from lifecycle.flows.drives import Drive
from lifecycle.flows.states import EngineState, FlowState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
    from typing import Self

    from lifecycle.flows.definition import Item
    from lifecycle.flows.records import Change, RunInfo, StepView

__all__ = ["Run"]

#: States of an engine that who looks slowly can be behind; older ones are dropped.
_BEHIND = 1000


class Run(Drive):
    """A flow that is carried out; `Flows.start` and `Flows.recover` make them.

    Awaited, it gives what the flow's tasks provided, by name, or raises what it failed with: the error itself, an
    ``ExceptionGroup`` of several, or, where that was before a restart of the program, `StepFailed`. It waits while the
    flow is suspended.
    """

    def __repr__(self) -> str:
        return f"<Run {self.name!r} {self.id!r}: {self.state}>"

    # -- what it is at -------------------------------------------------------------------------------------------

    @property
    def engine_state(self) -> EngineState:
        """What the engine is at."""
        return EngineState.UNDEFINED if self._engine is None else self._engine.machine.state

    @property
    def steps(self) -> Mapping[str, StepView]:
        """The tasks and retries by name."""
        return {} if self._engine is None else self._engine.view()

    def info(self) -> RunInfo:
        """What can be seen of it now, and how it is built; `lifecycle.observe.mermaid.flow` draws it."""
        from lifecycle.flows.views import run_info

        error = "" if self._error is None else error_text(self._error)
        return run_info(self._plan.flow, self._row._replace(state=self.state, error=error), self.steps)

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._outcome().__await__()

    async def _outcome(self) -> dict[str, Any]:
        while not (self.ended or self.stopped):
            await self._rest.wait()
        if self._error is not None:
            raise self._error
        assert self._engine is not None
        if (error := self._engine.error()) is not None:
            raise error
        if self.state is not FlowState.SUCCESS:
            raise FlowError(f"flow {self.id!r} is {self.state}: {self._row.error or 'its error is not known'}")
        return self._engine.scheduler.values.provided()

    async def __aiter__(self) -> AsyncGenerator[Change, None]:
        """Each change from the first on, once it is stored; ends when the flow has come to an end."""
        seq = 0
        while True:
            before, over = self._changed.notified, self.ended or self.stopped
            changes = await self._repository.changes(self.id, after=seq)
            for change in changes:
                yield change
                seq = change.seq
            if over and not changes:
                return
            if not changes and before == self._changed.notified:
                await self._changed.wait()

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
                await self._changed.wait()
        finally:
            self._watchers.remove(seen)

    async def stored(self) -> Self:
        """Wait until the flow is in the store, and return the run: from then on the flow survives a crash.

        Raises:
            FlowError: if it could not be stored: its id is that of another flow, or the `Flows` were left.
            JournalError: if the store could not be written.
        """
        while not self._stored:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self

    # -- what is asked of it ---------------------------------------------------------------------------------------

    def suspend(self, *, cancel_after: float | None = None) -> Awaitable[FlowState]:
        """Have nothing more begun, from now on; awaiting what this returns waits until nothing is at work.

        Tasks at work end by themselves; after ``cancel_after`` seconds they are cancelled, and are done again when the
        flow goes on. A flow that does not run stays as it is; one that had nothing left to do comes to its end.
        """
        if self.running:
            self._asked = (cancel_after,)
            self._news.set()
        if self._engine is not None:
            self._engine.suspend(cancel_after=cancel_after)
        return _Rest(self)

    async def resume(self) -> None:
        """Go on, if the flow is suspended or something stopped it; it goes on in the background."""
        while self.running and self._asked is not None:
            await self._rest.wait()
        if self.stopped or not self.ended:
            self.drive()

    async def reset(self) -> None:
        """Forget what was done: results, failures, and what retries remember; not how often tasks were started.

        The flow is PENDING then, and begins anew with `resume`, with `again`, or when it is started with its id.

        Raises:
            InvalidState: unless the flow is at its end: SUCCESS, FAILURE or REVERTED.
        """
        self._check_idle()
        engine = await self._ready(anew=True)
        assert engine is not None
        await engine.reset()
        self._ring()

    async def again(self, flow: Item | None = None) -> None:
        """Run it once more, in the background: what is done stays done; a flow that was undone begins anew.

        With ``flow``, its tasks take the place of those before: of the same name are the same, new ones are done.

        Raises:
            InvalidState: while it runs.
            FlowError: for a flow of another name, or one that cannot be carried out.
        """
        self._check_idle()
        if flow is not None:
            self._plan, self._engine = self._repository.plan(flow, self.name), None
        self.drive(anew=True)

    def _check_idle(self) -> None:
        if self.running:
            raise InvalidState(f"flow {self.id!r} is {self.state} and runs; await run.suspend(), or await run")


class _Rest:
    """What `Run.suspend` returns: awaited, it waits until nothing is at work, and gives the state of the flow."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, None, FlowState]:
        yield from self._run.settle().__await__()
        return self._run.state
