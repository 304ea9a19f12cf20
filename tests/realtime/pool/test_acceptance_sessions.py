"""Routing of session calls, and their failure when the worker is lost: P14, P15 and P27 of the acceptance list.

P16, which checks a session's age to the millisecond, is tested in virtual time in
``tests/workers/pool/test_sessions.py``.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from lifecycle import hooks
from lifecycle.errors import PoolBusy, SessionLost, WorkerLost
from lifecycle.workers.pool import Phase, Sessions
from tests.realtime.pool.pools import announced, kill, pool_of, ready, started
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.workers.pool import Pool

STRICT = Sessions(mode="strict")


async def occupy(pool: Pool, path: Path, session: str | None) -> asyncio.Task[int]:
    """Start a call of ``session`` that runs until ``path / "release"`` exists."""
    place = path / f"started-{session}"
    call = asyncio.create_task(pool.call("wait_for", str(place), str(path / "release"), session=session))
    await started(place)
    return call


async def lose(pool: Pool, pid: int) -> None:
    with announced(hooks.pool_recovered, pool) as recovered:
        kill(pid, signal.SIGKILL)
        await until(lambda: recovered)
        await until(lambda: ready(pool) == 2)


async def test_p14_a_session_stays_with_its_worker_until_that_is_lost() -> None:
    async with pool_of(size=(2, 2)) as pool:
        with (
            announced(hooks.session_bound, pool) as bound,
            announced(hooks.session_hit, pool) as hits,
            announced(hooks.session_missed, pool) as misses,
            announced(hooks.session_lost, pool) as lost,
        ):
            first = await pool.call("pid", session="a")
            await pool.call("pid")
            assert await pool.call("pid", session="a") == first
            assert (len(bound), len(hits), len(misses)) == (1, 1, 1)
            worker = bound[0]["member"]
            assert hits == [{"session": "a", "member": worker}]
            assert misses == [{"session": "a", "member": None}]
            await lose(pool, first)
            assert lost == [{"session": "a", "member": worker}]
            assert await pool.call("pid", session="a") != first


@pytest.mark.parametrize("mode", ["strict", "fail"])
async def test_p14_the_loss_of_a_strict_session_is_reported_once(mode: str) -> None:
    async with pool_of(size=(2, 2), sessions=Sessions(mode=mode)) as pool:  # type: ignore[arg-type]
        first = await pool.call("pid", session="a")
        await lose(pool, first)
        with pytest.raises(SessionLost, match=r"the session 'a' was lost when 'pool-\d'"):
            await pool.call("pid", session="a")
        second = await pool.call("pid", session="a")
        assert second != first
        assert await pool.call("pid", session="a") == second


async def test_p15_a_call_that_waits_for_its_worker_delays_no_other(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2), sessions=STRICT) as pool:
        call = await occupy(pool, tmp_path, "a")
        again = asyncio.create_task(pool.call("pid", session="a"))
        await until(lambda: pool.stats().queued == 1)
        served = {await pool.call("pid", session="b"), await pool.call("pid"), await pool.call("pid", session="b")}
        assert not again.done()
        (tmp_path / "release").touch()
        assert await again == await call
        assert served.isdisjoint({await again})


async def test_a_call_that_waits_for_its_worker_starts_no_other(tmp_path: Path) -> None:
    async with pool_of(size=(1, 4), sessions=STRICT) as pool:
        call = await occupy(pool, tmp_path, "a")
        again = asyncio.create_task(pool.call("pid", session="a"))
        await until(lambda: pool.stats().queued == 1)
        assert len(pool.members()) == 1
        (tmp_path / "release").touch()
        assert await again == await call


async def test_a_call_that_waits_for_its_worker_fails_when_that_is_lost(tmp_path: Path) -> None:
    """Only one call fails. The next call starts the session again."""
    async with pool_of(size=(2, 2), sessions=STRICT) as pool:
        call = await occupy(pool, tmp_path, "a")
        waiting = [asyncio.create_task(pool.call("pid", session="a")) for _ in range(2)]
        await until(lambda: pool.stats().queued == 2)
        busy = next(worker for worker in pool.members() if worker.phase is Phase.BUSY)
        kill(busy.pid, signal.SIGKILL)
        outcomes = await asyncio.gather(call, *waiting, return_exceptions=True)
        assert [type(each) for each in outcomes] == [WorkerLost, SessionLost, SessionLost]
        assert await pool.call("pid", session="a") != busy.pid


async def test_waiting_calls_of_a_new_session_get_one_worker(tmp_path: Path) -> None:
    """The session is not yet bound when the calls start waiting. The first call that runs binds it for all of them."""
    async with pool_of(size=(2, 2), sessions=STRICT) as pool:
        await asyncio.gather(occupy(pool, tmp_path, "x"), occupy(pool, tmp_path, "y"))
        calls = [asyncio.create_task(pool.call("work", 0.01, session="new")) for _ in range(6)]
        await until(lambda: pool.stats().queued == 6)
        (tmp_path / "release").touch()
        assert len(set(await asyncio.gather(*calls))) == 1
        await until(lambda: ready(pool) == 2)


async def test_a_busy_worker_fails_calls_in_mode_fail(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2), sessions=Sessions(mode="fail")) as pool:
        call = await occupy(pool, tmp_path, "a")
        with pytest.raises(SessionLost, match="which has the session 'a', is busy and cannot accept a call now"):
            await pool.call("pid", session="a")
        (tmp_path / "release").touch()
        first = await call
        await until(lambda: ready(pool) == 2)
        assert await pool.call("pid", session="a") == first


async def test_a_suspended_pool_holds_calls_in_mode_fail() -> None:
    async with pool_of(size=(2, 2), sessions=Sessions(mode="fail")) as pool:
        first = await pool.call("pid", session="a")
        await pool.suspend()
        held = asyncio.create_task(pool.call("pid", session="a"))
        await until(lambda: pool.stats().queued == 1)
        await pool.resume()
        assert await held == first


async def test_a_call_in_mode_fail_fails_at_resume_if_its_worker_is_busy(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2), sessions=Sessions(mode="fail")) as pool:
        await pool.call("pid", session="a")
        await pool.suspend()
        place, release = tmp_path / "started", tmp_path / "release"
        first = asyncio.create_task(pool.call("wait_for", str(place), str(release), session="a"))
        await until(lambda: pool.stats().queued == 1)
        second = asyncio.create_task(pool.call("pid", session="a"))
        await until(lambda: pool.stats().queued == 2)
        await pool.resume()
        with pytest.raises(SessionLost, match="is busy and cannot accept a call now"):
            await second
        release.touch()
        assert await first
        assert pool.stats().queued == 0


async def test_a_hint_moves_when_its_worker_is_busy(tmp_path: Path) -> None:
    """The session stays with the new worker, which now has its state."""
    async with pool_of(size=(2, 2)) as pool:
        call = await occupy(pool, tmp_path, "a")
        other = await pool.call("pid", session="a")
        (tmp_path / "release").touch()
        assert other != await call
        assert await pool.call("pid", session="a") == other


async def test_a_call_that_waits_for_its_worker_counts_in_the_queue(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2), sessions=STRICT, queue=1) as pool:
        call = await occupy(pool, tmp_path, "a")
        waiting = asyncio.create_task(pool.call("pid", session="a"))
        await until(lambda: pool.stats().queued == 1)
        with pytest.raises(PoolBusy):
            await pool.call("pid", session="a")
        assert await pool.call("pid")
        (tmp_path / "release").touch()
        assert await waiting == await call


async def test_a_lease_of_a_session_keeps_its_worker() -> None:
    async with pool_of(size=(2, 2), sessions=STRICT) as pool:
        async with pool.lease("a") as worker:
            pid = worker.member.pid
            again = asyncio.create_task(pool.call("pid", session="a"))
            await until(lambda: pool.stats().queued == 1)
            assert await worker.call("pid") == pid
            assert not again.done()
        assert await again == pid
        assert [change.meta for change in pool.members()[0].history + pool.members()[1].history if change.meta] == [
            {"session": "a"},
            {"session": "a"},
        ]


async def test_the_longest_idle_session_is_forgotten_above_the_limit() -> None:
    async with pool_of(sessions=Sessions(limit=2)) as pool:
        with announced(hooks.session_evicted, pool) as evicted:
            for session in "abc":
                await pool.call("pid", session=session)
        assert evicted == [{"session": "a", "member": "pool-1"}]


async def test_p27_sessions_of_two_pools_are_independent() -> None:
    async with pool_of(sessions=STRICT) as one, pool_of(sessions=STRICT) as two:
        a, b = await one.call("pid", session="a"), await two.call("pid", session="a")
        assert a != b
        kill(a, signal.SIGKILL)
        await until(lambda: one.stats().restarts == 1)
        assert await two.call("pid", session="a") == b
        with pytest.raises(SessionLost):
            await one.call("pid", session="a")
