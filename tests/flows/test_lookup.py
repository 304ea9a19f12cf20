"""Looking up, listing, awaiting and purging flows by id, in the process that runs them and in others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import (
    Batch,
    FlowCancelled,
    FlowError,
    FlowRow,
    Flows,
    FlowState,
    JobQueue,
    MemoryStore,
    StepFailed,
    linear,
    task,
    wait_for,
)
from lifecycle.flows import workflow as durable
from tests.flows.working import working

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Store

LIMIT = 30.0


def bigger(size: int) -> int:
    return size + 1


GROW = linear("grow", task(bigger))
NAMED = linear("named", task(lambda: 5, name="five", provides="five"))


def fail() -> None:
    raise ValueError("no room")


FAILS = linear("fails", task(fail, name="shrink"))

#: All methods and properties of `Flows`.
OFFERED = {
    "asks",
    "cancel",
    "get",
    "list",
    "outbox",
    "purge",
    "recover",
    "resume",
    "runs",
    "schedule",
    "signal",
    "start",
    "state",
    "suspend",
    "wait",
}


def test_flows_offer_nothing_internal() -> None:
    assert {name for name in dir(Flows) if not name.startswith("_")} == OFFERED


async def workflow(flows: Flows, id_: str, state: str, result: str | None = None, error: str = "") -> None:
    """Store an ended workflow."""
    await flows.store.create(FlowRow(id_, "w", epoch=1, kind="workflow", parent="p", created=1.0))
    await flows.store.commit(Batch(id_, 1, state, 0, 7.0, [], [], kind="workflow", result=result, error=error))


async def test_get_returns_a_record_of_the_stored_flow(flows: Flows) -> None:
    await flows.start(NAMED, id="one")
    info = await flows.get("one")
    assert (info.id, info.name, info.kind, info.state, info.error) == ("one", "named", "flow", "SUCCESS", "")
    assert 0 < info.created <= info.changed
    await workflow(flows, "two", "SUCCESS", "[1, 2]")
    info = await flows.get("two")
    assert (info.kind, info.result, info.parent, info.created, info.changed) == ("workflow", [1, 2], "p", 1.0, 7.0)


async def test_get_returns_the_error_of_a_failed_task(flows: Flows) -> None:
    with pytest.raises(ValueError, match="no room"):
        await flows.start(FAILS, id="one")
    info = await flows.get("one")
    assert (info.state, info.error) == (FlowState.REVERTED, "ValueError: no room")


async def test_an_unknown_id_is_named(flows: Flows) -> None:
    for asked in (flows.get("none"), flows.wait("none")):
        with pytest.raises(FlowError, match="no flow in this store has the id 'none'"):
            await asked


async def test_list_is_newest_first_and_filtered(flows: Flows) -> None:
    await workflow(flows, "old", "SUCCESS", "1")
    await flows.start(NAMED, id="one")
    await flows.start(GROW, id="two", size=1)
    assert [info.id for info in await flows.list()] == ["two", "one", "old"]
    assert [info.id for info in await flows.list(limit=1)] == ["two"]
    assert [info.id for info in await flows.list(name="w", state="SUCCESS")] == ["old"]
    assert [info.id for info in await flows.list(state="FAILURE")] == []
    assert [info.id for info in await flows.list(since=3600)] == ["two", "one"]


async def test_list_refuses_wrong_arguments(flows: Flows) -> None:
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        await flows.list(limit=0)
    with pytest.raises(ValueError, match="'DONE' is not a valid FlowState"):
        await flows.list(state="DONE")


async def test_look_ups_need_open_flows() -> None:
    flows = Flows()
    for asked in (flows.get("x"), flows.list(), flows.wait("x"), flows.purge(0)):
        with pytest.raises(FlowError, match="is not open; enter it"):
            await asked


async def test_wait_returns_the_same_as_awaiting_the_run(flows: Flows) -> None:
    run = flows.start(NAMED, id="one")
    assert await flows.wait("one") == await run == {"five": 5}
    with pytest.raises(ValueError, match="no room"):
        await flows.start(FAILS, id="two")
    with pytest.raises(ValueError, match="no room"):
        await flows.wait("two")


async def test_wait_returns_the_results_of_a_flow_that_another_process_runs(make_store: Callable[[], Store]) -> None:
    go = asyncio.Event()
    waits = linear("named", task(go.wait, name="wait", timeout=LIMIT), task(lambda: 5, name="five", provides="five"))
    async with Flows(store=make_store()) as flows, Flows(store=make_store()) as others:
        await others.recover(waits)
        run = await flows.start(waits, id="one").stored()
        waiting = asyncio.create_task(others.wait("one"))
        await asyncio.sleep(0)
        go.set()
        async with asyncio.timeout(LIMIT):
            assert await waiting == await run
        assert not others.runs


async def test_wait_without_the_definition_tells_how_to_read_the_results(make_store: Callable[[], Store]) -> None:
    async with Flows(store=make_store()) as flows, Flows(store=make_store()) as others:
        await flows.start(NAMED, id="one")
        with pytest.raises(FlowError, match=r"cannot be read without its definition; call Flows\.start"):
            await others.wait("one")
        with pytest.raises(ValueError, match="no room"):
            await flows.start(FAILS, id="two")
        with pytest.raises(StepFailed, match="'shrink' failed: ValueError: no room"):
            await others.wait("two")


async def test_wait_returns_or_raises_the_outcome_of_a_workflow(flows: Flows) -> None:
    await workflow(flows, "good", "SUCCESS", '{"a":1}')
    assert await flows.wait("good") == {"a": 1}
    await workflow(flows, "nothing", "SUCCESS")
    assert await flows.wait("nothing") is None
    await workflow(flows, "bad", "FAILURE", error="OSError: no connection")
    with pytest.raises(FlowError, match="workflow 'bad' is FAILURE: OSError: no connection"):
        await flows.wait("bad")
    await workflow(flows, "cancelled", "CANCELLED")
    with pytest.raises(FlowCancelled, match="workflow 'cancelled' was cancelled"):
        await flows.wait("cancelled")


async def test_wait_returns_the_result_of_a_workflow_that_another_process_runs(
    make_store: Callable[[], Store],
) -> None:
    @durable
    async def greet(name: str) -> str:
        return f"hello {name} from {await wait_for('sender')}"

    async with Flows(store=make_store()) as flows, Flows(store=make_store()) as others, asyncio.timeout(LIMIT):
        run = await flows.start(greet, "Ada", id="one").stored()
        unknown, known = asyncio.create_task(others.wait("one")), asyncio.create_task(others.wait("one"))
        await flows.signal("one", "sender", "Bob")
        assert await run == await unknown == "hello Ada from Bob"
        await others.recover(greet)
        assert await known == await others.wait("one") == "hello Ada from Bob"


async def test_wait_waits_for_a_job_that_has_not_started(make_store: Callable[[], Store]) -> None:
    async with Flows(store=make_store()) as flows, Flows(store=make_store()) as others:
        await JobQueue(flows).enqueue("fails", id="one")
        waiting = asyncio.create_task(flows.wait("one"))
        async with asyncio.timeout(LIMIT), working(JobQueue(others), FAILS):
            with pytest.raises(StepFailed, match="no room"):
                await waiting


class SlowLookups(MemoryStore):
    """A store whose answer that there is no flow arrives late."""

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # as in `Store`
        found = await super().get(id)
        if found is None:
            await asyncio.sleep(0.1)
        return found


async def test_wait_returns_the_outcome_of_a_job_that_ends_during_the_look_up() -> None:
    async with Flows(store=SlowLookups()) as flows:
        await JobQueue(flows).enqueue("fails", id="one")
        waiting = asyncio.create_task(flows.wait("one"))
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT), working(JobQueue(flows), FAILS):
            with pytest.raises(StepFailed, match="no room"):
                await waiting


async def test_purge_deletes_old_flows(flows: Flows) -> None:
    await workflow(flows, "old", "SUCCESS")
    await flows.start(NAMED, id="new")
    assert await flows.purge(older_than=3600) == 1
    assert [info.id for info in await flows.list()] == ["new"]
    with pytest.raises(ValueError, match="older_than"):
        await flows.purge(-1)
