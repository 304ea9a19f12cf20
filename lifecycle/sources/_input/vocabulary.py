"""What a person may type at a source: the commands it was given, or those of its router and the lifecycle's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from lifecycle.control.commands import Command, Commands, lifecycle_commands, split
from lifecycle.events import Topical, UnknownCommandEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Vocabulary", "Words"]

#: What becomes of a word: an event, a function from its arguments to one, or (None) a `CommandEvent`.
Meaning: TypeAlias = Topical | Callable[[tuple[str, ...]], Topical] | None

#: A registry, names, or names and what becomes of them.
Words: TypeAlias = Commands | Iterable[str] | Mapping[str, Meaning]


class Vocabulary:
    """Several registries as one; where a word is in two, the earlier has it. It is read anew for every line."""

    def __init__(self, words: Words | None) -> None:
        self._given = words is not None
        self._registries = [Commands(*lifecycle_commands()) if words is None else _registry(words)]

    def use(self, commands: Commands) -> None:
        """Know the commands of ``commands`` too, unless words were given explicitly."""
        if not self._given:
            self._registries.insert(0, commands)

    def get(self, word: str) -> Command | None:
        """The command with that name or alias."""
        return next((found for each in self._registries if (found := each.get(word)) is not None), None)

    def words(self) -> tuple[str, ...]:
        """All names and aliases, sorted."""
        return tuple(sorted({word for each in self._registries for word in each.words()}))

    def commands(self) -> Iterator[Command]:
        """Each command that can be reached by its name, once."""
        for each in self._registries:
            yield from (command for command in each if self.get(command.name) is command)

    def parse(self, line: str) -> Topical | None:
        """The event that a typed line stands for; None for a blank one, `UnknownCommandEvent` for a stranger."""
        words = split(line)
        if not words:
            return None
        command = self.get(words[0])
        if command is None:
            return UnknownCommandEvent(words[0], self.words())
        return command.make(tuple(words[1:]))


def _registry(words: Words) -> Commands:
    """What was given, as a registry.

    Raises:
        TypeError: for a lone string, which would be taken for names of one letter, or a meaning that is none.
    """
    if isinstance(words, Commands):
        return words
    if isinstance(words, str):
        raise TypeError(f"commands={words!r} is one string; give a list of names: [{words!r}]")
    meanings = cast("Mapping[str, Meaning]", words if isinstance(words, Mapping) else dict.fromkeys(words))
    return Commands(*(Command(name, event=_making(name, meaning)) for name, meaning in meanings.items()))


def _making(name: str, meaning: Meaning) -> Callable[[tuple[str, ...]], Topical] | None:
    if meaning is None or callable(meaning):
        return meaning
    if not hasattr(meaning, "topic"):
        raise TypeError(f"the command {name!r} stands for {meaning!r}; give an event, a function to one, or None")
    return lambda _: meaning
