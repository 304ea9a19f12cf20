"""`PoolHandler`: a route that calls into a pool."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lifecycle.control import Event, Router
from lifecycle.errors import PoolBusy
from lifecycle.events import FileBatch, FileEvent, SuspendEvent, TickEvent, WebhookEvent
from lifecycle.handlers import PoolHandler


class Pool:
    """Anything with ``call``: here it answers with what it was asked."""

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
    await router.dispatch(Event("image/new", {"width": 3}))
    assert pool.calls == [("resize", {"topic": "image/new", "data": {"width": 3}})]


async def test_the_result_of_the_function_is_the_result_of_the_handler() -> None:
    assert await PoolHandler(Pool(), "count")(Event("x")) == 1


class Letter:
    """An event that is not a dataclass."""

    topic = "mail/new"

    def __init__(self) -> None:
        self.subject = "hello"
        self._seen = False


class Bare:
    """An event of which there is nothing but its topic."""

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
        (Letter(), {"topic": "mail/new", "subject": "hello"}),
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
        await router.dispatch(Event("x"))


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
        (None, "f", TypeError, "None cannot be called into; give a Pool"),
        (lambda: None, "f", TypeError, "cannot be called into"),
        (Pool(), "", ValueError, "must not be empty"),
        (Pool(), print, TypeError, "must be a string, got"),
    ],
)
def test_an_invalid_pool_or_name_raises_at_once(pool: Any, name: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        PoolHandler(pool, name)
