"""Snapshots: all components as records, plain data and a flat table, with errors in place of unreadable states."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]  # it has no stubs
import pytest

from lifecycle import hooks
from lifecycle._util import current_span
from lifecycle.control import Event, Router
from lifecycle.flows import Flows, JobQueue, linear, task
from lifecycle.observe import Snapshot, context, nodes, snapshot
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from lifecycle.workers import Exit, ProbeResult, Spec, Status, Supervisor, TaskWorker, WorkerState
from tools.snapshot_schema import PAGE, snapshot_schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.control import RouteInfo
    from lifecycle.testing import Clock

#: Unusual names that careless code handles incorrectly.
NASTY = ("\"'`<b>&amp;</b>", "näh 🦊", "two\nlines", "\ud800", "a/b#2", " ")


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing(_event: Event) -> None:
    pass


async def watch_nothing() -> AsyncIterator[Event]:
    """A source without events."""
    await forever()
    yield Event("never")


@task
async def wait_for_ever() -> None:
    await forever()


def as_json(state: Any) -> Any:
    """Return the result of a strict JSON parser."""
    return json.loads(json.dumps(state, allow_nan=False))


class Component:
    """A third-party component with or without a state."""

    name = "mine"

    def __init__(self, state: object = None) -> None:
        self._state = state

    def state(self) -> object:
        if isinstance(self._state, Exception):
            raise self._state
        return self._state


# -- contents -----------------------------------------------------------------------------------------------------


async def test_a_snapshot_has_all_that_lives_here(clock: Clock) -> None:
    router = Router("front")
    router.handle("a/*", nothing)
    router.observe("**", nothing)
    async with (
        lifetime() as life,
        running(router),
        Flows() as flows,
        Supervisor("top", Spec("w", forever)),
        TaskWorker("alone", forever),
    ):
        flows.start(linear("steps", wait_for_ever), id="f-1")
        await (await router.emit(Event("a/b")))
        await clock.advance(3)
        found = snapshot()
    assert found.lifetime is not None
    assert not found.lifetime.stopping
    assert found.program.started_at == life.started_at
    [front] = found.routers
    assert (front.name, front.running, front.handled) == ("front", True, 2)
    assert [(route.pattern, route.also) for route in front.routes] == [
        ("a/*", False),
        ("** (observed by nothing)", True),
    ]
    assert [(lane.name, lane.waiting, lane.running) for lane in front.lanes] == [
        ("** (observed by nothing)", 0, 0),
        ("a/*", 0, 0),
    ]
    top, alone = found.workers
    assert (top.name, top.kind, [each.name for each in top.children]) == ("top", "supervisor", ["w"])
    assert (alone.name, alone.status) == ("alone", "running")
    assert alone.uptime is not None
    [[run]] = [each.runs for each in found.flows]
    assert (run.id, run.name, [item.name for item in run.root.items]) == ("f-1", "steps", ["wait_for_ever"])
    assert found.errors == ()


async def test_only_the_given_components_are_in_a_snapshot(clock: Clock) -> None:
    router = Router("one")
    async with lifetime(), running(Router("other")):
        assert [each.name for each in snapshot(router).routers] == ["one"]
    found = snapshot(router, Component({"a": 1}))
    assert (found.lifetime, found.program.started_at) == (None, None)
    assert [(each.name, each.kind, each.state) for each in found.others] == [("mine", "Component", {"a": 1})]


def test_a_snapshot_outside_a_lifetime_needs_components() -> None:
    with pytest.raises(LookupError, match="pass the components"):
        snapshot()


async def test_a_running_queue_shows_the_number_of_its_jobs(clock: Clock) -> None:
    async with lifetime(), Flows() as flows:
        queue = JobQueue(flows)
        for _ in range(3):
            await queue.enqueue("steps")
        work = asyncio.create_task(queue.work({"steps": linear("steps", wait_for_ever)}, concurrency=1))
        await clock.advance(2.5)
        [found] = snapshot().queues
        assert found.depths == {"UNCLAIMED": 2, "CLAIMED": 1}
        assert nodes(snapshot())["queue"]["depths"] == found.depths
        work.cancel()
        await asyncio.wait([work])
        assert snapshot().queues == ()


async def test_a_count_that_changes_is_announced(clock: Clock) -> None:
    received: list[object] = []
    receive = hooks.component_changed.connect(lambda _sender, component: received.append(component))
    try:
        async with Flows() as flows:
            queue = JobQueue(flows)
            work = asyncio.create_task(queue.work({"steps": linear("steps", wait_for_ever)}))
            await clock.advance(2)
            before = len(received)
            await queue.enqueue("steps")
            await clock.advance(2)
            assert before == 1
            assert received == [queue, queue]
            work.cancel()
            await asyncio.wait([work])
    finally:
        hooks.component_changed.disconnect(receive)


# -- plain data ---------------------------------------------------------------------------------------------------


async def whole() -> Snapshot:
    """Build a snapshot of a program with one object of each kind, under any name."""
    router = Router(NASTY[0])
    router.handle("a/*", nothing)
    router.observe("**", nothing)
    router.add_source(watch_nothing)
    specs = [Spec(name, forever) for name in NASTY]
    async with lifetime() as life, Flows() as flows, Supervisor("top", *specs), TaskWorker(NASTY[3], forever):
        flows.start(linear("steps", wait_for_ever))
        await asyncio.sleep(1)
        odd = Component(
            {1: float("nan"), "x": {1, 2}, "deep": [[[[[[[[[["!"]]]]]]]]]], "b": b"\xff", "e": ValueError("v")}
        )
        return snapshot(router, *life.components(), odd, Component(ValueError("no state today")))


async def test_to_dict_equals_asdict_as_json(clock: Clock) -> None:
    found = await whole()
    assert as_json(dataclasses.asdict(found)) == as_json(found.to_dict())


async def test_a_snapshot_matches_the_schema(clock: Clock) -> None:
    schema = snapshot_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(as_json((await whole()).to_dict()), schema)
    jsonschema.validate(as_json(snapshot(Router()).to_dict()), schema)


def test_the_schema_in_the_documentation_is_this_one() -> None:
    """``python -m tools.snapshot_schema`` updates the schema."""
    assert json.loads(PAGE.read_text(encoding="utf-8")) == snapshot_schema()


async def test_records_do_not_change(clock: Clock) -> None:
    found = snapshot(TaskWorker("w", forever))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.workers[0].name = "v"  # type: ignore[misc]  # bad input


# -- the table ----------------------------------------------------------------------------------------------------


async def test_each_node_has_a_unique_id_and_comes_after_its_parent(clock: Clock) -> None:
    table = nodes(await whole())
    seen: set[str | None] = {None}
    for key, node in table.items():
        assert node["id"] == key
        assert node["parent"] in seen
        assert isinstance(node["name"], str)
        assert isinstance(node["status"], str)
        seen.add(key)
    assert {node["kind"] for node in table.values()} >= {"program", "router", "route", "source", "supervisor"}
    as_json(table)


async def test_equal_names_are_numbered_and_children_have_paths(clock: Clock) -> None:
    async with (
        Supervisor("top", Spec("w", forever)) as top,
        TaskWorker("a", forever) as a,
        TaskWorker("a", forever) as b,
    ):
        table = nodes(snapshot(top, a, b))
    assert [key for key in table if key.startswith("worker")] == [
        "worker:top",
        "worker:top/w",
        "worker:a",
        "worker:a#2",
    ]
    assert table["worker:top/w"]["parent"] == "worker:top"
    assert (table["worker:top/w"]["kind"], table["worker:top/w"]["type"]) == ("worker", "task")


async def test_a_node_stays_equal_as_long_as_nothing_but_time_has_passed(clock: Clock) -> None:
    router = Router()
    router.handle("a", nothing)
    async with lifetime(), running(router), Supervisor("top", Spec("w", forever)):
        before = nodes(snapshot())
        await clock.advance(100)
        assert nodes(snapshot()) == before


# -- bad states ---------------------------------------------------------------------------------------------------


class Odd:
    """A third-party worker whose state cannot be read."""

    def __init__(self) -> None:
        self.status = Status.CREATED
        self._over = asyncio.Event()

    async def start(self) -> None:
        self.status = Status.RUNNING

    async def stop(self, timeout: float | None = None) -> None:
        self.status = Status.STOPPED
        self._over.set()

    async def wait(self) -> Exit:
        await self._over.wait()
        return Exit(Status.STOPPED)

    def state(self) -> WorkerState:
        raise RuntimeError("I do not know")


async def test_a_state_that_raises_is_shown_where_it_belongs_and_the_rest_is_as_it_is(clock: Clock) -> None:
    async with Supervisor("top", Spec("odd", Odd), Spec("well", forever)) as top:
        found = snapshot(top, Odd(), Component(ValueError("no state today")))
    first, second = found.workers
    assert [(each.name, each.status, each.error) for each in first.children] == [
        ("odd", "running", "state() failed: I do not know"),
        ("well", "running", None),
    ]
    assert (second.name, second.status, second.error) == ("Odd", "unknown", "RuntimeError: I do not know")
    assert found.others[0].error == "ValueError: no state today"
    assert found.errors == ("Odd: RuntimeError: I do not know", "mine: ValueError: no state today")
    table = nodes(found)
    assert (table["worker:Odd"]["status"], table["component:mine"]["status"]) == ("unknown", "unknown")
    assert table["component:mine"]["error"] == "ValueError: no state today"


def worker(name: Any = "w", **values: Any) -> WorkerState:
    """A worker's state with arbitrary values."""
    return WorkerState(name, "task", Status.RUNNING, **values)


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("no representation")


async def test_any_state_of_a_component_can_be_shown(clock: Clock) -> None:
    async def coroutine() -> int:
        return 1

    class Later:
        def state(self) -> object:
            return coroutine()

    class Nothing:
        pass

    bad = Component(worker(children=7))
    found = snapshot(Component(Unspeakable()), Component(7), Later(), Nothing(), bad, Component({Unspeakable(): 1}))
    assert [each.state for each in found.others[:2]] == ["<Unspeakable that cannot be shown>", 7]
    assert len(found.errors) == 3
    assert "plain function" in found.errors[0]
    as_json(found.to_dict())


class Broken(Router):
    """A router that cannot list its routes."""

    def routes(self) -> list[RouteInfo]:
        raise ValueError("no representation")


async def test_a_router_of_which_a_part_fails_still_shows_the_others() -> None:
    router = Broken("r")
    router.add_source(watch_nothing)
    [found] = snapshot(router).routers
    assert (found.routes, [each.name for each in found.sources]) == ((), ["watch_nothing"])
    assert found.error == "ValueError: no representation"


async def test_endless_values_are_cut(clock: Clock) -> None:
    endless: list[object] = []
    endless.append(endless)
    [first, second, third] = snapshot(Component(endless), Component(list(range(5000))), Component("x" * 50_000)).others
    as_json(first.state)
    assert len(second.state) == 1000
    assert len(third.state) < 20_000


@pytest.mark.parametrize(
    "state",
    [
        [10**5000],
        worker(error=ValueError("v")),
        worker(pid=b"7"),
        worker(name=b"w"),
        worker(started_at=float("nan")),
        worker(children=(worker(pid=object()),)),
        worker(health=ProbeResult(healthy=True, message=b"\xff")),  # type: ignore[arg-type]  # bad input
    ],
)
async def test_a_record_filled_with_anything_can_still_be_written_as_json(clock: Clock, state: object) -> None:
    found = snapshot(Component(state), Component(7))
    jsonschema.validate(as_json(found.to_dict()), snapshot_schema())
    assert found.others[-1].state == 7


async def test_a_child_with_a_bad_record_does_not_hide_its_siblings(clock: Clock) -> None:
    [top] = snapshot(Component(worker("top", children=(worker("bad", pid="x"), worker("good"))))).workers
    assert [(each.name, each.status) for each in top.children] == [("bad", "unknown"), ("good", "running")]


async def test_an_invalid_depth_is_an_error(clock: Clock) -> None:
    @dataclass
    class Queue:
        name: str
        kind: str
        depths: object

    found = snapshot(Component(Queue("q", "inbox", {"waiting": "many"})), Component(Queue("q", "queue", 7)))
    assert (found.inboxes, found.queues) == ((), ())
    assert ["depths=" in each.error for each in found.others if each.error] == [True, True]
    as_json(found.to_dict())


class Everything:
    """A callable object on which every attribute exists and is a number."""

    def __getattr__(self, name: str) -> int:
        if name == "__qualname__":
            return 7
        raise AttributeError(name)

    async def __call__(self, _event: Event) -> None:
        pass


async def test_a_handler_without_a_name_and_a_router_with_a_bad_one_can_be_shown() -> None:
    router = Router(b"r")  # type: ignore[arg-type]  # bad input
    router.handle("a", Everything())
    [found] = snapshot(router).routers
    assert (found.name, found.routes[0].handler) == ("Router", "Everything")


async def test_a_pool_whose_state_raises_is_still_a_pool() -> None:
    class Pool(Odd):
        name = "p"

        def stats(self) -> object:
            raise RuntimeError("nor this")

    [pool] = snapshot(Pool()).pools
    assert (pool.worker.name, pool.worker.status, pool.error) == ("p", "unknown", "RuntimeError: I do not know")


async def test_a_value_that_contains_itself_many_times_is_cut() -> None:
    wide: list[object] = []
    wide += [wide] * 500
    [found] = snapshot(Component(wide)).others
    assert len(json.dumps(found.state)) < 5_000_000


async def test_supervisors_nested_two_hundred_times_can_be_shown(clock: Clock) -> None:
    def nested(depth: int) -> Supervisor:
        specs = [Spec(f"s{depth - 1}", lambda: nested(depth - 1))] if depth else []
        return Supervisor(f"s{depth}", *specs)

    async with nested(200) as top:
        await clock.advance(1)
        found = snapshot(top)
    assert found.errors == ()
    assert len(nodes(found)) == 202
    as_json(found.to_dict())


# -- context of the running code ------------------------------------------------------------------------------------


async def test_context_has_event_worker_flow_and_span(clock: Clock) -> None:
    seen: list[dict[str, object]] = []

    async def look(_event: Event | None = None) -> None:
        seen.append(context())

    router = Router()
    router.handle("a", look)
    async with running(router):
        sent = await router.emit(Event("a"))
        await sent
    async with TaskWorker("w", look):
        await asyncio.sleep(1)
    async with Flows() as flows:
        await flows.start(linear("steps", task(lambda: seen.append(context()), name="look")), id="f-1")
    assert seen == [{"event_id": sent.id, "topic": "a"}, {"worker": "w"}, {"flow": "f-1"}]
    assert context() == {}
    token = current_span.set("00-1-2-01")
    assert context() == {"traceparent": "00-1-2-01"}
    current_span.reset(token)


# -- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
async def test_nothing_in_a_snapshot_shows_a_secret() -> None:
    """The secrets are in errors of workers, sources and flows, in messages of probes, and in custom states."""
    leak = "password=hunter2"

    class Ill(TaskWorker):
        async def probe(self) -> ProbeResult:
            return ProbeResult(healthy=False, message=leak)

    async def crash() -> None:
        raise OSError(leak)

    class Broken:
        name = "broken"

        async def run(self, _emit: object) -> None:
            raise OSError(leak)

    @task
    def charge() -> None:
        raise OSError(leak)

    router = Router()
    router.add_source(Broken(), restart="never")
    others = (
        Component(
            {
                "dsn": f"postgres://bob:hunter2@db/{leak}",
                "auth_token": "hunter2",
                "deep": [{"otp": 2}],
                "argv": ["--token", "hunter2"],
            }
        ),
        Component(ValueError(leak)),
    )
    supervisor = Supervisor("s", Spec("crash", crash, restart="never"), Spec("ill", lambda: Ill("ill", forever)))
    async with lifetime(signals=False), running(router), Flows() as flows, supervisor:
        with pytest.raises(OSError, match="hunter2"):
            await flows.start(charge, id="c")
        await asyncio.sleep(1)
        await supervisor.probe()
        found = snapshot(router, supervisor, flows, *others)
    text = json.dumps([found.to_dict(), nodes(found)])
    assert "hunter2" not in text
    assert text.count("password=***") >= 4
    assert found.others[0].state["auth_token"] == "***"
    assert found.others[0].state["deep"] == [{"otp": "***"}]
