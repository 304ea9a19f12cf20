"""Whatever a program starts belongs to it, wherever it was started, and does not outlive it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Event, Router, run
from lifecycle.runtime import Part, current, go, lifetime, on_shutdown, shutdown
from lifecycle.testing import running
from lifecycle.testing.virtual import VirtualLoop
from lifecycle.workers import TaskWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from lifecycle.testing import Clock, FakeSignals


async def forever() -> None:
    await asyncio.Event().wait()


class Started:
    """A worker that is started somewhere, and whether the program stopped it."""

    def __init__(self) -> None:
        self.worker = TaskWorker("job", forever)
        self.names: list[tuple[str, ...]] = []

    async def start(self, *_: object) -> None:
        await self.worker.start()
        self.names.append(current().state().workers)


async def by_a_main(start: Callable[..., Awaitable[None]]) -> None:
    await start()


async def by_a_background_task(start: Callable[..., Awaitable[None]]) -> None:
    await go(start)


async def by_a_task_of_asyncio(start: Callable[..., Awaitable[None]]) -> None:
    await asyncio.create_task(_as_coroutine(start))


async def by_a_timer(start: Callable[..., Awaitable[None]]) -> None:
    tasks: list[asyncio.Task[None]] = []
    asyncio.get_running_loop().call_later(1, lambda: tasks.append(asyncio.create_task(_as_coroutine(start))))
    await asyncio.sleep(2)
    await tasks[0]


async def _as_coroutine(start: Callable[..., Awaitable[None]]) -> None:
    await start()


async def by_a_handler(start: Callable[..., Awaitable[None]]) -> None:
    router = Router()
    router.on("a")(start)
    async with running(router):
        await (await router.emit(Event("a")))


async def by_a_debounced_handler(start: Callable[..., Awaitable[None]]) -> None:
    router = Router()
    router.on("a", debounce=1)(start)
    async with running(router):
        await (await router.emit(Event("a")))


async def by_a_source(start: Callable[..., Awaitable[None]]) -> None:
    async def source() -> AsyncIterator[Event]:
        await start()
        yield Event("a")

    router, seen = Router(), asyncio.Event()
    router.on("a")(lambda _: seen.set())
    router.add_source(source)
    async with running(router):
        await seen.wait()


async def by_a_worker(start: Callable[..., Awaitable[None]]) -> None:
    async def work() -> None:
        await start()

    async with TaskWorker("other", work) as other:
        await other.wait()


async def by_a_shutdown_hook(start: Callable[..., Awaitable[None]]) -> None:
    on_shutdown(start)


async def by_a_task_during_the_shutdown(start: Callable[..., Awaitable[None]]) -> None:
    async def late() -> None:
        try:
            await forever()
        finally:
            await start()

    go(late)
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    "somewhere",
    [
        by_a_main,
        by_a_background_task,
        by_a_task_of_asyncio,
        by_a_timer,
        by_a_handler,
        by_a_debounced_handler,
        by_a_source,
        by_a_worker,
        by_a_shutdown_hook,
        by_a_task_during_the_shutdown,
    ],
)
@pytest.mark.parametrize("embedded", [False, True])
def test_a_worker_does_not_outlive_the_program(somewhere: Callable[[Any], Awaitable[None]], embedded: bool) -> None:
    started = Started()

    async def main() -> None:
        await somewhere(started.start)

    async def block() -> None:
        async with lifetime(signals=False):
            await main()

    if embedded:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(block())
    else:
        run(main, loop_factory=VirtualLoop)
    # If the event loop cancels it at its end, a worker is not stopped, but fails.
    assert started.worker.status == "stopped"
    assert "job" in started.names[0]


async def test_a_part_ends_once_and_may_end_after_its_lifetime(clock: Clock) -> None:
    class Thing:
        name = "thing"

        def state(self) -> str:
            return "well"

    thing = Thing()
    async with lifetime() as life:
        part = life.add(thing)
    part.end()
    part.end()
    assert life.components() == ()


def test_parts_that_were_added_stop_the_newest_first_whatever_they_raise(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    class Thing(Part):
        def __init__(self, name: str, error: type[BaseException] | None = None, takes: float = 0) -> None:
            self.name, self.error, self.takes = name, error, takes

        def __repr__(self) -> str:
            return self.name

        async def stop(self, left: Callable[[], float]) -> None:
            log.append(f"{self.name} stops within {left():g} s")
            await asyncio.sleep(self.takes)
            if self.error is not None:
                raise self.error("no")

    async def work() -> None:
        try:
            await forever()
        finally:
            log.append("the worker stops")

    async def main() -> None:
        life = current()
        life.add(Thing("stuck", takes=1000))
        await TaskWorker("worker", work).start()
        for thing in (Thing("broken", OSError), Thing("cancelled", asyncio.CancelledError), Thing("last")):
            life.add(thing)
        life.add(Part())
        assert len(life.components()) == 6
        on_shutdown(lambda: log.append("hook"))

    run(main, loop_factory=VirtualLoop, exit_timeout=10)
    assert log == [
        "the worker stops",
        "last stops within 8 s",
        "cancelled stops within 8 s",
        "broken stops within 8 s",
        "stuck stops within 8 s",
        "hook",
    ]
    assert [record.message for record in caplog.records] == [
        "cancelled could not be stopped: CancelledError('no')",
        "broken could not be stopped: OSError('no')",
        "stuck could not be stopped: TimeoutError()",
    ]


def test_no_route_is_matched_in_a_signal_handler(signals: FakeSignals) -> None:
    class Careful(Router):
        in_handler = False

        def explain(self, topic: str) -> Any:
            assert not self.in_handler
            return super().explain(topic)

    router = Careful()
    seen: list[str] = []

    @router.on("signal/*")
    async def note(event: Event) -> None:
        seen.append(event.topic)

    async def main() -> None:
        await asyncio.sleep(1)
        for signum in (signal.SIGINT, signal.SIGHUP):
            router.in_handler = True
            signals.send(signum)
            router.in_handler = False
            await asyncio.sleep(1)
        assert not current().stopping
        shutdown()

    run(router, main, loop_factory=VirtualLoop)
    assert sorted(seen) == ["signal/hangup", "signal/interrupt"]
