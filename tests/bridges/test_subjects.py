"""Converting topics to subjects and back. A subscription includes everything that the router would match."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.bridges.subjects import LONGEST, as_subject, as_token, as_topic, covers, filters
from lifecycle.control import Pattern
from lifecycle.errors import BridgeError, InvalidPattern, Unpublishable

#: Characters that a server accepts, including in bucket keys.
LEGAL = re.compile(r"ev(\.[A-Za-z0-9_=-]+)+").fullmatch

#: A small alphabet, so that patterns often match topics, with some special characters.
SEGMENTS = st.text(st.sampled_from("ab./=*>?ü \n\0😀A0-_"), max_size=4) | st.text(max_size=6)
TOPICS = st.lists(SEGMENTS.map(lambda text: text.replace("/", "")), min_size=1, max_size=5).map("/".join).filter(bool)
PIECES = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "?", "[ab]", "", "ü", "\\*", "*b", "a.b"])
PATTERNS = st.lists(PIECES, min_size=1, max_size=5).map(lambda pieces: "/".join(pieces).strip("/")).filter(bool)
SMALL_TOPICS = st.lists(st.sampled_from(["a", "b", "ab", "", "ü", "*", "a.b"]), min_size=1, max_size=5).map("/".join)


def lets_through(wanted: str, subject: str) -> bool:
    """Return the server's matching rule as a regular expression."""
    words = [r"[^.]+" if word == "*" else ".+" if word == ">" else re.escape(word) for word in wanted.split(".")]
    return re.fullmatch(r"\.".join(words), subject) is not None


@given(TOPICS)
def test_a_topic_comes_back_from_its_subject(topic: str) -> None:
    subject = as_subject(topic, "ev")
    assert LEGAL(subject)
    assert as_topic(subject, "ev") == topic


@given(st.lists(st.text(st.sampled_from("ABCabc09_-"), min_size=1), min_size=1, max_size=5))
def test_a_subject_of_plain_words_is_their_topic(words: list[str]) -> None:
    subject = ".".join(["ev", *words])
    assert as_topic(subject, "ev") == "/".join(words)
    assert as_subject("/".join(words), "ev") == subject


@given(TOPICS, TOPICS)
def test_two_topics_have_two_subjects(one: str, other: str) -> None:
    assert (as_subject(one, "ev") == as_subject(other, "ev")) is (one == other)


@given(st.text())
def test_any_subject_of_another_program_is_some_topic(text: str) -> None:
    assert isinstance(as_topic(f"ev.{text}", "ev"), str)


@pytest.mark.parametrize(
    ("topic", "subject"),
    [
        ("file/modified", "ev.file.modified"),
        ("a.b/c", "ev.a=2Eb.c"),
        ("*/>", "ev.=2A.=3E"),
        ("", "ev.="),
        ("/a//", "ev.=.a.=.="),
        ("ü", "ev.=C3=BC"),
        ("=", "ev.=3D"),
        ("a\r\nb", "ev.a=0D=0Ab"),
    ],
)
def test_special_characters_in_a_subject_are_escaped_bytewise(topic: str, subject: str) -> None:
    assert as_subject(topic, "ev") == subject


@pytest.mark.parametrize(
    ("subject", "topic"), [("ev.ü.x", "ü/x"), ("ev.a*b", "a*b"), ("ev.=FF", "\ufffd"), ("ev.=Z", "=Z")]
)
def test_subjects_escaped_by_other_programs_are_read(subject: str, topic: str) -> None:
    assert as_topic(subject, "ev") == topic


def test_a_topic_that_a_subject_cannot_carry_is_refused() -> None:
    assert len(as_subject("a" * (LONGEST - 3), "ev")) == LONGEST
    with pytest.raises(Unpublishable, match=r"1,025 characters; the maximum is 1,024"):
        as_subject("a" * (LONGEST - 2), "ev")
    with pytest.raises(Unpublishable, match="half a surrogate pair"):
        as_token("\ud800")
    assert issubclass(Unpublishable, (BridgeError, ValueError))


@given(st.lists(PATTERNS, min_size=1, max_size=4), SMALL_TOPICS.filter(bool))
def test_the_subscribed_filters_cover_every_topic_of_a_pattern(texts: list[str], topic: str) -> None:
    patterns = [Pattern(text) for text in texts]
    if any(pattern.matches(topic) for pattern in patterns):
        assert any(lets_through(each, as_subject(topic, "ev")) for each in filters(patterns, "ev"))


@given(st.lists(PATTERNS, min_size=1, max_size=4))
def test_no_filter_is_a_part_of_another(texts: list[str]) -> None:
    """A server rejects a consumer with overlapping filters."""
    found = filters([Pattern(text) for text in texts], "ev")
    assert [(a, b) for a in found for b in found if a != b and covers(a, b)] == []


@given(
    st.lists(st.sampled_from(["a", "b", "*", ">"]), min_size=1, max_size=4),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4),
)
def test_covering_is_matching_where_there_are_no_wildcards(wide: list[str], words: list[str]) -> None:
    if ">" in wide[:-1]:
        wide = wide[: wide.index(">") + 1]
    assert covers(".".join(wide), ".".join(words)) is lets_through(".".join(wide), ".".join(words))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["file/modified"], ["ev.file.modified"]),
        (["file/*"], ["ev.file.*"]),
        (["file/**"], ["ev.file", "ev.file.>"]),
        (["**"], ["ev.>"]),
        (["**/created"], ["ev.>"]),
        (["a/**/b"], ["ev.a.>"]),
        (["fo*/x"], ["ev.*.x"]),
        (["a/**/**"], ["ev.a", "ev.a.>"]),
        (["file/*", "file/created", "file/created"], ["ev.file.*"]),
        (["a/b", "a/*/c", "a/**"], ["ev.a", "ev.a.>"]),
        (["\\*/x"], ["ev.=2A.x"]),
        (["file/{name}/x"], ["ev.file.*.x"]),
        (["file/{path:**}"], ["ev.file", "ev.file.>"]),
        (["{any:**}/x"], ["ev.>"]),
        (["\\{name\\}"], ["ev.=7Bname=7D"]),
    ],
)
def test_the_filters_are_as_narrow_as_a_subject_can_say(patterns: list[str], expected: list[str]) -> None:
    assert filters([Pattern(each) for each in patterns], "ev") == expected


def test_a_pattern_that_cannot_be_read_is_refused_when_the_bridge_is_made() -> None:
    from lifecycle.bridges import NatsBridge

    with pytest.raises(InvalidPattern, match="position 0"):
        NatsBridge("nats://x", group="g", subscribe=("[",))
