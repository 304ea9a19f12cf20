"""The deduplication cache of a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.bridges import dedupe
from lifecycle.bridges.dedupe import DedupeCache, PastAttempts

if TYPE_CHECKING:
    import pytest

AT = "1792540800000000001"
KEY = (7, AT)


def test_failures_are_remembered_until_the_event_is_handled() -> None:
    memory = DedupeCache()
    assert memory.past(KEY) == PastAttempts()
    memory.failed(KEY, PastAttempts(2, "no"))
    assert memory.past(KEY) == PastAttempts(2, "no")
    memory.handled(KEY)
    assert memory.past(KEY) == PastAttempts()


def test_a_handled_event_is_recognised_by_its_stream_and_number() -> None:
    memory = DedupeCache()
    memory.handled(KEY)
    assert memory.was_handled(KEY)
    assert not memory.was_handled((7, "1792540800000000002"))


def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "_MOST", 3)
    memory = DedupeCache()
    for number in range(5):
        memory.handled((number, AT))
        memory.failed((number, AT), PastAttempts(4, "no"))
    assert [memory.was_handled((number, AT)) for number in range(5)] == [False, False, True, True, True]
    assert [memory.past((number, AT)).failures for number in range(5)] == [0, 0, 4, 4, 4]
