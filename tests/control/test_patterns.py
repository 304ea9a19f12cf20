"""Patterns: matching, order from specific to general, and errors for malformed patterns."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given

from lifecycle.control import InvalidPattern, Pattern
from lifecycle.control.patterns import quoted
from lifecycle.errors import LifecycleError
from tests.control import reference_patterns


@given(reference_patterns.patterns, reference_patterns.topics)
@example("**/**", "a")
@example("a/**", "a")
@example("a/**/b/**/c", "a/b/b/c/c")
@example("[!a]", "")
@example("[^a-b]*", "é")
@example("*\\*", "a*")
@example("***", "ab")
@example("**a", "a")
@example("a//b", "a//b")
def test_a_pattern_matches_the_same_topics_as_a_slow_implementation_of_the_rules(pattern: str, topic: str) -> None:
    assert Pattern(pattern).matches(topic) is reference_patterns.matches(pattern, topic)


@given(reference_patterns.patterns, reference_patterns.topics)
@example("{a:**}/{b:**}", "x/y")
@example("{a:**}/x/{b:**}/x/{c:**}", "x/x/x/x")
@example("{a:**}/[+-0]x/*", "a//x/y")
@example("{a:**}/x/**", "xy/x")
@example("{a:**}//**", "x/")
def test_names_get_the_same_values_as_from_a_slow_implementation_of_the_rules(pattern: str, topic: str) -> None:
    assert Pattern(pattern).params(topic) == reference_patterns.params(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "topic", "params"),
    [
        ("device/{name}/temp", "device/k7/temp", {"name": "k7"}),
        ("device/{name}/temp", "device//temp", {"name": ""}),
        ("device/{name}/temp", "device/k7/x", None),
        ("{name}", "a/b", None),
        ("files/{path:**}", "files", {"path": ""}),
        ("files/{path:**}", "files/a/b", {"path": "a/b"}),
        ("files/{path:**}/{name}", "files/a/b/c", {"path": "a/b", "name": "c"}),
        ("{first:**}/x/{rest:**}", "a/x/b/x/c", {"first": "a", "rest": "b/x/c"}),
        ("[{}]/{a_1}/\\{b\\}", "{/x/{b}", {"a_1": "x"}),
        ("{größe}\\/x", "7/x", {"größe": "7"}),
        ("a/*", "a/b", {}),
        ("a/*", "a", None),
    ],
)
def test_names_match_like_stars(pattern: str, topic: str, params: dict[str, str] | None) -> None:
    assert Pattern(pattern).params(topic) == params
    assert Pattern(pattern).matches(topic) is (params is not None)
    assert not Pattern(pattern).is_exact


def test_a_pattern_has_its_names_from_left_to_right() -> None:
    assert Pattern("{b}/*/{a:**}").names == ("b", "a")
    assert Pattern("a/*").names == ()
    assert str(Pattern("a/{b}")) == "a/{b}"
    assert Pattern("a/{b}") != Pattern("a/*")


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("file/*", "file/modified", True),
        ("file/*", "file/a/b", False),
        ("file/*", "file", False),
        ("file/*", "file/", True),
        ("file/?", "file/", False),
        ("a?c", "a/c", False),
        ("**", "a/b/c", True),
        ("a/**", "a", True),
        ("a/**", "ab", False),
        ("**/c", "c", True),
        ("**/c", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/**/c", "a/c", True),
        ("a**c", "abc", True),
        ("a**c", "a/c", False),
        ("signal.*", "signal/terminate", False),
        ("signal.*", "signal.x", True),
        ("a.c", "abc", False),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("\\a", "a", True),
        ("[abc]x", "bx", True),
        ("[abc]x", "Xx", False),
        ("a*", "a\nb", True),
        ("ab\\/cd\\/*", "ab/cd/e", True),
        ("ab\\/cd\\/*", "ab/cd", False),
        ("[a-c]x", "dx", False),
        ("[!a]x", "bx", True),
        ("[^a]x", "ax", False),
        ("[\\]]", "]", True),
        ("[a-]", "-", True),
        ("[-a]", "-", True),
        ("[a!]", "!", True),
        ("[.]", "a", False),
        ("x\ny", "x\ny", True),
        ("*", "x\ny", True),
        ("a$", "a$", True),
        ("(a|b)", "a", False),
    ],
)
def test_a_pattern_matches_as_documented(pattern: str, topic: str, expected: bool) -> None:
    assert Pattern(pattern).matches(topic) is expected


def test_a_topic_is_never_read_as_a_pattern() -> None:
    assert not Pattern("a/b").matches("a/*")
    assert Pattern("a/\\*").matches("a/*")


@pytest.mark.parametrize(
    ("pattern", "exact"),
    [("a/b", True), ("a/\\*", True), ("a//b", True), ("a/*", False), ("[a]", False), ("**", False), ("a?", False)],
)
def test_only_a_pattern_without_wildcards_is_exact(pattern: str, exact: bool) -> None:
    assert Pattern(pattern).is_exact is exact
    assert str(Pattern(pattern)) == pattern


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a/[bc", 2),
        ("[", 0),
        ("a/b\\", 3),
        ("[a/b]", 0),
        ("ab[]", 2),
        ("ab[!]", 2),
        ("x/[z-a]", 3),
        ("[a\\", 2),
        ("a/**/[b-", 5),
        ("/a", 0),
        ("/", 0),
        ("\\/a", 0),
        ("a/", 1),
        ("a/*/", 3),
        ("file/{added,modified}", 5),
        ("a}", 1),
        ("a/{}", 2),
        ("a/{b", 2),
        ("a/{b/c}", 2),
        ("a/x{b}", 3),
        ("a/{b}y", 2),
        ("a/{b}{c}", 2),
        ("a/{b:c}", 2),
        ("a/{b:*}", 2),
        ("a/{:**}", 2),
        ("a/{1b}", 2),
        ("a/{ b}", 2),
        ("a/{class}", 2),
        ("a/{b}/{b:**}", 6),
        ("{at}/{at}", 5),
    ],
)
def test_a_malformed_pattern_is_refused_with_the_position_named(pattern: str, position: int) -> None:
    with pytest.raises(InvalidPattern, match=rf"position {position}\b") as caught:
        Pattern(pattern)
    assert repr(pattern) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LifecycleError)


@pytest.mark.parametrize("pattern", ["", None, 7, b"a/b", ["a"]])
def test_a_pattern_must_be_a_string(pattern: object) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(repr(pattern))):
        Pattern(pattern)  # type: ignore[arg-type]  # that is the point


def test_patterns_with_the_same_text_are_equal() -> None:
    assert Pattern("a/*") == Pattern("a/*")
    assert len({Pattern("a/*"), Pattern("a/*"), Pattern("a/?")}) == 2
    assert Pattern("a") != "a"


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("*a*a*a*a*a*a*a*a*b", "a" * 1000),
        ("?*?*?*?*?*?*?*b", "a" * 1000),
        ("[ab]*[ab]*[ab]*[ab]*[ab]*c", "ab" * 500),
        ("**/a/**/a/**/a/**/a/**/b", "/".join("a" * 500)),
        ("**/" + "a/" * 60 + "b", "/".join("a" * 100_000)),
        ("**/" + "/".join(f"*{'?' * number}" for number in range(20)) + "/b", "/".join("a" * 500)),
        ("**/*a*/**/*a*/**/*a*/**/b", "/".join("a" * 500)),
        ("/".join(["**", "a*"] * 30) + "/b", "/".join("a" * 500)),
    ],
)
def test_a_hostile_topic_takes_no_exponential_time(pattern: str, topic: str) -> None:
    # A matcher that backtracks over more than one star would exceed this test's time limit.
    parsed = Pattern(pattern)
    assert [parsed.matches(topic) for _ in range(20)] == [False] * 20


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("{a:**}/x/{b:**}/x/{c:**}/x/{d:**}/y", "/".join("x" * 64)),
        ("{a:**}/*x*x*x*b/{b:**}/y", "/".join(["x" * 15] * 64)),
        ("/".join(f"{{n{number}:**}}" for number in range(60)) + "/y", "/".join("x" * 64)),
        ("/".join(f"{{n{number}:**}}/x" for number in range(30)) + "/y", "x" * 900 + "/x" * 60),
    ],
)
def test_the_values_of_names_in_a_hostile_topic_take_no_exponential_time(pattern: str, topic: str) -> None:
    parsed = Pattern(pattern)
    assert [parsed.params(topic) for _ in range(20)] == [None] * 20


def test_a_pattern_has_at_most_64_segments() -> None:
    Pattern("/".join("a" * 64))
    with pytest.raises(InvalidPattern, match="has 65 segments; the maximum is 64") as caught:
        Pattern("/".join("a" * 65))
    assert "**" in str(caught.value)


def test_the_error_for_a_refused_slash_or_brace_names_a_remedy() -> None:
    with pytest.raises(InvalidPattern, match=r"write 'job/\*'"):
        Pattern("/job/*/")
    with pytest.raises(InvalidPattern, match=r"write \\\{ for a brace"):
        Pattern("job/x{done}")
    with pytest.raises(InvalidPattern, match="several patterns"):
        Pattern("job/{done,failed}")
    with pytest.raises(InvalidPattern, match="'done' at position 11 is used twice"):
        Pattern("job/{done}/{done}")
    assert Pattern("job/\\{done\\}").matches("job/{done}")
    assert Pattern("job/[{}]").matches("job/{")


@pytest.mark.parametrize(
    ("topic", "pattern"),
    [("aXb/c", "aXb/c"), ("a*?[b]\\", "a\\*\\?\\[b]\\\\"), ("a{b}", "a\\{b\\}")],
)
def test_a_topic_is_quoted_only_where_necessary(topic: str, pattern: str) -> None:
    assert quoted(topic) == pattern
    assert Pattern(pattern).topic == topic
