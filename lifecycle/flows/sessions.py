"""`Flows`: a store that is open, and the flows that are carried out with it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle.errors import FlowError
from lifecycle.flows.decisions import Options
from lifecycle.flows.engine import STOP_MARGIN, THREADS
from lifecycle.flows.outboxes import Outbox
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.records import FlowRow, FlowsState
from lifecycle.flows.recoveries import Recovery
from lifecycle.flows.repositories import Repository
from lifecycle.flows.requests import RESUMED, Requests
from lifecycle.flows.rosters import Roster
from lifecycle.flows.serializers import JSON
from lifecycle.flows.states import FlowState
from lifecycle.flows.stores import id_for, store_at
from lifecycle.journal.threads import LoopThreads

if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.definition import Item
    from lifecycle.flows.owners import Owners
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.runs import Run
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores import Store

__all__ = ["Flows"]

_log = logging.getLogger("lifecycle.flows")


class Flows:
    """Flows that are kept in ``path``, an SQLite file or a PostgreSQL server, or as long as the process lives.

    To be entered. When it is left, what runs is suspended: tasks at work have ``stop_timeout`` seconds to end, then
    they are cancelled; `recover`, or `start` with the same id, goes on from there. A store that takes longer than a few
    seconds to say that it has it is not waited for.

    Args:
        path: A file, made if need be, or ``postgresql://user@host:port/database`` (`PostgresStore`); None: memory.
        durable: Whether a change in a file survives a power cut, and not only the death of the process; on a server it
            does, by its own settings.
        codec: How values become text.
        options: How flows are run.
        store: Another store, in the place of ``path``.
        stop_timeout: Seconds.
    """

    def __init__(  # where, and how
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        durable: bool = False,
        codec: Codec | None = None,
        options: Options | None = None,
        store: Store | None = None,
        stop_timeout: float = 10.0,
    ) -> None:
        if store is not None and path is not None:
            raise ValueError(f"Flows({path!r}, store={store!r}) has two stores; give one of them")
        #: Where flows are kept.
        self.store: Store = store_at(path, durable=durable) if store is None else store
        #: Who else has the store open.
        self.owners: Owners = self.store.owners()
        #: What others ask of us, and we of them.
        self.requests: Final = Requests(self.owners)
        self._threads = LoopThreads("task of a flow", THREADS)
        self._repository = Repository(self.store, codec or JSON(), options or Options(), self.owners, self._threads)
        self._stop_timeout = stop_timeout
        self._open = False
        #: Whether all was suspended, and not resumed since: queues claim nothing then.
        self.suspended: bool = False
        self._roster = Roster(self._repository, self.requests)
        self._recovery = Recovery(self._repository, self._roster)

    def __repr__(self) -> str:
        return f"<Flows in {self.store!r}: {len(self._roster)} unfinished>"

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            JournalError: when its file cannot be opened or written, is no database, or is of a newer version.
        """
        await self.store.__aenter__()
        try:
            self.owners.open()
        except BaseException:
            await self.store.__aexit__(None, None, None)
            raise
        self._open, self.suspended = True, False
        self.requests.open(self._look)
        hooks.component_opened.announce(self, component=self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Suspend what runs, and close the store."""
        self._open = False
        hooks.component_closed.announce(self, component=self)
        try:
            async with asyncio.timeout(self._stop_timeout + STOP_MARGIN):
                await self._recovery.settle()
                await self.suspend(cancel_after=self._stop_timeout)
        except TimeoutError:
            _log.warning("%r is left before all was suspended: the store takes too long", self)
        finally:
            for run in self.runs:
                await run.close()
            self._threads.close()
            self.requests.close()
            self.owners.close()
            await self.store.__aexit__(kind, error, traceback)

    @property
    def codec(self) -> Codec:
        """How values become text."""
        return self._repository.codec

    @property
    def stop_timeout(self) -> float:
        """Seconds that tasks at work have to end when all is left."""
        return self._stop_timeout

    @property
    def runs(self) -> tuple[Run, ...]:
        """Those that were started or recovered here and have not come to an end, the first first."""
        return self._roster.unfinished

    def state(self) -> FlowsState:
        """What can be seen of it now."""
        return FlowsState(repr(self.store), tuple(run.info() for run in self.runs))

    def start(self, flow: Item, /, *, id: str | None = None, **store: Any) -> Run:  # noqa: A002  # what it is
        """Carry out ``flow`` in the background, with the values that are given.

        This returns before anything is stored. ``await flows.start(…).stored()`` returns the run once a crash cannot
        lose it any more.

        The same id again is the same run: one that is finished is not run again, one that a crash interrupted goes on,
        one that was reset begins. If a live process elsewhere has it, also suspended, this run waits for that process
        and has its outcome. Values can be left out if this `Flows` has the run; values that differ are refused, here or
        when the run is awaited.

        Raises:
            MissingDependencies: for what a task would not be given; nothing has begun.
            AmbiguousDependency: for what several tasks of a graph provide and another asks for.
            FlowError: for a flow that cannot be carried out, a value that nobody asks for or that cannot be kept, an id
                that is that of another flow, and values other than those that the flow of that id has.
            TypeError: for what is neither flow nor task, and an id that is no text.
        """
        return self._start(flow, id, store, same=True)

    def repeat(self, flow: Item, /, *, id: str | None = None, **store: Any) -> Run:  # noqa: A002  # what it is
        """Like `start` for the flow of an event with that id: if the event comes again, its first values count."""
        return self._start(flow, id, store, same=False)

    def _start(self, flow: Item, id: str | None, store: dict[str, Any], *, same: bool) -> Run:  # noqa: A002  # what it is
        self.check_open()
        plan = compile_flow(flow)
        self._recovery.know(flow)
        known = self._roster.get(id or "")
        if known is not None and not known.refused:
            if known.name != plan.name:
                raise FlowError(f"the id {id!r} is that of a flow {known.name!r}, not {plan.name!r}; give another id")
            if same and store:
                self._repository.check_values(known.id, self.codec.encode(store), known.given)
            if known.stopped or known.state is FlowState.PENDING:  # which is after a reset, if it does not run
                known.drive()
            return known
        _check_values(plan, store)
        row = FlowRow(id_for(id), plan.name, store=self.codec.encode(store))
        return self._roster.begin(plan, row, same=same and bool(store))

    def asks(self, flow: Item) -> frozenset[str]:
        """The names that ``flow`` has to be given, or can be, when it is started: tasks ask for them, and none gives.

        Raises:
            FlowError: for a flow that cannot be carried out.
        """
        plan = compile_flow(flow)
        return frozenset(plan.required() - plan.providers.keys())

    def adopt(self, flow: Item | Plan, snapshot: Snapshot) -> Run:
        """Carry out ``flow`` from where ``snapshot`` says, which was taken for us; what a `JobQueue` does with a job.

        Raises:
            FlowError: as `start`.
        """
        self.check_open()
        plan = self._repository.plan(flow, snapshot.flow.name)
        _check_values(plan, self.codec.decode(snapshot.flow.store))
        return self._roster.adopt(plan, snapshot)

    async def leave(self, run: Run, error: Exception) -> None:
        """Have nothing more to do with ``run``, which is stopped; who waits for it gets ``error``."""
        await run.abandon(error)
        self._roster.strike(run)

    async def recover(self, *flows: Item) -> list[Run]:
        """Go on with what is unfinished of ``flows``, known by their names: suspended, or left by a crash.

        A flow whose owner lives is left to it, also suspended, and so is the flow of a job.

        Raises:
            FlowError: for a flow that cannot be carried out.
        """
        self.check_open()
        return await self._recovery.recover(*flows)

    def _look(self) -> None:
        """Somebody asks for what is unfinished to be gone on with; who is leaving leaves it to the next."""
        if self._open:
            self._recovery.look()

    async def suspend(self, *, cancel_after: float | None = None) -> None:
        """Suspend all that runs now, and wait until nothing of it is at work; see `Run.suspend`.

        A flow that is started after that runs. `JobQueue.work` claims no jobs until `resume`.
        """
        self.suspended = True
        await asyncio.gather(*[_wait(run, cancel_after) for run in self.runs if run.running])

    async def resume(self) -> None:
        """Go on with all that is suspended here; `JobQueue.work` claims jobs again."""
        if self.suspended:
            self.suspended = False
            self.owners.ring(RESUMED)
        for run in self.runs:
            if not (run.running or run.stopped):
                await run.resume()

    def outbox(self, *, max_attempts: int = 100) -> Outbox:
        """Make a source for a router: the events that tasks have sent with `send`, each a `SentEvent`.

        Several may deliver. After ``max_attempts`` failures, which takes about an hour and a half, an event is a dead
        letter.

        Raises:
            ValueError: for a number of attempts below 1.
        """
        return Outbox(self, max_attempts)

    def check_open(self) -> None:
        """Refuse what needs the store.

        Raises:
            FlowError: unless this is entered.
        """
        if not self._open:
            raise FlowError(f"{self!r} is not open; enter it: async with Flows(…) as flows")


async def _wait(run: Run, cancel_after: float | None) -> None:
    await run.suspend(cancel_after=cancel_after)


def _check_values(plan: Plan, values: dict[str, Any]) -> None:
    plan.check(values.keys())
    names = plan.required()
    if unknown := [name for name in values if name not in names]:
        asks = ", ".join(sorted(names)) or "nothing"
        raise FlowError(
            f"flow {plan.name!r} was given {unknown[0]!r}, which none of its tasks asks for; they ask for: {asks}"
        )
