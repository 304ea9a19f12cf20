"""Ctrl+C and similar signals in a program with routers, with simulated signals."""

from __future__ import annotations

import asyncio
import functools
import io
import signal
import sys
import threading
from contextlib import asynccontextmanager
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Router, SignalEvent, hooks, run
from lifecycle.observe import mermaid
from lifecycle.runtime import Reason, current, go, lifetime
from lifecycle.sources import SignalSource
from lifecycle.testing import Recorder, running
from lifecycle.testing.signals import FakeSignals
from lifecycle.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.testing import Clock

run_virtual = functools.partial(run, loop_factory=VirtualLoop)


async def settled() -> None:
    await asyncio.sleep(0.01)


def play(router: Router, script: Any, **settings: Any) -> Any:
    """Run a program whose mains are ``router`` and the function ``script``."""

    async def main() -> Any:
        await settled()
        return await script()

    return run(router, main, **{"loop_factory": VirtualLoop, **settings})


def recorded(*patterns: str) -> tuple[Router, Recorder]:
    router, seen = Router(), Recorder()
    for pattern in patterns:
        router.handle(pattern, seen)
    return router, seen


def test_a_route_for_signal_interrupt_captures_ctrl_c(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt", "lifecycle/*")

    async def script() -> bool:
        signals.send(SIGINT)
        await settled()
        return current().stopping

    assert play(router, script) is False
    assert seen.events == [SignalEvent(SIGINT)]


if sys.version_info >= (3, 12):

    def test_a_captured_ctrl_c_is_routed_once_also_where_tasks_start_eagerly(signals: FakeSignals) -> None:
        def eager_loop() -> VirtualLoop:
            loop = VirtualLoop()
            loop.set_task_factory(asyncio.eager_task_factory)
            return loop

        router, seen = recorded("signal/interrupt")

        async def script() -> None:
            signals.send(SIGINT)
            await settled()

        play(router, script, loop_factory=eager_loop)
        assert seen.topics == ["signal/interrupt"]


@pytest.mark.parametrize("pattern", ["signal/*", "signal/int*", "signal/**"])
def test_a_glob_below_signal_captures_too(signals: FakeSignals, pattern: str) -> None:
    router, seen = recorded(pattern)

    async def script() -> bool:
        signals.send(SIGINT)
        await settled()
        return current().stopping

    assert play(router, script) is False
    assert seen.topics == ["signal/interrupt"]


@pytest.mark.parametrize("pattern", ["**", "*/interrupt", "signal/terminate", "lifecycle/interrupt"])
def test_a_route_that_is_not_made_for_ctrl_c_does_not_block_it(signals: FakeSignals, pattern: str) -> None:
    router, _ = recorded(pattern)

    async def script() -> None:
        signals.send(SIGINT)
        assert current().reason is Reason.INTERRUPT
        await asyncio.sleep(1000)

    assert play(router, script) is None


@pytest.mark.parametrize("signum", [SIGINT, SIGHUP])
def test_an_observer_of_a_signal_does_not_block_it(signum: int) -> None:
    router, seen = Router(), Recorder()
    router.observe("signal/*", seen)
    router.observe("lifecycle/*", seen)

    async def script() -> None:
        signals.send(signum)
        assert current().stopping
        assert current().state().force_exit_at == 2
        await asyncio.sleep(1000)

    with FakeSignals(terminal=True) as signals:
        play(router, script)
    assert signals.exits == []


def test_cancel_on_interrupt_overrules_a_route(signals: FakeSignals) -> None:
    router, _ = recorded("signal/interrupt")

    async def script() -> None:
        signals.send(SIGINT)
        assert current().stopping
        await asyncio.sleep(1000)

    play(router, script, cancel_on_interrupt=True)


def test_an_unrouted_captured_ctrl_c_is_sent_as_interrupt_and_clear_line(signals: FakeSignals) -> None:
    router, seen = recorded("lifecycle/*")

    async def script() -> None:
        signals.send(SIGINT)
        await settled()

    play(router, script, cancel_on_interrupt=False)
    assert seen.topics == ["lifecycle/interrupt", "lifecycle/clear-line"]


@pytest.mark.parametrize("mains", [(), (Router(),), (recorded("signal/terminate", "**")[0],)])
def test_with_force_exit_2_a_ctrl_c_without_a_route_begins_the_shutdown(
    signals: FakeSignals, mains: tuple[Router, ...]
) -> None:
    log: list[str] = []

    async def main() -> None:
        current().on_shutdown(lambda: log.append("hook"))
        await settled()
        signals.send(SIGINT)
        log.append(current().reason)
        await asyncio.sleep(1000)

    run_virtual(*mains, main, force_exit=2)
    assert log == ["interrupt", "hook"]
    assert signals.exits == []


@pytest.mark.parametrize("pattern", ["lifecycle/interrupt", "lifecycle/clear-line", "lifecycle/**"])
def test_with_force_exit_2_a_route_for_it_captures_ctrl_c(signals: FakeSignals, pattern: str) -> None:
    router, seen = recorded(pattern)

    async def script() -> bool:
        signals.send(SIGINT)
        await settled()
        return current().stopping

    assert play(router, script, force_exit=2) is False
    assert seen.events


def test_a_captured_ctrl_c_without_a_route_is_not_an_error(
    signals: FakeSignals, caplog: pytest.LogCaptureFixture
) -> None:
    async def script() -> None:
        signals.send(SIGINT)
        await settled()

    play(Router(), script, cancel_on_interrupt=False)
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "signum", "message"),
    [
        ({}, SIGINT, "stopping; press Ctrl+C again to force\n"),
        ({"force_exit": 2}, SIGINT, "stopping; press Ctrl+C again to force\n"),
        ({"force_exit": 3}, SIGINT, "stopping; press Ctrl+C 2 more times to force\n"),
        ({"force_exit": 0}, SIGINT, ""),
        ({"cancel_on_interrupt": False}, SIGTERM, "stopping; press Ctrl+C 2 more times to force\n"),
        ({"cancel_on_interrupt": False}, SIGINT, "no route takes this Ctrl+C; press Ctrl+C 2 more times to force\n"),
    ],
)
def test_a_terminal_shows_how_often_to_press_ctrl_c(
    signals: FakeSignals, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], signum: int, message: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)

    async def main() -> None:
        signals.send(signum)
        await settled()

    run_virtual(main, **settings)
    assert terminal.getvalue() == message


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_signal_source_and_the_runtime_send_one_event_not_two(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")
    router.add_source(SignalSource(SIGINT))

    async def script() -> None:
        signals.send(SIGINT)
        await settled()

    play(router, script)
    assert seen.events == [SignalEvent(SIGINT)]


def test_a_router_that_runs_by_go_captures_while_it_runs(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")

    async def main() -> None:
        task = go(router.run)
        await settled()
        signals.send(SIGINT)
        await settled()
        assert not current().stopping
        router.stop()
        await task
        await asyncio.sleep(1)
        signals.send(SIGINT)
        assert current().stopping

    run_virtual(main)
    assert seen.topics == ["signal/interrupt"]


def test_a_router_of_a_lifetime_inside_captures_too(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")

    async def main() -> bool:
        async with lifetime() as inner:
            inner.go(router.run)
            await settled()
            signals.send(SIGINT)
            await settled()
            return inner.stopping

    assert run_virtual(main) is False
    assert seen.topics == ["signal/interrupt"]


def test_a_router_that_the_main_runs_itself_captures_while_it_runs(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")

    async def main() -> None:
        async with running(router):
            signals.send(SIGINT)
            await settled()
            assert not current().stopping
        await asyncio.sleep(1)
        signals.send(SIGINT)
        assert current().stopping

    run_virtual(main)
    assert seen.events == [SignalEvent(SIGINT)]


def test_a_router_that_another_loop_runs_is_not_affected(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")

    async def elsewhere() -> None:
        async with running(router):
            signals.send(SIGINT)

    async def main() -> None:
        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))

    run_virtual(main)
    assert not seen.events


def test_a_route_that_is_added_or_removed_counts_from_the_next_signal(signals: FakeSignals) -> None:
    router, _ = recorded()

    async def script() -> None:
        router.handle("signal/interrupt", Recorder())
        await settled()
        signals.send(SIGINT)
        assert not current().stopping
        router.remove("signal/interrupt")
        await asyncio.sleep(1)
        signals.send(SIGINT)
        assert current().stopping

    play(router, script)


def test_two_ctrl_c_are_left_to_the_router_and_the_third_forces(signals: FakeSignals) -> None:
    router, seen = recorded("signal/interrupt")

    async def script() -> None:
        for _ in range(2):
            signals.send(SIGINT)
            await asyncio.sleep(1)
        assert signals.exits == []
        assert current().state().force_exit_at == 3
        signals.send(SIGINT)

    play(router, script)
    assert signals.exits == [1]
    assert seen.topics == ["signal/interrupt"] * 2


@pytest.mark.parametrize(("gap", "count"), [(0.049, 1), (0.051, 2)])
def test_two_signals_of_one_press_through_a_wrapper_count_once(signals: FakeSignals, gap: float, count: int) -> None:
    router, seen = recorded("lifecycle/interrupt")

    async def script() -> None:
        signals.send(SIGINT)
        await asyncio.sleep(gap)
        signals.send(SIGINT)
        await settled()
        assert current().state().signals == count
        await asyncio.sleep(1)

    play(router, script, cancel_on_interrupt=False)
    assert seen.topics == ["lifecycle/interrupt"] * count
    assert signals.exits == []


def test_a_pause_resets_the_count(signals: FakeSignals) -> None:
    router, _ = recorded("signal/interrupt")

    async def script() -> None:
        for _ in range(10):
            signals.send(SIGINT)
            await asyncio.sleep(1)
            signals.send(SIGINT)
            await asyncio.sleep(5)
        current().reset_signals()
        assert current().state().signals == 0

    play(router, script)
    assert signals.exits == []


def test_sigterm_after_captured_ctrl_c_begins_the_shutdown(signals: FakeSignals) -> None:
    router, _ = recorded("signal/interrupt")

    async def script() -> None:
        signals.send(SIGINT)
        signals.send(SIGTERM)
        assert (current().reason, current().signum) == (Reason.TERMINATE, SIGTERM)
        await asyncio.sleep(1000)

    play(router, script)


def test_hangup_without_a_terminal_reloads(signals: FakeSignals) -> None:
    router, seen = recorded("lifecycle/reload")

    async def script() -> bool:
        signals.send(SIGHUP)
        signals.send(SIGHUP)
        await settled()
        return current().stopping

    assert play(router, script) is False
    assert seen.topics == ["lifecycle/reload"] * 2


def test_hangup_without_a_terminal_does_not_count_after_the_routers_ended(signals: FakeSignals) -> None:
    router, _ = recorded("lifecycle/reload")
    ended: list[bool] = []

    def late() -> None:
        ended.append(router.state().running)
        for _ in range(5):
            signals.send(SIGHUP)

    async def script() -> None:
        current().on_shutdown(late)
        signals.send(SIGTERM)
        await asyncio.sleep(1000)

    play(router, script)
    assert ended == [False]
    assert not signals.exits


def test_hangup_with_a_terminal_begins_the_shutdown() -> None:
    router, seen = recorded("lifecycle/reload")
    with FakeSignals(terminal=True) as signals:

        async def script() -> None:
            signals.send(SIGHUP)
            assert (current().reason, current().signum) == (Reason.TERMINATE, SIGHUP)
            await asyncio.sleep(1000)

        play(router, script)
    assert not seen.events


@pytest.mark.parametrize("pattern", ["signal/hangup", "signal/*"])
@pytest.mark.parametrize("by_source", [True, False])
def test_a_route_for_signal_hangup_captures_it_at_a_terminal(pattern: str, by_source: bool) -> None:
    router, seen = recorded(pattern, "lifecycle/reload")
    if by_source:
        router.add_source(SignalSource())
    with FakeSignals(terminal=True) as signals:

        async def script() -> bool:
            for _ in range(5):
                signals.send(SIGHUP)
                await settled()
            return current().stopping

        assert play(router, script) is False
    assert seen.topics == ["signal/hangup"] * 5
    assert signals.exits == []


def test_without_a_terminal_a_route_for_signal_hangup_gets_it_and_routers_reload(signals: FakeSignals) -> None:
    router, seen = recorded("signal/hangup", "lifecycle/reload")

    async def script() -> bool:
        signals.send(SIGHUP)
        await settled()
        return current().stopping

    assert play(router, script) is False
    assert sorted(seen.topics) == ["lifecycle/reload", "signal/hangup"]


def test_force_exit_at_is_the_press_that_forces_the_exit(signals: FakeSignals) -> None:
    router, _ = recorded()

    async def script() -> list[int]:
        found = [current().state().force_exit_at]
        router.handle("signal/interrupt", Recorder())
        found.append(current().state().force_exit_at)
        assert "signal number 3" in mermaid.signal(current().state())
        await settled()
        signals.send(SIGINT)
        found.append(current().state().force_exit_at)
        async with lifetime() as inner:
            found.append(inner.state().force_exit_at)
            assert inner.state().signals == 1
        return found

    assert play(router, script) == [2, 3, 3, 3]


async def test_a_lifetime_without_signals_is_never_forced(clock: Clock) -> None:
    async with lifetime(signals=False) as life:
        assert life.state().force_exit_at == 0


def test_hangup_without_a_terminal_or_a_router_begins_the_shutdown(signals: FakeSignals) -> None:
    async def main() -> None:
        signals.send(SIGHUP)
        await asyncio.sleep(1000)

    assert run_virtual(main) is None


def test_signals_and_forced_exits_are_announced(signals: FakeSignals) -> None:
    seen: list[Any] = []

    def receive(_: object, **arguments: Any) -> None:
        seen.append(arguments)

    async def main() -> None:
        current().on_shutdown(lambda: signals.send(SIGINT))
        signals.send(SIGTERM)
        await asyncio.sleep(1000)

    hooks.signal_received.connect(receive)
    hooks.forced_exit.connect(receive)
    try:
        run_virtual(main)
    finally:
        hooks.signal_received.disconnect(receive)
        hooks.forced_exit.disconnect(receive)
    assert {"signum": SIGTERM, "count": 1} in seen
    assert {"status": 1, "reason": "SIGINT was signal number 2 in a row"} in seen


# -- SignalSource ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def emitting(source: SignalSource) -> AsyncIterator[list[SignalEvent]]:
    events: list[SignalEvent] = []

    async def emit(event: Any) -> Any:
        await asyncio.sleep(0)
        events.append(event)

    async with source:
        task = asyncio.create_task(source.run(emit))
        await settled()
        try:
            yield events
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_every_source_gets_every_signal_in_order(clock: Clock, signals: FakeSignals) -> None:
    async with emitting(SignalSource(SIGUSR1, SIGTERM)) as one, emitting(SignalSource()) as other:
        for signum in (SIGTERM, SIGUSR1, SIGTERM):
            signals.send(signum)
        await settled()
    assert [event.signum for event in one] == [SIGTERM, SIGUSR1, SIGTERM]
    assert [event.signum for event in other] == [SIGTERM, SIGTERM]


async def test_a_burst_of_one_signal_is_bounded_and_hides_no_other(clock: Clock, signals: FakeSignals) -> None:
    async with emitting(SignalSource(SIGUSR1, SIGTERM)) as events:
        for _ in range(100_000):
            signals.send(SIGUSR1)
        signals.send(SIGTERM)
        await settled()
    assert [event.signum for event in events] == [SIGUSR1] * 100 + [SIGTERM]


async def test_a_source_can_run_again_and_takes_nothing_in_between(clock: Clock, signals: FakeSignals) -> None:
    source = SignalSource(SIGUSR1)
    for _ in range(2):
        async with emitting(source) as events:
            signals.send(SIGUSR1)
            await settled()
        assert len(events) == 1
        with pytest.raises(LookupError, match="SIGUSR1"):
            signals.send(SIGUSR1)


async def test_a_source_that_is_not_entered_takes_its_signals_while_it_runs(clock: Clock, signals: FakeSignals) -> None:
    source, events = SignalSource(SIGUSR1), Recorder()

    async def emit(event: Any) -> Any:
        events(event)

    task = asyncio.create_task(source.run(emit))
    await settled()
    signals.send(SIGUSR1)
    await settled()
    task.cancel()
    await asyncio.wait({task})
    assert events.topics == ["signal/user1"]


@pytest.mark.parametrize("given", [0, -1, 1000, signal.SIGKILL, signal.SIGSTOP, "SIGINT"])
def test_invalid_and_uncatchable_signals_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"signal|SIG"):
        SignalSource(given)


async def test_an_unhandled_signal_fails_the_test(signals: FakeSignals) -> None:
    with pytest.raises(LookupError, match="SIGINT"):
        signals.send()


def test_outside_the_main_thread_a_signal_source_logs_that_it_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    router = Router()
    router.add_source(SignalSource(SIGUSR1))

    async def main() -> None:
        while not router.state().running:
            await settled()

    thread = threading.Thread(target=lambda: run(router, main))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert "SIGUSR1 cannot be handled outside the main thread" in caplog.text


async def test_program_8_a_lifetime_inside_another_framework(clock: Clock) -> None:
    log: list[str] = []

    async def poll() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("polling ends")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with lifetime(signals=False) as life:
            life.go(poll)
            yield

    async with lifespan():
        await clock.advance(1)
        log.append("serving ends")
    assert log == ["serving ends", "polling ends"]
