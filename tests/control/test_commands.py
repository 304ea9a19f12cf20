"""A registry that includes other registries inherits their commands, unless it defines the same names itself."""

from __future__ import annotations

from lifecycle.control import Command, Router
from lifecycle.control.commands import Commands
from lifecycle.events import CommandEvent, UnknownCommandEvent


def test_included_commands_are_known_until_they_are_excluded() -> None:
    own, others = Commands(Command("deploy")), Commands(Command("restart", aliases=("again",)))
    own.include(others)
    assert own.words() == ("again", "deploy", "restart")
    assert "again" in own
    assert not own.owns("again")
    assert [each.name for each in own] == ["deploy", "restart"]
    assert own.parse("again web") == CommandEvent("restart", ("web",))
    own.exclude(others)
    own.exclude(others)
    assert own.words() == ("deploy",)
    assert own.parse("again web") == UnknownCommandEvent("again", ("deploy",))


def test_an_own_command_takes_precedence_over_an_included_one() -> None:
    router, others = Router(), Commands(Command("early", "built in"), Command("late", "built in", aliases=("l",)))
    router.command("early", print, help="own")
    router.commands.include(others)
    router.command("late", print, help="own")
    assert [(each.name, each.help) for each in router.commands] == [("early", "own"), ("late", "own")]
    included = router.commands.get("l")
    assert included is not None, "the remaining commands were lost"
    assert included.help == "built in"
    router.remove("command/late")
    assert router.commands.parse("late") == CommandEvent("late", ())


def test_the_first_of_two_included_registries_takes_precedence() -> None:
    own = Commands()
    own.include(Commands(Command("a", "first")))
    own.include(Commands(Command("a", "second"), Command("b")))
    assert [(each.name, each.help) for each in own] == [("a", "first"), ("b", "")]
