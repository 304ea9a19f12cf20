"""Lost workers and the calls that wait for them: P1, P11, P17-P19, P21 of the acceptance list.

Each row of the recovery table is tested here or in `test_acceptance_calls`. Every action must be announced.
"""

from __future__ import annotations

import asyncio
import math
import signal
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.backoff import Intensity
from lifecycle.errors import PoolFailed, RemoteError, RemoteTraceback, SessionLost, WorkerFailed, WorkerLost
from lifecycle.workers import Status
from lifecycle.workers.pool import Health, Heartbeat, Phase, Pool, Process, Sessions
from tests.realtime.pool.pools import ANY, QUICK, announced, gone, kill, pids, pool_of, ready, started
from tests.realtime.pool.test_hostile_workers import WORKER
from tests.realtime.pool.workers import LIMIT, python
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

#: Health checks that are quick enough for a test, and slow enough for a busy machine.
WATCHFUL = Heartbeat(every=0.05, timeout=0.5, misses=3)


def said(recovered: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(each["action"], each["member"], each["reason"]) for each in recovered]


async def test_p1_a_worker_that_dies_fails_only_its_own_call(tmp_path: Path) -> None:
    async with pool_of(size=(4, 4)) as pool:
        with announced(hooks.pool_recovered, pool) as recovered:
            places = [tmp_path / str(number) for number in range(8)]
            release = str(tmp_path / "release")
            calls = [asyncio.create_task(pool.call("wait_for", str(place), release)) for place in places]
            await until(lambda: sum(place.exists() for place in places) == 4)
            victim = pool.members()[0].pid
            kill(victim, signal.SIGKILL)
            await until(lambda: recovered)
            (tmp_path / "release").touch()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            lost = [each for each in outcomes if isinstance(each, BaseException)]
            assert [type(each) for each in lost] == [WorkerLost]
            await until(lambda: ready(pool) == 4)
            assert victim not in pids(pool)
        error = lost[0]
        assert isinstance(error, WorkerLost)
        assert (error.signal, error.exit_code) == (signal.SIGKILL, -signal.SIGKILL)
        assert "'pool-1' was lost while running 'wait_for': it was killed by signal 9 (SIGKILL)" in str(error)
        assert error.rss
        assert said(recovered) == [("replace", "pool-1", "exited")]
        assert pool.stats().restarts == 1


async def test_a_lost_call_reports_the_last_of_stderr() -> None:
    async with pool_of() as pool:
        with pytest.raises(WorkerLost, match=r"exited with status 3") as caught:
            await pool.call("say_and_die", "no disk left")
        # Servers pass the message on to their clients.
        assert "no disk left" not in str(caught.value)
        assert "the end of its stderr:\nno disk left" in "".join(traceback.format_exception(caught.value))
        assert caught.value.exit_code == 3
        assert caught.value.stderr == "no disk left\n"


async def test_an_idempotent_call_is_retried_once(tmp_path: Path) -> None:
    async with pool_of() as pool:
        with announced(hooks.pool_recovered, pool) as recovered:
            pid = await pool.call("die_once", str(tmp_path / "died"), idempotent=True)
            assert pids(pool) == {pid}
            await until(lambda: len(recovered) == 2)
        assert sorted(said(recovered)) == [("replace", "pool-1", "exited"), ("retry", "pool-1", "exited")]
        with pytest.raises(WorkerLost):
            await pool.call("die", signal.SIGKILL, idempotent=True)


async def test_a_retry_that_fails_has_the_loss_of_the_first_worker_as_its_cause() -> None:
    async with pool_of(sessions=Sessions(mode="strict")) as pool:
        await pool.call("pid", session="a")
        with pytest.raises(SessionLost) as caught:
            await pool.call("die", signal.SIGKILL, session="a", idempotent=True)
        assert isinstance(caught.value.__cause__, WorkerLost)
        with pytest.raises(WorkerLost) as lost:
            await pool.call("die", signal.SIGKILL, idempotent=True)
        assert isinstance(lost.value.__cause__, WorkerLost)
        assert str(lost.value) != str(lost.value.__cause__)


async def test_the_first_run_does_not_count_as_waiting_time_of_the_retry(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2)) as pool:
        with announced(hooks.call_finished, pool) as finished:
            release = tmp_path / "release"
            call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "1"), str(release), idempotent=True))
            await started(tmp_path / "1")
            victim = next(worker for worker in pool.members() if worker.phase is Phase.BUSY)
            (tmp_path / "1").unlink()
            kill(victim.pid, signal.SIGKILL)
            await started(tmp_path / "1")
            release.touch()
            await call
        first, second = finished
        assert isinstance(first["error"], WorkerLost)
        assert second["waited"] < first["ran"]


async def test_a_deadline_that_passes_while_a_dead_worker_ends_does_not_hide_the_loss() -> None:
    code = WORKER + PINGS.replace("stay()", "os.close(1); time.sleep(1000)") + "answer()"
    pool = Pool("pool", python(code), codec="json", size=(1, 1), process=QUICK, intensity=ANY)
    async with pool:
        with announced(hooks.pool_recovered, pool) as recovered, pytest.raises(WorkerLost, match="closed its streams"):
            await pool.call("anything", deadline=0.8, idempotent=True)
        # There is not enough time to run the call again.
        assert said(recovered) == [("replace", "pool-1", "error")]


async def test_an_idle_worker_that_closes_its_streams_ends_because_of_an_error() -> None:
    """The history and the announcement agree. It has not failed a health check."""
    code = WORKER + PINGS.replace("stay()", "os.close(1); time.sleep(1000)") + 'answer(["result", 1, 5])'
    pool = Pool("pool", python(code), codec="json", size=(1, 1), process=QUICK, intensity=Intensity(0, 30.0))
    with announced(hooks.pool_recovered, pool) as recovered, announced(hooks.member_changed, pool) as changes:
        await pool.start()
        assert await pool.call("anything") == 5
        await pool.wait()
    assert [reason for _, member, reason in said(recovered) if member == "pool-1"] == ["error"]
    ends = [each["change"].reason for each in changes if each["change"].target is Phase.TERMINATING]
    assert ends == ["error"]


async def test_a_surplus_worker_that_dies_is_not_replaced() -> None:
    async with pool_of(size=(0, 2)) as pool:
        victim = await pool.call("pid")
        with announced(hooks.pool_recovered, pool) as recovered:
            kill(victim, signal.SIGKILL)
            await until(lambda: recovered)
            await until(lambda: pool.members() == ())
        assert said(recovered) == [("remove", "pool-1", "exited")]
        assert await pool.call("pid") != victim


async def test_p11_processes_of_a_dead_worker_are_killed(tmp_path: Path) -> None:
    """A child of the dead worker still has all its descriptors open, including the pool's pipes."""
    async with pool_of() as pool:
        child = await pool.call("fork")
        with pytest.raises(WorkerLost, match="status 7"):
            await pool.call("die_once", str(tmp_path / "died"))
        await until(lambda: gone(child))
        await pool.call("pid")


async def test_p17_a_target_that_fails_is_retried_within_the_intensity(tmp_path: Path) -> None:
    """The pool fails to start with the target's error, including its message and traceback."""
    pool = pool_of("Flawed", init=[str(tmp_path / "tries")], intensity=Intensity(3, 30.0))
    with pytest.raises(PoolFailed, match="gave up after more than 3 restarts within 30 s") as caught:
        await pool.start()
    assert (tmp_path / "tries").read_text() == "xxxx"
    assert isinstance(caught.value, WorkerFailed)
    assert isinstance(cause := caught.value.__cause__, RemoteError)
    assert (cause.type, cause.message) == ("OSError", "the model is not there")
    assert isinstance(cause.__cause__, RemoteTraceback)
    assert "pool_targets.py" in "".join(traceback.format_exception(caught.value))
    assert pool.status is Status.FAILED
    assert pool.members() == ()


async def test_p17_waiting_and_new_calls_fail_with_the_pool(tmp_path: Path) -> None:
    pool = pool_of("Flawed", size=(0, 2), init=[str(tmp_path / "tries")], intensity=Intensity(1, 30.0))
    await pool.start()
    outcomes = await asyncio.gather(*(pool.call("pid") for _ in range(4)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [PoolFailed] * 4
    assert len({id(each) for each in outcomes}) == 4
    assert all(isinstance(each.__cause__, RemoteError) for each in outcomes if isinstance(each, BaseException))
    with pytest.raises(PoolFailed):
        await pool.call("pid")
    end = await pool.wait()
    assert end.status is Status.FAILED
    assert isinstance(end.error, PoolFailed)


async def test_a_pool_that_gives_up_lets_running_calls_finish(tmp_path: Path) -> None:
    process = Process(contain="group", stop_timeout=LIMIT)
    pool = pool_of("Desk", size=(2, 2), intensity=Intensity(0, 30.0), process=process)
    await pool.start()
    release = tmp_path / "release"
    call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(release)))
    await started(tmp_path / "started")
    idle = next(worker for worker in pool.members() if worker.phase is Phase.READY)
    kill(idle.pid, signal.SIGKILL)
    await until(lambda: len(pool.members()) == 1)
    with pytest.raises(PoolFailed):
        await pool.call("pid")
    release.touch()
    assert await call
    assert (await pool.wait()).status is Status.FAILED


async def test_a_call_lost_after_the_pool_gave_up_fails_with_the_cause_of_that(tmp_path: Path) -> None:
    process = Process(contain="group", stop_timeout=LIMIT)
    pool = pool_of("Desk", size=(2, 2), intensity=Intensity(0, 30.0), process=process)
    await pool.start()
    call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
    await started(tmp_path / "started")
    idle, busy = sorted(pool.members(), key=lambda worker: worker.phase is Phase.BUSY)
    kill(idle.pid, signal.SIGKILL)
    await until(lambda: len(pool.members()) == 1)
    kill(busy.pid, signal.SIGKILL)
    with pytest.raises(PoolFailed) as caught:
        await call
    assert str(idle.id) in str(caught.value.__cause__)
    assert (await pool.wait()).status is Status.FAILED


async def test_workers_that_fail_in_a_row_are_started_with_backoff(tmp_path: Path) -> None:
    """The first replacement starts immediately, the next one after a delay. A call waits for that delay."""
    spoilt = tmp_path / "spoilt"
    async with pool_of("Fickle", init=[str(spoilt)]) as pool:
        spoilt.touch()
        with announced(hooks.pool_recovered, pool) as recovered:
            kill(await pool.call("pid"), signal.SIGKILL)
            await until(lambda: recovered)
        call = asyncio.create_task(pool.call("pid"))
        await until(lambda: any(worker.status is Status.PENDING for worker in pool.members()))
        assert pool.stats().starting == 1
        spoilt.unlink()
        assert await call == pool.members()[0].pid


async def test_p18_a_pool_does_not_start_if_its_first_worker_loads_too_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(contain="group", start_timeout=0.3)
    pool = pool_of("Waits", init=[str(tmp_path / "never")], process=process)
    with announced(hooks.member_changed, pool) as changes, pytest.raises(PoolFailed) as caught:
        await asyncio.wait_for(pool.start(), LIMIT)
    assert str(caught.value) == (
        "'pool' cannot start: 'pool-1' was not ready within start_timeout=0.3 s; if loading takes longer, set "
        "process=Process(start_timeout=…)"
    )
    assert [(each["member"], each["change"].reason) for each in changes] == [("pool-1", "init_timeout")]
    assert warnings(caplog) == ["'pool-1' was not ready within start_timeout=0.3 s"]
    assert pool.status is Status.FAILED
    assert pool.members() == ()


@pytest.mark.parametrize("low", [0, 1])
async def test_p18_a_pool_that_has_started_replaces_a_worker_that_loads_too_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, low: int
) -> None:
    """Each slow worker is logged. A pool that is allowed to have no workers starts without them."""
    loaded = tmp_path / "loaded"
    loaded.touch()
    process = Process(contain="group", start_timeout=1.0)
    async with pool_of("Waits", init=[str(loaded)], process=process, size=(low, 1)) as pool:
        loaded.unlink()
        if low:
            with announced(hooks.pool_recovered, pool) as recovered:
                kill(pool.members()[0].pid, signal.SIGKILL)
                await until(lambda: recovered)
        call = asyncio.create_task(pool.call("pid"))
        await until(lambda: warnings(caplog))
        loaded.touch()
        assert await call == pool.members()[0].pid
        assert warnings(caplog)[0] == f"'pool-{low + 1}' was not ready within start_timeout=1 s"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("answer(('result', 99, None))", "it answered call 99, which is not running"),
        ("answer(('end', 1))", "stream"),
        ("answer(['nonsense'])", "'nonsense' is not a known tag"),
    ],
)
async def test_p19_a_worker_that_breaks_the_protocol_is_killed_and_replaced(code: str, reason: str) -> None:
    pool = Pool("pool", python(WORKER + PINGS + code), codec="json", size=(1, 1), process=QUICK, intensity=ANY)
    async with pool:
        (victim,) = pool.members()
        with announced(hooks.pool_recovered, pool) as recovered:
            with pytest.raises(WorkerLost, match="it violated the protocol: ") as caught:
                await pool.call("anything")
            assert reason in str(caught.value)
            await until(lambda: ready(pool) == 1)
        assert said(recovered) == [("replace", "pool-1", "error")]
        assert victim.history[0].reason == "killed"


#: A worker that answers pings, as every ready worker must.
PINGS = """
def answer(*frames):
    send("hello", 1, os.getpid(), "test")
    receive()
    send("ready")
    while (frame := receive())[0] != "call":
        send("pong", frame[1], None, 0, 0)
    for frame in frames:
        send(*frame)
    stay()
"""


async def test_p21_a_frozen_worker_is_killed_and_replaced() -> None:
    """The frozen worker first becomes degraded and receives no calls. It is killed after the third missed check."""
    async with pool_of(heartbeat=WATCHFUL) as pool:
        (victim,) = pool.members()
        with announced(hooks.pool_recovered, pool) as recovered, announced(hooks.member_changed, pool) as changes:
            kill(victim.pid, signal.SIGSTOP)
            await until(lambda: victim.phase is Phase.DEGRADED)
            assert victim.health is Health.UNHEALTHY
            call = asyncio.create_task(pool.call("pid"))
            assert await call != victim.pid
            await until(lambda: ready(pool) == 1)
        assert [each for each in said(recovered) if each[1] == "pool-1"] == [
            ("degrade", "pool-1", "health_check_failed"),
            ("degrade", "pool-1", "health_check_failed"),
            ("replace", "pool-1", "health_limit"),
        ]
        moves = [
            (each["change"].source, each["change"].target, each["change"].reason)
            for each in changes
            if each["member"] == "pool-1"
        ]
        assert moves == [
            (Phase.READY, Phase.DEGRADED, "health_check_failed"),
            (Phase.DEGRADED, Phase.TERMINATING, "health_limit"),
            (Phase.TERMINATING, Phase.TERMINATED, "killed"),
        ]


async def test_a_recovered_worker_gets_calls_again() -> None:
    async with pool_of(heartbeat=Heartbeat(every=0.05, timeout=0.5, misses=1000)) as pool:
        (worker,) = pool.members()
        kill(worker.pid, signal.SIGSTOP)
        await until(lambda: worker.phase is Phase.DEGRADED)
        assert pool.stats().degraded == 1
        assert not (await pool.probe()).healthy
        call = asyncio.create_task(pool.call("pid"))
        kill(worker.pid, signal.SIGCONT)
        assert await call == worker.pid
        assert (worker.health, worker.failures) == (Health.HEALTHY, 0)
        assert "health_restored" in [change.reason for change in worker.history]


async def test_a_worker_that_starts_unhealthy_gets_no_calls_until_it_recovers() -> None:
    """The worker is ready, but does not answer the first health check."""
    pool = Pool(
        "pool",
        python(WORKER + DEAF_AT_FIRST),
        codec="json",
        size=(0, 1),
        process=QUICK,
        heartbeat=Heartbeat(every=0.05, timeout=0.5, misses=1000),
    )
    async with pool:
        with announced(hooks.member_changed, pool) as changes:
            assert await pool.call("anything") == "heard"
        moves = [(each["change"].target, each["change"].reason) for each in changes]
        assert moves[:3] == [
            (Phase.DEGRADED, "init_degraded"),
            (Phase.READY, "health_restored"),
            (Phase.BUSY, "checkout"),
        ]


DEAF_AT_FIRST = """
send("hello", 1, os.getpid(), "test")
receive()
send("ready")
receive()
while True:
    tag, number, *_ = receive()
    if tag == "ping":
        send("pong", number, None, 0, 0)
    elif tag == "call":
        send("result", number, "heard")
    elif tag == "bye":
        break
"""


async def test_a_worker_that_does_not_answer_dumps_its_stacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log contains the worker's stacks, although a call in C code holds the interpreter lock."""
    with caplog.at_level("INFO", logger="lifecycle.workers.pool"):
        async with pool_of(process=Process(contain="group", grace=4.0)) as pool:
            call = asyncio.create_task(pool.call("hold", str(tmp_path / "held")))
            await started(tmp_path / "held")
            call.cancel()
            await until(lambda: "in hold" in caplog.text)
            with pytest.raises(asyncio.CancelledError):
                await call


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_stack_dump_does_not_interrupt_a_call(tmp_path: Path, concurrency: int) -> None:
    """Reading the stack of a running thread could crash the worker."""
    begun, release = tmp_path / "begun", tmp_path / "release"
    async with pool_of("spin", concurrency=concurrency) as pool:
        (worker,) = pool.members()
        call = asyncio.create_task(pool.call("spin", str(begun), str(release)))
        await started(begun)
        for _ in range(100):
            worker.dump_stacks()
            await worker.connection.ping()
        await until(lambda: "in spin" in worker.connection.pipes.tail())
        release.touch()
        assert await call == worker.pid


async def test_a_call_that_holds_the_interpreter_may_run_until_its_deadline(tmp_path: Path) -> None:
    """Health checks that fail before the call's deadline are ignored."""
    heartbeat = Heartbeat(every=0.02, timeout=0.2, misses=3)
    async with pool_of(heartbeat=heartbeat) as pool:
        with announced(hooks.pool_recovered, pool) as recovered, announced(hooks.health_checked, pool) as checked:
            call = asyncio.create_task(pool.call("hold", str(tmp_path / "held")))
            await started(tmp_path / "held")
            recovered.clear()
            missed = len(checked)
            await until(lambda: len(checked) > missed + 5)
            assert not checked[-1]["result"].healthy
            assert recovered == []
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert [(action, reason) for action, _, reason in said(recovered)][:1] == [("replace", "cancelled")]


async def test_a_call_whose_deadline_is_infinite_may_hold_the_interpreter(tmp_path: Path) -> None:
    """An infinite deadline allows the call at least as much time as any finite deadline."""
    async with pool_of(heartbeat=Heartbeat(every=0.02, timeout=0.1, misses=2), deadline=math.inf) as pool:
        with announced(hooks.pool_recovered, pool) as recovered, announced(hooks.health_checked, pool) as checked:
            call = asyncio.create_task(pool.call("hold", str(tmp_path / "held")))
            await started(tmp_path / "held")
            recovered.clear()
            missed = len(checked)
            await until(lambda: len(checked) > missed + 5)
            assert not checked[-1]["result"].healthy
            assert recovered == []
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_a_call_that_cannot_be_stopped_takes_the_others_of_its_worker_with_it(tmp_path: Path) -> None:
    """The cancelled caller gets a `CancelledError`, and the other callers get an error about the lost worker."""
    async with pool_of("Loop", concurrency=2) as pool:
        beside = asyncio.create_task(pool.call("sleep", str(tmp_path / "started")))
        await started(tmp_path / "started")
        holds = pool.call("tests.realtime.pool.worker_targets:Plain.hold", None, str(tmp_path / "held"))
        call = asyncio.create_task(holds)
        await started(tmp_path / "held")
        call.cancel()
        with pytest.raises(WorkerLost, match="did not stop within"):
            await beside
        with pytest.raises(asyncio.CancelledError):
            await call
