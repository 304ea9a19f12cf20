from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, NotHandled, ResumeEvent, Router, SuspendEvent
from lifecycle.control.router import call_directly
from lifecycle.errors import LifecycleError
from lifecycle.events import CommandEvent, SignalEvent
from lifecycle.handlers import SuspendHandler

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Part:
    """A suspendable object that records its calls."""

    def __init__(self, name: str, calls: list[str], *, fails: str = "") -> None:
        self.name, self.calls, self.fails = name, calls, fails

    async def suspend(self) -> None:
        self._do("suspend")

    def resume(self) -> None:
        self._do("resume")

    def _do(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")
        if self.fails == what:
            raise OSError(f"{self.name} will not {what}")


@pytest.fixture
def calls() -> list[str]:
    return []


def slow(handler: SuspendHandler, calls: list[str]) -> asyncio.Event:
    """Make the suspension wait until the event is set."""
    go = asyncio.Event()

    @handler.on_suspend
    async def wait() -> None:
        calls.append("suspending")
        await go.wait()

    handler.on_resume(lambda: calls.append("resumed"))
    return go


async def test_hooks_run_in_the_order_registered_both_ways(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls), Part("b", calls))
    handler.on_suspend(lambda: calls.append("notify suspended"))

    @handler.on_resume
    async def tell() -> None:
        calls.append("notify resumed")

    await handler(SuspendEvent())
    assert calls == ["suspend a", "suspend b", "notify suspended"]
    assert handler.suspended
    assert not handler.transitioning
    calls.clear()
    await handler(ResumeEvent())
    assert calls == ["resume a", "resume b", "notify resumed"]
    assert not handler.suspended


@pytest.mark.parametrize("event", [SuspendEvent(), CommandEvent("suspend"), Event("lifecycle/suspend"), SignalEvent(2)])
async def test_events_are_recognised_by_their_topic(event: Any) -> None:
    handler = SuspendHandler()
    await handler(event)
    assert handler.suspended


async def test_duplicates_are_ignored(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls))
    await handler.resume()
    await handler.suspend()
    await handler.suspend()
    await handler(SuspendEvent())
    assert calls == ["suspend a"]


async def test_a_duplicate_event_is_ignored_while_hooks_run(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first = asyncio.create_task(handler(SuspendEvent()))
    await clock.settle()
    assert handler.transitioning
    assert not handler.suspended
    await handler(SuspendEvent())
    go.set()
    await first
    assert calls == ["suspending"]


async def test_a_duplicate_call_returns_once_suspended(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first, second = asyncio.create_task(handler.suspend()), asyncio.create_task(handler.suspend())
    await clock.settle()
    assert not second.done()
    go.set()
    await asyncio.gather(first, second)
    assert calls == ["suspending"]
    assert handler.suspended


async def test_the_opposite_request_follows_afterwards(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first = asyncio.create_task(handler(SuspendEvent()))
    await clock.settle()
    second = asyncio.create_task(handler(ResumeEvent()))
    await clock.settle()
    assert calls == ["suspending"]
    go.set()
    await asyncio.gather(first, second)
    assert calls == ["suspending", "resumed"]
    assert not handler.suspended


async def test_alternating_requests_are_all_executed_in_order(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    tasks = [asyncio.create_task(call()) for call in (handler.suspend, handler.resume, handler.suspend)]
    await clock.settle()
    go.set()
    await asyncio.gather(*tasks)
    assert calls == ["suspending", "resumed", "suspending"]
    assert handler.suspended


async def test_a_failing_hook_rolls_back_those_before_it_and_raises(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls), Part("b", calls), Part("c", calls, fails="suspend"), Part("d", calls))
    with pytest.raises(OSError, match="c will not suspend"):
        await handler(SuspendEvent())
    assert calls == ["suspend a", "suspend b", "suspend c", "resume b", "resume a"]
    assert not handler.suspended
    assert not handler.transitioning


async def test_a_failing_resume_leaves_it_suspended(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls), Part("b", calls, fails="resume"))
    await handler.suspend()
    calls.clear()
    with pytest.raises(OSError, match="b will not resume"):
        await handler.resume()
    assert calls == ["resume a", "resume b", "suspend a"]
    assert handler.suspended


async def test_single_hooks_are_rolled_back_by_their_counterparts(calls: list[str]) -> None:
    """Hooks of `on_suspend` and `on_resume` are paired by position. Managed objects in between are not counted."""
    handler = SuspendHandler()
    handler.on_suspend(lambda: calls.append("suspend 1"))
    handler.manage(Part("a", calls))
    handler.on_suspend(lambda: calls.append("suspend 2"))
    handler.on_resume(lambda: calls.append("resume 1"))
    handler.on_suspend(Part("last", calls, fails="suspend").suspend)
    with pytest.raises(OSError, match="last"):
        await handler.suspend()
    assert calls == ["suspend 1", "suspend a", "suspend 2", "suspend last", "resume a", "resume 1"]


async def test_a_rollback_that_fails_is_noted_on_the_error(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls, fails="resume"), Part("b", calls, fails="suspend"))
    with pytest.raises(OSError, match="b will not suspend") as caught:
        await handler.suspend()
    assert "a will not resume" in caught.value.__notes__[0]
    assert not handler.suspended


async def test_hooks_that_take_too_long_are_timed_out_and_rolled_back(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler(timeout=2)
    handler.manage(Part("a", calls))
    handler.on_suspend(lambda: asyncio.sleep(5))
    with pytest.raises(TimeoutError):
        await handler.suspend()
    assert clock.time() == 2
    assert calls == ["suspend a", "resume a"]


async def test_a_cancelled_caller_rolls_back_and_a_joined_caller_takes_over(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls))
    go = slow(handler, calls)
    first, second = asyncio.create_task(handler.suspend()), asyncio.create_task(handler.suspend())
    await clock.settle()
    first.cancel()
    go.set()
    await second
    assert first.cancelled()
    assert calls == ["suspend a", "suspending", "resume a", "suspend a", "suspending"]
    assert handler.suspended


async def test_cancelling_a_waiting_request_keeps_the_order(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first = asyncio.create_task(handler.suspend())
    await clock.settle()
    gone = asyncio.create_task(handler.resume())
    await clock.settle()
    gone.cancel()
    await clock.settle()
    last = asyncio.create_task(handler.resume())
    await clock.settle()
    assert calls == ["suspending"]
    go.set()
    await asyncio.gather(first, last)
    assert not handler.suspended


async def test_a_joined_caller_that_takes_over_keeps_its_place(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    tasks = [asyncio.create_task(call()) for call in (handler.suspend, handler.resume, handler.resume, handler.suspend)]
    await clock.settle()
    tasks[1].cancel()
    go.set()
    await asyncio.wait(tasks)
    assert calls == ["suspending", "resumed", "suspending"]
    assert handler.suspended


async def test_it_can_be_used_in_one_event_loop_after_another(calls: list[str]) -> None:
    handler = SuspendHandler()
    handler.manage(Part("a", calls))

    async def both() -> None:
        await asyncio.gather(handler.suspend(), handler.resume())

    for _ in range(2):
        await asyncio.to_thread(asyncio.run, both())
    assert calls == ["suspend a", "resume a"] * 2


async def test_a_joined_caller_returns_on_success_despite_later_requests(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first = asyncio.create_task(handler.suspend())
    await clock.settle()
    joined, opposite = asyncio.create_task(handler.suspend()), asyncio.create_task(handler.resume())
    await clock.settle()
    go.set()
    await asyncio.gather(first, joined, opposite)
    assert calls == ["suspending", "resumed"]
    assert not handler.suspended


async def test_joining_a_transition_that_fails_raises_its_error(clock: Clock) -> None:
    handler = SuspendHandler()
    go = asyncio.Event()

    @handler.on_suspend
    async def fail() -> None:
        await go.wait()
        raise OSError("no")

    tasks = [asyncio.create_task(handler.suspend()) for _ in range(2)]
    await clock.settle()
    go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [OSError, OSError]


async def test_a_hook_that_waits_for_its_own_transition_raises() -> None:
    handler = SuspendHandler()
    handler.on_suspend(handler.resume)
    with pytest.raises(LifecycleError, match="wait for itself"):
        await handler.suspend()
    assert not handler.suspended


async def test_an_interrupt_is_passed_on_once_suspended_or_suspending(calls: list[str], clock: Clock) -> None:
    handler = SuspendHandler()
    go = slow(handler, calls)
    first = asyncio.create_task(handler(SignalEvent(2)))
    await clock.settle()
    with pytest.raises(NotHandled):
        await handler(SignalEvent(2))
    go.set()
    await first
    with pytest.raises(NotHandled):
        await handler(SignalEvent(2))


async def test_other_events_are_passed_on() -> None:
    with pytest.raises(NotHandled):
        await SuspendHandler()(Event("lifecycle/reload"))


async def test_when_resumed_is_called_after_successful_resumes(calls: list[str]) -> None:
    handler = SuspendHandler()
    part = Part("a", calls, fails="resume")
    handler.manage(part)
    handler.when_resumed(lambda: calls.append("it runs"))
    await handler.suspend()
    with pytest.raises(OSError, match="a will"):
        await handler.resume()
    assert "it runs" not in calls
    part.fails = ""
    await handler.resume()
    assert calls[-1] == "it runs"


@pytest.mark.parametrize("bad", [None, 3, lambda needed: needed])
def test_hooks_are_checked_when_registered(bad: Any) -> None:
    with pytest.raises(TypeError):
        SuspendHandler().on_suspend(bad)


def test_managing_an_object_that_cannot_suspend_raises() -> None:
    with pytest.raises(TypeError, match="suspend\\(\\) and resume"):
        SuspendHandler().manage(object())  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        SuspendHandler(timeout=timeout)


async def test_it_can_be_registered_like_any_handler(calls: list[str]) -> None:
    router, handler = Router(), SuspendHandler()
    handler.manage(Part("a", calls))
    router.handle("lifecycle/*", handler)
    await call_directly(router, SuspendEvent())
    await call_directly(router, ResumeEvent())
    assert calls == ["suspend a", "resume a"]
    assert handler.state() == "running"
