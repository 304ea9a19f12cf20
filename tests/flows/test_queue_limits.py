"""The limits of queues: concurrency, concurrency per key and rate, in each store."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import (
    Claim,
    Flows,
    JobQueue,
    JobRow,
    Limits,
    SQLiteStore,
    Times,
    linear,
    sleep,
    step,
    task,
    wait_for,
    workflow,
)
from tests import postgres
from tests.counting import counted_calls
from tests.flows.working import working
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from lifecycle.flows import Flow, Job, JobStore, Store, Workflow
    from lifecycle.testing import Clock

LIMIT = 30.0
HELLO = linear("hello", task(lambda: 1, name="a"))


async def claim_all(queue: JobQueue) -> list[Job]:
    claimed: list[Job] = []
    while (job := await queue.claim(lease=3600)) is not None:
        claimed.append(job)
    return claimed


async def test_a_queue_has_at_most_so_many_claimed_jobs(flows: Flows) -> None:
    queue = JobQueue(flows, concurrency=2)
    for number in range(4):
        await queue.enqueue("hello", id=f"{number}")
    first, second = await claim_all(queue)
    assert (first.id, second.id) == ("0", "1")
    await queue.complete(first)
    assert [job.id for job in await claim_all(queue)] == ["2"]
    await queue.release(second)
    assert [job.id for job in await claim_all(queue)] == ["1"]


async def test_limits_apply_to_all_processes_together(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows, reopened() as others:
        here, there = JobQueue(flows, concurrency=3), JobQueue(others, concurrency=3)
        for number in range(9):
            await here.enqueue("hello", id=f"{number}")
        claimed = await asyncio.gather(*[queue.claim() for queue in (here, there) for _ in range(4)])
        assert len([job for job in claimed if job is not None]) == 3


async def test_a_claim_that_expires_makes_room(clock: Clock, flows: Flows) -> None:
    queue = JobQueue(flows, concurrency=1)
    await queue.enqueue("hello", id="one")
    await queue.claim(lease=10)
    assert await queue.claim() is None
    await clock.advance(11)
    job = await queue.claim()
    assert job is not None
    assert job.id == "one"


async def test_jobs_with_one_key_are_claimed_one_at_a_time_in_order(flows: Flows) -> None:
    queue = JobQueue(flows, key_concurrency=1)
    for id_, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("free1", ""), ("a3", "a"), ("free2", "")):
        await queue.enqueue("hello", id=id_, key=key)
    await queue.enqueue("hello", id="b0", key="b", priority="high")
    claimed = {job.id: job for job in await claim_all(queue)}
    assert list(claimed) == ["b0", "a1", "free1", "free2"]
    await queue.complete(claimed["a1"])
    assert [job.id for job in await claim_all(queue)] == ["a2"]


async def test_a_job_that_is_not_due_does_not_hold_up_its_key(flows: Flows) -> None:
    queue = JobQueue(flows, key_concurrency=1)
    await queue.enqueue("hello", id="later", key="a", after=3600)
    await queue.enqueue("hello", id="now", key="a")
    assert [job.id for job in await claim_all(queue)] == ["now"]


async def test_a_job_for_another_worker_does_not_hold_up_its_key(flows: Flows) -> None:
    queue = JobQueue(flows, key_concurrency=1)
    await queue.enqueue("elsewhere", id="first", key="a")
    await queue.enqueue("hello", id="second", key="a")
    job = await queue.claim(flows=["hello"])
    assert job is not None
    assert job.id == "second"
    assert await queue.claim(flows=["elsewhere"]) is None


async def fill(flows: Flows, blocked: int) -> JobQueue:
    """Return a queue with ``blocked`` jobs of a busy key, which come before other jobs."""
    queue = JobQueue(flows, key_concurrency=2)
    for number in range(2):
        await queue.claim(await queue.enqueue("hello", id=f"busy{number}", key="busy"), lease=3600)
    for begin in range(0, blocked, 100):
        await asyncio.gather(*[queue.enqueue("hello", id=f"{begin + n}", key="busy") for n in range(100)])
    for id_, key in (("b1", "b"), ("a1", "a"), ("a2", "a"), ("a3", "a"), ("free1", ""), ("free2", "")):
        await queue.enqueue("hello", id=id_, key=key)
    await queue.enqueue("hello", id="b0", key="b", priority="high")
    return queue


@pytest.mark.parametrize("names", [["hello"], ["hello", "other"], None])
async def test_many_jobs_of_a_busy_key_do_not_hold_up_others(flows: Flows, names: list[str] | None) -> None:
    queue = await fill(flows, 200)
    jobs: list[str] = []
    while (job := await queue.claim(flows=names, lease=3600)) is not None:
        jobs.append(job.id)
    assert jobs == ["b0", "b1", "a1", "a2", "free1", "free2"]
    assert [job.id for job, _ in await queue.begin(["hello"], 3600, 9)] == []


async def calls_in_memory(_: Path, blocked: int) -> int:
    """Return the number of Python functions that a claim calls."""
    async with Flows() as flows:
        queue = await fill(flows, blocked)
        with counted_calls() as names:
            assert await queue.claim(flows=["hello"])
    return len(names)


async def instructions_of_a_file(path: Path, blocked: int) -> int:
    """Return the number of instructions that SQLite executes for a claim."""
    executed: list[None] = []
    store = SQLiteStore(path / f"{blocked}.db")
    async with Flows(store=store) as flows:
        queue = await fill(flows, blocked)
        await store.journal.run(lambda db: db.set_progress_handler(lambda: executed.append(None), 1))
        assert await queue.claim(flows=["hello"])
        await store.journal.run(lambda db: db.set_progress_handler(None, 1))
    return len(executed)


async def rows_of_a_server(_: Path, blocked: int) -> int:
    """Return the number of rows that PostgreSQL reads for a claim."""
    url = postgres.server().url()
    async with Flows(url) as flows:
        await fill(flows, blocked)
    # A server reads small tables from the start to the end unless it has statistics.
    postgres.server().execute(f"ANALYZE {url.rpartition('%3D')[2]}.lifecycle_jobs")
    before = await rows_read(url)
    async with Flows(url) as flows:
        assert await JobQueue(flows, key_concurrency=2).claim(flows=["hello"])
    return await rows_read(url) - before


async def rows_read(url: str) -> int:
    """Return the number of jobs that connections have read, once these are closed. Only then are all rows counted."""
    server, schema = postgres.server(), url.rpartition("%3D")[2]
    await until(lambda: not server.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'lifecycle'"))
    columns = "seq_tup_read + coalesce(idx_tup_fetch, 0)"
    table = f"pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'lifecycle_jobs'"
    ((count,),) = server.execute(f"SELECT {columns} FROM {table}")
    return int(count)


@pytest.mark.parametrize(
    "cost",
    [calls_in_memory, instructions_of_a_file, pytest.param(rows_of_a_server, marks=pytest.mark.engine("postgres"))],
)
async def test_a_claim_does_not_read_all_jobs_of_a_busy_key(
    tmp_path: Path, cost: Callable[[Path, int], Awaitable[int]]
) -> None:
    few, many = [await cost(tmp_path, blocked) for blocked in (200, 1000)]
    assert many < 2 * few


async def test_a_rate_limit_counts_claims_in_any_period(clock: Clock, flows: Flows) -> None:
    queue = JobQueue(flows, limit=2, per=60)
    for number in range(5):
        await queue.enqueue("hello", id=f"{number}")
    first = await queue.claim()
    assert first is not None
    await queue.complete(first)
    await clock.advance(30)
    assert [job.id for job in await claim_all(queue)] == ["1"]
    await clock.advance(29)
    assert await queue.claim() is None
    await clock.advance(2)
    assert [job.id for job in await claim_all(queue)] == ["2"]
    await clock.advance(60)
    assert [job.id for job in await claim_all(queue)] == ["3", "4"]


async def test_a_worker_continues_when_the_rate_limit_allows_it(clock: Clock, flows: Flows) -> None:
    queue = JobQueue(flows, limit=1, per=60)
    jobs = [await queue.enqueue("hello") for _ in range(3)]
    work = asyncio.create_task(queue.work({"hello": HELLO}, lease=3600))
    start = clock.time()
    for job in jobs:
        assert await job == "SUCCESS"
    assert 120 <= clock.time() - start < 121
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def test_a_workflow_that_waits_makes_room_for_another_worker(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        await wait_for("approval")

    queue = JobQueue(flows, concurrency=1)
    await queue.enqueue("order", id="waits")
    job = await queue.enqueue("hello")
    items: list[Mapping[str, Flow | Workflow[..., Any]]] = [{"order": order}, {"hello": HELLO}]
    workers = [asyncio.create_task(queue.work(each, lease=3600)) for each in items]
    async with asyncio.timeout(LIMIT):
        assert await job == "SUCCESS"
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)


@pytest.mark.xfail(strict=True, reason="a workflow that waits releases its job, and with it the key")
@pytest.mark.parametrize("wait", ["sleep", "retry"])
async def test_a_workflow_that_waits_keeps_its_key(clock: Clock, flows: Flows, wait: str) -> None:
    log: list[str] = []

    async def unreliable(name: str) -> None:
        log.append(f"{name} tries")
        if log.count(f"{name} tries") == 1:
            raise OSError("not yet")

    @workflow
    async def pay(name: str) -> None:
        await step(log.append, f"{name} begins", name="begin")
        if wait == "sleep":
            await sleep(60)
        else:
            await step(unreliable, name, retry=Times(2, backoff=60.0), name="try")
        await step(log.append, f"{name} ends", name="end")

    queue = JobQueue(flows, key_concurrency=1)
    jobs = [await queue.enqueue("pay", key="customer", name=name) for name in "ab"]
    async with working(queue, pay):
        await asyncio.gather(*jobs)
    assert [each for each in log if "tries" not in each] == ["a begins", "a ends", "b begins", "b ends"]


async def test_queues_are_independent(flows: Flows) -> None:
    mails, files = JobQueue(flows, name="mails", concurrency=1), JobQueue(flows, name="files")
    for number in range(2):
        await mails.enqueue("hello", id=f"mail-{number}")
        await files.enqueue("hello", id=f"file-{number}")
    assert [job.id for job in await claim_all(mails)] == ["mail-0"]
    assert [job.id for job in await claim_all(files)] == ["file-0", "file-1"]
    assert [job.id for job in await mails.jobs()] == ["mail-0", "mail-1"]
    assert await claim_all(JobQueue(flows)) == []
    assert repr(mails).startswith("<JobQueue 'mails' in ")


async def test_workers_keep_the_limits(reopened: Callable[[], Flows]) -> None:
    running: list[str] = []
    most = {"all": 0, "one customer": 0}

    @task
    async def serve(customer: str) -> None:
        running.append(customer)
        most["all"] = max(most["all"], len(running))
        most["one customer"] = max(most["one customer"], running.count(customer))
        for _ in range(10):
            await asyncio.sleep(0)
        running.remove(customer)

    async with reopened() as flows, reopened() as others:
        queues = [JobQueue(each, concurrency=3, key_concurrency=1) for each in (flows, others)]
        customers = [f"customer-{number % 4}" for number in range(20)]
        jobs = [await queues[0].enqueue("serve", key=customer, customer=customer) for customer in customers]
        workers = [asyncio.create_task(queue.work({"serve": linear("serve", serve)})) for queue in queues]
        async with asyncio.timeout(LIMIT):
            assert {await job for job in jobs} == {"SUCCESS"}
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    assert most == {"all": 3, "one customer": 1}


async def test_a_key_needs_a_limit(flows: Flows) -> None:
    with pytest.raises(ValueError, match=r"key 'a' needs a queue with a limit; pass JobQueue\(…, key_concurrency=1\)"):
        await JobQueue(flows).enqueue("hello", key="a")


def test_limits_must_make_sense(flows: Flows) -> None:
    with pytest.raises(ValueError, match=r"^concurrency must be 1 or more, or None, got 0"):
        JobQueue(flows, concurrency=0)
    with pytest.raises(ValueError, match=r"^key_concurrency must be 1 or more, or None, got 0"):
        JobQueue(flows, key_concurrency=0)
    with pytest.raises(ValueError, match=r"^limit must be 1 or more, or None, got 0"):
        JobQueue(flows, limit=0, per=1)
    with pytest.raises(ValueError, match="limit and per belong together"):
        JobQueue(flows, limit=10)
    with pytest.raises(ValueError, match="limit and per belong together"):
        JobQueue(flows, per=10)
    with pytest.raises(ValueError, match="per must be"):
        JobQueue(flows, limit=10, per=0)


# -- a model -----------------------------------------------------------------------------------------------------------

LIMITS = {
    "plain": Limits(),
    "few": Limits(concurrency=3),
    "keyed": Limits(key_concurrency=2),
    "slow": Limits(limit=4, per=10.0),
    "all": Limits(concurrency=4, key_concurrency=1, limit=6, per=10.0),
}


class Model:
    """All queues as one list of jobs, which is searched for each claim."""

    def __init__(self) -> None:
        self.rows: list[JobRow] = []
        self.starts: list[tuple[str, float]] = []

    def expected(self, flows: list[str] | None, claim: Claim, most: int) -> list[str]:
        """Return the ids of the jobs that a claim must return."""
        limits = claim.limits
        claimed = [row for row in self.rows if row.state == "CLAIMED" and row.queue == claim.queue]
        for row in sorted(self.rows, key=lambda row: (row.rank, row.number)):
            recent = [at for queue, at in self.starts if queue == claim.queue and at > claim.now - limits.per]
            new = [each for each in claimed if each.until == claim.until]
            if (
                len(new) == most
                or (limits.concurrency is not None and len(claimed) >= limits.concurrency)
                or (limits.limit is not None and len(recent) + len(new) >= limits.limit)
            ):
                break
            same = [each for each in claimed if each.key and each.key == row.key]
            if (
                (row.state, row.queue) == ("UNCLAIMED", claim.queue)
                and (flows is None or row.flow in flows)
                and row.due <= claim.now
                and (limits.key_concurrency is None or len(same) < limits.key_concurrency)
            ):
                claimed.append(row._replace(until=claim.until))
        return [row.id for row in claimed if row.until == claim.until]

    def claimed(self, rows: list[JobRow], claim: Claim) -> None:
        ids = {row.id: row for row in rows}
        self.rows = [ids.get(row.id, row) for row in self.rows]
        self.starts += [(claim.queue, claim.now) for _ in rows]

    def expire(self, now: float) -> None:
        self.rows = [
            row._replace(state="UNCLAIMED") if row.state == "CLAIMED" and row.until <= now else row for row in self.rows
        ]


@pytest.mark.parametrize("seed", range(4))
async def test_claims_are_those_of_a_slow_model(make_store: Callable[[], Store], seed: int) -> None:
    async with make_store() as store:
        await compare(store.jobs(store.presence()), random.Random(seed))


async def compare(jobs: JobStore, chance: random.Random) -> None:
    model, now = Model(), 1000.0
    for number in range(150):
        now += chance.choice((0.0, 0.5, 1.0, 3.0))
        model.expire(now)
        queue = chance.choice(list(LIMITS))
        # Each claim ends at another time, so the model can tell them apart.
        claim = Claim("me", "", now, now + chance.choice((5.0, 20.0)) + number / 1000, queue, LIMITS[queue])
        running = [row for row in model.rows if row.state == "CLAIMED"]
        move = chance.randrange(4)
        if move == 0:
            for place in range(chance.randrange(6)):
                due = chance.choice((0.0, 0.0, now + 4.0))
                key, flow = chance.choice(("", "a", "b")), chance.choice("fg")
                row = JobRow(
                    f"{number}-{place}", flow, chance.randrange(3), "{}", now, 99, due=due, queue=queue, key=key
                )
                model.rows.append(await jobs.add(row))
        elif move == 1 and running:
            row = chance.choice(running)
            state = chance.choice(("COMPLETE", "UNCLAIMED"))
            assert await jobs.compare_and_set(row, row._replace(state=state, until=0.0), now=now)
            model.rows[model.rows.index(row)] = row._replace(state=state)
        else:
            flows, most = chance.choice((["f"], ["f", "g"], None)), chance.randrange(1, 6)
            expected = model.expected(flows, claim, most)
            rows = await jobs.take(flows, claim, most)
            assert sorted(row.id for row in rows) == sorted(expected), (number, queue)
            model.claimed(rows, claim)
