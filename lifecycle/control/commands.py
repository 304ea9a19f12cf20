"""The one registry of commands: the prompt reads it, and so does whatever else can give a command.

A command turns the words after its name into an event; what handles the event is the router's business.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.errors import RouteConflict
from lifecycle.events import (
    CommandEvent,
    ReloadEvent,
    ResumeEvent,
    ShutdownEvent,
    SuspendEvent,
    TerminateEvent,
    Topical,
    UnknownCommandEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.control.patterns import Pattern

__all__ = ["Command", "Commands", "Completer", "completions", "help_of", "lifecycle_commands", "split"]

_log = logging.getLogger("lifecycle.control")

#: Candidates for the argument that is being typed: words, or a function from what is typed to words.
Completer: TypeAlias = Iterable[str] | Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """A word that a person can type, what it becomes, and what help says about it."""

    name: str
    help: str = ""
    #: From the arguments to the event; None makes a `CommandEvent` with the name and the arguments.
    event: Callable[[tuple[str, ...]], Topical] | None = None
    complete: Completer | None = None
    aliases: tuple[str, ...] = ()
    #: Where it was registered, for the message about a second one.
    place: str = "built in"
    #: Whether words may follow it; where they may not, a line that has some is not this command.
    takes_arguments: bool = True

    def make(self, args: tuple[str, ...]) -> Topical:
        """The event for this command with ``args``."""
        return CommandEvent(self.name, args) if self.event is None else self.event(args)

    def candidates(self, typed: str) -> list[str]:
        """The completions of an argument of which ``typed`` is there already, sorted."""
        words = self.complete(typed) if callable(self.complete) else self.complete or ()
        return sorted(word for word in words if word.startswith(typed))


def help_of(handler: object) -> str:
    """What the docstring of a function says; that of an object's class says nothing of a command."""
    return inspect.getdoc(handler) or "" if hasattr(handler, "__name__") else ""


class Commands:
    """Commands by name and alias."""

    def __init__(self, *commands: Command) -> None:
        self._by_word: dict[str, Command] = {}
        # Registries whose words are known where they are not taken here.
        self._borrowed: list[Commands] = []
        for command in commands:
            self.add(command)

    def __iter__(self) -> Iterator[Command]:
        """Each command that can be reached by its name once, in the order of registration."""
        # By identity: a command whose candidates are a list has no hash.
        own = {id(each): each for each in self._by_word.values()}
        lent = {id(each): each for others in self._borrowed for each in others if self.get(each.name) is each}
        return iter((own | lent).values())

    def __contains__(self, word: str) -> bool:
        return self.get(word) is not None

    def add(self, command: Command) -> None:
        """Register ``command`` under its name and its aliases.

        Raises:
            ValueError: for a name that could not be typed as one word.
            RouteConflict: when a word is taken, also by a built-in command.
        """
        words = (command.name, *command.aliases)
        for word in words:
            if not word or word != word.strip() or len(word.split()) != 1 or "/" in word:
                raise ValueError(f"{word!r} cannot be a command: give one word without blanks or slashes")
            taken = self._by_word.get(word)
            if taken is not None:
                raise RouteConflict(
                    f"the command {word!r} ({command.place}) is taken by {taken.name!r} ({taken.place}); "
                    "choose another word"
                )
        for word in words:
            self._by_word[word] = command

    def remove(self, name: str) -> None:
        """Take out the command and its aliases; nothing happens if there is none."""
        command = self._by_word.get(name)
        self._by_word = {word: each for word, each in self._by_word.items() if each is not command}

    def forget(self, pattern: Pattern) -> None:
        """A route was removed: so is the command that leads to it, if there is one."""
        room, _, name = pattern.topic.partition("/") if pattern.is_exact else ("", "", "")
        command = self._by_word.get(name)
        if room == "command" and command is not None and command.event is None:
            self.remove(name)

    def borrow(self, others: Commands) -> None:
        """Know the words of ``others`` too, where they are not taken here; what is registered here later wins."""
        self._borrowed.append(others)

    def give_back(self, others: Commands) -> None:
        """Know the words of ``others`` no longer; nothing happens if they were not borrowed."""
        self._borrowed = [each for each in self._borrowed if each is not others]

    @property
    def borrowed(self) -> tuple[Commands, ...]:
        """The registries that were borrowed and not given back."""
        return tuple(self._borrowed)

    def owns(self, word: str) -> bool:
        """Whether the word was registered here, and is not a borrowed one."""
        return word in self._by_word

    def get(self, word: str) -> Command | None:
        """The command with that name or alias."""
        lent = (each.get(word) for each in self._borrowed)
        return self._by_word.get(word) or next((found for found in lent if found is not None), None)

    def words(self) -> tuple[str, ...]:
        """All names and aliases, sorted."""
        return tuple(sorted({*self._by_word, *(word for each in self._borrowed for word in each.words())}))

    def parse(self, line: str) -> Topical | None:
        """Return the event that a typed line stands for; None for a blank one.

        A line that is no command is an `UnknownCommandEvent` with its first word; if that is a command which takes no
        arguments, with the whole line.
        """
        words = split(line)
        if not words:
            return None
        command = self.get(words[0])
        if command is None:
            return UnknownCommandEvent(words[0], self.words())
        if words[1:] and not command.takes_arguments:
            return UnknownCommandEvent(line.strip(), self.words())
        return command.make(tuple(words[1:]))


#: A piece of a word as a shell reads it: in single quotes, in double quotes, one character after a backslash, plain
#: characters; or the blanks between words. `shlex` does the same in quadratic time: a line of a megabyte took 37 s.
_PIECE = re.compile(r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)|([^\s'"\\]+)|\s+""", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"""\\(["\\])""")


def split(line: str) -> list[str]:
    """Words as a shell would split them; where its quotes do not close, at blanks."""
    words: list[str] = []
    word: list[str] = []
    at = 0
    while at < len(line):
        piece = _PIECE.match(line, at)
        if piece is None:
            return line.split()
        at = piece.end()
        if piece.lastindex is not None:
            text: str = piece[piece.lastindex]
            word.append(_ESCAPED.sub(r"\1", text) if piece.lastindex == 2 else text)  # noqa: PLR2004  # double quotes
        elif word:
            words.append("".join(word))
            word = []
    if word:
        words.append("".join(word))
    return words


def completions(line: str, names: Iterable[str], find: Callable[[str], Command | None]) -> tuple[str, list[str]]:
    """The last word of ``line``, as far as it is there, and what it could become, sorted.

    The first word is one of ``names``; the others are up to the command that ``find`` has for it. Where that one's
    own function fails, this is logged, and there is nothing.
    """
    typed = "" if line[-1:].isspace() else (line.split() or [""])[-1]
    words = split(line[: len(line) - len(typed)])
    if not words:
        return typed, sorted(name for name in names if name.startswith(typed))
    command = find(words[0])
    try:
        return typed, command.candidates(typed) if command else []
    except Exception:  # noqa: BLE001  # whatever a user's function raises
        _log.exception("completing the arguments of %.60r failed", words[0])
        return typed, []


def lifecycle_commands() -> tuple[Command, ...]:
    """The words that every prompt knows, and the lifecycle events they become."""
    return (
        _alone("suspend", "Pause: keep state, stop taking on work.", SuspendEvent, "s"),
        _alone("resume", "Go on after a pause.", ResumeEvent, "r"),
        _alone("reload", "Read the configuration again.", ReloadEvent),
        _alone("terminate", "Suspend, so that state is saved, then quit.", TerminateEvent, "x"),
        _alone("quit", "End the program.", lambda: ShutdownEvent("quit"), "q", "exit"),
    )


def _alone(name: str, text: str, make: Callable[[], Topical], *aliases: str) -> Command:
    """A command that takes no arguments, so that "exit the building" does not end the program."""
    return Command(name, text, lambda _: make(), aliases=aliases, takes_arguments=False)
