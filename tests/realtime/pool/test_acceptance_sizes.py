"""The number of workers and their lifetime, as the pool grows and shrinks: P12, P13 and P26 of the acceptance list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks, lifetime
from lifecycle.backoff import Intensity
from lifecycle.errors import PoolFailed
from lifecycle.workers.pool import Phase, Pool, Recycle, Sessions
from tests.realtime.pool.pools import QUICK, announced, gone, kill, pids, pool_of, ready, started
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_p12_a_worker_is_recycled_after_its_calls_and_no_call_fails() -> None:
    async with pool_of(recycle=Recycle(calls=3)) as pool:
        with announced(hooks.pool_recovered, pool) as recovered:
            seen = [await pool.call("pid") for _ in range(10)]
        assert [seen.count(pid) for pid in dict.fromkeys(seen)] == [3, 3, 3, 1]
        assert recovered == []
        assert pool.stats().restarts == 0


async def test_workers_that_come_and_go_leave_no_loggers() -> None:
    """Python never frees a logger."""
    async with pool_of(recycle=Recycle(calls=1)) as pool:
        for _ in range(3):
            await pool.call("pid")
    assert not [name for name in logging.root.manager.loggerDict if name.startswith("lifecycle.workers.pool-")]


@pytest.mark.parametrize("way", ["grow", "recycle", "refresh"])
async def test_a_program_stays_ready_while_its_pool_adds_or_replaces_a_worker(tmp_path: Path, way: str) -> None:
    release = tmp_path / "release"
    release.touch()
    recycle = Recycle(calls=1 if way == "recycle" else None)
    async with (
        lifetime(signals=False) as life,
        pool_of("Waits", init=[str(release)], size=(1, 2 if way == "grow" else 1), recycle=recycle) as pool,
    ):
        assert life.health().ready
        release.unlink()
        async with contextlib.AsyncExitStack() as stack:
            if way == "grow":
                await stack.enter_async_context(pool.lease())
            task = asyncio.create_task(pool.refresh() if way == "refresh" else pool.call("pid"))
            await until(lambda: pool.stats().starting)
            assert life.health().ready
            assert life.health().components["pool/pool-2"].message == "starting"
            release.touch()
            await task
        await until(lambda: not pool.stats().starting)
        assert life.health().ready


async def test_a_program_that_has_lost_all_workers_of_its_pool_is_not_ready(tmp_path: Path) -> None:
    release = tmp_path / "release"
    release.touch()
    async with lifetime(signals=False) as life, pool_of("Waits", init=[str(release)], size=(1, 2)) as pool:
        release.unlink()
        kill(pool.members()[0].pid, signal.SIGKILL)
        await until(lambda: pool.stats().starting)
        assert (life.health().ready, life.health().live) == (False, True)
        assert life.health().components["pool"].message == "no process is ready"
        release.touch()
        await until(lambda: life.health().ready)


async def test_a_pool_without_workers_is_ready_for_the_first_call() -> None:
    async with lifetime(signals=False) as life, pool_of(size=(0, 1)):
        assert life.health().ready


async def test_the_successor_starts_while_the_last_call_runs(tmp_path: Path) -> None:
    async with pool_of(recycle=Recycle(calls=1)) as pool:
        call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
        await started(tmp_path / "started")
        await until(lambda: ready(pool) == 1)
        (old, new) = pool.members()
        assert (old.phase, old.end_cause) == (Phase.BUSY, "recycle")
        assert await pool.call("pid") == new.pid
        (tmp_path / "release").touch()
        assert await call == old.pid
        await old.wait()
        assert [change.reason for change in old.history][:3] == ["exited", "recycle", "checkout"]


async def test_p13_a_worker_is_recycled_for_its_memory_and_no_call_fails() -> None:
    async with pool_of(recycle=Recycle(rss=150 * 1024 * 1024)) as pool:
        seen = [await pool.call("grow", 50 * 1024 * 1024) for _ in range(8)]
        assert len(set(seen)) > 1
        (old, *_) = dict.fromkeys(seen)
        await until(lambda: gone(old))


async def test_a_worker_is_recycled_for_its_age() -> None:
    async with pool_of(recycle=Recycle(age=0.3)) as pool:
        old = pool.members()[0]
        await until(lambda: old not in pool.members() and ready(pool) == 1)
        assert "recycle" in [change.reason for change in old.history]
        assert pool.stats().restarts == 0


async def test_surplus_workers_end_when_idle_the_longest_idle_first(
    tmp_path: Path,
) -> None:
    async with pool_of(size=(1, 3), recycle=Recycle(idle=0.3)) as pool:
        places = [tmp_path / str(number) for number in range(3)]
        calls = [pool.call("wait_for", str(place), str(tmp_path / "release")) for place in places]
        running = asyncio.gather(*calls)
        await started(*places)
        with announced(hooks.member_changed, pool) as changes:
            (tmp_path / "release").touch()
            await running
            await until(lambda: len(pool.members()) == 1)
        assert [each["change"].reason for each in changes if each["change"].target is Phase.TERMINATING] == [
            "idle_timeout",
            "idle_timeout",
        ]
        assert ready(pool) == 1


async def test_an_idle_worker_stays_while_a_strict_session_needs_it() -> None:
    """A worker that is bound to a strict session is kept until the session expires, even if it is idle."""
    sessions = Sessions(mode="strict", ttl=0.6)
    async with pool_of(size=(0, 1), recycle=Recycle(idle=0.05), sessions=sessions) as pool:
        with announced(hooks.session_lost, pool) as lost:
            await pool.call("pid", session="a")
            await until(lambda: pool.members() == ())
        assert lost == []


async def test_p26_all_workers_are_replaced_under_load_without_an_error() -> None:
    async with pool_of(size=(3, 3)) as pool:
        before = pids(pool)
        over = asyncio.Event()

        async def load() -> int:
            calls = 0
            while not over.is_set():
                await pool.call("work", 0.002)
                calls += 1
            return calls

        callers = [asyncio.create_task(load()) for _ in range(6)]
        await until(lambda: pool.stats().calls > 20)
        with announced(hooks.pool_recovered, pool) as recovered:
            await pool.refresh()
        assert pids(pool).isdisjoint(before)
        assert all(map(gone, before))
        done = pool.stats().calls
        await until(lambda: pool.stats().calls > done + 20)
        over.set()
        assert all(await asyncio.gather(*callers))
        assert recovered == []
        assert pool.stats().size == 3


async def test_a_replaced_worker_finishes_its_call(tmp_path: Path) -> None:
    async with pool_of() as pool:
        call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
        await started(tmp_path / "started")
        refreshed = asyncio.create_task(pool.refresh())
        await until(lambda: ready(pool) == 1)
        new = await pool.call("pid")
        assert not refreshed.done()
        (tmp_path / "release").touch()
        assert await call != new
        await refreshed
        assert pids(pool) == {new}


async def test_an_empty_pool_is_refreshed_at_once_and_surplus_workers_are_not_replaced() -> None:
    async with pool_of(size=(0, 2)) as pool:
        await pool.refresh()
        await pool.call("pid")
        await pool.refresh()
        assert pool.members() == ()


async def test_workers_that_start_during_a_refresh_are_replaced_too(tmp_path: Path) -> None:
    release = tmp_path / "release"
    pool = Pool("pool", "tests.realtime.pool.pool_targets:Waits", size=(0, 1), init=[str(release)], process=QUICK)
    async with pool:
        call = asyncio.create_task(pool.call("pid"))
        await until(lambda: [worker.pid for worker in pool.members() if worker.pid])
        (old,) = pool.members()
        refreshed = asyncio.create_task(pool.refresh())
        await until(lambda: any(worker.generation == 1 and worker.pid for worker in pool.members()))
        release.touch()
        await refreshed
        assert await call != old.pid
        assert gone(old.pid)


async def test_a_refresh_to_a_broken_target_fails_the_pool(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    pool = pool_of("Fickle", init=[str(spoilt)], intensity=Intensity(1, 30.0))
    async with pool:
        spoilt.touch()
        with pytest.raises(PoolFailed, match="spoilt"):
            await pool.refresh()


async def test_a_pool_is_resized_while_it_runs(tmp_path: Path) -> None:
    async with pool_of(size=(1, 1)) as pool:
        await pool.resize(3, 4)
        assert ready(pool) == 3
        call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
        await started(tmp_path / "started")
        await pool.resize(1, 1)
        await until(lambda: len(pool.members()) == 1)
        assert pool.members()[0].phase is Phase.BUSY
        (tmp_path / "release").touch()
        assert await call == pool.members()[0].pid
        await pool.resize(0, 2)
        assert len(pool.members()) == 1


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        ((2, 1), ValueError, "must be a minimum of 0 or more"),
        ((0, 0), ValueError, "must be a minimum of 0 or more"),
        ((-1, 1), ValueError, "must be a minimum of 0 or more"),
        ((1, 1.5), TypeError, "must be two whole numbers"),
        ((True, 1), TypeError, "must be two whole numbers"),
    ],
)
async def test_impossible_sizes_are_refused(size: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pool_of(size=size)
    async with pool_of(size=(0, 1)) as pool:
        with pytest.raises(error, match=message):
            await pool.resize(*size)
