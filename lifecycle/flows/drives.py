"""`Drive`: the half of a run that `Flows` sees: a flow is taken, its engine driven in the background, and stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import Condition, wait_within
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError
from lifecycle.flows.owners import GONE
from lifecycle.flows.requests import AT_REST, FOLLOW
from lifecycle.flows.states import ENDS, EngineState, FlowState

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from lifecycle.flows.engine import Engine
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import FlowRow, Snapshot
    from lifecycle.flows.repositories import Repository

__all__ = ["Drive"]

_log = logging.getLogger("lifecycle.flows")

#: How often the store is asked about a flow that another process has, which should ring when it comes to rest.
_LOOK = Backoff(initial=0.1, maximum=5.0)


class Drive:
    """A flow, its engine if there is one, and the task that drives it if one does."""

    def __init__(
        self, plan: Plan, row: FlowRow, repository: Repository, driven: Callable[[Any], None], *, same: bool = False
    ) -> None:
        self.id: str = row.id
        self.name: str = plan.name
        self._plan, self._row, self._repository = plan, row, repository
        # Whether a flow that is stored under this id must have been given the same values.
        self._same = same
        # Set to look again at a flow that another process has; and whether another process waits for this one.
        self._news = asyncio.Event()
        self._followed = False
        # Told when it begins to be driven, and when it is no more.
        self._driven = driven
        self._engine: Engine | None = None
        # Whether the flow was taken, so that it may be written.
        self._mine = False
        # Whether the store is known to have it.
        self._stored = False
        self._driver: asyncio.Task[None] | None = None
        # What stopped it that was no task's failure.
        self._error: BaseException | None = None
        # Whether it is to be suspended as soon as it runs, and how much time its tasks have.
        self._asked: tuple[float | None] | None = None
        # Rung when anything is otherwise; and when it has come to rest, for those who need not be woken before.
        self._changed, self._rest = Condition(), Condition()
        # What each who watches the engine has not seen yet.
        self._watchers: list[deque[EngineState]] = []

    @property
    def state(self) -> FlowState:
        """Of the flow, as it is stored."""
        return FlowState(self._row.state) if self._engine is None else self._engine.flow.state

    @property
    def given(self) -> str:
        """The values that it was given, encoded."""
        return self._row.store

    @property
    def running(self) -> bool:
        """Whether something is done, or about to be."""
        return self._driver is not None and not self._driver.done()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end: SUCCESS, FAILURE or REVERTED."""
        return not self.running and self.state in ENDS

    @property
    def stopped(self) -> bool:
        """Whether something stopped it that was no failure of a task; it can be resumed."""
        return not self.running and self._error is not None

    @property
    def refused(self) -> bool:
        """Whether it was stopped before the store had it, or because it is not what the store has."""
        return self.stopped and not self._stored

    def drive(self, *, anew: bool = False) -> None:
        """Begin, or go on, in the background; ``anew`` also where the flow has come to an end before."""
        if self.running:
            return
        self._asked = None
        self._driver = asyncio.create_task(self._drive(anew=anew), name=f"flow {self.id}")
        self._driven(self)

    async def _drive(self, *, anew: bool) -> None:
        try:
            engine = await self._ready(anew=anew)
            if engine is not None:
                await engine.prepare(write=False)
                state = await engine.run()
                if state in ENDS:
                    hooks.flow_ended.announce(self, state=state, error=engine.error())
            self._report()
        except Exception as error:  # noqa: BLE001  # who awaits the run gets it
            self._stop(error)
        finally:
            self._driver = None
            self._driven(self)
            self._ring()
            if self._followed:
                self._followed = False
                self._repository.owners.ring(f"{AT_REST} {self.id}")

    def be_followed(self) -> None:
        """Ring for others when it comes to rest."""
        self._followed = True

    async def _ready(self, *, anew: bool) -> Engine | None:
        """The engine, if there is anything for it to do; where it has to be, the flow is taken."""
        if self._error is not None:
            # What is in memory may be ahead of what is stored.
            self._engine, self._error = None, None
        if self._engine is None or not self._mine:
            snapshot, self._mine = await self._repository.open(self._row, same=self._same)
            self._stored = True
            self._changed.notify_all()
            if not self._mine and (anew or snapshot.flow.state not in ENDS):
                snapshot = await self._take(snapshot, anew=anew)
            self._use(snapshot)
        return self._engine if self._mine else None

    async def _take(self, snapshot: Snapshot, *, anew: bool) -> Snapshot:
        """Take the flow; while a live process elsewhere has it, wait for its end, or until this is suspended."""
        repository, owners, tries = self._repository, self._repository.owners, 0
        silences = [owners.listen(news, self._news.set) for news in (f"{AT_REST} {self.id}", GONE)]
        try:
            while True:
                self._news.clear()
                # If it is the flow of a job, the next process that claims the job goes on with it.
                if not (
                    await repository.is_elsewhere(snapshot.flow) or (tries and await repository.is_posted(self.id))
                ):
                    try:
                        taken = await repository.take(snapshot)
                    except ClaimLost:
                        if anew:
                            raise
                    else:
                        self._mine = True
                        return taken
                elif anew:
                    raise ClaimLost(
                        f"flow {self.id!r} is {snapshot.flow.state} in a process that lives ({snapshot.flow.owner}); "
                        "wait for its end, or suspend it there"
                    )
                elif self._asked is not None:
                    return snapshot
                else:
                    owners.ring(f"{FOLLOW} {self.id}")
                    await wait_within(_LOOK.delay(tries), self._news)
                    tries += 1
                snapshot = await repository.store.load(self.id)
                if snapshot.flow.state in ENDS:
                    return snapshot
                self._row = self._row._replace(state=snapshot.flow.state)
                self._changed.notify_all()
        finally:
            for silence in silences:
                silence()

    def adopt(self, snapshot: Snapshot) -> None:
        """Go on from there: the flow was taken for this run."""
        self._mine = snapshot.flow.state not in ENDS
        self._stored = True
        self._use(snapshot)

    def _use(self, snapshot: Snapshot) -> None:
        self._row = self._row._replace(error=snapshot.flow.error)
        self._engine = self._repository.engine(self._plan, snapshot, self)
        self._engine.changed = self._changed
        self._engine.watchers.append(self._watch)

    def _watch(self, state: EngineState) -> None:
        for seen in self._watchers:
            seen.append(state)
        self._changed.notify_all()
        if self._asked is not None and self._engine is not None and state is EngineState.RESUMING:
            self._engine.suspend(cancel_after=self._asked[0])

    def _report(self) -> None:
        if self._engine is not None and (error := self._engine.error()) is not None:
            _log.warning("flow %s %r ends %s: %s", self.name, self.id, self.state, reason_of(error))

    def _stop(self, error: Exception) -> None:
        """Something is wrong with more than a task: what is stored stays, and nothing is at work."""
        _log.warning("flow %s %r stopped, and can be resumed: %s", self.name, self.id, reason_of(error))
        self._error = error
        flow = None if self._engine is None else self._engine.flow
        if flow is not None and flow.state in (FlowState.RUNNING, FlowState.SUSPENDING):
            flow.to(FlowState.SUSPENDING, "error")
            flow.to(FlowState.SUSPENDED, "error")

    async def settle(self) -> None:
        """Wait until nothing is at work."""
        while self.running:
            await self._rest.wait()

    async def close(self) -> None:
        """Stop at once what still runs, and tell who waits that nothing will come."""
        left = f"flow {self.id!r} is {self.state}, and the Flows that ran it was left; recover or start it again"
        await self.abandon(FlowError(left))

    async def abandon(self, error: Exception) -> None:
        """Cancel at once what is at work and write nothing more; who waits gets ``error``."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
        if not self.ended and not self.stopped:
            self._error = error
            self._ring()

    def _ring(self) -> None:
        """Whoever waits for anything looks again."""
        self._changed.notify_all()
        self._rest.notify_all()
