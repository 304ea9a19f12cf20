"""Each metric in the Go model has a counterpart here: a metric, or a hook that exists and is announced."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.control import Event, Router
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS
from lifecycle.runtime import Group, do, go, lifetime
from lifecycle.testing import Clock, running
from lifecycle.workers import Spec, Status, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.testing.signals import FakeSignals

#: Metrics in the Go model, each with the corresponding metric or hook in this library.
COUNTERPARTS = {
    "IncSignalReceived": "hooks.signal_received",
    "IncProcessStarted": "hooks.worker_started",
    "IncProcessFailed": "lifecycle.worker.failed",
    "IncTerminalUpgrade": "nothing",
    "IncHookExecuted": "hooks.hook_finished",
    "IncHookPanicked": "lifecycle.hook.errors",
    "ObserveHookDuration": "hooks.hook_finished",
    "IncWorkerStarted": "hooks.worker_started",
    "IncWorkerStopped": "hooks.state_changed to a final Status",
    "IncWorkerFailed": "lifecycle.worker.failed",
    "ObserveWorkerDuration": "Exit.duration",
    "IncSupervisorRestart": "hooks.restart_scheduled",
    "IncChildRestart": "lifecycle.child.restarts",
    "IncSupervisorAdd": "hooks.component_changed",
    "IncSupervisorRemove": "hooks.component_changed",
    "IncBackoffTriggered": "hooks.restart_scheduled",
    "ObserveShutdownDuration": "from Lifetime.wait_stopping() to a hook of Lifetime.on_flush",
    "IncForceExitTriggered": "hooks.forced_exit",
    "IncCircuitBreakerTriggered": "lifecycle.circuit_breaker.triggered",
    "IncCriticalSectionStarted": "nothing",
    "IncCriticalSectionFinished": "lifecycle.critical_section.finished",
    "ObserveCriticalSectionDuration": "hooks.critical_finished",
    "IncContainerStarted": "hooks.worker_started",
    "IncContainerStopped": "hooks.state_changed to a final Status",
    "IncContainerFailed": "lifecycle.worker.failed",
    "ObserveContainerDuration": "Exit.duration",
    "IncGoroutineStarted": "hooks.task_started, hooks.task_finished",
    "IncGoroutineFinished": "hooks.task_started, hooks.task_finished",
    "IncGoroutinePanicked": "lifecycle.task.crashed",
    "ObserveGoroutineBlockDuration": "nothing",
    "IncGoroutineWaiting": "nothing",
    "DecGoroutineWaiting": "nothing",
    "IncEventEmitted": "hooks.delivery_accepted",
    "IncEventRouted": "hooks.event_routed",
    "IncHandlerExecuted": "hooks.handler_started",
    "IncHandlerError": "lifecycle.handler.errors",
    "ObserveHandlerDuration": "lifecycle.handler.duration",
    "ObserveEventBlockDuration": "nothing",
    "IncEventWaiting": "lifecycle.lane.waiting",
    "DecEventWaiting": "lifecycle.lane.waiting",
}

#: The process exits after this hook, so tests/realtime/test_signals.py tests it.
NOT_IN_THIS_PROCESS = {"forced_exit"}


@contextmanager
def announced() -> Iterator[list[tuple[str, Any, dict[str, Any]]]]:
    """Record every announcement: the hook's name, the sender and the arguments."""
    log: list[tuple[str, Any, dict[str, Any]]] = []
    connected: list[tuple[hooks.Hook, Any]] = []
    for each in (getattr(hooks, name) for name in hooks.__all__):
        if isinstance(each, hooks.Hook):

            def note(sender: Any, announced_as: str = each.name, **kwargs: Any) -> None:
                log.append((announced_as, sender, kwargs))

            connected.append((each, each.connect(note)))
    try:
        yield log
    finally:
        for hook, note in connected:
            hook.disconnect(note)


async def fails(_: object = None) -> None:
    raise OSError("no")


async def returns() -> None:
    pass


async def fails_later() -> None:
    await asyncio.sleep(0.5)
    raise OSError("no")


async def forever() -> None:
    await asyncio.Event().wait()


async def life_of_a_program(signals: FakeSignals) -> None:
    """Cause each event in the table once."""
    router = Router()
    router.handle("good", lambda _: None)
    router.handle("bad", fails)
    async with lifetime() as life:
        life.on_shutdown(lambda: None)
        life.on_shutdown(fails_plainly)
        backoff = Backoff(initial=1, jitter=0, max_restarts=1)
        async with (
            Supervisor("s", Spec("bad", fails, backoff=backoff), Spec("x", forever)) as supervisor,
            running(router),
        ):
            for topic in ("good", "bad"):
                await router.emit(Event(topic))
            await asyncio.sleep(10)
            await supervisor.add(Spec("y", forever))
            await supervisor.stop_child("x")
        go(fails)
        with suppress(OSError):
            await do(fails)
        async with Group() as group:
            await group.go(asyncio.sleep, 1)
        signals.send(SIGTERM)
        await asyncio.sleep(1)


def fails_plainly() -> None:
    raise OSError("no")


async def test_the_counterparts_exist_and_are_announced(clock: Clock, signals: FakeSignals) -> None:
    with announced() as log:
        await life_of_a_program(signals)
    happened = {name for name, _, _ in log} | NOT_IN_THIS_PROCESS
    names = {metric.name for metric in (*HISTOGRAMS, *COUNTERS, *GAUGES)}
    for model, here in COUNTERPARTS.items():
        named = set(re.findall(r"hooks\.(\w+)", here))
        measured = set(re.findall(r"lifecycle\.[a-z_.]+", here))
        assert named <= happened, model
        assert measured <= names, model
        assert named or measured or "nothing" in here or "Exit.duration" in here or "on_flush" in here, model


async def test_a_scheduled_restart_is_announced_once_per_failure_with_its_delay(clock: Clock) -> None:
    backoff = Backoff(initial=1, multiplier=2, jitter=0)
    specs = [Spec("bad", fails_later, backoff=backoff), Spec("good", forever)]
    with announced() as log:
        async with Supervisor("s", *specs, strategy="one_for_all") as supervisor:
            await clock.advance(5)
    scheduled = [
        (sender, kwargs["child"], kwargs["delay"]) for name, sender, kwargs in log if name == "restart_scheduled"
    ]
    assert scheduled == [(supervisor, "bad", 1), (supervisor, "bad", 2), (supervisor, "bad", 4)]
    # There were three failures. The first two delays have passed, and both children were restarted after each.
    assert [kwargs["child"] for name, _, kwargs in log if name == "worker_restarted"] == ["bad", "good"] * 2


async def test_the_end_of_a_supervised_worker_is_announced_as_a_move_to_a_final_status(clock: Clock) -> None:
    with announced() as log:
        async with Supervisor("s", Spec("x", forever), Spec("done", returns, restart="never")) as supervisor:
            await clock.advance(3)
            await supervisor.stop_child("x")
    moves = [(kwargs["machine"].name, kwargs["transition"].new) for name, _, kwargs in log if name == "state_changed"]
    final = (Status.STOPPED, Status.FINISHED, Status.FAILED, Status.KILLED)
    assert [move for move in moves if move[1] in final] == [
        ("done", Status.FINISHED),
        ("x", Status.STOPPED),
        ("s", Status.STOPPED),
    ]


@pytest.mark.parametrize("how", ["go", "group"])
async def test_tasks_of_go_and_of_a_group_are_announced_alike(clock: Clock, how: str) -> None:
    async def work() -> None:
        await asyncio.sleep(2)

    with announced() as log:
        async with lifetime(signals=False) as life:
            if how == "go":
                await go(work)
            else:
                async with Group() as group:
                    await group.go(work)
    name = work.__qualname__
    kwargs = [(hook, sender, kwargs) for hook, sender, kwargs in log if hook in ("task_started", "task_finished")]
    assert kwargs == [("task_started", life, {"name": name}), ("task_finished", life, {"name": name, "duration": 2})]


async def test_a_group_outside_a_lifetime_is_announced_without_a_sender(clock: Clock) -> None:
    with announced() as log, pytest.raises(OSError, match="no"):
        async with Group() as group:
            await group.go(fails)
    assert [(name, sender) for name, sender, _ in log] == [("task_started", None), ("task_finished", None)]


async def test_the_time_to_the_handler_includes_both_waits(clock: Clock) -> None:
    router, at = Router(buffer=0), dict[tuple[str, int], float]()

    @hooks.delivery_accepted.connect
    def accepted(_sender: object, *, delivery: Any) -> None:
        at["accepted", delivery.event.data] = clock.time()

    @hooks.handler_started.connect
    def started(_sender: object, *, delivery: Any, **_told: Any) -> None:
        at["started", delivery.event.data] = clock.time()

    async def work(_event: Event) -> None:
        await asyncio.sleep(2)

    router.handle("a", work)
    try:
        async with running(router):
            await asyncio.gather(*(router.emit(Event("a", number)) for number in range(3)))
            await clock.advance(10)
    finally:
        hooks.delivery_accepted.disconnect(accepted)
        hooks.handler_started.disconnect(started)
    # The lane has space for one event, so the second and third events first wait outside the lane.
    assert [at["started", number] - at["accepted", number] for number in range(3)] == [0, 2, 4]


async def test_from_the_stop_to_the_flush_is_the_shutdown(clock: Clock) -> None:
    at: dict[str, float] = {}

    async def slow_hook() -> None:
        await asyncio.sleep(3)

    async with lifetime(signals=False) as life:

        async def note_stop() -> None:
            await life.wait_stopping()
            at["stopping"] = clock.time()

        life.on_shutdown(slow_hook)
        life.on_flush(lambda: at.update(flushed=clock.time()))
        go(note_stop)
        await clock.advance(1)
        life.shutdown()
    assert at == {"stopping": 1, "flushed": 4}
