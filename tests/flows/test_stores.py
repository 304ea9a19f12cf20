"""The guarantees of every store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Batch, Change, ClaimLost, FlowError, FlowRow, SQLiteStore, StepRow, Store
from lifecycle.flows.states import ENDS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

FLOW = FlowRow("one", "f", epoch=1, store='{"x":1}')


def batch(*rows: StepRow, epoch: int = 1, seq: int = 1, state: str = "RUNNING") -> Batch:
    stored_changes = [
        Change("task", row.name, "PENDING", row.state, None, "", 1, "one", seq + place, 7.0, row.result)
        for place, row in enumerate(rows)
    ]
    return Batch("one", epoch, state, seq + len(stored_changes) - 1, 7.0, list(rows), stored_changes)


@pytest.fixture
async def store(make_store: Callable[[], Store]) -> AsyncIterator[Store]:
    async with make_store() as store:
        yield store


def test_the_repr_of_a_store_names_its_place(store: Store) -> None:
    assert re.fullmatch(
        r"<(MemoryStore: 0 flows|SQLiteStore .*flows\.db|PostgresStore postgresql://lifecycle@.*/postgres)>",
        repr(store),
    )


async def test_a_created_flow_is_stored_and_its_id_is_taken(store: Store) -> None:
    assert await store.create(FLOW)
    assert not await store.create(FLOW._replace(name="other"))
    assert (await store.load("one")).flow == FLOW
    assert (await store.load("one")).steps == {}


async def test_a_commit_is_stored_completely(store: Store) -> None:
    await store.create(FLOW)
    first = StepRow("a", "task", "RUNNING", attempt=1, round=1)
    second = StepRow("r", "retry", "SUCCESS", "RETRY", 2, 1, "1", None, None, "[]")
    await store.commit(batch(first, second))
    flow, steps, _ = await store.load("one")
    assert steps == {"a": first, "r": second}
    assert (flow.state, flow.seq, flow.at, flow.store) == ("RUNNING", 2, 7.0, FLOW.store)


async def test_a_later_commit_replaces_earlier_rows(store: Store) -> None:
    await store.create(FLOW)
    await store.commit(batch(StepRow("a", "task", "RUNNING")))
    await store.commit(
        batch(StepRow("a", "task", "SUCCESS", result="5"), seq=2)._replace(store='{"y":2}', error="full")
    )
    flow, steps, _ = await store.load("one")
    assert (steps["a"].state, steps["a"].result) == ("SUCCESS", "5")
    assert (flow.store, flow.error) == ('{"y":2}', "full")


async def test_a_lost_flow_cannot_be_written(store: Store) -> None:
    await store.create(FLOW)
    taken = await store.take("one", "me", seen=1)
    assert (taken.flow.epoch, taken.flow.owner) == (2, "me")
    with pytest.raises(ClaimLost, match=r"'one' was taken by another process after this one took it \(epoch 1\)"):
        await store.commit(batch(StepRow("a", "task", "RUNNING")))
    assert (await store.load("one")).steps == {}
    await store.commit(batch(StepRow("a", "task", "RUNNING"), epoch=2))


async def test_only_one_of_two_processes_can_take_a_flow(store: Store) -> None:
    await store.create(FLOW)
    await store.take("one", "me", seen=1)
    with pytest.raises(ClaimLost):
        await store.take("one", "you", seen=1)
    assert (await store.load("one")).flow.owner == "me"


@pytest.mark.parametrize("state", ENDS)
async def test_a_flow_that_has_ended_is_taken_only_on_request(store: Store, state: str) -> None:
    await store.create(FLOW)
    await store.commit(batch(state=state, seq=2))
    with pytest.raises(ClaimLost, match=f"'one' has ended as {state}, so it cannot be taken"):
        await store.take("one", "me", seen=1)
    assert (await store.load("one")).flow.epoch == 1
    assert (await store.take("one", "me", seen=1, ended=True)).flow.epoch == 2


async def test_a_flow_that_was_deleted_cannot_be_written(store: Store) -> None:
    await store.create(FLOW)
    await store.commit(batch(StepRow("a", "task", "RUNNING")))
    assert await store.delete("one")
    assert not await store.delete("one")
    with pytest.raises(ClaimLost):
        await store.commit(batch(StepRow("a", "task", "SUCCESS"), seq=2))
    assert await store.changes("one") == []


async def test_an_unknown_id_is_named(store: Store) -> None:
    for asked in (store.load("none"), store.take("none", "me", seen=1)):
        with pytest.raises(FlowError, match="no flow in this store has the id 'none'"):
            await asked


async def test_flows_are_found_by_name_and_state_oldest_first(store: Store) -> None:
    for id_, name, state in (("b", "f", "PENDING"), ("a", "f", "SUCCESS"), ("c", "g", "PENDING")):
        await store.create(FlowRow(id_, name, state))
    assert [flow.id for flow in await store.flows()] == ["b", "a", "c"]
    assert [flow.id for flow in await store.flows(name="f")] == ["b", "a"]
    assert [flow.id for flow in await store.flows(states=["PENDING"])] == ["b", "c"]
    assert [flow.id for flow in await store.flows(name="g", states=["SUCCESS"])] == []


async def test_changes_are_returned_in_order_after_a_number(store: Store) -> None:
    await store.create(FLOW)
    for seq in range(1, 6):
        await store.commit(batch(StepRow(f"t{seq}", "task", "SUCCESS", result=str(seq)), seq=seq))
    assert [change.name for change in await store.changes("one")] == ["t1", "t2", "t3", "t4", "t5"]
    assert [change.seq for change in await store.changes("one", after=2, limit=2)] == [3, 4]
    assert await store.changes("one", after=5) == []
    (last,) = await store.changes("one", after=4)
    assert last == Change("task", "t5", "PENDING", "SUCCESS", None, "", 1, "one", 5, 7.0, "5")


async def test_changes_that_were_rolled_back_can_be_written_again(store: Store) -> None:
    await store.create(FLOW)
    await store.commit(batch(*(StepRow(name, "task", "RUNNING") for name in "abc")))
    anew = batch(StepRow("d", "task", "RUNNING"), StepRow("e", "task", "RUNNING"), seq=2)
    await store.commit(anew._replace(taken_back=2))
    assert [(change.seq, change.name) for change in await store.changes("one")] == [(1, "a"), (2, "d"), (3, "e")]


async def test_commits_are_kept_when_the_store_is_opened_again(make_store: Callable[[], Store]) -> None:
    async with make_store() as store:
        await store.create(FLOW)
        await store.commit(batch(StepRow("a", "task", "RUNNING")))
    async with make_store() as store:
        assert (await store.load("one")).steps["a"].state == "RUNNING"


async def test_unfinished_flows_are_found_without_reading_finished_ones(tmp_path: Path) -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def fill(db: sqlite3.Connection) -> None:
        rows = [(str(number), "f", "SUCCESS" if number else "RUNNING") for number in range(2000)]
        db.executemany(
            "INSERT INTO lifecycle_flows (id, name, state, epoch, owner, store, error, at)"
            " VALUES (?, ?, ?, 1, '', '{}', '', 0)",
            rows,
        )

    async with SQLiteStore(tmp_path / "flows.db") as store:
        await store.journal.run(fill)
        for use in (store.journal.run, store.journal.read):
            await use(lambda db: db.set_progress_handler(count, 1))
        assert [row.id for row in await store.flows(name="f", states=["PENDING", "RUNNING"])] == ["0"]
    assert steps < 500
