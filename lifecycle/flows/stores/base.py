"""The store protocols: `Store` for flows, `JobStore` for jobs, `OutboxStore` for sent events.

Each method is a single transaction. Arguments and results are rows of text.

A flow belongs to the process that took it last. `Store.take` increments the flow's epoch, and a write with an older
epoch fails with `ClaimLost`. A claim on a job is a lease. It ends when the lease expires or when the owner's process
exits, if `Presence` can detect that. If a claim ends without being released, the same transaction increments the flow's
epoch, so that a late write by the previous owner also fails.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import ClaimLost, FlowCancelled, FlowError, InvalidState
from lifecycle.flows.records import DISCARDED, UNLIMITED, Batch, Change, FlowRow
from lifecycle.flows.states import ENDS, FLOWS, FlowState, JobState
from lifecycle.flows.workflow_log import WorkflowLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.records import Claim, FailedDelivery, JobRow, Limits, OutboxRow, SignalRow, Snapshot, StepRow
    from lifecycle.flows.stores.presence import Presence

__all__ = [
    "RESTARTABLE",
    "UNRELEASED",
    "JobStore",
    "OutboxStore",
    "Store",
    "always",
    "cancelled",
    "check_key",
    "claimed",
    "clock_of",
    "completed",
    "discarded",
    "expired",
    "flow_of",
    "has_complete_job",
    "id_for",
    "is_storable",
    "is_suspect",
    "keyed",
    "lost",
    "lost_job",
    "not_taken",
    "of_complete_job",
    "other_flow",
    "parked",
    "released",
    "reset_failed",
    "resumed",
    "storable",
    "unknown",
]


class Store(Protocol):
    """An asynchronous context manager that stores flows. Enter the store before you use it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def create(self, flow: FlowRow) -> bool:
        """Insert a new flow. If its id is already in use, write nothing and return False."""
        ...

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # the natural name
        """Return a flow and its steps.

        Raises:
            FlowError: if there is no flow with that id.
        """
        ...

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # the natural name
        """Return a flow without its steps, or None if there is no flow with that id."""
        ...

    async def take(self, id: str, owner: str, *, seen: int, ended: bool = False) -> Snapshot:  # noqa: A002  # the natural name
        """Assign a flow to ``owner`` if its epoch is still ``seen``, increment the epoch, and return the flow.

        The snapshot contains the signals that have not been received. A WAITING flow becomes RUNNING, so that `due` no
        longer returns it. A flow that has ended is refused unless ``ended`` is true.

        Raises:
            ClaimLost: if the epoch differs because another process took the flow first, or if the flow has ended.
            FlowError: if there is no flow with that id.
        """
        ...

    async def commit(self, batch: Batch) -> None:
        """Write all changes from one engine phase in one transaction.

        Raises:
            ClaimLost: if another process has taken the flow in the meantime.
            FlowCancelled: if a workflow would succeed, but a cancellation is stored that it has not received.
        """
        ...

    async def flows(
        self,
        *,
        name: str | None = None,
        states: Collection[str] = (),
        since: float = 0.0,
        newest: int | None = None,
    ) -> list[FlowRow]:
        """Return the flows that were created at ``since`` or later, filtered by ``name`` and ``states`` if set.

        The oldest flow is first. If ``newest`` is set, return only that many flows, newest first.
        """
        ...

    async def owners(self, names: Collection[str]) -> set[tuple[str, str]]:
        """Return the name and the owner of each flow with one of these names that is unfinished and does not wait.

        Flows of unfinished jobs are left out, and so are those whose job was discarded before they started.
        """
        ...

    async def due(self, names: Collection[str], *, now: float, limit: int, others: bool = False) -> list[FlowRow]:
        """Return up to ``limit`` WAITING flows with these names that are due, except flows of unfinished jobs.

        The one that was due first comes first. If ``others`` is true, return those with other names instead.
        """
        ...

    async def wake_parents(self, names: Collection[str], *, known: Collection[str]) -> bool:
        """Make the WAITING flows with these names due that wait for a child whose name is not in ``known``.

        Return True if there are any.
        """
        ...

    async def signal(self, row: SignalRow) -> FlowState:
        """Store a signal and return the state of its flow. If the flow is WAITING, it is due at once.

        If the flow has ended, nothing is stored. A flow whose job has not started yet is PENDING.

        Raises:
            FlowError: if there is neither a flow nor an unfinished job with that id.
        """
        ...

    async def signals(self, id: str, *, after: int = 0) -> list[SignalRow]:  # noqa: A002  # the natural name
        """Return the signals to a flow, oldest first, starting after signal number ``after``."""
        ...

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # the natural name
        """Return up to ``limit`` of a flow's changes, starting after change number ``after``.

        Results in these changes are returned as text and not decoded.
        """
        ...

    async def delete(self, id: str) -> bool:  # noqa: A002  # the natural name
        """Delete a flow. Return False if the flow does not exist."""
        ...

    async def purge(self, before: float, *, name: str | None = None) -> int:
        """Delete the flows that ended before ``before``, and return their number.

        Flows of unfinished jobs and children of unfinished workflows are kept.
        """
        ...

    async def scheduled(self, schedule: str, *, now: float) -> float:
        """Return the time of the last start of ``schedule``. For a new schedule, store ``now`` as that time."""
        ...

    async def start_scheduled(self, flow: FlowRow, schedule: str, *, due: float) -> bool:
        """Create ``flow`` and store ``due`` as the time of the last start of ``schedule``, which must be known.

        If the last start was at ``due`` or later, write nothing. Return False if the flow was not created.
        """
        ...

    async def reset_schedule(self, schedule: str, *, seen: float, now: float) -> None:
        """Store ``now`` as the time of the last start of ``schedule`` if it is still ``seen``."""
        ...

    def presence(self) -> Presence:
        """Return the processes that have this store open."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch, by a clock that never jumps and is the same for all processes."""
        ...

    def outbox(self) -> OutboxStore:
        """Return the store for events that tasks have sent but that have not been delivered yet."""
        ...

    def jobs(self, presence: Presence) -> JobStore:
        """Return the job store. The store uses ``presence`` to find out which claim owners are alive."""
        ...


class OutboxStore(Protocol):
    """Events waiting for delivery, oldest first. Each method is a single transaction."""

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """Lease the first ``limit`` events that have no lease. The new leases expire at ``until``.

        If an earlier lease on an event has expired, that delivery is recorded as failed.
        """
        ...

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        """Make the leases on these events expire at ``until``. If it is 0, the leases end immediately."""
        ...

    async def forget(self, numbers: Collection[int]) -> None:
        """Delete delivered events or dead letters."""
        ...

    async def settle(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        """Write the results of several deliveries. The events in ``freed`` can be taken again immediately."""
        ...

    async def dead(self) -> list[OutboxRow]:
        """Return the dead letters, oldest first."""
        ...

    async def revive(self, numbers: Collection[int]) -> None:
        """Queue dead letters for delivery again, and reset their failure counts to 0."""
        ...


class JobStore(Protocol):
    """Jobs, sorted by priority and then by age. Each method is a single transaction.

    Methods that depend on claims first end any claims that have expired. A job's flow has the same id as the job, and
    the name that was passed when the job was enqueued. Discarding a job also ends its flow as FAILURE in the same
    transaction, unless the flow has already ended. If the flow has not started, it stays PENDING with an error, and is
    not recovered.
    """

    async def add(self, row: JobRow) -> JobRow:
        """Insert ``row`` unless a job with its id exists, and return the stored job."""
        ...

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # the natural name
        """Return the job with this id, or None."""
        ...

    async def rows(
        self,
        *states: str,
        now: float,
        queue: str | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        """Return up to ``limit`` jobs in these states, in order, starting after the rank and number in ``after``.

        If ``queue`` is None, return the jobs of all queues.
        """
        ...

    async def take(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        """Claim up to ``limit`` due jobs for the flows named in ``flows``, or for any flow if ``flows`` is None.

        Only jobs in the claim's queue are considered, and only as many as the claim's limits allow.
        """
        ...

    async def begin(self, flows: Collection[str], claim: Claim, limit: int) -> list[tuple[JobRow, Snapshot | None]]:
        """Claim jobs and take their flows in one transaction.

        The result contains None for a flow that `adopt` would reject.
        """
        ...

    async def compare_and_set(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        """Write ``new`` if the job still has the same state and epoch as ``old``. Otherwise, return False."""
        ...

    async def cancel(self, id: str, *, now: float) -> bool:  # noqa: A002  # the natural name
        """Complete an unclaimed job whose flow has not started, and store the flow as CANCELLED.

        Return False and change nothing if there is no such job.
        """
        ...

    async def park(self, row: JobRow, *, now: float) -> bool:
        """Return a claimed job whose flow is WAITING to the queue. It is due when its flow is.

        The claim is not counted as an attempt. Return False if the claim is lost.
        """
        ...

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        """Extend the claims on these jobs to ``until``, and return the jobs whose claims are lost."""
        ...

    async def adopt(self, row: JobRow, *, now: float) -> Snapshot:
        """Take the flow of a claimed job, creating the flow if necessary.

        Raises:
            ClaimLost: if the claim is lost.
            FlowError: if the id belongs to a flow with a different name. That flow is not changed.
        """
        ...

    async def next(self, *, now: float, queue: str = "", limits: Limits = UNLIMITED) -> float | None:
        """Return when the next job is due, the next claim expires, or the rate limit of ``queue`` allows a claim.

        Return None if there is no such time after ``now``.
        """
        ...

    async def others(self, flows: Collection[str], *, queue: str, limit: int) -> list[JobRow]:
        """Return up to ``limit`` unclaimed jobs in ``queue`` that are due and for none of ``flows``."""
        ...

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        """Return the ids in ``ids`` that belong to jobs that are not complete."""
        ...

    async def purge(self, *, before: float, queue: str) -> int:
        """Delete the jobs in ``queue`` that were completed before ``before``, and their flows. Return their number.

        This method uses a transaction for each few hundred jobs, so that other writers do not wait long.
        """
        ...

    async def counts(self, queue: str | None = None) -> dict[str, int]:
        """Return the number of jobs in each state except COMPLETE, in one queue or in all queues."""
        ...

    def doubt(self) -> None:
        """Have the next operation check that all processes with claims are alive."""
        ...


# -- pure functions that change a job's row ----------------------------------------------------------------------------

#: The end of a job's error if its owner never released it.
UNRELEASED = "claimed it but did not complete it"
#: The maximum number of bytes of an id or a name. PostgreSQL allows 2704 for the columns of an index together.
_LONGEST_KEY = 1000
# The states in which a flow's work is done, even if its owner died before completing the job.
_DONE = (FlowState.SUCCESS, FlowState.REVERTED, FlowState.CANCELLED)


def claimed(row: JobRow, claim: Claim) -> JobRow:
    """Return ``row`` as changed by ``claim``."""
    return row._replace(
        state=JobState.CLAIMED,
        owner=claim.owner,
        token=claim.token,
        until=claim.until,
        epoch=row.epoch + 1,
        attempts=row.attempts + 1,
        due=0.0,
    )


def flow_of(row: JobRow) -> FlowRow:
    """Return a new flow for a claimed job."""
    return FlowRow(row.id, row.flow, epoch=1, owner=row.token, store=row.store, created=time.time())


def keyed(row: SignalRow) -> SignalRow:
    """Return ``row`` with a new key unless it has one."""
    return row if row.key else row._replace(key=os.urandom(16).hex())


def resumed(flow: FlowRow) -> FlowRow:
    """Return ``flow`` as changed when a process takes it: a WAITING flow becomes RUNNING."""
    return flow._replace(state=FlowState.RUNNING, due=0.0) if flow.state == FlowState.WAITING else flow


def parked(row: JobRow, flow: FlowRow | None) -> JobRow:
    """Return a claimed job as changed when its ``flow`` waits."""
    due = (flow.due if flow is not None else 0.0) or math.inf
    return released(row, "" if is_suspect(row) else row.error)._replace(attempts=row.attempts - 1, due=due)


def released(row: JobRow, error: str) -> JobRow:
    """Return ``row`` updated for a claim that ended without completing the job."""
    return row._replace(state=JobState.UNCLAIMED, owner="", token="", until=0.0, error=storable(error))


def completed(row: JobRow, outcome: str, error: str, *, now: float) -> JobRow:
    """Return ``row`` updated for a completed job."""
    error = storable(error)
    return row._replace(state=JobState.COMPLETE, owner="", token="", until=0.0, outcome=outcome, error=error, ended=now)


def is_suspect(row: JobRow) -> bool:
    """Return True if the job's last claim was never released, so that the job may have ended its process.

    Any of the jobs that ran in that process may have done so. A worker therefore runs a suspect alone, and the claim
    counts as an attempt only if the job was a suspect when it was claimed.
    """
    return UNRELEASED in row.error


def expired(row: JobRow, *, now: float, flow: str = "") -> JobRow:
    """Return ``row`` updated for a claim that its owner never released.

    ``flow`` is the state of the job's flow, if any.
    """
    error = f"{row.owner} {UNRELEASED}"
    if not is_suspect(row):
        return released(row, error)._replace(attempts=row.attempts - 1)
    if row.attempts < row.max_attempts:
        return released(row, error)
    if flow in _DONE:
        return completed(row, flow, "" if flow == FlowState.SUCCESS else error, now=now)
    return completed(row, DISCARDED, error, now=now)


def discarded(row: JobRow) -> str:
    """Return the error text for a flow whose job was discarded."""
    return f"its job was discarded: {row.error}" if row.error else "its job was discarded"


# -- errors, ids and texts ---------------------------------------------------------------------------------------------


def lost_job(row: JobRow) -> ClaimLost:
    """Return the error for a process that no longer has a claim on the job."""
    return ClaimLost(
        f"{row.owner} has lost job {row.id!r}: its claim (epoch {row.epoch}) has ended, so its writes are rejected"
    )


def other_flow(row: JobRow, name: str) -> FlowError:
    """Return the error for a job whose id belongs to a different flow, ``name``."""
    return FlowError(
        f"job {row.id!r} is for flow {row.flow!r}, but its id belongs to flow {name!r}; enqueue it with a different id"
    )


def of_complete_job(id: str) -> FlowError:  # noqa: A002  # the natural name
    """Return the error for retrying a flow if `has_complete_job`."""
    return FlowError(f"flow {id!r} belongs to a complete job; enqueue the job again with a new id")


def cancelled(id: str) -> FlowCancelled:  # noqa: A002  # the natural name
    """Return the error that a cancelled workflow raises."""
    return FlowCancelled(f"workflow {id!r} was cancelled")


def unknown(id: str) -> FlowError:  # noqa: A002  # the natural name
    """Return the error for an id that does not belong to any flow."""
    return FlowError(f"no flow in this store has the id {id!r}; pass the id that it was started with")


def not_taken(flow: FlowRow, seen: int) -> ClaimLost:
    """Return the error for a process that could not take ``flow``, whose epoch was ``seen``."""
    if flow.epoch == seen and flow.state in ENDS:
        return ClaimLost(f"flow {flow.id!r} has ended as {flow.state}, so it cannot be taken")
    return lost(flow.id, seen)


def lost(id: str, epoch: int) -> ClaimLost:  # noqa: A002  # the natural name
    """Return the error for a process that no longer owns the flow."""
    return ClaimLost(
        f"flow {id!r} was taken by another process after this one took it (epoch {epoch}); writes by "
        "this process are rejected"
    )


def id_for(given: str | None) -> str:
    """Return the given id, or a new one.

    Raises:
        TypeError: if the id is not a string.
        FlowError: if the id is refused by `check_key`.
    """
    if given is not None and not isinstance(given, str):
        raise TypeError(f"an id must be a string, got {given!r}; convert it with str(…)")
    return check_key("an id", given) if given else os.urandom(16).hex()


def check_key(what: str, text: str) -> str:
    """Return ``text``, which some store compares or orders. The rules are those of the strictest store.

    Raises:
        FlowError: if the text contains NUL or half a surrogate pair, or has more than 1000 bytes in UTF-8.
    """
    if "\0" in text or not is_storable(text):
        raise FlowError(f"{what} must not contain NUL or half a surrogate pair, got {text!r}; escape it")
    if (size := len(text.encode())) > _LONGEST_KEY:
        raise FlowError(f"{what} must have at most {_LONGEST_KEY} bytes, got {size}: {text[:40]!r}…; use a hash of it")
    return text


def is_storable(text: str) -> bool:
    """Return False if ``text`` contains half a surrogate pair, as in file names that are not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """Return an error text with NUL and halves of surrogate pairs escaped, so that all stores can save it."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def always() -> bool:
    """Return True. Flows without a job are not claimed for a limited time."""
    return True


def clock_of(store: Store) -> Callable[[], float]:
    """Return the running loop's clock if it is virtual, as in tests. Otherwise, return the clock of ``store``."""
    loop = asyncio.get_running_loop()
    # Only loops in virtual time have a wall_time. We can't compare clock readings instead, because they may be
    # similar shortly after a boot.
    return loop.time if hasattr(loop, "wall_time") else store.time


# -- resetting a flow in the store -------------------------------------------------------------------------------------

#: The states from which `reset_failed` can reset a flow.
RESTARTABLE = (FlowState.FAILURE, FlowState.REVERTED)


async def has_complete_job(store: Store, presence: Presence, flow: FlowRow) -> bool:
    """Return True if ``flow`` ran for a job that is complete, so that no worker would run it again."""
    job = await store.jobs(presence).get(flow.id, now=clock_of(store)())
    return job is not None and job.flow == flow.name and job.state == JobState.COMPLETE


async def reset_failed(store: Store, id: str, step: str = "") -> None:  # noqa: A002  # the natural name
    """Reset the flow ``id`` in the store. The flow's program starts it again the next time it recovers its flows.

    A workflow in the state FAILURE continues at the operation with the number ``step``, or else at the one that failed.
    Any other workflow starts from the beginning.

    As with `Run.reset`, the results of the flow's tasks are deleted, but their attempt counts are kept. Processes that
    have already loaded the flow can no longer write to it.

    Raises:
        InvalidState: unless the flow is FAILURE or REVERTED, or a workflow that is CANCELLED.
        FlowError: if there is no flow with that id, or a workflow has no such operation.
        ClaimLost: if another process took the flow first.
    """
    seen = (await store.load(id)).flow
    state = FlowState(seen.state)
    if seen.kind == "workflow" and state in (*RESTARTABLE, FlowState.CANCELLED):
        await _restart(store, seen, step)
        return
    if state not in RESTARTABLE:
        raise InvalidState(f"flow {id!r} is {state} and cannot be reset; the state must be FAILURE or REVERTED")
    if step:
        raise FlowError(f"flow {id!r} is not a workflow, so it has no operation {step!r}; reset all of it")
    FLOWS.check(id, state, FlowState.PENDING, "reset")
    flow, steps, _ = await store.take(id, "", seen=seen.epoch, ended=True)
    now = time.time()
    moved = [row for row in steps.values() if row.state != "PENDING"]
    changes = [
        *(Change(row.kind, row.name, row.state, "PENDING", reason="reset", attempt=row.attempt) for row in moved),
        Change("flow", flow.name, state, FlowState.PENDING, reason="reset"),
    ]
    numbered = [each._replace(flow=id, seq=flow.seq + n, at=now) for n, each in enumerate(changes, 1)]
    rows = list(map(_cleared, steps.values()))
    seq = flow.seq + len(numbered)
    await store.commit(Batch(id, flow.epoch, FlowState.PENDING, seq, now, rows, numbered, kind=flow.kind))


async def _restart(store: Store, seen: FlowRow, step: str) -> None:
    # Check the step before the flow is taken.
    WorkflowLog(await store.load(seen.id)).restart(step)
    log = WorkflowLog(await store.take(seen.id, "", seen=seen.epoch, ended=True))
    log.restart(step)
    await store.commit(log.drain())


def _cleared(row: StepRow) -> StepRow:
    return type(row)(row.name, row.kind, attempt=row.attempt, round=row.round, undone=row.round)
