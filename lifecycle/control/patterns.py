"""What a pattern says, and which of two patterns is the more specific one.

A pattern is a topic in which ``*`` and ``?`` stand for characters of one segment, ``[abc]``, ``[a-z]``, ``[!x]`` and
``[^x]`` for one of them, and ``**`` as a whole segment for any number of segments. A backslash quotes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lifecycle.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEEP", "STAR", "Literal", "Pattern", "Segment", "Wild", "quoted"]

#: Ranks of the kinds of segment, best first; a wildcard segment stands between, by its literal characters.
_LITERAL, _STAR, _END, _DEEP = -1_000_000, 1, 2, 3


class Literal:
    """A segment without wildcards."""

    __slots__ = ("text",)
    rank = _LITERAL

    def __init__(self, text: str) -> None:
        self.text: str = text

    def matches(self, segment: str) -> bool:
        """Whether ``segment`` is this very text."""
        return segment == self.text


class Wild:
    """A segment with wildcards in it: what is fixed at its ends, and the whole as a function that matches."""

    __slots__ = ("matches", "prefix", "rank", "suffix", "text")

    prefix: str
    suffix: str

    def __init__(self, text: str, ends: tuple[str, str], rank: int, matches: Callable[[str], object]) -> None:
        self.text: str = text
        self.prefix, self.suffix = ends
        self.rank: int = rank
        self.matches: Callable[[str], object] = matches


class _Any:
    """A segment that matches every segment."""

    __slots__ = ("rank",)

    def __init__(self, rank: int) -> None:
        self.rank: int = rank

    def matches(self, segment: str) -> bool:  # noqa: ARG002  # the signature of a segment
        """Always."""
        return True


#: ``*``: any one segment. ``**``: zero or more segments.
STAR, DEEP = _Any(_STAR), _Any(_DEEP)
Segment = Literal | Wild | _Any


class Pattern:
    """A parsed pattern; equal to another with the same text.

    Raises:
        InvalidPattern: naming the position of what cannot be read.
    """

    __slots__ = ("segments", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidPattern(f"{text!r} is no pattern: give a string such as 'file/*'")
        if not text:
            raise InvalidPattern("'' is no pattern: give a topic such as 'file/*', or '**' for every topic")
        self.text: str = text
        self.segments: tuple[Segment, ...] = tuple(_Reader(text).segments())

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
        """Whether it matches one topic only."""
        return all(isinstance(segment, Literal) for segment in self.segments)

    @property
    def topic(self) -> str:
        """The topic that an exact pattern matches: its text with the quotes taken off."""
        return "/".join(segment.text for segment in self.segments if isinstance(segment, Literal))

    @property
    def rank(self) -> tuple[tuple[int, ...], str]:
        """Sorts the patterns that match one topic, the most specific first.

        Segments are compared from the left: a literal before one with wildcards in it (more literal characters
        first), before ``*``, before the end of the pattern, before ``**``; then the text decides.
        """
        kinds = [segment.rank for segment in self.segments]
        return (*(kinds), _END), self.text

    def matches(self, topic: str) -> bool:
        """Whether ``topic``, which is never read as a pattern, is one that this pattern stands for.

        Only the last ``**`` ever has to take one segment more, so the cost is at most segments times segments.
        """
        parts, wanted = topic.split("/"), self.segments
        part = want = 0
        retry_part, retry_want = -1, -1
        while part < len(parts):
            if want < len(wanted) and wanted[want] is DEEP:
                retry_part, retry_want = part, want
                want += 1
            elif want < len(wanted) and wanted[want].matches(parts[part]):
                part, want = part + 1, want + 1
            elif retry_want >= 0:
                retry_part += 1
                part, want = retry_part, retry_want + 1
            else:
                return False
        return all(segment is DEEP for segment in wanted[want:])


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def segments(self) -> list[Segment]:
        found = [self._segment()]
        while self._at < len(self._text):
            self._at += 1  # the slash
            found.append(self._segment())
        return found

    def _segment(self) -> Segment:
        """Read up to the next slash; each piece is a literal text or a wildcard's regular expression."""
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
        # A quoted slash is a slash: topics have no quotes that could keep it inside a segment.
        if self._text.startswith("\\/", self._at):
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _piece(self, char: str) -> tuple[bool, str]:
        if char == "[":
            return False, self._class()
        if char == "\\":
            return True, self._quoted()
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
        """One character or one range, as a regular expression would write it."""
        start = self._at
        low = self._class_char()
        if not (self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("", "]", "/")):
            return re.escape(low)
        self._at += 1
        high = self._class_char()
        if low > high:
            raise self._error(f"the range {low}-{high} at position {{at}} is backwards; write {high}-{low}", start)
        return f"{re.escape(low)}-{re.escape(high)}"

    def _class_char(self) -> str:
        if self._text[self._at] == "\\":
            return self._quoted()
        self._at += 1
        return self._text[self._at - 1]

    def _error(self, problem: str, at: int) -> InvalidPattern:
        return InvalidPattern(f"malformed pattern {self._text!r}: {problem.format(at=at)}")


_ANY = ".*"


def quoted(topic: str) -> str:
    """A topic as a pattern that means itself."""
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in topic)


def _wild(text: str, pieces: list[tuple[bool, str]]) -> Wild:
    """Compile a segment so that matching never goes back further than one star: linear, whatever the input."""
    runs: list[list[tuple[bool, str]]] = [[]]
    for piece in pieces:
        if piece == (False, _ANY):
            runs.append([])
        else:
            runs[-1].append(piece)
    first, *later = [_regex(run) for run in runs]
    # Between two stars the leftmost fit is as good as any, so it is taken for good (an atomic group).
    middle = "".join(f"(?>.*?{run})" for run in later[:-1])
    last = f".*{later[-1]}" if later else ""
    ends = _fixed(runs[0]), _fixed(runs[-1][::-1])[::-1]
    literals = sum(literal for literal, _ in pieces)
    return Wild(text, ends, -literals, re.compile(first + middle + last, re.DOTALL).fullmatch)


def _regex(run: list[tuple[bool, str]]) -> str:
    return "".join(re.escape(text) if literal else text for literal, text in run)


def _fixed(run: list[tuple[bool, str]]) -> str:
    """The literal characters up to the first wildcard."""
    fixed = ""
    for literal, text in run:
        if not literal:
            break
        fixed += text
    return fixed
