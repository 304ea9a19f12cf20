from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.control import Event, ReloadEvent, Router
from lifecycle.handlers import ReloadHandler
from lifecycle.testing import running
from lifecycle.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from lifecycle.testing import Clock

EVENT = ReloadEvent()


class Config:
    """A program with a number as its configuration, which is prepared and then committed."""

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


async def test_commit_gets_the_result_of_prepare(clock: Clock) -> None:
    config = Config()
    handler = ReloadHandler(config.prepare, config.commit, config.rollback)
    await handler(EVENT)
    state = handler.state()
    assert (config.now, config.thrown_away) == (1, [])
    assert (state.generation, state.last_result, state.duration, state.running) == (1, "ok", 1.0, False)


async def test_a_function_without_a_signature_gets_the_result_of_prepare() -> None:
    settings: dict[str, str] = {}
    await ReloadHandler(lambda: {"colour": "blue"}, settings.update)(EVENT)
    assert settings == {"colour": "blue"}

    thrown_away: set[str] = set()

    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await ReloadHandler(lambda: ["blue"], fail, thrown_away.update)(EVENT)
    assert thrown_away == {"blue"}


async def test_a_failed_prepare_keeps_the_old_version() -> None:
    config = Config()

    def fail() -> None:
        raise ValueError("no such key")

    handler = ReloadHandler(fail, config.commit, config.rollback)
    with pytest.raises(ValueError, match="no such key"):
        await handler(EVENT)
    state = handler.state()
    assert (config.now, config.thrown_away, state.generation) == (0, [], 0)
    assert state.last_result == "ValueError: no such key"


async def test_a_failed_commit_is_rolled_back(clock: Clock) -> None:
    config = Config()

    def fail(_: int) -> None:
        raise OSError("port taken")

    handler = ReloadHandler(config.prepare, fail, config.rollback)
    with pytest.raises(OSError, match="port taken"):
        await handler(EVENT)
    assert config.thrown_away == [1]
    assert handler.state().generation == 0


async def test_a_failed_rollback_is_noted_on_the_error(clock: Clock) -> None:
    def fail(new: Any) -> None:
        raise OSError(f"no {new}")

    handler = ReloadHandler(lambda: "way", fail, fail)
    with pytest.raises(OSError, match="no way") as caught:
        await handler(EVENT)
    assert "rollback failed" in caught.value.__notes__[0]


async def test_a_reload_that_times_out_keeps_the_old_version(clock: Clock) -> None:
    config = Config()
    config.take = 31
    handler = ReloadHandler(config.prepare, config.commit)
    with pytest.raises(TimeoutError):
        await handler(EVENT)
    assert clock.time() == 30
    assert config.now == 0
    assert handler.state().last_result == "TimeoutError: the reload did not finish within 30 s"


async def test_calls_during_a_reload_share_one_more(clock: Clock) -> None:
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


async def test_a_route_lets_calls_share_a_reload_up_to_its_concurrency(clock: Clock) -> None:
    config, router = Config(), Router()
    router.handle(ReloadEvent, ReloadHandler(config.prepare, config.commit), concurrency=100)
    async with running(router):
        for delivery in [await router.emit(EVENT) for _ in range(6)]:
            await delivery
    assert config.made == 2


async def test_calls_that_share_a_reload_share_its_error(clock: Clock) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise OSError("no")

    handler = ReloadHandler(fail)
    results = await asyncio.gather(*(handler(EVENT) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 3
    assert clock.time() == 2


async def test_another_caller_takes_over_from_a_cancelled_one(clock: Clock) -> None:
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


async def test_a_timeout_during_the_commit_rolls_back(clock: Clock) -> None:
    config = Config()

    async def hang(_: int) -> None:
        await asyncio.Event().wait()

    handler = ReloadHandler(config.prepare, hang, config.rollback, timeout=5)
    with pytest.raises(TimeoutError, match="5 s"):
        await handler(EVENT)
    assert (clock.time(), config.thrown_away) == (5, [1])
    assert not handler.state().running


async def test_a_timeout_error_of_prepare_is_raised_as_it_is(clock: Clock) -> None:
    async def ask() -> None:
        raise TimeoutError("the database does not answer")

    handler = ReloadHandler(ask)
    with pytest.raises(TimeoutError, match="database"):
        await handler(EVENT)
    assert handler.state().last_result == "TimeoutError: the database does not answer"


async def test_cancelling_a_commit_rolls_back_without_a_warning(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lifecycle")
    config = Config()

    async def hang(_: int) -> None:
        await asyncio.Event().wait()

    handler = ReloadHandler(config.prepare, hang, config.rollback)
    running = asyncio.create_task(handler(EVENT))
    await clock.advance(2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert config.thrown_away == [1]
    assert (handler.state().generation, handler.state().last_result) == (0, "CancelledError")
    assert not caplog.records


async def test_a_rollback_times_out(clock: Clock) -> None:
    async def fail(_: object) -> None:
        raise OSError("port taken")

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    with pytest.raises(OSError, match="port taken") as caught:
        await ReloadHandler(lambda: 1, fail, hang, timeout=5)(EVENT)
    assert clock.time() == 5
    assert "rollback failed" in caught.value.__notes__[0]


async def test_a_shared_reload_gets_the_newest_event(clock: Clock) -> None:
    got: list[str] = []

    async def prepare(event: Event) -> None:
        got.append(event.topic)
        await asyncio.sleep(1)

    handler = ReloadHandler(prepare)
    await asyncio.gather(*(handler(Event(topic)) for topic in ("a", "b", "c", "d")))
    assert got == ["a", "d"]


async def test_a_plain_prepare_runs_in_a_thread_and_a_plain_commit_in_the_loop() -> None:
    where: list[bool] = []

    def note(*_: object) -> None:
        where.append(threading.current_thread() is threading.main_thread())

    await ReloadHandler(note, note)(EVENT)
    assert where == [False, True]


async def test_a_plain_prepare_alone_runs_in_the_loop() -> None:
    where: list[object] = []
    await ReloadHandler(lambda: where.append(asyncio.get_running_loop()))(EVENT)
    assert where == [asyncio.get_running_loop()]


async def test_a_coroutine_from_a_plain_function_is_awaited(clock: Clock) -> None:
    config = Config()
    await ReloadHandler(lambda: config.prepare(), config.commit)(EVENT)  # noqa: PLW0108  # a plain function is meant
    assert config.now == 1


class Blocking:
    """A prepare that blocks its thread until it is released. Its result is committed or discarded."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.at_once = 0
        self.most_at_once = 0
        self.made = 0
        self.now = 0
        self.thrown_away: list[int] = []
        self.rested = asyncio.Event()

    def prepare(self) -> int:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.go_on.wait(30)
        self.made += 1
        self.at_once -= 1
        return self.made

    def commit(self, new: int) -> None:
        self.now = new

    def rollback(self, new: int) -> None:
        self.thrown_away.append(new)
        self.rested.set()


async def test_the_late_result_of_a_prepare_that_timed_out_is_rolled_back() -> None:
    it = Blocking()
    handler = ReloadHandler(it.prepare, it.commit, it.rollback, timeout=0.05)
    with pytest.raises(TimeoutError):
        await handler(EVENT)
    assert (it.now, handler.state().generation) == (0, 0)
    it.go_on.set()
    async with asyncio.timeout(30):
        await it.rested.wait()
    assert (it.now, it.thrown_away) == (0, [1])


async def test_the_next_reload_waits_for_a_thread_that_timed_out() -> None:
    it = Blocking()
    handler = ReloadHandler(it.prepare, it.commit, it.rollback, timeout=None)
    given_up = asyncio.create_task(handler(EVENT))
    async with asyncio.timeout(30):
        while not it.at_once:
            await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    following = asyncio.create_task(handler(EVENT))
    await asyncio.sleep(0)
    it.go_on.set()
    await following
    assert (it.thrown_away, it.now, it.most_at_once) == ([1], 2, 1)


async def test_a_late_error_of_a_thread_does_not_fail_the_next_reload() -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def prepare() -> None:
        calls.append(1)
        assert go_on.wait(30)
        if len(calls) == 1:
            raise ValueError("half a file")

    handler = ReloadHandler(prepare, lambda _: None)
    given_up = asyncio.create_task(handler(EVENT))
    async with asyncio.timeout(30):
        while not calls:
            await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    go_on.set()
    await handler(EVENT)
    assert handler.state().generation == 1


def test_a_handler_works_in_another_loop_after_a_thread_timed_out() -> None:
    it = Blocking()
    handler = ReloadHandler(it.prepare, it.commit, timeout=0.05)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await handler(EVENT)
        it.go_on.set()

    asyncio.run(give_up())
    asyncio.run(handler(EVENT))
    assert (it.now, handler.state().generation) == (2, 1)


#: One step by a caller: request a reload, cancel the n-th request, or wait.
_STEPS = st.lists(
    st.one_of(
        st.just(("ask", 0)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(1, 15)),
    ),
    max_size=25,
)


@given(_STEPS)
def test_every_call_gets_a_reload_that_began_after_it_and_none_is_superfluous(
    steps: list[tuple[str, int]],
) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_play(steps))


async def _play(steps: list[tuple[str, int]]) -> None:
    clock = asyncio.get_running_loop().time
    spans: list[tuple[float, float]] = []

    async def prepare() -> None:
        began = clock()
        await asyncio.sleep(10.5)
        spans.append((began, clock()))

    handler = ReloadHandler(prepare, timeout=None)
    asked: list[tuple[float, asyncio.Task[None]]] = []
    served: list[tuple[float, float]] = []

    async def ask() -> None:
        at = clock()
        await handler(EVENT)
        served.append((at, clock()))

    for what, number in steps:
        if what == "ask":
            asked.append((clock(), asyncio.create_task(ask())))
        elif what == "cancel" and number < len(asked):
            asked[number][1].cancel()
        elif what == "wait":
            await asyncio.sleep(number)
    await asyncio.gather(*(task for _, task in asked), return_exceptions=True)
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert begin >= end, "two reloads overlap"
    for at, done in served:
        assert [span for span in spans if span[0] >= at and span[1] == done]
        # At most two runs: the run in progress at the time of the request, and the requested run.
        assert sum(at < span[1] <= done for span in spans) <= 2
    assert not handler.state().running
    assert handler.state().generation == len(spans) <= len(asked)


async def test_failed_reload_is_reported_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def prepare() -> None:
        raise ValueError("line 3")

    router = Router()
    router.handle("lifecycle/reload", ReloadHandler(prepare))
    async with running(router):
        with pytest.raises(ValueError, match="line 3"):
            await (await router.emit(EVENT))
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == [
        "reload failed; keeping generation 0: ValueError: line 3"
    ]
    assert router.state().failed == 1
