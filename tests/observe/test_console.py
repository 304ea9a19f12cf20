"""`Console`: queries, which change nothing, and commands."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import threading
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.control import Busy, Command, Dropped, Event, Router
from lifecycle.interactive import new_interactive_router
from lifecycle.observe import Console, EventLog, TooMany, Verdict
from lifecycle.observe.output import Output
from lifecycle.runtime import current, lifetime
from lifecycle.testing import Recorder, running
from lifecycle.workers import Spec, Supervisor, TaskWorker
from tests.observe.test_steering import forever, steered

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "q\"'<b>[x]{y}|`é\U0001f600\n"


# -- outcomes ------------------------------------------------------------------------------------------------------


async def test_an_unknown_command_is_answered_with_names_and_not_with_aliases() -> None:
    router = Router()
    router.commands.add(Command("deploy", aliases=("d", "ship")))
    async with steered(router) as (_, console):
        strange = await console.command("xyzzy")
        near = await console.command("shipp")
    words = str(strange.error).partition("; the commands are ")[2].split(", ")
    assert "deploy" in words
    assert not {"d", "ship"} & set(words)
    assert near.error == "unknown command 'shipp'; did you mean 'ship'?"


@pytest.mark.parametrize("line", ["terminate 1", "quit extra", "suspend -f"])
async def test_arguments_for_a_command_that_takes_none_are_refused(line: str) -> None:
    async with steered(new_interactive_router(input=False, signals=False)) as (life, console):
        outcome = await console.command(line)
        assert not life.stopping
    assert outcome.outcome is Verdict.UNKNOWN
    assert outcome.error == f"{line.split(maxsplit=1)[0]!r} takes no arguments; send it without any"


async def test_an_outcome_shows_no_secret_of_an_error() -> None:
    router = Router()

    def fail(_: object) -> None:
        raise ValueError("no database at postgres://bob:hunter2@db")

    router.command("bad", fail)
    async with steered(router) as (_, console):
        outcome = await console.command("bad")
    assert outcome.error == "no database at postgres://bob:***@db"


async def test_an_outcome_has_verdict_and_error_of_the_command() -> None:
    router = Router()

    def fail(_: object) -> None:
        raise ValueError("no such target")

    def give_up(_: object) -> None:
        raise Dropped("not today")

    def fail_silently(_: object) -> None:
        raise KeyError

    for name, handler in (("good", print), ("bad", fail), ("up", give_up), ("mute", fail_silently)):
        router.command(name, handler)
    async with steered(router) as (_, console):
        outcomes = [await console.command(line) for line in ("good", "bad", "up", "mute", "godo", "x" * 1000)]
    assert [(each.outcome.value, each.error) for each in outcomes[:5]] == [
        ("handled", None),
        ("failed", "no such target"),
        ("dropped", "not today"),
        ("failed", "KeyError"),
        ("unknown", "unknown command 'godo'; did you mean 'good'?"),
    ]
    assert all(each.delivery is not None for each in outcomes[:4])
    assert len(outcomes[-1].error or "") < 300
    assert json.loads(json.dumps(outcomes[0].to_dict()))["outcome"] == "handled"


async def test_a_delivery_is_the_one_that_the_log_has() -> None:
    router = Router()
    router.command("deploy", print)
    async with steered(router) as (_, console):
        outcome = await console.command("deploy prod")
        assert outcome.delivery is not None
        entry = console.events.get(outcome.delivery)
        assert entry is not None
        assert (entry.topic, entry.what, entry.parent) == ("command/deploy", "handled", None)


async def test_a_command_given_inside_a_handler_has_no_parent() -> None:
    router, consoles = Router(), list[Console]()

    async def relay(_: object) -> None:
        outcome = await consoles[0].command("deploy")
        entry = consoles[0].events.get(outcome.delivery or 0)
        assert entry is not None
        assert entry.parent is None

    router.command("deploy", print)
    router.handle("relay", relay)
    async with steered(router) as (_, console):
        consoles.append(console)
        await (await router.emit(Event("relay")))


async def test_a_command_whose_event_cannot_be_made_has_failed() -> None:
    router = Router()

    def explode(_: object) -> Event:
        raise RuntimeError("boom")

    router.commands.add(Command("odd", event=explode))
    async with steered(router) as (_, console):
        outcome = await console.command("odd")
    assert (outcome.outcome, outcome.error) == (Verdict.FAILED, "boom")


@pytest.mark.parametrize("line", ["", "   ", "\n", "''"])
async def test_a_blank_line_is_ignored(line: str) -> None:
    async with steered(Router()) as (_, console):
        if line == "''":
            assert (await console.command(line)).outcome is Verdict.UNKNOWN
        else:
            with pytest.raises(ValueError, match="the line is blank"):
                await console.command(line)


@pytest.mark.parametrize("topic", ["", "a" * 2000, "\ud800", HOSTILE, "lifecycle/nobody"])
async def test_an_event_without_a_route_has_failed(topic: str) -> None:
    async with steered(Router()) as (_, console):
        outcome = await console.emit(topic, {"x": 1})
    assert outcome.outcome is Verdict.FAILED
    assert outcome.error


async def test_an_event_is_not_sent_to_a_router_because_it_is_observed_there() -> None:
    first, second = Router("first"), Router("second")
    first.fallback(first_took := Recorder())
    second.observe("**", Recorder())
    second.fallback(second_took := Recorder())
    async with steered(first, second) as (_, console):
        await console.emit("nobody/knows", None)
    assert (len(first_took.events), len(second_took.events)) == (1, 0)


async def test_cancelling_the_caller_does_not_cancel_the_command() -> None:
    router, entered, go_on, done = Router(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> None:
        entered.set()
        await go_on.wait()
        done.set()

    router.command("slow", slow)
    async with steered(router) as (_, console):
        asked = asyncio.create_task(console.command("slow"))
        await entered.wait()
        asked.cancel()
        await asyncio.wait({asked})
        go_on.set()
        await asyncio.wait_for(done.wait(), 30)


async def test_cancelling_the_caller_in_a_full_lane_does_not_cancel_the_event() -> None:
    router, go_on, seen = Router(buffer=0), asyncio.Event(), Recorder()

    async def slow(event: Any) -> None:
        await go_on.wait()
        seen(event)

    router.handle("work", slow)
    async with steered(router) as (_, console):
        asked = [asyncio.create_task(console.emit("work", number)) for number in range(5)]
        for _ in range(10):
            await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        go_on.set()
        while len(seen.events) < 5:
            await asyncio.sleep(0)
    assert [event.data for event in seen.events] == [0, 1, 2, 3, 4]


async def test_too_many_commands_are_refused() -> None:
    router, go_on = Router(), asyncio.Event()

    async def slow(_: object) -> None:
        await go_on.wait()

    router.command("slow", slow)
    async with steered(router) as (_, console):
        asked = [asyncio.create_task(console.command("slow")) for _ in range(200)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany, match="200 commands are running"):
            await console.command("slow")
        go_on.set()
        assert {(await each).outcome for each in asked} == {Verdict.HANDLED}


async def test_commands_that_hang_do_not_keep_a_program_from_being_stopped() -> None:
    router, go_on = Router(), asyncio.Event()
    router.command("hang", lambda _: go_on.wait())
    async with steered(router) as (life, console):
        orders = [asyncio.create_task(console.command("hang")) for _ in range(200)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await console.command("status")
        assert (await console.command("stop")).outcome is Verdict.HANDLED
        assert life.stopping
        go_on.set()
        await asyncio.gather(*orders)


async def test_closing_a_console_does_not_wait_for_commands() -> None:
    router, go_on = Router(), asyncio.Event()

    async def slow(_: object) -> None:
        await go_on.wait()

    router.command("slow", slow)
    async with lifetime(signals=False), running(router):
        async with Console() as console:
            asked = asyncio.create_task(console.command("slow"))
            await asyncio.sleep(0)
        assert (await asyncio.wait({asked}))[0] == {asked}
        assert asked.cancelled()
        go_on.set()


# -- responses -----------------------------------------------------------------------------------------------------


async def test_each_gets_the_answer_to_his_own_question(capsys: pytest.CaptureFixture[str]) -> None:
    router = new_interactive_router(input=False, signals=False)
    async with steered(router) as (_, console):
        helped, status = await asyncio.gather(console.command("help"), console.command("status"))
        assert helped.answer is not None
        assert status.answer is not None
        assert "List the commands." in helped.answer
        assert status.answer.startswith("program")
        assert capsys.readouterr().out == ""
        # The next event in the same lane comes from the prompt.
        event: Any = router.commands.parse("status")
        await (await router.emit(event))
        assert capsys.readouterr().out.startswith("program")
    assert not hooks.handler_started.receivers


async def test_an_event_that_is_merged_away_has_the_outcome_of_its_call(clock: Any) -> None:
    router, seen = Router(), Recorder()
    router.handle("file/*", seen, debounce=1)
    async with steered(router) as (_, console):
        asked = [asyncio.create_task(console.emit("file/a", number)) for number in range(3)]
        await clock.advance(2)
        assert {(await each).outcome for each in asked} == {Verdict.HANDLED}
    assert [event.data for event in seen.events] == [2]


async def test_a_superseded_event_is_dropped() -> None:
    router, entered, go_on = Router(), asyncio.Event(), asyncio.Event()

    async def build(_: object) -> None:
        entered.set()
        await go_on.wait()

    router.handle("build", build, busy=Busy.RESTART)
    async with steered(router) as (_, console):
        first = asyncio.create_task(console.emit("build"))
        await entered.wait()
        second = asyncio.create_task(console.emit("build"))
        assert (await first).outcome is Verdict.DROPPED
        go_on.set()
        assert (await second).outcome is Verdict.HANDLED


# -- queries -------------------------------------------------------------------------------------------------------


async def test_commands_are_listed_once_with_the_router_that_has_them() -> None:
    first, second = Router("first"), Router("second")
    second.command("deploy", print, help=" Deploy TARGET. \n\nMore.")
    async with steered(first, second) as (_, console):
        listed = {each["name"]: each for each in console.commands()}
        assert len(listed) == len(console.commands())
        assert listed["deploy"] == {
            "name": "deploy",
            "help": "Deploy TARGET. \n\nMore.",
            "usage": "",
            "aliases": [],
            "router": "second",
        }
        assert listed["stop"]["router"] == "first"
        routes = [(each["router"], each["pattern"]) for each in console.routes()]
        assert ("second", "command/deploy") in routes
        assert not [pattern for _, pattern in routes if "[" in pattern], "built-in routes are not the program's own"
        json.dumps([console.commands(), console.routes()])


async def test_commands_and_arguments_are_completed() -> None:
    router = Router()

    def broken(_: str) -> list[str]:
        raise RuntimeError("boom")

    router.command("deploy", print, complete=["prod", "preview", "dev"])
    router.command("break", print, complete=broken)
    async with steered(router) as (_, console):
        assert console.complete("de") == ["deploy"]
        assert console.complete("deploy p") == ["preview", "prod"]
        assert console.complete("deploy ") == ["dev", "preview", "prod"]
        assert console.complete("break x") == []
        assert console.complete("nobody x") == []
        assert "status" in console.complete("")
        assert console.complete("'unclosed") == []


async def test_diagrams_are_of_the_system_the_lifetime_a_worker_or_nothing() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    class Broken:
        name = "broken"

        def state(self) -> None:
            raise RuntimeError("boom")

    spec = Spec(HOSTILE, lambda: TaskWorker(HOSTILE, forever))
    async with steered(Router("<b>")) as (_, console), Supervisor("root", spec):
        broken = Broken()
        added = current().add(broken)
        assert console.diagram().startswith("graph TD")
        assert "stateDiagram" in console.diagram("lifetime")
        assert console.diagram("root").startswith("graph TD")
        assert "stateDiagram" in console.diagram(HOSTILE)
        assert console.diagram(f"root/{HOSTILE}") == console.diagram(HOSTILE)
        with pytest.raises(LookupError, match="'x' is neither a worker nor a flow"):
            console.diagram("x")
        added.end()


async def test_a_dump_has_the_stacks_of_tasks_and_threads() -> None:
    async with steered(Router()) as (_, console):
        text = console.stacks()
    assert "Current thread" in text
    assert "test_a_dump_has_the_stacks" in text


async def test_stacks_of_one_task_are_found_by_its_name() -> None:
    async with steered(Router()) as (life, console):
        life.go(forever, name="poll")
        await asyncio.sleep(0)
        assert console.stacks("poll").startswith("Task poll:\n")
        assert "Thread" not in console.stacks("poll")
        with pytest.raises(LookupError, match="no task is called 'pol'"):
            console.stacks("pol")


async def test_tasks_have_ages_and_the_places_where_they_wait(clock: Any) -> None:
    async def wait_in_a_library() -> None:
        await asyncio.gather(asyncio.sleep(0), forever())

    async with steered(Router()) as (life, console), Supervisor("root", Spec("one", forever)):
        started = [life.go(wait_in_a_library, name="poll"), asyncio.create_task(forever(), name="other")]
        await asyncio.sleep(3)
        tasks = {each["name"]: each for each in console.tasks()}
        for task in started:
            task.cancel()
        await asyncio.wait(started)
    line = wait_in_a_library.__code__.co_firstlineno + 1
    assert tasks["poll"]["waits_at"] == f"{__file__}:{line} wait_in_a_library"
    assert tasks["poll"]["age"] == pytest.approx(3)
    assert tasks["one"]["waits_at"].endswith(" forever")
    assert tasks["one"]["age"] is not None
    assert tasks["other"]["age"] is None
    assert tasks["other"]["created_at"] is None
    assert len({each["id"] for each in tasks.values()}) == len(tasks)


async def test_tasks_have_the_place_that_created_them_in_debug_mode() -> None:
    loop = asyncio.get_running_loop()
    async with steered(Router()) as (life, console):
        loop.set_debug(True)
        life.go(forever, name="poll")
        loop.set_debug(False)
        await asyncio.sleep(0)
        [task] = [each for each in console.tasks() if each["name"] == "poll"]
    assert str(task["created_at"]).startswith(f"{__file__}:")


async def test_a_dump_masks_secrets_in_lines_of_code() -> None:
    async def wait_with(*, password: str) -> None:
        await asyncio.Event().wait()

    async def connect() -> None:
        await wait_with(password="hunter2")

    async with steered(Router()) as (_, console), asyncio.TaskGroup() as group:
        task = group.create_task(connect())
        await asyncio.sleep(0)
        text = console.stacks()
        task.cancel()
    assert "await wait_with(password=***" in text
    assert "hunter2" not in text


async def test_the_snapshot_is_of_the_program() -> None:
    async with steered(Router("mine")) as (_, console):
        state = console.snapshot().to_dict()
        assert [each["name"] for each in state["routers"]] == ["mine"]
        async with console.watch() as changes:
            first = await anext(changes)
        assert "mine" in {node["name"] for node in first.nodes.values() if node}


async def test_the_log_of_the_program_is_used_where_there_is_one() -> None:
    async with lifetime(signals=False):
        async with EventLog() as log, Console() as console:
            assert console.events is log
        async with Console() as console:
            own = console.events
            assert own is not log
            async with EventLog() as later:
                assert console.events in (own, later)


async def test_a_console_needs_a_lifetime() -> None:
    console = Console()
    with pytest.raises(LookupError, match="no lifetime"):
        await console.__aenter__()
    with pytest.raises(RuntimeError, match="the console is closed"):
        console.commands()
    async with lifetime(signals=False), console:
        with pytest.raises(RuntimeError, match="already open"):
            await console.__aenter__()


# -- output --------------------------------------------------------------------------------------------------------


@contextmanager
def a_terminal() -> Iterator[io.StringIO]:
    with redirect_stdout(io.StringIO()) as file:
        yield file
        assert sys.stdout is file, "the stream was not restored"


async def test_listeners_get_output_that_is_still_printed() -> None:
    with a_terminal() as terminal:
        await hear_everything(terminal)
    assert terminal.getvalue() == "before\nduring\nlogged\nfrom a thread\nafter\n"


async def hear_everything(terminal: io.StringIO) -> None:
    log, handler = logging.getLogger("tests.console"), logging.StreamHandler(sys.stdout)
    log.addHandler(handler)
    async with steered(Router()) as (_, console):
        print("before")
        with console.listening() as texts:
            print("during")
            log.warning("logged")
            assert await anext(texts) == "during\nlogged\n"
            thread = threading.Thread(target=print, args=("from a thread",))
            thread.start()
            assert (await anext(texts)).startswith("from a thread")
            thread.join()
        print("after")
        assert handler.stream is terminal
    log.removeHandler(handler)


async def test_consoles_come_and_go_in_any_order() -> None:
    first, second, held = Output(), Output(), ExitStack()
    with a_terminal() as terminal:
        with first.listening() as one:
            two = held.enter_context(second.listening())
            print("both")
            assert (await anext(one), await anext(two)) == ("both\n", "both\n")
        print("second only")
        assert await anext(two) == "second only\n"
        held.close()
        print("neither")
    assert terminal.getvalue() == "both\nsecond only\nneither\n"


async def test_a_slow_listener_loses_the_oldest_output_and_gets_the_count() -> None:
    output = Output()
    with a_terminal() as terminal, output.listening() as texts:
        for number in range(1000):
            print(f"{number:>999}")
            if number % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        text = await anext(texts)
        assert text.endswith("999\n")
        assert (len(text) + texts.dropped, len(text) <= 256 * 1024) == (1_000_000, True)
    assert terminal.getvalue().count("\n") == 1000


async def test_output_is_complete_or_counted_as_dropped() -> None:
    output = Output()
    with a_terminal() as terminal, output.listening() as texts:
        for number in range(8000):
            print(number)
        assert await anext(texts) == terminal.getvalue()
        for _ in range(20):
            print("x" * 99_999)
        text = await anext(texts)
        assert (len(text) + texts.dropped, len(text) // 100_000) == (2_000_000, 2)


async def test_the_end_of_an_endless_line_is_kept() -> None:
    output = Output()
    with a_terminal(), output.listening() as texts:
        print("x" * 1_000_000, end="end")
        text = await anext(texts)
        assert text.endswith("xend")
        assert (len(text) + texts.dropped, len(text) // 1024) == (1_000_003, 252)


async def test_output_of_threads_is_bounded_while_the_loop_is_blocked() -> None:
    output = Output()
    with a_terminal() as terminal, output.listening() as texts:
        thread = threading.Thread(target=lambda: [print("x" * 999) for _ in range(2000)])
        thread.start()
        thread.join()
        assert len(asyncio.get_running_loop()._ready) < 10  # type: ignore[attr-defined]  # that all be passed on, once
        text = await anext(texts)
        assert len(text) <= 256 * 1024
        assert len(text) + texts.dropped == len(terminal.getvalue())
