from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import ReloadEvent
from lifecycle.handlers import ReloadHandler

if TYPE_CHECKING:
    from lifecycle.testing import Clock

EVENT = ReloadEvent()


class Config:
    """What is reloaded: a number that is made ready, then swapped in."""

    def __init__(self) -> None:
        self.now = self.made = 0
        self.thrown_away: list[int] = []
        self.take = 1.0

    async def prepare(self) -> int:
        await asyncio.sleep(self.take)
        self.made += 1
        return self.made

    def commit(self, new: int) -> None:
        self.now = new

    async def rollback(self, new: int) -> None:
        self.thrown_away.append(new)


async def test_a_plain_function_is_enough() -> None:
    calls: list[str] = []
    handler = ReloadHandler(lambda: calls.append("read"))
    await handler(EVENT)
    assert calls == ["read"]
    assert handler.state().generation == 1


async def test_prepare_may_take_the_event() -> None:
    got: list[object] = []
    await ReloadHandler(got.append)(EVENT)
    assert got == [EVENT]


async def test_what_was_prepared_is_committed(clock: Clock) -> None:
    config = Config()
    handler = ReloadHandler(config.prepare, config.commit, config.rollback)
    await handler(EVENT)
    state = handler.state()
    assert (config.now, config.thrown_away) == (1, [])
    assert (state.generation, state.last_result, state.duration, state.running) == (1, "ok", 1.0, False)


async def test_a_prepare_that_fails_leaves_the_old() -> None:
    config = Config()

    def fail() -> None:
        raise ValueError("no such key")

    handler = ReloadHandler(fail, config.commit, config.rollback)
    with pytest.raises(ValueError, match="no such key"):
        await handler(EVENT)
    state = handler.state()
    assert (config.now, config.thrown_away, state.generation) == (0, [], 0)
    assert state.last_result == "ValueError: no such key"


async def test_a_commit_that_fails_throws_the_new_away(clock: Clock) -> None:
    config = Config()

    def fail(_: int) -> None:
        raise OSError("port taken")

    handler = ReloadHandler(config.prepare, fail, config.rollback)
    with pytest.raises(OSError, match="port taken"):
        await handler(EVENT)
    assert config.thrown_away == [1]
    assert handler.state().generation == 0


async def test_a_rollback_that_fails_too_is_noted(clock: Clock) -> None:
    def fail(new: Any) -> None:
        raise OSError(f"no {new}")

    handler = ReloadHandler(lambda: "way", fail, fail)
    with pytest.raises(OSError, match="no way") as caught:
        await handler(EVENT)
    assert "rollback failed" in caught.value.__notes__[0]


async def test_a_reload_that_takes_too_long_leaves_the_old(clock: Clock) -> None:
    config = Config()
    config.take = 31
    handler = ReloadHandler(config.prepare, config.commit)
    with pytest.raises(TimeoutError):
        await handler(EVENT)
    assert clock.time() == 30
    assert config.now == 0
    assert handler.state().last_result == "TimeoutError"


async def test_requests_during_a_run_become_one_more(clock: Clock) -> None:
    config = Config()
    handler = ReloadHandler(config.prepare, config.commit)
    tasks = [asyncio.create_task(handler(EVENT))]
    await clock.advance(0.5)
    assert handler.state().running
    tasks += [asyncio.create_task(handler(EVENT)) for _ in range(5)]
    await asyncio.gather(*tasks)
    assert config.made == 2
    assert clock.time() == 2
    assert handler.state().generation == 2


async def test_those_who_share_a_run_share_its_error(clock: Clock) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise OSError("no")

    handler = ReloadHandler(fail)
    results = await asyncio.gather(*(handler(EVENT) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 3
    assert clock.time() == 2


async def test_when_the_one_who_carries_it_out_is_cancelled_another_takes_over(clock: Clock) -> None:
    config = Config()
    handler = ReloadHandler(config.prepare, config.commit)
    running, waiting, joined = (asyncio.create_task(handler(EVENT)) for _ in range(3))
    await clock.advance(0.5)
    waiting.cancel()
    await clock.settle()
    running.cancel()
    await joined
    assert config.made == 1
    assert handler.state().generation == 1


async def test_it_can_be_called_again_after_a_failure(clock: Clock) -> None:
    config = Config()
    config.take = 31
    handler = ReloadHandler(config.prepare, config.commit)
    with pytest.raises(TimeoutError):
        await handler(EVENT)
    config.take = 1
    await handler(EVENT)
    assert config.now == 1


def test_functions_and_timeout_are_checked_when_given() -> None:
    with pytest.raises(TypeError):
        ReloadHandler(lambda one, two: (one, two))
    with pytest.raises(ValueError, match="timeout"):
        ReloadHandler(print, timeout=0)
