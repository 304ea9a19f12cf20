"""`Flows`: an open store and the flows that run in it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from weakref import WeakValueDictionary

from lifecycle import hooks
from lifecycle._async import shield, start_task
from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._owners import own_component
from lifecycle._util import reason_of
from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows.decisions import Options
from lifecycle.flows.definition import Workflow
from lifecycle.flows.engine import STOP_MARGIN, THREADS
from lifecycle.flows.lookup import failure_of, flow_info, outcome, wait_for_end
from lifecycle.flows.operations import RESERVED
from lifecycle.flows.outbox import Outbox
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.records import CANCEL, FlowRow, FlowsState, SignalRow, Snapshot
from lifecycle.flows.run import FlowLoader, Run
from lifecycle.flows.serializers import JSON
from lifecycle.flows.states import ENDS, FlowState
from lifecycle.flows.stores.base import always, id_for, storable
from lifecycle.flows.stores.presence import RESUMED, WAKE, ControlChannel
from lifecycle.flows.timers import Timers
from lifecycle.journal.threads import LoopThreads

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Mapping
    from datetime import tzinfo
    from types import TracebackType
    from typing import Literal, Self

    from lifecycle._durations import Duration
    from lifecycle.flows.definition import Item, Part
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import FlowInfo
    from lifecycle.flows.schedules import Schedules
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["Flows", "RunRegistry", "registry_of"]

_log = logging.getLogger("lifecycle.flows")

T = TypeVar("T")


class Flows:
    """Starts flows and stores them in an SQLite file, on a PostgreSQL server, or in memory.

    Use this as an async context manager. On exit, running flows are suspended: their tasks have ``stop_timeout``
    seconds to finish before they are cancelled. Another living process continues the flows that it has started or
    recovered by name. If there is none, call `recover`, or `start` with the same id. If the store does not respond, the
    exit waits only a few seconds longer.

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
        self._registry = RunRegistry(self._loader)
        # None until the first call of `schedule`, because time zones are slow to load.
        self._schedules: Schedules | None = None
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
        self._registry.pause(paused=False)
        self.requests.open(self._registry.find_unfinished, self._look)
        self._owned = own_component(self)
        hooks.component_opened.announce(self, component=self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Suspend running flows, then close the store.

        If this is cancelled, it stops waiting for the flows, but still closes the store.
        """
        self._open = False
        self._owned.end()
        hooks.component_closed.announce(self, component=self)
        try:
            async with asyncio.timeout(self.stop_timeout + STOP_MARGIN):
                if self._schedules is not None:
                    await self._schedules.close()
                await self._registry.close()
                await self.suspend(cancel_after=self.stop_timeout)
        except TimeoutError:
            _log.warning("%r was closed before all flows were suspended, because the store did not respond", self)
        finally:
            closing = self._close(kind, error, traceback)
            await shield(start_task(closing, name=f"close of {self.store!r}"))

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
    def runs(self) -> tuple[Run[Any], ...]:
        """The unfinished runs that this object started or recovered, in start order."""
        return self._registry.unfinished

    def state(self) -> FlowsState:
        """Return a snapshot of the store and its unfinished runs."""
        return FlowsState(repr(self.store), tuple(run.info() for run in self.runs))

    @overload
    def start(self, flow: Workflow[..., T], /, *args: Any, id: str | None = None, **store: Any) -> Run[T]: ...
    @overload
    def start(self, flow: Part, /, *, id: str | None = None, **store: Any) -> Run: ...
    def start(self, flow: Item, /, *args: Any, id: str | None = None, **store: Any) -> Run[Any]:  # noqa: A002  # the natural name
        """Run ``flow`` in the background with the given values.

        `start` returns before anything is stored. To be sure that the flow survives a crash, use
        ``await flows.start(…).stored()``, which returns the run once the flow is stored.

        The id identifies the run. If the id already exists, a finished run is not repeated, an interrupted run
        continues, and a reset run starts over. If another live process owns the run, this run waits for that process
        and returns the same outcome. It keeps waiting even while the run is suspended there.

        Args:
            flow: A workflow, a flow, or a single task.
            args: The arguments of a workflow.
            id: An id for the run, such as an order number. By default, a new id is generated.
            store: The keyword arguments of a workflow, except ``id``, or values for the tasks, by name. You can omit
                all arguments if this process already has the run. If they differ from the stored run's values, an error
                is raised, either here or when you await the run.

        Returns:
            The run. Await the run to get its results.

        Raises:
            MissingDependencies: if an argument for a task is missing. No task has started.
            AmbiguousDependency: if several tasks of a graph provide a name that another task requires.
            FlowError: if the flow is invalid, if no task requires a value, if a value cannot be stored, or if the id
                belongs to a different flow or to different values.
            TypeError: if ``flow`` cannot be run, if the arguments do not fit the workflow, or if ``id`` is not a
                string.
        """
        return self._start(flow, id, args, store, same=True)

    def _repeat(self, flow: Item, /, *, id: str | None = None, **store: Any) -> Run[Any]:  # noqa: A002  # the natural name
        """Start a flow for an event. If the event arrives again, use the values from its first arrival."""
        return self._start(flow, id, (), store, same=False)

    def _start(
        self,
        flow: Item,
        id: str | None,  # noqa: A002  # the natural name
        args: tuple[Any, ...],
        store: dict[str, Any],
        *,
        same: bool,
    ) -> Run[Any]:
        self._check_open()
        plan = compile_flow(flow)
        self._registry.remember(flow)
        known = self._registry.get(id or "")
        same = same and bool(args or store)
        if known is not None and not known.refused:
            if known.name != plan.name:
                raise FlowError(f"the id {id!r} belongs to flow {known.name!r}, not {plan.name!r}; use a different id")
            if same:
                self._loader.check_values(known.id, self.codec.encode(_bound(plan, args, store)), known.given)
            if known.stopped or known.state is FlowState.PENDING:  # PENDING after a reset
                known.use(plan)
                known.proceed()
            return known
        values = _bound(plan, args, store)
        if not isinstance(flow, Workflow):
            _check_values(plan, values)
        return self._registry.start(plan, _row(plan, id, self.codec.encode(values)), same=same)

    def asks(self, flow: Item) -> frozenset[str]:
        """Return the names that must be passed to `start`, because tasks in ``flow`` require but do not provide them.

        Raises:
            FlowError: if the flow is invalid.
        """
        plan = compile_flow(flow)
        return frozenset(plan.required() - plan.providers.keys())

    async def signal(
        self,
        id: str,  # noqa: A002  # the natural name
        name: str,
        data: Any = None,
        *,
        key: str | None = None,
    ) -> None:
        """Send a signal to a workflow, which receives it with `wait_for`, in this process or another one.

        When this returns, the signal is stored. The workflow receives it once, even if it does not wait for it yet.

        Args:
            id: The id of the workflow.
            name: The name of the signal.
            data: Its data, which the codec must be able to store.
            key: A key that identifies the signal. If the workflow already has a signal with this key, nothing is sent.

        Raises:
            InvalidState: if the workflow has ended.
            FlowError: if there is no workflow with this id, if the id belongs to a flow of tasks, or if the data cannot
                be stored.
            ValueError: if the name is empty or reserved.
        """
        self._check_open()
        if not name or name.startswith(RESERVED):
            raise ValueError(f"a signal's name must not be empty or begin with {RESERVED!r}, got {name!r}")
        signal = SignalRow(id_for(id), storable(name), self.codec.encode(data), key or "", time.time())
        await self._check_workflow(id, "it receives no signals; only workflows call wait_for")
        await self._signal(signal)

    async def cancel(self, id: str) -> None:  # noqa: A002  # the natural name
        """Cancel a workflow, in this process or another one. It runs its undo functions, and ends as CANCELLED.

        A job whose flow has not started is cancelled immediately, whatever its flow is. Otherwise, when this returns,
        the request is stored, and the workflow cannot end as SUCCESS anymore. It may still end as
        REVERTED or FAILURE, if it fails before it receives the request. To wait for the end, await the run. If the
        workflow was already cancelled, this has no effect.

        Raises:
            InvalidState: if the workflow has ended.
            FlowError: if there is no workflow with this id, or if the id belongs to a flow of tasks.
        """
        self._check_open()
        if await self._loader.cancel_job(id):
            return
        await self._check_workflow(id, "it cannot be cancelled; suspend it instead")
        await self._signal(SignalRow(id, CANCEL, "null", at=time.time()))

    async def _check_workflow(self, id: str, problem: str) -> None:  # noqa: A002  # the natural name
        """Raise an error if the flow ``id`` is known to be a flow of tasks."""
        row = await self.store.get(id)
        # The kind of a job's flow is stored when the job starts.
        if row is None or row.state == FlowState.CANCELLED:
            return
        if row.kind != WORKFLOW and (row.seq or not await self._loader.has_job(id)):
            raise FlowError(f"{id!r} is not a workflow, so {problem}")

    async def _signal(self, row: SignalRow) -> None:
        state = await self._registry.signal(row)
        if row.name == CANCEL and state is FlowState.CANCELLED:
            return
        if state in ENDS:
            raise InvalidState(f"flow {row.flow!r} has ended as {state}, so it receives no more signals")

    async def recover(self, *flows: Item) -> builtins.list[Run[Any]]:
        """Continue the unfinished runs of these flows: suspended runs, and runs that were interrupted by a crash.

        Runs that belong to other live processes or to jobs are not continued, even if they are suspended. When such a
        process exits, this process takes over its runs of these flows. A run that the store has interrupted continues
        when the store answers again.

        Args:
            flows: The workflows and flows. Stored runs are matched to them by name. Workflows that wait continue when
                they are due. If one waits for a child that you do not pass, it calls `child` again, which recovers the
                child.

        Returns:
            The runs that were continued.

        Raises:
            FlowError: if a flow is invalid.
        """
        self._check_open()
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
        self._registry.pause(paused=True)
        await asyncio.gather(*[run.suspend(cancel_after=limit) for run in self.runs if run.running])

    async def resume(self) -> None:
        """Continue all flows that are suspended in this process, and let `JobQueue.work` claim jobs again."""
        if self.suspended:
            self.suspended = False
            self._registry.pause(paused=False)
            self.presence.notify(RESUMED)
        for run in self.runs:
            if not (run.running or run.stopped):
                await run.resume()

    def schedule(
        self,
        expression: str,
        flow: Item,
        /,
        *args: Any,
        catch_up: Literal["none", "once", "all"] = "none",
        timezone: str | tzinfo | None = None,
        id: str | None = None,  # noqa: A002  # the natural name
        **store: Any,
    ) -> None:
        """Start ``flow`` at each time of a cron expression, until these `Flows` are closed.

        Each process that has the same store open may have the same schedule. Exactly one of them starts the flow at
        each time. The flow's id is the schedule's id and the scheduled time in UTC, such as
        ``report/2026-11-23T03:00:00Z``. If the process exits, another process with this schedule continues the flow.

        A time is missed if no process was running a minute later. The store keeps the time of the last start, so missed
        times are known after a restart.

        Args:
            expression: As for `lifecycle.ScheduleSource`.
            flow: A workflow, a flow, or a single task.
            args: The arguments of a workflow.
            catch_up: The policy for missed times: ``"none"`` skips them, ``"once"`` starts the flow only for the last
                one, and ``"all"`` starts it for each of the last 100.
            timezone: A name such as ``"Europe/Berlin"``, or a `datetime.tzinfo`. By default, the system's time zone.
            id: The id of the schedule. By default, the flow's name.
            store: The keyword arguments of a workflow, or values for the tasks, by name.

        Raises:
            ValueError: if the expression, the time zone or ``catch_up`` is invalid, or if the expression never matches.
            MissingDependencies: if an argument for a task is missing.
            TypeError: if the arguments do not fit the workflow.
            FlowError: if there is a schedule with the same id, or if the flow or a value is invalid.
        """
        from lifecycle._cron import Cron
        from lifecycle.flows.schedules import Schedule, Schedules

        self._check_open()
        plan = compile_flow(flow)
        values = _bound(plan, args, store)
        if not isinstance(flow, Workflow):
            _check_values(plan, values)
        text, owner = self.codec.encode(values), self.presence.token

        def row(id: str) -> FlowRow:  # noqa: A002  # the natural name
            return _row(plan, id, text)._replace(epoch=1, owner=owner)

        self._registry.remember(flow)
        cron = Cron(expression, timezone, catch_up)
        if self._schedules is None:
            self._schedules = Schedules(self.store, self._registry.start_created)
        self._schedules.add(Schedule(id_for(id or plan.name), cron, catch_up, row))

    # -- look-up -------------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> FlowInfo:  # noqa: A002  # the natural name
        """Return the stored flow or workflow with this id. Any process may have started it.

        Raises:
            FlowError: if there is no flow with that id.
        """
        self._check_open()
        flow, steps, _ = await self.store.load(id)
        return flow_info(flow, self.codec, error=failure_of(flow, steps))

    async def list(
        self, *, name: str | None = None, state: str | None = None, since: Duration | None = None, limit: int = 100
    ) -> builtins.list[FlowInfo]:
        """Return stored flows and workflows, newest first.

        `FlowInfo.error` does not contain the errors of failed tasks, which only `get` reads.

        Args:
            name: Only those with this name.
            state: Only those in this `FlowState`.
            since: Only those that were started at most this many seconds ago.
            limit: The maximum number to return.

        Raises:
            ValueError: if the state is unknown, or the limit is below 1.
        """
        self._check_open()
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, got {limit!r}")
        states = () if state is None else (FlowState(state),)
        start = 0.0 if since is None else time.time() - in_seconds("since", since, least=0)
        rows = await self.store.flows(name=name, states=states, since=start, newest=limit)
        return [flow_info(row, self.codec) for row in rows]

    async def wait(self, id: str) -> Any:  # noqa: A002  # the natural name
        """Wait until the flow or workflow with this id has ended, in any process, and return its results.

        This returns the same as awaiting its `Run`, or raises the same error. If this process has neither started nor
        recovered a flow or workflow with that name, an error is a `StepFailed` or `FlowError` with the stored message.
        Cancelling this call does not affect the flow.

        Raises:
            FlowError: if there is neither a flow nor a job with that id, or if the results of a flow cannot be read
                because this process does not have its definition.
        """
        self._check_open()
        run = self._registry.get(id)
        if run is not None and not (run.refused or run.given_back):
            return await run
        flow, steps, _ = await wait_for_end(self.store, self.presence, id)
        if (item := self._registry.known(flow.name)) is not None:
            return await self._registry.start(compile_flow(item), flow)
        return outcome(flow, steps, self.codec)

    async def purge(self, older_than: Duration) -> int:
        """Delete flows and workflows that have ended, and return their number.

        Flows of unfinished jobs and children of unfinished workflows are kept. To delete complete jobs, too, call
        `JobQueue.purge`.

        Args:
            older_than: Only delete those that ended at least this many seconds ago.
        """
        self._check_open()
        try:
            return await self.store.purge(time.time() - in_seconds("older_than", older_than, least=0))
        finally:
            self._registry.forget_ended()

    def outbox(self, *, max_attempts: int = 100) -> Outbox:
        """Return a router source that emits each event sent with `send` as a `SentEvent`.

        Several processes may deliver events from the same store.

        Args:
            max_attempts: The number of failed deliveries after which an event becomes a dead letter. It takes about an
                hour and a half to reach the default of 100.

        Raises:
            ValueError: if ``max_attempts`` is below 1.
        """
        return Outbox(self, max_attempts, self._check_open)

    def _check_open(self) -> None:
        if not self._open:
            raise FlowError(f"{self!r} is not open; enter it: async with Flows(…) as flows")


def registry_of(flows: Flows) -> RunRegistry:
    """Return the runs of ``flows``.

    Raises:
        FlowError: if the store is not open.
    """
    flows._check_open()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the class is in this module
    return flows._registry  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


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


#: States in which a flow is unfinished, and no timer continues it.
_UNFINISHED = tuple(state for state in FlowState if state not in (*ENDS, FlowState.WAITING))
#: The kind of a workflow's row.
WORKFLOW = "workflow"


class RunRegistry:
    """The runs of one `Flows` object, by flow id, and the flow definitions to use for recovery."""

    def __init__(self, loader: FlowLoader) -> None:
        self._loader = loader
        # The unfinished runs, in start order.
        self._unfinished: dict[str, Run[Any]] = {}
        # The ids of workflows that were due and that this process took although it had a run for them.
        self._taken: set[str] = set()
        # All runs that are still referenced.
        self._runs: WeakValueDictionary[str, Run[Any]] = WeakValueDictionary()
        # The flows that this object started or recovered, by name.
        self._known: dict[str, Item] = {}
        # The names of the flows that this object has recovered.
        self._recovered: set[str] = set()
        # The tasks that recover runs in the background.
        self._recovering: set[asyncio.Task[list[Run[Any]]]] = set()
        #: The tasks that run jobs, for all workers of this object.
        self.jobs: set[asyncio.Task[None]] = set()
        #: Done when the job that runs alone may be joined by others. None if no job runs alone.
        self.trial: asyncio.Future[None] | None = None
        self._timers = Timers(loader.store, loader.presence, self)

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def unfinished(self) -> tuple[Run[Any], ...]:
        """The unfinished runs, in start order."""
        return tuple(self._unfinished.values())

    def get(self, id: str) -> Run[Any] | None:  # noqa: A002  # the natural name
        """Return the run with this id, or None if it is not in this process."""
        return self._runs.get(id)

    def find_unfinished(self, id: str) -> Run[Any] | None:  # noqa: A002  # the natural name
        """Return the unfinished run with this id, or None."""
        return self._unfinished.get(id)

    def start(self, plan: Plan, row: FlowRow, *, same: bool = False) -> Run[Any]:
        """Start a run for ``row``. If ``same`` is true, a flow that is already stored must have the same values."""
        run = self._idle(row.id) or Run(plan, row, self._loader, self._changed, children=self, same=same)
        run.use(plan)
        self._runs[row.id] = run
        run.proceed()
        return run

    def adopt(self, plan: Plan, snapshot: Snapshot, is_claimed: Callable[[], bool] = always) -> Run[Any]:
        """Return a run for a flow that this process has taken, and start the run unless the flow has ended.

        Once ``is_claimed`` returns False, the run starts no tasks.

        Raises:
            FlowError: if the flow has a different name, or if no task requires a value.
        """
        self._loader.plan(plan, snapshot.flow.name)
        _check_values(plan, self._loader.codec.decode(snapshot.flow.store))
        run = self._idle(snapshot.flow.id) or Run(plan, snapshot.flow, self._loader, self._changed, children=self)
        run.use(plan)
        run.adopt(snapshot, is_claimed)
        self._runs[run.id] = run
        if not run.ended:
            run.proceed()
        return run

    async def start_created(self, row: FlowRow) -> Run[Any]:
        """Start a flow that this process has just created."""
        return self.adopt(compile_flow(self._known[row.name]), Snapshot(row, {}))

    async def leave(self, run: Run[Any], error: Exception) -> None:
        """Stop and remove ``run``, and raise ``error`` in callers that await it."""
        await run.abandon(error)
        if self._runs.get(run.id) is run:
            del self._runs[run.id]
            self._drop(run)

    def _changed(self, run: Run[Any]) -> None:
        """Update the registry after a run has started or stopped."""
        if not (run.ended or run.parked):
            self._unfinished[run.id] = run
            if run.interrupted:
                self._timers.interrupted()
            elif run.given_back:
                self._timers.leave(run.id)
            return
        self._drop(run)
        taken = run.id in self._taken
        self._taken.discard(run.id)
        if run.parked and taken:
            run.proceed()
        elif run.parked:
            self._timers.look_again()

    def forget_ended(self) -> None:
        """Forget the runs that have ended, because they may have been purged. Runs with their ids read the store."""
        for run in [run for run in self._runs.values() if run.ended]:
            del self._runs[run.id]

    def _drop(self, run: Run[Any]) -> None:
        if self._unfinished.get(run.id) is run:
            del self._unfinished[run.id]

    # -- recovery -----------------------------------------------------------------------------------------------------

    def known(self, name: str) -> Item | None:
        """Return the flow with this name if this process has started or recovered it."""
        return self._known.get(name)

    def remember(self, flow: Item) -> None:
        """Continue runs of this flow that are due or that no living process runs."""
        if self._known.get(flow.name) is not flow:
            self._known[flow.name] = flow
            # Runs that have stopped because of the old definition may match this one.
            self._timers.try_all()
        self._timers.know(flow.name, waits=isinstance(flow, Workflow))

    async def recover(self, *flows: Item) -> list[Run[Any]]:
        """Continue the unfinished runs of ``flows``, except runs that belong to jobs or to other live processes.

        Raises:
            FlowError: if a flow is invalid.
        """
        runs: list[Run[Any]] = []
        for plan in map(compile_flow, flows):
            self.remember(plan.flow)
            rows = await self._without_job(plan.name)
            live = await self._live({row.owner for row in rows})
            # This process may have started a run in the meantime, so look for runs last.
            left = [row for row in rows if row.owner not in live and self._is_left(row)]
            # Without an owner, a run does not check again whether the owner is live.
            runs += [self.start(plan, row._replace(owner="")) for row in left]
            self._recovered.add(plan.name)
        await self.wake_parents([flow.name for flow in flows])
        return runs

    async def wake_parents(self, names: Collection[str]) -> None:
        """Continue workflows that wait for children unknown here. They call `child` again, which recovers those."""
        if await self._loader.store.wake_parents(names, known=self._known.keys()):
            self._loader.presence.notify(WAKE)

    async def wake_known_parents(self) -> None:
        """Continue workflows that wait for children unknown here."""
        await self.wake_parents(self._known.keys())

    def forget(self, id: str) -> None:  # noqa: A002  # the natural name
        """Remove a run that was left to other processes."""
        run = self._unfinished.get(id)
        if run is not None and run.given_back:
            self._drop(run)

    async def find_left(self) -> tuple[list[FlowRow], bool]:
        """Return the known flows that no living process runs, and whether a process might have exited."""
        presence = self._loader.presence
        owners = await self._loader.store.owners(self._known.keys())
        others = {owner for _, owner in owners} - {"", presence.token}
        gone, unsure = await presence.find_gone(others) if others else (set[str](), False)
        if presence.token:
            # All processes have tokens, so this flow was reset.
            gone.add("")
        rows: list[FlowRow] = []
        for name in {name for name, owner in owners if owner in gone}:
            rows += [row for row in await self._without_job(name) if row.owner in gone and self._is_left(row)]
        return rows, unsure

    async def resume_interrupted(self) -> bool:
        """Continue the runs that the store has interrupted. Return False if there are none."""
        runs = {run.id: run for run in self.unfinished if run.interrupted}
        # Workers release the jobs of such runs, so that any worker can continue them.
        with_job = await self._loader.store.jobs(self._loader.presence).unfinished(list(runs)) if runs else set[str]()
        for run in (run for run in runs.values() if run.id not in with_job and run.interrupted):
            run.proceed()
        return bool(runs)

    async def _without_job(self, name: str) -> list[FlowRow]:
        """Return the flows with this name that are unfinished and do not wait, except those of unfinished jobs."""
        store = self._loader.store
        rows = await store.flows(name=name, states=_UNFINISHED)
        with_job = await store.jobs(self._loader.presence).unfinished([row.id for row in rows])
        return [row for row in rows if row.id not in with_job]

    async def _live(self, owners: set[str]) -> set[str]:
        """Return the owners that are other live processes."""
        presence = self._loader.presence
        others = list(owners - {"", presence.token})
        # Run the checks concurrently, since each one may have to wait.
        gone = await asyncio.gather(*map(presence.is_gone, others))
        return {owner for owner, is_gone in zip(others, gone, strict=True) if not is_gone}

    def _is_left(self, row: FlowRow) -> bool:
        # A flow that is PENDING with an error belonged to a job that was discarded before the flow started.
        run = self._unfinished.get(row.id)
        return (run is None or run.stopped) and not (row.state == FlowState.PENDING and row.error)

    def recover_known(self) -> None:
        """Recover the known flows in the background, because another process has reset a run."""
        task = start_task(self.recover(*self._known.values()), name="recover flows")
        self._recovering.add(task)
        task.add_done_callback(self._recovery_ended)

    def _recovery_ended(self, task: asyncio.Task[list[Run[Any]]]) -> None:
        self._recovering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("flows that were reset could not be recovered: %s", reason_of(error))

    # -- runs that this process continues by itself --------------------------------------------------------------------

    def pause(self, *, paused: bool) -> None:
        """Stop or start to continue flows."""
        self._timers.pause(paused=paused)

    def _is_busy(self, id: str) -> bool:  # noqa: A002  # the natural name
        """Return True if this process runs the flow, or waits for the process that does."""
        run = self._unfinished.get(id)
        return run is not None and not run.stopped

    def _idle(self, id: str) -> Run[Any] | None:  # noqa: A002  # the natural name
        """Return the run of a workflow that waits or was stopped by an error, if this process still has it."""
        run = self._runs.get(id)
        return run if run is not None and (run.parked or run.stopped) and not run.refused else None

    async def take_and_run(self, row: FlowRow) -> None:
        """Take a flow and run it, unless another process takes it first."""
        if self._is_busy(row.id):
            return
        plan = compile_flow(self._known[row.name])
        # If this process cannot load the workflow, another one may.
        _check_values(plan, self._loader.codec.decode(row.store))
        try:
            snapshot = await self._loader.take(row)
            if self._is_busy(row.id):
                # The run may have read the row before this process took the workflow.
                self._taken.add(row.id)
                return
            run = self.adopt(plan, snapshot)
            if self._timers.paused:
                # The flows were suspended while the store was assigning the flow to this process.
                run.suspend()
        except ClaimLost:
            pass

    def wake(self) -> None:
        """Have all workflows look for signals, in case a message was lost."""
        for run in self.unfinished:
            run.wake()

    async def signal(self, row: SignalRow) -> FlowState:
        """Store a signal, and wake its workflow. Return the workflow's state."""
        state = await self._loader.store.signal(row)
        for news in (f"{WAKE} {row.flow}", WAKE):
            self._loader.presence.notify(news)
        return state

    async def close(self) -> None:
        """Continue no more flows, and wait until all background recoveries have finished."""
        await self._timers.close()
        await asyncio.gather(*self._recovering, return_exceptions=True)

    # -- children of workflows ----------------------------------------------------------------------------------------

    def child(
        self,
        item: Item,
        id: str,  # noqa: A002  # the natural name
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        parent: str,
    ) -> FlowRow:
        """Return the row of a new child that belongs to this process."""
        plan = compile_flow(item)
        self.remember(item)
        values = _bound(plan, args, dict(kwargs))
        if not isinstance(item, Workflow):
            _check_values(plan, values)
        row = _row(plan, id, self._loader.codec.encode(values))
        return row._replace(epoch=1, owner=self._loader.presence.token, parent=parent)

    async def ensure(self, item: Item, row: FlowRow, *, again: bool) -> None:
        """Start the stored child in this process, unless it has ended, waits, or runs elsewhere.

        Raises:
            FlowError: if its id belongs to another flow.
        """
        stored = await self._loader.store.get(row.id)
        if stored is None or (stored.name, stored.parent) != (row.name, row.parent):
            raise FlowError(f"the id {row.id!r} belongs to another flow, not to a child of {row.parent!r}; use another")
        plan = compile_flow(item)
        if again and stored.state in ENDS and stored.state != FlowState.SUCCESS:
            await self._restart(self.get(row.id) or self.start(plan, stored))
        elif stored.state in ENDS:
            return
        elif (known := self.get(row.id)) is not None and known.stopped:
            known.proceed()
        elif row.name not in self._recovered and (stored.seq or stored.owner != row.owner):
            await self.recover(item)
        elif stored.state == FlowState.WAITING:
            return
        elif known is None and stored.owner == row.owner and not stored.seq:
            self.adopt(plan, Snapshot(stored, {}))
        elif not await self._loader.is_elsewhere(stored) and self._is_left(stored):
            self.start(plan, stored)

    @staticmethod
    async def _restart(run: Run[Any]) -> None:
        """Run a child again, and wait until that is stored."""
        await run.wait_at_rest()
        await run.again()
        await run.wait_restarted()

    async def outcome(self, item: Item, id: str) -> tuple[Any, BaseException | None]:  # noqa: A002  # the natural name
        """Return the result and the error of a child that has ended."""
        engine = self._loader.engine(compile_flow(item), await self._loader.store.load(id), None, self)
        error = engine.error()
        if error is None and engine.flow.state is not FlowState.SUCCESS:
            error = FlowError(f"flow {id!r} is {engine.flow.state}")
        return (None, error) if error is not None else (engine.result(), None)

    async def cancel(self, id: str) -> None:  # noqa: A002  # the natural name
        """Cancel a child if it is a workflow. A flow is left to run to its end."""
        row = await self._loader.store.get(id)
        if row is not None and row.kind == WORKFLOW:
            await self.signal(SignalRow(id, CANCEL, "null", at=time.time()))


def _row(plan: Plan, id: str | None, store: str) -> FlowRow:  # noqa: A002  # the natural name
    kind = WORKFLOW if isinstance(plan.flow, Workflow) else "flow"
    return FlowRow(id_for(id), plan.name, store=store, created=time.time(), kind=kind)


def _bound(plan: Plan, args: tuple[Any, ...], store: dict[str, Any]) -> dict[str, Any]:
    """Return the values for a flow by name.

    Raises:
        TypeError: if the arguments do not fit.
    """
    if isinstance(plan.flow, Workflow):
        return plan.flow.bind(args, store)
    if args:
        raise TypeError(f"{plan.flow!r} takes values by name only, got {args!r}; pass each as name=value")
    return store


def _check_values(plan: Plan, values: dict[str, Any]) -> None:
    plan.check(values.keys())
    names = plan.required()
    if unknown := [name for name in values if name not in names]:
        asks = ", ".join(sorted(names)) or "nothing"
        raise FlowError(
            f"flow {plan.name!r} received a value {unknown[0]!r} that no task requires; required values: {asks}"
        )
