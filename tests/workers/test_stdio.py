"""Lines are delivered whole, no matter how their bytes arrive, and are logged or printed but never lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.workers.stdio import LIMIT, Lines, Receiver, Tail

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class Shown(logging.Handler):
    """A handler that keeps the messages it receives."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.name}: {record.getMessage()}")


@pytest.fixture
def workers_log() -> Iterator[logging.Logger]:
    """The logger above those of all workers. A test sets its handlers, because pytest adds its own to each logger."""
    log = logging.getLogger("lifecycle.workers")
    log.propagate = False
    yield log
    log.propagate, log.handlers = True, []
    log.setLevel(logging.NOTSET)


def test_output_is_logged_if_a_handler_shows_it(
    workers_log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = Shown()
    workers_log.handlers = [handler]
    workers_log.setLevel(logging.INFO)
    Receiver(None, "web").feed(b"up\n", "stdout")
    assert handler.messages == ["lifecycle.workers.web: up"]
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.mark.parametrize(
    ("handler", "level"),
    [
        (None, logging.INFO),
        (logging.NullHandler(), logging.INFO),
        (Shown(logging.WARNING), logging.INFO),
        (Shown(), logging.WARNING),
    ],
    ids=["no handler", "a handler that drops all", "a handler for warnings", "a logger for warnings"],
)
def test_output_is_printed_if_no_handler_shows_it(
    workers_log: logging.Logger, capsys: pytest.CaptureFixture[str], handler: logging.Handler | None, level: int
) -> None:
    workers_log.handlers = [] if handler is None else [handler]
    workers_log.setLevel(level)
    receiver = Receiver(None, "web")
    receiver.feed(b"up\n", "stdout")
    receiver.feed(b"oops\n", "stderr")
    assert tuple(capsys.readouterr()) == ("up\n", "oops\n")
