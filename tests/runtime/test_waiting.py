"""`sleep` and `read_line`: the ways they can end, and the handling of data that arrives at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lifecycle.runtime import Interrupted, go, lifetime, read_line, run, shutdown, sleep
from lifecycle.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from lifecycle.runtime import Lifetime
    from lifecycle.testing import Clock

Mode = Literal["shield", "strict"]


async def inside(work: Any, *causes: Any) -> Any:
    """Run ``work`` as a task in a lifetime whose block ignores cancellation, and return the task's outcome.

    If one of the ``causes`` is a number, the loop runs that number of iterations before the next cause.
    """
    result: list[Any] = []

    async def observe(life: Lifetime) -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        for cause in causes:
            if isinstance(cause, int):
                await turns(cause)
            else:
                cause(life, task)
        result.extend(await asyncio.gather(task, return_exceptions=True))

    async with lifetime(signals=False) as life:
        watcher = asyncio.create_task(observe(life))
        try:
            await asyncio.shield(watcher)
        except asyncio.CancelledError:
            await watcher
    return result[0]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def stop(life: Lifetime, _task: object) -> None:
    life.shutdown()


def cancel(_life: Lifetime, task: asyncio.Task[Any]) -> None:
    task.cancel()


# -- sleep --------------------------------------------------------------------------------------------------------


async def test_a_sleep_lasts_the_given_time(clock: Clock) -> None:
    async with lifetime(signals=False):
        await sleep(3)
    assert clock.time() == 3


async def test_a_sleep_is_interrupted_when_the_program_stops(clock: Clock) -> None:
    assert isinstance(await inside(lambda: sleep(100), stop), Interrupted)
    assert clock.time() == 1


async def test_a_sleep_does_not_begin_while_the_program_stops(clock: Clock) -> None:
    async def late() -> None:
        await asyncio.sleep(2)
        await sleep(100)

    assert isinstance(await inside(late, stop), Interrupted)
    assert clock.time() == 2


async def test_a_cancelled_sleep_is_cancelled(clock: Clock) -> None:
    assert isinstance(await inside(lambda: sleep(100), cancel), asyncio.CancelledError)


async def test_a_sleep_needs_a_lifetime(clock: Clock) -> None:
    with pytest.raises(LookupError):
        await sleep(1)


# -- read_line ----------------------------------------------------------------------------------------------------


class Stream:
    """A stream whose lines arrive when the test sends them."""

    def __init__(self) -> None:
        self.coming: asyncio.Future[bytes] | None = None

    def readline(self) -> asyncio.Future[bytes]:
        self.coming = asyncio.get_running_loop().create_future()
        return self.coming

    def feed(self, *_: object) -> None:
        assert self.coming is not None
        self.coming.set_result(b"line\n")


async def read_then_go_on(stream: Stream, mode: Mode) -> tuple[Any, bool]:
    """Return the result of the read, and whether the next await was cancelled."""
    try:
        outcome: Any = await read_line(stream, mode=mode)
    except Interrupted as error:
        outcome = error
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return outcome, True
    return outcome, False


@pytest.mark.parametrize("mode", ["shield", "strict"])
async def test_a_line_is_read(clock: Clock, mode: Mode) -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(b"one\ntwo\n")
    stream.feed_eof()
    async with lifetime(signals=False):
        assert [await read_line(stream, mode=mode) for _ in range(3)] == [b"one\n", b"two\n", b""]
    assert await read_line(stream) == b"", "the end of the file was not reported"


async def test_shielded_data_that_came_with_the_cancellation_is_returned_and_the_cancellation_follows(
    clock: Clock,
) -> None:
    stream = Stream()
    assert await inside(lambda: read_then_go_on(stream, "shield"), stream.feed, cancel) == (b"line\n", True)


async def test_a_task_that_ends_with_the_shielded_line_returns_it_to_its_canceller(clock: Clock) -> None:
    stream = Stream()
    assert await inside(lambda: read_line(stream), stream.feed, cancel) == b"line\n"


async def test_a_timeout_that_ends_with_a_line_cancels_no_later_code(clock: Clock) -> None:
    stream = Stream()
    loop = asyncio.get_running_loop()

    async def read() -> bytes:
        async with asyncio.timeout(1) as limit:
            loop.call_at(limit.when() or 0, stream.feed, None, None)
            line = await read_line(stream)
        assert limit.expired()
        await asyncio.sleep(10)
        return line

    assert await asyncio.create_task(read()) == b"line\n"


async def test_shielded_data_that_came_with_the_stop_is_returned(clock: Clock) -> None:
    stream = Stream()
    assert await inside(lambda: read_then_go_on(stream, "shield"), stop, stream.feed) == (b"line\n", False)


async def test_strictly_data_that_came_with_the_cancellation_is_discarded(clock: Clock) -> None:
    stream = Stream()
    outcome, cancelled = await inside(lambda: read_then_go_on(stream, "strict"), stream.feed, cancel)
    assert isinstance(outcome, Interrupted)
    assert cancelled


async def test_strictly_data_that_came_with_the_stop_is_discarded(clock: Clock) -> None:
    stream = Stream()
    outcome, cancelled = await inside(lambda: read_then_go_on(stream, "strict"), stop, stream.feed)
    assert isinstance(outcome, Interrupted)
    assert not cancelled


@pytest.mark.parametrize("mode", ["shield", "strict"])
async def test_without_data_a_stop_interrupts_and_a_cancellation_cancels(clock: Clock, mode: Mode) -> None:
    stream = Stream()
    assert isinstance(await inside(lambda: read_line(stream, mode=mode), stop), Interrupted)
    assert stream.coming is not None
    assert stream.coming.cancelled()
    assert isinstance(await inside(lambda: read_line(stream, mode=mode), cancel), asyncio.CancelledError)


async def test_a_timeout_around_a_shielded_read_raises_timeout_error(clock: Clock) -> None:
    stream = Stream()

    async def read() -> bytes:
        asyncio.get_running_loop().call_later(1, stream.feed)
        async with asyncio.timeout(1):
            line = await read_line(stream)
            await asyncio.sleep(100)
        return line

    with pytest.raises(TimeoutError):
        await read()
    assert clock.time() == 1


async def test_shielded_reads_that_time_out_lose_no_line(clock: Clock) -> None:
    """The stream receives 2,000 lines, each within a few loop iterations of a timeout."""
    random, stream, fed = Random(1), asyncio.StreamReader(), 2000

    async def feed() -> None:
        for number in range(fed):
            await asyncio.sleep(random.choice((0, 0.5, 1)))
            await turns(random.randrange(8))
            stream.feed_data(b"%d\n" % number)
        stream.feed_eof()

    feeding, lines, expired = asyncio.create_task(feed()), list[bytes](), 0
    while not lines or lines[-1]:
        try:
            async with asyncio.timeout(1):
                lines.append(await read_line(stream))
        except TimeoutError:
            expired += 1
    await feeding
    assert [int(line) for line in lines[:-1]] == list(range(fed))
    assert expired > 100, "too few timeouts for a useful test"


@pytest.mark.parametrize("turns_between", range(9))
@pytest.mark.parametrize("causes", [(stop,), (cancel,), (stop, cancel), (cancel, stop)])
@pytest.mark.parametrize("line_first", [True, False])
async def test_a_line_within_some_turns_of_a_stop_or_cancellation_is_returned_or_left_in_the_stream(
    clock: Clock, causes: tuple[Any, ...], turns_between: int, line_first: bool
) -> None:
    stream, lines = asyncio.StreamReader(), list[bytes]()

    async def read() -> None:
        while True:
            lines.append(await read_line(stream))

    def feed(*_: object) -> None:
        stream.feed_data(b"line\n")

    script = (feed, turns_between, *causes) if line_first else (*causes, turns_between, feed)
    kinds = {stop: Interrupted, cancel: asyncio.CancelledError}
    assert isinstance(await inside(read, *script), tuple(kinds[cause] for cause in causes))
    stream.feed_eof()
    assert b"".join(lines) + await stream.read() == b"line\n"
    if line_first:
        assert lines == [b"line\n"]


@pytest.mark.parametrize("mode", ["shield", "strict"])
async def test_a_reader_that_never_has_to_wait_can_be_cancelled(clock: Clock, mode: Mode) -> None:
    stream, lines = asyncio.StreamReader(), list[bytes]()
    stream.feed_data(b"line\n" * 100)

    async def read() -> None:
        while len(lines) < 100:
            lines.append(await read_line(stream, mode=mode))
            if len(lines) == 1:
                asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.create_task(read())
    await asyncio.wait({task})
    assert task.cancelled()
    assert len(lines) < 5


@pytest.mark.parametrize("mode", ["shield", "strict"])
def test_readers_in_the_main_and_in_the_background_are_interrupted_when_the_program_stops(mode: Mode) -> None:
    ended: list[str] = []

    async def read(name: str) -> None:
        try:
            await read_line(asyncio.StreamReader(), mode=mode)
        except BaseException as error:
            ended.append(f"{name}: {type(error).__name__}")
            raise

    async def main() -> None:
        go(read, "background")
        asyncio.get_running_loop().call_later(1, shutdown)
        await read("main")

    run(main, loop_factory=VirtualLoop)
    assert sorted(ended) == ["background: Interrupted", "main: Interrupted"]


@pytest.mark.parametrize("mode", ["shield", "strict"])
async def test_an_error_of_the_stream_is_raised(clock: Clock, mode: Mode) -> None:
    stream = asyncio.StreamReader()
    stream.set_exception(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await read_line(stream, mode=mode)


async def test_bad_input_is_refused(clock: Clock) -> None:
    with pytest.raises(ValueError, match="'later'"):
        await read_line(asyncio.StreamReader(), mode="later")  # type: ignore[arg-type]
    with Path(__file__).open() as file, pytest.raises(TypeError, match="blocks"):
        await read_line(file)  # type: ignore[arg-type]
