"""Restarts in virtual time: which children restart, when and how often, and what happens above the limit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.errors import DoNotRestart, RestartLimitReached, StopTree, WorkerFailed
from lifecycle.workers import Backoff, Exit, Intensity, Spec, Status, Supervisor, handover
from tests.counting import counted_calls
from tests.workers.fake_workers import AT_ONCE, STEADY, Fakes, statuses

if TYPE_CHECKING:
    from lifecycle.testing import Clock


# -- start and stop ------------------------------------------------------------


async def test_starts_in_order_and_stops_in_reverse(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b c"))
    assert statuses(supervisor) == {"a": "created", "b": "created", "c": "created"}
    async with supervisor:
        assert supervisor.status is Status.RUNNING
        assert statuses(supervisor) == {"a": "running", "b": "running", "c": "running"}
    assert fakes.take_log() == ["a up", "b up", "c up", "c down", "b down", "a down"]
    assert (await supervisor.wait()).status is Status.STOPPED
    assert set(statuses(supervisor).values()) == {"stopped"}


async def test_grace_periods_add_up_unless_children_are_stopped_in_parallel(clock: Clock, fakes: Fakes) -> None:
    fakes.stop_times = {"a": 2, "b": 3}
    async with Supervisor("s", *fakes.specs("a b")):
        pass
    assert clock.time() == 5
    async with Supervisor("s", *fakes.specs("a b"), stop_order="parallel"):
        pass
    assert clock.time() == 8


async def test_a_start_that_fails_stops_those_before_it(clock: Clock, fakes: Fakes) -> None:
    fakes.fails["b", 1] = OSError("no disk")
    supervisor = Supervisor("s", *fakes.specs("a b c"))
    with pytest.raises(WorkerFailed, match=r"'s' cannot start, because its child 'b' cannot: .*no disk"):
        await supervisor.start()
    assert fakes.take_log() == ["a up", "b cannot", "a down"]
    assert (await supervisor.wait()).status is Status.FAILED
    assert statuses(supervisor) == {"a": "stopped", "b": "failed", "c": "stopped"}


# -- retrying the first start ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
async def test_a_first_start_that_is_retried_delays_no_other_child(clock: Clock, fakes: Fakes, strategy: Any) -> None:
    fakes.fails = {("b", number): OSError("no disk") for number in (1, 2)}
    specs = [fakes.spec("a"), fakes.spec("b", first_start="retry", backoff=STEADY), fakes.spec("c")]
    async with Supervisor("s", *specs, strategy=strategy, intensity=Intensity(0, 60)) as supervisor:
        assert fakes.take_log() == ["a up", "b cannot", "c up"]
        assert (clock.time(), statuses(supervisor)) == (0, {"a": "running", "b": "pending", "c": "running"})
        await clock.advance(0.1 + 0.2)
        assert fakes.take_log() == ["b cannot", "b up"]
        assert set(statuses(supervisor).values()) == {"running"}


async def test_a_first_start_is_retried_until_it_has_run_whatever_the_policy(clock: Clock, fakes: Fakes) -> None:
    fakes.fails["a", 1] = fakes.fails["a", 2] = OSError("no disk")
    async with Supervisor("s", fakes.spec("a", first_start="retry", restart="never", backoff=STEADY)) as supervisor:
        await clock.advance(1)
        assert statuses(supervisor) == {"a": "running"}
        fakes.crash("a")
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "failed"}


async def test_a_first_start_is_not_retried_above_the_limit_of_the_backoff(clock: Clock, fakes: Fakes) -> None:
    fakes.fails = {("a", number): OSError("no disk") for number in range(1, 9)}
    backoff = Backoff(jitter=0, max_restarts=2, within=60)
    async with Supervisor("s", fakes.spec("a", first_start="retry", backoff=backoff), fakes.spec("b")) as supervisor:
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "failed", "b": "running"}
        assert [child.circuit for child in supervisor.workers()] == ["open", "closed"]


async def test_a_first_start_that_waits_for_its_retry_can_be_stopped(clock: Clock, fakes: Fakes) -> None:
    fakes.fails["a", 1] = OSError("no disk")
    async with Supervisor("s", fakes.spec("a", first_start="retry", backoff=STEADY)) as supervisor:
        await supervisor.stop_child("a")
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "stopped"}
    assert fakes.take_log() == ["a cannot"]


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (lambda: 1 / 0, "division by zero"),
        (lambda: None, "returned None, which is not a worker"),
        (lambda: Supervisor, "which is not a worker"),
        (lambda: ["sleep", "1"], "which is not a worker"),
    ],
)
async def test_a_factory_that_raises_or_returns_the_wrong_thing_fails_the_start(
    clock: Clock, child: Any, message: str
) -> None:
    supervisor = Supervisor("s", Spec("a", child))
    with pytest.raises(WorkerFailed, match=message):
        await supervisor.start()


async def test_a_factory_that_returns_the_same_worker_again_fails(clock: Clock) -> None:
    worker = Supervisor("inner")
    supervisor = Supervisor("s", Spec("a", lambda: worker, backoff=Backoff(initial=1, jitter=0)))
    async with supervisor:
        await worker.stop()
        await clock.advance(1)
        assert "has been started before" in str(supervisor.workers()[0].error)


@pytest.mark.parametrize("grace", [0, 3])
async def test_a_stop_kills_children_exactly_at_the_end_of_their_grace_period(
    clock: Clock, fakes: Fakes, grace: float
) -> None:
    fakes.ignores_stop = {"a", "b"}
    supervisor = Supervisor("s", *fakes.specs("a b"))
    await supervisor.start()
    await supervisor.stop(grace)
    assert (supervisor.status, clock.time()) == ("killed", grace)
    assert statuses(supervisor) == {"a": "killed", "b": "killed"}


async def test_a_stop_while_it_starts_interrupts_a_start_that_hangs(clock: Clock, fakes: Fakes) -> None:
    fakes.hangs = {"b"}
    supervisor = Supervisor("s", *fakes.specs("a b c"))
    start = asyncio.create_task(supervisor.start())
    await clock.advance(5)
    assert statuses(supervisor) == {"a": "running", "b": "starting", "c": "created"}
    await supervisor.stop()
    with pytest.raises(WorkerFailed, match="was stopped while starting"):
        await start
    assert (supervisor.status, clock.time()) == ("stopped", 5)
    assert fakes.take_log() == ["a up", "b hangs", "a down"]


async def test_a_stop_interrupts_a_factory_that_hangs(clock: Clock) -> None:
    async def never() -> Supervisor:
        await asyncio.Event().wait()
        raise AssertionError

    supervisor = Supervisor("s", Spec("a", lambda: asyncio.ensure_future(never())))
    start = asyncio.create_task(supervisor.start())
    await clock.advance(100)
    await supervisor.stop()
    with pytest.raises(WorkerFailed):
        await start
    assert (supervisor.status, clock.time()) == ("stopped", 100)


async def test_a_removal_interrupts_a_hanging_factory_and_delays_no_other_child(clock: Clock, fakes: Fakes) -> None:
    hangs = False

    async def make() -> Any:
        if hangs:
            await asyncio.Event().wait()
        return fakes.spec("a").make()

    async with Supervisor("s", Spec("a", lambda: asyncio.ensure_future(make())), fakes.spec("b")) as supervisor:
        hangs = True
        again = asyncio.create_task(supervisor.restart("a"))
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "starting", "b": "running"}
        await supervisor.remove("a")
        with pytest.raises(WorkerFailed, match="'a' was stopped before it finished starting"):
            await again
        assert (statuses(supervisor), clock.time()) == ({"b": "running"}, 100)


async def test_a_child_that_swallows_cancellation_is_abandoned_and_the_stop_returns_on_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    supervisor = Supervisor("s", Spec("mule", stubborn, stop_timeout=2))
    async with supervisor:
        await clock.settle()
    # Stop the supervisor before any assertion, because a worker that ignores cancellation would outlive the test.
    asyncio.get_running_loop().call_soon(release.set)
    assert (clock.time(), statuses(supervisor)) == (2, {"mule": "killed"})
    assert supervisor.workers()[0].abandoned
    assert "'mule' could not be killed and was abandoned" in caplog.text
    await clock.settle()


# -- policy ------------------------------------------------------------


@pytest.mark.parametrize(
    ("restart", "error", "again"),
    [
        ("always", None, True),
        ("always", ValueError(), True),
        ("on_failure", None, False),
        ("on_failure", ValueError(), True),
        ("on_failure", asyncio.CancelledError(), True),
        ("never", None, False),
        ("never", ValueError(), False),
        ("always", DoNotRestart("done"), False),
    ],
)
async def test_each_restart_policy_is_followed(
    clock: Clock, fakes: Fakes, restart: str, error: Any, again: bool
) -> None:
    async with Supervisor("s", fakes.spec("a", restart=restart)) as supervisor:
        fakes["a"].end(error)
        await clock.settle()
        child = supervisor.workers()[0]
        assert (child.status == "running") is again
        assert child.restarts == int(again)
        if not again:
            assert child.status == ("failed" if error else "finished")


async def test_a_child_that_raises_an_unrequested_cancellation_is_restarted(clock: Clock) -> None:
    lives = 0

    async def odd() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    async with Supervisor("s", Spec("odd", odd, restart="on_failure", backoff=STEADY)) as supervisor:
        await clock.advance(1)
        assert (lives, statuses(supervisor)) == (2, {"odd": "running"})


async def test_the_exit_of_a_worker_that_is_replaced_is_ignored(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        first = fakes["a"]
        fakes.crash("a")
        # The restart delay has not passed yet.
        await supervisor.restart("a")
        await clock.settle()
        assert len(fakes.made["a"]) == 2
        assert supervisor["a"] is fakes["a"] is not first


async def test_backoff_doubles_and_is_reset_after_a_long_run(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a", backoff=STEADY)) as supervisor:
        waits = []
        for _ in range(5):
            fakes.crash("a")
            await clock.settle()
            assert statuses(supervisor) == {"a": "pending"}
            began, count = clock.time(), len(fakes.made["a"])
            while len(fakes.made["a"]) == count:
                await clock.advance(0.01)
            waits.append(round(clock.time() - began, 2))
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6]
        await clock.advance(60)
        fakes.crash("a")
        await clock.advance(0.11)
        assert statuses(supervisor) == {"a": "running"}


async def test_a_stop_during_the_backoff_starts_nothing(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a", backoff=Backoff(initial=5))) as supervisor:
        fakes.crash("a")
        await clock.advance(1)
        assert statuses(supervisor) == {"a": "pending"}
    assert statuses(supervisor) == {"a": "stopped"}
    await clock.advance(10)
    assert fakes.take_log() == ["a up", "a down"]


async def test_a_start_that_hangs_does_not_delay_other_children(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b")) as supervisor:
        fakes.hangs = {"a"}
        fakes.crash("a")
        await clock.settle()
        fakes.crash("b")
        await clock.settle()
        assert statuses(supervisor) == {"a": "starting", "b": "running"}
        await supervisor.add(fakes.spec("c"))
        assert statuses(supervisor) == {"a": "starting", "b": "running", "c": "running"}


# -- groups ------------------------------------------------------------


async def test_a_group_is_stopped_at_once_and_started_in_order_after_the_backoff(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b c", backoff=Backoff(initial=2, jitter=0))
    async with Supervisor("s", *specs, strategy="rest_for_one") as supervisor:
        fakes.take_log()
        fakes.crash("b")
        await clock.advance(1)
        assert fakes.take_log() == ["b down", "c down"]
        assert statuses(supervisor) == {"a": "running", "b": "pending", "c": "pending"}
        await clock.advance(1)
        assert fakes.take_log() == ["b up", "c up"]


async def test_an_earlier_child_that_crashes_during_the_backoff_restarts_its_own_group(
    clock: Clock, fakes: Fakes
) -> None:
    specs = fakes.specs("a b c", backoff=Backoff(initial=2, jitter=0))
    async with Supervisor("s", *specs, strategy="rest_for_one"):
        fakes.take_log()
        fakes.crash("b")
        await clock.advance(1)
        fakes.crash("a")
        await clock.advance(1.5)
        assert fakes.take_log() == ["b down", "c down", "a down"]
        await clock.advance(1)
        assert fakes.take_log() == ["a up", "b up", "c up"]


async def test_two_children_that_crash_at_the_same_time_cause_one_restart_of_the_group(
    clock: Clock, fakes: Fakes
) -> None:
    async with Supervisor("s", *fakes.specs("a b"), strategy="one_for_all", intensity=Intensity(1, 60)) as supervisor:
        fakes.take_log()
        fakes.crash("a")
        fakes.crash("b")
        await clock.settle()
        assert fakes.take_log() == ["a down", "b down", "a up", "b up"]
        assert supervisor.status is Status.RUNNING


async def test_removing_the_failing_child_from_its_group_lets_the_others_start(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b c", backoff=Backoff(initial=2, jitter=0))
    async with Supervisor("s", *specs, strategy="one_for_all") as supervisor:
        fakes.crash("b")
        await clock.advance(1)
        await supervisor.remove("b")
        await clock.advance(1)
        assert statuses(supervisor) == {"a": "running", "c": "running"}


async def test_a_group_is_stopped_in_parallel_if_that_is_the_stop_order(clock: Clock, fakes: Fakes) -> None:
    fakes.stop_times = {"b": 2, "c": 3}
    settings: Any = {"strategy": "one_for_all", "stop_order": "parallel"}
    async with Supervisor("s", *fakes.specs("a b c"), **settings):
        fakes.take_log()
        fakes.crash("a")
        await clock.advance(2.5)
        assert fakes.take_log() == ["a down", "b down"]
        await clock.advance(1)
        assert fakes.take_log() == ["c down", "a up", "b up", "c up"]


# -- restart limits -----------------------------------------------------


async def crash_at(clock: Clock, fakes: Fakes, *moments: float) -> None:
    for moment in moments:
        await clock.advance(moment - clock.time())
        fakes.crash("a")
        await clock.settle()


@pytest.mark.parametrize(
    ("intensity", "moments", "survives"),
    [
        (Intensity(0, 5), [0], False),
        (Intensity(1, 5), [0, 5.0], False),
        (Intensity(1, 5), [0, 5.001, 10.002, 15.003], True),
        (Intensity(3, 5), [0, 1, 2, 3], False),
        (Intensity(3, 5), [0, 2, 4, 6, 8, 10], True),
        (Intensity(2, 5), [0, 2.5, 5.0], False),
    ],
)
async def test_the_budget_counts_in_a_closed_window(
    clock: Clock, fakes: Fakes, intensity: Intensity, moments: list[float], survives: bool
) -> None:
    supervisor = Supervisor("s", fakes.spec("a"), intensity=intensity)
    await supervisor.start()
    await crash_at(clock, fakes, *moments)
    assert (supervisor.status is Status.RUNNING) is survives
    await supervisor.stop()
    assert supervisor.status == ("stopped" if survives else "failed")


async def test_an_exceeded_budget_ends_the_supervisor_with_the_last_errors(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(2, 60))
    await supervisor.start()
    for error in (ValueError("one"), None, OSError("three")):
        fakes["a"].end(error)
        await clock.settle()
    exit_ = await supervisor.wait()
    assert exit_.status is Status.FAILED
    assert isinstance(exit_.error, RestartLimitReached)
    assert "'s' gave up after more than 2 restarts within 60 s" in str(exit_.error)
    group = exit_.error.__cause__
    assert isinstance(group, ExceptionGroup)
    assert [str(each) for each in group.exceptions] == ["one", "'a' finished, and has to run", "three"]
    assert fakes.log[-1] == "b down"


async def test_an_exceeded_budget_is_logged_announced_and_cancels_the_block(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Any] = []
    hooks.worker_failed.connect(receiver := lambda sender, **what: failed.append((sender, what)))
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(1, 10))
    cleaned_up = False
    with pytest.raises(
        RestartLimitReached, match="'s' gave up after more than 1 restart within 10 s, most recently of 'a'"
    ):
        async with supervisor:
            await crash_at(clock, fakes, 0)
            fakes.ignores_stop = {"b"}
            fakes.crash("a")
            try:
                await asyncio.sleep(1000)
            finally:
                cleaned_up = True
                assert supervisor.status is Status.RUNNING, "the block must not wait for children that stop slowly"
    hooks.worker_failed.disconnect(receiver)
    assert cleaned_up
    assert statuses(supervisor) == {"a": "failed", "b": "killed"}
    logged = [(each.levelname, each.getMessage()) for each in caplog.records if "gave up" in each.getMessage()]
    assert logged == [("ERROR", "'s' gave up after more than 1 restart within 10 s, most recently of 'a': a broke")]
    assert failed[-1] == (supervisor, {"worker": supervisor, "exit": await supervisor.wait()})
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_swallows_its_cancellation_raises_the_failure_at_its_end(clock: Clock, fakes: Fakes) -> None:
    with pytest.raises(RestartLimitReached):
        async with Supervisor("s", fakes.spec("a"), intensity=Intensity(0, 10)):
            fakes.crash("a")
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)


async def test_an_error_of_the_body_and_a_cancellation_from_outside_win_over_the_failure(
    clock: Clock, fakes: Fakes
) -> None:
    with pytest.raises(KeyError):
        async with Supervisor("s", fakes.spec("a"), intensity=Intensity(0, 10)):
            fakes.crash("a")
            try:
                await asyncio.sleep(1)
            finally:
                raise KeyError("of the body")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), Supervisor("s", fakes.spec("b"), intensity=Intensity(0, 10)):
            fakes.crash("b")
            try:
                await asyncio.sleep(1)
            finally:
                await asyncio.sleep(5)


async def test_a_cancellation_from_outside_does_not_leave_a_failed_block_before_its_children_ended(
    clock: Clock, fakes: Fakes
) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 10))
    fakes.ignores_stop = {"b"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), supervisor:
            fakes.crash("a")
            await asyncio.sleep(1000)
    assert statuses(supervisor) == {"a": "failed", "b": "killed"}


async def test_the_second_cancellation_from_outside_leaves_a_failed_block_at_once(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 10))
    fakes.ignores_stop = {"b"}

    async def use() -> None:
        async with supervisor:
            fakes.crash("a")
            await asyncio.sleep(1000)

    task = asyncio.create_task(use())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), supervisor.status, clock.time()) == (True, "stopping", 2)
    await supervisor.wait()


async def test_a_block_whose_cancellation_is_passed_on_raises_the_error_of_its_body(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 10))
    fakes.ignores_stop = {"b"}
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(KeyError):
        async with supervisor:
            fakes.crash("a")
            try:
                await asyncio.sleep(1000)
            finally:
                # Since Python 3.13, a task group does the same if one of its own tasks has also failed.
                task.uncancel()
                task.cancel()
                raise KeyError("of the body")
    assert (statuses(supervisor), task.cancelling()) == ({"a": "failed", "b": "killed"}, 0)


async def test_a_body_that_kills_a_failing_supervisor_raises_the_failure(clock: Clock, fakes: Fakes) -> None:
    with pytest.raises(RestartLimitReached):
        async with Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 10)) as supervisor:
            fakes.ignores_stop = {"b"}
            fakes.crash("a")
            try:
                await asyncio.sleep(1000)
            finally:
                await supervisor.stop(0)


async def test_a_block_that_is_left_in_another_task_does_not_swallow_its_cancellation(
    clock: Clock, fakes: Fakes
) -> None:
    supervisor = Supervisor("s", fakes.spec("a"), intensity=Intensity(0, 10))
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(supervisor))

    async def leave() -> None:
        async with stack:
            fakes.crash("a")
            await asyncio.sleep(1000)

    task = asyncio.create_task(leave())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), supervisor.status) == (True, "failed")


@pytest.mark.parametrize("error", [StopTree("no licence"), SystemExit(3)])
async def test_a_child_that_raises_stop_tree_ends_the_block(clock: Clock, fakes: Fakes, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        async with Supervisor("s", *fakes.specs("a b")):
            fakes.crash("a", error)
            await asyncio.sleep(1000)
    assert (caught.value, clock.time()) == (error, 0)


async def test_a_supervisor_that_finishes_leaves_its_block_alone(clock: Clock, fakes: Fakes) -> None:
    job = fakes.spec("job", restart="never", significant=True)
    async with Supervisor("s", job, auto_shutdown="any_significant") as supervisor:
        fakes["job"].end()
        await asyncio.sleep(5)
        assert supervisor.status is Status.FINISHED


async def test_failing_starts_count_and_manual_restarts_do_not(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", fakes.spec("a"), intensity=Intensity(2, 60))
    await supervisor.start()
    for _ in range(5):
        await supervisor.restart("a")
    assert supervisor.status is Status.RUNNING
    fakes.fails = {("a", number): OSError("gone") for number in range(7, 20)}
    fakes.crash("a")
    await clock.settle()
    assert (supervisor.status, fakes.log.count("a cannot")) == ("failed", 2)


async def test_on_limit_pause_waits_until_the_budget_allows_it(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a"), intensity=Intensity(2, 10), on_limit="pause") as supervisor:
        await crash_at(clock, fakes, 0, 1, 2)
        assert (supervisor.status, statuses(supervisor)) == ("running", {"a": "pending"})
        await clock.advance(7.9)
        assert statuses(supervisor) == {"a": "pending"}
        await clock.advance(0.2)
        assert statuses(supervisor) == {"a": "running"}
        fakes.crash("a")
        await clock.advance(0.8)
        assert statuses(supervisor) == {"a": "pending"}
        await clock.advance(0.2)
        assert statuses(supervisor) == {"a": "running"}


async def test_a_circuit_opens_for_one_child_and_a_manual_restart_closes_it(clock: Clock, fakes: Fakes) -> None:
    announced: list[Any] = []
    hooks.circuit_opened.connect(receiver := lambda sender, **what: announced.append((sender, what)))
    backoff = Backoff(initial=0, max_restarts=2, within=60)
    async with Supervisor("s", fakes.spec("a", backoff=backoff), fakes.spec("b")) as supervisor:
        for _ in range(3):
            fakes.crash("a")
            await clock.settle()
        state = supervisor.workers()[0]
        assert (state.status, state.circuit, state.restarts) == ("failed", "open", 2)
        assert announced == [(supervisor, {"child": "a", "restarts": 2})]
        assert supervisor.status is Status.RUNNING
        await clock.advance(1000)
        assert statuses(supervisor) == {"a": "failed", "b": "running"}
        await supervisor.restart("a")
        state = supervisor.workers()[0]
        assert (state.status, state.circuit) == ("running", "closed")
        fakes.crash("a")
        await clock.settle()
        assert statuses(supervisor)["a"] == "running"
    hooks.circuit_opened.disconnect(receiver)


# -- stopping the supervisor ------------------------------------------------------


@pytest.mark.parametrize("error", [StopTree("no licence"), SystemExit(3), KeyboardInterrupt()])
async def test_an_error_that_ends_the_tree_reaches_the_root(clock: Clock, fakes: Fakes, error: BaseException) -> None:
    def inner() -> Supervisor:
        return Supervisor("inner", *fakes.specs("a b"))

    root = Supervisor("root", fakes.spec("c"), Spec("inner", inner))
    await root.start()
    fakes.crash("a", error)
    exit_ = await root.wait()
    assert (exit_.status, exit_.error) == ("failed", error)
    assert fakes.take_log()[-3:] == ["a down", "b down", "c down"]


@pytest.mark.parametrize("error", [StopTree("no licence"), SystemExit(3)])
async def test_a_tree_ending_error_of_a_start_reaches_the_root(
    clock: Clock, fakes: Fakes, error: BaseException
) -> None:
    def refuse() -> Supervisor:
        raise error

    root = Supervisor("root", fakes.spec("c"), Spec("inner", lambda: Supervisor("inner", Spec("x", refuse))))
    with pytest.raises(WorkerFailed, match="'root'"):
        await root.start()
    assert fakes.take_log() == ["c up", "c down"]


async def test_an_error_that_ends_the_tree_is_not_lost_while_its_group_is_being_stopped(
    clock: Clock, fakes: Fakes
) -> None:
    root = Supervisor("root", *fakes.specs("a b"), strategy="one_for_all")
    await root.start()
    fakes.crash("a")
    fakes.crash("b", StopTree("now"))
    assert isinstance((await root.wait()).error, StopTree)


async def test_a_child_that_raises_do_not_restart_at_its_start_is_skipped(clock: Clock, fakes: Fakes) -> None:
    fakes.fails["b", 1] = DoNotRestart("not configured")
    async with Supervisor("s", *fakes.specs("a b c")) as supervisor:
        assert statuses(supervisor) == {"a": "running", "b": "stopped", "c": "running"}


async def test_an_exhausted_supervisor_is_started_again_as_a_whole(clock: Clock, fakes: Fakes) -> None:
    def inner() -> Supervisor:
        return Supervisor("inner", *fakes.specs("a b"), intensity=Intensity(0, 60))

    async with Supervisor("root", Spec("inner", inner, restart="on_failure", backoff=STEADY)) as root:
        fakes.take_log()
        fakes.crash("a")
        await clock.advance(1)
        assert fakes.take_log() == ["a down", "b down", "a up", "b up"]
        (state,) = root.workers()
        assert (state.status, state.restarts, len(state.children)) == ("running", 1, 2)


async def test_nested_budgets_multiply_and_the_last_errors_of_all_levels_are_raised(clock: Clock, fakes: Fakes) -> None:
    def inner() -> Supervisor:
        return Supervisor("inner", fakes.spec("a"), intensity=Intensity(2, 60))

    root = Supervisor("root", Spec("inner", inner, backoff=AT_ONCE), intensity=Intensity(1, 60))
    await root.start()
    crashes = 0
    while root.status is Status.RUNNING:
        crashes += 1
        fakes.crash("a", ValueError(f"number {crashes}"))
        await clock.settle()
    # `inner` is started twice, and its child crashes three times after each start: (1 + 1) * (2 + 1).
    assert crashes == 6
    error = (await root.wait()).error
    assert isinstance(error, RestartLimitReached)
    assert isinstance(error.__cause__, ExceptionGroup)
    first, second = error.__cause__.exceptions
    assert isinstance(first, RestartLimitReached)
    assert isinstance(second.__cause__, ExceptionGroup)
    assert [str(each) for each in second.__cause__.exceptions] == ["number 4", "number 5", "number 6"]


async def test_a_significant_child_that_is_given_up_has_ended(clock: Clock, fakes: Fakes) -> None:
    backoff = Backoff(initial=0, max_restarts=1)
    job = fakes.spec("job", restart="on_failure", significant=True, backoff=backoff)
    supervisor = Supervisor("s", job, fakes.spec("helper"), auto_shutdown="any_significant")
    await supervisor.start()
    for _ in range(2):
        fakes.crash("job")
        await clock.settle()
    assert (await supervisor.wait()).status is Status.FINISHED
    assert statuses(supervisor) == {"job": "failed", "helper": "stopped"}


async def test_auto_shutdown_finishes_it(clock: Clock, fakes: Fakes) -> None:
    specs = [fakes.spec("job", restart="on_failure", significant=True), fakes.spec("helper")]
    supervisor = Supervisor("s", *specs, auto_shutdown="any_significant")
    await supervisor.start()
    fakes["job"].end()
    exit_ = await supervisor.wait()
    assert (exit_.status, exit_.error) == (Status.FINISHED, None)
    assert statuses(supervisor) == {"job": "finished", "helper": "stopped"}


async def test_the_cost_of_a_finished_child_does_not_grow_with_its_siblings(clock: Clock) -> None:
    assert await _calls_to_finish(clock, siblings=300) < 2 * await _calls_to_finish(clock, siblings=30)


async def _calls_to_finish(clock: Clock, *, siblings: int) -> int:
    """Return the number of calls while a child finishes."""
    finish = asyncio.Event()
    others = [
        Spec(f"other{number}", asyncio.Event().wait, restart="never", significant=True) for number in range(siblings)
    ]
    jobs = Spec("job", finish.wait, restart="never")
    async with Supervisor("s", *others, jobs, auto_shutdown="any_significant") as supervisor:
        await clock.settle()
        finish.set()
        with counted_calls() as calls:
            await clock.settle()
        assert supervisor["job"].status is Status.FINISHED
    return len(calls)


async def test_all_significant_waits_for_children_that_have_not_started_yet(clock: Clock, fakes: Fakes) -> None:
    fakes.hangs = {"slow"}
    specs = fakes.specs("quick slow", restart="on_failure", significant=True)
    supervisor = Supervisor("s", *specs, auto_shutdown="all_significant")
    start = asyncio.create_task(supervisor.start())
    await clock.settle()
    fakes["quick"].end()
    await clock.settle()
    assert supervisor.status is Status.STARTING
    await supervisor.stop()
    await asyncio.wait({start})
    assert start.exception() is not None


# -- data passed to a restarted child -----------------------------------------------


async def test_each_start_gets_the_previous_exit(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a"), fakes.spec("b")):
        fakes["a"].end(exit_code=-9)
        await clock.settle()
        fakes["a"].end(ValueError("task"))
        await clock.settle()
        fakes["a"].end()
        await clock.settle()
        environments = [each.env for each in fakes.made["a"]]
        assert [each["LIFECYCLE_PREV_EXIT"] for each in environments] == ["0", "-9", "-1", "0"]
        assert [each["LIFECYCLE_ATTEMPT"] for each in environments] == ["1", "2", "3", "4"]
        (resume_id,) = {each["LIFECYCLE_RESUME_ID"] for each in environments}
        assert resume_id != fakes["b"].env["LIFECYCLE_RESUME_ID"]


async def test_a_task_reads_the_previous_exit_from_its_handover(clock: Clock) -> None:
    lives: list[tuple[str, int, int]] = []

    async def work() -> None:
        life = handover()
        lives.append((life.resume_id, life.prev_exit, life.attempt))
        if life.attempt < 3:
            raise ValueError
        await asyncio.Event().wait()

    async with Supervisor("s", Spec("a", work, backoff=STEADY)):
        await clock.advance(1)
    assert [(prev_exit, attempt) for _, prev_exit, attempt in lives] == [(0, 1), (-1, 2), (-1, 3)]
    assert len({resume_id for resume_id, _, _ in lives}) == 1


async def test_restarts_are_announced_by_the_supervisor(clock: Clock, fakes: Fakes) -> None:
    announced: list[Any] = []
    hooks.worker_restarted.connect(receiver := lambda sender, **what: announced.append((sender, what)))
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.crash("a")
        await clock.settle()
        assert announced == [(supervisor, {"child": "a", "restarts": 1})]
    hooks.worker_restarted.disconnect(receiver)


class Own:
    """A worker that does not inherit from `BaseWorker`."""

    def __init__(self) -> None:
        self.status = Status.CREATED
        self.over = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.status = Status.RUNNING

    async def stop(self, timeout: float | None = None) -> None:
        self.end(Status.STOPPED)

    async def wait(self) -> Exit:
        exit_: Exit = await asyncio.shield(self.over)
        return exit_

    def state(self) -> Any:
        return Supervisor("inside").state()

    def end(self, status: Status) -> None:
        if not self.over.done():
            self.status = status
            self.over.set_result(Exit(status, ValueError() if status == "failed" else None))


class Mute(Own):
    """A worker that raises an error instead of reporting its end, and may still be running."""

    def lose(self, error: BaseException) -> None:
        self.over.set_exception(error)

    async def stop(self, timeout: float | None = None) -> None:
        self.status = Status.STOPPED


async def test_a_third_party_worker_is_supervised_like_any_other(clock: Clock) -> None:
    made: list[Own] = []

    def make() -> Own:
        made.append(Own())
        return made[-1]

    async with Supervisor("s", Spec("own", make, backoff=STEADY)) as supervisor:
        made[0].end(Status.FAILED)
        await clock.settle()
        assert statuses(supervisor) == {"own": "pending"}
        await clock.advance(1)
        assert (len(made), statuses(supervisor)) == (2, {"own": "running"})
    assert made[1].status is Status.STOPPED


@pytest.mark.parametrize("error", [OSError("the line is dead"), asyncio.CancelledError("not by us")])
async def test_a_worker_whose_wait_raises_has_failed_and_is_stopped_before_the_next(
    clock: Clock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    made: list[Mute] = []

    def make() -> Mute:
        made.append(Mute())
        return made[-1]

    async with Supervisor("s", Spec("mute", make, backoff=STEADY)) as supervisor:
        made[0].lose(error)
        await clock.settle()
        assert (statuses(supervisor), made[0].status) == ({"mute": "pending"}, "stopped")
        assert "cannot report when it ends, so it is treated as failed" in caplog.text
        await clock.advance(1)
        assert (len(made), statuses(supervisor)) == (2, {"mute": "running"})
        made[1].lose(error)
    assert made[1].status is Status.STOPPED


async def test_a_worker_whose_wait_raises_fails_even_without_restarts(clock: Clock) -> None:
    made: list[Mute] = []

    def make() -> Mute:
        made.append(Mute())
        return made[-1]

    async with Supervisor("s", Spec("mute", make, restart="never")) as supervisor:
        made[0].lose(OSError("the line is dead"))
        await clock.settle()
        assert statuses(supervisor) == {"mute": "failed"}
    assert len(made) == 1


async def test_a_worker_that_raises_on_stop_does_not_stop_others(clock: Clock, fakes: Fakes) -> None:
    mute = Mute()
    async with Supervisor("s", fakes.spec("a"), Spec("mute", lambda: mute)) as supervisor:
        fakes.take_log()
        mute.status = Status.STOPPED
        stopping = asyncio.create_task(supervisor.stop())
        await clock.settle()
        mute.lose(OSError("the line is dead"))
        await stopping
    assert fakes.take_log() == ["a down"]
    assert supervisor.status is Status.STOPPED
