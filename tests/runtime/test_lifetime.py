"""`lifetime` as a context manager inside an event loop that the caller runs."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.runtime import Interrupted, LifetimeState, Reason, current, go, lifetime, on_shutdown, shutdown, sleep

if TYPE_CHECKING:
    from lifecycle.testing import Clock
    from lifecycle.testing.signals import FakeSignals


async def test_leaving_the_block_runs_the_shutdown(clock: Clock) -> None:
    log: list[str] = []

    async def poll() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("task")

    async with lifetime(signals=False) as life:
        life.go(poll)
        life.on_shutdown(lambda: log.append(f"hook, {life.reason}"))
        await clock.advance(1)
        assert not life.stopping
    assert log == ["task", "hook, stop"]
    assert life.reason is Reason.STOP


@pytest.mark.parametrize("cause", ["signal", "shutdown", "thread"])
async def test_a_cause_cancels_the_block_and_leaves_it_without_an_error(
    clock: Clock, signals: FakeSignals, cause: str
) -> None:
    cancelled = False
    async with lifetime() as life:
        try:
            if cause == "signal":
                signals.send(signal.SIGTERM)
            elif cause == "shutdown":
                shutdown()
            else:
                await asyncio.to_thread(shutdown)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
    assert cancelled
    assert life.stopping
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_outside_cancellation_is_raised_after_the_shutdown(clock: Clock) -> None:
    log: list[str] = []

    async def program() -> None:
        async with lifetime() as life:
            life.on_shutdown(lambda: log.append("hook"))
            await asyncio.Event().wait()

    task = asyncio.create_task(program())
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["hook"]


async def test_an_outside_cancellation_together_with_a_shutdown_is_raised(clock: Clock) -> None:
    async def program() -> None:
        async with lifetime() as life:
            life.shutdown()
            await asyncio.Event().wait()

    task = asyncio.create_task(program())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_during_the_shutdown_is_raised_at_its_end(clock: Clock) -> None:
    log: list[str] = []

    async def hook() -> None:
        await asyncio.sleep(5)
        log.append("hook ended")

    async def program() -> None:
        async with lifetime() as life:
            life.on_shutdown(hook)

    task = asyncio.create_task(program())
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["hook ended"]


async def test_a_shutdown_as_the_block_ends_cancels_no_later_code(clock: Clock) -> None:
    async with lifetime() as life:
        life.shutdown()
    await clock.advance(1)

    async with lifetime() as life:
        life.shutdown()
        await asyncio.sleep(0)
        # A body that swallows its cancellation is treated like any other body.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
    await clock.advance(1)


async def test_an_error_in_the_block_is_raised_after_the_shutdown(clock: Clock) -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="boom"):
        async with lifetime() as life:
            life.on_shutdown(lambda: log.append("hook"))
            raise ValueError("boom")
    assert log == ["hook"]


async def test_an_error_while_the_block_is_cancelled_is_raised(clock: Clock) -> None:
    with pytest.raises(ValueError, match="in cleanup"):
        async with lifetime() as life:
            life.shutdown()
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("in cleanup")
    await asyncio.sleep(0)


async def test_a_timeout_around_the_lifetime_raises_timeout_error(clock: Clock) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), lifetime():
            await asyncio.Event().wait()


async def test_the_lifetime_is_current_only_in_the_block_and_its_threads(clock: Clock) -> None:
    with pytest.raises(LookupError, match="no lifetime"):
        current()
    async with lifetime() as outer:
        assert current() is outer
        assert await asyncio.to_thread(current) is outer
        async with lifetime() as inner:
            assert current() is inner
            assert await asyncio.create_task(asyncio.to_thread(current)) is inner
        assert current() is outer
    with pytest.raises(LookupError):
        current()
    with pytest.raises(LookupError):
        shutdown()
    with pytest.raises(LookupError):
        on_shutdown(print)
    with pytest.raises(LookupError):
        go(asyncio.sleep, 1)


async def test_stopping_an_outer_lifetime_stops_the_inner_one(clock: Clock, signals: FakeSignals) -> None:
    log: list[str] = []
    async with lifetime() as outer:
        outer.on_shutdown(lambda: log.append("outer"))
        async with lifetime() as inner:
            inner.on_shutdown(lambda: log.append(f"inner, {inner.reason}"))
            signals.send(signal.SIGTERM)
            await inner.wait_stopping()
            log.append("not cancelled yet")
            await asyncio.Event().wait()
    assert log == ["not cancelled yet", "inner, terminate", "outer"]


async def test_stopping_an_inner_lifetime_does_not_stop_the_outer_one(clock: Clock) -> None:
    async with lifetime() as outer:
        async with lifetime() as inner:
            inner.shutdown()
            await asyncio.Event().wait()
        assert not outer.stopping
        await clock.advance(1)


async def test_a_stop_that_does_not_reach_the_program_around_the_lifetime_is_logged_as_an_error(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with lifetime(signals=False) as life:
        assert life.state().embedded
        life.shutdown()
        await asyncio.Event().wait()
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "the lifetime is stopping (cancel), but the program that runs this event loop does not" in record.message


async def test_other_ends_of_a_lifetime_are_not_errors(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async with lifetime(signals=False):
        pass
    async with lifetime() as life:
        assert not life.state().embedded
        async with lifetime() as inner:
            assert inner.state().embedded
            inner.shutdown()
            await asyncio.Event().wait()
        life.shutdown()
        await asyncio.Event().wait()
    assert not caplog.records


async def test_the_state_of_a_lifetime_is_a_record(clock: Clock) -> None:
    async with lifetime() as life:
        life.go(asyncio.sleep, 100, name="poll")
        life.on_shutdown(lambda: None)
        state = life.state()
        assert state == LifetimeState(
            reason=Reason.NONE,
            signum=None,
            stopping=False,
            signals=0,
            force_exit_at=2,
            tasks=("poll",),
            tasks_started=1,
            tasks_crashed=0,
            hooks=1,
            workers=(),
        )
        with pytest.raises(AttributeError):
            state.hooks = 2  # type: ignore[misc]
    assert life.state().stopping


@pytest.mark.parametrize("reason", ["none", Reason.NONE, "tired", 3])
async def test_an_invalid_reason_is_refused_with_the_accepted_ones(clock: Clock, reason: str) -> None:
    async with lifetime() as life:
        with pytest.raises(ValueError, match="one of interrupt, terminate, cancel, stop, timeout, got") as caught:
            life.shutdown(reason)
        assert str(caught.value).endswith(repr(reason))
        assert not life.stopping


async def test_a_lifetime_cannot_be_entered_twice(clock: Clock) -> None:
    block = lifetime()
    async with block:
        pass
    with pytest.raises(RuntimeError, match="again"):
        async with block:
            pass


async def test_signal_handlers_are_not_installed_if_not_wanted() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with lifetime(signals=False):
        assert signal.getsignal(signal.SIGTERM) is before
    async with lifetime():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


async def test_signal_handlers_replaced_by_a_library_are_installed_again(clock: Clock) -> None:
    before = signal.getsignal(signal.SIGINT)
    async with lifetime() as life:
        ours = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        await clock.advance(1.5)
        assert signal.getsignal(signal.SIGINT) == ours
        signal.raise_signal(signal.SIGINT)
        assert life.reason is Reason.INTERRUPT
        await asyncio.Event().wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_a_sleep_in_the_block_is_interrupted_and_not_cancelled(clock: Clock) -> None:
    regretted = False
    async with lifetime() as life:
        asyncio.get_running_loop().call_later(1, life.shutdown)
        try:
            await sleep(100)
        except Interrupted:
            regretted = True
            raise
    assert regretted
    await clock.advance(1)


async def test_a_task_knows_its_lifetime_wherever_it_was_started(clock: Clock) -> None:
    async with lifetime() as life:
        task = contextvars.Context().run(life.go, asyncio.to_thread, current)
        assert await task is life


async def test_a_lifetime_can_be_exited_in_a_different_context(clock: Clock) -> None:
    seen: list[object] = []
    block = lifetime(signals=False)
    life = await asyncio.create_task(block.__aenter__())
    life.on_shutdown(lambda: seen.append(current()))
    await asyncio.create_task(block.__aexit__(None, None, None))
    assert seen == [life]
