"""Flows from a user's perspective, on every store: started, inspected, suspended, resumed, and run again."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.flows import (
    Change,
    ClaimLost,
    Failure,
    FlowError,
    Flows,
    InvalidState,
    MemoryStore,
    Options,
    Presence,
    StepFailed,
    Task,
    Times,
    current_task,
    graph,
    linear,
    task,
    unordered,
)
from lifecycle.flows.client import registry_of
from lifecycle.flows.stores.base import reset_failed
from lifecycle.flows.stores.presence import RECOVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.testing.virtual import Clock


def step(name: str, log: list[str], *, fails: int = 0) -> Task:
    """Return a task that records its calls and fails the first ``fails`` times."""

    async def do() -> str:
        log.append(name)
        if log.count(name) <= fails:
            raise OSError(f"{name} is broken")
        return name.upper()

    async def undo() -> None:
        log.append(f"-{name}")

    return task(do, name=name).revert(undo)


class Held:
    """A task that waits until it is released."""

    def __init__(self, name: str = "held") -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.times = 0
        self.task = task(self.do, name=name)

    async def do(self) -> str:
        self.times += 1
        self.begun.set()
        await self.go_on.wait()
        return "done"


async def test_parameter_names_connect_tasks(flows: Flows) -> None:
    @task
    async def volume(size: int) -> str:
        return f"volume of {size}"

    @task(provides="ip", timeout=30)
    async def address(pool: str) -> str:
        return f"{pool}.1"

    @task
    def server(volume: str, ip: str, image: str = "debian") -> dict[str, Any]:
        return {"has": [volume, ip, image], "ok": True}

    @task
    async def notify(server: dict[str, Any]) -> None:
        server.clear()

    boot = graph("boot", server, volume, address, retry=Times(3, backoff=(1, 2, 60)))
    vm = linear("vm", boot, notify).when(boot, notify, lambda done: done["server"]["ok"], depth="flow")
    assert await flows.start(vm, id="vm-42", size=10, pool="a") == {
        "volume": "volume of 10",
        "ip": "a.1",
        "server": {"has": ["volume of 10", "a.1", "debian"], "ok": True},
        "notify": None,
    }


async def test_a_failure_reverts_tasks_in_reverse_order(flows: Flows) -> None:
    log: list[str] = []
    run = flows.start(linear("f", step("a", log), step("b", log), step("c", log, fails=1)))
    with pytest.raises(OSError, match="c is broken"):
        await run
    assert run.state == "REVERTED"
    assert log == ["a", "b", "c", "-c", "-b", "-a"]


async def test_a_revert_gets_the_result_and_the_failures(flows: Flows) -> None:
    seen: dict[str, Any] = {}

    @task
    async def volume(size: int) -> str:
        return f"v{size}"

    @volume.revert
    async def _undo(volume: str, result: str, size: int, failures: dict[str, Any]) -> None:
        seen.update(volume=volume, result=result, size=size, failures={k: str(v) for k, v in failures.items()})

    @task
    async def server(volume: str) -> None:
        raise ValueError(f"no room for {volume}")

    with pytest.raises(ValueError, match="no room for v3"):
        await flows.start(linear("f", volume, server), size=3)
    assert seen == {"volume": "v3", "result": "v3", "size": 3, "failures": {"server": "ValueError: no room for v3"}}


async def test_the_revert_of_a_task_that_failed_gets_its_failure(flows: Flows) -> None:
    results: list[Any] = []

    @task
    async def volume() -> str:
        raise OSError("the disk is full")

    @volume.revert
    async def _undo(result: str | Failure, volume: str | Failure) -> None:
        results.extend([result, volume])

    with pytest.raises(OSError, match="full"):
        await flows.start(linear("f", volume))
    assert [str(result) for result in results] == ["OSError: the disk is full"] * 2


async def test_a_revert_only_if_done_is_not_called_for_a_task_that_failed(flows: Flows) -> None:
    reverted: list[Any] = []

    def only_if_done(name: str) -> Task:
        @task(name=name)
        async def do(fails: str) -> str:
            if name == fails:
                raise OSError(f"{name} is broken")
            return name

        @do.revert(only_if_done=True)
        async def undo(result: str) -> None:
            reverted.append(result)

        return undo

    flow = linear("f", only_if_done("a"), task(only_if_done("b"), priority=3), step("c", reverted))
    run = flows.start(flow, fails="b")
    with pytest.raises(OSError, match="b is broken"):
        await run
    assert (reverted, run.state, run.steps["b"].state) == (["a"], "REVERTED", "REVERTED")


async def test_a_crash_does_not_call_a_revert_that_is_only_for_done_tasks(reopened: Callable[[], Flows]) -> None:
    log: list[str] = []
    begun = asyncio.Event()
    a, c = step("a", log), step("c", log, fails=1)

    @task
    async def b() -> None:
        log.append("b")

    @b.revert(only_if_done=True)
    async def undo() -> None:
        log.append("-b")
        begun.set()
        if log.count("-b") == 1:
            await asyncio.Event().wait()

    @task
    async def failing() -> None:
        raise OSError("broken")

    @failing.revert(only_if_done=True)
    async def not_called() -> None:
        log.append("-failing")

    flow = linear("f", a, b, unordered("both", c, failing))
    async with reopened() as flows:
        run = flows.start(flow, id="one")
        await begun.wait()
    async with reopened() as flows:
        run = flows.start(flow, id="one")
        with pytest.raises(ExceptionGroup):
            await run
    assert log == ["a", "b", "c", "-c", "-b", "-b", "-a"]


async def test_a_failed_task_keeps_its_key_if_its_revert_is_not_called(flows: Flows) -> None:
    keys: list[str] = []

    @task
    async def charge() -> None:
        keys.append(current_task().key)
        if len(keys) < 3:
            raise TimeoutError("no answer")

    @charge.revert(only_if_done=True)
    async def refund() -> None:
        keys.append("reverted")

    await flows.start(linear("order", charge, retry=Times(3)), id="o7")
    assert keys == ["o7/charge/1"] * 3


async def test_several_failures_raise_an_exception_group(flows: Flows) -> None:
    log: list[str] = []
    with pytest.RaisesGroup(OSError, OSError, match="several tasks of the flow 'f' failed"):
        await flows.start(unordered("f", step("a", log, fails=1), step("b", log, fails=1)))


async def test_a_failure_is_raised_as_step_failed_after_a_restart(reopened: Callable[[], Flows]) -> None:
    flow = linear("f", step("a", [], fails=1))
    async with reopened() as flows:
        with pytest.raises(OSError, match="a is broken"):
            await flows.start(flow, id="one")
    async with reopened() as flows:
        with pytest.raises(StepFailed, match="'a' failed: OSError: a is broken") as caught:
            await flows.start(flow, id="one")
    assert "Traceback" in caught.value.__notes__[0]


async def test_a_retry_reverts_its_flow_and_runs_it_again(flows: Flows, clock: Clock) -> None:
    log: list[str] = []
    flow = linear("f", step("a", log), step("b", log, fails=2), retry=Times(3, backoff=(1, 10, 60)))
    began = asyncio.get_running_loop().time()
    await flows.start(flow)
    assert log == ["a", "b", "-b", "-a"] * 2 + ["a", "b"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(11)


async def test_the_same_id_is_the_same_run(reopened: Callable[[], Flows]) -> None:
    log: list[str] = []
    flow = linear("f", step("a", log))
    async with reopened() as flows:
        run = flows.start(flow, id="one")
        assert flows.start(flow, id="one") is run
        assert await run == {"a": "A"}
        assert flows.start(flow, id="one") is run
    async with reopened() as flows:
        assert await flows.start(flow, id="one") == {"a": "A"}
    assert log == ["a"]


async def test_the_id_of_another_flow_is_refused(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        await flows.start(linear("f", step("a", [])), id="one")
        with pytest.raises(FlowError, match="the id 'one' belongs to flow 'f', not 'g'"):
            await flows.start(linear("g", step("a", [])), id="one")
        held = Held()
        flows.start(linear("h", held.task), id="two")
        with pytest.raises(FlowError, match="the id 'two' belongs to flow 'h', not 'g'"):
            flows.start(linear("g", step("a", [])), id="two")


async def test_a_suspended_flow_starts_no_task_and_resumes_where_it_was(flows: Flows) -> None:
    held, log = Held(), list[str]()
    run = flows.start(linear("f", held.task, step("b", log)))
    await held.begun.wait()
    rest = run.suspend()
    held.go_on.set()
    assert await rest == "SUSPENDED"
    assert (run.steps["held"].state, run.steps["b"].state, log) == ("SUCCESS", "PENDING", [])
    await run.resume()
    assert await run == {"held": "done", "b": "B"}
    assert held.times == 1


async def test_a_flow_is_suspended_at_once_while_tasks_run_on(flows: Flows) -> None:
    held = Held()
    run = flows.start(linear("f", held.task))
    await held.begun.wait()
    run.suspend()
    async for change in run:
        if change.new == "SUSPENDING":
            break
    held.go_on.set()
    assert await run == {"held": "done"}, "the flow had nothing left to do, but did not finish"


async def test_a_flow_that_was_just_started_can_be_suspended(flows: Flows) -> None:
    log: list[str] = []
    run = flows.start(linear("f", step("a", log)))
    assert await run.suspend() == "SUSPENDED"
    assert log == []
    await run.resume()
    await run


async def test_a_cancelled_task_counts_as_not_started(flows: Flows, clock: Clock) -> None:
    held = Held()
    run = flows.start(linear("f", held.task), id="one")
    await held.begun.wait()
    assert await run.suspend(cancel_after=3) == "SUSPENDED"
    assert run.steps["held"].state == "PENDING"
    held.go_on.set()
    await run.resume()
    await run
    changes = [(change.old, change.new, change.reason) async for change in run if change.kind == "task"]
    assert changes[1] == ("RUNNING", "PENDING", "cancelled")
    assert run.steps["held"].attempt == held.times == 2


async def test_a_cancelled_revert_is_done_again(flows: Flows, clock: Clock) -> None:
    begun, undone = asyncio.Event(), []
    good = task(lambda: 5, name="good")

    @good.revert
    async def _undo(result: int) -> None:
        begun.set()
        await asyncio.sleep(100)
        undone.append(result)

    run = flows.start(linear("f", good, step("bad", [], fails=1)))
    await begun.wait()
    await run.suspend(cancel_after=1)
    assert (run.state, run.steps["good"].state, undone) == ("SUSPENDED", "SUCCESS", [])
    await run.resume()
    with pytest.raises(OSError, match="bad is broken"):
        await run
    assert undone == [5]


async def test_a_task_that_swallows_its_cancellation_is_given_up(
    flows: Flows, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    begun, enough = asyncio.Event(), asyncio.Event()

    @task
    async def stubborn() -> None:
        begun.set()
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    run = flows.start(linear("f", stubborn), id="one")
    try:
        await begun.wait()
        assert await run.suspend(cancel_after=0) == "SUSPENDED"
        assert run.steps["stubborn"].state == "PENDING"
        assert "flow one: stubborn was cancelled but did not finish" in caplog.text
    finally:
        enough.set()
    await run.resume()
    await run


async def test_a_task_that_exceeds_its_timeout_fails(flows: Flows, clock: Clock) -> None:
    @task(timeout=5)
    async def slow() -> None:
        await asyncio.sleep(6)

    with pytest.raises(TimeoutError, match="task 'slow' took longer than 5 s"):
        await flows.start(slow)


async def test_a_task_that_swallows_its_timeout_is_given_up(
    flows: Flows, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    enough, gone = asyncio.Event(), asyncio.Event()

    @task(timeout=5)
    async def stubborn() -> None:
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()
        gone.set()

    run = flows.start(linear("f", stubborn), id="one")
    try:
        with pytest.raises(TimeoutError, match="task 'stubborn' took longer than 5 s"):
            await run
        assert run.state == "REVERTED"
        assert "flow one: stubborn did not stop after its timeout; it was abandoned" in caplog.text
    finally:
        enough.set()
    await gone.wait()


async def test_a_reset_flow_runs_when_it_is_started_again(flows: Flows) -> None:
    log: list[str] = []
    flow = linear("f", step("a", log))
    run = flows.start(flow, id="one")
    await run
    await run.reset()
    assert flows.start(flow, id="one") is run
    await run
    assert log == ["a", "a"]


async def test_concurrency_limits_the_tasks_that_run_at_once(clock: Clock) -> None:
    now = most = 0

    async def busy() -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(1)
        now -= 1

    async with Flows(options=Options(concurrency=3)) as flows:
        await flows.start(unordered("f", *[task(busy, name=f"t{n}") for n in range(10)]))
    assert most == 3
    assert asyncio.get_running_loop().time() == pytest.approx(4)


async def test_tasks_beyond_the_concurrency_survive_a_suspension() -> None:
    """In this situation, TaskFlow cancels the tasks, finds nothing left to do, and ends the flow as REVERTED."""
    helds = [Held(f"t{n}") for n in range(4)]
    async with Flows(options=Options(concurrency=1)) as flows:
        run = flows.start(unordered("f", *[held.task for held in helds]))
        await helds[0].begun.wait()
        rest = run.suspend()
        helds[0].go_on.set()
        assert await rest == "SUSPENDED"
        assert [view.state for view in run.steps.values()] == ["SUCCESS", "PENDING", "PENDING", "PENDING"]
        for held in helds:
            held.go_on.set()
        await run.resume()
        await run
    assert [held.times for held in helds] == [1, 1, 1, 1]


async def test_an_interrupted_flow_continues_when_it_is_recovered(reopened: Callable[[], Flows]) -> None:
    held, log = Held(), list[str]()
    flow = linear("f", step("a", log), held.task)
    async with reopened() as flows:
        run = flows.start(flow, id="one")
        await held.begun.wait()
    with pytest.raises(FlowError, match="'one' is SUSPENDED, and its Flows was closed"):
        await run
    held.go_on.set()
    async with reopened() as flows:
        assert await flows.recover(linear("other", step("x", []))) == []
        (run,) = await flows.recover(flow)
        assert run.id == "one"
        assert await run == {"a": "A", "held": "done"}
        assert await flows.recover(flow) == []
    assert log == ["a"]


class Watchful(Presence):
    """A presence for several processes that counts the checks, and finds that all others have exited."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[str] = []

    @property
    def token(self) -> str:
        return self.name

    async def is_gone(self, token: str) -> bool:
        self.checked.append(token)
        return True


class WatchedStore(MemoryStore):
    def presence(self) -> Presence:
        return Watchful()


async def test_recovery_checks_each_owner_once() -> None:
    store, held = WatchedStore(), Held()
    async with Flows(store=store, stop_timeout=0.0) as first:
        for number in range(3):
            await first.start(held.task, id=str(number)).stored()
    held.go_on.set()
    async with Flows(store=store) as second:
        assert await asyncio.gather(*await second.recover(held.task)) == [{"held": "done"}] * 3
        assert isinstance(second.presence, Watchful)
        assert second.presence.checked == [first.presence.token]


async def test_flows_suspend_and_resume_all_runs(flows: Flows) -> None:
    log: list[str] = []
    helds = [Held(), Held()]
    runs = [flows.start(linear("f", held.task, step(f"s{n}", log))) for n, held in enumerate(helds)]
    for held in helds:
        await held.begun.wait()
    for held in helds:
        held.go_on.set()
    await flows.suspend()
    assert [run.state for run in runs] == ["SUSPENDED", "SUSPENDED"]
    assert flows.runs == tuple(runs)
    await flows.resume()
    await asyncio.gather(*runs)
    assert sorted(log) == ["s0", "s1"]
    assert flows.runs == ()


async def test_a_task_reads_its_attempt_and_its_idempotency_key(flows: Flows, clock: Clock) -> None:
    seen: list[Any] = []

    @task
    async def pay() -> None:
        seen.append(current_task())
        if len(seen) == 1:
            await asyncio.sleep(10)
        if len(seen) == 2:
            raise OSError("no connection")

    run = flows.start(linear("f", pay, retry=Times(2)), id="one")
    while not seen:
        await asyncio.sleep(0.1)
    await run.suspend(cancel_after=0)
    await run.resume()
    await run
    assert [(each.attempt, each.key) for each in seen] == [(1, "one/pay/1"), (2, "one/pay/1"), (3, "one/pay/1")]
    with pytest.raises(LookupError, match="called outside a task"):
        current_task()


async def test_again_runs_new_tasks_and_keeps_finished_ones(flows: Flows) -> None:
    log: list[str] = []
    a, b = step("a", log), step("b", log)
    run = flows.start(linear("f", a))
    await run
    await run.again()
    await run
    assert log == ["a"]
    await run.again(linear("f", a, b))
    assert await run == {"a": "A", "b": "B"}
    assert log == ["a", "b"]


async def test_again_restarts_a_reverted_flow(flows: Flows) -> None:
    log: list[str] = []
    run = flows.start(linear("f", step("a", log), step("b", log, fails=1)))
    with pytest.raises(OSError, match="b is broken"):
        await run
    await run.again()
    assert await run == {"a": "A", "b": "B"}


async def test_a_reset_clears_results_and_the_history_of_retries(flows: Flows) -> None:
    log: list[str] = []
    run = flows.start(linear("f", step("a", log, fails=1), retry=Times(2, provides="attempt")))
    assert (await run)["attempt"] == 2
    await run.reset()
    assert (run.state, {view.state for view in run.steps.values()}) == ("PENDING", {"PENDING"})
    log.clear()
    await run.again()
    assert (await run)["attempt"] == 2, "the flow did not get two new attempts"
    assert run.steps["a"].attempt == 4


async def test_an_unfinished_flow_cannot_be_reset(flows: Flows) -> None:
    held = Held()
    run = flows.start(linear("f", held.task))
    await held.begun.wait()
    for asked in (run.reset(), run.again()):
        with pytest.raises(
            InvalidState, match=r"is still running \(state RUNNING\); await run.suspend\(\), or await run"
        ):
            await asked
    await run.suspend(cancel_after=0)
    with pytest.raises(InvalidState, match="is SUSPENDED and cannot be reset"):
        await run.reset()
    assert run.state == "SUSPENDED"


async def test_changes_are_yielded_in_order_from_the_first(flows: Flows) -> None:
    run = flows.start(linear("f", step("a", []), step("b", [], fails=1)), id="one")
    seen = [(each.kind, each.name, each.old, each.new) async for each in run]
    assert seen == [
        ("flow", "f", "PENDING", "RUNNING"),
        ("task", "a", "PENDING", "RUNNING"),
        ("task", "a", "RUNNING", "SUCCESS"),
        ("task", "b", "PENDING", "RUNNING"),
        ("task", "b", "RUNNING", "FAILURE"),
        ("task", "b", "FAILURE", "REVERTING"),
        ("task", "b", "REVERTING", "REVERTED"),
        ("task", "a", "SUCCESS", "REVERTING"),
        ("task", "a", "REVERTING", "REVERTED"),
        ("flow", "f", "RUNNING", "REVERTED"),
    ]
    again = [each async for each in run]
    assert [each.seq for each in again] == list(range(1, 11))
    assert again[2].result == "A"
    assert str(again[4].result) == "OSError: b is broken"


async def test_a_hook_receives_a_change_once_it_is_stored(flows: Flows) -> None:
    seen: list[tuple[Any, str]] = []

    def hear(sender: object, *, change: Change) -> None:
        seen.append((sender, change.new))
        raise RuntimeError("the receiver failed")

    with hooks.flow_changed.connected_to(hear):
        run = flows.start(linear("f", step("a", [])))
        await run
    assert seen == [(run, new) for new in ("RUNNING", "RUNNING", "SUCCESS", "SUCCESS")]


async def test_the_states_of_the_engine_can_be_watched(flows: Flows) -> None:
    run = flows.start(linear("f", step("a", [])))
    assert [str(state) async for state in run.states()] == [
        "RESUMING",
        "SCHEDULING",
        "WAITING",
        "ANALYZING",
        "SUCCESS",
    ]
    assert run.engine_state == "SUCCESS"


async def test_the_failure_of_a_flow_is_logged(flows: Flows, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lifecycle.flows"):
        run = flows.start(linear("f", step("a", [], fails=1)), id="one")
        async for _ in run:
            pass
    assert "flow f 'one' ended in state REVERTED: a is broken" in caplog.text


async def test_a_run_whose_flow_was_taken_stops_and_writes_nothing(flows: Flows) -> None:
    held, log = Held(), list[str]()
    run = flows.start(linear("f", held.task, step("b", log)), id="one")
    await held.begun.wait()
    seen = (await flows.store.load("one")).flow.epoch
    await flows.store.take("one", "somebody else", seen=seen)
    held.go_on.set()
    with pytest.raises(ClaimLost, match="'one' was taken by another process"):
        await run
    assert (await flows.store.load("one")).steps["held"].state == "RUNNING"
    assert (run.state, log) == ("SUSPENDED", [])


async def test_running_tasks_have_time_to_end_when_flows_are_left(reopened: Callable[[], Flows], clock: Clock) -> None:
    ended: list[str] = []

    async def work(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(name)

    quick = task(work, name="quick", inject={"name": "quick", "seconds": 2})
    slow = task(work, name="slow", inject={"name": "slow", "seconds": 9})
    flows = reopened()
    async with Flows(store=flows.store, stop_timeout=3) as flows:
        run = flows.start(unordered("f", quick, slow), id="one")
        await asyncio.sleep(1)
    assert ended == ["quick"]
    assert {name: str(view.state) for name, view in run.steps.items()} == {"quick": "SUCCESS", "slow": "PENDING"}
    assert asyncio.get_running_loop().time() == pytest.approx(4)


async def test_flows_being_left_recover_nothing_for_others(reopened: Callable[[], Flows], clock: Clock) -> None:
    log: list[str] = []
    failing = linear("failing", step("a", log, fails=1))

    async def last(flows: Flows) -> None:
        await asyncio.sleep(1)
        await reset_failed(flows.store, "one")
        flows.requests.ask(RECOVER, flows.presence.token)
        await asyncio.sleep(1)

    async with Flows(store=reopened().store, stop_timeout=10) as flows:
        with pytest.raises(OSError, match="a is broken"):
            await flows.start(failing, id="one")
        flows.start(linear("f", task(lambda: last(flows), name="last")))
        await asyncio.sleep(0.5)
    assert log == ["a", "-a"]
    async with reopened() as flows:
        (run,) = await flows.recover(failing)
        assert await run == {"a": "A"}


async def test_flows_left_without_time_cancel_their_tasks(reopened: Callable[[], Flows]) -> None:
    held, cleaned = Held(), list[str]()

    async def work() -> None:
        try:
            await held.do()
        finally:
            cleaned.append("up")

    async def program() -> None:
        async with Flows(store=reopened().store, stop_timeout=1000) as flows:
            flows.start(linear("f", task(work, name="a")), id="one")
            await held.begun.wait()

    running = asyncio.create_task(program())
    await held.begun.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned == ["up"]
    held.go_on.set()
    async with reopened() as flows:
        (run,) = await flows.recover(linear("f", task(work, name="a")))
        await run
        reasons = [change.reason async for change in run if change.reason]
    assert reasons == ["restarted"]


async def test_tasks_with_a_higher_priority_start_first(flows: Flows) -> None:
    log: list[str] = []
    steps = [task(step(f"p{n}", log), priority=n) for n in (1, 3, 2, 0)]
    await flows.start(unordered("f", *steps))
    assert log == ["p3", "p2", "p1", "p0"]


async def test_resuming_a_suspending_flow_continues_it_afterwards(flows: Flows) -> None:
    held, log = Held(), list[str]()
    run = flows.start(linear("f", held.task, step("b", log)))
    await held.begun.wait()
    run.suspend()
    resumed = [asyncio.create_task(run.resume()) for _ in range(3)]
    held.go_on.set()
    assert await run == {"held": "done", "b": "B"}
    await asyncio.gather(*resumed)
    assert (held.times, log) == (1, ["b"])
    states = [change.new async for change in run if change.kind == "flow"]
    assert states == ["RUNNING", "SUSPENDING", "SUSPENDED", "RUNNING", "SUCCESS"]


async def test_resume_leaves_a_running_flow_alone(flows: Flows) -> None:
    held = Held()
    run = flows.start(linear("f", held.task))
    await held.begun.wait()
    await run.resume()
    held.go_on.set()
    await run
    assert held.times == 1


async def test_a_task_keeps_its_key_over_retries_until_a_revert_has_undone_it(flows: Flows) -> None:
    keys: list[str] = []
    undoable: list[str] = []

    @task
    async def mail() -> None:
        keys.append(current_task().key)

    @task
    async def charge() -> None:
        undoable.append(current_task().key)

    @charge.revert
    async def refund() -> None:
        undoable.append(current_task().key)

    @task
    async def ship() -> None:
        if len(keys) < 3:
            raise TimeoutError("no answer")

    await flows.start(linear("order", mail, charge, ship, retry=Times(3)), id="o7")
    assert keys == ["o7/mail/1"] * 3
    assert undoable == [
        *("o7/charge/1", "o7/charge/1/revert"),
        *("o7/charge/2", "o7/charge/2/revert"),
        "o7/charge/3",
    ]


async def test_a_revert_that_fails_leaves_the_key_and_a_reset_changes_it(flows: Flows) -> None:
    keys: list[str] = []

    @task
    async def charge() -> None:
        keys.append(current_task().key)
        if len(keys) < 3:
            raise TimeoutError("no answer")

    @charge.revert
    async def refund() -> None:
        raise OSError("the bank is closed")

    run = flows.start(linear("order", charge), id="o7")
    with pytest.raises(OSError, match="closed"):
        await run
    await run.reset()
    await run.resume()
    with pytest.raises(OSError, match="closed"):
        await run
    assert keys == ["o7/charge/1", "o7/charge/2"]


async def test_the_wait_before_an_attempt_continues_after_a_restart(
    reopened: Callable[[], Flows], clock: Clock
) -> None:
    tries: list[float] = []

    @task
    async def pay() -> None:
        tries.append(clock.time())
        if len(tries) == 1:
            raise OSError("no connection")

    flow = linear("f", pay, retry=Times(2, backoff=3600))
    async with reopened() as first:
        run = first.start(flow, id="one")
        await clock.advance(3000)
        await registry_of(first).leave(run, FlowError("killed"))
    async with reopened() as second:
        (run,) = await second.recover(flow)
        await run
    assert 3590 < tries[1] - tries[0] < 3610


class Flaky:
    """A task that fails with each of ``errors`` in turn, then succeeds."""

    def __init__(self, clock: Clock, *errors: Exception, retry: Times) -> None:
        self._clock, self._errors = clock, list(errors)
        self.keys: list[str] = []
        self.times: list[float] = []
        self.task = task(self.pay, retry=retry).revert(self.refund)

    async def pay(self) -> str:
        self.keys.append(current_task().key)
        self.times.append(self._clock.time())
        if self._errors:
            raise self._errors.pop(0)
        return "paid"

    async def refund(self) -> None:
        self.keys.append("refund")


def reset_connection() -> OSError:
    return ConnectionResetError("reset")


async def test_a_task_is_attempted_again_without_a_revert(flows: Flows, clock: Clock) -> None:
    flaky = Flaky(clock, reset_connection(), reset_connection(), retry=Times(3, backoff=(1, 10, 60)))
    run = flows.start(linear("f", flaky.task), id="one")
    assert await run == {"pay": "paid"}
    assert flaky.keys == ["one/pay/1"] * 3
    assert [later - flaky.times[0] for later in flaky.times] == [pytest.approx(wait) for wait in (0, 1, 11)]
    assert run.steps["pay"].attempt == 3
    moves = [(change.new, change.reason) async for change in run if change.name == "pay"]
    assert moves == [("RUNNING", ""), ("PENDING", "retry")] * 2 + [("RUNNING", ""), ("SUCCESS", "")]


async def test_a_task_fails_after_its_last_attempt(flows: Flows, clock: Clock) -> None:
    flaky = Flaky(clock, *[reset_connection() for _ in range(9)], retry=Times(2))
    with pytest.raises(ConnectionResetError):
        await flows.start(linear("f", flaky.task), id="one")
    assert flaky.keys == ["one/pay/1", "one/pay/1", "refund"]


async def test_a_flow_that_runs_again_gives_its_task_all_attempts(flows: Flows, clock: Clock) -> None:
    flaky = Flaky(clock, *[reset_connection() for _ in range(3)], retry=Times(2))
    await flows.start(linear("f", flaky.task, retry=Times(2)), id="one")
    assert flaky.keys == ["one/pay/1", "one/pay/1", "refund", "one/pay/2", "one/pay/2"]


@pytest.mark.parametrize("nested", [True, False])
async def test_other_errors_are_not_retried(flows: Flows, clock: Clock, nested: bool) -> None:
    retry = Times(5, on=(ConnectionError, TimeoutError))
    flaky = Flaky(clock, reset_connection(), ValueError("refused"), retry=Times(1) if nested else retry)
    with pytest.raises(ValueError, match="refused"):
        await flows.start(linear("f", flaky.task, retry=retry if nested else None))
    assert len(flaky.times) == 2


async def test_the_attempts_of_a_task_and_the_wait_between_them_survive_a_restart(
    reopened: Callable[[], Flows], clock: Clock
) -> None:
    flaky = Flaky(clock, reset_connection(), reset_connection(), retry=Times(2, backoff=3600))
    flow = linear("f", flaky.task)
    async with reopened() as first:
        run = first.start(flow, id="one")
        await clock.advance(3000)
        await registry_of(first).leave(run, FlowError("killed"))
    async with reopened() as second:
        (run,) = await second.recover(flow)
        with pytest.raises(ConnectionResetError):
            await run
    assert 3590 < flaky.times[1] - flaky.times[0] < 3610


@pytest.mark.keeps_tasks  # the timer of open Flows may look for runs when the test ends
async def test_a_task_that_waits_for_its_next_attempt_can_be_suspended(flows: Flows, clock: Clock) -> None:
    flaky = Flaky(clock, reset_connection(), retry=Times(2, backoff=60))
    run = flows.start(linear("f", flaky.task), id="one")
    await clock.advance(10)
    assert await run.suspend() == "SUSPENDED"
    assert len(flaky.times) == 1
    await clock.advance(20)
    await run.resume()
    assert await run == {"pay": "paid"}
    assert flaky.times[1] - flaky.times[0] == pytest.approx(60, abs=1)


async def test_stored_returns_the_run_once_the_store_has_the_flow(flows: Flows) -> None:
    held = asyncio.Event()

    @task
    async def wait() -> None:
        await held.wait()

    run = await flows.start(linear("f", wait), id="one").stored()
    assert [row.id for row in await flows.store.flows()] == ["one"]
    assert run is await run.stored()
    held.set()
    await run


async def test_stored_raises_the_error_that_prevented_storing(reopened: Callable[[], Flows], clock: Clock) -> None:
    del clock
    async with reopened() as first:
        await first.start(linear("f", task(lambda: 1, name="a")), id="one")
    async with reopened() as second:
        run = second.start(linear("g", task(lambda: 1, name="a")), id="one")
        with pytest.raises(FlowError, match="the id 'one' belongs to flow 'f'"):
            await run.stored()


# -- purging -------------------------------------------------------------------------------------------------------


async def test_a_purged_id_is_free_at_once(flows: Flows) -> None:
    calls: list[int] = []
    flow = linear("f", task(lambda size: calls.append(size), name="a"))  # noqa: PLW0108  # a task needs a parameter name
    run = flows.start(flow, id="one", size=1)
    await run
    assert await flows.purge(0) == 1
    await flows.start(flow, id="one", size=2)
    assert calls == [1, 2]
    assert [info.id for info in await flows.list()] == ["one"]
    assert run.ended


async def test_an_ended_flow_that_is_started_again_is_not_repeated(flows: Flows) -> None:
    calls: list[int] = []
    flow = linear("f", task(lambda: calls.append(1), name="a"))
    run = flows.start(flow, id="one")
    assert await run == await flows.start(flow, id="one")
    assert calls == [1]
