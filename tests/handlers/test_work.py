"""`FlowHandler` and `PoolHandler`: routes that start flows and call into pools."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, Router
from lifecycle.control.router import call_directly
from lifecycle.errors import FlowError, JournalError, MissingDependencies, PoolBusy
from lifecycle.events import FileBatch, FileEvent, SuspendEvent, TerminateEvent, TickEvent, WebhookEvent
from lifecycle.flows import Flows, MemoryStore, current_task, linear, task
from lifecycle.handlers import FlowHandler, PoolHandler, ShutdownHandler, SuspendHandler, TerminateHandler
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.flows import FlowRow
    from lifecycle.testing import Clock


@pytest.fixture
async def flows(clock: Clock) -> AsyncIterator[Flows]:
    async with Flows() as flows:
        yield flows


def hook(delivery: str, body: bytes = b"main") -> WebhookEvent:
    return WebhookEvent("POST", "/deploy", {}, {}, body, delivery)


@task
def ref(body: str) -> str:
    return body.upper()


@task
def ship(ref: str) -> str:
    return f"{ref} as {current_task().flow}"


DEPLOY = linear("deploy", ref, ship)


async def outcome(run: Any) -> Any:
    return await run


async def test_an_event_starts_a_flow_with_the_values_it_takes(flows: Flows) -> None:
    run = await FlowHandler(flows, DEPLOY)(hook("d-1"))
    assert (await outcome(run))["ship"] == "MAIN as d-1"


async def test_a_repeated_event_finds_the_same_flow_even_after_its_end(flows: Flows) -> None:
    handler = FlowHandler(flows, DEPLOY)
    first = await handler(hook("d-1"))
    await outcome(first)
    again = await handler(hook("d-1", b"other"))
    assert (await outcome(again))["ref"] == "MAIN"
    assert len(await flows.store.flows()) == 1


async def test_an_id_with_invalid_characters_is_escaped(flows: Flows) -> None:
    run = await FlowHandler(flows, DEPLOY)(hook("d-\udcff"))
    assert (await outcome(run))["ship"] == "MAIN as d-\\udcff"


async def test_an_event_without_an_id_starts_a_flow_each_time(flows: Flows) -> None:
    handler = FlowHandler(flows, DEPLOY)
    for _ in range(2):
        await outcome(await handler(hook("")))
    assert len({row.id for row in await flows.store.flows()}) == 2


async def test_the_handler_returns_when_the_flow_is_stored(tmp_path: Path) -> None:
    async with Flows(tmp_path / "app.db") as flows:
        router = Router()
        router.handle("webhook/deploy", FlowHandler(flows, DEPLOY))
        async with running(router):
            await (await router.emit(hook("d-1")))
            [row] = await flows.store.flows()
        assert row.id == "d-1"
        await flows.start(DEPLOY, id="d-1", body="main")


async def test_a_flow_that_cannot_be_stored_is_the_handlers_error(clock: Clock) -> None:
    class Full(MemoryStore):
        async def create(self, flow: FlowRow) -> bool:
            raise JournalError("the disk is full")

    async with Flows(store=Full()) as flows:
        with pytest.raises(JournalError, match="full"):
            await FlowHandler(flows, DEPLOY)(hook("d-1"))


async def test_a_flow_that_fails_is_not_the_handlers_error(flows: Flows) -> None:
    @task
    def broken() -> None:
        raise OSError("no route")

    run = await FlowHandler(flows, broken)(SuspendEvent())
    with pytest.raises(OSError, match="no route"):
        await outcome(run)


def given(**names: Any) -> Any:
    """Return the argument."""
    source = f"def seen({', '.join(names)}): return dict({', '.join(f'{name}={name}' for name in names)})"
    scope: dict[str, Any] = {}
    exec(source, scope)
    return task(scope["seen"])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Event("deploy/new", {"ref": "v1", "extra": 1}), {"ref": "v1", "topic": "deploy/new"}),
        (Event("deploy/new", "v1"), {"data": "v1"}),
        (FileEvent("modified", Path("a/b")), {"path": "a/b", "change": "modified"}),
        (TickEvent(datetime(2026, 1, 2, tzinfo=UTC), 3), {"time": "2026-01-02T00:00:00+00:00", "count": 3}),
        (
            hook("d-1", b"caf\xc3\xa9 \xff"),
            {
                "event": {
                    "method": "POST",
                    "path": "/deploy",
                    "headers": {},
                    "query": {},
                    "body": "café \\xff",
                    "id": "d-1",
                    "topic": "webhook/deploy",
                }
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_values_of_a_flow_are_taken_from_the_event(flows: Flows, event: Any, expected: dict[str, Any]) -> None:
    run = await FlowHandler(flows, given(**expected))(event)
    assert (await outcome(run))["seen"] == expected


async def test_values_that_a_task_provides_are_not_taken_from_the_event(flows: Flows) -> None:
    @task
    def topic() -> str:
        return "its own"

    @task
    def say(topic: str) -> str:
        return topic

    run = await FlowHandler(flows, linear("talk", topic, say))(SuspendEvent())
    assert (await outcome(run))["say"] == "its own"


async def test_a_value_missing_from_the_event_raises_before_the_start(flows: Flows) -> None:
    with pytest.raises(MissingDependencies, match="'body'"):
        await FlowHandler(flows, DEPLOY)(SuspendEvent())
    assert not await flows.store.flows()


async def test_values_that_cannot_be_stored_raise(flows: Flows) -> None:
    with pytest.raises(FlowError, match="cannot be stored as JSON"):
        await FlowHandler(flows, given(data=1))(Event("x", object()))


async def test_the_id_of_another_flow_raises(flows: Flows) -> None:
    await outcome(await FlowHandler(flows, DEPLOY)(hook("d-1")))
    with pytest.raises(FlowError, match="belongs to flow"):
        await FlowHandler(flows, given(event=1))(hook("d-1"))


async def test_invalid_flows_raise_at_once(flows: Flows) -> None:
    with pytest.raises(TypeError, match="expected Flows"):
        FlowHandler(object(), DEPLOY)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="expected a workflow, a flow or a task"):
        FlowHandler(flows, "deploy")


# -- with the handlers that suspend and stop a program --------------------------------------------------------------


def steps(done: list[int], running: asyncio.Event | None = None) -> Any:
    """Three one-second steps that append their numbers to ``done``. ``running`` is set when a step begins."""

    def step(number: int) -> Any:
        async def work() -> None:
            if running is not None:
                running.set()
            await asyncio.sleep(1)
            done.append(number)

        return task(work, name=f"step {number}", provides=None)

    return linear("steps", *map(step, range(3)))


async def test_managed_flows_are_suspended_and_resumed_together(flows: Flows, clock: Clock) -> None:
    handler, done = SuspendHandler(), list[int]()
    handler.manage(flows)
    first, second = flows.start(steps(done), id="1"), flows.start(steps(done), id="2")
    await clock.advance(0.5)
    await handler.suspend()
    assert (first.state, second.state, done) == ("SUSPENDED", "SUSPENDED", [0, 0])
    await clock.advance(100)
    assert done == [0, 0]
    await handler.resume()
    await asyncio.gather(first, second)
    assert sorted(done) == [0, 0, 1, 1, 2, 2]


async def test_flows_are_resumed_if_another_object_cannot_be_suspended(flows: Flows, clock: Clock) -> None:
    handler, done = SuspendHandler(), list[int]()
    handler.manage(flows)

    @handler.on_suspend
    def refuse() -> None:
        raise OSError("no")

    run = flows.start(steps(done))
    await clock.advance(0.5)
    with pytest.raises(OSError, match="no"):
        await handler.suspend()
    await run
    assert done == [0, 1, 2]


async def test_terminate_saves_flows_and_the_next_start_continues_them(clock: Clock, tmp_path: Path) -> None:
    done: list[int] = []
    suspend = SuspendHandler()
    terminate = TerminateHandler(suspend, ShutdownHandler())
    async with Flows(tmp_path / "app.db") as flows:
        suspend.manage(flows)
        run = flows.start(begun := steps(done, running := asyncio.Event()))
        await running.wait()
        await terminate(TerminateEvent())
        assert (run.state, done) == ("SUSPENDED", [0])
    async with Flows(tmp_path / "app.db") as flows:
        [run] = await flows.recover(begun)
        await run
    assert done == [0, 1, 2]


class Pool:
    """An object with ``call``, which returns its arguments."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._error = error

    async def call(self, function: str, event: dict[str, Any], /) -> Any:
        self.calls.append((function, event))
        if self._error:
            raise self._error
        return len(self.calls)


async def test_a_route_calls_into_the_pool_with_the_event_as_data() -> None:
    router, pool = Router(), Pool()
    router.handle("image/*", PoolHandler(pool, "resize"))
    await call_directly(router, Event("image/new", {"width": 3}))
    assert pool.calls == [("resize", {"topic": "image/new", "data": {"width": 3}})]


async def test_the_result_of_the_function_is_the_result_of_the_handler() -> None:
    assert await PoolHandler(Pool(), "count")(Event("x")) == 1


class Mail:
    """An event that is not a dataclass."""

    topic = "mail/new"

    def __init__(self) -> None:
        self.subject = "hello"
        self._seen = False


class Bare:
    """An event with only a topic."""

    __slots__ = ()
    topic = "bare"


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (Event("a"), {"topic": "a", "data": None}),
        (FileEvent("added", Path("src/a.py")), {"topic": "file/added", "change": "added", "path": "src/a.py"}),
        (FileBatch({Path("a"): "added"}), {"topic": "file/batch", "changes": {"a": "added"}}),
        (SuspendEvent(), {"topic": "lifecycle/suspend"}),
        (TickEvent(NOW, 2), {"topic": "tick/ticker", "time": NOW, "count": 2, "name": "ticker"}),
        (
            WebhookEvent("POST", "/a", {"x": "1"}, {}, b"\0", "7"),
            {"topic": "webhook/a", "method": "POST", "path": "/a", "headers": {"x": "1"}, "query": {}, "body": b"\0"}
            | {"id": "7"},
        ),
        (Mail(), {"topic": "mail/new", "subject": "hello"}),
        (Bare(), {"topic": "bare"}),
    ],
)
async def test_an_event_becomes_a_mapping_of_its_fields_and_its_topic(event: Any, data: Any) -> None:
    pool = Pool()
    await PoolHandler(pool, "f")(event)
    assert pool.calls == [("f", data)]


@pytest.mark.parametrize("error", [PoolBusy("full"), ValueError("no")])
async def test_errors_of_the_call_are_raised(error: Exception) -> None:
    router = Router()
    router.handle("x", PoolHandler(Pool(error), "f"))
    with pytest.raises(type(error)):
        await call_directly(router, Event("x"))


async def test_cancelling_the_handler_cancels_the_call() -> None:
    ended = asyncio.Event()

    class Slow:
        async def call(self, function: str, event: dict[str, Any], /) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    handling = asyncio.create_task(PoolHandler(Slow(), "f")(Event("x")))
    await asyncio.sleep(0)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert ended.is_set()


@pytest.mark.parametrize(
    ("pool", "name", "error", "why"),
    [
        (None, "f", TypeError, "expected a Pool, or another object with call\\(name, event\\), got None"),
        (lambda: None, "f", TypeError, "expected a Pool"),
        (Pool(), "", ValueError, "must not be empty"),
        (Pool(), print, TypeError, "must be a string, got"),
    ],
)
def test_an_invalid_pool_or_name_raises_at_once(pool: Any, name: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        PoolHandler(pool, name)
