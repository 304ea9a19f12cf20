from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import CommandEvent, LineEvent, NotHandled, QueueSource, SignalEvent, SuspendHandler
from lifecycle import new_interactive_router as new
from lifecycle.control.router import call_directly
from lifecycle.errors import LifecycleError, RouteConflict
from lifecycle.events import (
    InterruptEvent,
    ReloadEvent,
    ResumeEvent,
    ShutdownEvent,
    SuspendEvent,
    TerminateEvent,
    UnknownCommandEvent,
)
from lifecycle.runtime import run
from lifecycle.testing import FakeSignals, Recorder, VirtualLoop, running

if TYPE_CHECKING:
    from lifecycle import Router
    from lifecycle.testing import Clock

CTRL_C = InterruptEvent()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: capsys.readouterr().out


class Part:
    def __init__(self, takes: float = 0, fails: bool = False) -> None:
        self.takes, self.fails, self.calls = takes, fails, list[str]()

    async def suspend(self) -> None:
        self.calls.append("suspend")
        await asyncio.sleep(self.takes)
        if self.fails:
            raise OSError("will not")

    def resume(self) -> None:
        self.calls.append("resume")


class Quits:
    """Counts requests to stop the program."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def press(router: Router, clock: Clock) -> None:
    await router.emit(CTRL_C)
    await clock.settle()


# -- Ctrl+C ----------------------------------------------------------------------------------------------------


async def test_ctrl_c_suspends_and_again_quits(clock: Clock) -> None:
    part, quits, seen = Part(), Quits(), Recorder()
    router = new(suspend=part, shutdown=quits, input=False, signals=False)
    router.observe("lifecycle/suspend", seen)
    async with running(router):
        await press(router, clock)
        assert (part.calls, quits.count, seen.events) == (["suspend"], 0, [SuspendEvent()])
        await press(router, clock)
        assert quits.count == 1


async def test_a_second_ctrl_c_while_suspending_quits(clock: Clock) -> None:
    part, quits = Part(takes=3), Quits()
    router = new(suspend=part, shutdown=quits, input=False, signals=False)
    async with running(router):
        await press(router, clock)
        await press(router, clock)
        assert quits.count == 1


async def test_after_a_resume_ctrl_c_suspends_again(clock: Clock) -> None:
    part, quits = Part(), Quits()
    router = new(suspend=part, shutdown=quits, input=False, signals=False)
    async with running(router):
        for _ in range(3):
            await press(router, clock)
            await (await router.emit(ResumeEvent()))
    assert part.calls == ["suspend", "resume"] * 3
    assert quits.count == 0


async def test_a_ctrl_c_after_a_failed_suspension_quits(clock: Clock, said: Any) -> None:
    quits = Quits()
    router = new(suspend=Part(fails=True), shutdown=quits, input=False, signals=False)
    async with running(router):
        await press(router, clock)
        assert "suspending failed: will not" in said()
        await press(router, clock)
        assert quits.count == 1


async def test_without_anything_to_suspend_a_second_within_two_seconds_quits(clock: Clock, said: Any) -> None:
    quits = Quits()
    router = new(shutdown=quits, input=False, signals=False)
    async with running(router):
        await press(router, clock)
        assert said() == "press Ctrl+C again to quit\n"
        await clock.advance(3)
        await press(router, clock)
        assert (said(), quits.count) == ("press Ctrl+C again to quit\n", 0)
        await clock.advance(1)
        await press(router, clock)
        assert quits.count == 1


def press_at(*times: float, shutdown_takes: float = 0, **settings: Any) -> tuple[list[int], list[str]]:
    """Press Ctrl+C at these times in seconds, and return the forced exits and the shutdowns."""
    ended: list[str] = []

    async def shut_down() -> None:
        await asyncio.sleep(shutdown_takes)
        ended.append("shut down")

    with FakeSignals() as signals:
        router = new(input=False, shutdown=shut_down, **settings)

        async def main() -> None:
            await router.wait_running()
            began = asyncio.get_running_loop().time()
            for time in times:
                await asyncio.sleep(began + time - asyncio.get_running_loop().time())
                signals.send()
            await asyncio.sleep(1)

        run(router, main, loop_factory=VirtualLoop)
    return signals.exits, ended


@pytest.mark.parametrize("times", [(0, 0.7), (0, 2.5, 3.2), (0, 2.5, 5, 7.5, 8), (0, 2.5, 100, 101)])
def test_an_answered_ctrl_c_does_not_count_towards_force_exit(times: tuple[float, ...], said: Any) -> None:
    assert press_at(*times) == ([], ["shut down"])
    assert said().splitlines() == ["press Ctrl+C again to quit"] * (len(times) - 1)


@pytest.mark.parametrize("pause", [0.1, 4, 6])
def test_presses_handled_by_interrupt_never_force(pause: float) -> None:
    seen: list[InterruptEvent] = []
    assert press_at(*(number * pause for number in range(10)), interrupt=seen.append) == ([], [])
    assert len(seen) == 10


def test_the_press_after_the_one_that_quits_forces() -> None:
    part = Part()
    assert press_at(0, 2.5, 3.2, 3.3, shutdown_takes=2)[0] == [1]
    assert press_at(0, 1, 1.1, suspend=part, shutdown_takes=2)[0] == [1]


def test_signals_of_one_press_are_one_press() -> None:
    suspended = Part()
    assert press_at(0, 0.04, 0.08, suspend=suspended) == ([], ["shut down"])
    assert press_at(0, 0.02, 0.04, suspend=Part()) == ([], [])


async def test_a_sigterm_right_after_ctrl_c_shuts_down_without_a_lifetime(clock: Clock) -> None:
    part, quits = Part(), Quits()
    with FakeSignals() as signals:
        router = new(suspend=part, shutdown=quits, input=False)
        async with running(router):
            signals.send(signal.SIGINT)
            await clock.advance(0.5)
            signals.send(signal.SIGTERM)
            await clock.advance(0.1)
            assert part.calls == ["suspend"]
            assert quits.count == 1


async def test_a_running_command_is_cancelled_first(clock: Clock, said: Any) -> None:
    part, ended = Part(), []
    router = new(suspend=part, input=False, signals=False)

    @router.command
    async def build(_: CommandEvent) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append(clock.time())
            raise

    async with running(router):
        building = await router.emit(CommandEvent("build"))
        await clock.advance(1)
        await press(router, clock)
        assert ended == [1]
        assert said() == "build was cancelled\n"
        assert building.done
        assert part.calls == []
        assert router.state().dropped == 1
        await press(router, clock)
        assert part.calls == ["suspend"]


async def test_a_command_that_awaits_the_next_one_fails_instead_of_waiting_for_itself(clock: Clock) -> None:
    router = new(input=False, signals=False)

    @router.command
    async def deploy(_: CommandEvent) -> None:
        await (await router.emit(CommandEvent("build")))

    @router.command
    def build(_: CommandEvent) -> None:
        """Do nothing."""

    async with running(router):
        deploying = await router.emit(CommandEvent("deploy"))
        await clock.settle()
        assert isinstance(deploying.error, LifecycleError)
        assert "only after" in str(deploying.error)


@pytest.mark.parametrize("event", [LineEvent("hello"), UnknownCommandEvent("hello", ())])
async def test_the_handler_of_a_line_is_cancelled_like_a_command(
    clock: Clock, said: Any, event: LineEvent | UnknownCommandEvent
) -> None:
    part, seen = Part(), list[Any]()

    async def answer(event: LineEvent | UnknownCommandEvent) -> None:
        seen.append(event)
        await asyncio.sleep(100)
        seen.append("answered")

    router = new(suspend=part, input=False, signals=False, default=answer, unknown=answer)
    async with running(router):
        answering = await router.emit(event)
        await clock.settle()
        await press(router, clock)
        assert (seen, said(), answering.done) == ([event], "the line was cancelled\n", True)
        assert part.calls == []
        assert router.state().dropped == 1
        await press(router, clock)
        assert part.calls == ["suspend"]


async def test_running_commands_are_cancelled_in_order(clock: Clock, said: Any) -> None:
    names = [f"build{number}" for number in range(12)]
    router = new(input=False, signals=False)
    for name in names:
        router.handle(f"command/{name}", lambda _: asyncio.sleep(100))
    async with running(router):
        for name in names:
            await router.emit(CommandEvent(name))
        await clock.advance(1)
        await press(router, clock)
        assert said() == "".join(f"{name} was cancelled\n" for name in names)


async def test_a_command_is_not_cancelled_twice(clock: Clock) -> None:
    part = Part()
    router = new(suspend=part, input=False, signals=False)

    @router.command
    async def build(_: CommandEvent) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)

    async with running(router):
        await router.emit(CommandEvent("build"))
        await clock.settle()
        await press(router, clock)
        await press(router, clock)
        assert part.calls == ["suspend"]
        await clock.advance(6)


async def test_a_command_that_is_running_ends_with_the_router(clock: Clock) -> None:
    router = new(input=False, signals=False)
    router.command("wait", lambda _: asyncio.Event().wait())
    task = asyncio.create_task(router.run())
    await clock.settle()
    await router.emit(CommandEvent("wait"))
    await clock.settle()
    task.cancel()
    await asyncio.wait({task})


async def test_the_interrupt_handler_gets_ctrl_c_until_it_raises_not_handled(clock: Clock) -> None:
    part, quits, seen = Part(), Quits(), []

    def handle(event: InterruptEvent) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise NotHandled

    router = new(suspend=part, shutdown=quits, interrupt=handle, signals=True, input=False)
    async with running(router):
        await call_directly(router, SignalEvent(2))
        assert (seen, quits.count) == ([InterruptEvent()], 0)
        await call_directly(router, SignalEvent(2))
        assert quits.count == 1
    assert part.calls == []


async def test_a_given_suspend_handler_is_used_as_it_is(clock: Clock) -> None:
    handler = SuspendHandler()
    router = new(suspend=handler, input=False, signals=False)
    async with running(router):
        await press(router, clock)
        assert handler.suspended


# -- commands and their output -----------------------------------------------------------------------------------


async def test_suspend_and_resume_print_their_results(clock: Clock, said: Any) -> None:
    router = new(suspend=Part(), input=False, signals=False)
    await call_directly(router, ResumeEvent())
    await call_directly(router, SuspendEvent())
    await call_directly(router, SuspendEvent())
    await call_directly(router, ResumeEvent())
    assert said().splitlines() == [
        "already running",
        "suspended",
        "already suspended; `resume` continues",
        "resumed",
    ]


async def test_terminate_suspends_then_quits() -> None:
    part, quits = Part(), Quits()
    router = new(suspend=part, shutdown=quits, input=False, signals=False)
    await call_directly(router, TerminateEvent())
    assert (part.calls, quits.count) == (["suspend"], 1)


async def test_quitting_happens_once() -> None:
    quits = Quits()
    router = new(shutdown=quits, input=False)
    for event in (ShutdownEvent(), ShutdownEvent(), SignalEvent(15), TerminateEvent()):
        await call_directly(router, event)
    assert quits.count == 1


async def test_outside_a_lifetime_quitting_stops_the_router(clock: Clock) -> None:
    router = new(input=False, signals=False)
    task = asyncio.create_task(router.run())
    await clock.settle()
    await router.emit(ShutdownEvent())
    await task


async def test_help_lists_names_and_the_first_line_of_the_docstring(said: Any) -> None:
    router = new(input=False, signals=False)

    @router.command
    def deploy(event: CommandEvent) -> None:
        """Deploy TARGET.

        And much more.
        """

    router.command("later", deploy, help="Some other time.")
    await call_directly(router, CommandEvent("help"))
    lines = said().splitlines()
    assert "deploy         Deploy TARGET." in lines
    assert "later          Some other time." in lines
    assert "quit, q, exit  End the program." in lines
    assert "help, ?        List the commands." in lines
    assert len(lines) == 9


async def test_status_shows_program_router_and_suspension(clock: Clock, said: Any) -> None:
    router = new(suspend=Part(), input=False, signals=False)
    router.add_source(QueueSource(asyncio.Queue()))
    await call_directly(router, SuspendEvent())
    said()
    await call_directly(router, CommandEvent("status"))
    text = said()
    assert "program    no lifetime" in text
    assert "state      suspended" in text
    assert f"router     {len(router.routes())} routes, 1 source\n" in text


@pytest.mark.parametrize("name", ["suspend", "s", "?", "quit", "help", "status", "x"])
def test_a_command_that_shadows_a_built_in_raises(name: str) -> None:
    with pytest.raises(RouteConflict, match="built in"):
        new(commands={name: print}, input=False)
    router = new(input=False)
    with pytest.raises(RouteConflict):
        router.command(name, print)


@pytest.mark.parametrize(("event", "answer"), [(ReloadEvent(), "reload"), (SuspendEvent(), "suspend")])
async def test_a_lifecycle_command_without_a_handler_is_answered(
    clock: Clock, said: Any, event: Any, answer: str
) -> None:
    router = new(input=False, signals=False)
    async with running(router):
        await router.emit(event)
    assert said() == f"There is nothing to {answer} here.\n"


async def test_a_reload_handler_can_be_added(clock: Clock) -> None:
    router, seen = new(input=False, signals=False), Recorder()
    router.handle("lifecycle/reload", seen)
    async with running(router):
        await router.emit(ReloadEvent())
    assert seen.events == [ReloadEvent()]


async def test_unknown_lines_are_answered(said: Any) -> None:
    router = new(input=False, signals=False)
    await call_directly(router, UnknownCommandEvent("x", ("help", "quit")))
    await call_directly(router, UnknownCommandEvent("y" * 1_000_000, ("help",)))
    first, second = said().splitlines()
    assert first == "Unknown command 'x'. Try: help"
    assert len(second) < 100


async def test_arguments_of_a_command_without_arguments_are_answered(said: Any) -> None:
    router = new(input=False, signals=False)
    event = router.commands.parse("exit the building")
    assert event is not None
    await call_directly(router, event)
    assert said() == "'exit' takes no arguments, so 'exit the building' is not a command. Type only 'exit'.\n"


async def test_unknown_lines_go_to_the_unknown_handler() -> None:
    seen = Recorder()
    router = new(unknown=seen, input=False, signals=False)
    await call_directly(router, UnknownCommandEvent("x", ()))
    assert seen.topics == ["input/unknown"]


# -- lines -----------------------------------------------------------------------------------------------------


async def typed(monkeypatch: pytest.MonkeyPatch, text: str, **settings: Any) -> list[Any]:
    """Return all results of typing ``text`` on stdin, until the router stops."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    router, seen = new(signals=False, **settings), Recorder()
    router.observe("**", seen)
    async with asyncio.timeout(30):
        await router.run()
    return seen.events


async def test_lines_are_handled_one_after_the_other(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    calls: list[str] = []

    async def slow(event: CommandEvent) -> None:
        await asyncio.sleep(0.01)
        calls.append(f"slow {event.args[0]}")

    part = Part(takes=0.01)
    await typed(monkeypatch, "slow 1\nsuspend\nslow 2\nresume", suspend=part, commands={"slow": slow})
    assert calls == ["slow 1", "slow 2"]
    assert said().splitlines() == ["suspended", "resumed"]


async def test_lines_after_quit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    events = await typed(monkeypatch, "quit\nsuspend\n", suspend=Part())
    assert events == [ShutdownEvent("quit")]


async def test_lines_that_wait_for_a_command_are_not_obeyed_after_a_quit_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.write(write, b"work\nnext\n")
    seen, begun = Recorder(), asyncio.Event()

    async def work(_: CommandEvent) -> None:
        begun.set()
        await asyncio.sleep(0.01)

    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        router = new(signals=False, commands={"work": work, "next": seen})
        running = asyncio.create_task(router.run())
        await begun.wait()
        await router.emit(ShutdownEvent("SIGTERM"))
        async with asyncio.timeout(30):
            await running
    os.close(write)
    assert not seen.events


async def test_the_default_handler_gets_lines_that_are_not_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Recorder()
    await typed(monkeypatch, "hello there\nquit\n", default=lines)
    assert lines.events == [LineEvent("hello there")]


async def test_an_empty_stdin_does_not_quit(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    quits = Quits()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    router = new(shutdown=quits, signals=False)
    async with running(router):
        await clock.advance(10)
        assert quits.count == 0


# -- a prefix of commands ----------------------------------------------------------------------------------------


async def test_only_lines_with_the_prefix_are_commands(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    lines, models = Recorder(), []

    def model(name: str) -> None:
        models.append(name)

    text = "help me\n/model big\n  /model small\nmodel huge\nquit\n/quit\n"
    await typed(monkeypatch, text, default=lines, commands={"model": model}, command_prefix="/")
    assert [event.line for event in lines.events] == ["help me", "model huge", "quit"]
    assert models == ["big", "small"]
    assert said() == ""


async def test_a_line_with_the_prefix_is_never_free_text(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    lines = Recorder()
    await typed(monkeypatch, "/hlep\n/\n/ help\n/quit now\n", default=lines, command_prefix="/")
    assert lines.events == []
    assert said().splitlines() == [
        "Unknown command '/hlep'. Try: /help",
        "Unknown command '/'. Try: /help",
        "Unknown command '/'. Try: /help",
        "'/quit' takes no arguments, so '/quit now' is not a command. Type only '/quit'.",
    ]


async def test_without_a_default_a_line_without_the_prefix_is_unknown(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    await typed(monkeypatch, "help\n/help\n/suspend\n/suspend\n", suspend=Part(), command_prefix="/")
    answers = said()
    assert answers.startswith("Unknown command 'help'. Try: /help\n/suspend, /s")
    assert "/quit, /q, /exit" in answers
    assert answers.endswith("suspended\nalready suspended; `/resume` continues\n")


@pytest.mark.parametrize("prefix", [" ", "/ ", "a b"])
def test_a_prefix_with_blanks_raises(prefix: str) -> None:
    with pytest.raises(ValueError, match="contains blanks; use a prefix such as '/'"):
        new(command_prefix=prefix)


def test_the_error_about_a_slash_names_the_prefix() -> None:
    with pytest.raises(ValueError, match=r"'/model' is not a valid command name.*use command_prefix='/'"):
        new(input=False).command("/model", print)
