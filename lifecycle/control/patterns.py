"""Patterns: their syntax, how they match, and how they are ordered from specific to general.

A pattern is a topic with wildcards. ``*`` and ``?`` match characters within one segment. ``[abc]``, ``[a-z]``, ``[!x]``
and ``[^x]`` match one character. ``**`` as a whole segment matches any number of segments. ``{id}`` is a named ``*``,
and ``{path:**}`` is a named ``**``. A backslash quotes the next character.

A pattern matches segment by segment. The segments between two ``**`` form a run. The first run is at the beginning of
the topic, the last run at its end, and each run between them is as far to the left as possible.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lifecycle.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    #: Returns the values of names for a topic, or None if the pattern does not match.
    Reader = Callable[[str], Sequence[str] | None]

__all__ = [
    "DEEP",
    "MAX_SEGMENTS",
    "STAR",
    "Literal",
    "Pattern",
    "Segment",
    "Wild",
    "only_place",
    "path_glob",
    "quoted",
    "reader",
]

#: The maximum number of segments in a topic or a pattern. The cost of a match is proportional to the number of segments
#: multiplied by the number of different wildcard segments.
MAX_SEGMENTS = 64

#: The ranks of the different kinds of segments, most specific first. A segment that contains wildcards ranks between
#: `_LITERAL` and `_STAR`, according to its number of literal characters.
_LITERAL, _STAR, _END, _DEEP = -1_000_000, 1, 2, 3

#: The regular expression for ``*``.
_ANY = "[^/]*"


class Literal:
    """A segment without wildcards."""

    __slots__ = ("text",)
    rank = _LITERAL

    def __init__(self, text: str) -> None:
        self.text: str = text

    @property
    def regex(self) -> str:
        """The regular expression for the segment."""
        return re.escape(self.text)


class Wild:
    """A segment that contains wildcards, with its regular expression, which never matches a slash."""

    __slots__ = ("matches", "rank", "regex", "text")

    def __init__(self, text: str, rank: int, regex: str) -> None:
        self.text: str = text
        self.rank: int = rank
        self.regex: str = regex
        self.matches: Callable[[str], object] = re.compile(regex).fullmatch


class _Any:
    """A pattern segment that matches any segment."""

    __slots__ = ("rank", "text")
    regex = _ANY

    def __init__(self, rank: int, text: str) -> None:
        self.rank: int = rank
        self.text: str = text


#: ``*`` matches any single segment, and ``**`` matches zero or more segments.
STAR, DEEP = _Any(_STAR, "*"), _Any(_DEEP, "**")
Segment = Literal | Wild | _Any


class Pattern:
    """A parsed pattern with 1 to 64 segments. Patterns with the same text are equal.

    Raises:
        InvalidPattern: if the text cannot be parsed. The message gives the position.
    """

    __slots__ = ("_matcher", "_places", "canonical", "segments", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidPattern(f"{text!r} is not a pattern; use a string such as 'file/*'")
        if not text:
            raise InvalidPattern("'' is not a pattern; use a topic such as 'file/*', or '**' for every topic")
        if text.count("/") >= MAX_SEGMENTS:
            raise InvalidPattern(
                f"the pattern {text[:40]!r}… has {text.count('/') + 1:,} segments; the maximum is {MAX_SEGMENTS}; "
                "write ** for any number of segments"
            )
        reader = _Reader(text)
        self.text: str = text
        self.segments: tuple[Segment, ...] = tuple(reader.segments())
        # The names in the pattern, each with the position of its segment.
        self._places: Mapping[str, int] = reader.places or _NO_PLACES
        #: The text without names and unnecessary quoting. Two patterns are equivalent if they have the same canonical
        #: text.
        self.canonical: str = _text(self.segments) if "\\" in text or reader.places else text
        # Created when it is first used, because most patterns are matched only by the index of the routes.
        self._matcher: _Matcher | None = None

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
    def names(self) -> tuple[str, ...]:
        """The names in braces, from left to right."""
        return tuple(self._places)

    @property
    def rank(self) -> tuple[tuple[int, ...], str]:
        """A sort key that puts the most specific of several matching patterns first.

        Segments are compared from left to right. Literal segments come first, followed by segments that contain
        wildcards (those with more literal characters first), then ``*``, the end of the pattern, and ``**``. Names have
        no effect. Patterns of equal rank are sorted by their text.
        """
        kinds = [segment.rank for segment in self.segments]
        return (*(kinds), _END), self.canonical

    def _matching(self) -> _Matcher:
        if self._matcher is None:
            self._matcher = _Matcher(self.segments)
        return self._matcher

    def matches(self, topic: str) -> bool:
        """Return whether this pattern matches ``topic``. Wildcards in the topic have no special meaning.

        The cost is linear in the length of the topic.
        """
        return self._matching().find(topic.split("/")) is not None

    def params(self, topic: str) -> dict[str, str] | None:
        """Return the value of each name, or None if this pattern does not match ``topic``.

        The value of a named ``**`` consists of the segments that it matched, joined by slashes. It may be empty. If the
        pattern has several ``**``, each one except the last matches as few segments as possible.
        """
        values = self._reader(self._places)(topic)
        return None if values is None else dict(zip(self._places, values, strict=True))

    def _reader(self, names: Iterable[str]) -> Reader:
        return self._matching().reader([self._places[name] for name in names])


def reader(pattern: Pattern, names: Iterable[str]) -> Reader:
    """Return a function that returns the values of ``names`` for a topic, or None if the topic does not match."""
    return pattern._reader(names)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # not public, so no method


def only_place(pattern: Pattern, name: str) -> tuple[int, int, Callable[[Sequence[str]], Any], Any] | None:
    """Return how to read ``name``, if the pattern consists of literals and stars. Otherwise, return None.

    The result is the number of segments, the position of ``name``, a function that picks the literal segments of a
    topic, and these literals.
    """
    if any(isinstance(each, Wild) or each is DEEP for each in pattern.segments):
        return None
    literals = [at for at, each in enumerate(pattern.segments) if isinstance(each, Literal)]
    pick: Callable[[Sequence[str]], Any] = itemgetter(*literals) if literals else lambda _: None
    place = pattern._places[name]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # see `reader`
    return len(pattern.segments), place, pick, pick([each.text for each in pattern.segments])


class _Run:
    """Consecutive segments without a ``**``."""

    __slots__ = ("literals", "size", "wilds")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.size = len(segments)
        # Each segment that does not match everything, with its position.
        self.literals = [(at, each.text) for at, each in enumerate(segments) if isinstance(each, Literal)]
        self.wilds = [(at, each.matches) for at, each in enumerate(segments) if isinstance(each, Wild)]

    def fits(self, parts: Sequence[str], start: int) -> bool:
        """Return whether the run matches the parts of a topic that begin at ``start``."""
        for at, text in self.literals:
            if parts[start + at] != text:
                return False
        return not self.wilds or all(matches(parts[start + at]) for at, matches in self.wilds)


class _Matcher:
    """The runs of a pattern."""

    __slots__ = ("_runs", "_size")

    def __init__(self, segments: Iterable[Segment]) -> None:
        runs: list[list[Segment]] = [[]]
        for segment in segments:
            if segment is DEEP:
                runs.append([])
            else:
                runs[-1].append(segment)
        self._runs = [_Run(run) for run in runs]
        self._size = sum(run.size for run in self._runs)

    def find(self, parts: Sequence[str]) -> list[int] | None:
        """Return where each run begins in the parts of a topic, or None if the topic does not match."""
        first, last = self._runs[0], self._runs[-1]
        end = len(parts) - last.size
        if len(parts) < self._size or not first.fits(parts, 0):
            return None
        if first is last:
            return [0] if end == 0 else None
        if not last.fits(parts, end):
            return None
        starts, at = [0], first.size
        for run in self._runs[1:-1]:
            while at + run.size <= end and not run.fits(parts, at):
                at += 1
            if at + run.size > end:
                return None
            starts.append(at)
            at += run.size
        starts.append(end)
        return starts

    def reader(self, places: Sequence[int]) -> Reader:
        """Return a function that returns the values of the segments at ``places``."""
        if len(self._runs) == 1:
            return self._plain_reader(places)
        # The run and the offset of each place. The place of a `**` follows the last segment of a run.
        where: list[tuple[int, int]] = []
        for place in places:
            number, offset = 0, place
            while offset > self._runs[number].size:
                offset -= self._runs[number].size + 1
                number += 1
            where.append((number, offset))

        def read(topic: str) -> list[str] | None:
            parts = topic.split("/")
            starts = self.find(parts)
            if starts is None:
                return None
            values: list[str] = []
            for number, offset in where:
                at = starts[number] + offset
                is_deep = offset == self._runs[number].size
                values.append("/".join(parts[at : starts[number + 1]]) if is_deep else parts[at])
            return values

        return read

    def _plain_reader(self, places: Sequence[int]) -> Reader:
        """Return a reader for a pattern without a ``**``, which takes a third of the time of the general one."""
        (run,) = self._runs
        size, literals, wilds = run.size, run.literals, run.wilds
        # With a slice, it returns a list even for a single place.
        first = places[0] if places else 0
        pick: Callable[[list[str]], Sequence[str]] = (
            itemgetter(*places) if len(places) > 1 else itemgetter(slice(first, first + len(places)))
        )

        def read(topic: str) -> Sequence[str] | None:
            parts = topic.split("/")
            if len(parts) != size:
                return None
            for at, text in literals:
                if parts[at] != text:
                    return None
            for at, matches in wilds:
                if not matches(parts[at]):
                    return None
            return pick(parts)

        return read


class _Reader:
    """A parser that reads one pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._count = 0
        #: The names in the pattern, each with the position of its segment.
        self.places: dict[str, int] = {}

    def segments(self) -> list[Segment]:
        found = [self._segment()]
        while self._at < len(self._text):
            self._at += 1  # skip the slash
            self._count += 1
            found.append(self._segment())
        for side, at, place in (("begins", 0, 0), ("ends", -1, len(self._text) - 1)):
            outermost = found[at]
            if len(found) > 1 and isinstance(outermost, Literal) and not outermost.text:
                plain = self._text.strip("/") or "**"
                raise self._error(f"it {side} with a slash at position {{at}}; write {plain!r}", place)
        return found

    def _segment(self) -> Segment:
        """Read up to the next slash. Each piece is literal text or a wildcard's regular expression."""
        if self._peek() == "{":
            return self._named()
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

    def _named(self) -> Segment:
        """Read a name in braces."""
        start = self._at
        found = _NAMED(self._text, start)
        if found is None:
            raise self._brace("{", start)
        name, deep = found.groups()
        if not name.isidentifier() or iskeyword(name):
            problem = f"the name {name!r} at position {{at}} must be a Python identifier and not a keyword"
            raise self._error(f"{problem}; write \\{{ for a brace, or use several patterns for alternatives", start)
        if name in self.places:
            raise self._error(f"the name {name!r} at position {{at}} is used twice; use different names", start)
        self.places[name] = self._count
        self._at = found.end()
        self._peek()  # skips a backslash before the slash
        return DEEP if deep else STAR

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
            raise self._brace(char, self._at)
        self._at += 1
        if char == "*":
            return False, _ANY
        return (False, "[^/]") if char == "?" else (True, char)

    def _brace(self, char: str, at: int) -> InvalidPattern:
        told = f"the {char} at position {{at}} is not part of a name that makes up a whole segment"
        return self._error(f"{told}, such as {{id}} or {{path:**}}; write \\{char} for a brace", at)

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
            raise self._error("the class at position {at} is empty; add a character, or quote the [", start)
        # A range such as [.-0] includes the slash.
        return f"(?!/)[{'^' if negated else ''}{''.join(members)}]"

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


#: A name in braces that makes up a whole segment. This does not check whether the name is valid.
_NAMED = re.compile(r"\{([^{}/:]+)(:\*\*)?\}(?=\\?/|\Z)").match

_NO_PLACES: Mapping[str, int] = {}


def quoted(topic: str) -> str:
    """Return a pattern that matches only ``topic``."""
    return "".join(f"\\{char}" if char in "*?[\\{}" else char for char in topic)


def path_glob(text: str) -> Pattern:
    """Return a pattern for paths. Names in braces are not allowed in it.

    Raises:
        InvalidPattern: if the text cannot be parsed or contains a name in braces.
    """
    pattern = Pattern(text)
    for name in pattern.names:
        told = f"a glob for paths cannot contain names such as {name!r} at position {text.index(f'{{{name}')}"
        raise InvalidPattern(f"malformed glob {text!r}: {told}; write \\{{ for a brace")
    return pattern


def _text(segments: Iterable[Segment]) -> str:
    """Return the text of a pattern with these segments, without names and unnecessary quoting."""
    return "/".join(quoted(each.text) if isinstance(each, Literal) else each.text for each in segments)


def _wild(text: str, pieces: list[tuple[bool, str]]) -> Wild:
    """Compile a segment into a regular expression that takes linear time for any input.

    It backtracks over at most one star.
    """
    runs: list[list[tuple[bool, str]]] = [[]]
    for piece in pieces:
        if piece == (False, _ANY):
            runs.append([])
        else:
            runs[-1].append(piece)
    first, *later = [_regex(run) for run in runs]
    # Between two stars, the leftmost match is as good as any other, so we use an atomic group to avoid backtracking.
    middle = "".join(f"(?>{_ANY}?{run})" for run in later[:-1])
    last = _ANY + later[-1] if later else ""
    literals = sum(literal for literal, _ in pieces)
    return Wild(text, -literals, first + middle + last)


def _regex(run: list[tuple[bool, str]]) -> str:
    return "".join(re.escape(text) if literal else text for literal, text in run)
