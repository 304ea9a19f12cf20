"""Adding, stopping and restarting children in any state and order, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Router, StatusEvent, hooks
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.testing.virtual import VirtualLoop
from lifecycle.workers import Backoff, BaseWorker, Intensity, ProbeResult, Spec, Status, Supervisor
from tests.workers.fake_workers import STEADY, Fakes, FakeWorker, statuses

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lifecycle.testing import Clock


# -- add ------------------------------------------------------------


async def test_an_added_child_starts_immediately_and_is_last_in_order(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        await supervisor.add(fakes.spec("z"))
        await supervisor.add(fakes.spec("b"))
        assert list(statuses(supervisor)) == ["a", "z", "b"]
        assert "z" in supervisor
        assert supervisor["z"] is fakes["z"]
    assert fakes.take_log()[-3:] == ["b down", "z down", "a down"]


async def test_a_child_added_before_the_start_waits_for_it(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s")
    await supervisor.add(fakes.spec("a"))
    assert fakes.take_log() == []
    async with supervisor:
        assert fakes.take_log() == ["a up"]


async def test_a_child_added_during_the_start_comes_last(clock: Clock, fakes: Fakes) -> None:
    fakes.hangs = {"b"}
    supervisor = Supervisor("s", *fakes.specs("a b"))
    start = asyncio.create_task(supervisor.start())
    await clock.settle()
    add = asyncio.create_task(supervisor.add(fakes.spec("c")))
    await clock.advance(1)
    assert statuses(supervisor) == {"a": "running", "b": "starting", "c": "created"}
    await supervisor.stop()
    with pytest.raises(WorkerFailed, match="'c' was stopped before it finished starting"):
        await add
    await asyncio.wait({start})
    assert start.exception()


async def test_a_child_added_during_a_group_backoff_waits_with_the_group(clock: Clock, fakes: Fakes) -> None:
    specs = fakes.specs("a b", backoff=Backoff(initial=2, jitter=0))
    async with Supervisor("s", *specs, strategy="one_for_all") as supervisor:
        fakes.crash("a")
        await clock.advance(1)
        adding = asyncio.create_task(supervisor.add(fakes.spec("c")))
        await clock.settle()
        assert statuses(supervisor) == {"a": "pending", "b": "pending", "c": "pending"}
        fakes.take_log()
        await clock.advance(1)
        await adding
        assert fakes.take_log() == ["a up", "b up", "c up"]


async def test_an_added_spec_that_cannot_start_is_not_a_child(clock: Clock, fakes: Fakes) -> None:
    fakes.fails["z", 1] = OSError("no")
    async with Supervisor("s", fakes.spec("a"), intensity=Intensity(0, 1)) as supervisor:
        with pytest.raises(WorkerFailed, match="'z' cannot start: no"):
            await supervisor.add(fakes.spec("z"))
        assert statuses(supervisor) == {"a": "running"}
        await supervisor.add(fakes.spec("z"))
        assert statuses(supervisor) == {"a": "running", "z": "running"}


async def test_an_add_whose_caller_is_cancelled_continues(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s") as supervisor:
        add = asyncio.create_task(supervisor.add(fakes.spec("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        add.cancel()
        await clock.settle()
        assert statuses(supervisor) in ({"a": "running"}, {})


@pytest.mark.parametrize("started", [False, True])
async def test_a_name_can_be_used_only_once(clock: Clock, fakes: Fakes, started: bool) -> None:
    supervisor = Supervisor("s", fakes.spec("a"))
    if started:
        await supervisor.start()
    with pytest.raises(ValueError, match="'s' already has a child 'a', which is"):
        await supervisor.add(fakes.spec("a"))
    await supervisor.stop()


@pytest.mark.parametrize("end", ["finish", "crash", "stop"])
async def test_the_name_of_a_child_that_has_ended_can_be_used_again(clock: Clock, fakes: Fakes, end: str) -> None:
    async with Supervisor("s", fakes.spec("a", restart="never"), fakes.spec("b")) as supervisor:
        if end == "stop":
            await supervisor.stop_child("a")
        else:
            fakes["a"].end(OSError("broken") if end == "crash" else None)
            await clock.settle()
        await supervisor.add(fakes.spec("a", restart="always"))
        assert [(child.name, child.status, child.restarts) for child in supervisor.workers()] == [
            ("b", "running", 0),
            ("a", "running", 0),
        ]
        fakes["a"].end()
        await clock.settle()
        assert statuses(supervisor) == {"b": "running", "a": "running"}


async def test_the_name_of_a_child_that_is_restarted_after_the_resume_is_taken(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        await supervisor.suspend()
        fakes.crash("a")
        await clock.settle()
        with pytest.raises(ValueError, match="'s' already has a child 'a'"):
            await supervisor.add(fakes.spec("a"))


async def test_a_stopping_or_ended_supervisor_accepts_no_children(clock: Clock, fakes: Fakes) -> None:
    fakes.stop_times = {"a": 5}
    supervisor = Supervisor("s", fakes.spec("a"))
    await supervisor.start()
    stop = asyncio.create_task(supervisor.stop())
    await clock.advance(1)
    for request in (supervisor.add(fakes.spec("b")), supervisor.restart("a"), supervisor.stop_child("a")):
        with pytest.raises(InvalidTransition, match="'s' is stopping"):
            await request
    await stop
    with pytest.raises(InvalidTransition, match="'s' is stopped"):
        await supervisor.add(fakes.spec("b"))


async def test_pending_operations_fail_when_the_supervisor_ends(clock: Clock, fakes: Fakes) -> None:
    fakes.stop_times = {"b": 5}
    supervisor = Supervisor("s", *fakes.specs("a b"), intensity=Intensity(0, 60))
    await supervisor.start()
    fakes.crash("a")
    await clock.advance(1)
    assert supervisor.status is Status.RUNNING
    with pytest.raises(InvalidTransition, match="'s' has ended; nothing was done"):
        await supervisor.add(fakes.spec("c"))
    assert (await supervisor.wait()).status is Status.FAILED


# -- remove, stop_child, restart ------------------------------------------------------------


@pytest.mark.parametrize("where", ["running", "pending", "starting", "failed", "created"])
async def test_a_child_can_be_removed_in_any_state(clock: Clock, fakes: Fakes, where: str) -> None:
    restart = "never" if where == "failed" else "always"
    supervisor = Supervisor("s", fakes.spec("a", backoff=Backoff(initial=5), restart=restart), fakes.spec("b"))
    if where != "created":
        await supervisor.start()
    if where == "starting":
        fakes.hangs = {"a"}
    if where in ("pending", "starting", "failed"):
        fakes.crash("a")
        await clock.advance(6 if where == "starting" else 1)
    assert statuses(supervisor)["a"] == where
    await supervisor.remove("a")
    assert list(statuses(supervisor)) == ["b"]
    made = len(fakes.made.get("a", []))
    await clock.advance(100)
    assert len(fakes.made.get("a", [])) == made
    await supervisor.stop()
    if where == "created":
        assert fakes.log == []


async def test_a_factory_that_ignores_cancellation_leaves_no_worker_after_the_removal(
    clock: Clock, fakes: Fakes
) -> None:
    late: list[FakeWorker] = []

    async def make() -> FakeWorker:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        late.append(FakeWorker(fakes, "a", 1))
        return late[-1]

    async with Supervisor("s") as supervisor:
        add = asyncio.create_task(supervisor.add(Spec("a", lambda: make())))  # noqa: PLW0108  # an async function would be a task
        await clock.settle()
        await supervisor.remove("a")
        with pytest.raises(WorkerFailed, match="'a' was stopped before it finished starting"):
            await add
        assert [worker.status for worker in late] == ["created"]
        assert supervisor.workers() == ()


async def test_a_child_stopped_by_a_caller_stays_stopped_until_restarted(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        await supervisor.stop_child("a")
        await supervisor.stop_child("a")
        await clock.advance(100)
        assert statuses(supervisor) == {"a": "stopped"}
        await supervisor.restart("a")
        assert (statuses(supervisor), fakes.take_log()) == ({"a": "running"}, ["a up", "a down", "a up"])


@pytest.mark.parametrize("method", ["remove", "stop_child", "restart"])
async def test_the_stop_of_the_supervisor_does_not_wait_for_the_stop_of_one_child(
    clock: Clock, fakes: Fakes, method: str
) -> None:
    fakes.stop_times = {"a": 5}
    supervisor = Supervisor("s", *fakes.specs("a b"), stop_order="parallel")
    await supervisor.start()
    request = asyncio.create_task(getattr(supervisor, method)("a"))
    await clock.advance(1)
    stop = asyncio.create_task(supervisor.stop())
    await clock.advance(1)
    assert statuses(supervisor) == {"a": "stopping", "b": "stopped"}
    with pytest.raises(InvalidTransition, match="'s' abandoned the change, because it must stop"):
        await request
    await clock.advance(4)
    await stop
    assert statuses(supervisor) == {"a": "stopped", "b": "stopped"}


async def test_restart_stops_a_running_child_and_returns_when_it_runs_again(clock: Clock, fakes: Fakes) -> None:
    fakes.stop_times = {"a": 3}
    async with Supervisor("s", *fakes.specs("a b"), strategy="one_for_all") as supervisor:
        fakes.take_log()
        await supervisor.restart("a")
        assert (fakes.take_log(), clock.time(), statuses(supervisor)["a"]) == (["a down", "a up"], 3, "running")


async def test_a_restart_overtakes_a_start_that_hangs(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"a"}
        first = asyncio.create_task(supervisor.restart("a"))
        await clock.advance(1)
        fakes.hangs = set()
        await supervisor.restart("a")
        with pytest.raises(WorkerFailed, match="'a' was stopped before it finished starting"):
            await first
        assert statuses(supervisor) == {"a": "running"}


async def test_a_failed_restart_raises_and_is_not_repeated(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a", backoff=STEADY)) as supervisor:
        fakes.fails["a", 2] = OSError("syntax")
        with pytest.raises(WorkerFailed, match="'a' cannot start: syntax"):
            await supervisor.restart("a")
        await clock.advance(100)
        assert (statuses(supervisor), len(fakes.made["a"])) == ({"a": "failed"}, 2)
        await supervisor.restart("a")
        assert statuses(supervisor) == {"a": "running"}


@pytest.mark.parametrize(("restart", "outcome"), [("always", "running"), ("never", "failed")])
async def test_the_policy_handles_a_restart_whose_caller_is_cancelled(
    clock: Clock, fakes: Fakes, restart: str, outcome: str
) -> None:
    fakes.stop_times["a"] = 1
    fakes.fails["a", 2] = ValueError("no luck")
    async with Supervisor("s", fakes.spec("a", restart=restart)) as supervisor:
        asking = asyncio.create_task(supervisor.restart("a"))
        await clock.advance(0.5)
        asking.cancel()
        await clock.advance(1)
        assert asking.cancelled()
        assert statuses(supervisor) == {"a": outcome}


async def test_the_policy_handles_a_restart_cancelled_during_the_new_start(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"a"}
        asking = asyncio.create_task(supervisor.restart("a"))
        await clock.advance(1)
        assert statuses(supervisor) == {"a": "starting"}
        asking.cancel()
        await clock.settle()
        fakes.hangs = set()
        await fakes["a"].stop()
        await clock.settle()
        assert asking.cancelled()
        assert statuses(supervisor) == {"a": "running"}


async def test_stop_child_ends_the_retries_of_a_start_that_fails(clock: Clock, fakes: Fakes) -> None:
    fakes.fails = {("a", number): OSError() for number in range(2, 100)}
    async with Supervisor("s", fakes.spec("a", backoff=Backoff(initial=1, multiplier=1, jitter=0))) as supervisor:
        fakes.crash("a")
        await clock.advance(5.5)
        await supervisor.stop_child("a")
        made = len(fakes.made["a"])
        await clock.advance(100)
        assert (len(fakes.made["a"]), statuses(supervisor)) == (made, {"a": "stopped"})


async def test_a_child_stopped_before_the_start_is_not_started_until_it_is_restarted(
    clock: Clock, fakes: Fakes
) -> None:
    supervisor = Supervisor("s", *fakes.specs("a b"))
    await supervisor.stop_child("a")
    async with supervisor:
        assert statuses(supervisor) == {"a": "stopped", "b": "running"}
        await supervisor.restart("a")
        assert statuses(supervisor) == {"a": "running", "b": "running"}


async def test_a_supervisor_whose_children_were_all_stopped_before_it_starts(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", fakes.spec("a"))
    await supervisor.stop_child("a")
    async with supervisor:
        assert (supervisor.status, statuses(supervisor)) == ("running", {"a": "stopped"})


async def test_an_add_that_stop_child_interrupts_fails_and_leaves_no_child(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"b"}
        adding = asyncio.create_task(supervisor.add(fakes.spec("b")))
        await clock.advance(1)
        await supervisor.stop_child("b")
        with pytest.raises(WorkerFailed, match="'b' was stopped before it finished starting"):
            await adding
        assert statuses(supervisor) == {"a": "running"}
        fakes.hangs = set()
        await supervisor.add(fakes.spec("b"))


@pytest.mark.parametrize("starts", [True, False])
async def test_an_add_that_a_restart_overtakes_has_the_outcome_of_the_restart(
    clock: Clock, fakes: Fakes, starts: bool
) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"b"}
        adding = asyncio.create_task(supervisor.add(fakes.spec("b")))
        await clock.advance(1)
        fakes.hangs = set()
        if not starts:
            fakes.fails["b", 2] = OSError("no disk")
        outcomes = await asyncio.gather(supervisor.restart("b"), adding, return_exceptions=True)
        assert ["no disk" in str(each) for each in outcomes] == [not starts] * 2
        assert ("b" in supervisor) is starts


async def test_a_child_whose_restart_fails_stays_even_if_its_add_was_given_up(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        fakes.hangs = {"b"}
        adding = asyncio.create_task(supervisor.add(fakes.spec("b", restart="never")))
        await clock.advance(1)
        adding.cancel()
        await clock.settle()
        fakes.hangs = set()
        fakes.fails["b", 2] = OSError("no disk")
        with pytest.raises(WorkerFailed, match="no disk"):
            await supervisor.restart("b")
        assert statuses(supervisor) == {"a": "running", "b": "failed"}


async def test_a_child_may_stop_itself(clock: Clock) -> None:
    async def suicidal() -> None:
        await supervisor.remove("a")

    supervisor = Supervisor("s", Spec("a", suicidal))
    async with supervisor:
        await clock.settle()
        assert statuses(supervisor) == {}


async def test_a_child_may_stop_its_supervisor(clock: Clock) -> None:
    async def rebel() -> None:
        await asyncio.sleep(1)
        await supervisor.stop()

    supervisor = Supervisor("s", Spec("a", rebel))
    await supervisor.start()
    assert (await supervisor.wait()).status is Status.STOPPED


@pytest.mark.parametrize("method", ["remove", "restart", "stop_child", "probe"])
async def test_an_unknown_name_is_reported_with_the_known_ones(clock: Clock, fakes: Fakes, method: str) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        with pytest.raises(KeyError, match="'s' has no child 'zz'; it has 'a'"):
            await getattr(supervisor, method)("zz")
        with pytest.raises(KeyError):
            supervisor["zz"]


async def test_before_the_start_there_is_nothing_to_restart_and_no_worker(fakes: Fakes) -> None:
    supervisor = Supervisor("s", fakes.spec("a"))
    with pytest.raises(InvalidTransition, match="start it before"):
        await supervisor.restart("a")
    with pytest.raises(KeyError, match="'a' has no worker yet"):
        supervisor["a"]
    await supervisor.stop()


async def test_a_thousand_children_come_and_go_while_others_crash(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", *fakes.specs("a b", backoff=STEADY)) as supervisor:

        async def visit(number: int) -> None:
            await supervisor.add(fakes.spec(f"guest{number}"))
            fakes.crash(f"guest{number}")
            await supervisor.remove(f"guest{number}")

        visits = [asyncio.create_task(visit(number)) for number in range(1000)]
        for _ in range(20):
            fakes.crash("a")
            await clock.advance(0.5)
        await asyncio.gather(*visits)
        await clock.advance(60)
        assert statuses(supervisor) == {"a": "running", "b": "running"}


# -- watching ------------------------------------------------------------


async def test_watch_yields_each_change_until_the_end(clock: Clock, fakes: Fakes) -> None:
    supervisor = Supervisor("s", fakes.spec("a", backoff=STEADY))
    watch, announced, scheduled = supervisor.watch(), list[str](), list[str]()
    by_machines = hooks.state_changed.connected_to(lambda _, transition, **__: announced.append(transition.new))
    by_schedule = hooks.restart_scheduled.connected_to(lambda _, child, **__: scheduled.append(child))
    with by_machines, by_schedule:
        async with supervisor:
            fakes.crash("a")
            await clock.advance(1)
    # There is no worker while the child waits for its restart.
    assert ("failed" in announced, "pending" in announced, scheduled) == (True, False, ["a"])
    changes = [(event.topic, str(event.old), str(event.new), event.state.status) async for event in watch]
    assert changes == [
        ("status/s", "created", "starting", "starting"),
        ("status/a", "created", "starting", "starting"),
        ("status/a", "starting", "running", "running"),
        ("status/s", "starting", "running", "running"),
        ("status/a", "running", "failed", "failed"),
        ("status/a", "failed", "pending", "pending"),
        ("status/a", "pending", "starting", "starting"),
        ("status/a", "starting", "running", "running"),
        ("status/s", "running", "stopping", "stopping"),
        ("status/a", "running", "stopping", "stopping"),
        ("status/a", "stopping", "stopped", "stopped"),
        ("status/s", "stopping", "stopped", "stopped"),
    ]
    assert [event async for event in supervisor.watch()] == []


@pytest.mark.parametrize("name", ["n", "n" * 40])
async def test_status_events_of_a_very_deep_tree_reach_their_handler(clock: Clock, fakes: Fakes, name: str) -> None:
    def nested(depth: int) -> Supervisor:
        below = Spec(name, lambda: nested(depth - 1)) if depth else fakes.spec("leaf")
        return Supervisor(name, below)

    supervisor, router, announced = nested(70), Router(), list[StatusEvent]()
    router.handle("status/**/leaf", announced.append)
    router.handle("status/**", lambda _: None)
    router.add_source(supervisor.watch())
    running = asyncio.create_task(router.run())
    await clock.settle()
    async with supervisor:
        await clock.settle()
    await clock.settle()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [event.new for event in announced] == ["starting", "running", "stopping", "stopped"]
    assert {event.path for event in announced} == {f"{name}/" * 70 + "leaf"}


async def test_watch_yields_a_child_that_is_given_up(clock: Clock, fakes: Fakes) -> None:
    """Regression: the child's status event arrived before the supervisor had finished the request."""
    async with Supervisor("s", fakes.spec("a", backoff=Backoff(initial=0, max_restarts=1))) as supervisor:
        fakes.crash("a")
        await clock.settle()
        watch = supervisor.watch()
        fakes.crash("a")
        await clock.settle()
    changes = [(str(event.old), str(event.new), event.state.circuit) async for event in watch if event.component == "a"]
    assert changes == [("running", "failed", "closed"), ("failed", "failed", "open")]


async def test_a_parent_supervisor_gets_the_changes_below(clock: Clock, fakes: Fakes) -> None:
    root = Supervisor("root", Spec("inner", lambda: Supervisor("inner", fakes.spec("a", backoff=STEADY))))
    async with root:
        watch = root.watch()
        fakes.crash("a")
        await clock.advance(1)
        await watch.aclose()
        watch = root.watch()
    assert [(event.component, str(event.new)) async for event in watch] == [
        ("root", "stopping"),
        ("inner", "stopping"),
        ("a", "stopping"),
        ("a", "stopped"),
        ("inner", "stopped"),
        ("root", "stopped"),
    ]


async def test_children_of_the_same_name_in_two_supervisors_have_different_topics(clock: Clock, fakes: Fakes) -> None:
    def below(name: str, *specs: Spec) -> Spec:
        return Spec(name, lambda: Supervisor(f"supervisor of {name}", *specs))

    deep = below("deep", fakes.spec("w"))
    async with Supervisor("root", below("web", fakes.spec("w"), deep), below("mail", fakes.spec("w"))) as root:
        web = root["web"]
        assert isinstance(web, Supervisor)
        of_root, of_web = root.watch(), web.watch()
    stopped = [(event.topic, event.path, event.component) async for event in of_root if event.new == "stopped"]
    assert stopped == [
        ("status/mail/w", "mail/w", "w"),
        ("status/mail", "mail", "mail"),
        ("status/web/deep/w", "web/deep/w", "w"),
        ("status/web/deep", "web/deep", "deep"),
        ("status/web/w", "web/w", "w"),
        ("status/web", "web", "web"),
        ("status/root", "root", "root"),
    ]
    assert [event.topic async for event in of_web if event.component == "w" and event.new == "stopped"] == [
        "status/deep/w",
        "status/w",
    ]


async def test_changes_without_another_hook_are_announced_as_changes_of_the_supervisor(
    clock: Clock, fakes: Fakes
) -> None:
    health = ProbeResult(healthy=True)

    class Probed(FakeWorker):
        async def probe(self) -> ProbeResult:
            return health

    probed = Spec("p", lambda: Probed(fakes, "p", 1), probe_interval=10)
    steady = Backoff(initial=60, jitter=0, max_restarts=1, within=1000)
    async with Supervisor("s", *fakes.specs("a b", backoff=steady), probed) as supervisor:
        announced: list[tuple[str, bool | None]] = []

        def hear(sender: object, component: object) -> None:
            assert sender is component is supervisor
            announced.append((" ".join(statuses(supervisor).values()), health_of(supervisor)))

        def health_of(supervisor: Supervisor) -> bool | None:
            shown = supervisor.workers()[-1].health
            return None if shown is None else shown.healthy

        with hooks.component_changed.connected_to(hear):
            await clock.advance(25)
            assert announced == [("running running running", True)], "an unchanged result was announced"
            health = ProbeResult(healthy=False)
            await clock.advance(10)
            assert announced[1:] == [("running running running", False)]
            fakes.crash("a")
            await clock.settle()
            assert announced[-1] == ("pending running running", False)
            await supervisor.stop_child("a")
            assert announced[-1] == ("stopped running running", False)
            await supervisor.remove("a")
            assert announced[-1] == ("running running", False)
            fakes.crash("b")
            await clock.advance(70)
            fakes.crash("b")
            before = len(announced)
            await clock.settle()
            assert announced[before:] == [("failed running", False)] * 2, "the supervisor did not give up on the child"


async def test_updated_at_changes_with_health_and_with_actions_of_the_supervisor(clock: Clock, fakes: Fakes) -> None:
    health = ProbeResult(healthy=True)

    class Probed(FakeWorker):
        async def probe(self) -> ProbeResult:
            return health

    probed = Probed(fakes, "p", 1)
    spec = Spec("p", lambda: probed, probe_interval=10, backoff=Backoff(initial=60, jitter=0))
    async with Supervisor("s", spec) as supervisor:
        moments = [supervisor.workers()[0].updated_at]

        def moved() -> bool:
            moments.append(supervisor.workers()[0].updated_at)
            return moments[-1] > moments[-2]

        await clock.advance(15)
        assert moved()
        await clock.advance(15)
        assert not moved(), "an unchanged result was announced"
        health = ProbeResult(healthy=False)
        await clock.advance(15)
        assert moved()
        probed.end(OSError())
        await clock.settle()
        assert moved()
        await supervisor.stop_child("p")
        assert moved(), "stopping a child that is waiting for its restart was not announced"


async def test_a_slow_watcher_loses_the_oldest_events_and_gets_their_number(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a")) as supervisor:
        watch = supervisor.watch()
        for _ in range(400):
            await supervisor.restart("a")
        assert watch.dropped == 400 * 4 - 1000
        assert [str((await anext(watch)).new) for _ in range(4)] == ["stopping", "stopped", "starting", "running"]


async def test_its_state_is_a_tree(clock: Clock, fakes: Fakes) -> None:
    root = Supervisor("root", Spec("inner", lambda: Supervisor("i", fakes.spec("a"))), fakes.spec("b"))
    async with root:
        state = root.state()
        assert (state.name, state.kind, state.status) == ("root", "supervisor", "running")
        inner, b = state.children
        assert (inner.name, inner.kind, inner.children[0].name) == ("inner", "supervisor", "a")
        assert (b.name, b.kind, b.restarts, b.circuit, b.health) == ("b", "worker", 0, "closed", None)


async def test_its_state_can_be_written_as_json(clock: Clock, fakes: Fakes) -> None:
    inner = Spec("inner", lambda: Supervisor("i", fakes.spec("a", restart="never")))
    async with Supervisor("root", inner, fakes.spec("b")) as root:
        fakes.crash("a")
        await clock.settle()
        read = json.loads(json.dumps(dataclasses.asdict(root.state())))
        assert read["children"][0]["children"][0]["error"] == "a broke"
        assert read["children"][1]["status"] == "running"


# -- settings ------------------------------------------------------------


async def nothing() -> None: ...
async def two(a: int, b: int) -> None: ...


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "must be a non-empty string"),
        ({"child": "sleep 1"}, "not a string"),
        ({"child": None}, "must be an async function"),
        ({"child": Supervisor("x")}, "not a worker, which runs only once"),
        ({"child": []}, "has no command"),
        ({"child": ["sleep", 1]}, "must consist of strings and paths"),
        ({"child": two}, "no arguments or only a Gate"),
        ({"child": lambda a: a}, "must not require arguments"),
        ({"restart": "sometimes"}, "restart must be one of 'always', 'on_failure', 'never', got 'sometimes'"),
        ({"backoff": 3}, "must be a Backoff"),
        ({"significant": True}, "is significant but always restarted"),
        ({"ready": "port:80"}, "only allowed for a list of arguments"),
        ({"child": ["sleep", "1"], "ready": "port:x"}, "port:x"),
        ({"failures": 0}, "'a': failures must be 1 or more, got 0"),
        ({"probe": "port:x"}, "'a': probe must be .*, got 'port:x' .N must be a number from 1 to 65535"),
        ({"probe": "line:x"}, "must be 'port:N', 'http://…', 'https://…' or 'cmd:COMMAND', got 'line:x' .unknown kind"),
        ({"probe": "cmd: "}, "the command is empty or contains NUL"),
        ({"probe": "cmd:echo 'a"}, "No closing quotation"),
        ({"first_start": "later"}, "first_start must be one of 'fail', 'retry', got 'later'"),
        ({"restart_unhealthy": True}, "requires probe or probe_interval"),
        ({"restart_unhealthy": True, "probe_interval": 1, "restart": "never"}, "conflicts with restart='never'"),
    ],
)
async def test_a_spec_that_cannot_work_is_refused_before_anything_starts(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Spec(**{"name": "a", "child": nothing, **settings})


async def test_a_coroutine_is_refused_as_a_child() -> None:
    with pytest.raises(TypeError, match="is a coroutine; pass the function itself"):
        Spec("a", nothing())  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "all"}, "strategy must be one of .*, got 'all'"),
        ({"on_limit": "explode"}, "on_limit must be one of .*, got 'explode'"),
        ({"auto_shutdown": "maybe"}, "auto_shutdown must be one of .*, got 'maybe'"),
        ({"stop_order": "random"}, "stop_order must be one of .*, got 'random'"),
        ({"on_limit": "pause", "intensity": Intensity(0, 1)}, "pause forever"),
    ],
)
async def test_invalid_supervisor_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Supervisor("s", **settings)


async def test_duplicate_names_and_non_specs_are_refused(fakes: Fakes) -> None:
    with pytest.raises(ValueError, match="already has a child 'a'"):
        Supervisor("s", *fakes.specs("a a"))
    with pytest.raises(TypeError, match=r"must be a Spec\(name, child\), got 'a'"):
        Supervisor("s", "a")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match=r"unpack a list with \*specs"):
        Supervisor("s", fakes.specs("a b"))  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match=r"must be an Intensity, such as Intensity\(5, within=30\), got"):
        Supervisor("s", intensity=(5, 30))  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ValueError, match="auto_shutdown of 's' is 'never'"):
        Supervisor("s", fakes.spec("a", significant=True, restart="never"))


async def test_a_manual_start_ended_by_a_group_restart_raises(clock: Clock, fakes: Fakes) -> None:
    async with Supervisor("s", fakes.spec("a"), strategy="one_for_all") as supervisor:
        fakes.hangs = {"once"}
        add = asyncio.create_task(supervisor.add(fakes.spec("once", restart="never")))
        await clock.settle()
        fakes.crash("a")
        with pytest.raises(WorkerFailed, match="'once' was stopped before it finished starting"):
            await add
        await clock.settle()
        assert statuses(supervisor) == {"a": "running"}


class Reluctant(BaseWorker):
    """A worker that never becomes ready, and takes a while to notice a stop."""

    async def _launch(self) -> Awaitable[None]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            raise
        raise AssertionError


@pytest.mark.parametrize("way", ["stop", "stop_child", "restart"])
def test_a_loop_can_be_closed_while_a_start_is_being_stopped(way: str) -> None:
    """Closing the loop cancels all tasks at the same time, including the task that stops the worker."""
    worker = Reluctant("a")
    kept: list[asyncio.Task[None]] = []

    async def main() -> None:
        supervisor = Supervisor("s")
        await supervisor.start()
        kept.append(asyncio.create_task(supervisor.add(Spec("a", lambda: worker))))
        await asyncio.sleep(1)
        asked = supervisor.stop() if way == "stop" else getattr(supervisor, way)("a")
        kept.append(asyncio.create_task(asked))
        await asyncio.sleep(0.2)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    assert all(task.done() for task in kept)
    assert worker.status in ("stopped", "killed")
