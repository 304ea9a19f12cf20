"""QueueSource emits the items in a queue until the queue is shut down."""

from __future__ import annotations

import asyncio
import queue
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.events import Event
from lifecycle.sources import QueueSource

if TYPE_CHECKING:
    from lifecycle.testing import Clock, Recorder


async def test_none_ends_the_source_and_later_items_stay_in_the_queue(recorder: Recorder) -> None:
    events: asyncio.Queue[Any] = asyncio.Queue()
    for item in (Event("a"), Event("b"), None, Event("c")):
        events.put_nowait(item)

    async def emit(event: Any) -> Any:
        recorder(event)

    await QueueSource(events).run(emit)
    assert recorder.topics == ["a", "b"]
    assert events.qsize() == 1


async def test_each_event_is_marked_done_when_its_lane_has_taken_it(clock: Clock) -> None:
    events: asyncio.Queue[Any] = asyncio.Queue()
    events.put_nowait(Event("a"))

    async def emit(_: Any) -> Any:
        await asyncio.sleep(5)

    run = asyncio.create_task(QueueSource(events).run(emit))
    await asyncio.wait_for(events.join(), 10)
    assert clock.time() == 5
    events.put_nowait(None)
    await run


if sys.version_info >= (3, 13):

    async def test_a_queue_that_is_shut_down_is_emptied_first(recorder: Recorder) -> None:
        events: asyncio.Queue[Any] = asyncio.Queue()
        events.put_nowait(Event("a"))
        events.shutdown()

        async def emit(event: Any) -> Any:
            recorder(event)

        await QueueSource(events).run(emit)
        assert recorder.topics == ["a"]


def test_another_type_of_queue_raises() -> None:
    with pytest.raises(TypeError, match=r"is not an asyncio\.Queue"):
        QueueSource(queue.Queue())  # type: ignore[arg-type]  # the mistake under test
