"""What somebody may have meant: the patterns, and the topics that were seen, which a topic misses by a little."""

from __future__ import annotations

import difflib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle.control.patterns import Pattern, quoted
from lifecycle.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["NearMiss", "near_misses"]

#: How many are told, and how many of the most similar are looked at closely.
_TOLD, _CLOSE = 3, 50
#: How many segments a topic or a pattern may have to be compared: a longer one is hardly misspelt, and costs much.
_SEGMENTS = 16
#: How similar two segments are that may be one misspelt, from 0 to 1.
_SIMILAR = 0.6

#: What people write for a slash.
_SEPARATORS = str.maketrans(".: ", "///")

_Change: TypeAlias = "Callable[[str], str]"


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A pattern, or a topic that was seen, which is nearly the one in question."""

    kind: Literal["pattern", "topic"]
    text: str
    #: What is different.
    hint: str


def near_misses(topic: str, patterns: Iterable[str], topics: Iterable[str]) -> tuple[NearMiss, ...]:
    """Those which ``topic`` misses by a little, patterns first."""
    return (*_of_kind("pattern", topic, patterns), *_of_kind("topic", topic, topics))


def _of_kind(kind: Literal["pattern", "topic"], topic: str, texts: Iterable[str]) -> Iterator[NearMiss]:
    found = 0
    short = [text for text in texts if text.count("/") < _SEGMENTS] if topic.count("/") < _SEGMENTS else []
    for text in _most_similar(topic, short):
        pattern = text if kind == "pattern" else quoted(text)
        hint = None if text == topic or _fits(pattern, topic) else _hint(topic, pattern)
        if hint is not None and found < _TOLD:
            found += 1
            yield NearMiss(kind, text, hint)


def _most_similar(topic: str, texts: Iterable[str]) -> list[str]:
    """By the segments that they have in common, and then by how they begin: few of ten thousand are worth a look."""
    plain = _plain(topic)
    segments = set(plain.split("/"))

    def likeness(text: str) -> tuple[int, int, int]:
        other = text.translate(_SEPARATORS).casefold()
        return len(segments.intersection(other.split("/"))), _common(plain, other), _common(topic, text)

    # In an order of their own, so that equal ones are always told in the same.
    return heapq.nlargest(_CLOSE, sorted(texts), key=likeness)


def _common(one: str, other: str) -> int:
    """How many characters they have in common at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _hint(topic: str, pattern: str) -> str | None:
    """What would have to be different for ``pattern`` to match; None where that is too much."""
    for words, change in _CHANGES:
        if _fits(change(pattern), change(topic)):
            return words
    parts, wanted = topic.split("/"), pattern.split("/")
    if wanted[-1] == "*" and len(parts) > len(wanted) and _fits(f"{pattern}*", topic):
        return f"* stands for one segment; {'/'.join([*wanted[:-1], '**'])!r} would match"
    if any(_fits(pattern, fewer) and _shared(fewer, wanted) for fewer in _without_one(parts)):
        return "it has a segment less"
    if any(_fits(fewer, topic) and _shared(fewer, parts) for fewer in _without_one(wanted)):
        return "it has a segment more"
    return _misspelt(parts, wanted)


def _shared(text: str, parts: list[str]) -> bool:
    """Whether they have a segment in common: one that is all wildcards is near to everything."""
    return any(part in parts for part in text.split("/"))


def _misspelt(parts: list[str], wanted: list[str]) -> str | None:
    """One segment that differs a little from a literal one."""
    if len(parts) != len(wanted):
        return None
    different = [pair for pair in zip(parts, wanted, strict=True) if not _fits(pair[1] or "/", pair[0])]
    if len(different) != 1:
        return None
    [(part, segment)] = different
    similar = difflib.SequenceMatcher(None, part.casefold(), segment.casefold()).ratio() >= _SIMILAR
    return f"{segment!r} is not {part!r}" if similar else None


def _without_one(parts: list[str]) -> Iterator[str]:
    return ("/".join(parts[:at] + parts[at + 1 :]) for at in range(len(parts)) if len(parts) > 1)


def _fits(pattern: str, topic: str) -> bool:
    try:
        return Pattern(pattern).matches(topic)
    except InvalidPattern:
        return False


def _slashes(text: str) -> str:
    """No slash where none belongs, and a slash where another sign separates."""
    return _tidy(text.translate(_SEPARATORS))


def _tidy(text: str) -> str:
    return "/".join(part.strip() for part in text.split("/") if part.strip())


def _plain(text: str) -> str:
    return _slashes(text).casefold()


#: What is made the same, and how that is told.
_CHANGES: tuple[tuple[str, _Change], ...] = (
    ("they differ in upper and lower case", str.casefold),
    ("they differ in a slash or a blank too many", _tidy),
    ("segments are separated by slashes", _slashes),
    ("they differ in case, and in how segments are separated", _plain),
)
