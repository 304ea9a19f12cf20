"""The components of a lifetime, and its last hooks, which run with a time limit."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from lifecycle._util import current_flow, current_worker
from lifecycle.control import Router
from lifecycle.flows import Flows, linear, task
from lifecycle.runtime import Lifetime, current, lifetime, run
from lifecycle.testing import running
from lifecycle.workers import Spec, Supervisor, TaskWorker, ThreadWorker

if TYPE_CHECKING:
    import threading

    from lifecycle.testing import Clock


class Component:
    """A component with a state."""

    def state(self) -> str:
        return "well"


async def forever() -> None:
    await asyncio.Event().wait()


async def test_components_are_listed_in_start_order_while_they_run(clock: Clock) -> None:
    router, own = Router(), Component()
    async with lifetime() as life:
        added = life.add(own)
        async with running(router), TaskWorker("one", forever) as worker, Flows() as flows:
            assert life.components() == (own, router, worker, flows)
        assert life.components() == (own,)
        added.end()
        assert life.components() == ()


async def test_what_another_thread_opens_is_not_listed(clock: Clock) -> None:
    async def elsewhere() -> tuple[object, ...]:
        async with TaskWorker("one", forever), running(Router()), Flows():
            return life.components()

    async with lifetime() as life:
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == ()
        with pytest.raises(RuntimeError, match="thread"):
            await asyncio.to_thread(life.add, Component())


async def test_children_are_listed_only_in_their_supervisor(clock: Clock) -> None:
    inner = Supervisor("inner", Spec("b", lambda: TaskWorker("b", forever)))
    async with lifetime() as life:
        supervisor = Supervisor("top", Spec("a", lambda: TaskWorker("a", forever)), Spec("inner", lambda: inner))
        async with supervisor:
            await supervisor.restart("a")
            assert life.components() == (supervisor,)


async def test_a_worker_is_listed_while_it_starts_and_not_after_it_failed(clock: Clock) -> None:
    async def fails() -> None:
        raise ValueError("no")

    async with lifetime() as life:
        worker = TaskWorker("one", fails)
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        assert life.components() == (worker,)
        await asyncio.wait([starting])
        await worker.wait()
        assert life.components() == ()


async def test_a_component_that_was_added_twice_is_listed_once_until_both_have_ended(clock: Clock) -> None:
    own = Component()
    async with lifetime() as life:
        one, other = life.add(own), life.add(own)
        assert life.components() == (own,)
        one.end()
        assert life.components() == (own,)
        other.end()
        other.end()
        assert life.components() == ()


async def test_a_lifetime_lists_components_of_inner_lifetimes_and_no_others(clock: Clock) -> None:
    own = Component()
    async with Flows(), lifetime() as outer:
        async with lifetime() as inner:
            inner.add(own)
            assert (outer.components(), inner.components()) == ((own,), (own,))
        assert outer.components() == ()


async def test_a_worker_knows_itself_and_a_flow_its_id(clock: Clock) -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(current_worker.get())

    def look_in_thread(_stop: threading.Event) -> None:
        seen.append(current_worker.get())

    @task
    def step() -> None:
        seen.append(current_flow.get())

    await asyncio.create_task(_lived(TaskWorker("a task", look)))
    await asyncio.create_task(_lived(ThreadWorker("a thread", look_in_thread)))
    async with Flows() as flows:
        await flows.start(linear("steps", step), id="one")
    assert seen == ["a task", "a thread", "one"]
    assert current_worker.get() == ""


async def _lived(worker: TaskWorker | ThreadWorker) -> None:
    await worker.start()
    await worker.wait()


class Foreign:
    """A third-party worker that does not add itself to its owner."""

    name, status = "foreign", "running"

    def __init__(self) -> None:
        self._over = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self, timeout: float | None = None) -> None:
        self._over.set()

    async def wait(self) -> Foreign:
        await self._over.wait()
        return self


def test_a_worker_run_as_a_main_is_listed_even_if_foreign() -> None:
    foreign, own = Foreign(), TaskWorker("own", forever)

    async def main() -> tuple[object, ...]:
        return current().components()

    assert run(foreign, own, main) == (foreign, own)


# -- flushes ------------------------------------------------------------------------------------------------------


def test_final_exports_run_after_the_hooks_with_a_time_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cut")

    async def main() -> Lifetime:
        life = current()
        life.on_flush(stuck)
        life.on_flush(lambda: log.append("flushed"))
        life.on_shutdown(lambda: log.append("hook"))
        return life

    with caplog.at_level(logging.CRITICAL, "lifecycle.runtime"):
        life = run(main, hook_timeout=0.01)
    assert log == ["hook", "flushed", "cut"]
    with pytest.raises(RuntimeError, match="too late"):
        life.on_flush(stuck)


async def test_a_flush_that_fails_is_logged_and_stops_no_other(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    def fails() -> None:
        raise OSError("no listener")

    async with lifetime() as life:
        life.on_flush(lambda: log.append("sent"))
        life.on_flush(fails)
    assert log == ["sent"]
    assert "no listener" in caplog.text
    with pytest.raises(TypeError, match="a shutdown hook must be a function"):
        async with lifetime() as life:
            life.on_flush(7)  # type: ignore[type-var]  # bad input
