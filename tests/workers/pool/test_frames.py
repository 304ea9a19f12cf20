"""Frames: what one side writes is what the other reads, however it is cut, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.workers.pool.codecs import CODECS, codec
from lifecycle.workers.pool.frames import FROM_MEMBER, FROM_PARENT, LIMIT, Decoder, ProtocolError, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.lists(st.builds(lambda number, value: ["result", number, value], st.integers(0, 2**31), VALUES), max_size=5)


@given(st.sampled_from(sorted(CODECS)), FRAMES, st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_pipe_cuts_them(
    name: str, frames: list[list[Any]], sizes: list[int]
) -> None:
    data = b"".join(encode(codec(name), frame) for frame in frames)
    decoder = Decoder(codec(name), FROM_MEMBER)
    read: list[list[Any]] = []
    while data:
        size = sizes[len(read) % len(sizes)]
        read += decoder.feed(data[:size])
        data = data[size:]
    assert read == frames
    assert not decoder.midway


def test_a_large_frame_that_comes_in_pieces_is_put_together_once() -> None:
    data = encode(codec("msgpack"), ["result", 1, b"x" * 5_000_000])
    decoder = Decoder(codec("msgpack"), FROM_MEMBER)
    read = [frame for at in range(0, len(data), 65536) for frame in decoder.feed(data[at : at + 65536])]
    assert len(read) == 1
    assert read[0][2] == b"x" * 5_000_000


def test_a_frame_of_more_than_64_mib_is_not_encoded() -> None:
    with pytest.raises(ValueError, match=f"more than the {LIMIT} that one may have"):
        encode(codec("msgpack"), ["result", 1, bytes(65 * 1024 * 1024)])


def test_a_length_of_more_than_64_mib_is_refused_before_anything_of_it_is_kept() -> None:
    decoder = Decoder(codec("msgpack"), FROM_MEMBER)
    with pytest.raises(ProtocolError, match=r"b'HTTP'.* is more than"):
        decoder.feed(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("7", "is no frame; a frame is an array"),
        ("{}", "is no frame; a frame is an array"),
        ("[]", "is no frame; a frame is an array"),
        ("[[]]", "no tag that may come"),
        ('["call", 1, "f", [], {}, null, 0]', "'call' is no tag that may come; they are hello, ready"),
        ('["nonsense"]', "no tag that may come"),
        ('["result", 1]', "is no frame 'result', whose items are int, object"),
        ('["result", 1, 2, 3]', "is no frame 'result'"),
        ('["result", "1", 2]', "is no frame 'result'"),
        ('["pong", 1, null, "long", 0]', "items are int, int | None, int | float, int"),
        ("[1", "is no json"),
        ("\x00\x01", "is no json"),
        ("", "is no json"),
    ],
)
def test_what_is_no_frame_that_may_come_is_refused_with_what_was_expected(body: str, why: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Decoder(codec("json"), FROM_MEMBER).feed(len(body).to_bytes(4, "big") + body.encode())
    assert why in str(refused.value)


@given(st.binary(max_size=200), st.sampled_from(["msgpack", "json"]))
def test_garbage_is_refused_or_waited_for_and_breaks_nothing_else(data: bytes, name: str) -> None:
    for known in (FROM_MEMBER, FROM_PARENT):
        try:
            frames = Decoder(codec(name), known).feed(data)
        except ProtocolError:
            continue
        assert all(frame[0] in known for frame in frames)
