"""Watching: changes as they happen, at a limited rate. A slow reader receives the latest state.

Readers share snapshots.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle import hooks
from lifecycle.control import Event, Router
from lifecycle.observe import Update, nodes, watch
from lifecycle.runtime import lifetime
from lifecycle.testing import VirtualLoop, running
from lifecycle.workers import Backoff, ProbeResult, Spec, Supervisor, TaskWorker

if TYPE_CHECKING:
    from lifecycle.observe import Watch
    from lifecycle.testing import Clock


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing(_event: Event) -> None:
    pass


async def soon(changes: Watch) -> Update | None:
    """Return the next change, or None if no change arrives for a long time."""
    try:
        async with asyncio.timeout(1000):
            return await anext(changes)
    except TimeoutError:
        return None


async def test_the_first_update_has_everything_and_the_next_the_changes(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch() as changes:
        first = await anext(changes)
        assert list(first.nodes) == ["program", "lifetime", "router:r", "router:r/route:a"]
        await router.emit(Event("a"))
        second = await anext(changes)
        assert set(second.nodes) == {"router:r", "router:r/route:a", "router:r/lane:a"}
        assert second.snapshot.routers[0].handled == 1
        assert await soon(changes) is None


async def test_added_and_removed_components_are_updates(clock: Clock) -> None:
    async with lifetime(), watch() as changes:
        await anext(changes)
        async with TaskWorker("w", forever):
            change = await anext(changes)
            assert change.nodes["worker:w"] is not None
        change = await anext(changes)
        while change.nodes.get("worker:w", 0) is not None:
            change = await anext(changes)


async def test_a_child_that_waits_for_its_restart_is_unhealthy_or_is_removed_is_seen_when_it_happens(
    clock: Clock,
) -> None:
    crash, healthy = asyncio.Event(), True

    async def crashes() -> None:
        await crash.wait()
        raise ValueError("boom")

    class Probed(TaskWorker):
        async def probe(self) -> ProbeResult:
            return ProbeResult(healthy, "no disk")

    w = Spec("w", crashes, backoff=Backoff(initial=100, jitter=0))
    p = Spec("p", lambda: Probed("p", forever), probe_interval=10)
    async with lifetime(), Supervisor("top", w, p) as top, watch() as changes:
        await clock.advance(15)
        await anext(changes)

        async def seen(child: str, seconds: float) -> dict[str, Any]:
            await clock.advance(seconds)
            change = await soon(changes)
            assert change is not None
            return change.nodes[f"worker:top/{child}"] or {"status": "removed"}

        healthy = False
        assert (await seen("p", 10))["health"] == {"healthy": False, "message": "no disk"}
        crash.set()
        assert (await seen("w", 1))["status"] == "pending"
        await top.stop_child("w")
        assert (await seen("w", 1))["status"] == "stopped"
        await top.remove("w")
        assert (await seen("w", 1))["status"] == "removed"


async def test_a_crash_and_the_restart_are_seen(clock: Clock) -> None:
    crash = asyncio.Event()

    async def crashes() -> None:
        await crash.wait()
        crash.clear()
        raise ValueError("boom")

    async with (
        lifetime(),
        Supervisor("top", Spec("w", crashes, backoff=Backoff(initial=1, jitter=0))),
        watch() as changes,
    ):
        await anext(changes)
        crash.set()
        seen: list[object] = []
        while not (seen and seen[-1] == ("running", 1)):
            change = await anext(changes)
            node = change.nodes.get("worker:top/w")
            seen += [] if node is None else [(node["status"], node["restarts"])]
    assert (seen[0], seen[-1]) == (("pending", 0), ("running", 1))


async def test_updates_keep_the_interval_and_a_slow_reader_gets_the_newest(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch(interval=1.0) as changes:
        await anext(changes)
        began = clock.time()
        for _ in range(3):
            await router.emit(Event("a"))
            await anext(changes)
        assert clock.time() - began >= 3
        for _ in range(50):
            await router.emit(Event("a"))
            await clock.advance(1)
        change = await anext(changes)
        assert change.snapshot.routers[0].handled == 53
        assert await soon(changes) is None


async def test_readers_do_not_slow_each_other(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch(interval=0.1) as quick, watch(interval=10) as slow:
        await anext(slow)
        began = clock.time()
        await anext(quick)
        for _ in range(3):
            await router.emit(Event("a"))
            await anext(quick)
        assert clock.time() - began < 1
        change = await anext(slow)
        assert clock.time() - began >= 10
        assert change.snapshot.routers[0].handled == 3


async def test_an_update_comes_each_time_a_state_begins_or_ceases_to_raise(clock: Clock) -> None:
    class Moody:
        name = "moody"
        asked = 0

        def state(self) -> int:
            self.asked += 1
            if self.asked % 2 == 0:
                raise ValueError("not now")
            return 1

    moody = Moody()
    async with lifetime(), watch(moody) as changes:
        seen: list[str] = []
        for _ in range(4):
            node = (await anext(changes)).nodes["component:moody"]
            assert node is not None
            seen.append(node["status"])
            hooks.component_changed.announce(moody, component=moody)
    assert seen == ["running", "unknown", "running", "unknown"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_all_updates_together_make_the_current_nodes(steps: list[tuple[int, int]]) -> None:
    """Each of two readers can reconstruct the state, for any sequence of changes between two reads."""

    class Part:
        name = "part"
        said = 0

        def state(self) -> int:
            return self.said

    async def story() -> None:
        parts = [Part() for _ in range(4)]
        for number, part in enumerate(parts):
            part.name = f"part-{number}"
        there: dict[int, Any] = {}
        async with lifetime(signals=False) as life, watch() as one, watch() as two:
            tables: list[dict[str, object]] = [{}, {}]
            for reader, number in [*steps, (0, 0), (1, 1), (0, 2), (1, 3)]:
                part = parts[number]
                part.said += 1
                if number in there:
                    there.pop(number).end()
                else:
                    there[number] = life.add(part)
                # A component that appeared and disappeared between two reads is not reported as a change.
                if reader < 2 and (change := await soon((one, two)[reader])):
                    table = tables[reader]
                    table.update(change.nodes)
                    tables[reader] = {key: node for key, node in table.items() if node is not None}
                    assert tables[reader] == nodes(change.snapshot)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())


async def test_readers_share_a_snapshot(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch() as one, watch() as two:
        assert (await anext(one)).snapshot is (await anext(two)).snapshot
        await router.emit(Event("a"))
        first, second = await asyncio.gather(anext(one), anext(two))
        assert first.snapshot is second.snapshot
        assert first.nodes is second.nodes


async def test_each_reader_gets_the_changes_since_its_last_update(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    router.handle("b", nothing)
    async with lifetime(), running(router), watch() as quick, watch() as slow:
        await anext(slow)
        await anext(quick)
        await router.emit(Event("a"))
        assert "router:r/lane:a" in (await anext(quick)).nodes
        await router.emit(Event("b"))
        assert "router:r/lane:a" not in (await anext(quick)).nodes
        assert {"router:r/lane:a", "router:r/lane:b"} <= set((await anext(slow)).nodes)


async def test_only_the_given_components_are_watched(clock: Clock) -> None:
    router = Router("r")
    async with running(router), watch(router) as changes:
        assert list((await anext(changes)).nodes) == ["program", "router:r"]
        async with TaskWorker("w", forever):
            assert await soon(changes) is None


async def test_leaving_the_block_ends_a_waiting_reader(clock: Clock) -> None:
    async with lifetime():
        async with watch() as changes:
            await anext(changes)
            waiting = asyncio.create_task(_all(changes))
            await clock.advance(1)
        assert await waiting == []


async def _all(changes: Watch) -> list[Update]:
    return [change async for change in changes]


async def test_a_cancelled_follower_can_continue(clock: Clock) -> None:
    async with lifetime(), watch() as changes:
        await anext(changes)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(changes)
        async with TaskWorker("w", forever):
            assert "worker:w" in (await anext(changes)).nodes


async def test_a_thread_may_announce_too(clock: Clock) -> None:
    state = 0

    class Component:
        name = "mine"

        def state(self) -> int:
            return state

    own = Component()
    async with lifetime(), watch(own) as changes:
        await anext(changes)
        state = 1
        thread = threading.Thread(target=lambda: hooks.component_changed.announce(own, component=own))
        thread.start()
        thread.join()
        assert (await anext(changes)).nodes["component:mine"]["state"] == 1  # type: ignore[index]  # it is there


async def test_no_hook_is_connected_without_watchers(clock: Clock) -> None:
    async with lifetime():
        before = len(hooks.source_failed.receivers)
        async with watch() as changes:
            await anext(changes)
            assert len(hooks.source_failed.receivers) == before + 1
        del changes
        gc.collect()
        await asyncio.sleep(0)
        hooks.source_failed.announce(None, source=None, error=None, restart_in=None)
        assert len(list(hooks.source_failed.receivers_for(None))) == before


async def test_under_load_no_hook_is_connected_between_two_updates(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch() as changes:
        await anext(changes)
        assert hooks.delivery_ended.receivers
        await router.emit(Event("a"))
        assert not hooks.delivery_ended.receivers
        await anext(changes)
        assert hooks.delivery_ended.receivers


async def test_watch_outside_a_lifetime_needs_components(clock: Clock) -> None:
    with pytest.raises(LookupError, match="no lifetime"):
        watch()


async def test_old_snapshots_are_freed(clock: Clock) -> None:
    router = Router("r")
    router.handle("a", nothing)
    async with lifetime(), running(router), watch() as changes, watch(interval=3.0) as slow:
        for number in range(30):
            await router.emit(Event("a"))
            await anext(changes)
            if number % 10 == 0:
                await anext(slow)
        gc.collect()
        assert sum(type(each).__name__ == "_Sight" for each in gc.get_objects()) <= 3
