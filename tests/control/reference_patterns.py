"""The simplest possible reference implementation of the pattern rules in api.md."""

from __future__ import annotations

import re

from hypothesis import strategies as st

# A small alphabet, so that patterns often match topics. It includes all special characters of patterns and regexes.
LETTERS = "ab*?[]^!-\\.|&é"


def matches(pattern: str, topic: str) -> bool:
    """Return whether ``pattern`` matches ``topic``."""
    return params(pattern, topic) is not None


def params(pattern: str, topic: str) -> dict[str, str] | None:
    """Return the values of the names in ``pattern``, or None if it does not match ``topic``."""
    return _segments(_split(pattern), topic.split("/"))


def without_names(pattern: str) -> str:
    """Return the pattern with its names removed, so that only ``*`` and ``**`` are left."""
    return "/".join(_wildcard(segment)[1] for segment in _split(pattern))


def _wildcard(segment: str) -> tuple[str, str]:
    """Return the name of a segment, which may be empty, and the segment without it."""
    named = re.fullmatch(r"\{(\w+)(:\*\*)?\}", segment)
    return ("", segment) if named is None else (named[1], "**" if named[2] else "*")


def _split(pattern: str) -> list[str]:
    """Return the segments of a well-formed pattern, in which a class never contains a slash."""
    return pattern.split("/")


def _segments(pattern: list[str], topic: list[str]) -> dict[str, str] | None:
    if not pattern:
        return None if topic else {}
    name, segment = _wildcard(pattern[0])
    for size in range(len(topic) + 1) if segment == "**" else range(1, 2):
        if segment != "**" and not (topic and _chars(segment, topic[0])):
            return None
        rest = _segments(pattern[1:], topic[size:])
        if rest is not None:
            return rest | ({name: "/".join(topic[:size])} if name else {})
    return None


def _chars(pattern: str, text: str) -> bool:  # noqa: PLR0911  # one return per rule
    if not pattern:
        return not text
    char, rest = pattern[0], pattern[1:]
    if char == "*":
        return any(_chars(rest, text[skip:]) for skip in range(len(text) + 1))
    if char == "\\":
        return text[:1] == rest[0] and _chars(rest[1:], text[1:])
    if not text:
        return False
    if char == "?":
        return _chars(rest, text[1:])
    if char == "[":
        inside, rest = _class(rest, text[0])
        return inside and _chars(rest, text[1:])
    return char == text[0] and _chars(rest, text[1:])


def _class(pattern: str, char: str) -> tuple[bool, str]:
    negated = pattern[0] in "!^"
    at, inside = int(negated), False
    while pattern[at] != "]":
        low, at = _member(pattern, at)
        high = low
        if pattern[at] == "-" and pattern[at + 1] != "]":
            high, at = _member(pattern, at + 1)
        inside = inside or low <= char <= high
    return inside is not negated, pattern[at + 1 :]


def _member(pattern: str, at: int) -> tuple[str, int]:
    return (pattern[at + 1], at + 2) if pattern[at] == "\\" else (pattern[at], at + 1)


# -- strategies for examples -------------------------------------------------------------------------------------


def _quoted(char: str) -> str:
    return f"\\{char}"


_plain = st.sampled_from("ab.|&é^!-")
_member_text = st.one_of(st.sampled_from("ab.|&é"), st.sampled_from("]^!-\\[").map(_quoted))


@st.composite
def _range(draw: st.DrawFn) -> str:
    low, high = sorted((draw(st.sampled_from("abcé")), draw(st.sampled_from("abcé"))))
    return f"{low}-{high}"


@st.composite
def _class_text(draw: st.DrawFn) -> str:
    members = draw(st.lists(st.one_of(_member_text, _range()), min_size=1, max_size=3))
    trailing = draw(st.sampled_from(["", "-"]))
    return f"[{draw(st.sampled_from(['', '!', '^']))}{''.join(members)}{trailing}]"


_wild = st.one_of(
    _plain,
    st.sampled_from("*?[]\\ab").map(_quoted),
    st.sampled_from("**?"),
    _class_text(),
)
_segment = st.one_of(
    st.text(_plain, max_size=3),
    st.just("*"),
    st.just("**"),
    st.sampled_from(["{}", "{:**}"]),
    st.lists(_wild, max_size=4).map("".join),
)


def _joined(segments: list[str]) -> str:
    """Return the pattern with these segments, with a different name for each ``{}``."""
    named = [each.replace("{", f"{{n{at}") if each[:1] == "{" else each for at, each in enumerate(segments)]
    return "/".join(named).strip("/")


#: Well-formed patterns, in which slashes occur only between segments.
patterns = st.lists(_segment, min_size=1, max_size=5).map(_joined).filter(bool)

#: Topics, some of which look like patterns.
topics = st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=5).map("/".join).filter(bool)
