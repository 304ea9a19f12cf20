"""Events that a task sends are delivered only if the task succeeds, and are kept until they are handled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Event, Router
from lifecycle.errors import FlowError, InvalidTopic
from lifecycle.flows import FailedDelivery, Flows, Options, SentEvent, Times, current_task, linear, send, task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lifecycle.flows import Flow, OutboxStore, Store
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


def sends(*topics: str, name: str = "a") -> Flow:
    async def work() -> None:
        for topic in topics:
            send(topic, {"by": current_task().name})

    return linear("f", task(work, name=name))


async def waiting(flows: Flows) -> list[tuple[str, str, str]]:
    """Return the stored events that have not been delivered."""
    rows = await flows.store.outbox().take(100, now=0.0, until=0.0)
    return [row[:3] for row in rows]


@asynccontextmanager
async def routed(flows: Flows, handler: Callable[[Any], Any], *, max_attempts: int = 100) -> AsyncIterator[Router]:
    """Run a router that passes the sent events to ``handler``."""
    router = Router()
    router.add_source(flows.outbox(max_attempts=max_attempts))
    router.handle("**", handler, concurrency=8)
    running = asyncio.create_task(router.run())
    try:
        yield router
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


# -- sending ---------------------------------------------------------------------------------------------------------


async def test_sent_events_are_stored_in_order_with_the_success_of_the_task(flows: Flows) -> None:
    await flows.start(sends("deploy/done", "mail/out"), id="one")
    assert await waiting(flows) == [
        ("one/a/1/1", "deploy/done", '{"by":"a"}'),
        ("one/a/1/2", "mail/out", '{"by":"a"}'),
    ]


async def test_send_returns_the_id_that_the_event_will_have(flows: Flows) -> None:
    run = flows.start(linear("f", task(lambda: send("x"), name="a")), id="one")
    assert await run == {"a": "one/a/1/1"}


async def test_a_failed_task_has_sent_nothing_and_a_revert_may_send(flows: Flows) -> None:
    @task
    async def begun() -> None:
        send("begun")

    @begun.revert
    async def undo() -> None:
        send("undone")

    @task
    async def fails() -> None:
        send("never")
        raise ValueError("woot")

    with pytest.raises(ValueError, match="woot"):
        await flows.start(linear("f", begun, fails), id="one")
    assert await waiting(flows) == [
        ("one/begun/1/1", "begun", "null"),
        ("one/begun/1/revert/1", "undone", "null"),
    ]


async def test_a_task_that_is_tried_again_sends_another_event(flows: Flows) -> None:
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        send("tried", rounds)
        if rounds < 2:
            raise ValueError("woot")

    await flows.start(linear("f", task(work, name="a"), retry=Times(3)), id="one")
    assert await waiting(flows) == [("one/a/2/1", "tried", "2")]


async def test_a_task_that_was_interrupted_sends_under_the_same_id_when_it_is_done_again(
    reopened: Callable[[], Flows],
) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        send("x", current_task().attempt)
        begun.set()
        if current_task().attempt == 1:
            await asyncio.Event().wait()

    flow = linear("f", task(work, name="a"))
    async with reopened() as flows:
        flows.start(flow, id="one")
        await begun.wait()
    async with reopened() as flows:
        assert await waiting(flows) == []
        (run,) = await flows.recover(flow)
        await run
        assert await waiting(flows) == [("one/a/1/1", "x", "2")]


async def test_data_that_cannot_be_stored_fails_the_sending_task(flows: Flows) -> None:
    with pytest.raises(FlowError, match="cannot be stored as JSON"):
        await flows.start(linear("f", task(lambda: send("x", {1, 2}), name="a")))
    assert await waiting(flows) == []


@pytest.mark.parametrize("topic", ["", "x" * 1025, 5, None])
async def test_a_topic_that_no_router_takes_is_refused(flows: Flows, topic: Any) -> None:
    with pytest.raises(InvalidTopic, match="a topic must be a string of 1 to 1024"):
        await flows.start(linear("f", task(lambda: send(topic), name="a")))


def test_outside_of_a_task_nothing_can_be_sent() -> None:
    with pytest.raises(LookupError, match="called outside a task"):
        send("x")


async def test_sending_after_the_task_has_ended_is_refused(flows: Flows) -> None:
    late: list[asyncio.Task[str]] = []

    async def lag() -> str:
        await asyncio.sleep(1)
        return send("x")

    async def work() -> None:
        late.append(asyncio.create_task(lag()))

    await flows.start(linear("f", task(work, name="a")), id="one")
    with pytest.raises(FlowError, match="was called after one/a/1 finished"):
        await late[0]


# -- delivery ----------------------------------------------------------------------------------------------------------


async def test_a_router_gets_earlier_and_later_events_in_order(flows: Flows) -> None:
    got: list[SentEvent] = []
    await flows.start(sends("one", "two"), id="before")
    async with routed(flows, got.append):
        await flows.start(sends("three"), id="later")
        while len(got) < 3:
            await asyncio.sleep(0.1)
    assert got == [
        SentEvent("one", {"by": "a"}, "before/a/1/1"),
        SentEvent("two", {"by": "a"}, "before/a/1/2"),
        SentEvent("three", {"by": "a"}, "later/a/1/1"),
    ]
    assert await waiting(flows) == []


async def test_a_failed_or_unrouted_event_is_delivered_again_with_the_same_id(flows: Flows) -> None:
    got: list[str] = []

    async def fails_twice(event: SentEvent) -> None:
        got.append(event.id)
        if len(got) < 3:
            raise ValueError("woot")

    await flows.start(sends("one"), id="x")
    async with routed(flows, fails_twice):
        while len(got) < 3:
            await asyncio.sleep(0.1)
    assert got == ["x/a/1/1"] * 3
    assert await waiting(flows) == []


async def test_a_failing_event_does_not_delay_others(flows: Flows) -> None:
    got: list[str] = []

    async def handle(event: SentEvent) -> None:
        if event.topic == "bad":
            raise ValueError("woot")
        got.append(event.topic)

    await flows.start(sends("bad", "one", "bad", "two"))
    async with routed(flows, handle):
        while len(got) < 2:
            await asyncio.sleep(0.1)
    assert got == ["one", "two"]
    assert [topic for _, topic, _ in await flows_later(flows)] == ["bad", "bad"]


async def flows_later(flows: Flows) -> list[tuple[str, str, str]]:
    """Return the stored events, including those whose next delivery is not due yet."""
    rows = await flows.store.outbox().take(100, now=1e12, until=0.0)
    return [row[:3] for row in rows]


async def fails(_: SentEvent) -> None:
    raise ValueError("woot")


async def test_an_event_that_fails_too_often_is_a_dead_letter_until_it_is_revived(flows: Flows) -> None:
    await flows.start(sends("bad"), id="x")
    store = flows.store.outbox()
    async with routed(flows, fails, max_attempts=3):
        while not await store.dead():
            await asyncio.sleep(0.1)
    [letter] = await store.dead()
    assert (letter.id, letter.failures, letter.error) == ("x/a/1/1", 3, "ValueError: woot")
    assert await flows_later(flows) == []
    await store.revive([letter.number])
    got: list[str] = []
    async with routed(flows, lambda event: got.append(event.id)):
        while not got:
            await asyncio.sleep(0.1)
    assert got == ["x/a/1/1"]
    assert await store.dead() == []


async def test_failures_are_counted_over_restarts(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        await flows.start(sends("bad"), id="x")
    for failures in (1, 2, 3):
        failed: list[SentEvent] = []

        async def handle(event: SentEvent, failed: list[SentEvent] = failed) -> None:
            failed.append(event)
            raise ValueError("woot")

        async with reopened() as flows, routed(flows, handle, max_attempts=3):
            while not failed:
                await asyncio.sleep(0.1)
        async with reopened() as flows:
            assert len(await flows.store.outbox().dead()) == (failures == 3)


async def test_an_outbox_without_attempts_is_refused(flows: Flows) -> None:
    with pytest.raises(ValueError, match="max_attempts must be 1 or more"):
        flows.outbox(max_attempts=0)


async def test_a_delivery_under_way_when_the_router_ends_is_repeated(flows: Flows) -> None:
    begun = asyncio.Event()

    async def never(_: SentEvent) -> None:
        begun.set()
        await asyncio.Event().wait()

    await flows.start(sends("one"), id="x")
    async with routed(flows, never):
        await begun.wait()
    assert await flows_later(flows) == [("x/a/1/1", "one", '{"by":"a"}')]


async def test_an_outbox_does_not_deliver_its_own_event_again_when_the_lease_ran_out(flows: Flows) -> None:
    delivered: list[str] = []
    handled = asyncio.Event()

    async def handle(event: SentEvent) -> None:
        delivered.append(event.topic)
        await handled.wait()

    await flows.start(sends("one"), id="x")
    async with routed(flows, handle):
        while delivered != ["one"]:
            await asyncio.sleep(0.1)
        # During this simulated outage of the store, no lease was renewed.
        await flows.store.outbox().hold(range(1, 1000), until=0.001)
        await flows.start(sends("two"), id="y")
        while "two" not in delivered:
            await asyncio.sleep(0.1)
        handled.set()
        await asyncio.sleep(10)
    assert delivered == ["one", "two"]
    assert await flows_later(flows) == []


class KilledError(Exception):
    """Simulates the death of the process: the outbox stops without writing a result."""


async def test_an_event_that_kills_its_process_becomes_a_dead_letter_and_its_neighbours_are_delivered(
    reopened: Callable[[], Flows],
) -> None:
    kills, handled = 0, set[str]()

    async def emit(event: SentEvent) -> Any:
        nonlocal kills
        if event.topic == "kills":
            kills += 1
            raise KilledError
        handled.add(event.topic)
        return asyncio.sleep(0)

    async with reopened() as flows:
        await flows.start(sends("one", "kills", "two"), id="x")
    dead: list[Any] = []
    while not dead and kills < 100:
        async with reopened() as flows:
            outbox = flows.outbox(max_attempts=3)
            try:
                async with asyncio.timeout(60):
                    await outbox.run(emit)
            except TimeoutError:
                await outbox.settle()
            except KilledError:
                await asyncio.sleep(60)
            dead = await flows.store.outbox().dead()
    assert [(row.topic, row.failures) for row in dead] == [("kills", 23)]
    assert "its delivery began and never ended, 23 times" in dead[0].error
    assert (kills, handled) == (23, {"one", "two"})
    async with reopened() as flows:
        assert await flows_later(flows) == []


async def test_an_outbox_of_flows_that_are_not_entered_raises(reopened: Callable[[], Flows]) -> None:
    async def emit(_: object) -> Any: ...

    with pytest.raises(FlowError, match="not open"):
        await reopened().outbox().run(emit)


# -- guarantees of every store ---------------------------------------------------------------------------------------


@pytest.fixture
async def outbox(make_store: Callable[[], Store]) -> AsyncIterator[OutboxStore]:
    async with Flows(store=make_store(), options=Options()) as flows:
        await flows.start(sends("a", "b", "c"))
        yield flows.store.outbox()


async def test_a_leased_event_is_not_taken_before_the_lease_ends(outbox: OutboxStore) -> None:
    (first,) = await outbox.take(1, now=10.0, until=20.0)
    assert first.topic == "a"
    assert [row.topic for row in await outbox.take(9, now=10.0, until=30.0)] == ["b", "c"]
    assert [row.topic for row in await outbox.take(9, now=20.0, until=30.0)] == ["a"]


async def test_an_event_is_free_when_its_lease_ends_or_is_released(outbox: OutboxStore) -> None:
    numbers = [row.number for row in await outbox.take(3, now=10.0, until=20.0)]
    await outbox.hold(numbers[:1], until=40.0)
    await outbox.hold(numbers[1:2], until=0.0)
    assert [row.topic for row in await outbox.take(9, now=11.0, until=12.0)] == ["b"]
    assert [row.topic for row in await outbox.take(9, now=30.0, until=31.0)] == ["b", "c"]
    assert [row.topic for row in await outbox.take(9, now=40.0, until=41.0)] == ["a", "b", "c"]


async def test_forgetting_or_holding_a_deleted_event_does_nothing(outbox: OutboxStore) -> None:
    numbers = [row.number for row in await outbox.take(3, now=10.0, until=20.0)]
    await outbox.forget(numbers[:2])
    await outbox.forget(numbers[:2])
    await outbox.hold(numbers[:2], until=0.0)
    assert [row.topic for row in await outbox.take(9, now=30.0, until=31.0)] == ["c"]


async def test_events_look_like_those_of_the_library(clock: Clock) -> None:
    del clock
    event = SentEvent("a/b", 5, "x")
    assert (event.topic, event.data) == (Event("a/b", 5).topic, 5)


async def test_a_lease_that_ran_out_is_a_failure_and_one_that_was_given_back_is_not(outbox: OutboxStore) -> None:
    (row,) = await outbox.take(1, now=10.0, until=20.0)
    await outbox.hold([row.number], until=0.0)
    (row,) = await outbox.take(1, now=10.0, until=20.0)
    assert (row.failures, row.error) == (0, "")
    for failures in (1, 2):
        (row,) = await outbox.take(1, now=20.0 * failures, until=20.0 * failures + 20.0)
        assert (row.failures, row.error) == (failures, "its delivery began and never ended")
    failed = FailedDelivery(row.number, 3, "woot", 70.0)
    await outbox.settle(delivered=[], freed=[], failed=[failed])
    rows = await outbox.take(9, now=70.0, until=80.0)
    assert [(row.topic, row.failures, row.error) for row in rows] == [("a", 3, ""), ("b", 0, ""), ("c", 0, "")]
    rows = await outbox.take(9, now=80.0, until=90.0)
    assert [(row.topic, row.failures) for row in rows] == [("a", 4), ("b", 1), ("c", 1)]


async def test_results_of_deliveries_are_written_together_and_a_dead_letter_is_not_taken(outbox: OutboxStore) -> None:
    first, second, third = [row.number for row in await outbox.take(3, now=10.0, until=20.0)]
    failed = [FailedDelivery(second, 1, "woot\0", 40.0), FailedDelivery(third, 2, "late", None)]
    await outbox.settle(delivered=[first], freed=[], failed=failed)
    assert await outbox.take(9, now=39.0, until=45.0) == []
    [again] = await outbox.take(9, now=40.0, until=45.0)
    assert (again.topic, again.failures) == ("b", 1)
    await outbox.settle(delivered=[], freed=[second], failed=[])
    assert [row.topic for row in await outbox.take(9, now=41.0, until=50.0)] == ["b"]
    assert [(row.topic, row.failures, row.error) for row in await outbox.dead()] == [("c", 2, "late")]
    await outbox.forget([third])
    assert await outbox.dead() == []
