"""A registry that borrows words: they are known like its own, and yield to whatever is registered in it."""

from __future__ import annotations

from lifecycle.control import Command, Router
from lifecycle.control.commands import Commands
from lifecycle.events import CommandEvent, UnknownCommandEvent


def test_borrowed_words_are_known_until_they_are_given_back() -> None:
    own, others = Commands(Command("deploy")), Commands(Command("restart", aliases=("again",)))
    own.borrow(others)
    assert own.words() == ("again", "deploy", "restart")
    assert "again" in own
    assert not own.owns("again")
    assert [each.name for each in own] == ["deploy", "restart"]
    assert own.parse("again web") == CommandEvent("restart", ("web",))
    own.give_back(others)
    own.give_back(others)
    assert own.words() == ("deploy",)
    assert own.parse("again web") == UnknownCommandEvent("again", ("deploy",))


def test_a_command_of_its_own_wins_over_a_borrowed_one_before_and_later() -> None:
    router, others = Router(), Commands(Command("early", "lent"), Command("late", "lent", aliases=("l",)))
    router.command("early", print, help="own")
    router.commands.borrow(others)
    router.command("late", print, help="own")
    assert [(each.name, each.help) for each in router.commands] == [("early", "own"), ("late", "own")]
    lent = router.commands.get("l")
    assert lent is not None, "what is not taken stays"
    assert lent.help == "lent"
    router.remove("command/late")
    assert router.commands.parse("late") == CommandEvent("late", ())


def test_of_two_lenders_the_first_has_the_word() -> None:
    own = Commands()
    own.borrow(Commands(Command("a", "first")))
    own.borrow(Commands(Command("a", "second"), Command("b")))
    assert [(each.name, each.help) for each in own] == [("a", "first"), ("b", "")]
