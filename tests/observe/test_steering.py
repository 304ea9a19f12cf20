"""The commands that a control socket adds to a program: their effects and their precedence."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle._steering.commands import CommandInstaller, built_in_patterns
from lifecycle.control import Event, NotHandled, Router
from lifecycle.events import ShutdownEvent, SuspendEvent
from lifecycle.handlers import SuspendHandler
from lifecycle.interactive import new_interactive_router
from lifecycle.observe import Console, Outcome, Verdict
from lifecycle.runtime import Lifetime, current, lifetime
from lifecycle.testing import ManualSource, Recorder, running
from lifecycle.workers import Spec, Supervisor, TaskWorker
from lifecycle.workers.pool import Pool
from lifecycle.workers.stdio import RecentLines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle._durations import Duration

WORDS = {"cancel", "emit", "flows", "hold", "release", "reload", "restart", "resume"}
WORDS |= {"start", "status", "stop", "suspend", "terminate"}
HANDLED = Verdict.HANDLED


@asynccontextmanager
async def steered(*routers: Router) -> AsyncGenerator[tuple[Lifetime, Console]]:
    async with lifetime(signals=False) as life:
        tasks = [life.go(router.run) for router in routers]
        for router in routers:
            await router.wait_running()
        async with Console() as console:
            try:
                yield life, console
            finally:
                for router in routers:
                    router.stop()
                await asyncio.gather(*tasks)


async def forever(*_: object) -> None:
    await asyncio.Event().wait()


def tree(*names: str) -> Supervisor:
    return Supervisor("root", *(Spec(name, lambda name=name: TaskWorker(name, forever)) for name in names))


# -- built-in commands -----------------------------------------------------------------------------------------------


async def test_the_built_in_commands_exist_while_a_console_is_open() -> None:
    router = Router()
    router.command("deploy", print)
    before = router.routes()
    async with steered(router):
        assert set(router.commands.words()) == WORDS | {"deploy", "s", "r"}
        assert [route.pattern for route in router.routes() if route not in before] == [
            f"command/[{word[0]}]{word[1:]}" for word in sorted(WORDS - {"suspend", "resume", "reload"})
        ]
        assert built_in_patterns(router) == {route.pattern for route in router.routes() if route not in before}
    assert router.commands.words() == ("deploy",)
    assert [route.pattern for route in router.routes()] == ["command/deploy"]
    assert not built_in_patterns(router)


async def test_a_router_that_starts_later_has_the_commands_until_it_stops() -> None:
    router = Router()
    async with steered() as (life, _):
        task = life.go(router.run)
        await router.wait_running()
        await asyncio.sleep(0)
        assert "stop" in router.commands
        router.stop()
        await task
        assert router.commands.words() == ()
        assert router.routes() == []


async def test_a_router_of_another_lifetime_is_not_affected() -> None:
    router = Router()
    async with lifetime(signals=False) as life:
        with CommandInstaller(life, asyncio.get_running_loop()):
            async with lifetime(signals=False):
                pass
        async with running(router):
            pass
    async with running(router):
        assert router.commands.words() == ()


async def test_commands_of_the_program_win_before_and_later() -> None:
    router, mine = Router(), Recorder()
    router.command("restart", mine)
    async with steered(router) as (_, console):
        router.command("status", mine)
        router.handle("command/stop", mine)
        for line in ("restart it", "status", "stop"):
            assert (await console.command(line)).outcome is HANDLED
        assert mine.topics == ["command/restart", "command/status", "command/stop"]
        assert [each["name"] for each in console.commands()].count("status") == 1
    assert router.commands.words() == ("restart", "status")


async def test_several_consoles_share_the_built_in_commands() -> None:
    router = Router()
    async with steered(router) as (_, console):
        routes = router.routes()
        async with Console() as second:
            assert router.routes() == routes
            assert (await second.command("status")).outcome is HANDLED
        assert "stop" in router.commands
        assert (await console.command("status")).outcome is HANDLED
    assert router.commands.words() == ()


async def test_no_hook_is_connected_without_a_console() -> None:
    before = {name: len(getattr(hooks, name).receivers) for name in hooks.__all__ if name != "Hook"}
    router = Router()
    async with steered(router) as (_, console):
        await console.command("status")
    assert {name: len(getattr(hooks, name).receivers) for name in before} == before


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_stop_shuts_the_lifetime_down_by_default() -> None:
    router, noted = Router(), Recorder()
    router.handle("**", noted)
    async with steered(router) as (life, console):
        assert (await console.command("stop")).outcome is HANDLED
        assert life.stopping
    assert noted.topics == []


async def test_stop_is_the_programs_own_quit_where_it_has_one() -> None:
    router, own = Router(), Recorder()
    router.handle("lifecycle/shutdown", own)
    async with steered(router) as (life, console):
        await console.command("stop")
        assert own.events == [ShutdownEvent("stop")]
        assert not life.stopping


@pytest.mark.parametrize("pattern", ["**", "*/**", "*/*", "**/shutdown"])
async def test_a_logger_is_not_a_quit_command(pattern: str) -> None:
    router, log = Router(), Recorder()
    router.handle(pattern, log)
    async with steered(router) as (life, console):
        await console.command("stop")
        assert life.stopping


async def test_stop_shuts_down_if_the_handler_of_quit_passes_the_event_on() -> None:
    router = Router()

    def pass_on(_: object) -> None:
        raise NotHandled("not mine")

    router.handle("lifecycle/*", pass_on)
    for word in ("stop", "terminate"):
        async with steered(router) as (life, console):
            assert (await console.command(word)).outcome is HANDLED
            assert life.stopping


async def test_an_event_goes_to_a_router_with_its_route_before_one_with_a_catch_all() -> None:
    takes, wants, seen, log = Router("takes"), Router("wants"), Recorder(), Recorder()
    takes.handle("**", log)
    wants.handle("*/new", seen)
    async with steered(takes, wants) as (_, console):
        await console.emit("order/new")
        await console.emit("nobody/wants")
    assert (seen.topics, log.topics) == (["order/new"], ["nobody/wants"])


async def test_stop_goes_to_the_router_with_a_quit() -> None:
    first, second, own = Router("first"), Router("second"), Recorder()
    second.handle("lifecycle/shutdown", own)
    async with steered(first, second) as (_, console):
        await console.command("stop")
    assert own.events == [ShutdownEvent("stop")]


@pytest.mark.parametrize("observed", [None, "lifecycle/terminate"])
async def test_terminate_suspends_first(observed: str | None) -> None:
    """An observer does not handle the command."""
    router, order = Router(), Recorder()
    router.handle("lifecycle/suspend", order)
    if observed is not None:
        router.observe(observed, Recorder())
    async with steered(router) as (life, console):
        await console.command("terminate")
        stopped = life.stopping
    # An assertion inside the block would be lost, because the block is cancelled when the lifetime stops.
    assert order.events == [SuspendEvent()]
    assert stopped


async def test_terminate_stops_also_where_suspending_fails() -> None:
    router = Router()

    async def fail(_: object) -> None:
        raise RuntimeError("it hangs")

    router.handle("lifecycle/suspend", fail)
    async with steered(router) as (life, console):
        outcome = await console.command("terminate")
        assert (outcome.outcome, outcome.error) == (Verdict.FAILED, "it hangs")
        assert life.stopping


async def test_a_program_without_a_router_has_the_built_in_commands() -> None:
    async with steered() as (life, console), tree("web") as root:
        assert (await console.command("restart web")).outcome is HANDLED
        assert root["web"].status == "running"
        answer = (await console.command("status")).answer
        assert answer is not None
        assert answer.startswith("program    running")
        refused = await console.command("suspend")
        assert refused.outcome is Verdict.FAILED
        assert refused.error is not None
        assert "this program cannot be suspended, because it has no handler" in refused.error
        await console.command("stop")
        assert life.stopping


# -- workers -----------------------------------------------------------------------------------------------------------


async def test_restart_finds_a_child_by_its_name_or_its_path() -> None:
    inner = Spec("inner", lambda: Supervisor("inner", Spec("job", lambda: TaskWorker("job", forever))))
    async with steered(Router()) as (_, console), Supervisor("root", inner) as root:
        job = root["inner"]["job"]  # type: ignore[index]  # it is a supervisor
        for name in ("job", "root/inner/job"):
            assert (await console.command(f"restart {name}")).outcome is HANDLED
            assert root["inner"]["job"] is not job  # type: ignore[index]  # as above
            job = root["inner"]["job"]  # type: ignore[index]  # as above
        assert console.complete("restart root/i") == ["root/inner", "root/inner/job"]


async def test_a_name_that_several_have_needs_its_path() -> None:
    async with steered(Router()) as (_, console), tree("web", "db"):
        twin = Supervisor("other", Spec("web", lambda: TaskWorker("web", forever)))
        async with twin:
            assert await refusal(console, "restart web") == "'web' is ambiguous; use one of root/web, other/web"
            assert (await console.command("restart other/web")).outcome is HANDLED
            assert console.complete("restart w") == ["web"]


async def test_restart_of_an_unknown_name_lists_the_workers() -> None:
    async with steered(Router()) as (_, console):
        message = "no worker is called 'x'; available: none"
        assert await refusal(console, "restart x") == message
        async with tree("a b", 'q"<é>', "x"):
            message = "no worker is called 'y'; available: root/a b, root/q\"<é>, root/x"
            assert await refusal(console, "restart y") == message
            assert (await console.command("restart 'a b'")).outcome is HANDLED
        assert await refusal(console, "restart") == "usage: restart NAME ..."


async def test_a_supervisor_whose_workers_raise_does_not_hide_others() -> None:
    class Silent:
        name = "silent"

        def workers(self) -> None:
            raise RuntimeError("not today")

        async def restart(self, name: str) -> None:
            """Restart the worker as a supervisor does."""

        state = workers

    silent = Silent()
    async with steered(Router()) as (_, console), tree("web"):
        added = current().add(silent)
        assert console.complete("restart w") == ["web"]
        assert (await console.command("restart web")).outcome is HANDLED
        added.end()


async def test_a_pool_is_refreshed_rather_than_ended() -> None:
    refreshed: list[str] = []

    class Refreshed(TaskWorker):
        async def refresh(self) -> None:
            refreshed.append(self.name)

    assert inspect.iscoroutinefunction(Pool.refresh), "pools are recognized by their async refresh method"
    async with steered(Router()) as (_, console):
        pools = Supervisor("pools", Spec("crunch", lambda: Refreshed("crunch", forever)))
        async with pools, Refreshed("alone", forever):
            crunch = pools["crunch"]
            assert (await console.command("restart crunch")).outcome is HANDLED
            assert (await console.command("restart alone")).outcome is HANDLED
            assert pools["crunch"] is crunch
            await pools.stop_child("crunch")
            assert (await console.command("restart crunch")).outcome is HANDLED
            assert pools["crunch"] is not crunch
    assert refreshed == ["crunch", "alone"]


async def test_a_failed_restart_shows_the_reason() -> None:
    class Broken(TaskWorker):
        async def _launch(self) -> Any:
            raise RuntimeError("no disk")

    workers = iter((TaskWorker("w", forever), Broken("w", forever)))
    async with steered(Router()) as (_, console), Supervisor("root", Spec("w", lambda: next(workers))):
        outcome = await console.command("restart w")
        assert outcome.outcome is Verdict.FAILED
        assert outcome.error is not None
        assert "no disk" in outcome.error


async def test_a_running_restart_does_not_delay_other_commands() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        name, status = "slow", "running"

        async def refresh(self) -> None:
            entered.set()
            await go_on.wait()

    router = Router()
    async with steered(router) as (_, console):
        slow = Slow()
        added = current().add(slow)
        restart = asyncio.create_task(console.command("restart slow"))
        await entered.wait()
        assert (await console.command("status")).outcome is HANDLED
        go_on.set()
        assert (await restart).outcome is HANDLED
        added.end()


async def test_a_child_is_stopped_and_started_and_the_program_continues() -> None:
    async with steered(Router()) as (life, console), tree("one", "two") as root:
        assert console.complete("stop o") == ["one"]
        assert (await console.command("stop root/one")).outcome is HANDLED
        assert [str(each.status) for each in root.workers()] == ["stopped", "running"]
        assert (await console.command("start one")).outcome is HANDLED
        assert [str(each.status) for each in root.workers()] == ["running", "running"]
        again = await console.command("start one")
        assert (again.outcome, again.answer) == (HANDLED, "root/one is already running")
        assert not life.stopping
        assert await refusal(console, "stop x") == "no worker is called 'x'; available: root/one, root/two"
        assert await refusal(console, "start") == "usage: start NAME ..."
        assert (await console.command("stop")).outcome is HANDLED
        assert life.stopping


async def test_a_pool_of_its_own_can_only_be_restarted() -> None:
    class Alone:
        name, status = "alone", "running"

        async def refresh(self) -> None: ...

    async with steered(Router()) as (_, console):
        pool = Alone()
        added = current().add(pool)
        text = "'alone' is not a supervisor's child; it can only be restarted"
        assert await refusal(console, "stop alone") == text
        added.end()


async def test_a_stop_of_a_child_does_not_delay_a_stop_of_the_program() -> None:
    released = asyncio.Event()

    class Slow(TaskWorker):
        async def stop(self, timeout: Duration | None = None) -> None:
            await released.wait()
            await super().stop(timeout)

    async with steered(Router()) as (life, console), Supervisor("root", Spec("w", lambda: Slow("w", forever))):
        stopping = asyncio.create_task(console.command("stop w"))
        await asyncio.sleep(0)
        assert (await console.command("stop")).outcome is HANDLED
        assert life.stopping
        released.set()
        assert (await stopping).outcome is HANDLED


# -- output ------------------------------------------------------------------------------------------------------------


class Printing(TaskWorker):
    """A task that stores output lines, as processes do."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, forever)
        self.recent = RecentLines()
        self._number = number

    async def _launch(self) -> Any:
        for word in ("starts", "runs"):
            self.recent.add(f"{word} {self._number}")
        return await super()._launch()


async def test_the_last_lines_of_a_process_survive_its_restarts() -> None:
    numbers = count(1)
    spec = Spec("web", lambda: Printing("web", next(numbers)))
    async with steered(Router()) as (_, console), Supervisor("root", spec, Spec("mute", forever)):
        assert console.lines("web", 5) == ["starts 1", "runs 1"]
        following = console.follow_lines("root/web", 1)
        assert await anext(following) == (["runs 1"], 0)
        await console.command("restart web")
        assert await anext(following) == (["starts 2", "runs 2"], 0)
        assert console.lines("web", 3) == ["runs 1", "starts 2", "runs 2"]
        await following.aclose()
        with pytest.raises(LookupError, match="no output of 'root/mute' is available"):
            console.lines("mute", 1)
        with pytest.raises(LookupError, match="no worker is called 'x'; available: root/web, root/mute"):
            console.lines("x", 1)


async def test_a_process_of_its_own_has_lines() -> None:
    async with steered(Router()) as (_, console), Printing("alone", 1):
        assert console.lines("alone", 1) == ["runs 1"]


async def test_lines_are_bounded_and_lost_ones_are_counted() -> None:
    recent = RecentLines()
    following = recent.follow(10)
    recent.add("x" * 10_000)
    [line], _ = await anext(following)
    assert len(line) == 2000
    for number in range(1200):
        recent.add(str(number))
    lines, lost = await anext(following)
    assert (len(lines), lost, lines[-1]) == (500, 700, "1199")
    await following.aclose()


# -- tasks -------------------------------------------------------------------------------------------------------------


async def test_a_task_is_cancelled_by_its_name_or_its_id() -> None:
    async with steered(Router()) as (life, console):
        first, *twins = (life.go(forever, name=name) for name in ("poll", "twin", "twin"))
        await asyncio.sleep(0)
        assert "poll" in console.complete("cancel po")
        outcome = await console.command("cancel poll")
        assert first.cancelled()
        assert outcome.answer is not None
        assert outcome.answer.startswith("cancelled the task 'poll', which was waiting at ")
        assert outcome.answer.endswith(" forever")

        text = await refusal(console, "cancel twin")
        assert text.startswith("2 tasks are called 'twin'; use one of the ids ")
        id_ = text.partition("ids ")[2].split()[0]
        assert (await console.command(f"cancel {id_}")).outcome is HANDLED
        assert sorted(each.cancelled() for each in twins) == [False, True]
        assert (await refusal(console, "cancel nobody")).startswith("no task is called 'nobody'; available: ")
        assert await refusal(console, "cancel") == "usage: cancel TASK"


async def test_a_task_that_ignores_its_cancellation_is_not_waited_for(clock: Any) -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        try:
            await released.wait()
        finally:
            await released.wait()

    async with steered(Router()) as (life, console):
        life.go(stubborn, name="stubborn")
        await asyncio.sleep(0)
        outcome = await console.command("cancel stubborn")
        released.set()
        assert outcome.answer is not None
        assert outcome.answer.endswith("; it has not finished yet")


# -- sources and events ------------------------------------------------------------------------------------------------


async def test_hold_and_release_find_the_source_at_whichever_router_it_is() -> None:
    first, second, source = Router("first"), Router("second"), ManualSource()
    second.add_source(source)
    async with steered(first, second) as (_, console):
        name = second.sources()[0].name
        assert console.complete("hold ") == [name]
        assert (await console.command(f"hold {name}")).outcome is HANDLED
        assert second.sources()[0].held
        assert (await console.command(f"release {name}")).outcome is HANDLED
        assert not second.sources()[0].held
        assert await refusal(console, "hold x") == f"no source is called 'x'; available: {name}"


async def test_all_sources_of_one_name_are_held_together() -> None:
    first, second = Router("first"), Router("second")
    for router in (first, second):
        router.add_source(ManualSource("door"))
    async with steered(first, second) as (_, console):
        assert console.complete("hold ") == ["door"]
        await console.command("hold door")
        assert [each.held for router in (first, second) for each in router.sources()] == [True, True]
        await console.command("release door")
        assert [each.held for router in (first, second) for each in router.sources()] == [False, False]


async def test_emit_sends_json_data() -> None:
    first, second, seen = Router("first"), Router("second"), Recorder()
    second.handle("a/*", seen)
    async with steered(first, second) as (_, console):
        assert (await console.command("""emit a/b '{"n": [1, "x"]}'""")).outcome is HANDLED
        assert (await console.command("emit a/c")).outcome is HANDLED
        assert seen.events == [Event("a/b", {"n": [1, "x"]}), Event("a/c")]
        message = "use a topic, and data as JSON in single quotes: emit a/b '[1, 2]'"
        for line in ("emit", "emit a {x", "emit a 1 2", "emit ''"):
            assert (await refusal(console, line)).endswith(message)
        nobody = await console.command("emit nobody/wants")
        message = "no route matches 'nobody/wants', and there is no fallback"
        assert (nobody.outcome, nobody.error) == (Verdict.FAILED, message)


# -- the prompt --------------------------------------------------------------------------------------------------------


async def test_the_prompt_has_the_built_in_commands_and_shows_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    router = new_interactive_router(input=False, signals=False, suspend=SuspendHandler())
    async with steered(router):
        for line in ("restart x", "status", "help"):
            event: Any = router.commands.parse(line)
            delivery = await router.emit(event)
            await asyncio.wait({asyncio.ensure_future(ended(delivery))})
        said = capsys.readouterr().out
    assert "no worker is called 'x'" in said
    assert "state      running" in said
    assert "restart" in said.partition("no worker is called")[2]


async def test_an_interactive_router_keeps_its_own_commands() -> None:
    suspender = SuspendHandler()
    router = new_interactive_router(input=False, signals=False, suspend=suspender)
    async with steered(router) as (life, console):
        assert (await console.command("suspend")).outcome is HANDLED
        assert suspender.suspended
        status = await console.command("status")
        assert status.answer is not None
        assert "state      suspended" in status.answer
        helped = await console.command("help")
        assert helped.answer is not None
        assert "quit, q, exit" in helped.answer
        assert (await console.command("stop")).outcome is HANDLED
        assert life.stopping


async def ended(delivery: Any) -> None:
    try:
        await delivery
    except Exception:  # noqa: BLE001  # only its end matters
        return


async def refusal(console: Console, line: str) -> str:
    outcome: Outcome = await console.command(line)
    assert outcome.outcome is Verdict.DROPPED
    assert outcome.answer is None
    assert outcome.error is not None
    return outcome.error
