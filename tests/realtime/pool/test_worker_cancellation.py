"""Cancelling a call interrupts it where possible and lets it clean up. No other code is interrupted."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import RemoteError
from lifecycle.workers.pool.connection import CallCancelled, ConnectionClosed
from tests.realtime.pool.workers import LIMIT, chunks, outcome, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realtime.pool.workers import Spawn, Up

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks

KINDS = [("Plain", 1), ("Plain", 4), ("Loop", 4)]


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize(
    ("served", "concurrency", "function"),
    [("Plain", 1, "sleep"), ("Plain", 1, "spin"), ("Plain", 4, "spin"), ("Loop", 4, "sleep"), ("Loop", 4, "spin")],
)
async def test_a_running_call_is_cancelled_and_its_worker_continues(
    up: Spawn, tmp_path: Path, served: str, concurrency: int, function: str
) -> None:
    worker = await up(served, concurrency=concurrency)
    request = worker.call(function, str(tmp_path / "started"))
    await until(tmp_path / "started")
    settled = request.cancel("enough")
    assert request.cancel("enough") is settled
    assert isinstance(await outcome(request), CallCancelled)
    assert settled.done()
    assert await worker.result("echo", "still there") == "still there"
    assert worker.connection.busy_until == 0


async def test_a_waiting_call_that_is_cancelled_never_runs(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain")
    running = worker.call("spin", str(tmp_path / "running"))
    waiting = worker.call("spin", str(tmp_path / "waiting"))
    await until(tmp_path / "running")
    waiting.cancel("enough")
    running.cancel("enough")
    assert isinstance(await outcome(waiting), CallCancelled)
    assert isinstance(await outcome(running), CallCancelled)
    assert not (tmp_path / "waiting").exists()


async def test_the_cleanup_of_a_cancelled_call_is_not_interrupted(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain")
    request = worker.call("stubborn", str(tmp_path / "started"), str(tmp_path / "cleaned"))
    await until(tmp_path / "started")
    request.cancel("enough")
    assert isinstance(await outcome(request), CallCancelled)
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("served", "concurrency"), KINDS)
@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_a_cancelled_stream_closes_its_generator(
    up: Spawn, tmp_path: Path, served: str, concurrency: int, taken: int
) -> None:
    """The stream may be waiting for credit or about to request more."""
    worker = await up(served, concurrency=concurrency)
    request = worker.call("numbers", 10**9, str(tmp_path / "closed"), window=4)
    first = await request.next_chunk()
    assert [first, *[await request.next_chunk() for _ in range(taken)]] == list(range(taken + 1))
    request.cancel("enough")
    assert isinstance(await outcome(request), CallCancelled)
    assert (tmp_path / "closed").exists()
    assert await chunks(worker.call("numbers", 5, window=4)) == list(range(5))


async def test_a_stream_that_sleeps_between_two_items_is_cancelled(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain")
    request = worker.call("waits_in_between", str(tmp_path / "started"), str(tmp_path / "closed"), window=4)
    assert await request.next_chunk() == 1
    await until(tmp_path / "started")
    request.cancel("enough")
    with pytest.raises(CallCancelled):
        await request.next_chunk()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize(("served", "concurrency"), KINDS)
async def test_a_cancellation_never_hits_another_call(up: Spawn, served: str, concurrency: int) -> None:
    """Each call is answered once, with either its own result or a requested cancellation."""
    worker = await up(served, concurrency=concurrency)
    chance = random.Random(7)
    for _ in range(60):
        calls = [(value, worker.call("echo", value)) for value in range(chance.randint(1, 6))]
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
        for _, request in calls:
            if chance.random() < 0.5:
                request.cancel("enough")
        for value, request in calls:
            answer = await outcome(request)
            assert answer == value or (request.cancelled and isinstance(answer, CallCancelled))
    assert await worker.result("echo", "sound") == "sound"
    assert not worker.broken


@pytest.mark.parametrize(("served", "concurrency"), KINDS)
async def test_a_cancelled_stream_leaves_frames_whole(up: Spawn, served: str, concurrency: int) -> None:
    worker = await up(served, concurrency=concurrency)
    chance = random.Random(11)
    for _ in range(40):
        request = worker.call("numbers", 10**9, window=chance.randint(1, 8))
        for number in range(chance.randint(0, 20)):
            assert await request.next_chunk() == number
        for _ in range(chance.randint(0, 20)):
            await asyncio.sleep(0)
        request.cancel("enough")
        assert isinstance(await outcome(request), CallCancelled)
    assert await worker.result("echo", "sound") == "sound"
    assert not worker.broken


async def test_the_answer_is_awaited_after_its_waiter_was_cancelled(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain")
    request = worker.call("spin", str(tmp_path / "started"))
    await until(tmp_path / "started")
    request.future.cancel()
    async with asyncio.timeout(LIMIT):
        await request.cancel("enough")
    assert await worker.result("echo", 1) == 1


async def test_c_code_that_holds_the_interpreter_answers_nothing(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain", stop_timeout=0.0)
    request = worker.call("hold", str(tmp_path / "started"))
    await until(tmp_path / "started")
    async with asyncio.timeout(LIMIT):
        # The call has started, though it may not be in C code yet.
        while (await asyncio.wait({ping := worker.connection.ping()}, timeout=0.2))[0]:
            await asyncio.sleep(0.001)
        settled = request.cancel("enough")
        # The worker writes its stacks from C code, without the interpreter.
        worker.process.send_signal(signal.SIGUSR2)
        while "in hold" not in worker.connection.pipes.tail():
            await asyncio.sleep(0.001)
    assert not settled.done()
    assert not ping.done()
    worker.process.ask_to_stop(0)
    assert (await worker.end()).signal == signal.SIGKILL
    assert settled.done()
    assert isinstance(await outcome(request), ConnectionClosed)
    with pytest.raises(ConnectionClosed):
        await ping


async def test_a_late_cancel_signal_does_nothing(up: Spawn, tmp_path: Path) -> None:
    worker = await up("Plain")
    worker.process.send_signal(signal.SIGUSR1)
    worker.process.send_signal(signal.SIGINT)
    assert await worker.result("echo", 1) == 1
    request = worker.call("spin", str(tmp_path / "started"))
    await until(tmp_path / "started")
    worker.process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(LIMIT):
        assert (await worker.connection.ping()).busy_id == request.number
    request.cancel("enough")
    assert isinstance(await outcome(request), CallCancelled)


async def test_a_refused_argument_leaves_no_trace(up: Spawn) -> None:
    worker: Up = await up("Plain")
    unsendable: Any = threading.Lock()
    with pytest.raises(TypeError):
        worker.call("echo", unsendable)
    assert isinstance(await worker.result("fail", "as ever"), RemoteError)
