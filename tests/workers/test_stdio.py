"""Lines are delivered whole, no matter how their bytes arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lifecycle.workers.stdio import LIMIT, Lines, Tail


def slow_lines(data: bytes) -> list[str]:
    *whole, rest = data.split(b"\n")
    lines = [*whole, rest] if rest else whole
    return [(line[:-1] if line.endswith(b"\r") else line).decode(errors="replace") for line in lines]


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"\n", b"\r\n", b"\0", "é".encode()[:1], b"\xff"])))
def test_lines_agree_with_a_plain_split(chunks: list[bytes]) -> None:
    lines = Lines()
    got = [line for chunk in chunks for line in lines.feed(chunk)] + lines.flush()

    assert got == slow_lines(b"".join(chunks))
    assert lines.flush() == []


def test_line_of_megabytes_stays_whole() -> None:
    lines = Lines()
    chunk = b"x" * 16_384
    assert [lines.feed(chunk) for _ in range(128)] == [[]] * 128
    assert lines.feed(b"\n") == ["x" * 16_384 * 128]


def test_line_without_an_end_is_split_at_the_limit() -> None:
    lines = Lines()
    pieces = [piece for _ in range(3 * LIMIT // 65_536) for piece in lines.feed(b"y" * 65_536)]
    assert [len(piece) for piece in pieces] == [LIMIT] * 3


@given(st.lists(st.binary(max_size=50)), st.integers(1, 30))
def test_tail_keeps_the_last_bytes(chunks: list[bytes], size: int) -> None:
    tail = Tail(size)
    for chunk in chunks:
        tail.feed(chunk)
    assert str(tail) == b"".join(chunks)[-size:].decode(errors="replace")
