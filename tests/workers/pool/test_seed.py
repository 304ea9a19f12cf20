"""Facts about the original pool implementation, checked against this pool, which corrects its defects.

The five original tests come first, under their original names. The other tests cover facts that no other module
tests. For each of F1 to F39, `FACTS` contains the behaviour of this pool and the test that checks it. "corrected" marks
errors in the original, with the number of the defect in the pool's design.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.errors import InvalidTransition, PoolError, PoolFailed, RemoteError, WorkerLost
from lifecycle.workers import Intensity
from lifecycle.workers.model import Status
from lifecycle.workers.pool import Health, Heartbeat, Phase, Pool, PoolWorker, Process
from lifecycle.workers.pool.records import phase_of
from tests.conformance.pool import START, Walk
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


_PHASES, _SESSIONS, _HERE = "test_records", "test_sessions", "test_seed"

#: For each fact: this pool's behaviour, the test module in this directory, and the test in it that checks the fact.
FACTS: dict[str, tuple[str, str, str]] = {
    "F1": (
        "six phases; a new worker is initializing, its health unknown, its history empty",
        _HERE,
        "test_valid_state_transitions",
    ),
    "F2": (
        "the table of moves; corrected (B31): five more, to die at any time and to be stopped while starting",
        _PHASES,
        "test_the_possible_phase_changes_are_those_of_the_table",
    ),
    "F3": ("what is recorded of a move cannot be changed", _PHASES, "test_a_change_is_immutable"),
    "F4": (
        "a move is recorded with all that belongs to it, newest first; corrected (B24): the last 32",
        _PHASES,
        "test_the_history_has_the_last_changes_newest_first",
    ),
    "F5": (
        "corrected (B24): meta stays with its move and is not merged into anything",
        _PHASES,
        "test_the_history_has_the_last_changes_newest_first",
    ),
    "F6": (
        "corrected: no move can be requested, since phases are derived; one that there is not cannot happen",
        _HERE,
        "test_invalid_state_transitions",
    ),
    "F7": (
        "corrected (B26): each move has a closed set of reasons",
        _PHASES,
        "test_the_reasons_are_those_of_the_table",
    ),
    "F8": (
        "who takes work and who is to be removed; corrected: ready already implies sound health",
        _PHASES,
        "test_a_worker_is_alive_until_it_terminates",
    ),
    "F9": (
        "health has three values; corrected (B3, B27): what it says shows in the phase at once",
        _HERE,
        "test_health_status_updates",
    ),
    "F10": (
        "each move is logged in one line; corrected (B25): calls at DEBUG, bad news as warnings",
        _PHASES,
        "test_phase_changes_are_logged_at_their_level",
    ),
    "F11": ("no two workers have the same id, also one after the other", _HERE, "test_worker_ids_are_unique"),
    "F12": ("a worker that has started is ready and healthy", _HERE, "test_a_started_worker_is_ready_and_healthy"),
    "F13": (
        "who fails to start is never ready; corrected (B28): its pool gives up in the end, and says why",
        _HERE,
        "test_a_worker_that_fails_to_start_is_never_ready",
    ),
    "F14": (
        "who cannot take work gets none; corrected (B4): it is not removed for being asked",
        _HERE,
        "test_worker_health_check_recovery",
    ),
    "F15": (
        "a call moves its worker from ready to busy, with its session",
        _HERE,
        "test_a_call_makes_its_worker_busy_and_then_ready",
    ),
    "F16": (
        "corrected (B6): there is no port to hand over; a caller that is gone before its call began costs nothing",
        _HERE,
        "test_a_caller_cancelled_in_the_queue_costs_no_worker",
    ),
    "F17": (
        "after a call its worker is ready again",
        _HERE,
        "test_a_call_makes_its_worker_busy_and_then_ready",
    ),
    "F18": (
        "corrected (B11): an error that the function raised is a result, and says nothing of the worker",
        _HERE,
        "test_an_error_of_the_function_does_not_degrade_its_worker",
    ),
    "F19": ("who has a worker may say that it is of no more use", _HERE, "test_a_lease_can_discard_its_worker"),
    "F20": (
        "corrected (B2): workers are asked after their health by the clock, whether they have calls or not",
        _HERE,
        "test_worker_health_check_recovery",
    ),
    "F21": (
        "a check has a time to be answered; corrected (B32): the answer carries the number of the question",
        _HERE,
        "test_worker_health_check_recovery",
    ),
    "F22": (
        "a good answer makes a degraded worker ready; corrected (B3): and healthy in the same step, so that it serves",
        _HERE,
        "test_worker_health_check_recovery",
    ),
    "F23": (
        "bad answers are counted, and are its end at the limit; corrected (B27): the first makes it degraded",
        _HERE,
        "test_a_worker_that_does_not_answer_is_replaced_at_the_limit",
    ),
    "F24": (
        "an idle worker whose process exits is removed; corrected: and replaced",
        _HERE,
        "test_an_idle_worker_whose_process_exits_is_replaced",
    ),
    "F25": (
        "a stop asks, waits, kills and always succeeds; corrected (B7, B8): in any state, all workers at once",
        _HERE,
        "test_a_stop_succeeds_in_every_state",
    ),
    "F26": (
        "a session has one worker, a worker many sessions",
        _SESSIONS,
        "test_a_session_has_one_worker_and_a_worker_many_sessions",
    ),
    "F27": (
        "a session lives for its ttl; corrected (B16, B17): from the end of its last call, by one predicate",
        _SESSIONS,
        "test_a_session_expires_at_exactly_its_ttl",
    ),
    "F28": (
        "a worker takes all its sessions along and no others, forgetting twice is no error",
        _SESSIONS,
        "test_the_end_of_a_worker_removes_only_its_own_sessions",
    ),
    "F29": (
        "what is too old is forgotten; corrected: when it is asked for or room is needed, so that no timer is",
        _SESSIONS,
        "test_expired_sessions_are_removed_without_an_eviction",
    ),
    "F30": (
        "two calls of a session use one worker",
        _HERE,
        "test_session_affinity_maintained_across_operations",
    ),
    "F31": (
        "many sessions are bound and found quickly; corrected: not by the clock, by what it takes",
        _SESSIONS,
        "test_operations_take_constant_time",
    ),
    "F32": (
        "a call has 60 s; corrected (B14): in all, not 60 and 5",
        _HERE,
        "test_a_call_has_one_budget_of_sixty_seconds",
    ),
    "F33": (
        "a session's worker is looked up first; corrected (B12): and then used",
        _HERE,
        "test_session_affinity_maintained_across_operations",
    ),
    "F34": ("a session is bound when its call gets a worker", _HERE, "test_a_session_is_bound_when_its_call_begins"),
    "F35": (
        "corrected (B11): see F18; the counter of bad answers is not touched by calls",
        _HERE,
        "test_an_error_of_the_function_does_not_degrade_its_worker",
    ),
    "F36": (
        "a time-out names the session and the function; corrected (B15): and nothing of the call runs any more",
        _HERE,
        "test_a_timeout_names_the_function_and_the_session",
    ),
    "F37": ("moves are announced with their duration", _HERE, "test_changes_checks_and_sessions_are_announced"),
    "F38": ("health checks are announced with their duration", _HERE, "test_changes_checks_and_sessions_are_announced"),
    "F39": ("sessions are announced as hit or missed", _HERE, "test_changes_checks_and_sessions_are_announced"),
}


def test_every_fact_has_its_test() -> None:
    assert list(FACTS) == [f"F{number}" for number in range(1, 40)]
    missing = [
        f"{fact}: {module}.{test}"
        for fact, (_, module, test) in FACTS.items()
        if not callable(getattr(importlib.import_module(f"{__package__}.{module}"), test, None))
    ]
    assert not missing


# -- the original's unit tests ------------------------------------------------------------------------------------


def test_valid_state_transitions() -> None:
    walk = Walk()
    assert (START.phase, walk.length) == (Phase.INITIALIZING, 0)
    walk.step(Phase.READY, "init_complete")
    walk.step(Phase.BUSY, "checkout")
    assert (walk.phase, walk.length) == (Phase.BUSY, 2)


def test_invalid_state_transitions() -> None:
    """No change of a worker's status, calls or health leads to an invalid transition."""
    walk = Walk()
    with pytest.raises(InvalidTransition, match="initializing -> busy"):
        walk.step(Phase.BUSY, "invalid")
    assert (walk.phase, walk.length) == (Phase.INITIALIZING, 0)


def test_health_status_updates() -> None:
    """A running worker accepts calls unless it is unhealthy."""
    assert list(Health) == ["unknown", "healthy", "unhealthy"]
    for health in Health:
        phase = phase_of(Status.RUNNING, leased=False, healthy=health is not Health.UNHEALTHY)
        assert (phase is Phase.READY) is (health is not Health.UNHEALTHY)
    with pytest.raises(ValueError, match="fine"):
        Health("fine")


# -- the original's integration tests -----------------------------------------------------------------------------

COMMANDS = "tests.workers.pool.seeded:Commands"

#: Generous limits, so that only the test's actions affect a worker, however slow the machine is.
PATIENT = Heartbeat(every=0.05, timeout=30)
GENTLE = Process(grace=30)


def two_workers(heartbeat: Heartbeat = PATIENT) -> Pool:
    """A pool with the original's settings."""
    return Pool("test", COMMANDS, size=(2, 2), codec="json", heartbeat=heartbeat, process=GENTLE)


async def execute_in_session(pool: Pool, session: str, command: str, **arguments: Any) -> Any:
    return await pool.call(command, session=session, **arguments)


async def test_worker_health_check_recovery() -> None:
    """A worker that does not respond is degraded and receives no calls. When it responds again, it is ready."""
    async with two_workers(Heartbeat(every=0.05, timeout=0.5, misses=1_000_000)) as pool:
        worker, other = pool.members()
        os.kill(pid_of(worker), signal.SIGSTOP)
        try:
            await until(lambda: worker.phase is Phase.DEGRADED)
            assert worker.health == "unhealthy"
            answers = [await pool.call("test_command") for _ in range(4)]
            assert {each["worker_id"] for each in answers} == {other.pid}
        finally:
            os.kill(pid_of(worker), signal.SIGCONT)

        await until(lambda: worker.phase is Phase.READY)
        assert worker.health == "healthy"
        assert worker.history[0].reason == "health_restored"
        assert worker in pool.members(), "the worker was replaced"
        async with pool.lease(), pool.lease():
            assert worker.phase is other.phase is Phase.BUSY


async def test_session_affinity_maintained_across_operations() -> None:
    """Affinity applies even if a different worker has been idle for longer.

    This is why the original's test fails (B12).
    """
    async with two_workers() as pool:
        session = "test_session_1"
        first = await execute_in_session(pool, session, "test_command")
        for number in range(4):
            await execute_in_session(pool, f"other_{number}", "test_command")
            again = await execute_in_session(pool, session, "test_command")
            assert again["worker_id"] == first["worker_id"]


# -- the original's facts -------------------------------------------------------------------------------------------


def pid_of(worker: PoolWorker) -> int:
    assert worker.pid is not None
    return worker.pid


async def test_worker_ids_are_unique() -> None:
    async with two_workers() as pool:
        before = {worker.id for worker in pool.members()}
        await pool.refresh()
        after = {worker.id for worker in pool.members()}
        assert len(before) == len(after) == 2
        assert not before & after


async def test_a_started_worker_is_ready_and_healthy() -> None:
    async with two_workers() as pool:
        for worker in pool.members():
            assert (worker.phase, worker.health, worker.status) == (Phase.READY, Health.HEALTHY, Status.RUNNING)
            [started] = worker.history
            assert (started.source, started.reason) == (Phase.INITIALIZING, "init_complete")
            assert started.duration > 0


async def test_a_worker_that_fails_to_start_is_never_ready() -> None:
    seen: list[tuple[str, str]] = []

    def note(_pool: object, *, member: str, change: Any) -> None:
        seen.append((change.target, change.reason))

    hooks.member_changed.connect(note)
    broken = Pool("broken", "tests.workers.pool.seeded:Nothing", size=(1, 1), codec="json", intensity=Intensity(1, 30))
    try:
        with pytest.raises(PoolFailed):
            await broken.start()
    finally:
        hooks.member_changed.disconnect(note)
        await broken.stop()
    assert set(seen) == {("terminated", "init_failed")}


async def test_a_call_makes_its_worker_busy_and_then_ready() -> None:
    async with two_workers() as pool:
        async with pool.lease(session="s"):
            [busy] = [worker for worker in pool.members() if worker.phase is Phase.BUSY]
            assert (busy.history[0].reason, busy.history[0].meta) == ("checkout", {"session": "s"})
            assert pool.stats().busy == 1
        assert (busy.phase, busy.history[0].reason, busy.history[0].meta) == (Phase.READY, "checkin", {})


async def test_a_caller_cancelled_in_the_queue_costs_no_worker(tmp_path: Path) -> None:
    async with two_workers() as pool:
        async with pool.lease(), pool.lease():
            caller = asyncio.create_task(pool.call("touch", str(tmp_path / "began")))
            await until(lambda: pool.stats().queued == 1)
            caller.cancel()
            await asyncio.wait({caller})
            assert caller.cancelled()
            assert pool.stats().queued == 0
        assert (pool.stats().idle, len(pool.members())) == (2, 2)
        assert not (tmp_path / "began").exists()


async def test_an_error_of_the_function_does_not_degrade_its_worker() -> None:
    """A worker is not replaced, no matter how many of its calls raise errors."""
    async with two_workers() as pool:
        before = pool.members()
        for _ in range(7):
            with pytest.raises(RemoteError, match="no such command") as caught:
                await pool.call("fail")
            assert caught.value.type == "ValueError"
        assert pool.members() == before
        assert [(worker.phase, worker.failures) for worker in before] == [(Phase.READY, 0)] * 2


async def test_a_lease_can_discard_its_worker() -> None:
    async with two_workers() as pool:
        before = set(pool.members())
        async with pool.lease() as worker:
            closed = await worker.call("test_command")
            worker.discard()
        await until(lambda: pool.stats().idle == 2 and before - set(pool.members()))
        [gone] = before - set(pool.members())
        assert closed["worker_id"] == gone.pid
        assert (await gone.wait()).status is not Status.FAILED


async def test_a_worker_that_does_not_answer_is_replaced_at_the_limit() -> None:
    actions: set[str] = set()

    def note(_pool: object, *, action: str, **_: object) -> None:
        actions.add(action)

    hooks.pool_recovered.connect(note)
    hasty, forgiving = Heartbeat(every=0.05, timeout=0.7, misses=2), Intensity(100, 30)
    try:
        async with Pool("hasty", COMMANDS, size=(1, 1), codec="json", heartbeat=hasty, intensity=forgiving) as pool:
            [worker] = pool.members()
            os.kill(pid_of(worker), signal.SIGSTOP)
            await worker.wait()
            await until(lambda: pool.stats().idle == 1 and worker not in pool.members())
    finally:
        hooks.pool_recovered.disconnect(note)
    last, before, first = worker.history[:3]
    assert (first.target, before.target, last.target) == ("degraded", "terminating", "terminated")
    assert (before.reason, last.reason) == ("health_limit", "killed")
    assert actions >= {"degrade", "replace"}


async def test_an_idle_worker_whose_process_exits_is_replaced() -> None:
    async with two_workers() as pool:
        gone, other = pool.members()
        os.kill(pid_of(gone), signal.SIGKILL)
        await gone.wait()
        assert (gone.phase, gone.history[0].reason) == (Phase.TERMINATED, "exited")
        await until(lambda: pool.stats().idle == 2)
        assert other in pool.members()
        assert gone not in pool.members()


async def test_a_stop_succeeds_in_every_state(tmp_path: Path) -> None:
    never = str(tmp_path / "never")

    async def stop(pool: Pool) -> None:
        async with asyncio.timeout(30):
            await pool.stop(0.2)
            await pool.stop()
        assert not pool.members()

    await stop(Pool("new", COMMANDS, codec="json"))

    starting = Pool("starting", "tests.workers.pool.seeded:Patience", size=(2, 2), init=(never,), codec="json")
    start = asyncio.create_task(starting.start())
    await until(starting.members)
    await stop(starting)
    await asyncio.wait({start})
    assert start.exception() is not None

    async with two_workers() as at_work:
        hung, busy = at_work.members()
        async with at_work.lease() as lease:
            # The idle worker does not respond. The other worker runs a call that does not finish.
            if lease.member is hung:
                hung, busy = busy, hung
            os.kill(pid_of(hung), signal.SIGSTOP)
            call = asyncio.create_task(lease.call("wait_for", never))
            await until(lambda: busy.connection.busy_until)
            await stop(at_work)
            await asyncio.wait({call})
            assert isinstance(call.exception(), PoolError)
    assert hung.phase is busy.phase is Phase.TERMINATED


async def test_a_call_has_one_budget_of_sixty_seconds() -> None:
    """The deadline covers both waiting and running. Here, the call spends all of it waiting."""
    async with two_workers() as pool:
        assert inspect.signature(Pool).parameters["deadline"].default == 60.0
        async with pool.lease(), pool.lease():
            with pytest.raises(TimeoutError, match="queued"):
                await pool.call("test_command", deadline=0.05)


async def test_a_session_is_bound_when_its_call_begins(tmp_path: Path) -> None:
    """A second call in the session is sent to the same worker while the first call is running."""
    async with two_workers() as pool:
        bound: list[str] = []

        def note(_pool: object, *, session: str, member: str) -> None:
            bound.append(member)

        hooks.session_bound.connect(note)
        try:
            call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "go"), session="s"))
            await until(lambda: bound)
            assert not call.done()
            (tmp_path / "go").touch()
            await call
        finally:
            hooks.session_bound.disconnect(note)
        assert bound == [worker.id for worker in pool.members() if worker.calls]


async def test_a_timeout_names_the_function_and_the_session() -> None:
    async with two_workers() as pool:
        pids = [worker.pid for worker in pool.members()]
        with pytest.raises(TimeoutError) as caught:
            await pool.call("wait_for", "/does/not/exist", session="s-7", deadline=0.1)
        for word in ("wait_for", "s-7", "running"):
            assert word in str(caught.value)
        assert [worker.pid for worker in pool.members()] == pids
        assert {worker.phase for worker in pool.members()} == {Phase.READY}


async def test_changes_checks_and_sessions_are_announced() -> None:
    async with two_workers() as pool:
        seen: list[tuple[str, dict[str, Any]]] = []

        def receiver(name: str) -> Any:
            def note(sender: object, **arguments: Any) -> None:
                assert sender is pool
                seen.append((name, arguments))

            return note

        names = ("member_changed", "health_checked", "session_hit", "session_missed")
        receivers = {name: receiver(name) for name in names}
        for name, each in receivers.items():
            getattr(hooks, name).connect(each, sender=pool)
        try:
            for _ in range(2):
                await pool.call("test_command", session="s")
            await until(lambda: any(name == "health_checked" for name, _ in seen))
        finally:
            for name, each in receivers.items():
                getattr(hooks, name).disconnect(each, sender=pool)

        moves = [arguments["change"] for name, arguments in seen if name == "member_changed"]
        assert [move.target for move in moves] == ["busy", "ready", "busy", "ready"]
        assert all(move.duration >= 0 for move in moves)
        [busy] = {arguments["member"] for name, arguments in seen if name == "member_changed"}
        assert busy in {worker.id for worker in pool.members()}
        checks = [arguments for name, arguments in seen if name == "health_checked"]
        assert all(check["duration"] >= 0 and check["result"].healthy for check in checks)
        sessions = [(name, arguments["session"]) for name, arguments in seen if name.startswith("session")]
        assert sessions == [("session_missed", "s"), ("session_hit", "s")]


async def test_a_lost_call_reports_the_exit_of_its_worker() -> None:
    """The recovery table: the worker is removed and replaced, and no other call is affected."""
    async with two_workers() as pool:
        with pytest.raises(WorkerLost) as caught:
            await pool.call("exit", 7)
        assert caught.value.exit_code == 7
        await until(lambda: pool.stats().idle == 2)


# -- recovery ---------------------------------------------------------------------------------------------------------


async def test_every_recovery_action_occurs(tmp_path: Path) -> None:
    """The loss of a worker can cause the actions ``retry``, ``remove`` and ``replace``.

    The health check tests cover ``degrade``. The original never replaced workers (B20).
    """
    seen: list[tuple[str, str]] = []

    def note(_pool: object, *, action: str, reason: str, **_: object) -> None:
        seen.append((action, reason))

    def actions() -> set[str]:
        assert {reason for _, reason in seen} <= {"exited"}
        return {action for action, _ in seen}

    async def lose_an_idle_member(pool: Pool) -> set[str]:
        seen.clear()
        worker = pool.members()[0]
        os.kill(pid_of(worker), signal.SIGKILL)
        await until(actions)
        return actions()

    hooks.pool_recovered.connect(note)
    try:
        async with Pool("elastic", COMMANDS, size=(0, 2), codec="json", heartbeat=PATIENT) as pool:
            assert await pool.call("exit_once", str(tmp_path / "exited"), idempotent=True) == "done"
            await until(lambda: actions() >= {"retry"} and actions() & {"remove", "replace"})
            await until(lambda: pool.stats().idle == pool.stats().size == len(pool.members()))
            assert await lose_an_idle_member(pool) == {"remove"}, "the pool started a replacement that it does not need"
        async with Pool("fixed", COMMANDS, size=(1, 1), codec="json", heartbeat=PATIENT) as pool:
            assert await lose_an_idle_member(pool) == {"replace"}
    finally:
        hooks.pool_recovered.disconnect(note)
