"""`Worker`: claims jobs and carries them out, until it is cancelled; then it gives back what it has.

One task looks for jobs while there is a free seat; each job has a task of its own; and the claims are kept by a third,
whatever the jobs are at.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import wait_within
from lifecycle._util import error_text
from lifecycle.backoff import Backoff
from lifecycle.errors import AmbiguousDependency, ClaimLost, FlowError, JournalError, MissingDependencies
from lifecycle.flows.engine import STOP_MARGIN
from lifecycle.flows.jobs.claims import JOBS_TO_CLAIM, Claims, jobs_of
from lifecycle.flows.jobs.leases import Leases
from lifecycle.flows.jobs.rows import flow_of
from lifecycle.flows.jobs.stores import lost_job
from lifecycle.flows.owners import GONE
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.requests import RESUMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.flows.definition import Item
    from lifecycle.flows.jobs.jobs import Job
    from lifecycle.flows.jobs.leases import Lease
    from lifecycle.flows.jobs.queues import JobQueue
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.run import Run

__all__ = ["Worker"]

_log = logging.getLogger("lifecycle.flows")

#: How long it waits where the store cannot be read or written.
_TROUBLE = Backoff(initial=0.1, maximum=30.0)
#: What another attempt would not change.
_HOPELESS = (MissingDependencies, AmbiguousDependency)


class Worker:
    """Carries out jobs of ``flows``, which are known by the names that they were posted with."""

    def __init__(self, queue: JobQueue, flows: Mapping[str, Item], *, concurrency: int, lease: float) -> None:
        if concurrency < 1:
            raise ValueError(f"work(concurrency={concurrency!r}) could do nothing; give 1 or more")
        if not flows:
            raise ValueError("work({}) could do nothing; give flows by their names")
        # Compiled once, and shared by all jobs: a plan does not change.
        self._plans = {name: compile_flow(flow) for name, flow in flows.items()}
        for name, plan in self._plans.items():
            if plan.name != name:
                raise ValueError(
                    f"work({{{name!r}: ...}}) names a flow that is called {plan.name!r}; give it its own name"
                )
        self._queue, self._lease = queue, lease
        self._seats = concurrency
        # The jobs that take one of them.
        self._seated: set[Lease] = set()
        # Set when a job has ended that took one of them.
        self._seat = asyncio.Event()
        self._claims = Claims(queue)
        self._leases = Leases(queue, lease)
        # Set when there may be something to claim.
        self._news = asyncio.Event()
        # The tasks that carry out a job, by its id.
        self._working: dict[str, asyncio.Task[None]] = {}
        # Done when nothing more is to be begun, and what is at work is to come to rest.
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            FlowError: once the flows are left.
        """
        owners = self._queue.flows.owners
        tally = self._queue.tally
        jobs = {JOBS_TO_CLAIM, *map(jobs_of, self._plans)}
        silences = [owners.listen(news, self._news.set) for news in (*jobs, GONE, RESUMED)]
        silences += [owners.listen(news, tally.renew) for news in jobs]
        tally.open()
        hooks.component_opened.announce(self._queue, component=self._queue)
        looking = asyncio.create_task(self._look(), name="look for jobs")
        keeping = asyncio.create_task(self._leases.keep(), name="keep claims")
        try:
            ended, _ = await asyncio.wait([looking, keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            hooks.component_closed.announce(self._queue, component=self._queue)
            for silence in silences:
                silence()
            try:
                await self._stop(looking)
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await tally.close()
        for task in ended:
            task.result()

    async def _stop(self, looking: asyncio.Task[None]) -> None:
        """Begin nothing more, and wait until those at work have come to rest."""
        self._stopping.set_result(None)
        self._news.set()
        self._seat.set()
        try:
            async with asyncio.timeout(self._queue.flows.stop_timeout + STOP_MARGIN):
                while left := [*self._working.values(), *([] if looking.done() else [looking])]:
                    await asyncio.wait(left)
        except TimeoutError:
            _log.warning("jobs are left as they are, and come back when their claims end: the store takes too long")
        finally:
            # Asked again, nobody has any more time.
            rest = [looking, *self._working.values()]
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)

    # -- finding jobs ---------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Give free seats jobs, until nothing more is to be begun: a claim on its way is not to be cancelled."""
        failures = 0
        while not self._stopping.done():
            if len(self._seated) >= self._seats:
                self._seat.clear()
                await self._seat.wait()
                continue
            try:
                await self._claim()
                failures = 0
            except JournalError as error:
                _log.warning("jobs cannot be claimed: %s", error)
                await asyncio.wait([self._stopping], timeout=_TROUBLE.delay(failures))
                failures += 1

    async def _claim(self) -> None:
        """Begin jobs as there are free seats, or wait until there may be some."""
        self._news.clear()
        if self._is_suspended():
            await self._news.wait()
            return
        free = self._seats - len(self._seated)
        jobs = await self._claims.some(self._plans, self._lease, free)
        if self._is_suspended():
            # They were on their way.
            await asyncio.gather(*[self._queue.release(job) for job, _ in jobs])
            return
        for job, snapshot in jobs:
            self._begin(job, snapshot)
        if len(jobs) < free:
            await self._wait()

    def _is_suspended(self) -> bool:
        return self._queue.flows.suspended

    async def _wait(self) -> None:
        """Wait until there may be a job: somebody rings, one is due, or a claim ends."""
        now = self._queue.now()
        then = await self._queue.store.next(now=now)
        wait = self._lease / 3 if then is None else min(self._lease / 3, max(0.0, then - now))
        await wait_within(wait, self._news)
        if not self._news.is_set():
            # Perhaps somebody cannot ring, or has died unheard.
            self._queue.store.doubt()

    def _free_seat(self, lease: Lease) -> None:
        """Let another job begin in the place of this one."""
        if lease in self._seated:
            self._seated.remove(lease)
            self._seat.set()

    def _begin(self, job: Job, snapshot: Snapshot | None) -> None:
        self._queue.tally.renew()
        before = self._working.get(job.id)
        lease = self._leases.add(job)
        self._seated.add(lease)
        task = asyncio.create_task(self._carry_out(lease, before, snapshot), name=f"job {job.id}")
        self._working[job.id] = task
        task.add_done_callback(lambda task: self._done(lease, task))

    def _done(self, lease: Lease, task: asyncio.Task[None]) -> None:
        self._leases.remove(lease)
        self._queue.tally.renew()
        if self._working.get(lease.job.id) is task:
            del self._working[lease.job.id]
        self._free_seat(lease)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job %s is left as it is, and comes back when its claim ends", lease.job.id, exc_info=error)

    # -- carrying one out -------------------------------------------------------------------------------------------

    async def _carry_out(self, lease: Lease, before: asyncio.Task[None] | None, snapshot: Snapshot | None) -> None:
        job = lease.job
        try:
            if before is not None:
                # We had it and lost it: nobody does it twice at once.
                await asyncio.wait([before])
            if self._stopping.done():
                await self._queue.release(job)
                return
            run = await self._adopt(job, snapshot)
            if run is not None:
                await self._see_through(lease, run)
        except ClaimLost as error:
            _log.warning("%s", error)
        except (FlowError, JournalError) as error:
            _log.warning("job %s is left as it is, and comes back when its claim ends: %s", job.id, error)

    async def _adopt(self, job: Job, snapshot: Snapshot | None) -> Run | None:
        """The run of its flow; None where there can be none, and then the job is discarded."""
        queue, row = self._queue, job.row
        try:
            if snapshot is None:
                snapshot = await queue.store.adopt(row, flow_of(row), now=queue.now())
            return queue.flows.adopt(self._plans[row.flow], snapshot)
        except (ClaimLost, JournalError):
            raise
        except Exception as error:  # noqa: BLE001  # a codec may raise anything; it is kept with the job
            await queue.discard(job, error=error_text(error))
            return None

    async def _see_through(self, lease: Lease, run: Run) -> None:
        """Wait until the flow has come to its end, or there is a reason to leave it."""
        ending = asyncio.create_task(_ending(run), name=f"end of {run.id}")
        try:
            reasons: list[asyncio.Future[Any]] = [ending, lease.lost, self._stopping]
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if lease.lost.done():
                raise lost_job(lease.job.row)
            if not ending.done():
                await run.suspend(cancel_after=self._queue.flows.stop_timeout)
            await self._finish(lease, run, await ending if run.ended or run.stopped else None)
        finally:
            if not run.ended:
                await self._queue.flows.leave(run, lost_job(lease.job.row))
            await ending

    async def _finish(self, lease: Lease, run: Run, error: BaseException | None) -> None:
        """Say on the queue what has become of it."""
        job = lease.job
        text = "" if error is None else error_text(error)
        if run.ended:
            # The next job need not wait until this is written.
            self._free_seat(lease)
            await self._queue.complete(job, outcome=run.state, error=text)
        elif error is None:
            await self._queue.release(job)
        elif isinstance(error, _HOPELESS):
            await self._queue.discard(job, error=text)
        elif isinstance(error, ClaimLost):
            raise error
        else:
            await self._queue.release(job, error=text)


async def _ending(run: Run) -> BaseException | None:
    """What the flow failed with."""
    try:
        await run
    except Exception as error:  # noqa: BLE001  # it is kept with the job
        return error
    return None
