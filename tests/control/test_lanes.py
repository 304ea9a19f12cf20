"""Lanes: order, concurrency, the policies for a busy lane, and waits for space, which must not deadlock."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.control import Dropped, Event, LaneFull, NotHandled, Router
from lifecycle.control.router import call_directly
from lifecycle.errors import LifecycleError, RouteNotFound
from lifecycle.testing import ManualSource, Recorder, running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Work:
    """A handler that takes a second, and records the start and end of each call."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.log: list[str] = []
        self.now = self.most = 0

    @property
    def ended(self) -> list[Any]:
        return [int(line.removeprefix("end ")) for line in self.log if line.startswith("end")]

    async def __call__(self, event: Event) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.log.append(f"begin {event.data}")
        try:
            await asyncio.sleep(self.seconds)
            self.log.append(f"end {event.data}")
        except asyncio.CancelledError:
            self.log.append(f"cancelled {event.data}")
            raise
        finally:
            self.now -= 1


async def test_a_lane_keeps_strict_order(clock: Clock) -> None:
    router, work = Router(), Work()
    router.handle("a/*", work)
    async with running(router):
        for number in range(5):
            await router.emit(Event(f"a/{number}", number))
        await clock.advance(10)
    assert work.ended == [0, 1, 2, 3, 4]
    assert work.most == 1


async def test_the_number_of_concurrent_handlers_is_limited_by_the_lane(clock: Clock) -> None:
    router, work = Router(), Work()
    router.handle("a", work, concurrency=3)
    async with running(router):
        for number in range(7):
            await router.emit(Event("a", number))
        await clock.advance(2.5)
        assert sorted(work.ended) == [0, 1, 2, 3, 4, 5]
        assert work.most == 3


async def test_lanes_do_not_wait_for_each_other(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    router.handle("slow", Work(30))
    router.handle("fast", recorder)
    async with running(router):
        await router.emit(Event("slow", 0))
        await router.emit(Event("fast"))
        await clock.settle()
        assert recorder.topics == ["fast"]
        router.remove("slow")
        await clock.advance(30)


async def test_routes_that_name_the_same_lane_share_it_and_keep_order(clock: Clock) -> None:
    router, work = Router(), Work()
    router.handle("a", work, lane="one")
    router.handle("b", work, lane="one")
    async with running(router):
        for number, topic in enumerate("abba"):
            await router.emit(Event(topic, number))
        await clock.advance(5)
    assert work.ended == [0, 1, 2, 3]
    assert work.most == 1
    assert [info.lane for info in router.routes()] == ["one", "one"]


def test_a_shared_lane_has_one_concurrency() -> None:
    router = Router()
    router.handle("a", Work(), lane="one", concurrency=2)
    with pytest.raises(ValueError, match="'one' has a concurrency of 2"):
        router.handle("b", Work(), lane="one")


def test_a_shared_lane_is_forgotten_with_its_last_route() -> None:
    router = Router()
    for name in ("a", "b"):
        router.handle(name, Work(), lane="one", concurrency=2)
    router.remove("a")
    router.remove("b")
    router.handle("c", Work(), lane="one", concurrency=5)
    assert len(router.lanes()) == 1


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"concurrency": -1}, {"busy": "skip"}])
def test_invalid_settings_are_refused_at_registration(wrong: dict[str, Any]) -> None:
    router = Router()
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        router.handle("a", Work(), **wrong)
    assert router.routes() == []


@pytest.mark.parametrize("wrong", [{"buffer": -1}, {"drain_timeout": -0.5}])
def test_a_router_refuses_negative_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        Router(**wrong)


# -- queue -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("buffer", [0, 1, 3])
async def test_a_full_lane_blocks_its_source_and_loses_no_event(clock: Clock, buffer: int, concurrency: int) -> None:
    router, work, given = Router(buffer=buffer), Work(), 0

    async def source() -> Any:
        nonlocal given
        for number in range(8):
            given = number
            yield Event("a", number)

    router.handle("a", work, concurrency=concurrency)
    router.add_source(source)
    async with running(router):
        await clock.settle()
        # These are the running events, the events in the queue, and one event held by the source.
        assert given == buffer + concurrency
        await clock.advance(20)
        assert sorted(work.ended) == list(range(8))


async def test_a_full_lane_blocks_no_other_source(clock: Clock, recorder: Recorder) -> None:
    router, blocked, free = Router(buffer=1), ManualSource("blocked"), ManualSource("free")
    router.handle("slow", Work(10))
    router.handle("fast", recorder)
    router.add_source(blocked)
    router.add_source(free)
    async with running(router):
        sending = [asyncio.create_task(blocked.send(Event("slow", number))) for number in range(4)]
        await clock.settle()
        for _ in range(50):
            await (await free.send(Event("fast")))
        assert len(recorder.events) == 50
        assert not all(task.done() for task in sending)
        await clock.advance(60)
        assert all(task.done() for task in sending)


@pytest.mark.parametrize("buffer", [0, 1])
async def test_all_waiters_for_capacity_get_it_even_if_some_are_cancelled(clock: Clock, buffer: int) -> None:
    router, work = Router(buffer=buffer), Work()
    router.handle("a", work)
    async with running(router):
        waiting = [asyncio.create_task(router.emit(Event("a", number))) for number in range(10)]
        await clock.settle()
        for number in (4, 6, 9):
            waiting[number].cancel()
        await clock.advance(20)
        assert work.ended == [0, 1, 2, 3, 5, 7, 8]
        await asyncio.wait(waiting)
    assert router.state().routed == 10
    assert router.state().dropped == 3


async def test_freed_capacity_passes_to_the_next_waiter_if_the_woken_one_is_cancelled(clock: Clock) -> None:
    router, gate = Router(buffer=1), asyncio.Event()
    seen: list[int] = []

    async def handler(event: Event) -> None:
        await gate.wait()
        if event.data == 1:
            # Space has just become free for the first waiter, which is cancelled before it can use that space.
            waiting[2].cancel()
        seen.append(event.data)

    router.handle("a", handler)
    async with running(router):
        waiting = [asyncio.create_task(router.emit(Event("a", number))) for number in range(4)]
        await clock.settle()
        gate.set()
        await clock.settle()
        assert seen in ([0, 1, 3], [0, 1, 2, 3])
        await asyncio.wait(waiting)


async def test_emit_nowait_raises_when_the_lane_is_full_and_observers_have_not_seen_the_event(
    clock: Clock, recorder: Recorder
) -> None:
    router, work = Router(buffer=1), Work()
    router.handle("a", work)
    router.observe("a", recorder)
    async with running(router):
        router.emit_nowait(Event("a", 0))
        await clock.settle()
        router.emit_nowait(Event("a", 1))
        with pytest.raises(LaneFull, match="lane 'a' is full"):
            router.emit_nowait(Event("a", 2))
        await clock.advance(3)
    assert work.ended == [0, 1]
    assert len(recorder.events) == 2
    assert router.state().routed == 4


async def test_emit_nowait_accepts_an_event_although_a_receiver_filled_the_lane(clock: Clock) -> None:
    router, work = Router(buffer=0), Work()
    router.handle("a", work)

    @hooks.delivery_accepted.connect
    def emits(_sender: object, *, delivery: Any) -> None:
        if delivery.event.data == 0:
            router.emit_nowait(Event("a", 1))

    try:
        async with running(router):
            router.emit_nowait(Event("a", 0))
            await clock.advance(3)
    finally:
        hooks.delivery_accepted.disconnect(emits)
    assert work.ended == [1, 0]


async def test_a_handler_never_waits_for_its_own_full_lane(clock: Clock) -> None:
    router, errors = Router(buffer=2), list[BaseException]()

    async def again(event: Event) -> None:
        if event.data == 0:
            with pytest.raises(LaneFull, match="wait for itself") as caught:
                for number in range(1, 9):
                    await router.emit(Event("a", number))
            errors.append(caught.value)

    router.handle("a", again)
    async with running(router):
        await (await router.emit(Event("a", 0)))
        await clock.settle()
    assert len(errors) == 1
    state = router.state()
    assert (state.routed, state.handled) == (3, 3)


def awaits(router: Router, following: dict[str, str], refused: list[str]) -> Any:
    """Return a handler that emits the topic that follows the topic of its event, and awaits its delivery."""

    async def handle(event: Event) -> None:
        if event.topic in following:
            try:
                await (await router.emit(Event(following[event.topic])))
            except LifecycleError as error:
                refused.append(str(error))

    return handle


async def test_awaiting_a_delivery_of_the_own_lane_raises_and_the_event_is_handled_afterwards(clock: Clock) -> None:
    router, refused = Router(), list[str]()
    router.handle("a/*", awaits(router, {"a/1": "a/2"}, refused))
    async with running(router):
        await (await router.emit(Event("a/1")))
        await clock.settle()
    assert len(refused) == 1
    assert "awaits the delivery of 'a/2', but lane 'a/*' can handle it only after" in refused[0]
    assert router.state().handled == 2


async def test_awaiting_deliveries_in_a_cycle_of_lanes_raises(clock: Clock) -> None:
    router, refused = Router(), list[str]()
    handle = awaits(router, {"a/1": "b", "b": "a/2"}, refused)
    router.handle("a/*", handle)
    router.handle("b", handle)
    async with running(router):
        await (await router.emit(Event("a/1")))
        await clock.settle()
    assert len(refused) == 1
    assert "awaits the delivery of 'a/2'" in refused[0]
    assert router.state().handled == 3


async def test_awaiting_a_delivery_with_the_same_key_raises(clock: Clock) -> None:
    router, refused = Router(), list[str]()

    async def handle(event: Event) -> None:
        if event.topic == "a/other":
            await asyncio.sleep(5)
        elif event.topic == "a/1":
            await (await router.emit(Event("a/2", "another key")))
            with pytest.raises(LifecycleError, match="awaits the delivery of 'a/3'") as caught:
                await (await router.emit(Event("a/3", "key")))
            refused.append(str(caught.value))

    router.handle("a/*", handle, lane=lambda event: event.data, concurrency=3)
    async with running(router):
        await router.emit(Event("a/other", "third key"))
        await (await router.emit(Event("a/1", "key")))
        assert clock.time() == 0
        await clock.advance(5)
    assert len(refused) == 1
    assert router.state().handled == 4


async def test_a_handler_may_await_its_own_lane_while_the_lane_can_continue(clock: Clock) -> None:
    router, ended = Router(), list[Any]()

    async def handle(event: Event) -> None:
        if event.data == "awaits":
            await (await router.emit(Event("a", "awaited")))
        elif event.data == "slow":
            await asyncio.sleep(5)
        ended.append(event.data)

    router.handle("a", handle, concurrency=2)
    async with running(router):
        await router.emit(Event("a", "slow"))
        await clock.settle()
        await (await router.emit(Event("a", "awaits")))
    assert ended == ["slow", "awaited", "awaits"]


async def test_a_task_that_a_handler_leaves_behind_may_await_its_lane(clock: Clock) -> None:
    router, tasks, ended = Router(), list["asyncio.Task[None]"](), list[str]()

    async def await_later() -> None:
        await (await router.emit(Event("a", "later")))
        ended.append("background")

    async def handle(event: Event) -> None:
        if event.data == "first":
            tasks.append(asyncio.create_task(await_later()))
            await asyncio.sleep(1)
        ended.append(event.data)

    router.handle("a", handle)
    async with running(router):
        await router.emit(Event("a", "first"))
        await clock.advance(2)
        await tasks[0]
    assert ended == ["first", "later", "background"]


async def test_a_restart_that_cancels_the_awaiting_handler_is_no_failure(clock: Clock) -> None:
    router = Router()

    async def handle(event: Event) -> None:
        if event.data == "first":
            await (await router.emit(Event("a", "newer")))

    router.handle("a", handle, busy="restart")
    async with running(router):
        first = await router.emit(Event("a", "first"))
        with pytest.raises(Dropped):
            await first
        await clock.settle()
    assert (router.state().handled, router.state().failed, router.state().dropped) == (1, 0, 1)


async def test_two_routers_that_emit_into_each_other_do_not_deadlock(clock: Clock) -> None:
    one, two = (Router(name, buffer=0) for name in ("one", "two"))
    refused: list[str] = []

    def emits(into: Router, topic: str) -> Any:
        async def handle(event: Event) -> None:
            if event.data == 0:
                return
            try:
                for _ in range(3):
                    await into.emit(Event(topic, event.data - 1))
            except LaneFull as error:
                refused.append(str(error))

        return handle

    one.handle("ping", emits(two, "pong"))
    two.handle("pong", emits(one, "ping"))
    async with running(one), running(two):
        await one.emit(Event("ping", 3))
        await clock.settle()
        assert [(lane.running, lane.waiting) for router in (one, two) for lane in router.lanes()] == [(0, 0)] * 2
    assert refused
    assert all("wait for itself" in text for text in refused)


async def test_capacity_goes_to_the_emitter_that_waited_for_it(clock: Clock) -> None:
    router, order = Router(buffer=0), list[Any]()

    async def handle(event: Event) -> None:
        order.append(event.data)
        await asyncio.sleep(0)

    async def push() -> None:
        for number in range(50):
            while True:
                try:
                    router.emit_nowait(Event("a", number))
                    break
                except LaneFull:
                    await asyncio.sleep(0)

    router.handle("a", handle)
    async with running(router):
        pushing = asyncio.create_task(push())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(router.emit(Event("a", "waiting")))
        await asyncio.gather(pushing, waiting)
        await clock.settle()
        assert (router.lanes()[0].waiting, router.lanes()[0].limit) == (0, 1)
    assert order.index("waiting") <= 2
    assert len(order) == 51


async def test_a_handler_waits_for_its_own_lane_while_another_handler_frees_capacity(clock: Clock) -> None:
    router, ended = Router(buffer=0), list[str]()

    async def handler(event: Event) -> None:
        if event.data == "emits":
            await asyncio.sleep(1)
            await router.emit(Event("a", "emitted"))
        elif event.data != "emitted":
            await asyncio.sleep(5)
        ended.append(event.data)

    router.handle("a", handler, concurrency=2)
    async with running(router):
        for data in ("emits", "slow"):
            await router.emit(Event("a", data))
            await clock.settle()
        await clock.advance(10)
    assert ended == ["slow", "emits", "emitted"]


async def test_all_handlers_of_a_lane_never_wait_for_it(clock: Clock) -> None:
    router, refused = Router(buffer=0), list[str]()

    async def handler(event: Event) -> None:
        if event.data < 2:
            await asyncio.sleep(1)
            try:
                await router.emit(Event("a", event.data + 2))
            except LaneFull as error:
                refused.append(str(error))

    router.handle("a", handler, concurrency=2)
    async with running(router):
        for number in range(2):
            await router.emit(Event("a", number))
            await clock.settle()
        await clock.advance(10)
        assert router.lanes()[0].running == 0
    assert len(refused) == 1
    assert "full (2 running and 0 waiting)" in refused[0]


async def test_a_wait_is_not_refused_while_a_handler_of_the_cycle_can_continue(clock: Clock) -> None:
    router, ended = Router(buffer=0), list[str]()

    async def two(event: Event) -> None:
        await asyncio.sleep(1)
        await router.emit(Event(event.data))
        ended.append(f"two/{event.data}")

    async def back(event: Event) -> None:
        await asyncio.sleep(2)
        await router.emit(Event("two/x", "other"))
        ended.append("back")

    router.handle("two/*", two, concurrency=2)
    router.handle("back", back)
    router.handle("other", Work(10))
    async with running(router):
        # The first call to `two` waits for space in the lane of `other`, and can continue later. The second call waits
        # for the lane of `back`, whose handler waits for the lane of `two`.
        await router.emit(Event("other", 0))
        await router.emit(Event("back"))
        for data in ("other", "back"):
            await router.emit(Event("two/x", data))
            await clock.settle()
        await clock.advance(60)
    assert sorted(ended) == ["back", "back", "two/back", "two/other", "two/other", "two/other"]


@pytest.mark.parametrize("hands", [1, 2])
async def test_a_cycle_of_waiting_lanes_raises_lane_full(clock: Clock, hands: int) -> None:
    router, raised_ = Router(buffer=1), list[str]()

    def passing(target: str) -> Any:
        async def handler(event: Event) -> None:
            for _ in range(4):
                try:
                    await router.emit(Event(target, event.data - 1))
                except LaneFull as error:
                    raised_.append(str(error))
            await asyncio.sleep(0.1)

        return handler

    router.handle("a", passing("b"), concurrency=hands)
    router.handle("b", passing("c"), concurrency=hands)
    router.handle("c", passing("a"), concurrency=hands)
    async with running(router):
        await router.emit(Event("a", 3))
        # The handlers keep emitting events, and all lanes must make progress.
        before = router.state().handled
        await clock.advance(50)
        assert router.state().handled > before + 50
        assert any("wait for itself" in text for text in raised_)
        for name in "abc":
            router.remove(name)
        await clock.advance(10)


async def test_passing_events_on_in_a_cycle_of_full_lanes_does_not_deadlock(clock: Clock) -> None:
    router, refused, handled = Router(buffer=0), list[str](), list[int]()

    async def passes(_event: Event) -> None:
        await asyncio.sleep(1)
        raise NotHandled

    async def emits(event: Event) -> None:
        handled.append(event.data)
        await asyncio.sleep(1)
        try:
            for _ in range(4):
                await router.emit(Event("a/b", event.data + 1))
        except LaneFull as error:
            refused.append(str(error))

    router.handle("a/b", passes)
    router.handle("**", emits)
    async with running(router):
        await router.emit(Event("a/b", 0))
        await clock.advance(40)
        assert len(handled) > 5
        # An event is rejected if it would wait for an event that is waiting for it. Here, handlers emit both events.
        assert len(refused) + router.state().failed > 0
        router.remove("a/b")
        await clock.advance(40)


async def test_passing_an_event_on_fails_if_the_handler_would_wait_for_itself(clock: Clock) -> None:
    router = Router(buffer=1)
    waits = asyncio.Event()

    async def passes(_event: Event) -> None:
        await waits.wait()
        raise NotHandled

    async def emits(event: Event) -> None:
        if event.data == "emits":
            waits.set()
            await router.emit(Event("a/b", "third"))

    router.handle("a/b", passes)
    router.handle("**", emits)
    async with running(router):
        first = await router.emit(Event("a/b", "first"))
        await clock.settle()
        second = await router.emit(Event("a/b", "second"))
        emitting = await router.emit(Event("c", "emits"))
        await router.emit(Event("c", "waits"))
        await clock.advance(10)
        assert (first.done, second.done, emitting.done) == (True, True, True)
        assert isinstance(first.error, LaneFull)
        assert "wait for itself" in str(first.error)


# -- drop --------------------------------------------------------------------------------------------------------


async def test_drop_drops_events_that_arrive_while_the_handler_runs(clock: Clock) -> None:
    router, work, announced = Router(), Work(), list[str]()

    @hooks.event_dropped.connect
    def note(_sender: object, *, event: Event, pattern: str, reason: str) -> None:
        announced.append(f"{event.data} {pattern}")

    router.handle("a", work, busy="drop")
    try:
        async with running(router):
            deliveries = [await router.emit(Event("a", number)) for number in range(3)]
            with pytest.raises(Dropped):
                await deliveries[2]
            await clock.advance(1)
            await (await router.emit(Event("a", 3)))
    finally:
        hooks.event_dropped.disconnect(note)
    assert work.ended == [0, 3]
    assert announced == ["1 a", "2 a"]
    assert router.state().dropped == 2


@pytest.mark.parametrize(("concurrency", "ends"), [(1, [1, 2, 3, 4]), (2, [1, 1, 2, 2]), (8, [1, 1, 1, 1])])
async def test_events_queued_before_the_start_use_the_whole_concurrency(
    clock: Clock, concurrency: int, ends: list[int]
) -> None:
    ended: list[float] = []

    async def handle(_: Event) -> None:
        await asyncio.sleep(1)
        ended.append(clock.time())

    router = Router()
    router.handle("a", handle, concurrency=concurrency)
    for _ in range(4):
        router.emit_nowait(Event("a"))
    async with running(router):
        await clock.advance(5)
    assert ended == ends


async def test_drop_allows_as_many_handlers_as_the_concurrency(clock: Clock) -> None:
    router, work = Router(), Work()
    router.handle("a", work, busy="drop", concurrency=2)
    async with running(router):
        for number in range(4):
            await router.emit(Event("a", number))
        await clock.advance(5)
    assert work.ended == [0, 1]


# -- restart -----------------------------------------------------------------------------------------------------


async def test_restart_cancels_the_running_handler_and_calls_never_overlap(clock: Clock) -> None:
    router = Router()
    work = Work()

    async def build(event: Event) -> None:
        try:
            await work(event)
        except asyncio.CancelledError:
            work.now += 1
            await asyncio.sleep(0.5)  # the cancelled handler needs time to stop
            work.log.append(f"cleaned {event.data}")
            work.now -= 1
            raise

    router.handle("a", build, busy="restart")
    async with running(router):
        first = await router.emit(Event("a", 0))
        await clock.advance(0.2)
        middle = [await router.emit(Event("a", number)) for number in range(1, 5)]
        await clock.advance(0.2)
        last = await router.emit(Event("a", 5))
        await clock.advance(5)
        for superseded in (first, *middle):
            with pytest.raises(Dropped) as raised:
                await superseded
            assert raised.value.superseded
        await last
    assert work.log == ["begin 0", "cancelled 0", "cleaned 0", "begin 5", "end 5"]
    assert work.most == 1
    state = router.state()
    assert (state.routed, state.handled, state.failed, state.dropped) == (6, 1, 0, 5)


@pytest.mark.parametrize("running_already", [True, False])
async def test_restart_keeps_the_newest_events_up_to_the_concurrency(clock: Clock, running_already: bool) -> None:
    router, work = Router(), Work()
    router.handle("a", work, busy="restart", concurrency=3)
    async with running(router) if running_already else nullcontext():
        for number in range(5):
            await router.emit(Event("a", number))
            await clock.settle()
        await clock.advance(2)
    async with running(router):
        await clock.advance(2)
    assert sorted(work.ended) == [2, 3, 4]
    state = router.state()
    assert (state.routed, state.handled, state.dropped) == (5, 3, 2)


async def test_restart_cancels_the_oldest_event_and_not_the_oldest_task(clock: Clock) -> None:
    router, log = Router(), list[str]()

    async def build(event: Event) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            log.append(f"cancelled {event.data}")
            await asyncio.sleep(2)
            raise

    router.handle("other", Work(1), lane="one", concurrency=3)
    router.handle("build", build, busy="restart", lane="one", concurrency=3)
    async with running(router):
        await router.emit(Event("other", 0))
        # Event 3 cancels event 1, whose handler takes two seconds to stop. After one second, the handler of `other`
        # finishes and frees the lane's oldest task, which then handles event 3.
        for number in (1, 2, 3):
            await router.emit(Event("build", number))
            await clock.settle()
        await clock.advance(5)
        for number in (4, 5):
            await router.emit(Event("build", number))
            await clock.settle()
        assert log == ["cancelled 1", "cancelled 2"]
        router.remove("build")
        await clock.advance(200)


if sys.version_info >= (3, 12):

    async def test_restart_cancels_what_runs_also_where_tasks_start_eagerly(clock: Clock) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        router, work = Router(), Work()
        router.handle("a", work, busy="restart")
        router.handle("quick", recorder := Recorder())
        async with running(router):
            for number in range(3):
                await router.emit(Event("a", number))
                await clock.advance(0.1)
                await (await router.emit(Event("quick")))
            await clock.advance(2)
        assert work.log == ["begin 0", "cancelled 0", "begin 1", "cancelled 1", "begin 2", "end 2"]
        assert len(recorder.events) == 3

    async def test_only_awaiting_raises_what_a_handler_passes_on_also_where_tasks_start_eagerly() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        router = Router()

        @router.on("a")
        async def passes(_event: Event) -> None:
            raise NotHandled("not mine")

        async with running(router):
            for sent in (await router.emit(Event("a")), router.emit_nowait(Event("a"))):
                with pytest.raises(NotHandled, match="not mine"):
                    await sent
        assert router.state().unrouted == 2


async def test_restart_waits_for_a_handler_that_ignores_its_cancellation(clock: Clock) -> None:
    router, log = Router(), list[str]()

    async def stubborn(event: Event) -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                log.append("asked")
        log.append(f"end {event.data}")

    router.handle("a", stubborn, busy="restart")
    async with running(router):
        await router.emit(Event("a", 0))
        await clock.advance(0.5)
        await router.emit(Event("a", 1))
        await clock.advance(10)
    assert log == ["asked", "end 0", "end 1"]
    assert router.state().handled == 2


async def test_restart_does_not_cancel_other_routes_of_a_shared_lane(clock: Clock) -> None:
    router, other, own = Router(), Work(), Work()
    router.handle("other", other, lane="one")
    router.handle("own", own, lane="one", busy="restart")
    async with running(router):
        await router.emit(Event("other", 0))
        await clock.advance(0.5)
        for number in range(3):
            await router.emit(Event("own", number))
        await clock.advance(5)
    assert other.log == ["begin 0", "end 0"]
    assert own.log == ["begin 2", "end 2"]


async def test_a_restart_that_fails_while_it_is_cancelled_is_a_failure(clock: Clock) -> None:
    router = Router()

    async def fails(event: Event) -> None:
        try:
            await asyncio.sleep(event.data)
        except asyncio.CancelledError:
            raise RuntimeError("could not clean up") from None

    router.handle("a", fails, busy="restart")
    async with running(router):
        first = await router.emit(Event("a", 5))
        await clock.settle()
        second = await router.emit(Event("a", 0))
        with pytest.raises(RuntimeError, match="could not clean up"):
            await first
        await second


# -- handlers that misbehave -------------------------------------------------------------------------------------


async def test_a_handler_that_raises_ends_its_delivery_and_nothing_else(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router, announced = Router(), list[tuple[Any, ...]]()

    @hooks.handler_failed.connect
    def note(sender: object, *, event: Event, pattern: str, error: BaseException) -> None:
        announced.append((sender, event.data, pattern, type(error)))

    async def fails(event: Event) -> None:
        if event.data == 1:
            raise KeyError("missing")

    router.handle("a/*", fails)
    try:
        async with running(router):
            deliveries = [await router.emit(Event("a/b", number)) for number in range(3)]
            await deliveries[0]
            with pytest.raises(KeyError, match="missing"):
                await deliveries[1]
            await deliveries[2]
            assert router.state().running
    finally:
        hooks.handler_failed.disconnect(note)
    assert announced == [(router, 1, "a/*", KeyError)]
    state = router.state()
    assert (state.routed, state.handled, state.failed) == (3, 2, 1)
    logged = caplog.text
    assert "a/b" in logged
    assert "'a/*'" in logged
    assert "KeyError" in logged


async def test_a_stray_cancellation_is_a_failure(clock: Clock) -> None:
    router = Router()

    async def gives_up(event: Event) -> None:
        if event.data == 0:
            raise asyncio.CancelledError

    router.handle("a", gives_up)
    async with running(router):
        first = await router.emit(Event("a", 0))
        second = await router.emit(Event("a", 1))
        await second
        # The error is not a bare CancelledError: a task that awaits the delivery would mistake that for its own
        # cancellation.
        with pytest.raises(LifecycleError, match="although it was not cancelled") as failed:
            await first
        assert isinstance(failed.value.__cause__, asyncio.CancelledError)
    assert router.state().failed == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_and_system_exit_pass_through(kind: type[BaseException]) -> None:
    router = Router()

    def leave(_event: Event) -> None:
        raise kind

    async def main() -> None:
        async with running(router):
            await (await router.emit(Event("a")))

    router.handle("a", leave)
    with pytest.raises(kind):
        asyncio.run(main())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_the_delivery_of_a_handler_that_raises_system_exit_fails(kind: type[BaseException]) -> None:
    router, deliveries, ended = Router(), list[Any](), list[Any]()

    async def leave(_event: Event) -> None:
        raise kind(3)

    async def main() -> None:
        async with running(router):
            deliveries.append(await router.emit(Event("a")))
            await asyncio.Event().wait()

    @hooks.delivery_ended.connect
    def note(_sender: object, *, delivery: Any) -> None:
        ended.append(delivery)

    router.handle("a", leave)
    try:
        with pytest.raises(kind):
            asyncio.run(main())
    finally:
        hooks.delivery_ended.disconnect(note)
    assert deliveries == ended
    # The error is not the SystemExit itself, which would end every task that awaits the delivery.
    assert isinstance(deliveries[0].error, LifecycleError)
    assert isinstance(deliveries[0].error.__cause__, kind)
    assert router.state().failed == 1


async def test_a_handler_that_never_waits_does_not_starve_others(clock: Clock, recorder: Recorder) -> None:
    router, endless = Router(buffer=10), 0

    def again(event: Event) -> None:
        nonlocal endless
        endless += 1
        if not recorder.events:
            router.emit_nowait(event)

    router.handle("a", again)
    router.handle("b", recorder)
    async with running(router):
        await router.emit(Event("a"))
        await router.emit(Event("b"))
        await clock.settle()
    assert recorder.topics == ["b"]
    assert endless < 5000


# -- passing on --------------------------------------------------------------------------------------------------


async def test_not_handled_passes_the_event_to_the_next_most_specific_route(clock: Clock) -> None:
    router, log = Router(), list[str]()

    def passing(name: str) -> Any:
        def handler(_event: Event) -> None:
            log.append(name)
            raise NotHandled(name)

        return handler

    router.handle("**", lambda _: log.append("**"))
    router.handle("a/b", passing("a/b"))
    router.handle("a/*", passing("a/*"), debounce=0.5)
    async with running(router):
        delivery = await router.emit(Event("a/b"))
        await delivery
        assert clock.time() == pytest.approx(0.5)
    await call_directly(router, Event("a/b"))
    assert log == ["a/b", "a/*", "**"] * 2
    state = router.state()
    assert (state.routed, state.handled, state.failed, state.unrouted) == (3, 1, 0, 0)


async def test_an_event_that_all_handlers_pass_is_unrouted(clock: Clock) -> None:
    router = Router()

    def passes(_event: Event) -> None:
        raise NotHandled("not mine")

    router.handle("a", passes)
    router.handle("*", passes)
    async with running(router):
        delivery = await router.emit(Event("a"))
        with pytest.raises(NotHandled, match="not mine"):
            await delivery
    with pytest.raises(NotHandled, match="not mine"):
        await call_directly(router, Event("a"))
    assert router.state().unrouted == 1
    assert router.state().failed == 0


async def test_dropped_is_counted_and_not_passed_on(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    def drops(_event: Event) -> None:
        raise Dropped("enough")

    router.handle("a", drops)
    router.handle("**", recorder)
    async with running(router):
        delivery = await router.emit(Event("a"))
        with pytest.raises(Dropped, match="enough") as raised:
            await delivery
        assert not raised.value.superseded
    with pytest.raises(Dropped):
        await call_directly(router, Event("a"))
    assert recorder.events == []
    assert router.state().dropped == 1


async def test_the_fallback_gets_events_that_no_route_took(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    def passes(_event: Event) -> None:
        raise NotHandled

    router.handle("a", passes)
    router.fallback(recorder)
    async with running(router):
        for topic in ("a", "nobody"):
            await (await router.emit(Event(topic)))
    assert recorder.topics == ["a", "nobody"]
    state = router.state()
    assert (state.unrouted, state.handled) == (2, 2)


async def test_an_event_that_the_fallback_passes_on_is_unrouted(clock: Clock) -> None:
    router = Router()

    @router.fallback
    def passes(_event: Event) -> None:
        raise NotHandled("nor I")

    async with running(router):
        delivery = await router.emit(Event("a"))
        with pytest.raises(NotHandled, match="nor I"):
            await delivery
    assert router.state().unrouted == 1


async def test_a_replaced_fallback_still_handles_its_accepted_events(clock: Clock, recorder: Recorder) -> None:
    router, old = Router(), Work()
    router.fallback(old)
    async with running(router):
        kept = [await router.emit(Event("x", number)) for number in range(2)]
        router.fallback(recorder)
        await (await router.emit(Event("y", 2)))
        for delivery in kept:
            await delivery
    assert old.ended == [0, 1]
    assert recorder.topics == ["y"]
    assert router.state().handled == 3


async def test_an_event_is_not_passed_on_to_a_route_that_was_removed(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    async def passes_late(_event: Event) -> None:
        await asyncio.sleep(1)
        raise NotHandled

    router.handle("a", passes_late)
    router.handle("*", recorder)
    async with running(router):
        delivery = await router.emit(Event("a"))
        await clock.settle()
        router.remove("*")
        with pytest.raises(NotHandled):
            await delivery
    assert recorder.events == []


async def test_passing_on_into_a_full_lane_waits_for_capacity(clock: Clock) -> None:
    router, work = Router(buffer=1), Work()

    def passes(_event: Event) -> None:
        raise NotHandled

    router.handle("a", passes)
    router.handle("*", work)
    async with running(router):
        deliveries = [await router.emit(Event("a", number)) for number in range(6)]
        for delivery in deliveries:
            await delivery
    assert work.ended == list(range(6))


async def test_a_cancelled_router_ends_events_that_are_being_passed_on(clock: Clock) -> None:
    router = Router(buffer=0)

    def passes(_event: Event) -> None:
        raise NotHandled

    router.handle("a", passes)
    router.handle("*", Work(1000))
    task = asyncio.create_task(router.run())
    deliveries = [await _when_room(router, Event("a", number), clock) for number in range(2)]
    await clock.settle()
    task.cancel()
    await asyncio.wait([task])
    assert [delivery.done for delivery in deliveries] == [True, True]
    assert router.state().dropped == 2


async def _when_room(router: Router, event: Event, clock: Clock) -> Any:
    await clock.settle()
    return await router.emit(event)


# -- removal -----------------------------------------------------------------------------------------------------


async def test_a_removed_route_still_gets_its_accepted_events(clock: Clock) -> None:
    router, work = Router(), Work()
    router.handle("a", work)
    router.handle("b", debounced := Recorder(), debounce=10)
    async with running(router):
        for number in range(3):
            await router.emit(Event("a", number))
        await router.emit(Event("b"))
        router.remove("a")
        router.remove("b")
        with pytest.raises(NotHandled):
            await router.emit(Event("a"))
        await clock.advance(5)
        assert debounced.topics == ["b"]
    assert work.ended == [0, 1, 2]
    assert router.state().handled == 4


@pytest.mark.parametrize("settings", [{}, {"busy": "drop"}, {"debounce": 0.1}, {"lane": "shared"}])
async def test_an_event_counts_although_a_receiver_removes_its_route(
    clock: Clock, recorder: Recorder, settings: dict[str, Any]
) -> None:
    router = Router()

    @hooks.delivery_accepted.connect
    def removing(_sender: object, **_: object) -> None:
        with suppress(RouteNotFound):
            router.remove("a")

    router.handle("a", recorder, **settings)
    try:
        async with running(router):
            await (await router.emit(Event("a")))
            await clock.settle()
            state = router.state()
            assert (state.routed, state.handled) == (1, 1)
            assert router.lanes() == []
    finally:
        hooks.delivery_accepted.disconnect(removing)
    assert recorder.topics == ["a"]


async def test_an_event_that_waits_for_a_removed_route_counts(clock: Clock) -> None:
    """The handler schedules a callback that reads the statistics before the emitter continues."""
    router = Router(buffer=0)

    async def handler(_event: Event) -> None:
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_soon(router.state)

    router.handle("a", handler)
    async with running(router):
        await router.emit(Event("a"))
        await clock.settle()
        waiting = asyncio.create_task(router.emit(Event("a")))
        await clock.settle()
        router.remove("a")
        await (await waiting)
        await clock.settle()
        state = router.state()
        assert (state.routed, state.handled) == (2, 2)
        assert router.lanes() == []


async def test_a_handler_may_remove_itself_and_add_another(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    def swap(_event: Event) -> None:
        router.remove("a")
        router.handle("a", recorder)

    router.handle("a", swap)
    async with running(router):
        for _ in range(3):
            await (await router.emit(Event("a")))
    assert len(recorder.events) == 2


async def test_a_fallback_that_a_receiver_registers_gets_the_event(clock: Clock) -> None:
    router, recorder = Router(), Recorder()

    @hooks.delivery_accepted.connect
    def register(_sender: Any, **_: Any) -> None:
        router.fallback(recorder)

    try:
        async with running(router):
            async with asyncio.timeout(60):
                await (await router.emit(Event("a")))
    finally:
        hooks.delivery_accepted.disconnect(register)
    assert recorder.topics == ["a"]


async def test_a_newer_event_restarts_a_handler_that_waits_to_pass_its_event_on(clock: Clock) -> None:
    router, seen = Router(buffer=0), []

    @router.on("a", busy="restart")
    async def pass_first(event: Event) -> None:
        seen.append(event.data)
        if event.data == 1:
            raise NotHandled("not mine")

    @router.fallback
    async def busy(_event: Event) -> None:
        await asyncio.sleep(10)

    async with running(router):
        await router.emit(Event("b"))
        first = await router.emit(Event("a", 1))
        await clock.advance(1)
        await (await router.emit(Event("a", 2)))
        assert (seen, clock.time()) == ([1, 2], 1)
        with pytest.raises(Dropped, match="cancelled while it passed the event on"):
            await first
