"""What a person may type at a source: the commands it was given, or those of its router and the lifecycle's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from lifecycle.control.commands import Command, Commands, lifecycle_commands
from lifecycle.events import Topical

__all__ = ["Vocabulary", "Words"]

#: What becomes of a word: an event, a function from its arguments to one, or (None) a `CommandEvent`.
Meaning: TypeAlias = Topical | Callable[[tuple[str, ...]], Topical] | None

#: A registry, names, or names and what becomes of them.
Words: TypeAlias = Commands | Iterable[str] | Mapping[str, Meaning]


class Vocabulary(Commands):
    """Borrows all its words from registries; where a word is in two, the earlier has it."""

    def __init__(self, words: Words | None) -> None:
        super().__init__()
        self._is_given = words is not None
        self.borrow(Commands(*lifecycle_commands()) if words is None else _registry(words))

    def use(self, commands: Commands) -> None:
        """Know the words of ``commands`` before all others, unless words were given explicitly."""
        if not self._is_given:
            for each in dict.fromkeys((commands, *self.borrowed)):
                self.give_back(each)
                self.borrow(each)


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
