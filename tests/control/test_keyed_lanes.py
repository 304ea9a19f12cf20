"""Lanes by key: one handler per key, several keys at the same time, and one bounded queue for all keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Debounce, Dropped, Event, LaneFull, NotHandled, Router
from lifecycle.errors import LifecycleError
from lifecycle.testing import running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


def repository(event: Event) -> str:
    """Return the first character of ``event.data``, such as "a" for "a1"."""
    return str(event.data[0])


class Deploys:
    """A handler that takes a second, and checks that calls with the same key do not overlap."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.began: list[str] = []
        self.ended: list[str] = []
        self.now: Counter[str] = Counter()
        self.most = 0

    async def __call__(self, event: Event) -> None:
        key = repository(event)
        self.began.append(event.data)
        self.now[key] += 1
        assert self.now[key] == 1, f"two calls for {key} overlap"
        self.most = max(self.most, self.now.total())
        try:
            await asyncio.sleep(self.seconds)
            self.ended.append(event.data)
        finally:
            self.now[key] -= 1


async def emit_all(router: Router, *data: str) -> list[Any]:
    return [await router.emit(Event("deploy", each)) for each in data]


async def test_each_key_keeps_its_order_and_keys_run_side_by_side(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository, concurrency=2)
    async with running(router):
        await emit_all(router, "a1", "a2", "b1", "b2")
        await clock.settle()
        assert sorted(work.began) == ["a1", "b1"]
        await clock.advance(1.5)
        assert sorted(work.began) == ["a1", "a2", "b1", "b2"]
        await clock.advance(1)
    assert [each for each in work.ended if each[0] == "a"] == ["a1", "a2"]
    assert [each for each in work.ended if each[0] == "b"] == ["b1", "b2"]
    assert work.most == 2


async def test_concurrency_is_the_number_of_keys_that_run(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository, concurrency=2)
    async with running(router):
        await emit_all(router, *"abcde")
        await clock.advance(10)
    assert (work.most, len(work.ended)) == (2, 5)


async def test_a_busy_key_takes_turns_with_the_others(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository)
    async with running(router):
        await emit_all(router, "a1", "a2", "a3", "b1")
        await clock.advance(10)
    assert work.ended == ["a1", "b1", "a2", "a3"]


async def test_events_that_came_before_the_start_run_side_by_side(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository, concurrency=3)
    await emit_all(router, "a1", "a2", "b1", "c1")
    async with running(router):
        await clock.advance(0.5)
        assert work.most == 3
        await clock.advance(5)
    assert len(work.ended) == 4


async def test_an_idle_key_is_forgotten_and_all_keys_are_counted_together(clock: Clock) -> None:
    router, work = Router(), Deploys()
    route = router.handle("deploy", work, lane=repository, concurrency=2)
    async with running(router):
        await emit_all(router, "a1", "a2", "b1", "c1")
        await clock.settle()
        (lane,) = router.lanes()
        assert (lane.name, lane.running, lane.waiting, lane.concurrency, lane.keys) == ("deploy", 2, 2, 2, 3)
        await clock.advance(10)
        assert [each.keys for each in router.lanes()] == [0]
    assert (router.state().handled, route.info().handled, route.info().lane) == (4, 4, "deploy")


async def test_debounce_by_key_never_overlaps_two_deployments_of_one_repository(clock: Clock) -> None:
    router, work = Router(), Deploys(5)
    router.handle("deploy", work, lane=repository, debounce=Debounce(1, key=repository), concurrency=4)
    async with running(router):
        for number in range(3):
            await emit_all(router, f"a{number}", f"b{number}")
        await clock.advance(2)
        assert sorted(work.began) == ["a2", "b2"]
        await emit_all(router, "a3")
        await clock.advance(2)
        assert sorted(work.began) == ["a2", "b2"]
        await clock.advance(10)
    assert work.ended[-1] == "a3"
    assert work.most == 2


async def test_a_debounced_burst_waits_for_space_in_a_full_keyed_lane(clock: Clock) -> None:
    router, work = Router(buffer=0), Deploys()
    router.handle("deploy", work, lane=repository, debounce=Debounce(0.1, key=lambda event: event.data))
    async with running(router):
        await emit_all(router, "a1", "a2", "a3", "b1")
        await clock.advance(10)
    assert sorted(work.ended) == ["a1", "a2", "a3", "b1"]


async def test_drop_applies_to_each_key(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository, busy="drop", concurrency=2)
    async with running(router):
        deliveries = await emit_all(router, "a1", "a2", "b1", "c1", "c2")
        await clock.advance(10)
    assert work.ended == ["a1", "b1", "c1"]
    assert [isinstance(each.error, Dropped) for each in deliveries] == [False, True, False, False, True]
    assert router.state().dropped == 2


async def test_restart_applies_to_each_key(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository, busy="restart", concurrency=2)
    async with running(router):
        first, other = await emit_all(router, "a1", "b1")
        await clock.advance(0.5)
        second, _ = await emit_all(router, "a2", "a3")
        await clock.advance(10)
    assert sorted(work.ended) == ["a3", "b1"]
    assert other.error is None
    for each in (first, second):
        assert isinstance(each.error, Dropped)
        assert each.error.superseded


async def test_an_idle_key_of_a_full_lane_is_dropped_if_the_route_drops(clock: Clock) -> None:
    router, work = Router(buffer=0), Deploys()
    router.handle("deploy", work, lane=repository, busy="drop")
    async with running(router):
        (a,) = await emit_all(router, "a")
        await clock.settle()
        (b,) = await emit_all(router, "b")
        assert isinstance(b.error, Dropped)
        await a


async def test_the_queue_of_all_keys_is_bounded(clock: Clock) -> None:
    router, work = Router(buffer=2), Deploys()
    router.handle("deploy", work, lane=repository)
    async with running(router):
        await emit_all(router, "a")
        await clock.settle()
        await emit_all(router, "b", "c")
        with pytest.raises(LaneFull):
            router.emit_nowait(Event("deploy", "d"))
        before = clock.time()
        await emit_all(router, "d")
        assert clock.time() == before + 1
    assert len(work.ended) == 4


async def test_a_handler_that_fills_the_lane_with_its_own_key_gets_lane_full(clock: Clock) -> None:
    router, errors = Router(buffer=1), list[LaneFull]()

    @router.on("deploy", lane=repository, concurrency=3)
    async def deploy(event: Event) -> None:
        if event.data == "a":
            try:
                for number in range(10):
                    await router.emit(Event("deploy", f"a{number}"))
            except LaneFull as error:
                errors.append(error)

    async with running(router):
        async with asyncio.timeout(10):
            await (await router.emit(Event("deploy", "a")))
    assert "would wait for itself" in str(errors[0])
    assert len(errors) == 1


async def test_a_handler_gets_lane_full_when_the_last_other_key_ends(clock: Clock) -> None:
    """One handler waits twice. When the other key's handler finishes, there is space for only one of its events."""
    router, results = Router(buffer=0), list[Any]()

    @router.on("deploy", lane=repository, concurrency=2)
    async def deploy(event: Event) -> None:
        if event.data == "b":
            await asyncio.sleep(1)
        if event.data == "a":
            waits = [router.emit(Event("deploy", f"a{number}")) for number in range(3)]
            results.extend(await asyncio.gather(*waits, return_exceptions=True))

    async with running(router):
        await router.emit(Event("deploy", "b"))
        async with asyncio.timeout(10):
            await (await router.emit(Event("deploy", "a")))
    assert [isinstance(each, LaneFull) for each in results].count(True) == 2


async def test_errors_of_the_lane_function_fail_the_delivery(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=lambda event: {"": 1 / len(event.data), "l": []}.get(event.data, event.data))
    router.handle("drop", work, lane=repository, busy="drop")
    async with running(router):
        with pytest.raises(ZeroDivisionError):
            await (await router.emit(Event("deploy", "")))
        with pytest.raises(TypeError, match="unhashable"):
            await (await router.emit(Event("deploy", "l")))
        with pytest.raises(IndexError):
            await (await router.emit(Event("drop", "")))
        await (await router.emit(Event("deploy", "a")))
    assert (router.state().failed, router.state().handled) == (3, 1)
    assert caplog.text.count("failed on") == 3


async def test_routes_with_the_same_function_share_its_keys(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("webhook/deploy", work, lane=repository, concurrency=2)
    router.handle("command/deploy", work, lane=repository, concurrency=2)
    with pytest.raises(ValueError, match="the same concurrency"):
        router.handle("other", work, lane=repository)
    async with running(router):
        await router.emit(Event("webhook/deploy", "a1"))
        await router.emit(Event("command/deploy", "a2"))
        await router.emit(Event("command/deploy", "b1"))
        await clock.settle()
        assert work.began == ["a1", "b1"]
        await clock.advance(3)
    assert len(router.lanes()) == 1
    router.remove("webhook/deploy")
    router.remove("command/deploy")
    assert router.lanes() == []
    router.handle("other", work, lane=repository)


async def test_an_event_that_is_passed_on_within_its_lane_is_handled_once_more(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository)
    router.handle("*", work, lane=repository)

    @router.on("deploy", replace=True, lane=repository)
    async def decline(event: Event) -> None:
        raise NotHandled("not mine")

    async with running(router):
        for delivery in await emit_all(router, "a1", "a2"):
            await delivery
    assert work.ended == ["a1", "a2"]


async def test_events_of_a_removed_route_are_finished(clock: Clock) -> None:
    router, work = Router(), Deploys()
    router.handle("deploy", work, lane=repository)
    async with running(router):
        await emit_all(router, "a1", "a2", "b1")
        router.remove("deploy")
        await clock.advance(10)
    assert len(work.ended) == 3
    assert router.state().handled == 3
    assert router.lanes() == []


async def test_a_stopped_router_drops_the_waiting_events_of_all_keys(clock: Clock) -> None:
    router, work = Router(drain_timeout=0.5), Deploys(60)
    router.handle("deploy", work, lane=repository)
    async with running(router):
        deliveries = await emit_all(router, "a1", "a2", "b1")
        await clock.settle()
    assert all(isinstance(each.error, Dropped) for each in deliveries)
    assert router.state().dropped == 3
    work.seconds = 0
    async with running(router):
        await (await router.emit(Event("deploy", "a3")))
    assert work.ended == ["a3"]


async def test_handlers_that_never_wait_leave_room_for_other_tasks(clock: Clock) -> None:
    router, seen = Router(buffer=5000), list[str]()
    router.handle("deploy", lambda event: seen.append(event.data), lane=lambda event: event.data)
    for number in range(3000):
        router.emit_nowait(Event("deploy", str(number)))
    async with running(router):
        await clock.settle()
    assert len(seen) == 3000


async def key_later(event: Event) -> str:
    return event.topic


@pytest.mark.parametrize("function", [key_later, lambda: "a", lambda _a, _b: "a"])
def test_a_lane_function_that_cannot_return_a_key_is_refused(function: Any) -> None:
    router = Router()
    with pytest.raises(TypeError, match="lane="):
        router.handle("deploy", Deploys(), lane=function)
    assert router.routes() == []


async def test_an_event_whose_key_fails_leaves_its_place_to_the_next_in_line(clock: Clock) -> None:
    router, deploys = Router(buffer=0), Deploys()

    def key(event: Event) -> str:
        if event.data == "bad":
            raise ValueError(event.data)
        return "one"

    router.handle("deploy", deploys, lane=key)
    router.handle("merged", deploys, lane=key, debounce=0.1)
    async with running(router):
        await router.emit(Event("deploy", "a1"))
        refused = await router.emit(Event("merged", "bad"))
        await clock.advance(0.5)
        async with asyncio.timeout(60):
            await (await router.emit(Event("deploy", "a2")))
        with pytest.raises(ValueError, match="bad"):
            await refused
    assert deploys.ended == ["a1", "a2"]


async def test_a_handler_can_call_the_handler_of_an_idle_key(clock: Clock) -> None:
    router = Router()

    @router.on("deploy/{kind}", lane=lambda event: event.data, concurrency=2)
    async def deploy(event: Event, kind: str) -> Any:
        await asyncio.sleep(1)
        if kind == "direct":
            return await router.call(Event("deploy/last", event.data + 1))
        return await router.call(Event("other", event.data + 1)) if kind == "through" else event.data

    @router.on("other")
    async def other(event: Event) -> Any:
        return await router.call(Event("deploy/last", event.data + 1))

    async with running(router):
        assert await router.call(Event("deploy/direct", 1)) == 2
        assert await router.call(Event("deploy/through", 1)) == 3
        with pytest.raises(LifecycleError, match="only after"):
            await asyncio.gather(*(router.call(Event("deploy/direct", each)) for each in (1, 2)))


async def test_a_call_whose_key_fails_counts_as_failed(clock: Clock) -> None:
    router = Router()

    @router.on("deploy", lane=lambda event: event.data["key"], concurrency=2)
    async def deploy(_event: Event) -> None:
        with pytest.raises(KeyError):
            await router.call(Event("deploy", {}))

    async with running(router):
        await router.call(Event("deploy", {"key": 1}))
    assert (router.state().routed, router.state().handled, router.state().failed) == (2, 1, 1)


async def test_a_burst_that_waits_for_room_is_not_dropped_for_the_event_that_makes_room(clock: Clock) -> None:
    router, deploys = Router(buffer=0), Deploys()
    router.handle("deploy", deploys, lane=repository)
    router.handle("merged", deploys, lane=repository, debounce=0.1, busy="drop")
    async with running(router):
        await router.emit(Event("deploy", "a1"))
        waiting = asyncio.create_task(router.emit(Event("deploy", "b1")))
        merged = await router.emit(Event("merged", "b2"))
        await (await waiting)
        await merged
    assert deploys.ended == ["a1", "b1", "b2"]
