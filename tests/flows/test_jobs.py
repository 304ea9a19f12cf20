"""A job queue's guarantees, with each store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows import (
    Batch,
    Claim,
    FlowRow,
    Flows,
    JobQueue,
    JobRow,
    JobState,
    Presence,
    Priority,
    SQLiteStore,
    StepRow,
    linear,
    task,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.flows import Job
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def queue(flows: Flows) -> JobQueue:
    return JobQueue(flows, max_attempts=3, backoff=Backoff(initial=10.0, multiplier=2.0, jitter=0.0))


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


# -- enqueuing ---------------------------------------------------------------------------------------------------------


async def test_an_enqueued_job_is_unclaimed(queue: JobQueue) -> None:
    job = await queue.enqueue("vm", id="vm-43", priority="high", size=5)
    assert (job.id, job.flow, job.state, job.priority) == ("vm-43", "vm", "UNCLAIMED", Priority.HIGH)
    assert (job.owner, job.attempts, job.outcome, job.error) == (None, 0, "", "")
    assert job.store == {"size": 5}
    assert ids(await queue.jobs()) == ["vm-43"]


async def test_jobs_that_are_not_complete_are_counted(queue: JobQueue) -> None:
    for number in range(4):
        await queue.enqueue("vm", id=str(number), after=60.0 if number == 3 else 0.0)
    done, claimed = await queue.claim(), await queue.claim()
    assert done is not None
    assert claimed is not None
    await queue.complete(done)
    assert await queue.store.counts() == {"UNCLAIMED": 2, "CLAIMED": 1}


async def test_jobs_without_an_id_are_different_jobs(queue: JobQueue) -> None:
    first, second = await queue.enqueue("vm"), await queue.enqueue("vm")
    assert first.id != second.id


async def test_the_same_id_is_the_same_job_with_its_first_values(queue: JobQueue) -> None:
    await queue.enqueue("vm", id="a", size=5)
    await queue.claim()
    again = await queue.enqueue("vm", id="a", size=6, priority="low")
    assert (again.state, again.store, again.priority) == ("CLAIMED", {"size": 5}, "normal")
    assert len(await queue.jobs()) == 1


async def test_the_id_of_a_job_of_another_flow_is_refused(queue: JobQueue) -> None:
    await queue.enqueue("vm", id="a")
    with pytest.raises(FlowError, match="'a' belongs to a job for flow 'vm', not 'disk'"):
        await queue.enqueue("disk", id="a")


async def test_an_unknown_priority_is_refused_with_the_known_ones(queue: JobQueue) -> None:
    with pytest.raises(
        ValueError, match="priority must be one of very_high, high, normal, low, very_low, got 'urgent'"
    ):
        await queue.enqueue("vm", priority="urgent")


async def test_a_value_that_cannot_be_kept_is_refused_and_nothing_is_enqueued(queue: JobQueue) -> None:
    with pytest.raises(FlowError, match="cannot be stored as JSON"):
        await queue.enqueue("vm", size={1, 2})
    assert await queue.jobs() == []


async def test_a_flow_that_is_not_a_name_is_refused(queue: JobQueue) -> None:
    with pytest.raises(TypeError, match="must be the name of a flow"):
        await queue.enqueue(queue)  # type: ignore[arg-type]  # that is the point


async def test_a_queue_of_flows_that_are_not_entered_raises(reopened: Callable[[], Flows]) -> None:
    queue = JobQueue(reopened())
    with pytest.raises(FlowError, match="not open"):
        await queue.enqueue("vm")


# -- the order ---------------------------------------------------------------------------------------------------------


async def test_the_highest_priority_is_first_then_the_oldest(queue: JobQueue) -> None:
    for name, priority in zip("abcdef", ["low", "normal", "very_high", "normal", "very_low", "high"], strict=True):
        await queue.enqueue("vm", id=name, priority=priority)
    assert ids(await queue.jobs()) == list("cfbdae")
    assert [(await queue.claim() or queue).id for _ in "abcdef"] == list("cfbdae")  # type: ignore[union-attr]  # never None
    assert await queue.claim() is None


async def test_only_jobs_of_the_given_flows_are_claimed(queue: JobQueue) -> None:
    await queue.enqueue("disk", id="a", priority="very_high")
    await queue.enqueue("vm", id="b")
    await queue.enqueue("net", id="c", priority="high")
    job = await queue.claim(flows=["vm", "net"])
    assert job is not None
    assert job.id == "c"
    assert await queue.claim(flows=[]) is None


async def test_jobs_of_very_many_flows_are_claimed_in_order(queue: JobQueue) -> None:
    await queue.enqueue("other", priority="very_high")
    for name, priority in (("vm-600", "normal"), ("vm-3", "low"), ("vm-599", "high")):
        await queue.enqueue(name, id=name, priority=priority)
    flows = [f"vm-{number}" for number in range(1000)]
    assert [(await queue.claim(flows=flows) or queue).id for _ in range(3)] == ["vm-599", "vm-600", "vm-3"]  # type: ignore[union-attr]  # never None
    assert await queue.claim(flows=flows) is None


async def test_a_job_is_not_claimed_before_it_is_due_and_then_has_its_place(queue: JobQueue, clock: Clock) -> None:
    await queue.enqueue("vm", id="late", priority="high", after=60)
    await queue.enqueue("vm", id="now")
    assert ids(await queue.jobs("UNCLAIMED")) == ["late", "now"]
    first = await queue.claim(lease=1000.0)
    assert first is not None
    assert first.id == "now"
    await clock.advance(59)
    assert await queue.claim() is None
    await clock.advance(1)
    second = await queue.claim()
    assert second is not None
    assert second.id == "late"


async def test_a_named_job_is_claimed_before_it_is_due(queue: JobQueue) -> None:
    job = await queue.claim(await queue.enqueue("vm", after=60), "me")
    assert job.owner == "me"


# -- claims ------------------------------------------------------------------------------------------------------------


async def test_a_claim_makes_the_caller_the_owner(queue: JobQueue, flows: Flows) -> None:
    job = await queue.enqueue("vm")
    assert await queue.claim(job) is job
    assert (job.state, job.owner, job.attempts) == ("CLAIMED", flows.presence.name, 1)
    assert ids(await queue.jobs(JobState.UNCLAIMED)) == []
    assert ids(await queue.jobs()) == [job.id]


@pytest.mark.parametrize("who", ["me", "you"])
async def test_a_claimed_job_cannot_be_claimed(queue: JobQueue, who: str) -> None:
    job = await queue.claim(await queue.enqueue("vm", id="a"), "me")
    with pytest.raises(InvalidState, match="'a' is already CLAIMED by me"):
        await queue.claim(job, who)


async def test_an_empty_owner_is_refused(queue: JobQueue) -> None:
    job = await queue.enqueue("vm")
    with pytest.raises(ValueError, match="an owner's name must not be empty"):
        await queue.claim(job, "")


async def test_a_job_that_is_not_there_is_an_error_that_names_it(queue: JobQueue, clock: Clock) -> None:
    with pytest.raises(FlowError, match="no job 'nope'"):
        await queue.get("nope")
    job = await queue.claim(await queue.enqueue("vm", id="a"))
    await queue.complete(job)
    await clock.advance(1)
    await queue.purge(0)
    with pytest.raises(FlowError, match="no job 'a'"):
        await job


@pytest.mark.parametrize("verb", ["complete", "release", "discard"])
async def test_only_the_owner_can_end_a_claim(queue: JobQueue, verb: str) -> None:
    job = await queue.enqueue("vm", id="a")
    with pytest.raises(InvalidState, match=r"UNCLAIMED"):
        await getattr(queue, verb)(job, "me")
    await queue.claim(job, "me")
    with pytest.raises(ClaimLost, match="claimed by me, not by you"):
        await getattr(queue, verb)(job, "you")
    assert (await queue.get("a")).owner == "me"
    await getattr(queue, verb)(job, "me")
    with pytest.raises(InvalidState):
        await getattr(queue, verb)(job, "me")


async def test_an_owner_can_complete_a_job_seen_before_its_claim(queue: JobQueue) -> None:
    enqueued = await queue.enqueue("vm")
    await queue.claim()
    await queue.complete(enqueued)
    assert enqueued.outcome == "SUCCESS"


async def test_the_outcome_and_error_of_a_job_are_kept(queue: JobQueue) -> None:
    done, dead = await queue.enqueue("vm", id="done"), await queue.enqueue("vm", id="dead")
    await queue.complete(await queue.claim(done), outcome="REVERTED", error="no room")
    await queue.discard(await queue.claim(dead), error="no such image")
    assert await queue.jobs() == []
    kept = {job.id: (job.state, job.outcome, job.error) for job in await queue.jobs("COMPLETE")}
    assert kept == {"done": ("COMPLETE", "REVERTED", "no room"), "dead": ("COMPLETE", "discarded", "no such image")}
    with pytest.raises(InvalidState, match="'done' cannot go from COMPLETE to CLAIMED"):
        await queue.claim(done)


async def test_changes_of_state_follow_the_table_and_are_announced(queue: JobQueue) -> None:
    seen: list[tuple[str, str]] = []

    def see(_: object, *, machine: Any, transition: Any) -> None:
        seen.append((machine.name, f"{transition.old}>{transition.new}"))

    with hooks.state_changed.connected_to(see):
        await queue.enqueue("vm", id="a")
        job = await queue.claim()
        assert job is not None
        await queue.release(job)
        await queue.claim(job)
        await queue.complete(job)
    assert seen == [
        ("a", "UNCLAIMED>CLAIMED"),
        ("a", "CLAIMED>UNCLAIMED"),
        ("a", "UNCLAIMED>CLAIMED"),
        ("a", "CLAIMED>COMPLETE"),
    ]


# -- attempts ----------------------------------------------------------------------------------------------------------


async def test_a_job_that_fails_comes_back_later_each_time_until_it_is_discarded(
    queue: JobQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    job = await queue.enqueue("vm")
    for attempt, wait in enumerate([10, 20], 1):
        claimed = await queue.claim()
        assert claimed is not None
        assert claimed.attempts == attempt
        await queue.release(claimed, error=f"attempt {attempt}")
        assert (claimed.state, claimed.error) == ("UNCLAIMED", f"attempt {attempt}")
        await clock.advance(wait - 0.5)
        assert await queue.claim() is None
        await clock.advance(0.5)
    last = await queue.claim()
    assert last is not None
    await queue.release(last, error="still no room")
    assert await job == "discarded"
    assert (job.state, job.error, job.attempts) == ("COMPLETE", "still no room", 3)
    [message] = [record.getMessage() for record in caplog.records if record.name == "lifecycle.flows"]
    assert message == f"discarded job {job.id!r} of flow 'vm' after 3 attempts: still no room"


async def test_release_takes_the_delay_after_which_the_job_is_due(queue: JobQueue, clock: Clock) -> None:
    job = await queue.claim(await queue.enqueue("vm"))
    await queue.release(job, after=0.0)
    assert await queue.claim() is not None
    job = (await queue.jobs())[0]
    await queue.release(job, after=100.0)
    await clock.advance(99)
    assert await queue.claim() is None


async def test_a_release_without_error_or_delay_undoes_the_claim(queue: JobQueue) -> None:
    job = await queue.enqueue("vm", id="a")
    for _ in range(5):
        await queue.release(await queue.claim(job))
    assert (job.state, job.attempts) == ("UNCLAIMED", 0)


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_claim_ends_with_its_lease_and_its_owner_is_refused(queue: JobQueue, clock: Clock) -> None:
    mine = await queue.claim(await queue.enqueue("vm", id="a"), "me", lease=5.0)
    await clock.advance(5)
    assert (await queue.get("a")).state is JobState.UNCLAIMED
    with pytest.raises(ClaimLost, match="me has lost job 'a'"):
        await queue.complete(mine, "me")
    theirs = await queue.claim(await queue.get("a"), "you")
    assert theirs.attempts == 1
    for verb in (queue.complete, queue.discard, queue.release):
        with pytest.raises(ClaimLost):
            await verb(mine, "me")
    with pytest.raises(ClaimLost):
        await queue.extend(mine, 5.0)
    await queue.complete(theirs, "you")


async def test_a_second_claim_of_the_same_owner_ends_its_first(queue: JobQueue, clock: Clock) -> None:
    job = await queue.enqueue("vm", id="a")
    first = await queue.claim(job, lease=5.0)
    await clock.advance(6)
    second = await queue.claim()
    assert second is not None
    with pytest.raises(ClaimLost, match=r"epoch 1"):
        await queue.complete(first)
    await queue.complete(second)


async def test_a_lease_can_be_extended_as_long_as_it_lasts(queue: JobQueue, clock: Clock) -> None:
    job = await queue.claim(await queue.enqueue("vm", id="a"), "me", lease=5.0)
    for _ in range(3):
        await clock.advance(4)
        await queue.extend(job, 5.0)
    assert (await queue.get("a")).owner == "me"
    await clock.advance(5)
    with pytest.raises(ClaimLost):
        await queue.extend(job, 5.0)


async def test_a_job_whose_owners_die_repeatedly_is_discarded(queue: JobQueue, clock: Clock) -> None:
    job = await queue.enqueue("vm", id="a")
    for attempts in (1, 1, 2, 3):
        claimed = await queue.claim(lease=1.0)
        assert claimed is not None
        assert claimed.attempts == attempts
        await clock.advance(1)
    assert await queue.claim() is None
    assert await job == "discarded"
    assert "but did not complete it" in job.error


async def test_an_expired_claim_fences_the_flow_against_late_writes(queue: JobQueue, clock: Clock) -> None:
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=1.0)
    before = await queue.store.adopt(job.row, now=queue.now())
    await clock.advance(2)
    again = await queue.claim()
    assert again is not None
    after = (await queue.flows.store.load("a")).flow
    assert after.epoch == before.flow.epoch + 1
    with pytest.raises(ClaimLost):
        await queue.store.adopt(job.row, now=queue.now())
    assert (await queue.store.adopt(again.row, now=queue.now())).flow.epoch > after.epoch


# -- the flow of a job -------------------------------------------------------------------------------------------------


def finished(flow: FlowRow, state: str = "SUCCESS") -> Batch:
    """Return an owner's last write."""
    return Batch(flow.id, flow.epoch, state, flow.seq + 1, 0.0, [StepRow("a", "task", "SUCCESS")], [])


async def adopted(queue: JobQueue, job: Job, state: str = "RUNNING") -> FlowRow:
    flow = (await queue.store.adopt(job.row, now=queue.now())).flow
    if flow.state != state:
        await queue.flows.store.commit(Batch(flow.id, flow.epoch, state, flow.seq, 0.0, [], []))
    return flow


async def test_a_late_write_is_refused_after_the_claim_has_expired(queue: JobQueue, clock: Clock) -> None:
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=5.0)
    flow = await adopted(queue, job)
    await clock.advance(5)
    assert (await queue.get("a")).state is JobState.UNCLAIMED
    with pytest.raises(ClaimLost):
        await queue.flows.store.commit(finished(flow))
    assert (await queue.flows.store.load("a")).flow.state == "RUNNING"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
@pytest.mark.parametrize("way", ["expiry", "release", "discard"])
async def test_a_discarded_job_ends_its_flow(flows: Flows, clock: Clock, way: str, state: str) -> None:
    queue = JobQueue(flows, max_attempts=1)
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=5.0)
    flow = await adopted(queue, job, state)
    if way == "expiry":
        # The first claim that expires is not counted.
        await clock.advance(5)
        await queue.claim(job, lease=5.0)
        await clock.advance(5)
    else:
        await getattr(queue, way)(job, error="no room")
    assert (await queue.get("a")).outcome == "discarded"
    found = (await flows.store.load("a")).flow
    assert (found.state, found.owner) == ("FAILURE" if state == "RUNNING" else "PENDING", "")
    assert await flows.recover(linear("vm", task(lambda: 1, name="a"))) == []
    assert found.error.startswith("its job was discarded: ")
    with pytest.raises(ClaimLost):
        await flows.store.commit(finished(flow))


async def test_a_job_whose_flow_was_done_before_the_claim_expired_is_not_discarded(flows: Flows, clock: Clock) -> None:
    queue = JobQueue(flows, max_attempts=1)
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=5.0)
    await flows.store.commit(finished(await adopted(queue, job)))
    await clock.advance(5)
    await queue.claim(job, lease=5.0)
    await clock.advance(5)
    found = await queue.get("a")
    assert (found.state, found.outcome, found.error) == ("COMPLETE", "SUCCESS", "")
    assert (await flows.store.load("a")).flow.state == "SUCCESS"


@pytest.mark.parametrize("way", ["adopt", "expiry", "release", "discard"])
async def test_a_flow_of_another_name_is_not_changed(flows: Flows, clock: Clock, way: str) -> None:
    queue = JobQueue(flows, max_attempts=1)
    other = FlowRow("a", "build", "RUNNING", epoch=1, owner="me")
    await flows.store.create(other)
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=5.0)
    if way == "adopt":
        with pytest.raises(FlowError, match="job 'a' is for flow 'vm', but its id belongs to flow 'build'"):
            await adopted(queue, job)
    elif way == "expiry":
        await clock.advance(5)
    else:
        await getattr(queue, way)(job, error="no room")
    await queue.get("a")
    assert (await flows.store.load("a")).flow == other


async def test_a_lost_claim_is_reported_before_a_flow_of_another_name(queue: JobQueue, clock: Clock) -> None:
    await queue.flows.store.create(FlowRow("a", "build", "RUNNING", epoch=1, owner="me"))
    job = await queue.claim(await queue.enqueue("vm", id="a"), lease=5.0)
    await clock.advance(5)
    with pytest.raises(ClaimLost, match="lost job 'a'"):
        await adopted(queue, job)


async def test_beginning_a_job_does_not_read_other_claims(tmp_path: Path) -> None:
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    async with SQLiteStore(tmp_path / "flows.db") as store:
        jobs = store.jobs(Presence())
        for number in range(1001):
            await jobs.add(JobRow(str(number), "vm", 0, "{}", 1.0, 9))
        assert len(await jobs.begin(["vm"], Claim("me", "", 10.0, 20.0), 1000)) == 1000
        await store.journal.run(lambda db: db.set_progress_handler(count, 1))
        ((job, snapshot),) = await jobs.begin(["vm"], Claim("me", "", 11.0, 21.0), 1)
    assert (job.id, snapshot is not None) == ("1000", True)
    assert counted < 3000


async def test_processes_without_locks_take_the_flow_of_a_job_in_turn(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "flows.db") as first, SQLiteStore(tmp_path / "flows.db") as second:
        row = JobRow("a", "vm", 0, "{}", 1.0, 9)
        await first.jobs(Presence()).add(row)
        for store in (first, second, first, second):
            jobs = store.jobs(Presence())
            ((job, snapshot),) = await jobs.begin(["vm"], Claim("me", "", 10.0, 20.0), 1)
            assert snapshot is not None
            assert await jobs.compare_and_set(job, job._replace(state="UNCLAIMED", owner="", until=0.0), now=11.0)


async def test_flows_of_jobs_that_begin_together_are_in_the_order_of_the_jobs(queue: JobQueue) -> None:
    for name, priority in (("b", "normal"), ("a", "low"), ("d", "high"), ("c", "normal")):
        await queue.enqueue("vm", id=name, priority=priority)
    claimed = await queue.claim(await queue.get("c"))
    await queue.release(claimed)
    assert [job.id for job, _ in await queue.begin(["vm"], 30.0, 9)] == ["d", "b", "c", "a"]
    assert [row.id for row in await queue.flows.store.flows()] == ["d", "b", "c", "a"]


# -- purging -----------------------------------------------------------------------------------------------------------


async def test_purge_deletes_old_complete_jobs_with_their_flows(queue: JobQueue, clock: Clock) -> None:
    for name in ("old", "new", "open"):
        job = await queue.enqueue("vm", id=name)
        await queue.flows.store.create(FlowRow(name, "vm", epoch=1))
        if name != "open":
            await queue.complete(await queue.claim(job))
        await clock.advance(100)
    assert await queue.purge(250) == 1
    assert ids(await queue.jobs(*JobState)) == ["new", "open"]
    assert [row.id for row in await queue.flows.store.flows()] == ["new", "open"]
    assert await queue.purge(250) == 0


async def test_purge_deletes_only_the_jobs_of_its_queue(flows: Flows, clock: Clock) -> None:
    for name in ("", "mails"):
        queue = JobQueue(flows, name=name)
        await queue.complete(await queue.claim(await queue.enqueue("vm", id=f"job{name}")))
    await clock.advance(1)
    assert await JobQueue(flows, name="mails").purge(0) == 1
    assert ids(await JobQueue(flows).jobs("COMPLETE")) == ["job"]


async def test_purge_keeps_a_flow_of_another_name(flows: Flows, clock: Clock) -> None:
    queue = JobQueue(flows)
    await flows.store.create(FlowRow("a", "build", "RUNNING", epoch=1))
    await queue.discard(await queue.claim(await queue.enqueue("vm", id="a")))
    await clock.advance(1)
    assert await queue.purge(0) == 1
    assert (await flows.store.load("a")).flow.name == "build"


async def test_purge_of_many_jobs_lets_other_writers_in(tmp_path: Path, clock: Clock) -> None:
    async with Flows(tmp_path / "flows.db") as flows:
        queue = JobQueue(flows)
        old = [JobRow(str(n), "vm", 2, "{}", 0.0, 1, state="COMPLETE", ended=1.0) for n in range(1200)]
        await asyncio.gather(*map(queue.store.add, old))
        await clock.advance(2)
        purging = asyncio.create_task(queue.purge(0))
        await asyncio.sleep(0)
        await queue.enqueue("vm", id="new")
        assert not purging.done()
        assert await purging == 1200
        assert ids(await queue.jobs(*JobState)) == ["new"]


async def test_the_id_of_a_job_in_another_queue_is_refused(flows: Flows) -> None:
    await JobQueue(flows).enqueue("vm", id="a")
    with pytest.raises(FlowError, match="the id 'a' belongs to a job in queue '', not 'mails'; use a different id"):
        await JobQueue(flows, name="mails").enqueue("vm", id="a")


async def test_invalid_arguments_are_refused_at_once(flows: Flows) -> None:
    with pytest.raises(ValueError, match="max_attempts must be 1 or more, got 0"):
        JobQueue(flows, max_attempts=0)
    with pytest.raises(ValueError, match="'DONE'"):
        await JobQueue(flows).jobs("DONE")


async def test_jobs_come_in_pages(queue: JobQueue) -> None:
    for number in range(5):
        await queue.enqueue("f", id=f"j{number}", priority="high" if number == 3 else "normal")
    first = await queue.jobs(limit=2)
    second = await queue.jobs(limit=2, after=first[-1])
    third = await queue.jobs(limit=2, after=second[-1])
    assert [[job.id for job in page] for page in (first, second, third)] == [["j3", "j0"], ["j1", "j2"], ["j4"]]
    assert await queue.jobs(limit=2, after=third[-1]) == []
    with pytest.raises(ValueError, match="limit must be 1 or more"):
        await queue.jobs(limit=0)
