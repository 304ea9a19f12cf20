"""Commands whose handlers declare their arguments as parameters."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from lifecycle.control import Router
from lifecycle.control.commands import completions
from lifecycle.control.router import call_directly
from lifecycle.errors import RouteConflict, UsageError
from lifecycle.events import CommandEvent
from lifecycle.testing import running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


async def typed(router: Router, line: str) -> None:
    event = router.commands.parse(line)
    assert event is not None
    await call_directly(router, event)


def completed(router: Router, line: str) -> list[str]:
    return completions(line, router.commands.words(), router.commands.get)[1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deploy prod", ("prod", 1, False, None)),
        ("deploy prod 3 --force", ("prod", 3, True, None)),
        ("deploy 'new york' --note 'at noon'", ("new york", 1, False, "at noon")),
    ],
)
async def test_arguments_become_parameters(line: str, expected: tuple[Any, ...]) -> None:
    router, seen = Router(), list[tuple[Any, ...]]()

    @router.command
    async def deploy(target: str, times: int = 1, force: bool = False, *, note: str | None = None) -> None:
        seen.append((target, times, force, note))

    await typed(router, line)
    assert seen == [expected]


async def test_words_are_converted_to_the_annotations() -> None:
    router, seen = Router(), list[Any]()

    @router.command
    def resize(event: CommandEvent, size: Size, mode: Literal["fast", "good"], *files: Path) -> None:
        seen.append((event.command, size, mode, files))

    await typed(router, "resize large good a.png b/c.png")
    assert seen == [("resize", Size.LARGE, "good", (Path("a.png"), Path("b/c.png")))]


async def test_a_handler_without_parameters_takes_no_arguments() -> None:
    router, seen = Router(), list[str]()

    @router.command
    def clean() -> None:
        seen.append("clean")

    await typed(router, "clean")
    with pytest.raises(UsageError, match="unrecognized arguments: all; usage: clean"):
        await typed(router, "clean all")
    assert seen == ["clean"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("deploy", "the following arguments are required: TARGET"),
        ("deploy moon", "argument TARGET: 'moon' is not one of prod, staging"),
        ("deploy prod many", "argument TIMES: invalid int value: 'many'"),
        ("deploy prod --wrong", "unrecognized arguments: --wrong"),
    ],
)
async def test_a_mistake_is_logged_with_the_usage_in_one_line(
    clock: Clock, caplog: pytest.LogCaptureFixture, line: str, message: str
) -> None:
    router = Router()

    @router.command
    async def deploy(target: Literal["prod", "staging"], times: int = 1, force: bool = False) -> None:
        raise AssertionError("not called")

    async with running(router):
        event = router.commands.parse(line)
        assert event is not None
        with pytest.raises(UsageError) as raised:
            await (await router.emit(event))
    assert str(raised.value) == f"{message}; usage: deploy [--force] TARGET [TIMES]"
    [record] = caplog.records
    assert (record.levelname, record.getMessage(), record.exc_info) == ("WARNING", str(raised.value), None)


async def test_usage_error_of_a_handler_prints_the_help_and_counts_as_no_failure(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router()

    @router.command
    async def deploy(event: CommandEvent) -> None:
        """Deploy TARGET."""
        raise UsageError("give a target")

    @router.command
    async def ship(target: str) -> None:
        raise UsageError(f"{target} is not a target")

    async with running(router):
        for line in ("deploy", "ship rome"):
            event = router.commands.parse(line)
            assert event is not None
            with pytest.raises(UsageError):
                await (await router.emit(event))
    assert [record.getMessage() for record in caplog.records] == [
        "give a target; deploy: Deploy TARGET.",
        "rome is not a target; usage: ship TARGET",
    ]
    assert (router.state().handled, router.state().failed) == (2, 0)


def test_completions_come_from_the_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "draft.txt").touch()
    router = Router()

    @router.command
    def one(size: Size, force: bool = False) -> None: ...

    @router.command
    def two(mode: Literal["fast", "good"]) -> None: ...

    @router.command
    def three(path: Path) -> None: ...

    @router.command
    def four(host: Annotated[str, lambda typed: [f"{typed}-1", f"{typed}-2"]]) -> None: ...

    assert completed(router, "one ") == ["large", "small"]
    assert completed(router, "one --") == ["--force"]
    assert completed(router, "two g") == ["good"]
    assert completed(router, "three d") == ["data/", "draft.txt"]
    assert completed(router, "four web") == ["web-1", "web-2"]


async def test_a_decorator_with_a_name_has_help_and_completions() -> None:
    router, seen = Router(), list[str]()

    @router.command("wait-for", help="Wait for HOST.", complete=["lisbon"])
    async def wait(event: CommandEvent) -> None:
        seen.append(event.args[0])

    await typed(router, "wait-for lisbon")
    [command] = router.commands
    assert (command.name, command.help, seen) == ("wait-for", "Wait for HOST.", ["lisbon"])
    assert completed(router, "wait-for l") == ["lisbon"]
    with pytest.raises(RouteConflict):
        router.command("wait-for")(wait)


def test_parameters_that_cannot_be_arguments_are_refused() -> None:
    def flag(force: bool) -> None: ...

    def rest(a: str, **options: str) -> None: ...

    with pytest.raises(TypeError, match="force of the command 'flag' is a flag; it needs a default"):
        Router().command(flag)
    with pytest.raises(TypeError, match=r"the command 'rest' cannot have \*\*options"):
        Router().command(rest)


@pytest.mark.parametrize("annotation", [None, CommandEvent, Any, object])
async def test_a_single_parameter_for_the_event_gets_it(annotation: Any) -> None:
    router, seen = Router(), list[Any]()

    def show(event):  # type: ignore[no-untyped-def]  # a handler without annotations
        seen.append(event)

    if annotation is not None:
        show.__annotations__["event"] = annotation
    router.command("show", show)
    await typed(router, "show me")
    assert seen == [CommandEvent("show", ("me",))]


@pytest.mark.parametrize("annotation", ["NotImported", "NotImported | None"])
def test_an_annotation_that_cannot_be_evaluated_is_refused(annotation: str) -> None:
    """Such a type is imported only under TYPE_CHECKING. The handler would get the event instead of the argument."""

    async def deploy(target: Any) -> None: ...

    deploy.__annotations__["target"] = annotation
    router = Router()
    with pytest.raises(TypeError, match=r"'deploy' cannot be evaluated: name 'NotImported'.*`if TYPE_CHECKING`"):
        router.command(deploy)
    assert (router.routes(), router.commands.words()) == ([], ())


@pytest.mark.parametrize("annotation", ["CommandEvent", "Event", "Topical"])
async def test_event_classes_of_the_library_may_be_imported_for_type_checkers_only(annotation: str) -> None:
    """The module of the handler does not define these names at run time."""
    module: dict[str, Any] = {}
    code = f"from __future__ import annotations\nseen = []\ndef deploy(event: {annotation}) -> None: seen.append(event)"
    exec(code, module)  # a module of the user
    router = Router()
    router.command(module["deploy"])
    await typed(router, "deploy prod")
    assert module["seen"] == [CommandEvent("deploy", ("prod",))]


async def test_a_decorator_with_empty_parentheses_takes_the_name_from_the_function() -> None:
    router, seen = Router(), list[str]()

    @router.command()
    async def deploy(target: str) -> None:
        seen.append(target)

    @router.command(help="Undo the deployment.")
    async def undo() -> None:
        seen.append("undone")

    await typed(router, "deploy prod")
    await typed(router, "undo")
    assert seen == ["prod", "undone"]
    assert [each.help for each in router.commands] == ["", "Undo the deployment."]
