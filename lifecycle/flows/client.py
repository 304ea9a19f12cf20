"""`Flows`: an open store and the flows that run in it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from lifecycle import hooks
from lifecycle._async import shield
from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._util import reason_of
from lifecycle.errors import FlowError
from lifecycle.flows.decisions import Options
from lifecycle.flows.engine import STOP_MARGIN, THREADS
from lifecycle.flows.outbox import Outbox
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.records import FlowRow, FlowsState
from lifecycle.flows.run import FlowLoader, Run
from lifecycle.flows.serializers import JSON
from lifecycle.flows.states import ENDS, FlowState
from lifecycle.flows.stores.base import id_for
from lifecycle.flows.stores.presence import RESUMED, ControlChannel
from lifecycle.journal.threads import LoopThreads

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.flows.definition import Item
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["Flows", "RunRegistry"]

_log = logging.getLogger("lifecycle.flows")


class Flows:
    """Starts flows and stores them in an SQLite file, on a PostgreSQL server, or in memory.

    Use this as an async context manager. On exit, running flows are suspended: their tasks have ``stop_timeout``
    seconds to finish before they are cancelled. To continue the flows, call `recover`, or `start` with the same id. If
    the store does not respond, the exit waits only a few seconds longer.

    Args:
        path: A file, which is created if necessary, or ``postgresql://user@host:port/database`` (see `PostgresStore`).
            By default, flows are stored in memory.
        durable: If True, changes to a file also survive a power cut. Otherwise, they survive a process crash, but not
            necessarily a power cut. A server uses its own settings instead.
        codec: Serializer for values. By default, `JSON`.
        options: Options for running flows.
        store: A store to use instead of ``path``.
        stop_timeout: Seconds to wait for running tasks to finish on exit.
    """

    def __init__(  # settings for the store and for flows
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        durable: bool = False,
        codec: Codec | None = None,
        options: Options | None = None,
        store: Store | None = None,
        stop_timeout: Duration = 10.0,
    ) -> None:
        if store is not None and path is not None:
            raise ValueError(f"pass either a path or a store, not both; got {path!r} and store={store!r}")
        #: The store that holds the flows.
        self.store: Store = _store_at(path, durable=durable) if store is None else store
        #: The processes that have this store open.
        self.presence: Presence = self.store.presence()
        #: Requests to and from other processes.
        self.requests: Final = ControlChannel(self.presence)
        #: The serializer for values.
        self.codec: Final[Codec] = codec or JSON()
        #: Seconds to wait for running tasks to finish on exit.
        self.stop_timeout: Final[float] = in_seconds("stop_timeout", stop_timeout, least=0)
        self._threads = LoopThreads("task of a flow", THREADS)
        self._loader = FlowLoader(self.store, self.codec, options or Options(), self.presence, self._threads)
        self._registry = RunRegistry(self._loader, self.requests)
        self._open = False
        #: True while all flows are suspended, in which case job queues claim no jobs.
        self.suspended: bool = False

    def __repr__(self) -> str:
        return f"<Flows in {self.store!r}: {len(self._registry)} unfinished>"

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            JournalError: if the store cannot be opened or written to, is not a database, or was created by a newer
                version.
        """
        await self.store.__aenter__()
        try:
            self.presence.open()
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
        """Suspend running flows, then close the store.

        If this is cancelled, it stops waiting for the flows, but still closes the store.
        """
        self._open = False
        hooks.component_closed.announce(self, component=self)
        try:
            async with asyncio.timeout(self.stop_timeout + STOP_MARGIN):
                await self._registry.wait_recovered()
                await self.suspend(cancel_after=self.stop_timeout)
        except TimeoutError:
            _log.warning("%r was closed before all flows were suspended, because the store did not respond", self)
        finally:
            closing = self._close(kind, error, traceback)
            await shield(asyncio.create_task(closing, name=f"close of {self.store!r}"))

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for run in self.runs:
            await run.close()
        self._threads.close()
        self.requests.close()
        self.presence.close()
        await self.store.__aexit__(kind, error, traceback)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The unfinished runs that this object started or recovered, in start order."""
        return self._registry.unfinished

    def state(self) -> FlowsState:
        """Return a snapshot of the store and its unfinished runs."""
        return FlowsState(repr(self.store), tuple(run.info() for run in self.runs))

    def start(self, flow: Item, /, *, id: str | None = None, **store: Any) -> Run:  # noqa: A002  # the natural name
        """Run ``flow`` in the background with the given values.

        `start` returns before anything is stored. To be sure that the flow survives a crash, use
        ``await flows.start(…).stored()``, which returns the run once the flow is stored.

        The id identifies the run. If the id already exists, a finished run is not repeated, an interrupted run
        continues, and a reset run starts over. If another live process owns the run, this run waits for that process
        and returns the same outcome. It keeps waiting even while the run is suspended there.

        Args:
            flow: A flow, or a single task.
            id: An id for the run, such as an order number. By default, a new id is generated.
            store: Values for the tasks, by name. You can omit them if this process already has the run. If they differ
                from the stored run's values, an error is raised, either here or when you await the run.

        Returns:
            The run. Await the run to get its results.

        Raises:
            MissingDependencies: if an argument for a task is missing. No task has started.
            AmbiguousDependency: if several tasks of a graph provide a name that another task requires.
            FlowError: if the flow is invalid, if no task requires a value, if a value cannot be stored, or if the id
                belongs to a different flow or to different values.
            TypeError: if ``flow`` is neither a flow nor a task, or ``id`` is not a string.
        """
        return self._start(flow, id, store, same=True)

    def repeat(self, flow: Item, /, *, id: str | None = None, **store: Any) -> Run:  # noqa: A002  # the natural name
        """Start a flow for an event. If the event arrives again, use the values from its first arrival."""
        return self._start(flow, id, store, same=False)

    def _start(self, flow: Item, id: str | None, store: dict[str, Any], *, same: bool) -> Run:  # noqa: A002  # the natural name
        self.check_open()
        plan = compile_flow(flow)
        self._registry.remember(flow)
        known = self._registry.get(id or "")
        if known is not None and not known.refused:
            if known.name != plan.name:
                raise FlowError(f"the id {id!r} belongs to flow {known.name!r}, not {plan.name!r}; use a different id")
            if same and store:
                self._loader.check_values(known.id, self.codec.encode(store), known.given)
            if known.stopped or known.state is FlowState.PENDING:  # PENDING after a reset
                known.proceed()
            return known
        _check_values(plan, store)
        row = FlowRow(id_for(id), plan.name, store=self.codec.encode(store))
        return self._registry.start(plan, row, same=same and bool(store))

    def asks(self, flow: Item) -> frozenset[str]:
        """Return the names that must be passed to `start`, because tasks in ``flow`` require but do not provide them.

        Raises:
            FlowError: if the flow is invalid.
        """
        plan = compile_flow(flow)
        return frozenset(plan.required() - plan.providers.keys())

    def adopt(self, flow: Item | Plan, snapshot: Snapshot) -> Run:
        """Run ``flow`` from ``snapshot``. Workers call this after taking a claimed job's flow.

        Raises:
            FlowError: if the flow is invalid or has a different name, or if no task requires a value.
        """
        self.check_open()
        plan = self._loader.plan(flow, snapshot.flow.name)
        _check_values(plan, self.codec.decode(snapshot.flow.store))
        return self._registry.adopt(plan, snapshot)

    async def leave(self, run: Run, error: Exception) -> None:
        """Stop and remove ``run``, and raise ``error`` in callers that await it."""
        await run.abandon(error)
        self._registry.forget(run)

    async def recover(self, *flows: Item) -> list[Run]:
        """Continue the unfinished runs of these flows: suspended runs, and runs that were interrupted by a crash.

        Runs that belong to other live processes or to jobs are not continued, even if they are suspended.

        Args:
            flows: The flow definitions. Stored runs are matched to them by name.

        Returns:
            The runs that were continued.

        Raises:
            FlowError: if a flow is invalid.
        """
        self.check_open()
        return await self._registry.recover(*flows)

    def _look(self) -> None:
        """Recover runs that another process has reset, unless these `Flows` are being closed."""
        if self._open:
            self._registry.recover_known()

    async def suspend(self, *, cancel_after: Duration | None = None) -> None:
        """Suspend all running flows, and wait until no task is running.

        Flows that you start later still run, but `JobQueue.work` claims no jobs until you call `resume`.

        Args:
            cancel_after: Seconds after which running tasks are cancelled. By default, tasks run until they finish.
        """
        limit = in_seconds_or_none("cancel_after", cancel_after, least=0)
        self.suspended = True
        await asyncio.gather(*[run.suspend(cancel_after=limit) for run in self.runs if run.running])

    async def resume(self) -> None:
        """Continue all flows that are suspended in this process, and let `JobQueue.work` claim jobs again."""
        if self.suspended:
            self.suspended = False
            self.presence.notify(RESUMED)
        for run in self.runs:
            if not (run.running or run.stopped):
                await run.resume()

    def outbox(self, *, max_attempts: int = 100) -> Outbox:
        """Return a router source that emits each event sent with `send` as a `SentEvent`.

        Several processes may deliver events from the same store.

        Args:
            max_attempts: The number of failed deliveries after which an event becomes a dead letter. It takes about an
                hour and a half to reach the default of 100.

        Raises:
            ValueError: if ``max_attempts`` is below 1.
        """
        return Outbox(self, max_attempts)

    def check_open(self) -> None:
        """Raise an error if the store is not open.

        Raises:
            FlowError: if the store is not open.
        """
        if not self._open:
            raise FlowError(f"{self!r} is not open; enter it: async with Flows(…) as flows")


def _store_at(path: str | os.PathLike[str] | None, *, durable: bool) -> Store:
    """Return a store for the file path or server URL ``path``, or an in-memory store if it is None.

    Raises:
        ValueError: if the URL's scheme is not supported.
    """
    if path is None:
        from lifecycle.flows.stores.memory import MemoryStore

        return MemoryStore()
    where = str(os.fspath(path))
    if where.startswith(("postgresql://", "postgres://")):
        from lifecycle.flows.stores.postgres import PostgresStore

        return PostgresStore(where)
    if "://" in where:
        kind = where.partition("://")[0]
        raise ValueError(f"Flows(…) does not support {kind}:// URLs; use postgresql://… or a file path")
    from lifecycle.flows.stores.sqlite import SQLiteStore

    return SQLiteStore(path, durable=durable)


#: States in which a flow is unfinished.
_UNFINISHED = tuple(state for state in FlowState if state not in ENDS)


class RunRegistry:
    """The runs of one `Flows` object, by flow id, and the flow definitions to use for recovery.

    Other processes use ``requests`` to send requests to unfinished runs.
    """

    def __init__(self, loader: FlowLoader, requests: ControlChannel) -> None:
        self._loader, self._requests = loader, requests
        # The unfinished runs, in start order.
        self._unfinished: dict[str, Run] = {}
        # All runs that are still referenced.
        self._runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        # The flows that this object started or recovered, by name.
        self._known: dict[str, Item] = {}
        # The tasks that recover runs in the background.
        self._recovering: set[asyncio.Task[list[Run]]] = set()

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """The unfinished runs, in start order."""
        return tuple(self._unfinished.values())

    def get(self, id: str) -> Run | None:  # noqa: A002  # the natural name
        """Return the run with this id, or None if it is not in this process."""
        return self._runs.get(id)

    def start(self, plan: Plan, row: FlowRow, *, same: bool = False) -> Run:
        """Start a run for ``row``. If ``same`` is true, a flow that is already stored must have the same values."""
        self._runs[row.id] = run = Run(plan, row, self._loader, self._changed, same=same)
        run.proceed()
        return run

    def adopt(self, plan: Plan, snapshot: Snapshot) -> Run:
        """Return a run for a flow that this process has taken, and start the run unless the flow has ended."""
        run = Run(plan, snapshot.flow, self._loader, self._changed)
        run.adopt(snapshot)
        self._runs[run.id] = run
        if not run.ended:
            run.proceed()
        return run

    def forget(self, run: Run) -> None:
        """Remove ``run`` from the registry."""
        if self._runs.get(run.id) is run:
            del self._runs[run.id]
            self._drop(run)

    def _changed(self, run: Run) -> None:
        """Update the registry after a run has started or stopped."""
        if run.ended:
            self._drop(run)
        else:
            self._unfinished[run.id] = run
            self._requests.hear(run)

    def _drop(self, run: Run) -> None:
        if self._unfinished.get(run.id) is run:
            del self._unfinished[run.id]
        self._requests.forget(run)

    # -- recovery -----------------------------------------------------------------------------------------------------

    def remember(self, flow: Item) -> None:
        """Include this flow when another process requests a recovery."""
        self._known[flow.name] = flow

    async def recover(self, *flows: Item) -> list[Run]:
        """Continue the unfinished runs of ``flows``, except runs that belong to jobs or to other live processes.

        Raises:
            FlowError: if a flow is invalid.
        """
        store, presence = self._loader.store, self._loader.presence
        runs: list[Run] = []
        for plan in map(compile_flow, flows):
            self.remember(plan.flow)
            rows = await store.flows(name=plan.name, states=_UNFINISHED)
            with_job = await store.jobs(presence).unfinished([row.id for row in rows])
            rows = [row for row in rows if row.id not in with_job]
            # Run the checks concurrently, since each one may have to wait.
            await asyncio.gather(*[presence.is_gone(owner) for owner in {row.owner for row in rows} - {""}])
            runs += [self.start(plan, row) for row in rows if await self._is_left(row)]
        return runs

    async def _is_left(self, row: FlowRow) -> bool:
        if row.state == FlowState.PENDING and row.error:
            # The flow's job was discarded before the flow started.
            return False
        return row.id not in self._unfinished and not await self._loader.is_elsewhere(row)

    def recover_known(self) -> None:
        """Recover the known flows in the background, because another process has reset a run."""
        task = asyncio.create_task(self.recover(*self._known.values()), name="recover flows")
        self._recovering.add(task)
        task.add_done_callback(self._recovered)

    def _recovered(self, task: asyncio.Task[list[Run]]) -> None:
        self._recovering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("flows that were reset could not be recovered: %s", reason_of(error))

    async def wait_recovered(self) -> None:
        """Wait until all background recoveries have finished."""
        await asyncio.gather(*self._recovering, return_exceptions=True)


def _check_values(plan: Plan, values: dict[str, Any]) -> None:
    plan.check(values.keys())
    names = plan.required()
    if unknown := [name for name in values if name not in names]:
        asks = ", ".join(sorted(names)) or "nothing"
        raise FlowError(
            f"flow {plan.name!r} received a value {unknown[0]!r} that no task requires; required values: {asks}"
        )
