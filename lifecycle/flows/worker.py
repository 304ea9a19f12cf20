"""`Worker`: claims jobs and runs their flows until it is cancelled, then releases its unfinished jobs.

One task claims jobs while there are free slots, and another one extends the claims. Each job runs in its own task.

If a process exits without releasing its jobs, any of them may be the reason, so all of them are suspects. A worker
starts a suspect only when no other job runs in the process, and starts no others for a while, so that a second exit
counts against that job alone. Both waits are limited, because a job may itself wait for another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import start_task, wait_within
from lifecycle._owners import own_component
from lifecycle._util import error_text, message_of
from lifecycle.backoff import Backoff
from lifecycle.errors import (
    AmbiguousDependency,
    ClaimLost,
    FlowError,
    InvalidState,
    JournalError,
    MissingDependencies,
    WorkflowChanged,
)
from lifecycle.flows.client import registry_of
from lifecycle.flows.engine import STOP_MARGIN
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.queue import JOBS_TO_CLAIM, jobs_of
from lifecycle.flows.stores.base import is_suspect, lost_job
from lifecycle.flows.stores.presence import GONE, RESUMED, WAKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.flows.definition import Item
    from lifecycle.flows.queue import Job, JobQueue
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.run import Run

__all__ = ["Worker"]

_log = logging.getLogger("lifecycle.flows")

#: How long to wait before trying again when the store cannot be read or written to.
_TROUBLE = Backoff(initial=0.1, maximum=30.0)
#: Seconds after which a job is due again whose workflow does not match this process's code.
_OTHER_CODE = 60.0
#: Errors that would recur on every attempt.
_HOPELESS = (MissingDependencies, AmbiguousDependency)
#: How many times a claim is extended per lease period.
_OFTEN = 3
#: How many times we try to extend claims per lease period while the store does not respond.
_OFTENER = 15
#: The maximum number of jobs for other flows to look at.
_OTHERS = 100


class _Lease:
    """A claim that is kept alive by a heartbeat."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.until: float = job.row.until
        #: Done when the claim is lost.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(self) -> None:
        """Mark the claim as lost."""
        if not self.lost.done():
            self.lost.set_result(None)


class _Heartbeat:
    """Extends all claims by ``seconds`` in one call. While the store does not respond, attempts are more frequent.

    A claim is lost if it has expired or if the store refuses to extend it. The other claims are not affected.
    """

    def __init__(self, queue: JobQueue, seconds: float) -> None:
        self._queue, self._seconds = queue, seconds
        # The claims, by job id.
        self._held: dict[str, _Lease] = {}
        self._some = asyncio.Event()

    def add(self, job: Job) -> _Lease:
        """Start extending the claim on ``job``. If we have an older claim on the same job, mark it as lost."""
        if (older := self._held.get(job.id)) is not None:
            older.lose()
        self._held[job.id] = lease = _Lease(job)
        self._some.set()
        return lease

    def remove(self, lease: _Lease) -> None:
        """Stop extending a claim."""
        if self._held.get(lease.job.id) is lease:
            del self._held[lease.job.id]
        if not self._held:
            self._some.clear()

    async def run(self) -> None:
        """Extend the claims before they expire, until cancelled."""
        extended = True
        while True:
            await self._some.wait()
            await asyncio.sleep(self._seconds / (_OFTEN if extended else _OFTENER))
            self._drop("it was not extended in time" + (": is the event loop blocked?" if extended else ""))
            extended = await self._extend()

    async def _extend(self) -> bool:
        """Extend the claims. Return False if the store does not respond."""
        leases, now = list(self._held.values()), self._queue.now()
        until = now + self._seconds
        if not leases:
            return True
        try:
            # The store may be waiting for an unreachable server, so we give up when the first claim expires.
            async with asyncio.timeout(min(lease.until for lease in leases) - now):
                lost = await self._queue.store.renew([lease.job.row for lease in leases], now=now, until=until)
        except (JournalError, TimeoutError) as error:
            _log.warning("cannot extend claims: %s", message_of(error) or "the store is too slow")
            return False
        epochs = {(row.id, row.epoch) for row in lost}
        for lease in leases:
            if (lease.job.id, lease.job.row.epoch) in epochs:
                lease.lose()
            else:
                lease.until = until
        return True

    def _drop(self, why: str) -> None:
        """Mark expired claims as lost, because other processes may have claimed the jobs since."""
        now = self._queue.now()
        for lease in list(self._held.values()):
            if lease.until <= now:
                _log.warning("the claim on job %s has expired: %s", lease.job.id, why)
                lease.lose()
                self.remove(lease)


class Worker:
    """Runs jobs for ``flows``, which maps the names used in `JobQueue.enqueue` to flows."""

    def __init__(self, queue: JobQueue, flows: Mapping[str, Item], *, concurrency: int, lease: float) -> None:
        if not isinstance(flows, Mapping):
            raise TypeError(
                f"flows must map names to flows, got {flows!r}; "
                f"write queue.work({{{getattr(flows, 'name', 'name')!r}: …}})"
            )
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {concurrency!r}")
        if not flows:
            raise ValueError("flows must map at least one name to a flow, got {}")
        # Plans are immutable, so they are compiled only once and shared by all jobs.
        self._plans = {name: compile_flow(flow) for name, flow in flows.items()}
        for name, plan in self._plans.items():
            if plan.name != name:
                raise ValueError(f"the key for flow {plan.name!r} must be the flow's name, got {name!r}")
        self._queue, self._lease = queue, lease
        self._registry = registry_of(queue.flows)
        self._slots = concurrency
        # The claims on the jobs that occupy a slot.
        self._in_slots: set[_Lease] = set()
        # Set when a slot becomes free.
        self._freed = asyncio.Event()
        self._heartbeat = _Heartbeat(queue, lease)
        # True if the next job may be a suspect, so that one job is claimed, and only after the running jobs.
        self._careful = False
        # The due jobs for other flows at the last look, and the names of their flows that were logged.
        self._others: set[str] = set()
        self._logged: set[str] = set()
        # True once jobs that wait for interrupted children have been made due.
        self._looked = False
        # Set when there may be jobs to claim.
        self._news = asyncio.Event()
        # The task that runs each job, by job id.
        self._working: dict[str, asyncio.Task[None]] = {}
        # Done when the worker must stop its running jobs and not start any others.
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Claim and run jobs until cancelled.

        Raises:
            FlowError: if the `Flows` are closed.
        """
        presence, count = self._queue.flows.presence, self._queue.count
        jobs = {JOBS_TO_CLAIM, *map(jobs_of, self._plans)}
        silences = [presence.listen(news, self._news.set) for news in (*jobs, GONE, RESUMED, WAKE)]
        silences += [presence.listen(news, count.renew) for news in jobs]
        count.open()
        owned = own_component(self._queue)
        hooks.component_opened.announce(self._queue, component=self._queue)
        claiming = start_task(self._claim_jobs(), name="look for jobs")
        extending = start_task(self._heartbeat.run(), name="keep claims")
        try:
            ended, _ = await asyncio.wait([claiming, extending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            owned.end()
            hooks.component_closed.announce(self._queue, component=self._queue)
            for silence in silences:
                silence()
            try:
                await self._stop(claiming)
            finally:
                extending.cancel()
                await asyncio.wait([extending])
                await count.close()
        for task in ended:
            task.result()

    async def _stop(self, claiming: asyncio.Task[None]) -> None:
        """Stop starting jobs, and wait until the running jobs have stopped."""
        self._stopping.set_result(None)
        self._news.set()
        self._freed.set()
        try:
            async with asyncio.timeout(self._queue.flows.stop_timeout + STOP_MARGIN):
                while left := [*self._working.values(), *([] if claiming.done() else [claiming])]:
                    await asyncio.wait(left)
        except TimeoutError:
            _log.warning("the store did not respond; unfinished jobs return to the queue when their claims expire")
        finally:
            # If this task is cancelled a second time, the wait ends.
            rest = [claiming, *self._working.values()]
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)

    # -- claiming jobs -------------------------------------------------------------------------------------------------

    async def _claim_jobs(self) -> None:
        """Claim jobs for free slots until the worker stops. Store calls that claim jobs are never cancelled."""
        failures = 0
        while not self._stopping.done():
            if len(self._in_slots) >= self._slots:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                await self._claim()
                failures = 0
            except JournalError as error:
                _log.warning("cannot claim jobs: %s", error)
                await asyncio.wait([self._stopping], timeout=_TROUBLE.delay(failures))
                failures += 1

    async def _claim(self) -> None:
        """Claim and start a job for each free slot. If there are not enough jobs, wait until more may be available."""
        self._news.clear()
        if self._queue.flows.suspended:
            await self._news.wait()
            return
        if not self._looked:
            await self._registry.wake_parents(self._plans.keys())
            self._looked = True
        if self._registry.trial is not None:
            await asyncio.wait([self._registry.trial, self._stopping], return_when=asyncio.FIRST_COMPLETED)
            return
        if self._careful:
            await self._wait_for_jobs(self._registry.jobs)
        free = 1 if self._careful else self._slots - len(self._in_slots)
        jobs = await self._queue.begin(self._plans, self._lease, free)
        if self._is_suspended():
            # The flows were suspended while the store was claiming the jobs.
            await self._release(jobs)
            return
        first = next((place for place, (job, _) in enumerate(jobs) if is_suspect(job.row)), len(jobs))
        if self._careful and jobs and first == 0 and self._registry.trial is None:
            self._careful = False
            await self._try(*jobs[0])
            return
        self._careful = first < len(jobs)
        for job, snapshot in jobs[:first]:
            self._begin(job, snapshot)
        await self._release(jobs[first:])
        if len(jobs) < free:
            await self._wait()

    async def _release(self, jobs: Sequence[tuple[Job, Snapshot | None]]) -> None:
        """Release claimed jobs that have not started, unless the claims have ended in the meantime."""
        releases = [self._queue.release(job) for job, _ in jobs]
        for error in await asyncio.gather(*releases, return_exceptions=True):
            if isinstance(error, JournalError):
                _log.warning("a job returns to the queue when its claim ends: %s", error)
            elif error is not None and not isinstance(error, (ClaimLost, InvalidState)):
                raise error

    async def _wait_for_jobs(self, jobs: set[asyncio.Task[None]]) -> None:
        """Wait until no job runs in this process, or one lease period has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._lease):
                while jobs and not self._stopping.done():
                    await asyncio.wait([*jobs, self._stopping], return_when=asyncio.FIRST_COMPLETED)

    async def _try(self, job: Job, snapshot: Snapshot | None) -> None:
        """Run a suspect, and wait until it is over or no longer a suspect. No worker of this process starts others."""
        # A job that ends its process later than this is a suspect again, and has more time next time.
        patience = self._lease * max(1, job.row.epoch - job.row.attempts)
        self._registry.trial = trial = asyncio.get_running_loop().create_future()
        try:
            lease = self._begin(job, snapshot)
            await asyncio.wait(
                [self._working[job.id], self._stopping], timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if lease in self._in_slots and not self._stopping.done():
                await self._queue.acquit(job, lease.until)
        finally:
            self._registry.trial = None
            trial.set_result(None)

    def _is_suspended(self) -> bool:
        return self._queue.flows.suspended

    async def _wait(self) -> None:
        """Wait until a message arrives, a job is due, a claim expires, or a third of the lease period has passed."""
        now = self._queue.now()
        then = await self._queue.next(now)
        wait = self._lease / 3 if then is None else min(self._lease / 3, max(0.0, then - now))
        await wait_within(wait, self._news)
        if not self._news.is_set():
            # A message may have been lost, or a process may have exited unnoticed.
            self._queue.store.doubt()
            await self._log_others()

    async def _log_others(self) -> None:
        """Log jobs for other flows that have been due since the last look, once per flow."""
        rows = await self._queue.store.others([*self._plans, *self._logged], queue=self._queue.name, limit=_OTHERS)
        before, self._others = self._others, {row.id for row in rows}
        for row in rows:
            if row.id in before and row.flow not in self._logged:
                self._logged.add(row.flow)
                _log.warning(
                    "no worker has claimed job %r for flow %r, which is due; run a worker with it, or check its name",
                    *(row.id, row.flow),
                )

    def _free_slot(self, lease: _Lease) -> None:
        """Free the job's slot so that another job can start."""
        if lease in self._in_slots:
            self._in_slots.remove(lease)
            self._freed.set()

    def _begin(self, job: Job, snapshot: Snapshot | None) -> _Lease:
        self._queue.count.renew()
        before = self._working.get(job.id)
        lease = self._heartbeat.add(job)
        self._in_slots.add(lease)
        task = start_task(self._carry_out(lease, before, snapshot), name=f"job {job.id}")
        self._working[job.id] = task
        self._registry.jobs.add(task)
        task.add_done_callback(lambda task: self._done(lease, task))
        return lease

    def _done(self, lease: _Lease, task: asyncio.Task[None]) -> None:
        self._heartbeat.remove(lease)
        self._registry.jobs.discard(task)
        self._queue.count.renew()
        if self._working.get(lease.job.id) is task:
            del self._working[lease.job.id]
        self._free_slot(lease)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "job %s is unfinished and returns to the queue when its claim ends", lease.job.id, exc_info=error
            )

    # -- running a job
    # -------------------------------------------------------------------------------------------------

    async def _carry_out(self, lease: _Lease, before: asyncio.Task[None] | None, snapshot: Snapshot | None) -> None:
        job = lease.job
        try:
            if before is not None:
                # This worker had an earlier claim on this job and lost it. Wait for that claim's task to finish, so
                # that we don't run the job twice at the same time.
                await asyncio.wait([before])
            if self._stopping.done():
                await self._queue.release(job)
                return
            run = await self._adopt(lease, snapshot)
            if run is not None:
                await self._wait_for(lease, run)
        except ClaimLost as error:
            _log.warning("%s", error)
        except (FlowError, JournalError) as error:
            _log.warning("job %s is unfinished and returns to the queue when its claim ends: %s", job.id, error)

    async def _adopt(self, lease: _Lease, snapshot: Snapshot | None) -> Run | None:
        """Return the run for a job's flow. If the flow cannot run, discard the job and return None."""
        queue, job, row = self._queue, lease.job, lease.job.row
        try:
            if snapshot is None:
                snapshot = await queue.store.adopt(row, now=queue.now())
            return registry_of(queue.flows).adopt(
                self._plans[row.flow], snapshot, lambda: not lease.lost.done() and queue.now() < lease.until
            )
        except (ClaimLost, JournalError):
            raise
        except Exception as error:  # noqa: BLE001  # a codec may raise anything; the job stores the error
            await queue.discard(job, error=error_text(error))
            return None

    async def _wait_for(self, lease: _Lease, run: Run) -> None:
        """Wait until the flow has ended, the claim is lost or the worker stops, then write the job's outcome."""
        ending = start_task(_ending(run), name=f"end of {run.id}")
        try:
            reasons: list[asyncio.Future[Any]] = [ending, lease.lost, self._stopping]
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if lease.lost.done():
                raise lost_job(lease.job.row)
            if not ending.done():
                await run.suspend(cancel_after=self._queue.flows.stop_timeout)
            await self._finish(lease, run, await ending if run.ended or run.stopped else None)
        finally:
            if not (run.ended or run.parked):
                await registry_of(self._queue.flows).leave(run, lost_job(lease.job.row))
            await ending

    async def _finish(self, lease: _Lease, run: Run, error: BaseException | None) -> None:
        """Write the job's outcome, or release the job."""
        job = lease.job
        text = "" if error is None else error_text(error)
        if run.ended:
            # Free the slot before writing the outcome, so that the next job can start in the meantime.
            self._free_slot(lease)
            await self._queue.complete(job, outcome=run.state, error=text)
        elif run.parked:
            await self._queue.park(job)
        elif error is None:
            await self._queue.release(job)
        elif isinstance(error, WorkflowChanged):
            # Another process may have the code that the job matches.
            await self._queue.give_back(job, _OTHER_CODE)
        elif isinstance(error, _HOPELESS):
            await self._queue.discard(job, error=text)
        elif isinstance(error, ClaimLost):
            raise error
        else:
            await self._queue.release(job, error=text)


async def _ending(run: Run) -> BaseException | None:
    """Wait until the run has ended or is parked, and return its error or None."""
    await run.wait_over()
    try:
        if not run.parked:
            await run
    except Exception as error:  # noqa: BLE001  # the job stores the error
        return error
    return None
