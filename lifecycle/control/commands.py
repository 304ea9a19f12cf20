"""The registry of commands offered by prompts, `lifecycle ctl` and the dashboard.

A command turns the words after its name into an event, which the router delivers to a handler.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.errors import RouteConflict
from lifecycle.events.base import ReloadEvent, ResumeEvent, SuspendEvent, TerminateEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.control.patterns import Pattern
    from lifecycle.events import Topical

__all__ = ["Command", "Commands", "Completer", "completions", "help_of", "lifecycle_commands", "split"]

_log = logging.getLogger("lifecycle.control")

#: Completions for the argument being typed: a list of words, or a function that returns words for the typed text.
Completer: TypeAlias = Iterable[str] | Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name, the event that it emits, and its help text.

    Args:
        name: The word that the user types.
        help: Help text.
        event: A function that returns the event for the given arguments. By default, the event is a `CommandEvent` with
            the name and the arguments.
        complete: Completions for an argument: a list of words, or a function that returns words for the typed text.
        aliases: Other words that run the same command.
        place: Where the command was registered, shown in messages about conflicts.
        takes_arguments: If false, a line with any words after the name does not run this command.
        usage: The command and its arguments, such as ``deploy [--force] TARGET``.
    """

    name: str
    help: str = ""
    #: Returns the event for the given arguments. By default, the event is a `CommandEvent` with the name and the
    #: arguments.
    event: Callable[[tuple[str, ...]], Topical] | None = None
    complete: Completer | None = None
    aliases: tuple[str, ...] = ()
    #: Where the command was registered, shown in messages about conflicts.
    place: str = "built in"
    #: If false, a line with any words after the name does not run this command.
    takes_arguments: bool = True
    #: The command and its arguments, such as ``deploy [--force] TARGET``. Empty if the handler parses them.
    usage: str = ""

    def make(self, args: tuple[str, ...]) -> Topical:
        """Return the event for this command with ``args``."""
        if self.event is not None:
            return self.event(args)
        from lifecycle.events.records import CommandEvent

        return CommandEvent(self.name, args)

    def candidates(self, typed: str) -> list[str]:
        """Return the completions of an argument that begins with ``typed``, sorted."""
        words = self.complete(typed) if callable(self.complete) else self.complete or ()
        return sorted(word for word in words if word.startswith(typed))


def help_of(handler: object) -> str:
    """Return a function's docstring, or "" for a callable object, which has only the docstring of its class."""
    return inspect.getdoc(handler) or "" if hasattr(handler, "__name__") else ""


class Commands:
    """Commands by name and alias."""

    def __init__(self, *commands: Command) -> None:
        self._by_word: dict[str, Command] = {}
        # Registries whose commands are included. If a word is also registered here, this registry takes precedence.
        self._included: list[Commands] = []
        for command in commands:
            self.add(command)

    def __iter__(self) -> Iterator[Command]:
        """Iterate once over each command that can be reached by name, in the order of registration."""
        # We compare commands by identity, because a command with a list of completions is not hashable.
        own = {id(each): each for each in self._by_word.values()}
        included = {id(each): each for others in self._included for each in others if self.get(each.name) is each}
        return iter((own | included).values())

    def __contains__(self, word: str) -> bool:
        return self.get(word) is not None

    def add(self, command: Command) -> None:
        """Register ``command`` under its name and its aliases.

        Raises:
            ValueError: if a name or alias is not a single word.
            RouteConflict: if a word is taken, for example by a built-in command.
        """
        words = (command.name, *command.aliases)
        for word in words:
            if not word or word != word.strip() or len(word.split()) != 1 or "/" in word:
                prefix = "; to type it with a slash, use command_prefix='/' of the prompt" if word[:1] == "/" else ""
                raise ValueError(
                    f"{word!r} is not a valid command name; use one word without blanks or slashes{prefix}"
                )
            taken = self._by_word.get(word)
            if taken is not None:
                raise RouteConflict(
                    f"the command {word!r} ({command.place}) conflicts with {taken.name!r} ({taken.place}); "
                    "choose another word"
                )
        for word in words:
            self._by_word[word] = command

    def merge(self, others: Commands) -> None:
        """Register the commands of ``others``. If a word is taken, register none.

        Raises:
            RouteConflict: if a word is taken.
        """
        before = dict(self._by_word)
        try:
            for command in others:
                self.add(command)
        except RouteConflict:
            self._by_word = before
            raise

    def remove(self, name: str) -> None:
        """Remove the command and its aliases. If it does not exist, do nothing."""
        command = self._by_word.get(name)
        self._by_word = {word: each for word, each in self._by_word.items() if each is not command}

    def forget(self, pattern: Pattern) -> None:
        """Remove the command whose route has this pattern, if it exists."""
        first, _, name = pattern.topic.partition("/") if pattern.is_exact else ("", "", "")
        command = self._by_word.get(name)
        if first == "command" and command is not None and command.event is None:
            self.remove(name)

    def include(self, others: Commands) -> None:
        """Include the commands of ``others``.

        Words registered here take precedence, even if they are registered later.
        """
        self._included.append(others)

    def exclude(self, others: Commands) -> None:
        """Stop including the commands of ``others``. If they are not included, do nothing."""
        self._included = [each for each in self._included if each is not others]

    @property
    def included(self) -> tuple[Commands, ...]:
        """The included registries."""
        return tuple(self._included)

    def owns(self, word: str) -> bool:
        """Return whether the word was registered here rather than in an included registry."""
        return word in self._by_word

    def get(self, word: str) -> Command | None:
        """Return the command with that name or alias."""
        included = (each.get(word) for each in self._included)
        return self._by_word.get(word) or next((found for found in included if found is not None), None)

    def words(self) -> tuple[str, ...]:
        """Return all names and aliases, sorted."""
        return tuple(sorted({*self._by_word, *(word for each in self._included for word in each.words())}))

    def parse(self, line: str) -> Topical | None:
        """Return the event for the line that the user typed, or None if it is blank.

        If the line is not a command, return an `UnknownCommandEvent` with its first word, or with the whole line if the
        first word is a command that takes no arguments.
        """
        words = split(line)
        if not words:
            return None
        command = self.get(words[0])
        if command is None:
            return self._unknown(words[0])
        if words[1:] and not command.takes_arguments:
            return self._unknown(line.strip())
        return command.make(tuple(words[1:]))

    def _unknown(self, word: str) -> Topical:
        from lifecycle.events.records import UnknownCommandEvent

        return UnknownCommandEvent(word, self.words())


#: One piece of a line in shell syntax: single-quoted text, double-quoted text, an escaped character, plain characters,
#: or the blanks between words. We don't use `shlex`, because it takes quadratic time: splitting a line of one megabyte
#: took 37 s.
_PIECE = r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)|([^\s'"\\]+)|\s+"""
_ESCAPED = r"""\\(["\\])"""


def split(line: str) -> list[str]:
    """Split a line into words as a shell does. If a quote is not closed, split the line at blanks instead."""
    words: list[str] = []
    word: list[str] = []
    next_piece = re.compile(_PIECE, re.DOTALL | re.ASCII).match
    at = 0
    while at < len(line):
        piece = next_piece(line, at)
        if piece is None:
            return line.split()
        at = piece.end()
        if piece.lastindex is not None:
            text: str = piece[piece.lastindex]
            word.append(re.sub(_ESCAPED, r"\1", text) if piece.lastindex == 2 else text)  # noqa: PLR2004  # double quotes
        elif word:
            words.append("".join(word))
            word = []
    if word:
        words.append("".join(word))
    return words


def completions(line: str, names: Iterable[str], find: Callable[[str], Command | None]) -> tuple[str, list[str]]:
    """Return the last word of ``line``, which may be incomplete, and its sorted completions.

    The first word is completed from ``names``. Later words are completed by the command that ``find`` returns for the
    first word. If the command's completion function raises an error, the error is logged and no completions are
    returned.
    """
    typed = "" if line[-1:].isspace() else (line.split() or [""])[-1]
    words = split(line[: len(line) - len(typed)])
    if not words:
        return typed, sorted(name for name in names if name.startswith(typed))
    command = find(words[0])
    try:
        return typed, command.candidates(typed) if command else []
    except Exception:  # noqa: BLE001  # user code
        _log.exception("completing the arguments of %.60r failed", words[0])
        return typed, []


def lifecycle_commands() -> tuple[Command, ...]:
    """Return the commands built into every prompt, which emit lifecycle events."""
    from lifecycle.events.records import ShutdownEvent

    return (
        _alone("suspend", "Suspend the program and keep its state.", SuspendEvent, "s"),
        _alone("resume", "Resume the program.", ResumeEvent, "r"),
        _alone("reload", "Reload the configuration.", ReloadEvent),
        _alone("terminate", "Suspend, so that state is saved, then quit.", TerminateEvent, "x"),
        _alone("quit", "End the program.", lambda: ShutdownEvent("quit"), "q", "exit"),
    )


def _alone(name: str, text: str, make: Callable[[], Topical], *aliases: str) -> Command:
    """Return a command that takes no arguments.

    A line with more words, such as "exit the building", does not run it.
    """
    return Command(name, text, lambda _: make(), aliases=aliases, takes_arguments=False)
