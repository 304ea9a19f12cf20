"""A lifetime inside another program: its mains, the way it stops, and tasks that do not inherit it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import (
    Event,
    Intensity,
    RestartLimitReached,
    Router,
    Spec,
    Supervisor,
    TaskWorker,
    current,
    go,
    lifetime,
    on_shutdown,
    shutdown,
)
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.testing import Clock, FakeSignals


class Host:
    """A server that leaves its application's ``async with`` block when it stops."""

    def __init__(self) -> None:
        self.asked = 0
        self.stopping = asyncio.Event()

    def stop(self, _: object = None) -> None:
        self.asked += 1
        self.stopping.set()


@pytest.fixture
def host(signals: FakeSignals) -> Iterator[Host]:
    """Yield a host that handles SIGTERM."""
    host = Host()
    release = signal_registry().take([signal.SIGTERM], host.stop)
    yield host
    release()


async def fail() -> None:
    await asyncio.sleep(1)
    raise ValueError("boom")


def failing(name: str = "app") -> Supervisor:
    return Supervisor(name, Spec("part", fail), intensity=Intensity(0, within=1))


async def forever() -> None:
    await asyncio.Event().wait()


# -- mains ------------------------------------------------------------------------------------------------------------


class Part:
    """A main that logs when it starts and when it finishes."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log
        self._up = asyncio.Event()

    async def run(self) -> None:
        await asyncio.sleep(1)
        self._log.append(f"{self.name} up")
        self._up.set()
        try:
            await forever()
        finally:
            self._log.append(f"{self.name} down")

    async def wait_running(self) -> None:
        await self._up.wait()


async def test_mains_run_around_the_block(clock: Clock) -> None:
    log: list[str] = []
    async with lifetime(Part("one", log), Part("two", log), signals=False) as life:
        assert life.ready
        log.append("block")
    assert log == ["one up", "two up", "block", "two down", "one down"]


async def test_return_of_an_async_function_does_not_end_the_block(clock: Clock) -> None:
    async def warm_up() -> None:
        await asyncio.sleep(1)

    async with lifetime(warm_up, forever) as life:
        await asyncio.sleep(10)
        assert not life.stopping


async def test_main_that_cannot_start_ends_the_others_and_raises(clock: Clock) -> None:
    log: list[str] = []

    async def broken() -> None:
        raise OSError("address in use")

    with pytest.raises(OSError, match="in use"):
        async with lifetime(Part("one", log), TaskWorker("two", forever), broken, Part("three", log)):
            pytest.fail("the block must not begin")
    assert log[:1] == ["one up"]
    assert log[-1] == "one down"
    with pytest.raises(LookupError):
        current()


async def test_cancelled_start_ends_the_mains(clock: Clock) -> None:
    log: list[str] = []

    async def program() -> None:
        async with lifetime(Part("one", log), Part("two", log), signals=False):
            pytest.fail("the block must not begin")

    task = asyncio.create_task(program())
    await clock.advance(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["one up", "one down"]


async def test_main_that_fails_cancels_the_block_and_is_raised(clock: Clock) -> None:
    with pytest.raises(ValueError, match="boom"):
        async with lifetime(fail):
            await forever()


async def test_signal_during_the_start_cancels_the_block(clock: Clock, signals: FakeSignals) -> None:
    log: list[str] = []
    asyncio.get_running_loop().call_later(0.5, signals.send, signal.SIGTERM)
    async with lifetime(Part("one", log)):
        log.append("block")
        await forever()
    assert log == ["block"]


@pytest.mark.parametrize("wrong", [print, asyncio.sleep, 3])
async def test_object_that_cannot_be_run_is_refused(clock: Clock, wrong: Any) -> None:
    with pytest.raises(TypeError, match="cannot be run"):
        lifetime(wrong)


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_stop_sends_sigterm_and_the_host_leaves_the_block(
    clock: Clock, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []
    async with lifetime(signals=False) as life:
        assert not life.state().embedded
        on_shutdown(lambda: closed.append("hook"))
        life.shutdown()
        await host.stopping.wait()
        await asyncio.sleep(3)
        assert not closed
    assert closed == ["hook"]
    assert host.asked == 1
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("the lifetime is stopping (cancel); sending SIGTERM")


async def test_on_stop_replaces_sigterm(clock: Clock, host: Host) -> None:
    other = Host()
    async with lifetime(signals=False, on_stop=other.stop):
        shutdown()
        await other.stopping.wait()
    assert host.asked == 0


async def test_on_stop_that_fails_is_logged_and_sigterm_sent(
    clock: Clock, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("boom")

    async with lifetime(signals=False, on_stop=broken):
        shutdown()
        await host.stopping.wait()
    assert "on_stop failed; sending SIGTERM instead" in caplog.text


@pytest.mark.parametrize("wrong", [forever, 3])
async def test_on_stop_must_be_a_plain_function(clock: Clock, wrong: Any) -> None:
    with pytest.raises(TypeError, match="on_stop must be a plain function"):
        lifetime(on_stop=wrong)


async def test_main_that_fails_stops_the_host_and_is_raised_at_the_end(
    clock: Clock, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RestartLimitReached):
        async with lifetime(failing(), signals=False) as life:
            await host.stopping.wait()
            assert not life.health().live
    assert host.asked == 1
    assert any(record.message.startswith("app failed: 'app' gave up") for record in caplog.records)


async def test_supervisor_that_gives_up_in_the_block_stops_the_host(clock: Clock, host: Host) -> None:
    with pytest.raises(RestartLimitReached):
        async with lifetime(signals=False), failing():
            await forever()
    await asyncio.sleep(1)
    assert host.asked == 1


async def test_supervisor_whose_failure_the_block_handles_does_not_stop_the_host(clock: Clock, host: Host) -> None:
    async with lifetime(signals=False) as life:
        with pytest.raises(RestartLimitReached):
            async with failing():
                await forever()
        await asyncio.sleep(10)
        assert not life.stopping
    assert host.asked == 0


async def test_block_in_a_lost_generator_is_shut_down_for_the_host(clock: Clock, host: Host) -> None:
    """The task that entered the block finishes, but the generator with the block stays suspended."""
    closed: list[str] = []

    async def enter() -> None:
        await held[0].__aenter__()
        on_shutdown(lambda: closed.append("hook"))
        await held[1].__aenter__()
        await forever()

    held: list[Any] = [lifetime(signals=False), failing()]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(enter())
    await asyncio.wait_for(host.stopping.wait(), 5)
    assert closed == ["hook"]


async def test_end_of_an_embedded_block_does_not_stop_the_host(clock: Clock, host: Host) -> None:
    async with lifetime(forever, signals=False):
        pass
    with pytest.raises(ValueError, match="own"):
        async with lifetime(signals=False):
            raise ValueError("own")
    await asyncio.sleep(10)
    assert host.asked == 0


# -- tasks that do not inherit the lifetime ---------------------------------------------------------------------------


async def request(call: Any, *args: Any) -> Any:
    """Call a function in a task without the lifetime, as a server does for a request."""

    async def handle() -> Any:
        return call(*args)

    return await asyncio.create_task(handle(), context=contextvars.Context())


async def test_tasks_outside_find_the_only_lifetime(clock: Clock) -> None:
    async with lifetime(signals=False) as life, lifetime() as inner:
        assert current() is inner
        assert await request(current) is life
        assert await (await request(go, asyncio.to_thread, current)) is life
        closed: list[str] = []
        await request(on_shutdown, lambda: closed.append("hook"))
        thread = asyncio.get_running_loop().run_in_executor(None, contextvars.Context().run, current)
        assert await thread is life
    assert closed == ["hook"]


async def test_a_worker_that_a_handler_starts_ends_with_the_lifetime_of_its_router(clock: Clock) -> None:
    """The event comes from a task outside the lifetime, such as a request."""
    router, workers = Router(), list[TaskWorker]()

    @router.on("job")
    async def job(_event: Event) -> None:
        workers.append(TaskWorker("job", forever))
        await workers[0].start()

    async def emit() -> None:
        await (await router.emit(Event("job")))

    async with lifetime(router, signals=False) as life:
        await asyncio.create_task(emit(), context=contextvars.Context())
        assert life.state().workers == ("job",)
    assert workers[0].status == "stopped"


async def test_tasks_outside_two_lifetimes_get_an_error_with_the_remedy(clock: Clock) -> None:
    async def host() -> None:
        async with lifetime(signals=False):
            await forever()

    hosts = [asyncio.create_task(host()) for _ in range(2)]
    await clock.advance(1)
    with pytest.raises(LookupError, match=r"2 lifetimes are running.*life\.go\("):
        go(forever)
    for each in hosts:
        each.cancel()
    await asyncio.wait(hosts)
    with pytest.raises(LookupError, match="there is no lifetime here"):
        go(forever)


async def test_lifetime_of_another_loop_is_not_found(clock: Clock) -> None:
    begun, over = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with lifetime():
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    try:
        await asyncio.to_thread(begun.wait)
        with pytest.raises(LookupError):
            current()
    finally:
        over.set()
        thread.join()
