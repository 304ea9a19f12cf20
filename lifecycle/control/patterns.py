"""The syntax of patterns, their matching, and their order from specific to general.

A pattern is a topic with wildcards. ``*`` and ``?`` match characters of one segment. ``[abc]``, ``[a-z]``, ``[!x]`` and
``[^x]`` match one character. ``**`` as a whole segment matches any number of segments. A backslash quotes the next
character. Braces are reserved: an unquoted brace is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lifecycle.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DEEP", "MAX_SEGMENTS", "STAR", "Literal", "Pattern", "Segment", "Wild", "quoted"]

#: Maximum number of segments in a topic or a pattern. The cost of a match is segments times kinds of wildcard.
MAX_SEGMENTS = 64

#: Ranks of the kinds of segment, most specific first. A segment with wildcards ranks between `_LITERAL` and `_STAR`, by
#: its number of literal characters.
_LITERAL, _STAR, _END, _DEEP = -1_000_000, 1, 2, 3


class Literal:
    """A segment without wildcards."""

    __slots__ = ("text",)
    rank = _LITERAL

    def __init__(self, text: str) -> None:
        self.text: str = text

    def matches(self, segment: str) -> bool:
        """Return whether ``segment`` equals this text."""
        return segment == self.text


class Wild:
    """A segment that contains wildcards, and the function that matches it."""

    __slots__ = ("matches", "rank", "text")

    def __init__(self, text: str, rank: int, matches: Callable[[str], object]) -> None:
        self.text: str = text
        self.rank: int = rank
        self.matches: Callable[[str], object] = matches


class _Any:
    """A segment that matches every segment."""

    __slots__ = ("rank",)

    def __init__(self, rank: int) -> None:
        self.rank: int = rank

    def matches(self, segment: str) -> bool:  # noqa: ARG002  # the signature of a segment
        """Return True."""
        return True


#: ``*`` matches any single segment, ``**`` zero or more segments.
STAR, DEEP = _Any(_STAR), _Any(_DEEP)
Segment = Literal | Wild | _Any


class Pattern:
    """A parsed pattern of 1 to 64 segments. It is equal to a pattern with the same text.

    Raises:
        InvalidPattern: if the text cannot be parsed. The message names the position.
    """

    __slots__ = ("_steps", "segments", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidPattern(f"{text!r} is not a pattern: give a string such as 'file/*'")
        if not text:
            raise InvalidPattern("'' is not a pattern: give a topic such as 'file/*', or '**' for every topic")
        if text.count("/") >= MAX_SEGMENTS:
            raise InvalidPattern(
                f"the pattern {text[:40]!r}… has {text.count('/') + 1:,} segments; the maximum is {MAX_SEGMENTS}; "
                "write ** for any number of segments"
            )
        self.text: str = text
        self.segments: tuple[Segment, ...] = tuple(_Reader(text).segments())
        # Created for the first match, because most patterns are matched only by the index.
        self._steps: _Steps | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_exact(self) -> bool:
        """True if the pattern matches exactly one topic."""
        return all(isinstance(segment, Literal) for segment in self.segments)

    @property
    def topic(self) -> str:
        """The topic that an exact pattern matches: its text without the backslashes that quote characters."""
        return "/".join(segment.text for segment in self.segments if isinstance(segment, Literal))

    @property
    def rank(self) -> tuple[tuple[int, ...], str]:
        """Sort key that puts the most specific of several matching patterns first.

        Segments are compared from the left. A literal segment comes first. A segment that contains wildcards follows;
        of two such segments, the one with more literal characters comes first. Then ``*``, the end of the pattern, and
        ``**`` follow. Patterns of equal rank are sorted by their text.
        """
        kinds = [segment.rank for segment in self.segments]
        return (*(kinds), _END), self.text

    def matches(self, topic: str) -> bool:
        """Return whether this pattern matches ``topic``. Wildcards in the topic have no meaning.

        The cost is linear in the length of the topic.
        """
        if self._steps is None:
            self._steps = _Steps(self.segments)
        return self._steps.match(topic.split("/"))


class _Steps:
    """A pattern as an automaton: bit n is set if the first n segments, without ``**``, have matched."""

    __slots__ = ("_end", "_literals", "_loops", "_stars", "_wilds")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._literals: dict[str, int] = {}
        self._stars = 0
        # Keyed by text, so that each is matched once per segment of a topic, even if it occurs several times.
        self._wilds: dict[str, tuple[int, Callable[[str], object]]] = {}
        # The states in which ``**`` accepts any segment.
        self._loops = 0
        bit = 1
        for segment in segments:
            if segment is DEEP:
                self._loops |= bit
                continue
            if isinstance(segment, Literal):
                self._literals[segment.text] = self._literals.get(segment.text, 0) | bit
            elif isinstance(segment, Wild):
                self._wilds[segment.text] = self._wilds.get(segment.text, (0, None))[0] | bit, segment.matches
            else:
                self._stars |= bit
            bit <<= 1
        self._end = bit

    def match(self, parts: list[str]) -> bool:
        alive = 1
        for part in parts:
            fitting = alive & (self._literals.get(part, 0) | self._stars)
            for bits, matches in self._wilds.values():
                if alive & bits and matches(part):
                    fitting |= alive & bits
            alive = fitting << 1 | alive & self._loops
            if not alive:
                return False
        return bool(alive & self._end)


class _Reader:
    """A parser that reads one pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def segments(self) -> list[Segment]:
        found = [self._segment()]
        while self._at < len(self._text):
            self._at += 1  # skip the slash
            found.append(self._segment())
        for side, at, place in (("begins", 0, 0), ("ends", -1, len(self._text) - 1)):
            outermost = found[at]
            if len(found) > 1 and isinstance(outermost, Literal) and not outermost.text:
                plain = self._text.strip("/") or "**"
                raise self._error(f"it {side} with a slash at position {{at}}; write {plain!r}", place)
        return found

    def _segment(self) -> Segment:
        """Read up to the next slash. Each piece is literal text or a wildcard's regular expression."""
        start = self._at
        pieces: list[tuple[bool, str]] = []
        while (char := self._peek()) not in ("", "/"):
            pieces.append(self._piece(char))
        if self._text[start : self._at] == "**":
            return DEEP
        if pieces == [(False, _ANY)]:
            return STAR
        if all(literal for literal, _ in pieces):
            return Literal("".join(text for _, text in pieces))
        return _wild(self._text[start : self._at], pieces)

    def _peek(self) -> str:
        # A quoted slash still separates segments, because a segment of a topic cannot contain a slash.
        if self._text.startswith("\\/", self._at):
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _piece(self, char: str) -> tuple[bool, str]:
        if char == "[":
            return False, self._class()
        if char == "\\":
            return True, self._quoted()
        if char in "{}":
            told = (
                f"the {char} at position {{at}} is reserved; write \\{char} for a brace, or one pattern per alternative"
            )
            raise self._error(told, self._at)
        self._at += 1
        if char == "*":
            return False, _ANY
        return (False, ".") if char == "?" else (True, char)

    def _quoted(self) -> str:
        if self._at + 1 >= len(self._text):
            raise self._error("the backslash at position {at} quotes nothing; write \\\\ for a backslash", self._at)
        self._at += 2
        return self._text[self._at - 1]

    def _class(self) -> str:
        start = self._at
        self._at += 1
        negated = self._text.startswith(("!", "^"), self._at)
        self._at += negated
        members: list[str] = []
        while (char := self._text[self._at : self._at + 1]) != "]":
            if char in ("", "/"):
                raise self._error("the class that opens at position {at} is not closed; add ] or quote the [", start)
            members.append(self._member())
        self._at += 1
        if not members:
            raise self._error("the class at position {at} is empty; name a character, or quote the [", start)
        return f"[{'^' if negated else ''}{''.join(members)}]"

    def _member(self) -> str:
        """Read one character or one range of a class, and return it as part of a regular expression."""
        start = self._at
        low = self._class_char()
        if not (self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("", "]", "/")):
            return re.escape(low)
        self._at += 1
        high = self._class_char()
        if low > high:
            raise self._error(f"the range {low}-{high} at position {{at}} is reversed; write {high}-{low}", start)
        return f"{re.escape(low)}-{re.escape(high)}"

    def _class_char(self) -> str:
        if self._text[self._at] == "\\":
            return self._quoted()
        self._at += 1
        return self._text[self._at - 1]

    def _error(self, problem: str, at: int) -> InvalidPattern:
        return InvalidPattern(f"malformed pattern {self._text!r}: {problem.replace('{at}', str(at))}")


_ANY = ".*"


def quoted(topic: str) -> str:
    """Return a pattern that matches only ``topic``."""
    return "".join(f"\\{char}" if char in "*?[\\{}" else char for char in topic)


def _wild(text: str, pieces: list[tuple[bool, str]]) -> Wild:
    """Compile a segment so that matching backtracks over at most one star, and is linear for any input."""
    runs: list[list[tuple[bool, str]]] = [[]]
    for piece in pieces:
        if piece == (False, _ANY):
            runs.append([])
        else:
            runs[-1].append(piece)
    first, *later = [_regex(run) for run in runs]
    # Between two stars, the leftmost match is as good as any other. An atomic group therefore never gives it up.
    middle = "".join(f"(?>.*?{run})" for run in later[:-1])
    last = f".*{later[-1]}" if later else ""
    literals = sum(literal for literal, _ in pieces)
    return Wild(text, -literals, re.compile(first + middle + last, re.DOTALL).fullmatch)


def _regex(run: list[tuple[bool, str]]) -> str:
    return "".join(re.escape(text) if literal else text for literal, text in run)
