"""`Lifetime.health`: what makes a program not ready, or not live."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from lifecycle import (
    Backoff,
    Event,
    ProbeResult,
    Router,
    Spec,
    Supervisor,
    TaskWorker,
    lifetime,
    run,
)
from lifecycle.runtime import ComponentHealth, Lifetime, current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.runtime import Health
    from lifecycle.testing import Clock


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    await asyncio.sleep(1)
    raise ValueError("boom")


def messages(life: Lifetime) -> dict[str, str]:
    return {name: each.message for name, each in life.health().components.items() if not each.healthy}


async def test_health_covers_routers_and_workers(clock: Clock) -> None:
    inner = Spec("inner", lambda: Supervisor("inner", Spec("part", forever)))
    app = Supervisor("app", Spec("part", forever), inner)
    async with lifetime(Router("jobs"), app, signals=False) as life:
        health = life.health()
        assert health.ready
        assert health.live
        assert dict(health.components) == dict.fromkeys(
            ("jobs", "app", "app/part", "app/inner", "app/inner/part"), ComponentHealth(healthy=True)
        )
        assert json.loads(json.dumps(health.to_dict())) == health.to_dict()
        await app.suspend()
        assert life.health().components["app"] == ComponentHealth(healthy=True, message="suspended")
        assert life.health().ready
        life.shutdown()
        assert (life.health().ready, life.health().live) == (False, True)
        await forever()


async def test_child_that_waits_for_its_restart_is_unhealthy_and_not_dead(clock: Clock) -> None:
    app = Supervisor("app", Spec("part", fail, backoff=Backoff(initial=10, jitter=0)))
    async with lifetime(app) as life:
        await clock.advance(5)
        health = life.health()
        assert (health.ready, health.live) == (False, True)
        # A readiness probe does not depend on the workers: the program accepts requests.
        assert life.ready
        assert messages(life) == {"app/part": "pending: boom"}
        await clock.advance(6.5)
        assert life.health().ready


async def test_open_circuit_is_dead_until_a_restart_by_hand(clock: Clock) -> None:
    app = Supervisor("app", Spec("part", fail, backoff=Backoff(initial=0, jitter=0, max_restarts=1)))
    async with lifetime(app) as life:
        await clock.advance(10)
        assert not life.health().live
        assert messages(life) == {"app/part": "given up after 1 restarts: boom"}
        await app.restart("part")
        assert life.health().ready


async def test_child_that_is_not_restarted_is_dead_after_a_failure(clock: Clock) -> None:
    app = Supervisor("app", Spec("part", fail, restart="never"), Spec("other", forever, restart="never"))
    async with lifetime(app) as life:
        await app.stop_child("other")
        await clock.advance(2)
        assert not life.health().live
        assert messages(life) == {"app/part": "failed: boom"}
        assert life.health().components["app/other"].message == "stopped"


async def test_failed_probe_makes_the_program_unready(clock: Clock) -> None:
    class Tired(TaskWorker):
        async def probe(self) -> ProbeResult:
            return ProbeResult(healthy=False, message="tired")

    app = Supervisor("app", Spec("part", lambda: Tired("part", forever), probe_interval=1))
    async with lifetime(app) as life:
        await clock.advance(3)
        assert (life.health().ready, life.health().live) == (False, True)
        assert messages(life)["app/part"] == "tired"


async def test_worker_of_the_block_counts_and_one_of_a_handler_does_not(clock: Clock) -> None:
    router = Router("jobs")

    async def convert(_: Event) -> None:
        async with TaskWorker("convert", fail) as worker:
            await worker.wait()

    router.handle("convert", convert)
    async with lifetime(router) as life:
        await (await router.emit(Event("convert")))
        assert life.health().ready
        async with TaskWorker("poll", fail):
            await clock.advance(2)
        assert not life.health().live
        assert messages(life) == {"poll": "failed: boom"}
        async with TaskWorker("poll", forever):
            assert life.health().ready


async def test_router_whose_task_has_crashed_is_dead(clock: Clock) -> None:
    class Broken:
        name = "broken"

        async def __aenter__(self) -> None:
            raise OSError("no such device")

        async def __aexit__(self, *_: object) -> None: ...

        def __aiter__(self) -> AsyncIterator[Event]:
            raise NotImplementedError

    router = Router("jobs")
    router.add_source(Broken())
    async with lifetime() as life:
        life.go(router.run)
        await clock.advance(1)
        assert not life.health().live
        assert "broken" in messages(life)["jobs"]


def test_health_of_a_program_of_run() -> None:
    seen: list[Health] = []

    async def main() -> None:
        while not current().ready:
            await asyncio.sleep(0.001)
        seen.append(current().health())

    run(Supervisor("app", Spec("part", forever)), main)
    assert seen[0].ready
    assert set(seen[0].components) == {"app", "app/part"}
