"""Misuse of a pool, and the resulting errors."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.backoff import Intensity
from lifecycle.errors import PoolClosed, PoolFailed, RemoteError, WorkerFailed, WorkerLost
from lifecycle.workers import Status
from lifecycle.workers.pool import Heartbeat, Pool
from tests.realtime.pool.pools import ANY, QUICK, announced, gone, kill, pool_of, started
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


# -- calls with mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_an_argument_that_cannot_be_sent_is_refused_with_the_remedy(codec: str) -> None:
    async with pool_of(codec=codec) as pool:
        with pytest.raises(TypeError, match=r"'echo' was not called, .*type lock .*; use only numbers.*codec='pickle'"):
            await pool.call("echo", [threading.Lock()])
        with pytest.raises(
            RemoteError, match=r"'fail_in_a_way' returned a value that cannot be sent.*type lock .*'pickle'"
        ):
            await pool.call("fail_in_a_way", "unsendable")
        assert pool.stats().busy == 0


def test_init_that_cannot_be_sent_is_refused_with_the_pool() -> None:
    with pytest.raises(TypeError, match=r"init=\(<object .*\) of 'pool' cannot be sent: .*; use only numbers"):
        pool_of(init=[object()], codec="msgpack")


@pytest.mark.parametrize("target", ["Desk", "Loop"])
async def test_generators_are_streamed_and_functions_are_called(target: str) -> None:
    async with pool_of(target) as pool:
        with pytest.raises(RemoteError, match=r"'numbers' is a generator; use stream\(\)"):
            await pool.call("numbers", 3)
        with pytest.raises(RemoteError, match=r"TypeError: .*(is not a generator|not iterable)"):
            await anext(pool.stream("echo", 3))
        assert [item async for item in pool.stream("numbers", 3)] == [0, 1, 2]


async def test_a_stream_has_one_consumer_at_a_time() -> None:
    async with pool_of() as pool, pool.stream("numbers", 2) as numbers:
        first = asyncio.ensure_future(anext(numbers))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another caller is already waiting for the next value of 'numbers'"):
            await anext(numbers)
        assert await first == 0
        assert await anext(numbers) == 1


# -- workers killed from outside --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize(
    ("target", "concurrency", "function"),
    [("Desk", 1, "spin"), ("Desk", 2, "spin"), ("Loop", 2, "spin"), ("Loop", 2, "sleep")],
)
async def test_a_worker_terminated_from_outside_fails_its_call_with_the_signal(
    tmp_path: Path, target: str, concurrency: int, function: str
) -> None:
    """A cancellation that starts inside the worker is not a result of the function."""
    async with pool_of(target, concurrency=concurrency) as pool:
        call = asyncio.create_task(pool.call(function, str(tmp_path / "started")))
        await started(tmp_path / "started")
        (worker,) = pool.members()
        kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerLost, match="killed by signal 15") as lost:
            await call
        assert lost.value.signal == signal.SIGTERM
        await until(lambda: pool.stats().idle == 1)


async def test_a_forked_process_ends_by_sigterm_and_its_worker_does_not() -> None:
    async with pool_of() as pool:
        before = await pool.call("pid")
        for _ in range(5):
            assert await pool.call("end_a_child") == -signal.SIGTERM
        assert await pool.call("pid") == before


async def test_an_idempotent_call_survives_the_termination_of_its_worker(tmp_path: Path) -> None:
    async with pool_of() as pool:
        call = asyncio.create_task(
            pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release"), idempotent=True)
        )
        await started(tmp_path / "started")
        (worker,) = pool.members()
        kill(worker.pid, signal.SIGTERM)
        await until(lambda: gone(worker.pid))
        (tmp_path / "release").touch()
        assert await call != worker.pid


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("exit 3", "exited with status 3"),
        ("echo no model there >&2; exit 1", "the end of its stderr:\nno model there"),
        ("kill -9 $$", "signal 9 (SIGKILL), perhaps"),
    ],
)
async def test_a_worker_that_ends_before_it_is_ready_reports_how(command: str, how: str) -> None:
    pool = Pool("pool", ["sh", "-c", command], size=(1, 1), intensity=Intensity(1, 30.0), process=QUICK)
    with pytest.raises(PoolFailed, match="ended before it was ready") as failed:
        await pool.start()
    assert how in "".join(traceback.format_exception(failed.value))
    assert "no model there" not in str(failed.value)
    assert isinstance(failed.value.__cause__, WorkerLost)


# -- earlier calls ----------------------------------------------------------------------------------------------------


async def test_the_excuse_of_a_call_does_not_depend_on_earlier_calls(tmp_path: Path) -> None:
    """The earlier call had an infinite deadline."""
    heartbeat = Heartbeat(every=0.02, timeout=0.05, misses=2)
    async with pool_of(heartbeat=heartbeat) as pool:
        await pool.call("pid", deadline=math.inf)
        with announced(hooks.pool_recovered, pool) as recovered, announced(hooks.health_checked, pool) as checked:
            call = asyncio.create_task(pool.call("hold", str(tmp_path / "held"), deadline=LIMIT))
            await started(tmp_path / "held")
            missed = len(checked)
            await until(lambda: len(checked) > missed + 5)
            assert recovered == []
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_a_worker_drained_before_its_start_just_ends(tmp_path: Path) -> None:
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    pool = pool_of("Flawed", init=[str(tmp_path / "tries")], intensity=ANY)
    replaced: list[str] = []

    def stop(_sender: object, *, action: str, **_: object) -> None:
        replaced.append(action)
        if len(replaced) == 2:
            # A third worker has been requested, but has not begun to start.
            pool.ask_to_stop()

    hooks.pool_recovered.connect(stop, sender=pool)
    try:
        with pytest.raises(WorkerFailed, match="was stopped while starting"):
            await pool.start()
        assert (await pool.wait()).status is Status.STOPPED
    finally:
        hooks.pool_recovered.disconnect(stop, sender=pool)
    gc.collect()
    assert wrong == []
    with pytest.raises(PoolClosed):
        await pool.call("pid")


async def test_a_pool_stopped_before_its_start_is_closed() -> None:
    pool = pool_of()
    with pytest.raises(PoolClosed, match="start it first"):
        await pool.call("pid")
    await pool.stop()
    with pytest.raises(PoolClosed, match="is closed"):
        await pool.call("pid")
