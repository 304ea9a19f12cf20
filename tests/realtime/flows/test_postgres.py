"""PostgreSQL: outages, lost responses, and notifications from other processes."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lifecycle.errors import FlowError, JournalError
from lifecycle.flows import (
    Batch,
    Change,
    Claim,
    ClaimLost,
    FlowRow,
    Flows,
    JobQueue,
    JobRow,
    MemoryStore,
    OutboxRow,
    PostgresStore,
    StepRow,
    linear,
    task,
)
from lifecycle.flows.stores.base import UNRELEASED
from tests import postgres
from tests.flows.working import working
from tests.realtime.flows._losing import way
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.testing import Clock
    from tests.realtime.flows._losing import Loss, Way

pytestmark = pytest.mark.engine("postgres")

LIMIT = 30.0
HOUR = 3600.0
FLOW = FlowRow("one", "f", epoch=1, owner="me")
JOB = JobRow("one", "f", 2, "{}", 1.0, 3)
CLAIM = Claim("me", "token", 10.0, 20.0)


def batch(seq: int, state: str) -> Batch:
    row = Change("task", "a", "PENDING", state, None, "", 1, "one", seq, 7.0)
    return Batch("one", 1, "RUNNING", seq, 7.0, [StepRow("a", "task", state)], [row], sent=[OutboxRow("i", "t", "5")])


# -- lost messages -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def lossy() -> AsyncIterator[Way]:
    async with way(postgres.server()) as made:
        yield made


@pytest.fixture
async def store(lossy: Way) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(lossy.url(postgres.server().cleared()), connections=1) as store:
        assert await store.create(FLOW)
        await store.jobs(store.presence()).add(JOB)
        yield store


both = pytest.mark.parametrize("loss", ["request", "answer"])


@both
@pytest.mark.keeps_tasks
async def test_a_flow_is_new_once_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    lossy.lose(loss)
    assert await store.create(FLOW._replace(id="two"))
    assert not await store.create(FLOW._replace(id="two"))
    assert [flow.id for flow in await store.flows()] == ["one", "two"]


@both
@pytest.mark.keeps_tasks
async def test_a_phase_is_written_once_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    lossy.lose(loss)
    await store.commit(batch(1, "RUNNING"))
    lossy.lose(loss)
    await store.commit(batch(2, "SUCCESS"))
    assert [change.new for change in await store.changes("one")] == ["RUNNING", "SUCCESS"]
    assert len(await store.outbox().take(9, now=1.0, until=1.0)) == 2


@pytest.mark.keeps_tasks
async def test_a_late_request_that_was_sent_again_changes_nothing(store: PostgresStore, lossy: Way) -> None:
    lossy.lose("late")
    await store.commit(batch(1, "RUNNING"))
    await store.commit(batch(2, "SUCCESS"))
    lossy.release()
    async with asyncio.timeout(LIMIT):
        await lossy.arrived.wait()
    assert (await store.load("one")).steps["a"].state == "SUCCESS"
    assert [change.new for change in await store.changes("one")] == ["RUNNING", "SUCCESS"]


@both
@pytest.mark.keeps_tasks
async def test_a_flow_is_taken_once_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    lossy.lose(loss)
    assert (await store.take("one", "you", seen=1)).flow.epoch == 2
    lossy.lose(loss)
    with pytest.raises(ClaimLost):
        await store.take("one", "you", seen=1)
    assert (await store.load("one")).flow.epoch == 2


@both
@pytest.mark.keeps_tasks
async def test_the_loss_of_a_flow_is_reported_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    await store.take("one", "you", seen=1)
    lossy.lose(loss)
    with pytest.raises(ClaimLost):
        await store.commit(batch(1, "RUNNING"))
    assert await store.changes("one") == []


@both
@pytest.mark.keeps_tasks
async def test_a_job_is_claimed_and_ended_once_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    jobs = store.jobs(store.presence())
    lossy.lose(loss)
    await jobs.add(JOB._replace(id="two"))
    lossy.lose(loss)
    (job,) = await jobs.take(None, CLAIM, 1)
    assert (job.id, job.attempts, job.epoch) == ("one", 1, 1)
    assert [row.id for row in await jobs.rows("UNCLAIMED", now=10.0)] == ["two"]
    lossy.lose(loss)
    assert (await jobs.adopt(job, now=10.0)).flow.epoch == 2
    lossy.lose(loss)
    assert await jobs.renew([job], now=11.0, until=30.0) == []
    lossy.lose(loss)
    assert await jobs.compare_and_set(job, job._replace(state="COMPLETE", outcome="SUCCESS", ended=12.0), now=12.0)
    assert not await jobs.compare_and_set(job, job._replace(state="UNCLAIMED"), now=12.0)
    lossy.lose(loss)
    assert await jobs.purge(before=20.0, queue="") == 1
    assert [row.id for row in await jobs.rows("UNCLAIMED", "CLAIMED", "COMPLETE", now=12.0)] == ["two"]


@both
@pytest.mark.keeps_tasks
async def test_events_stay_in_order_whatever_is_lost(store: PostgresStore, lossy: Way, loss: Loss) -> None:
    await store.commit(batch(1, "RUNNING"))
    await store.commit(batch(2, "SUCCESS"))
    lossy.lose(loss)
    rows = [*await store.outbox().take(1, now=1.0, until=5.0), *await store.outbox().take(1, now=1.0, until=6.0)]
    assert [row.number for row in rows] == sorted(row.number for row in rows)


# -- a server that does not respond ------------------------------------------------------------------------------------


@pytest.mark.keeps_tasks
async def test_a_cancelled_query_to_a_frozen_server_holds_up_no_other(store: PostgresStore, lossy: Way) -> None:
    lossy.freeze()
    asking = asyncio.create_task(store.load("one"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    lossy.thaw()
    async with asyncio.timeout(LIMIT):
        assert (await store.load("one")).flow.id == "one"


@pytest.mark.keeps_tasks
async def test_a_store_on_a_frozen_server_can_be_left(lossy: Way) -> None:
    async with asyncio.timeout(LIMIT):
        async with PostgresStore(lossy.url(postgres.server().cleared())) as store:
            lossy.freeze()
            asking = asyncio.create_task(store.load("one"))
            await asyncio.sleep(0)
        # Closing the store has closed the connection, so the load fails.
        with pytest.raises(JournalError):
            await asking


# -- a server that restarts --------------------------------------------------------------------------------------------


@pytest.fixture
def mortal() -> Any:
    server = postgres.Postgres()
    server.start()
    yield server
    server.close()


async def test_flows_and_workers_live_through_the_end_of_the_server(mortal: postgres.Postgres) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> int:
        begun.set()
        await go_on.wait()
        return 1

    flow = linear("f", task(first, name="a"), task(lambda a: a + 1, name="b"))
    async with Flows(mortal.url()) as flows, working(queue := JobQueue(flows), flow):
        run = flows.start(flow, id="run")
        await begun.wait()
        mortal.kill()
        go_on.set()
        enqueuing = asyncio.create_task(queue.enqueue("f", id="job"))
        await asyncio.to_thread(mortal.start)
        async with asyncio.timeout(LIMIT):
            assert await run == {"a": 1, "b": 2}
            assert await (await enqueuing) == "SUCCESS"


async def test_a_job_that_is_enqueued_during_a_restart_is_claimed_at_once(mortal: postgres.Postgres) -> None:
    """With a lease of one hour, polling alone would take twenty minutes."""
    url, one = mortal.url(), linear("one", task(lambda: 1, name="a"))
    async with Flows(url) as flows, Flows(url) as others, working(JobQueue(flows), one, lease=HOUR):
        assert await (await JobQueue(others).enqueue("one")) == "SUCCESS"
        mortal.stop()
        enqueuing = asyncio.create_task(JobQueue(others).enqueue("one"))
        await asyncio.to_thread(mortal.start)
        async with asyncio.timeout(LIMIT):
            assert await (await enqueuing) == "SUCCESS"


async def test_the_server_does_not_close_the_idle_connection_that_listens() -> None:
    server = postgres.server()
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'idle'"
    async with Flows(f"{server.cleared()}%20-cidle_session_timeout%3D500&application_name=idle") as flows:
        ((listening,),) = server.execute(f"{sessions} AND query LIKE '%advisory_lock%'")
        # The connection for queries is used last, and closed when it has been idle for long enough.
        assert await flows.store.flows() == []
        await until(lambda: len(server.execute(sessions)) == 1)
        assert server.execute(sessions) == [(listening,)]


async def test_a_process_that_was_cut_off_is_present_and_notifies_again() -> None:
    server = postgres.server()
    url = f"{server.cleared()}&application_name=cut"
    async with Flows(url) as flows, Flows(url) as others:
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut'")
        received = asyncio.Event()
        others.presence.listen("news", received.set)
        async with asyncio.timeout(LIMIT):
            while not received.is_set():
                flows.presence.notify("news")
                await asyncio.sleep(0.05)
            while not await flows.presence.lives(others.presence.token):
                await asyncio.sleep(0.05)


# -- other processes ---------------------------------------------------------------------------------------------------


async def test_a_worker_elsewhere_is_notified_of_a_job_and_a_waiter_of_its_end() -> None:
    """With a lease of one hour, polling alone would take twenty minutes."""
    url, one = postgres.server().cleared(), linear("one", task(lambda: 1, name="a"))
    async with Flows(url) as flows, Flows(url) as others, working(JobQueue(flows), one, lease=HOUR):
        await until(lambda: flows.presence.losses == 0)
        async with asyncio.timeout(LIMIT):
            assert await (await JobQueue(others).enqueue("one")) == "SUCCESS"


async def test_a_flow_of_another_process_can_be_suspended_and_is_taken_over_when_that_is_gone() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await never.wait()

    flow, url = linear("f", task(work, name="a")), postgres.server().cleared()
    async with Flows(url) as flows:
        async with Flows(url, stop_timeout=0.0) as others:
            run = others.start(flow, id="one")
            await begun.wait()
            assert await flows.recover(flow) == []
            flows.requests.ask("suspend", "one")
            await until(lambda: run.state == "SUSPENDING")
        never.set()
        assert await flows.start(flow, id="one") == {"a": None}


async def test_a_flow_whose_owner_was_cut_off_for_a_moment_is_left_to_it() -> None:
    server, begun, go_on, calls = postgres.server(), asyncio.Event(), asyncio.Event(), 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        begun.set()
        await go_on.wait()

    flow, url = linear("f", task(work, name="a")), server.cleared()
    async with Flows(f"{url}&application_name=cut") as flows, Flows(url) as others:
        run = flows.start(flow, id="one")
        await begun.wait()
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut'")
        assert await others.recover(flow) == []
        go_on.set()
        assert await run == {"a": None}
    assert calls == 1


async def test_a_flow_whose_owner_is_missed_for_long_is_recovered(clock: Clock) -> None:
    flow = linear("f", task(lambda: 1, name="a"))
    async with Flows(postgres.server().cleared()) as flows:
        for number in range(3):
            await flows.store.create(FLOW._replace(id=str(number), owner=f"elsewhere-1-{number:012x}"))
        began = clock.time()
        runs = await flows.recover(flow)
        assert 5 <= clock.time() - began < 10
        assert [await run for run in runs] == [{"a": 1}] * 3


async def test_all_processes_use_the_clock_of_the_store() -> None:
    class Ahead(MemoryStore):
        def time(self) -> float:
            return 5e9

    async with Flows(store=Ahead()) as flows:
        assert (await JobQueue(flows).enqueue("f")).row.enqueued == 5e9
    async with PostgresStore(postgres.server().cleared()) as store:
        ((there,),) = postgres.server().execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert abs(store.time() - there) < LIMIT


async def test_a_clock_that_is_set_here_moves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async with PostgresStore(postgres.server().cleared()) as store:
        before = store.time()
        monkeypatch.setattr(time, "time", lambda: 5e9)
        assert abs(store.time() - before) < LIMIT


class Wound:
    """A schema on a server whose clock the test can set."""

    def __init__(self) -> None:
        self._server = postgres.server()
        url = self._server.url()
        self._schema = url.rpartition("%3D")[2]
        # The server searches this schema for functions before it searches the catalogue.
        self.url = f"{url},pg_catalog"
        self._server.execute(f"CREATE TABLE {self._schema}.steps (seconds float8)")
        self._server.execute(
            f"CREATE FUNCTION {self._schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$"
            " SELECT pg_catalog.clock_timestamp() + make_interval(secs => coalesce(sum(seconds), 0))"
            f" FROM {self._schema}.steps $$"
        )

    def step(self, seconds: float) -> None:
        self._server.execute(f"INSERT INTO {self._schema}.steps VALUES ({seconds})")


@pytest.mark.parametrize("seconds", [40.0, HOUR, -HOUR])
async def test_a_step_of_the_servers_clock_takes_no_job_from_its_owner(seconds: float) -> None:
    wound = Wound()
    async with Flows(wound.url) as flows:
        queue = JobQueue(flows, max_attempts=1)
        job = await queue.claim(await queue.enqueue("one", id="a"), lease=30.0)
        before = flows.store.time() - time.monotonic()
        for _ in range(2):
            wound.step(seconds)
            # The new process has no record of earlier ticks, and the first process has not checked the clock since.
            async with Flows(wound.url) as later:
                assert (await JobQueue(later).get("a")).state == "CLAIMED"
                assert abs(later.store.time() - flows.store.time()) < LIMIT
        assert abs(flows.store.time() - time.monotonic() - before) < LIMIT
        await queue.extend(job, 30.0)
        await queue.complete(job)


async def test_a_delayed_job_is_due_although_the_servers_clock_goes_back() -> None:
    wound, one = Wound(), linear("one", task(lambda: 1, name="a"))
    async with Flows(wound.url) as flows:
        job = await JobQueue(flows).enqueue("one", after=0.2)
        wound.step(-HOUR)
        async with Flows(wound.url) as others, working(JobQueue(others), one), asyncio.timeout(LIMIT):
            assert await job == "SUCCESS"


async def test_the_time_does_not_go_back_while_no_process_has_the_tables_open() -> None:
    wound = Wound()
    async with PostgresStore(wound.url) as store:
        before = store.time()
    wound.step(-HOUR)
    async with PostgresStore(wound.url) as store:
        assert abs(store.time() - before) < LIMIT
    wound.step(3 * HOUR)
    async with PostgresStore(wound.url) as store:
        assert abs(store.time() - before - 2 * HOUR) < LIMIT


async def test_many_messages_share_few_notifications_and_none_is_lost() -> None:
    url = postgres.server().cleared()
    async with Flows(url) as flows, Flows(url) as others:
        received: set[int] = set()
        for number in range(500):
            others.presence.listen(f"{'long ' * 20}{number}", partial(received.add, number))
            flows.presence.notify(f"{'long ' * 20}{number}")
        await until(lambda: len(received) == 500)


# -- concurrent writes -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def committing(url: str) -> AsyncIterator[None]:
    """Record a success as the flow's owner, and commit it when another statement waits for the lock."""
    with psycopg.connect(url) as db:
        db.execute("UPDATE lifecycle_flows SET state = 'SUCCESS' WHERE id = 'one'")
        db.execute("UPDATE lifecycle_flow_steps SET state = 'SUCCESS', result = '5' WHERE flow = 'one'")
        yield
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await until(lambda: postgres.server().execute(waiting))


async def test_a_flow_is_taken_with_the_success_that_is_being_committed() -> None:
    url = postgres.server().cleared()
    async with PostgresStore(url) as store:
        await store.create(FLOW)
        await store.commit(batch(1, "RUNNING"))
        async with committing(url):
            taking = asyncio.create_task(store.take("one", "you", seen=1, ended=True))
        assert (await taking).steps["a"].state == "SUCCESS"


async def test_a_flow_whose_end_is_being_committed_is_not_taken() -> None:
    url = postgres.server().cleared()
    async with PostgresStore(url) as store:
        await store.create(FLOW)
        await store.commit(batch(1, "RUNNING"))
        async with committing(url):
            taking = asyncio.create_task(store.take("one", "you", seen=1))
        with pytest.raises(ClaimLost, match="'one' has ended as SUCCESS"):
            await taking


async def test_the_flow_of_a_job_is_adopted_with_the_success_that_is_being_committed() -> None:
    url = postgres.server().cleared()
    async with PostgresStore(url) as store:
        jobs = store.jobs(store.presence())
        await store.create(FLOW)
        await store.commit(batch(1, "RUNNING"))
        await jobs.add(JOB)
        (job,) = await jobs.take(None, CLAIM, 1)
        async with committing(url):
            adopting = asyncio.create_task(jobs.adopt(job, now=11.0))
        assert (await adopting).steps["a"].state == "SUCCESS"


async def test_a_claim_that_expires_waits_for_the_commit_that_is_under_way() -> None:
    url = postgres.server().cleared()
    async with PostgresStore(url) as store:
        jobs = store.jobs(store.presence())
        await store.create(FLOW)
        await store.commit(batch(1, "RUNNING"))
        await jobs.add(JOB._replace(max_attempts=1, error=f"you {UNRELEASED}"))
        assert await jobs.take(None, CLAIM, 1)
        async with committing(url):
            asking = asyncio.create_task(jobs.get("one", now=100.0))
        found = await asking
        assert found is not None
        assert found.outcome == "SUCCESS"


async def test_statements_that_wait_go_to_the_server_in_few_transactions() -> None:
    server = postgres.server()
    async with Flows(url := server.cleared()) as flows:
        queue = JobQueue(flows)
        enqueuing = [queue.enqueue("grow", id=f"j{number}") for number in range(200)]
        # Only the call with the invalid id fails.
        enqueued = await asyncio.gather(queue.enqueue("grow", id="bad\0"), *enqueuing, return_exceptions=True)
    assert [isinstance(each, FlowError) for each in enqueued] == [True] + [False] * 200
    with psycopg.connect(url) as db:
        ((jobs, transactions),) = db.execute("SELECT count(*), count(DISTINCT xmin::text) FROM lifecycle_jobs")
    assert jobs == 200
    assert transactions < 150


async def test_the_jobs_of_each_flow_have_an_order_of_their_own_in_the_index() -> None:
    async with Flows(url := postgres.server().cleared()) as flows:
        queue = JobQueue(flows)
        for flow in ("a", "b", "a", "c"):
            await queue.enqueue(flow)
        claimed = [await queue.claim(flows=["c", "b"]) for _ in range(3)]
        assert [job and job.flow for job in claimed] == ["b", "c", None]
    with psycopg.connect(url) as db:
        ((index,),) = db.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexname = 'lifecycle_jobs_ready' AND schemaname = current_schema()"
        )
    assert "(queue, flow, rank, number)" in index
