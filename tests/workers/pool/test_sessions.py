"""The session table finds bound sessions, drops expired sessions, and keeps sessions that are in use."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.workers.pool import Sessions
from lifecycle.workers.pool.sessions import SessionTable

if TYPE_CHECKING:
    from collections.abc import Callable


def book(mode: Any = "hint", ttl: float = 10.0, limit: int = 100, **more: Any) -> SessionTable:
    return SessionTable(Sessions(mode, ttl=ttl, limit=limit), **more)


def test_a_session_has_one_worker_and_a_worker_many_sessions() -> None:
    sessions = book()
    sessions.bind("a", "m1", 0.0)
    sessions.bind("b", "m1", 0.0)
    assert (sessions.find("a", 1.0), sessions.find("b", 1.0), len(sessions)) == ("m1", "m1", 2)
    sessions.bind("a", "m2", 1.0)
    assert (sessions.find("a", 1.0), len(sessions)) == ("m2", 2)
    assert sessions.find("c", 1.0) is None


def test_a_session_expires_at_exactly_its_ttl() -> None:
    """P16: bound at 0 with a ttl of 0.2, a session is found at 0.19 and not at 0.2."""
    for ask in (lambda sessions: sessions.find("a", 0.2) is None, lambda sessions: sessions.expire(0.2) == ("a",)):
        sessions = book(ttl=0.2)
        sessions.bind("a", "m1", 0.0)
        assert sessions.expire(0.19) == ()
        assert sessions.find("a", 0.19) == "m1"
        assert ask(sessions)
        assert len(sessions) == 0


def test_a_lookup_does_not_renew_a_session() -> None:
    sessions = book(ttl=10)
    sessions.bind("a", "m1", 0.0)
    assert sessions.find("a", 9.0) == "m1"
    assert sessions.find("a", 10.0) is None


def test_a_session_does_not_expire_during_its_call() -> None:
    """P16: a session does not expire during a call, and the ttl starts when the last call finishes."""
    sessions = book(ttl=0.2)
    sessions.bind("a", "m1", 0.0)
    sessions.pin("a", 0.1)
    sessions.pin("a", 0.15)
    sessions.unpin("a", 1.0)
    assert (sessions.find("a", 5.0), sessions.expire(5.0)) == ("m1", ())
    sessions.unpin("a", 6.0)
    assert sessions.find("a", 6.19) == "m1"
    assert sessions.find("a", 6.2) is None


def test_a_session_may_be_bound_during_its_call() -> None:
    sessions = book(ttl=0.2)
    sessions.pin("a", 0.0)
    sessions.bind("a", "m1", 0.0)
    assert sessions.find("a", 9.0) == "m1"
    sessions.bind("a", "m2", 9.0)
    assert sessions.find("a", 99.0) == "m2"
    sessions.unpin("a", 99.0)
    assert sessions.find("a", 99.2) is None


def test_a_call_does_not_revive_an_expired_session() -> None:
    sessions = book(ttl=0.2)
    sessions.bind("a", "m1", 0.0)
    sessions.pin("a", 0.2)
    assert sessions.find("a", 0.2) is None


def test_the_end_of_a_worker_removes_only_its_own_sessions() -> None:
    sessions = book(ttl=10)
    sessions.bind("old", "m1", 0.0)
    sessions.bind("b", "m1", 5.0)
    sessions.bind("other", "m2", 5.0)
    sessions.bind("a", "m1", 6.0)
    sessions.pin("b", 6.0)
    assert sessions.drop("m1", 10.0) == ("b", "a"), "an expired session must not be reported as lost"
    assert sessions.drop("m1", 10.0) == ()
    assert (sessions.find("b", 10.0), sessions.find("other", 10.0), len(sessions)) == (None, "m2", 1)


def test_the_end_of_a_lost_call_keeps_the_new_binding() -> None:
    sessions = book(ttl=1)
    sessions.bind("a", "m1", 0.0)
    sessions.pin("a", 0.0)
    sessions.drop("m1", 0.0)
    sessions.bind("a", "m2", 0.0)
    sessions.pin("a", 0.0)
    sessions.unpin("a", 0.0)
    assert sessions.find("a", 50.0) == "m2", "the other call still uses the session"
    sessions.unpin("a", 50.0)
    assert sessions.find("a", 51.0) is None


@pytest.mark.parametrize("mode", ["strict", "fail"])
def test_a_lost_session_is_reported_once(mode: str) -> None:
    sessions = book(mode)
    sessions.bind("a", "m1", 0.0)
    assert sessions.take_loss("a", 0.0) is None
    assert sessions.drop("m1", 1.0) == ("a",)
    assert sessions.find("a", 1.0) is None
    assert sessions.take_loss("a", 1.0) == "m1"
    assert sessions.take_loss("a", 1.0) is None


def test_an_irrelevant_loss_is_not_reported() -> None:
    """The call succeeds in hint mode, after the ttl has expired, or if the session has been bound again."""
    since: dict[str, Callable[[SessionTable], object]] = {
        "hint": lambda _: None,
        "fail": lambda sessions: sessions.bind("a", "m2", 1.0),
    }
    for mode, act in since.items():
        sessions = book(mode)
        sessions.bind("a", "m1", 0.0)
        sessions.drop("m1", 1.0)
        act(sessions)
        assert sessions.take_loss("a", 1.0) is None, mode
    sessions = book("strict", ttl=2)
    sessions.bind("a", "m1", 0.0)
    sessions.drop("m1", 1.0)
    assert sessions.take_loss("a", 3.0) is None


def test_losses_are_bounded_and_expire() -> None:
    sessions = book("strict", ttl=10, limit=3)
    for number in range(6):
        sessions.bind(f"s{number}", f"m{number}", 0.0)
        sessions.drop(f"m{number}", 0.0)
    assert [sessions.take_loss(f"s{number}", 1.0) for number in range(6)] == [None, None, None, "m3", "m4", "m5"]
    sessions.bind("a", "m", 0.0)
    sessions.drop("m", 0.0)
    sessions.expire(10.0)
    assert sessions.take_loss("a", 0.0) is None, "the loss has not expired"


def test_the_least_recently_used_session_is_evicted_above_the_limit() -> None:
    evicted: list[tuple[str, str]] = []
    sessions = book(limit=3, on_evict=lambda *each: evicted.append(each))
    for session in "abc":
        sessions.bind(session, "m1", 0.0)
    sessions.pin("a", 1.0)
    sessions.pin("b", 1.0)
    sessions.unpin("b", 2.0)
    sessions.bind("d", "m2", 3.0)
    sessions.bind("e", "m2", 4.0)
    assert evicted == [("c", "m1"), ("b", "m1")]
    assert [session for session in "abcde" if sessions.find(session, 4.0)] == ["a", "d", "e"]


def test_a_new_session_stays_while_all_others_are_in_use() -> None:
    evicted: list[tuple[str, str]] = []
    sessions = book(limit=2, on_evict=lambda *each: evicted.append(each))
    for session in "abc":
        sessions.bind(session, "m1", 0.0)
        if session != "c":
            sessions.pin(session, 0.0)
    assert (evicted, len(sessions)) == ([], 3)
    sessions.unpin("a", 1.0)
    assert (evicted, len(sessions)) == ([("c", "m1")], 2)


def test_expired_sessions_are_removed_without_an_eviction() -> None:
    evicted: list[tuple[str, str]] = []
    sessions = book(ttl=1, limit=2, on_evict=lambda *each: evicted.append(each))
    for number in range(10):
        sessions.bind(f"s{number}", "m1", float(number))
    assert evicted == []
    assert len(sessions) <= 2


def test_two_tables_are_independent() -> None:
    one, other = book(), book()
    one.bind("a", "m1", 0.0)
    assert other.find("a", 0.0) is None


def test_operations_take_constant_time() -> None:
    """The test counts executed lines, not time. Searching all sessions would execute a hundred times as many lines."""
    few, many = (_steps(amount) for amount in (100, 10_000))
    assert many < 3 * few


def _steps(amount: int) -> int:
    """Return the number of executed scheduler lines for fifty rounds of all operations with ``amount`` sessions."""
    sessions = book("strict", ttl=1e9, limit=amount)
    for number in range(amount):
        sessions.bind(f"s{number}", f"m{number % 100}" if number > 200 else "m", float(number))
    steps = 0

    def trace(_frame: object, what: str, _argument: object) -> Any:
        nonlocal steps
        steps += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for number in range(50):
            now = float(amount + number)
            sessions.find(f"s{number}", now)
            sessions.bind(f"n{number}", f"n{number}", now)
            sessions.pin(f"n{number}", now)
            sessions.unpin(f"n{number}", now)
            sessions.drop(f"n{number}", now)
            sessions.take_loss(f"n{number}", now)
            sessions.expire(now)
    finally:
        sys.settrace(before)
    return steps


# -- comparison with a slow implementation --------------------------------------------------------------------------


@dataclass
class Truth:
    """A slow implementation of the rules, which searches all sessions at each step."""

    mode: str
    ttl: float
    limit: int
    bound: dict[str, tuple[str, float]] = field(default_factory=dict)
    lost: dict[str, tuple[str, float]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    evicted: list[tuple[str, str]] = field(default_factory=list)

    def too_old(self, session: str, now: float) -> bool:
        return not self.calls.get(session) and now - self.bound[session][1] >= self.ttl

    def find(self, session: str, now: float) -> str | None:
        if session in self.bound and self.too_old(session, now):
            del self.bound[session]
        return self.bound[session][0] if session in self.bound else None

    def take_loss(self, session: str, now: float) -> str | None:
        worker, at = self.lost.pop(session, (None, now))
        return worker if now - at < self.ttl else None

    def bind(self, session: str, worker: str, now: float) -> None:
        self.bound.pop(session, None)
        self.lost.pop(session, None)
        self.shrink(self.limit - 1, now)
        self.bound[session] = worker, now

    def pin(self, session: str, now: float) -> None:
        self.find(session, now)
        self.calls[session] = self.calls.get(session, 0) + 1

    def unpin(self, session: str, now: float) -> None:
        if not self.calls.get(session):
            return
        self.calls[session] -= 1
        if not self.calls[session] and session in self.bound:
            worker, _ = self.bound.pop(session)
            self.bound[session] = worker, now
            self.shrink(self.limit, now)

    def drop(self, worker: str, now: float) -> set[str]:
        gone = {session for session, (of, _) in self.bound.items() if of == worker and not self.too_old(session, now)}
        for session in gone:
            del self.bound[session]
            if self.mode != "hint":
                self.lost[session] = worker, now
        return gone

    def expire(self, now: float) -> set[str]:
        old = {session for session in self.bound if self.too_old(session, now)}
        for session in old:
            del self.bound[session]
        return old

    def shrink(self, most: int, now: float) -> None:
        if len(self.bound) > most:
            self.expire(now)
        while len(self.bound) > most and (idle := [each for each in self.bound if not self.calls.get(each)]):
            # If several sessions have the same time, `min` picks the session that was bound or used first, because
            # dictionaries keep that order.
            longest = min(idle, key=lambda session: self.bound[session][1])
            self.evicted.append((longest, self.bound.pop(longest)[0]))


SESSIONS, MEMBERS = st.sampled_from("abcdef"), st.sampled_from(["m1", "m2", "m3"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 7]),
        st.one_of(
            st.tuples(st.sampled_from(["find", "take_loss", "pin", "unpin"]), SESSIONS),
            st.tuples(st.just("bind"), SESSIONS, MEMBERS),
            st.tuples(st.just("drop"), MEMBERS),
            st.tuples(st.just("expire")),
        ),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["hint", "strict", "fail"]), st.integers(1, 7), STEPS)
def test_the_table_agrees_with_a_slow_model(mode: str, limit: int, steps: list[Any]) -> None:
    truth, now = Truth(mode, 10, limit), 0
    evicted: list[tuple[str, str]] = []
    sessions = book(mode, 10, limit, on_evict=lambda *each: evicted.append(each))
    for wait, (what, *arguments) in steps:
        now += wait
        if what == "unpin" and not truth.calls.get(arguments[0]):
            continue  # a call finishes only once
        expected = getattr(truth, what)(*arguments, now)
        got = getattr(sessions, what)(*arguments, now)
        assert (set(got) if isinstance(got, tuple) else got) == expected
        assert evicted == truth.evicted
        for session in "abcdef":
            assert sessions.find(session, now) == truth.find(session, now)
        assert len(sessions) == len(truth.bound), "other sessions are left"
