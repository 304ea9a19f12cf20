"""The guarantees for callers of any function: P2-P10 and P20 of the acceptance list."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import traceback
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle import hooks
from lifecycle.errors import PoolBusy, PoolClosed, RemoteError
from lifecycle.workers.pool import Heartbeat, Phase, Process
from tests.realtime.pool import pool_targets
from tests.realtime.pool.pools import announced, gone, pids, pool_of, ready, started
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.workers.pool import Pool


async def occupied(pool: Pool, path: Path, count: int) -> list[asyncio.Task[int]]:
    """Start calls that run until the file ``path / "release"`` exists."""
    places = [path / f"started-{number}" for number in range(count)]
    calls = [asyncio.create_task(pool.call("wait_for", str(place), str(path / "release"))) for place in places]
    await started(*places)
    return calls


async def test_p2_workers_are_started_as_calls_need_them(tmp_path: Path) -> None:
    async with pool_of(size=(0, 2)) as pool:
        assert pool.members() == ()
        calls = await occupied(pool, tmp_path, 2)
        third = asyncio.create_task(pool.call("pid"))
        await until(lambda: pool.stats().queued == 1)
        assert len(pool.members()) == 2
        (tmp_path / "release").touch()
        assert await third in {await call for call in calls}


async def test_p3_a_call_above_the_limit_is_refused_at_once(tmp_path: Path) -> None:
    async with pool_of(queue=1) as pool:
        with announced(hooks.pool_saturated, pool) as saturated:
            (running,) = await occupied(pool, tmp_path, 1)
            waiting = asyncio.create_task(pool.call("pid"))
            await until(lambda: pool.stats().queued == 1)
            with pytest.raises(PoolBusy, match="1 calls are already waiting for a worker of 'pool', which is"):
                await pool.call("pid")
            assert saturated == [{"queued": 1, "function": "pid"}]
            (tmp_path / "release").touch()
            assert await waiting == await running


async def test_an_empty_queue_still_waits_for_workers_that_start(tmp_path: Path) -> None:
    async with pool_of(size=(0, 2), queue=0) as pool:
        calls = await occupied(pool, tmp_path, 2)
        with pytest.raises(PoolBusy, match="0 calls are already waiting"):
            await pool.call("pid")
        (tmp_path / "release").touch()
        assert len({await call for call in calls}) == 2


async def test_p4_a_call_that_times_out_in_the_queue_never_runs(tmp_path: Path) -> None:
    async with pool_of() as pool:
        (running,) = await occupied(pool, tmp_path, 1)
        with pytest.raises(TimeoutError, match=r"'mark' did not finish within 0\.05 s: it was queued in 'pool'"):
            await pool.call("mark", str(tmp_path / "mark"), deadline=0.05)
        (tmp_path / "release").touch()
        await running
        await pool.call("pid")
        assert not (tmp_path / "mark").exists()
        assert pool.stats().queued == 0


async def test_p5_a_call_that_times_out_is_stopped_and_its_worker_kept() -> None:
    async with pool_of() as pool:
        pid = await pool.call("pid")
        message = r"'sleep' of session 'a' did not finish within 0\.1 s: it was running on 'pool-1'"
        with pytest.raises(TimeoutError, match=message):
            await pool.call("sleep", session="a", deadline=0.1)
        assert await pool.call("pid") == pid


async def test_p6_a_worker_that_cannot_stop_a_call_is_killed(tmp_path: Path) -> None:
    async with pool_of() as pool:
        pid = await pool.call("pid")
        deadline, held = 0.1, tmp_path / "held"
        with announced(hooks.pool_recovered, pool) as recovered:
            # On a slow machine, the call may time out before it holds the interpreter lock.
            while not held.exists():
                deadline *= 2
                with pytest.raises(TimeoutError, match="running on 'pool-1'"):
                    await pool.call("hold", str(held), deadline=deadline)
            assert await pool.call("pid") != pid
        assert [(each["action"], each["member"], each["reason"]) for each in recovered] == [
            ("replace", "pool-1", "timeout")
        ]
        await until(lambda: gone(pid))


@pytest.mark.parametrize("size", [1, 2])
async def test_p7_a_caller_may_be_cancelled_at_any_step(size: int) -> None:
    """Cancelling a caller after any number of loop iterations loses no slot, whether it runs or waits."""
    async with pool_of(size=(size, size)) as pool:
        for steps in range(51):
            callers = [asyncio.create_task(pool.call("echo", number)) for number in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            for number, outcome in enumerate(await asyncio.gather(*callers, return_exceptions=True)):
                assert outcome == number or isinstance(outcome, asyncio.CancelledError)
            stats = pool.stats()
            assert (stats.queued, sum(worker.leases for worker in pool.members())) == (0, 0)
            assert stats.idle + stats.busy + stats.starting == stats.size == size
        assert await pool.call("echo", "still here") == "still here"
        assert [worker.id for worker in pool.members()] == [f"pool-{number + 1}" for number in range(size)]


async def test_p7_a_cancelled_wait_for_a_lease_gives_the_slot_back() -> None:
    async def hold(pool: Pool) -> None:
        async with pool.lease() as worker:
            await worker.call("pid")

    async with pool_of() as pool:
        for steps in range(30):
            callers = [asyncio.create_task(hold(pool)) for _ in range(2)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            await until(lambda: ready(pool) == 1)
        assert pool.stats().idle == 1


async def test_a_cancelled_call_has_stopped_when_its_caller_continues(tmp_path: Path) -> None:
    """The call is interrupted and its ``finally`` has run before the cancellation is raised."""
    async with pool_of() as pool:
        call = asyncio.create_task(pool.call("stubborn", str(tmp_path / "started"), str(tmp_path / "cleaned")))
        await started(tmp_path / "started")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (tmp_path / "cleaned").exists()
        assert pool.members()[0].phase is Phase.READY


async def test_a_second_cancellation_does_not_wait_and_the_slot_is_given_back(tmp_path: Path) -> None:
    async with pool_of(process=Process(contain="group", grace=LIMIT)) as pool:
        call = asyncio.create_task(pool.call("stubborn", str(tmp_path / "started"), str(tmp_path / "cleaned")))
        await started(tmp_path / "started")
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: ready(pool) == 1)
        assert (tmp_path / "cleaned").exists()


async def test_p8_a_stream_that_is_left_early_ends_its_generator(tmp_path: Path) -> None:
    async with pool_of() as pool:
        pid = await pool.call("pid")
        async for number in pool.stream("endless", str(tmp_path / "closed")):
            if number == 3:
                break
        await started(tmp_path / "closed")
        assert await pool.call("pid") == pid


async def test_p8_a_closed_stream_has_ended(tmp_path: Path) -> None:
    async with pool_of() as pool:
        async with pool.stream("endless", str(tmp_path / "closed")) as stream:
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        assert (tmp_path / "closed").exists()
        assert pool.members()[0].phase is Phase.READY
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_p9_a_slow_consumer_bounds_the_memory_and_pings_are_answered() -> None:
    async with pool_of(heartbeat=Heartbeat(every=0.02)) as pool:
        before = psutil.Process().memory_info().rss
        with announced(hooks.health_checked, pool) as checked:
            async with pool.stream("blocks", 10_000, 1024 * 1024) as stream:
                await anext(stream)
                seen = len(checked)
                await until(lambda: len(checked) > seen + 10)
                assert all(each["result"].healthy for each in checked)
                grown = psutil.Process().memory_info().rss - before
        # The window contains 32 values of 1 MiB, and up to twice as many are in memory while they are read.
        assert grown < 100 * 1024 * 1024


async def test_p10_printed_text_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lifecycle.workers.pool"):
        async with pool_of() as pool:
            assert await pool.call("print_and_read", "seen by people") == ""
            assert await pool.call("echo", 1) == 1
    found = {record.getMessage(): record for record in caplog.records}
    assert found["seen by people"].worker == "pool-1"  # type: ignore[attr-defined]


async def test_p20_a_value_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with pool_of() as pool:
        pid = await pool.call("pid")
        with pytest.raises(ValueError, match="64"):
            await pool.call("echo", bytes(65 * 1024 * 1024))
        assert await pool.call("pid") == pid


async def test_an_argument_that_cannot_be_sent_is_refused_in_the_queue_too(tmp_path: Path) -> None:
    async with pool_of() as pool:
        (running,) = await occupied(pool, tmp_path, 1)
        bad = asyncio.create_task(pool.call("echo", threading.Lock()))
        good = asyncio.create_task(pool.call("echo", 1, session="a"))
        await until(lambda: pool.stats().queued == 2)
        (tmp_path / "release").touch()
        with pytest.raises(TypeError, match="object"):
            await bad
        assert await good == 1
        await running
        assert pool.stats().idle == 1


async def test_an_error_has_the_traceback_of_its_process() -> None:
    async with pool_of() as pool:
        with pytest.raises(RemoteError, match="ValueError: no such thing") as caught:
            await pool.call("fail", "no such thing")
        assert caught.value.type == "ValueError"
        assert "worker_targets.py" in "".join(traceback.format_exception(caught.value))
        assert pool.members()[0].phase is Phase.READY


@pytest.mark.parametrize("codec", ["msgpack", "json", "pickle"])
async def test_calls_name_methods_and_functions_of_modules(codec: str) -> None:
    async with pool_of(codec=codec) as pool:
        assert await pool.call("times", 20, and_more=2) == 22
        assert await pool.call(pool_targets.echo, "by itself") == "by itself"
        assert await pool.call("os.path:basename", "/a/b", deadline=math.inf) == "b"


async def test_values_arrive_with_their_types() -> None:
    value = [
        (1, 2),
        {"a"},
        frozenset({1}),
        datetime(2026, 1, 1, tzinfo=UTC),
        pool_targets.Point(1, (2.5, None)),
        b"x",
        {1: 2},
    ]
    async with pool_of() as pool:
        assert await pool.call("echo", value) == value
        assert await pool.call("echo", pool_targets.Point(0, ())) == pool_targets.Point(0, ())
        assert [each async for each in pool.stream("tests.realtime.pool.pool_targets:each", value)] == value


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_a_codec_that_would_alter_a_value_refuses_it(codec: str) -> None:
    async with pool_of(codec=codec) as pool:
        with pytest.raises(TypeError, match=f"'echo' was not called, .*{codec} cannot encode a value of type tuple"):
            await pool.call("echo", {"a": (1, 2)})
        with pytest.raises(
            RemoteError, match=f"returned a value that cannot be sent: {codec} cannot encode .* type Point"
        ):
            await pool.call("tests.realtime.pool.pool_targets:point")
        with pytest.raises(RemoteError, match=f"{codec} cannot encode a value of type set"):
            async for _ in pool.stream("tests.realtime.pool.pool_targets:sets"):
                pass
        assert pool.stats().idle == 1


async def test_large_values_are_encoded_and_decoded_in_a_thread() -> None:
    """Encoding a large value in the event loop would delay everything else."""
    large, small = pool_targets.Noted(bytes(300_000)), pool_targets.Noted(b"")
    async with pool_of() as pool:
        for value, aside in ((large, True), (small, False)):
            pool_targets.encoded.clear()
            pool_targets.decoded.clear()
            assert (await pool.call("echo", value)).data == value.data
            async with pool.lease() as worker:
                assert (await worker.call("echo", value)).data == value.data
            async for each in pool.stream("tests.realtime.pool.pool_targets:each", [value]):
                assert each.data == value.data
            here = threading.get_ident()
            assert [ident != here for ident in pool_targets.encoded] == [aside] * 3
            assert [ident != here for ident in pool_targets.decoded] == [aside] * 3
        assert pool.stats().idle == 1


async def test_a_lease_that_ends_while_an_argument_is_encoded_makes_no_call() -> None:
    async with pool_of() as pool:
        async with pool.lease() as worker:
            call = asyncio.create_task(worker.call("echo", [pool_targets.Noted(bytes(300_000))]))
            await asyncio.sleep(0)
        with pytest.raises(PoolClosed, match="is not active"):
            await call
        assert pool.stats().calls == 0


async def test_a_stream_of_a_lease_begins_before_the_lease_ends_or_not_at_all() -> None:
    async with pool_of() as pool:
        async with pool.lease() as worker:
            stream = worker.stream("tests.realtime.pool.pool_targets:each", [1])
        with pytest.raises(PoolClosed, match="has ended"):
            await anext(stream)
        assert (pool.stats().busy, pool.stats().saturation) == (0, 0.0)


@pytest.mark.parametrize("size", [0, 300_000])
async def test_a_result_that_exits_when_decoded_fails_only_its_call(size: int) -> None:
    async with pool_of() as pool:
        with pytest.raises(RemoteError, match="the value cannot be decoded here"):
            await pool.call("tests.realtime.pool.pool_targets:quits", size)
        assert await pool.call("echo", 1) == 1
        assert pool.stats().idle == 1


async def test_calls_of_a_session_keep_their_order_while_an_argument_is_encoded() -> None:
    """A thread takes a while to encode a large argument, while a small argument is encoded immediately."""
    async with pool_of() as pool:
        async with asyncio.TaskGroup() as group:
            for key in ("large", "small", "last"):
                value = [bytes(300_000 if key == "large" else 0), key]
                group.create_task(pool.call("put", "order", value, session="s"))
        assert await pool.call("get", "order", session="s") == [b"", "last"]
        # Withdrawing a call must not let later calls overtake earlier calls.
        values = [[bytes(300_000)], "taken back", "last"]
        calls = [asyncio.create_task(pool.call("put", "order", value, session="s")) for value in values]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.wait(calls)
        assert await pool.call("get", "order", session="s") == "last"


async def test_a_large_argument_that_cannot_be_sent_is_refused() -> None:
    async with pool_of() as pool:
        with pytest.raises(TypeError, match="'echo' was not called, because its arguments cannot be sent: pickle"):
            await pool.call("echo", bytes(300_000), threading.Lock())
        with pytest.raises(RemoteError, match="the value cannot be decoded here: pickle cannot decode it"):
            await pool.call("tests.realtime.pool.pool_targets:large_and_unreadable")
        assert pool.stats().idle == 1


async def test_a_worker_inherits_the_environment_except_for_removed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_REGION", "eu")
    monkeypatch.setenv("OUR_SECRET", "hush")
    process = Process(contain="group", env={"OUR_SECRET": None, "ITS_OWN": "1"})
    async with pool_of(process=process) as pool:
        names = ("OUR_REGION", "OUR_SECRET", "ITS_OWN")
        assert [await pool.call("os:getenv", name) for name in names] == ["eu", None, "1"]


async def test_async_functions_share_a_worker() -> None:
    async with pool_of("Loop", concurrency=3) as pool:
        assert await asyncio.gather(*(pool.call("meet", 3) for _ in range(3))) == [3, 3, 3]
        assert len(pool.members()) == 1


async def test_a_map_yields_results_in_order_or_as_they_are_ready(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2), queue=0) as pool:
        assert [row async for row in pool.map("times", range(40))] == list(range(40))
        assert sorted([row async for row in pool.map("times", range(40), ordered=False)]) == list(range(40))
        assert pool.stats().queued == 0


async def test_a_map_reads_its_rows_as_they_are_needed_and_ends_with_the_first_error() -> None:
    read: list[int] = []

    def rows() -> Any:
        for row in range(1000):
            read.append(row)
            yield row

    async with pool_of(size=(2, 2)) as pool:
        with pytest.raises(RemoteError, match="ValueError"):
            async for _ in pool.map("tests.realtime.pool.pool_targets:odd_only", rows()):
                pass
        assert len(read) < 20
        async with aclosing(pool.map("echo", rows())) as results:
            assert await anext(results) == 0
        assert pool.stats().idle == 2


async def test_a_lease_is_one_worker_for_several_calls() -> None:
    async with pool_of(size=(2, 2)) as pool:
        async with pool.lease() as worker:
            await worker.call("put", "key", 1)
            assert await worker.call("get", "key") == 1
            assert await worker.call("pid") == worker.member.pid
            assert [each async for each in worker.stream("numbers", 3)] == [0, 1, 2]
            assert pool.stats().busy == 1
        assert pool.stats().busy == 0
        with pytest.raises(PoolClosed, match="is not active"):
            await worker.call("pid")


async def test_a_discarded_lease_ends_its_worker() -> None:
    async with pool_of() as pool:
        async with pool.lease() as worker:
            pid = await worker.call("pid")
            worker.discard()
            assert await worker.call("pid") == pid
        assert await pool.call("pid") != pid
        await until(lambda: gone(pid))


async def test_a_stream_fails_as_a_call_does() -> None:
    async with pool_of() as pool:
        found: list[int] = []
        with pytest.raises(RemoteError, match="ValueError: no more"):
            async for number in pool.stream("numbers_then_fail", 3):
                found.append(number)  # noqa: PERF401  # keeps the items before an error
        assert found == [0, 1, 2]
        with pytest.raises(TimeoutError, match="'waits_in_between' did not finish within"):
            async for _ in pool.stream("waits_in_between", "", "", deadline=0.1):
                pass
        assert pool.stats().idle == 1


async def test_a_stream_ends_its_generator_when_a_chunk_cannot_be_decoded(tmp_path: Path) -> None:
    """The worker is free again when the error is raised."""
    closed = tmp_path / "closed"
    async with pool_of(codec="pickle") as pool:
        stream = pool.stream("unreadable_then_numbers", str(closed))
        with pytest.raises(RemoteError, match="cannot be decoded here"):
            await anext(stream)
        assert pool.stats().idle == 1
        assert closed.exists()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await pool.call("times", 1) == 1


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"deadline": 0}, ValueError, "deadline must be a positive number of seconds"),
        ({"session": 1}, TypeError, "session must be a string, got 1"),
    ],
)
async def test_arguments_that_cannot_work_are_refused(how: Any, error: type[Exception], message: str) -> None:
    async with pool_of(size=(0, 1)) as pool:
        with pytest.raises(error, match=message):
            await pool.call("pid", **how)
        assert pool.members() == ()


async def test_a_call_of_a_function_that_workers_cannot_find_is_refused() -> None:
    async with pool_of(size=(0, 1)) as pool:
        with pytest.raises(ValueError, match="lambda"):
            await pool.call(lambda: 1)


async def test_calls_are_announced_with_how_long_they_waited_and_ran(tmp_path: Path) -> None:
    async with pool_of() as pool:
        with (
            announced(hooks.call_queued, pool) as queued,
            announced(hooks.call_dispatched, pool) as dispatched,
            announced(hooks.call_finished, pool) as finished,
        ):
            (running,) = await occupied(pool, tmp_path, 1)
            failing = asyncio.create_task(pool.call("fail", "", session="s"))
            await until(lambda: pool.stats().queued == 1)
            (tmp_path / "release").touch()
            await running
            with pytest.raises(RemoteError):
                await failing
        assert queued == [{"function": "fail", "session": "s"}]
        assert [each["function"] for each in dispatched] == ["wait_for", "fail"]
        assert [(each["function"], each["member"], type(each["error"])) for each in finished] == [
            ("wait_for", "pool-1", type(None)),
            ("fail", "pool-1", RemoteError),
        ]
        assert dispatched[1]["waited"] > 0
        assert finished[0]["ran"] > 0
        stats = pool.stats()
        assert stats.calls == 2
        assert stats.run_p95 >= stats.run_p50 > 0


async def test_calls_before_the_start_and_after_the_end_are_refused() -> None:
    pool = pool_of()
    with pytest.raises(PoolClosed, match="is created; start it first"):
        await pool.call("pid")
    async with pool:
        assert pids(pool) == {await pool.call("pid")}
    with pytest.raises(PoolClosed, match="is closed"):
        await pool.call("pid")
