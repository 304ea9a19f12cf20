"""The guarantees of every store for workflows that wait: due times, signals, children, and their jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import Batch, Claim, FlowError, FlowRow, FlowState, JobRow, Priority, SignalRow, StepRow, Store
from lifecycle.flows.records import CANCEL, PRIORITIES
from lifecycle.flows.stores.base import UNRELEASED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NORMAL = PRIORITIES.index(Priority.NORMAL)


@pytest.fixture
async def store(make_store: Callable[[], Store]) -> AsyncIterator[Store]:
    async with make_store() as store:
        yield store


async def write(store: Store, id_: str, state: str = "RUNNING", **more: Any) -> FlowRow:
    """Write a batch with this state to the flow, which is created if necessary."""
    await store.create(FlowRow(id_, "w", "RUNNING", epoch=1, kind="workflow"))
    row = await store.get(id_)
    assert row is not None
    await store.commit(Batch(id_, row.epoch, state, row.seq, 7.0, [], [], kind="workflow", **more))
    row = await store.get(id_)
    assert row is not None
    return row


async def due(store: Store, now: float = 50.0) -> list[str]:
    return [row.id for row in await store.due(["w"], now=now, limit=10)]


async def claimed(store: Store, id_: str) -> JobRow:
    """Return a claimed job whose flow is WAITING until 500."""
    jobs = store.jobs(store.presence())
    await jobs.add(JobRow(id_, "w", NORMAL, "{}", 0.0, 3))
    ((job, _),) = await jobs.begin(["w"], Claim("me", store.presence().token, 10.0, 100.0), 1)
    await write(store, id_, "WAITING", due=500.0)
    return job


async def test_the_fields_of_a_workflow_are_stored(store: Store) -> None:
    row = FlowRow("one", "w", due=3.0, parent="p", result="5", created=9.0, kind="workflow")
    await store.create(row)
    assert await store.get("one") == row
    assert (await store.load("one")).flow == row
    assert await store.get("other") is None


async def test_a_batch_stores_the_result_and_clears_the_due_time(store: Store) -> None:
    row = await write(store, "one", "WAITING", due=30.0)
    assert (row.state, row.due, row.at) == ("WAITING", 30.0, 7.0)
    row = await write(store, "one", "SUCCESS", result='"r"')
    assert (row.state, row.due, row.result, row.kind) == ("SUCCESS", 0.0, '"r"', "workflow")


async def test_waiting_flows_become_due_in_order_of_time(store: Store) -> None:
    for id_, time in (("c", 30.0), ("a", 10.0), ("b", 20.0), ("never", 0.0), ("later", 60.0)):
        await write(store, id_, "WAITING", due=time)
    await write(store, "running")
    assert await due(store) == ["a", "b", "c"]
    assert [row.id for row in await store.due(["w"], now=50.0, limit=2)] == ["a", "b"]
    assert await store.due(["other"], now=50.0, limit=9) == []


async def test_a_waiting_flow_that_is_taken_is_no_longer_due(store: Store) -> None:
    await write(store, "one", "WAITING", due=10.0)
    flow = (await store.take("one", "me", seen=1)).flow
    assert (flow.state, flow.due, flow.epoch) == ("RUNNING", 0.0, 2)
    assert await due(store) == []


async def test_a_signal_is_stored_and_makes_a_waiting_flow_due(store: Store) -> None:
    await write(store, "one", "WAITING", due=500.0)
    assert await store.signal(SignalRow("one", "approval", '"a"', at=3.0)) is FlowState.WAITING
    (row,) = await store.signals("one")
    assert (row.name, row.data, row.at, row.taken) == ("approval", '"a"', 3.0, False)
    assert row.key
    assert await due(store) == ["one"]


async def test_a_signal_to_a_running_flow_only_is_stored(store: Store) -> None:
    await write(store, "one")
    assert await store.signal(SignalRow("one", "approval", "1")) is FlowState.RUNNING
    row = await store.get("one")
    assert row is not None
    assert (row.state, row.due) == ("RUNNING", 0.0)


async def test_a_flow_that_starts_to_wait_for_an_earlier_signal_is_due_at_once(store: Store) -> None:
    for id_, name in (("one", "approval"), ("two", "other"), ("three", CANCEL)):
        await write(store, id_)
        await store.signal(SignalRow(id_, name, "1"))
        await write(store, id_, "WAITING", due=500.0, awaited=["approval"])
    assert sorted(await due(store)) == ["one", "three"]


async def test_a_signal_that_was_received_does_not_wake_the_flow_again(store: Store) -> None:
    await write(store, "one")
    for data in "12":
        await store.signal(SignalRow("one", "approval", data))
    first, second = await store.signals("one")
    await write(store, "one", "WAITING", taken=[first.number, second.number], awaited=["approval"])
    assert await due(store) == []
    assert [row.taken for row in await store.signals("one")] == [True, True]
    assert [row.data for row in await store.signals("one", after=first.number)] == ["2"]


async def test_a_flow_is_taken_with_the_signals_that_were_not_received(store: Store) -> None:
    await write(store, "one")
    for data in "123":
        await store.signal(SignalRow("one", "approval", data))
    first, *left = await store.signals("one")
    await write(store, "one", taken=[first.number])
    assert (await store.take("one", "me", seen=1)).signals == left
    assert (await store.load("one")).signals is None


async def test_signals_with_the_same_key_are_stored_once_per_flow(store: Store) -> None:
    for id_ in ("one", "two"):
        await write(store, id_)
        for data in "12":
            await store.signal(SignalRow(id_, "approval", data, key="k"))
        assert [row.data for row in await store.signals(id_)] == ["1"]


async def test_signals_to_unknown_and_ended_flows_are_not_stored(store: Store) -> None:
    with pytest.raises(FlowError, match="no flow in this store has the id 'one'"):
        await store.signal(SignalRow("one", "approval", "1"))
    for state in ("SUCCESS", "FAILURE", "REVERTED", "CANCELLED"):
        await write(store, "one", state)
        assert await store.signal(SignalRow("one", "approval", "1")) == state
    assert await store.signals("one") == []


async def test_a_child_is_created_with_the_batch_unless_its_id_exists(store: Store) -> None:
    await store.create(FlowRow("old", "f"))
    children = [FlowRow(id_, "w", store="{}", parent="one", created=2.0) for id_ in ("new", "old")]
    await write(store, "one", children=children)
    assert await store.get("new") == children[0]
    assert await store.get("old") == FlowRow("old", "f")


async def test_the_end_of_a_child_makes_its_waiting_parent_due(store: Store) -> None:
    await write(store, "parent", "WAITING", children=[FlowRow("child", "w", "RUNNING", epoch=1, parent="parent")])
    await write(store, "child", parent="parent")
    assert await due(store) == []
    await write(store, "child", "FAILURE", parent="parent")
    assert await due(store) == ["parent"]


async def test_a_parent_that_starts_to_wait_for_an_ended_child_is_due_at_once(store: Store) -> None:
    await write(store, "parent")
    await write(store, "child", "CANCELLED", parent="parent")
    await write(store, "parent", "WAITING", awaited_children=["child"])
    assert await due(store) == ["parent"]


async def test_the_end_of_a_child_leaves_a_running_parent_unchanged(store: Store) -> None:
    before = await write(store, "parent")
    await write(store, "child", "SUCCESS", parent="parent")
    assert await store.get("parent") == before


# -- jobs --------------------------------------------------------------------------------------------------------------


async def test_a_parked_job_is_due_when_its_flow_is(store: Store) -> None:
    jobs = store.jobs(store.presence())
    job = await claimed(store, "one")
    assert await jobs.park(job, now=20.0)
    row = await jobs.get("one", now=20.0)
    assert row is not None
    assert (row.state, row.due, row.attempts, row.owner) == ("UNCLAIMED", 500.0, 0, "")
    assert await jobs.next(now=20.0) == 500.0
    ((again, snapshot),) = await jobs.begin(["w"], Claim("me", "", 600.0, 700.0), 1)
    assert (again.id, again.epoch) == ("one", 2)
    assert snapshot is not None
    assert (snapshot.flow.state, snapshot.flow.due, snapshot.flow.epoch) == ("RUNNING", 0.0, 2)


async def test_timers_leave_out_flows_of_unfinished_jobs(store: Store) -> None:
    job = await claimed(store, "one")
    assert await due(store, 600.0) == []
    await store.jobs(store.presence()).park(job, now=20.0)
    assert await due(store, 600.0) == []


async def test_a_lost_claim_cannot_be_parked(store: Store) -> None:
    job = await claimed(store, "one")
    jobs = store.jobs(store.presence())
    assert not await jobs.park(job, now=100.0)
    assert not await jobs.park(job._replace(epoch=7), now=20.0)


async def test_a_signal_makes_the_job_of_a_waiting_flow_due(store: Store) -> None:
    jobs = store.jobs(store.presence())
    job = await claimed(store, "one")
    await write(store, "one", "WAITING")
    await jobs.park(job, now=20.0)
    assert await jobs.next(now=20.0) is None
    parked = await jobs.get("one", now=20.0)
    assert parked is not None
    assert parked.due == math.inf
    await store.signal(SignalRow("one", "approval", "1"))
    assert [row.id for row in await jobs.take(["w"], Claim("me", "", 20.0, 100.0), 5)] == ["one"]


async def test_a_signal_between_the_wait_and_its_parking_is_not_lost(store: Store) -> None:
    jobs = store.jobs(store.presence())
    job = await claimed(store, "one")
    await store.signal(SignalRow("one", "approval", "1"))
    await jobs.park(job, now=20.0)
    assert [row.id for row in await jobs.take(["w"], Claim("me", "", 20.0, 100.0), 5)] == ["one"]


async def test_the_end_of_a_child_makes_the_job_of_its_parent_due(store: Store) -> None:
    jobs = store.jobs(store.presence())
    await jobs.park(await claimed(store, "one"), now=20.0)
    await write(store, "child", "SUCCESS", parent="one")
    assert [row.id for row in await jobs.take(["w"], Claim("me", "", 20.0, 100.0), 5)] == ["one"]


async def test_a_signal_to_a_job_that_has_not_started_is_stored(store: Store) -> None:
    jobs = store.jobs(store.presence())
    await jobs.add(JobRow("one", "w", NORMAL, "{}", 0.0, 3, due=500.0))
    assert await store.signal(SignalRow("one", "approval", "1")) is FlowState.PENDING
    assert len(await store.signals("one")) == 1
    assert await jobs.take(["w"], Claim("me", "", 20.0, 100.0), 5) == []


async def test_a_cancelled_flow_counts_as_ended_when_its_claim_expires(store: Store) -> None:
    jobs = store.jobs(store.presence())
    await jobs.add(JobRow("one", "w", NORMAL, "{}", 0.0, 1, error=f"you {UNRELEASED}"))
    await jobs.begin(["w"], Claim("me", store.presence().token, 10.0, 100.0), 1)
    await write(store, "one", "CANCELLED")
    job = await jobs.get("one", now=200.0)
    assert job is not None
    assert (job.state, job.outcome) == ("COMPLETE", "CANCELLED")


# -- look-up and purge -------------------------------------------------------------------------------------------------


async def test_flows_are_listed_newest_first(store: Store) -> None:
    for id_, name, created in (("a", "f", 5.0), ("b", "g", 9.0), ("c", "f", 9.0), ("d", "f", 1.0)):
        await store.create(FlowRow(id_, name, created=created))
    assert [row.id for row in await store.flows(newest=9)] == ["c", "b", "a", "d"]
    assert [row.id for row in await store.flows(newest=2)] == ["c", "b"]
    assert [row.id for row in await store.flows(name="f", since=5.0, newest=9)] == ["c", "a"]
    assert [row.id for row in await store.flows(since=5.0)] == ["a", "b", "c"]


async def test_purge_deletes_ended_flows_with_all_their_rows(store: Store) -> None:
    for id_, state in (("old", "SUCCESS"), ("open", "WAITING"), ("other", "CANCELLED")):
        await write(store, id_)
        await store.signal(SignalRow(id_, "approval", "1"))
        step = StepRow("1 a", "step", "SUCCESS", result="1")
        await store.commit(Batch(id_, 1, state, 0, 7.0, [step], [], kind="workflow"))
    assert await store.purge(7.0) == 0
    assert await store.purge(8.0, name="f") == 0
    assert await store.purge(8.0, name="w") == 2
    assert [row.id for row in await store.flows()] == ["open"]
    assert await store.signals("old") == []
    await store.create(FlowRow("old", "w"))
    assert (await store.load("old")).steps == {}
    assert len((await store.load("open")).steps) == 1


async def test_purge_deletes_any_number_of_flows(store: Store) -> None:
    rows = [FlowRow(str(number), "w", "SUCCESS", at=1.0) for number in range(1200)]
    await store.create(FlowRow("p", "w", "RUNNING", epoch=1))
    await store.commit(Batch("p", 1, "RUNNING", 0, 1.0, [], [], children=rows))
    assert await store.purge(8.0) == 1200
    assert [row.id for row in await store.flows()] == ["p"]


async def test_purge_keeps_flows_of_unfinished_jobs_and_children_of_running_workflows(store: Store) -> None:
    await claimed(store, "job")
    await write(store, "job", "SUCCESS")
    await write(store, "parent", children=[FlowRow("child", "w", "SUCCESS", epoch=1, parent="parent")])
    assert await store.purge(8.0) == 0
    await write(store, "parent", "SUCCESS")
    assert await store.purge(8.0) == 2
    assert [row.id for row in await store.flows()] == ["job"]
