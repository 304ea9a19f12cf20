"""Patterns: their syntax, how they match, and how they are ordered from specific to general.

A pattern is a topic with wildcards. ``*`` and ``?`` match characters within one segment. ``[abc]``, ``[a-z]``, ``[!x]``
and ``[^x]`` match one character. ``**`` as a whole segment matches any number of segments. ``{id}`` is a named ``*``,
and ``{path:**}`` is a named ``**``. A backslash quotes the next character.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import TYPE_CHECKING

from lifecycle.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["DEEP", "MAX_SEGMENTS", "STAR", "Literal", "Pattern", "Segment", "Wild", "path_glob", "quoted"]

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

    def matches(self, segment: str) -> bool:
        """Return whether ``segment`` equals this text."""
        return segment == self.text


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

    def matches(self, segment: str) -> bool:  # noqa: ARG002  # the signature of a segment
        """Return True."""
        return True


#: ``*`` matches any single segment, and ``**`` matches zero or more segments.
STAR, DEEP = _Any(_STAR, "*"), _Any(_DEEP, "**")
Segment = Literal | Wild | _Any


class Pattern:
    """A parsed pattern with 1 to 64 segments. Patterns with the same text are equal.

    Raises:
        InvalidPattern: if the text cannot be parsed. The message gives the position.
    """

    __slots__ = ("_match", "_places", "_steps", "canonical", "segments", "text")

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
        # The matchers are created when they are first used, because most patterns are matched only through the index.
        self._steps: _Steps | None = None
        self._match: Callable[[str], re.Match[str] | None] | None = None

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

    def matches(self, topic: str) -> bool:
        """Return whether this pattern matches ``topic``. Wildcards in the topic have no special meaning.

        The cost is linear in the length of the topic.
        """
        if self._steps is None:
            self._steps = _Steps(self.segments)
        return self._steps.match(topic.split("/"))

    def params(self, topic: str) -> dict[str, str] | None:
        """Return the value of each name, or None if this pattern does not match ``topic``.

        The value of a named ``**`` consists of the segments that it matched, joined by slashes. It may be empty. If the
        pattern has several ``**``, each one except the last matches as few segments as possible.
        """
        if not self._places:
            return {} if self.matches(topic) else None
        if self._match is None:
            self._match = self.search(self._places)
        found = self._match(topic)
        return None if found is None else found.groupdict("")

    def search(self, names: Iterable[str]) -> Callable[[str], re.Match[str] | None]:
        """Return a function that matches a topic. Its match objects have a group for each of ``names``.

        The group of a ``**`` that matches no segments is None.
        """
        regex = _search(self.segments, {self._places[name]: f"?P<{name}>" for name in names})
        if self.segments[0] is not DEEP:
            return re.compile(regex.removeprefix("/")).fullmatch
        match = re.compile(regex).fullmatch
        return lambda topic: match(f"/{topic}")


class _Steps:
    """A finite automaton that matches a pattern.

    Bit n of its state is set if the first n segments, not counting ``**``, have matched.
    """

    __slots__ = ("_end", "_literals", "_loops", "_stars", "_wilds")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._literals: dict[str, int] = {}
        self._stars = 0
        # The segments that contain wildcards, keyed by their text. If the pattern repeats a segment, it is matched only
        # once against each segment of a topic.
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


def _search(segments: Sequence[Segment], groups: Mapping[int, str]) -> str:
    """Return a regular expression that matches a slash followed by a topic.

    ``groups`` maps positions of segments to the names of their groups.
    """
    regex, last, closing = "", max((at for at, segment in enumerate(segments) if segment is DEEP), default=0), ""
    for at, segment in enumerate(segments):
        group = groups.get(at, "?:")
        if segment is not DEEP:
            regex += f"/({group}{segment.regex})"
        elif at == last:
            regex += f"{closing}(?:/({group}(?s:.*)))?"
        else:
            # As in `_wild`, the leftmost match of the segments up to the next `**` is as good as any other.
            regex += f"{closing}(?>(?:/({group}{_ANY}(?:/{_ANY})*?))??"
            # The last of these segments must match a whole segment of the topic, not just its beginning.
            closing = r"(?=/|\Z))"
    return regex


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
