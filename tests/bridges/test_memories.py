"""What a bridge remembers of the last events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.bridges import memories
from lifecycle.bridges.memories import Memory

if TYPE_CHECKING:
    import pytest

AT = "1792540800000000001"
KEY = (7, AT)


def test_attempts_are_counted_where_the_server_has_begun_anew() -> None:
    memory = Memory()
    assert memory.attempt(KEY, 1) == 1
    memory.failed(KEY, 1)
    memory.failed(KEY, 2)
    assert [memory.attempt(KEY, delivered) for delivered in (1, 3, 7)] == [3, 3, 7]
    memory.handled(KEY)
    assert memory.attempt(KEY, 1) == 1


def test_what_was_handled_is_known_again_and_its_number_in_another_stream_is_not() -> None:
    memory = Memory()
    memory.handled(KEY)
    assert memory.was_handled(KEY)
    assert not memory.was_handled((7, "1792540800000000002"))


def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "_MOST", 3)
    memory = Memory()
    for number in range(5):
        memory.handled((number, AT))
        memory.failed((number, AT), 4)
    assert [memory.was_handled((number, AT)) for number in range(5)] == [False, False, True, True, True]
    assert [memory.attempt((number, AT), 1) for number in range(5)] == [1, 1, 5, 5, 5]
