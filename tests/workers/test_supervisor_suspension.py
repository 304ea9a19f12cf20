"""Suspending a tree, children that exit during the suspension, and health checks. In virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import Backoff, Gate, Intensity, ProbeResult, Spec, Status, Supervisor, TaskWorker, handover
from tests.workers.fake_workers import STEADY, Fakes, FakeWorker, statuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.testing import Clock


async def forever() -> None:
    await asyncio.Event().wait()


async def gated(gate: Gate) -> None:
    while True:
        await gate.checkpoint()
        await asyncio.sleep(1)


# -- suspension ------------------------------------------------------------


async def test_children_are_suspended_in_reverse_order_and_resumed_in_order(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b c")) as supervisor:
        fakes.take_log()
        await supervisor.suspend()
        await supervisor.suspend()
        assert (supervisor.status, set(statuses(supervisor).values())) == ("suspended", {"suspended"})
        await supervisor.resume()
        await supervisor.resume()
        assert supervisor.status == "running"
        assert fakes.take_log() == [f"{x} suspended" for x in "cba"] + [f"{x} resumed" for x in "abc"]


async def test_a_child_that_cannot_be_suspended_keeps_running_and_is_shown_so(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a"), Spec("b", forever), Spec("c", gated)) as supervisor:
        await supervisor.suspend()
        assert statuses(supervisor) == {"a": "suspended", "b": "running", "c": "suspended"}
        await supervisor.resume()


async def test_a_failed_suspension_resumes_the_suspended_children(clock: Clock, fakes: Fakes) -> None:
    fakes.unsuspendable["a"] = OSError("busy")
    async with Supervisor("s", *fakes.specs("a b c")) as supervisor:
        fakes.take_log()
        with pytest.raises(WorkerFailed, match="'a' could not suspend: busy"):
            await supervisor.suspend()
        assert (supervisor.status, set(statuses(supervisor).values())) == ("running", {"running"})
        assert fakes.take_log() == ["c suspended", "b suspended", "b resumed", "c resumed"]


async def test_a_failed_resume_leaves_all_children_suspended_and_may_be_repeated(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b c", backoff=STEADY)) as supervisor:
        await supervisor.suspend()
        fakes.crash("a")
        fakes.unresumable["c"] = OSError("still busy")
        fakes.take_log()
        with pytest.raises(WorkerFailed, match="'c' could not resume: still busy"):
            await supervisor.resume()
        assert (supervisor.status, statuses(supervisor)) == (
            "suspended",
            {"a": "failed", "b": "suspended", "c": "suspended"},
        )
        assert fakes.take_log() == ["b resumed", "b suspended"]
        del fakes.unresumable["c"]
        await supervisor.resume()
        await clock.advance(1)
        assert set(statuses(supervisor).values()) == {"running"}


async def test_a_child_that_dies_while_suspended_is_not_restarted_until_the_resume(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b", backoff=STEADY)) as supervisor:
        await supervisor.suspend()
        fakes.crash("a")
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "failed", "b": "suspended"}
        await supervisor.resume()
        await clock.advance(0.2)
        assert statuses(supervisor) == {"a": "running", "b": "running"}


async def test_significant_child_that_waits_for_the_resume_has_not_ended(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b", restart="on_failure", significant=True)
    async with Supervisor("s", *specs, auto_shutdown="all_significant") as supervisor:
        await supervisor.suspend()
        fakes.crash("a")
        fakes["b"].end()
        await clock.advance(1)
        assert supervisor.status is Status.SUSPENDED
        await supervisor.resume()
        await clock.advance(1)
        assert (supervisor.status, statuses(supervisor)) == (Status.RUNNING, {"a": "running", "b": "finished"})


async def test_child_given_up_at_the_resume_does_not_end_a_supervisor_with_others_to_start(
    clock: Clock, fakes: Fakes
) -> None:
    circuit = Backoff(initial=0, jitter=0, max_restarts=1, within=60)
    specs = fakes.specs("a b", restart="on_failure", significant=True, backoff=circuit)
    async with Supervisor("s", *specs, auto_shutdown="all_significant") as supervisor:
        fakes.crash("a")
        await clock.settle()
        await supervisor.suspend()
        fakes.crash("a")
        fakes.crash("b")
        await clock.advance(1)
        await supervisor.resume()
        await clock.advance(1)
        assert (supervisor.status, statuses(supervisor)) == (Status.RUNNING, {"a": "failed", "b": "running"})


async def test_child_stopped_by_a_caller_while_it_waits_for_the_resume_has_ended(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b", restart="on_failure", significant=True)
    supervisor = Supervisor("s", *specs, auto_shutdown="all_significant")
    await supervisor.start()
    await supervisor.suspend()
    fakes.crash("a")
    await clock.settle()
    await supervisor.stop_child("a")
    fakes["b"].end()
    assert (await supervisor.wait()).status is Status.FINISHED


async def test_time_suspended_after_a_crash_does_not_reset_the_backoff(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a", backoff=STEADY)) as supervisor:
        for wait in (0.1, 0.2):
            fakes.crash("a")
            await clock.advance(wait)
        assert statuses(supervisor) == {"a": "running"}
        await supervisor.suspend()
        fakes.crash("a")
        await clock.advance(100)
        await supervisor.resume()
        await clock.advance(0.39)
        assert statuses(supervisor) == {"a": "pending"}
        await clock.advance(0.02)
        assert statuses(supervisor) == {"a": "running"}


async def test_due_added_and_restarted_children_start_after_the_resume(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b", backoff=STEADY)) as supervisor:
        fakes.crash("a")
        await clock.settle()
        await supervisor.suspend()
        await supervisor.add(fakes.spec("c"))
        await supervisor.restart("b")
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "pending", "b": "pending", "c": "pending"}
        await supervisor.resume()
        await clock.advance(0)
        assert set(statuses(supervisor).values()) == {"running"}


async def test_a_child_being_started_starts_after_the_resume(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"b"}
        add = asyncio.create_task(supervisor.add(fakes.spec("b")))
        await clock.advance(1)
        await supervisor.suspend()
        await add
        assert statuses(supervisor) == {"a": "suspended", "b": "pending"}
        fakes.hangs = set()
        await supervisor.resume()
        await clock.settle()
        assert statuses(supervisor) == {"a": "running", "b": "running"}


async def test_a_group_whose_start_is_due_waits_for_the_resume(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b", backoff=STEADY), strategy="one_for_all") as supervisor:
        fakes.crash("a")
        await clock.settle()
        await supervisor.suspend()
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "pending", "b": "pending"}
        await supervisor.resume()
        await clock.settle()
        assert statuses(supervisor) == {"a": "running", "b": "running"}


async def test_a_child_removed_or_stopped_while_suspended_is_not_started_by_the_resume(
    clock: Clock, fakes: Fakes
) -> None:
    async with Supervisor("s", *fakes.specs("a b c")) as supervisor:
        await supervisor.suspend()
        fakes.crash("a")
        fakes.crash("b")
        await clock.settle()
        await supervisor.stop_child("a")
        await supervisor.remove("b")
        await supervisor.resume()
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "failed", "c": "running"}


async def test_a_budget_spent_by_the_resume_starts_no_more_children(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 60))
    await supervisor.start()
    await supervisor.suspend()
    fakes.crash("a")
    await supervisor.restart("b")
    await supervisor.resume()
    assert (await supervisor.wait()).status is Status.FAILED
    assert (len(fakes.made["b"]), statuses(supervisor)) == (1, {"a": "failed", "b": "stopped"})


async def busy(gate: Gate) -> None:
    await gate.checkpoint()
    await asyncio.Event().wait()


async def test_a_stop_ends_a_suspension_that_waits_for_a_loop(clock: Clock) -> None:
    supervisor = Supervisor("s", Spec("busy", busy))
    await supervisor.start()
    await clock.advance(1)
    suspension = asyncio.create_task(supervisor.suspend())
    await clock.advance(1)
    await supervisor.stop()
    with pytest.raises(InvalidTransition):
        await suspension
    assert (supervisor.status, clock.time()) == ("stopped", 2)


async def test_a_cancelled_suspend_is_undone(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", Spec("busy", busy), fakes.spec("b")) as supervisor:
        await clock.advance(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await supervisor.suspend()
        await clock.settle()
        assert (supervisor.status, statuses(supervisor)) == ("running", {"busy": "running", "b": "running"})
        await supervisor.restart("b")


async def test_a_tree_is_suspended_as_a_whole_and_stopped_in_that_state(clock: Clock, fakes: Fakes) -> None:
    root = Supervisor("root", Spec("inner", lambda: Supervisor("inner", *fakes.specs("a b"))), fakes.spec("c"))
    async with root:
        fakes.take_log()
        await root.suspend()
        assert fakes.take_log() == ["c suspended", "b suspended", "a suspended"]
        assert statuses(root) == {"inner": "suspended", "c": "suspended"}
    assert root.status == "stopped"


async def test_only_a_running_supervisor_can_be_suspended(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", fakes.spec("a"))
    with pytest.raises(InvalidTransition, match="'s' cannot go from created to suspended"):
        await supervisor.suspend()
    await supervisor.stop()


@pytest.mark.parametrize("how", ["task", "supervisor"])
async def test_a_resume_does_not_interrupt_a_start(how: str, clock: Clock) -> None:
    worker = TaskWorker("w", forever) if how == "task" else Supervisor("w", Spec("a", forever))
    start = asyncio.create_task(worker.start())
    while worker.status == "created":
        await asyncio.sleep(0)
    with pytest.raises(InvalidTransition, match="'w' is starting; only a suspended worker can be resumed"):
        await worker.resume()
    await start
    assert worker.status == "running"
    await worker.stop()


# -- health ------------------------------------------------------------


class Patient(TaskWorker):
    """A worker with a probe that the test controls."""

    def __init__(self, name: str, answer: Callable[[], object]) -> None:
        super().__init__(name, self._read_handover)
        self._answer = answer
        self.previous_exit = 0

    async def _read_handover(self) -> None:
        self.previous_exit = handover().prev_exit
        await forever()

    async def probe(self) -> ProbeResult:
        answer = self._answer()
        if answer is None:
            await asyncio.Event().wait()
        return answer  # type: ignore[return-value]  # a probe may return anything


async def test_its_health_is_probed_and_shown(clock: Clock) -> None:
    answers = [ProbeResult(healthy=True), ProbeResult(healthy=False, message="no disk")]
    spec = Spec("a", lambda: Patient("a", lambda: answers[0]), probe_interval=10)
    async with Supervisor("s", spec) as supervisor:
        assert supervisor.workers()[0].health is None
        watch = supervisor.watch()
        await clock.advance(12)
        assert supervisor.workers()[0].health == ProbeResult(healthy=True)
        answers.pop(0)
        await clock.advance(100)
        assert supervisor.workers()[0].health == ProbeResult(healthy=False, message="no disk")
        assert statuses(supervisor) == {"a": "running"}
        event = await anext(watch)
        assert (event.topic, event.old, event.new, event.state.health.healthy) == (
            "status/a",
            "running",
            "running",
            False,
        )


def broken() -> object:
    raise OSError("no answer today")


def cancelled() -> object:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("answer", "error_text"),
    [
        (lambda: ProbeResult(healthy=False, message="no disk"), "no disk"),
        (lambda: None, "no response within 2 s"),
        (broken, "OSError: no answer today"),
        (cancelled, "cancelled"),
        (lambda: "fine", "its probe must return a ProbeResult, got 'fine'"),
    ],
)
async def test_a_child_that_stays_unhealthy_is_restarted(
    clock: Clock, answer: Callable[[], object], error_text: str, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Patient] = []

    def make() -> Patient:
        made.append(Patient("a", (lambda: ProbeResult(healthy=True)) if made else answer))
        return made[-1]

    spec = Spec("a", make, probe_interval=10, probe_timeout=2, failures=3, restart_unhealthy=True, restart="on_failure")
    async with Supervisor("s", spec) as supervisor:
        await clock.advance(26)
        assert len(made) == 1
        await clock.advance(20)
        assert (len(made), supervisor.workers()[0].restarts, statuses(supervisor)) == (2, 1, {"a": "running"})
        assert made[0].status is Status.STOPPED
        assert made[1].previous_exit == -1
        assert f"'a' was unhealthy 3 times in a row: {error_text}" in caplog.text
        await clock.advance(100)
        assert len(made) == 2


class Leaving(FakeWorker):
    """A process that is never healthy."""

    async def _terminate(self, *, force: bool) -> None:
        self.end(exit_code=-9 if force else -15)

    async def probe(self) -> ProbeResult:
        return ProbeResult(healthy=False)


async def test_the_successor_of_an_unhealthy_child_gets_its_real_exit_code(clock: Clock, fakes: Fakes) -> None:
    made: list[Leaving] = []

    def make() -> Leaving:
        made.append(Leaving(fakes, "a", len(made) + 1))
        return made[-1]

    async with Supervisor("s", Spec("a", make, probe_interval=1, failures=1, restart_unhealthy=True)):
        await clock.advance(1.5)
        assert [each.env["LIFECYCLE_PREV_EXIT"] for each in made] == ["0", "-15"]


async def test_restarts_of_unhealthy_children_count_in_the_budget_and_are_among_the_last_errors(clock: Clock) -> None:
    ill = ProbeResult(healthy=False, message="no disk")
    spec = Spec("a", lambda: Patient("a", lambda: ill), probe_interval=1, failures=1, restart_unhealthy=True)
    supervisor = Supervisor("s", spec, intensity=Intensity(0, 60))
    await supervisor.start()
    ended = await supervisor.wait()
    assert "'s' gave up" in str(ended.error)
    assert "'a' was unhealthy 1 times in a row: no disk" in str(ended.error)


async def test_children_that_started_together_are_not_probed_together(clock: Clock) -> None:
    asked: list[float] = []

    def note() -> ProbeResult:
        asked.append(clock.time())
        return ProbeResult(healthy=True)

    specs = [Spec(f"a{number}", lambda: Patient("a", note), probe_interval=10) for number in range(20)]
    async with Supervisor("s", *specs):
        await clock.advance(11.5)
    assert len(asked) == len(set(asked)) == 20
    assert all(9 <= moment <= 11 for moment in asked)


async def test_failed_probes_that_are_not_consecutive_do_not_cause_a_restart(clock: Clock) -> None:
    count = 0

    def sometimes() -> ProbeResult:
        nonlocal count
        count += 1
        return ProbeResult(healthy=count % 3 == 0)

    spec = Spec("a", lambda: Patient("a", sometimes), probe_interval=1, restart_unhealthy=True)
    async with Supervisor("s", spec) as supervisor:
        await clock.advance(100)
        assert supervisor.workers()[0].restarts == 0


async def test_probing_all_children_returns_the_worst_result(clock: Clock, fakes: Fakes) -> None:
    ill = ProbeResult(healthy=False, message="no disk")
    root = Supervisor(
        "root", fakes.spec("a"), Spec("inner", lambda: Supervisor("i", Spec("b", lambda: Patient("b", lambda: ill))))
    )
    async with root:
        assert await root.probe("a") == ProbeResult(healthy=True)
        assert await root.probe("inner") == ProbeResult(healthy=False, message="b: no disk")
        assert await root.probe() == ProbeResult(healthy=False, message="inner: b: no disk")
        await root.stop_child("a")
        assert await root.probe("a") == ProbeResult(healthy=False, message="is stopped")


async def test_finished_or_stopped_children_do_not_make_their_supervisor_unhealthy(clock: Clock, fakes: Fakes) -> None:
    never: Any = {"restart": "never"}
    specs = [fakes.spec("a"), fakes.spec("job", **never), fakes.spec("bad", **never)]
    async with Supervisor("s", *specs) as supervisor:
        fakes["job"].end()
        await clock.settle()
        assert await supervisor.probe() == ProbeResult(healthy=True)
        await supervisor.stop_child("a")
        assert await supervisor.probe() == ProbeResult(healthy=True)
        fakes["bad"].end(OSError("no disk"))
        await clock.settle()
        assert await supervisor.probe() == ProbeResult(healthy=False, message="bad: is failed")


async def test_an_inner_supervisor_with_a_finished_job_is_not_restarted_as_unhealthy(
    clock: Clock, fakes: Fakes
) -> None:
    def inner() -> Supervisor:
        return Supervisor("inner", fakes.spec("job", restart="never"), fakes.spec("a"))

    async with Supervisor("s", Spec("inner", inner, probe_interval=1, restart_unhealthy=True)) as supervisor:
        fakes["job"].end()
        await clock.advance(100)
        (state,) = supervisor.workers()
        assert (state.restarts, state.health) == (0, ProbeResult(healthy=True))


async def test_a_suspended_child_is_not_probed(clock: Clock) -> None:
    async def loop(gate: Gate) -> None:
        await gated(gate)

    asked = 0

    class Asked(TaskWorker):
        async def probe(self) -> ProbeResult:
            nonlocal asked
            asked += 1
            return ProbeResult(healthy=True)

    async with Supervisor("s", Spec("a", lambda: Asked("a", loop), probe_interval=1)) as supervisor:
        await supervisor.suspend()
        before = asked
        await clock.advance(100)
        assert asked == before
        await supervisor.resume()
        await clock.advance(10)
        assert asked > before + 5


async def test_a_queued_start_does_not_wait_for_the_resume(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b", backoff=STEADY)
    async with Supervisor("s", *specs, strategy="one_for_all") as supervisor:
        fakes.crash("a")
        await clock.settle()
        add = asyncio.create_task(supervisor.add(fakes.spec("c")))
        await clock.settle()
        await supervisor.suspend()
        await add
        await supervisor.resume()
        await clock.advance(1)
        assert set(statuses(supervisor).values()) == {"running"}
