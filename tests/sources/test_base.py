"""BaseSource delivers emitted events in order, until it is closed and its buffer is empty."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Router
from lifecycle.errors import SourceClosed
from lifecycle.events import Event
from lifecycle.sources import BaseSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from lifecycle.testing import Clock, Recorder

A, B, C = Event("a"), Event("b"), Event("c")


async def nothing(_: Any) -> Any:
    """Accept every event."""


async def test_events_are_delivered_in_order(recorder: Recorder) -> None:
    source, router = BaseSource("push"), Router()
    router.handle("*", recorder)
    router.add_source(source)
    async with running(router):
        for event in (A, B, C):
            await source.emit(event)
        source.close()
    assert recorder.events == [A, B, C]


async def test_a_full_buffer_takes_an_event_once_another_is_delivered(clock: Clock, recorder: Recorder) -> None:
    source = BaseSource("push", buffer=1)
    assert source.try_emit(A)
    assert not source.try_emit(B)
    waiting = asyncio.create_task(source.emit(B))
    await clock.settle()
    assert not waiting.done()
    assert not source.try_emit(C)

    async def emit(event: Any) -> Any:
        recorder(event)

    running_ = asyncio.create_task(source.run(emit))
    await waiting
    source.close()
    await running_
    assert recorder.events == [A, B]


class Push:
    topic = "push"


async def test_cancelled_emits_of_a_full_source_are_not_kept(clock: Clock) -> None:
    source, alive = BaseSource("push", buffer=1), weakref.WeakSet[Push]()
    await source.emit(A)

    async def emit_in_vain() -> None:
        event = Push()
        alive.add(event)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await source.emit(event)

    for _ in range(3):
        await asyncio.create_task(emit_in_vain())
    gc.collect()
    assert not alive


@pytest.mark.parametrize("emit_waits", [True, False])
async def test_a_cancelled_emit_delivers_nothing_and_a_delivered_event_is_not_cancelled(
    clock: Clock, recorder: Recorder, emit_waits: bool
) -> None:
    """The emitter is cancelled in the same loop iteration in which space becomes free."""
    source = BaseSource("push", buffer=1)
    await source.emit(A)
    seen: list[str] = []

    async def hand_over() -> None:
        await source.emit(B)
        seen.append("delivered")
        await asyncio.sleep(0)
        seen.append("not cancelled")

    async def emit(event: Any) -> Any:
        recorder(event)
        if event is A:
            cancelled.cancel()
            if emit_waits:
                await asyncio.sleep(1)

    cancelled = asyncio.create_task(hand_over())
    await clock.settle()
    waiting = asyncio.create_task(source.emit(C))
    running_ = asyncio.create_task(source.run(emit))
    await waiting
    source.close()
    await running_
    assert cancelled.cancelled()
    assert recorder.events == ([A, C] if emit_waits else [A, B, C])
    assert seen == ([] if emit_waits else ["delivered"])


async def test_waiting_emits_are_served_in_order(clock: Clock, recorder: Recorder) -> None:
    source = BaseSource("push", buffer=1)
    events = [Event(f"n/{number}") for number in range(20)]
    waiting = [asyncio.create_task(source.emit(event)) for event in events]
    await clock.settle()
    waiting[5].cancel()
    await clock.settle()

    async def emit(event: Any) -> Any:
        recorder(event)

    run = asyncio.create_task(source.run(emit))
    await asyncio.gather(*waiting, return_exceptions=True)
    source.close()
    await run
    assert recorder.events == [*events[:5], *events[6:]]


async def test_after_close_emit_raises_and_buffered_events_are_delivered(recorder: Recorder) -> None:
    source = BaseSource("push")
    await source.emit(A)
    source.close()
    source.close()
    with pytest.raises(SourceClosed, match="'b' was not accepted"):
        await source.emit(B)
    with pytest.raises(SourceClosed):
        source.try_emit(B)

    async def emit(event: Any) -> Any:
        recorder(event)

    await source.run(emit)
    assert recorder.events == [A]


async def test_close_raises_source_closed_in_waiting_emits(clock: Clock) -> None:
    source = BaseSource("push", buffer=1)
    await source.emit(A)
    waiting = asyncio.create_task(source.emit(B))
    await clock.settle()
    source.close()
    with pytest.raises(SourceClosed):
        await waiting


async def test_threads_block_while_the_buffer_is_full(recorder: Recorder) -> None:
    source = BaseSource("push", buffer=1)

    loop = asyncio.get_running_loop()

    def produce() -> None:
        for number in range(100):
            source.emit_threadsafe(Event(f"n/{number}"))
        loop.call_soon_threadsafe(source.close)

    async def emit(event: Any) -> Any:
        recorder(event)

    await asyncio.gather(asyncio.to_thread(produce), source.run(emit))
    assert recorder.topics == [f"n/{number}" for number in range(100)]


async def test_a_blocked_thread_gets_source_closed_when_the_source_stops() -> None:
    source = BaseSource("push", buffer=1)
    blocked = asyncio.Event()

    async def emit(_: Any) -> Any:
        blocked.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(source.run(emit))
    await source.emit(A)
    await blocked.wait()
    await source.emit(B)
    thread = asyncio.create_task(asyncio.to_thread(source.emit_threadsafe, C))
    # The thread's request wakes the event loop.
    while not source._waiting:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(SourceClosed):
        await thread
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_emit_threadsafe_in_the_thread_of_the_loop_raises() -> None:
    source = BaseSource("push")
    with pytest.raises(RuntimeError, match=r"use emit\(\) or try_emit\(\)"):
        source.emit_threadsafe(A)


def test_emit_threadsafe_without_a_running_loop_raises() -> None:
    source = BaseSource("push")
    with pytest.raises(RuntimeError, match="is not running in a loop yet"):
        source.emit_threadsafe(A)

    async def run() -> None:
        source.close()
        await source.run(nothing)

    asyncio.run(run())
    errors: list[BaseException] = []

    def late() -> None:
        try:
            source.emit_threadsafe(A)
        except SourceClosed as error:
            errors.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("buffer", [0, -1])
def test_a_buffer_below_one_raises(buffer: int) -> None:
    with pytest.raises(ValueError, match="cannot hold any event"):
        BaseSource("push", buffer=buffer)


@pytest.mark.parametrize("ended", [False, True], ids=["stopped", "stopped and closed"])
def test_a_source_runs_again_with_its_router_also_in_another_loop(recorder: Recorder, *, ended: bool) -> None:
    router, source = Router(), BaseSource("mailbox")
    router.add_source(source)
    router.handle("a", recorder)

    async def main(number: int) -> None:
        async with running(router):
            await source.emit(Event("a", number))
            await asyncio.sleep(0)
        with pytest.raises(SourceClosed):
            source.try_emit(Event("a", "between the runs"))
        if ended:
            source.close()

    for number in range(3):
        asyncio.run(main(number))
    assert [event.data for event in recorder.events] == [0, 1, 2]


async def test_events_that_a_source_could_not_deliver_in_time_are_delivered_by_its_next_run(clock: Clock) -> None:
    router, source, seen = Router(buffer=0, drain_timeout=1), BaseSource("mailbox"), list[int]()

    @router.on("a")
    async def slow(event: Event) -> None:
        seen.append(event.data)
        await asyncio.sleep(0 if event.data else 100)

    router.add_source(source)
    async with running(router):
        for number in range(5):
            assert source.try_emit(Event("a", number))
        await clock.settle()
    async with running(router):
        await clock.settle()
        assert source.try_emit(Event("a", 5))
        await clock.settle()
    assert seen[-1] == 5
    assert seen == sorted(seen)
