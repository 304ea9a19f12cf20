"""A Python worker's responses: results, errors and streams, from its main thread, other threads and a loop."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from lifecycle.errors import RemoteError, RemoteTraceback
from tests.realtime.pool.workers import LIMIT, chunks, outcome, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realtime.pool.workers import Spawn

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks

KINDS = [("Plain", 1), ("Plain", 4), ("Loop", 4)]
SERVED = "tests.realtime.pool.worker_targets"


@pytest.mark.parametrize("by", ["msgpack", "json", "pickle"])
async def test_calls_are_answered_and_state_is_kept_with_every_codec(up: Spawn, by: str) -> None:
    worker = await up("Plain", 3, by=by)
    assert await worker.result("times", 14) == 42
    assert await worker.result("times", 1, and_more=2) == 5
    assert await worker.result("count") == 2
    value = [None, True, "grüße", {"a": [1.5]}]
    assert await worker.result("echo", value) == value
    assert await chunks(worker.call("numbers", 20, window=3)) == list(range(20))


async def test_other_functions_are_called_by_module_and_name(up: Spawn) -> None:
    worker = await up("echo")
    assert await worker.result("echo", 1) == 1
    assert await worker.result(f"{SERVED}:echo", 2) == 2
    assert await worker.result("builtins:len", "four") == 4
    assert isinstance(await worker.result("no_such_function"), RemoteError)
    assert (await worker.result("no.such:thing")).type == "ModuleNotFoundError"


@pytest.mark.parametrize(("served", "concurrency"), KINDS)
async def test_an_error_carries_the_remote_traceback(up: Spawn, served: str, concurrency: int) -> None:
    worker = await up(served, concurrency=concurrency)
    error = await worker.result("fail", "bad input")
    assert isinstance(error, RemoteError)
    assert (error.type, error.message, str(error)) == ("ValueError", "bad input", "ValueError: bad input")
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise ValueError(message)" in str(error.__cause__)
    assert "pool/child" not in error.traceback, "the traceback must begin in the called function"
    again = pickle.loads(pickle.dumps(error))
    assert (again.type, again.message, again.traceback) == (error.type, error.message, error.traceback)
    assert str(again.__cause__) == str(error.__cause__)
    assert await worker.result("echo", 1) == 1


@pytest.mark.parametrize(
    ("way", "type_", "message"),
    [
        ("exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("nasty", f"{SERVED}.Nasty", "(its message cannot be read: RuntimeError)"),
        ("surrogate", "ValueError", "?"),
        ("deep", "RecursionError", "maximum recursion depth exceeded"),
        (
            "unsendable",
            "TypeError",
            "'fail_in_a_way' returned a value that cannot be sent: pickle cannot encode the value: ",
        ),
        ("large", "ValueError", "'fail_in_a_way' returned a value that cannot be sent: a frame of 68157"),
    ],
)
async def test_a_worker_survives_whatever_a_function_raises(up: Spawn, way: str, type_: str, message: str) -> None:
    worker = await up("Plain")
    error = await worker.result("fail_in_a_way", way)
    assert isinstance(error, RemoteError)
    assert error.type == type_
    assert error.message.startswith(message)
    assert await worker.result("echo", 1) == 1


async def test_values_that_cannot_be_sent_are_refused_and_nothing_is_sent(up: Spawn) -> None:
    worker = await up("Plain")
    with pytest.raises(ValueError, match="send less data at a time"):
        worker.call("echo", bytes(65 * 1024 * 1024))
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object"):
        worker.call("echo", threading.Lock())
    assert worker.connection.busy_until == 0
    assert await worker.result("count") == 0


async def test_large_values_are_sent_both_ways(up: Spawn) -> None:
    worker = await up("Plain")
    assert await worker.result("echo", bytes(20_000_000)) == bytes(20_000_000)


async def test_a_value_that_cannot_be_unpickled_fails_only_its_call(up: Spawn) -> None:
    worker = await up("Plain", by="pickle")
    error = await worker.result("fail_in_a_way", "unreadable")
    assert isinstance(error, RemoteError)
    assert "cannot be decoded here: pickle cannot decode it: RuntimeError: not here" in error.message
    from tests.realtime.pool.worker_targets import Unreadable  # for pool workers only

    there = await worker.result("echo", Unreadable())
    assert isinstance(there, RemoteError)
    assert "not here" in there.message
    assert await worker.result("echo", 1) == 1
    assert not worker.broken


async def test_async_calls_run_concurrently(up: Spawn) -> None:
    worker = await up("Loop", concurrency=5)
    assert await asyncio.gather(*(outcome(worker.call("meet", 5)) for _ in range(5))) == [5] * 5
    assert await chunks(worker.call("numbers", 50, window=4)) == list(range(50))
    error = await worker.result("give_itself_up")
    assert isinstance(error, RemoteError)
    assert error.type == "asyncio.exceptions.CancelledError"


async def test_an_async_function_is_a_target(up: Spawn) -> None:
    worker = await up("echo_in_a_loop")
    assert await worker.result("echo_in_a_loop", 7) == 7


async def test_an_async_function_without_a_loop_is_refused(up: Spawn) -> None:
    worker = await up("Plain")
    error = await worker.result(f"{SERVED}:echo_in_a_loop", 7)
    assert isinstance(error, RemoteError)
    assert "is async, but this pool's target is not" in error.message


async def test_calls_run_concurrently_in_threads(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain", concurrency=2)
    started = tmp_path / "started"
    sleeping = worker.call("spin", str(started))
    await until(started)
    assert await worker.result("echo", "meanwhile") == "meanwhile"
    assert await chunks(worker.call("numbers", 30, window=2)) == list(range(30))
    sleeping.cancel("enough")
    await outcome(sleeping)


@pytest.mark.parametrize(("served", "concurrency"), KINDS[:2])
async def test_a_stream_fails_after_its_earlier_values(up: Spawn, served: str, concurrency: int) -> None:
    worker = await up(served, concurrency=concurrency)
    for function, type_ in (("numbers_then_fail", "ValueError"), ("numbers_then_unsendable", "TypeError")):
        request = worker.call(function, 3, window=10)
        assert [await request.next_chunk() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RemoteError) as failed:
            await request.next_chunk()
        assert failed.value.type == type_
    not_iterable = worker.call("count", window=2)
    assert isinstance(await outcome(not_iterable), RemoteError)
    assert await chunks(worker.call("numbers", 3, window=10)) == [0, 1, 2]


async def test_a_slow_consumer_delays_the_stream_and_pings_are_answered(up: Spawn) -> None:
    """At most one window of the thousand 1 MiB blocks is unacknowledged at any time."""
    worker = await up("Plain")
    request = worker.call("blocks", 1000, 1024 * 1024, window=4)
    rss = psutil.Process().memory_info().rss
    for _ in range(20):
        assert len(await request.next_chunk()) == 1024 * 1024
        async with asyncio.timeout(LIMIT):
            pong = await worker.connection.ping()
        assert pong.busy_id == request.number
    assert psutil.Process().memory_info().rss - rss < 64 * 1024 * 1024
    request.cancel("enough")
    await outcome(request)


async def test_user_code_that_prints_and_reads_does_not_disturb_the_protocol(
    up: Spawn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lifecycle.workers.pool")
    worker = await up("Plain")
    assert await worker.result("print_and_read", "hello from the worker") == ""
    worker.connection.bye(LIMIT)
    await worker.end()
    said = [record.message for record in caplog.records]
    assert "hello from the worker" in said
    assert "written to descriptor 1" in said
    assert "hello from the worker" in worker.connection.pipes.tail()


async def test_a_flood_of_stderr_does_not_block_the_worker(up: Spawn) -> None:
    worker = await up("Plain")
    assert await worker.result("flood", 20_000) == 20_000
    worker.connection.bye(LIMIT)
    await worker.end()
    assert len(worker.connection.pipes.tail()) == 4096


@pytest.mark.parametrize(("function", "started"), [("spin", True), ("sleep", True)])
async def test_a_pong_contains_the_running_call_and_its_age(
    up: Spawn, function: str, started: bool, tmp_path: Path
) -> None:
    worker = await up("Plain")
    async with asyncio.timeout(LIMIT):
        idle = await worker.connection.ping()
    assert (idle.busy_id, idle.busy_seconds) == (None, 0)
    assert 1_000_000 < idle.rss < 1_000_000_000
    request = worker.call(function, str(tmp_path / "started"))
    await until(tmp_path / "started")
    async with asyncio.timeout(LIMIT):
        first, second = await worker.connection.ping(), await worker.connection.ping()
    assert first.busy_id == second.busy_id == request.number
    assert 0 < first.busy_seconds < second.busy_seconds
    request.cancel("enough")
    await outcome(request)
