"""A worker receives messages on two threads: the thread that runs calls also reads while it is idle."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from lifecycle.workers import Status
from lifecycle.workers.pool.connection import CallCancelled, ConnectionClosed
from tests.realtime.pool.workers import LIMIT, chunks, outcome, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realtime.pool.workers import Spawn, Up

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks


async def _warmed(up: Spawn) -> Up:
    """Return a worker that has already run calls, so that its main thread reads messages."""
    worker = await up("Plain")
    for number in range(20):
        assert await worker.result("times", number) == number
    return worker


async def test_a_worker_that_reads_in_its_main_thread_answers_pings(up: Spawn) -> None:
    worker = await _warmed(up)
    for _ in range(20):
        assert (await worker.connection.ping()).busy_id is None


async def test_pings_are_answered_during_a_call_read_by_the_main_thread(up: Spawn, tmp_path: Path) -> None:
    worker = await _warmed(up)
    request = worker.call("sleep", str(tmp_path / "started"))
    assert (await worker.connection.ping()).busy_id == request.number
    await until(tmp_path / "started")
    request.cancel("enough")
    assert isinstance(await outcome(request), CallCancelled)


@pytest.mark.parametrize("function", ["sleep", "spin"])
async def test_a_call_read_by_the_main_thread_is_cancelled(up: Spawn, tmp_path: Path, function: str) -> None:
    worker = await _warmed(up)
    for number in range(5):
        request = worker.call(function, str(tmp_path / f"started{number}"))
        await until(tmp_path / f"started{number}")
        request.cancel("enough")
        assert isinstance(await outcome(request), CallCancelled)
        assert await worker.result("times", number) == number


async def test_a_stream_read_by_the_main_thread_gets_its_credits(up: Spawn) -> None:
    worker = await _warmed(up)
    for count in (0, 1, 100, 1000):
        assert await chunks(worker.call("numbers", count, window=4)) == list(range(count))
        assert await worker.result("times", count) == count


async def test_a_worker_that_reads_in_its_main_thread_handles_bye(up: Spawn) -> None:
    worker = await _warmed(up)
    worker.connection.bye(LIMIT)
    assert (await worker.end()).exit_code == 0


async def test_a_worker_that_reads_in_its_main_thread_dies_of_sigterm(up: Spawn) -> None:
    worker = await _warmed(up)
    os.kill(worker.process.state().pid or 0, signal.SIGTERM)
    end = await worker.end()
    assert (end.status, end.signal) == (Status.FAILED, signal.SIGTERM)


async def test_a_worker_that_reads_in_its_main_thread_ends_with_its_input(up: Spawn) -> None:
    worker = await _warmed(up)
    worker.connection.pipes.close()
    end = await worker.end()
    assert end.signal == signal.SIGKILL, "the worker must kill its process group"


async def test_a_worker_that_reads_garbage_in_its_main_thread_reports_it_once(up: Spawn) -> None:
    worker = await _warmed(up)
    worker.connection.pipes.write(b"\x00\x00\x00\x01\xc1")
    end = await worker.end()
    assert end.stderr.count("lifecycle: ") == 1
    assert "is not valid pickle" in end.stderr


@pytest.mark.parametrize("seed", range(3))
async def test_frames_in_any_order_are_answered(up: Spawn, tmp_path: Path, seed: int) -> None:
    """The sequence contains quick and slow calls, pings, streams and cancellations, with and without pauses."""
    worker, chance = await _warmed(up), random.Random(seed)
    async with asyncio.timeout(LIMIT):
        for number in range(100):
            match chance.choice(["call", "calls", "ping", "stream", "cancel", "slow", "pause"]):
                case "call":
                    assert await worker.result("times", number) == number
                case "calls":
                    requests = [worker.call("times", each) for each in range(5)]
                    assert [await outcome(each) for each in requests] == list(range(5))
                case "ping":
                    await worker.connection.ping()
                case "stream":
                    assert await chunks(worker.call("numbers", 20, window=3)) == list(range(20))
                case "cancel":
                    request = worker.call("sleep", str(tmp_path / f"{number}"))
                    if chance.random() < 0.5:
                        await until(tmp_path / f"{number}")
                    request.cancel("enough")
                    assert isinstance(await outcome(request), CallCancelled)
                case "slow":
                    request = worker.call("sleep", "", chance.choice([0.001, 0.002, 0.003]))
                    await worker.connection.ping()
                    assert await outcome(request) is None
                case _:
                    await asyncio.sleep(chance.choice([0.001, 0.002, 0.005]))
    assert not worker.broken
    assert not isinstance(await worker.result("pid"), ConnectionClosed)
