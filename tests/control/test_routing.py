"""The index and the route table return the right routes in the right order, regardless of registration order."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.control import Event, Pattern, RouteConflict, RouteNotFound, Router
from lifecycle.control.router import call_directly
from lifecycle.control.routes import Index
from lifecycle.testing import Clock, running
from tests.control import reference_patterns


def take(_event: Any) -> None:
    """A handler."""


def canonical(pattern: str) -> str:
    return Pattern(pattern).canonical


def winners(router: Router, topic: str) -> list[str]:
    return [info.pattern for info in router.explain(topic)]


def router_of(patterns: list[str]) -> Router:
    router = Router()
    for pattern in patterns:
        router.handle(pattern, take, replace=True)
    return router


def test_the_index_agrees_with_a_plain_search_for_every_pair_of_small_patterns() -> None:
    """The test covers all pairs of patterns with up to three segments, and all topics with up to four."""
    patterns = ["/".join(each) for size in (1, 2, 3) for each in itertools.product(("a", "b", "*", "**"), repeat=size)]
    topics = ["/".join(each) for size in (1, 2, 3, 4) for each in itertools.product("ab", repeat=size)]
    expected = {
        pattern: {topic for topic in topics if reference_patterns.matches(pattern, topic)} for pattern in patterns
    }
    parsed = {pattern: Pattern(pattern) for pattern in patterns}
    for pair in itertools.combinations(patterns, 2):
        index = Index[str]()
        for pattern in pair:
            index.add(parsed[pattern], pattern)
        for topic in topics:
            assert set(index.find(topic)) == {each for each in pair if topic in expected[each]}, (pair, topic)


def test_the_index_agrees_with_a_plain_search_for_every_small_segment() -> None:
    """The index contains every segment of up to four characters."""
    patterns = ["".join(each) for size in (1, 2, 3, 4) for each in itertools.product("ab*?", repeat=size)]
    topics = ["".join(each) for size in (1, 2, 3, 4) for each in itertools.product("ab", repeat=size)]
    index = Index[str]()
    for pattern in patterns:
        index.add(Pattern(pattern), pattern)
    for topic in topics:
        assert set(index.find(topic)) == {each for each in patterns if reference_patterns.matches(each, topic)}, topic


@given(
    st.lists(reference_patterns.patterns, max_size=12, unique_by=canonical),
    st.lists(reference_patterns.topics, min_size=1, max_size=6),
)
def test_the_index_agrees_with_a_plain_search(patterns: list[str], topics: list[str]) -> None:
    index = Index[str]()
    for pattern in patterns:
        index.add(Pattern(pattern), pattern)
    for topic in topics:
        assert sorted(index.find(topic)) == sorted(each for each in patterns if reference_patterns.matches(each, topic))


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30),
    st.lists(reference_patterns.patterns, min_size=10, max_size=10),
)
def test_an_index_with_removed_patterns_equals_a_new_one(moves: list[tuple[bool, int]], patterns: list[str]) -> None:
    index, held = Index[str](), dict[str, str]()
    for put, number in moves:
        pattern = canonical(patterns[number])
        if put and pattern not in held:
            index.add(Pattern(pattern), pattern)
            held[pattern] = pattern
        elif not put and pattern in held:
            assert index.remove(Pattern(pattern), held[pattern])
            del held[pattern]
    fresh = Index[str]()
    for pattern in held:
        fresh.add(Pattern(pattern), pattern)
    assert sorted(index) == sorted(fresh) == sorted(held)
    assert shapes(index) == shapes(fresh)
    for topic in ("a", "a/b", "b/a/b", "a//", *(pattern.replace("*", "a") for pattern in patterns)):
        assert sorted(index.find(topic)) == sorted(fresh.find(topic))


def shapes(index: Index[str]) -> int:
    return len(index._shapes)  # pyright: ignore[reportPrivateUsage]  # the shapes are not public


@given(
    st.lists(reference_patterns.patterns, min_size=2, max_size=5, unique=True),
    reference_patterns.topics,
    st.randoms(use_true_random=False),
)
def test_the_chosen_route_does_not_depend_on_the_order_of_registration(
    patterns: list[str], topic: str, random: Any
) -> None:
    # Equivalent patterns are one route, so the later one replaces the earlier one.
    patterns = list({canonical(each): each for each in patterns}.values())
    expected = winners(router_of(patterns), topic)
    for _ in range(3):
        random.shuffle(patterns)
        assert winners(router_of(patterns), topic) == expected


#: Patterns that match a/b, in the documented order: the most specific comes first.
RANKED = ["a/b", "a/[b]", "a/*", "a/**", "?/b", "*/b", "*/**", "**/b", "**"]


def test_the_more_specific_pattern_takes_precedence() -> None:
    # After a first literal segment, the order is: a literal, a segment with wildcards, a star, the end, a double star.
    assert winners(router_of(RANKED[::-1]), "a/b") == RANKED
    # The pattern with more literal characters comes first. Patterns that are otherwise equal are sorted as text.
    wild = ["a/bx*", "a/?x*", "a/b*", "a/b?*", "a/*?", "a/*/**", "a/**"]
    assert winners(router_of(wild[::-1]), "a/bx") == wild
    assert winners(router_of(["a/*", "a/*/**"]), "a/b") == ["a/*", "a/*/**"]


@pytest.mark.parametrize("order", list(itertools.permutations(["a/*", "a/**", "**", "*/b"])))
def test_four_globs_in_every_order(order: tuple[str, ...]) -> None:
    assert winners(router_of(list(order)), "a/b") == ["a/*", "a/**", "*/b", "**"]


def test_an_exact_route_takes_precedence_over_every_glob() -> None:
    router = router_of(["a/b/**", "a/b/c"])
    assert winners(router, "a/b/c") == ["a/b/c", "a/b/**"]


# -- registration ------------------------------------------------------------------------------------------------


def test_the_same_pattern_twice_names_both_places() -> None:
    router = Router()
    router.handle("a/*", take)
    with pytest.raises(RouteConflict) as caught:
        router.handle("a/*", take)
    assert str(caught.value).count("test_routing.py:") == 2
    assert [info.pattern for info in router.routes()] == ["a/*"]


def test_a_conflict_leaves_nothing_behind() -> None:
    router = Router()
    router.handle("a", take)
    with pytest.raises(RouteConflict):
        router.handle("a", take, lane="shared", concurrency=3)
    router.handle("b", take, lane="shared", concurrency=1)


@pytest.mark.parametrize(
    ("pattern", "twin"),
    [("a/b", "a/\\b"), ("a/*", "\\a/*"), ("a/{x}/c", "a/*/c"), ("a/{x}", "a/{y}"), ("a/**", "a/{x:**}")],
)
async def test_two_patterns_for_the_same_topics_are_one_route(pattern: str, twin: str) -> None:
    router, seen = Router(), list[Any]()
    topic = pattern.replace("**", "b").replace("*", "b").replace("{x}", "b")
    router.handle(pattern, take)
    with pytest.raises(RouteConflict, match="match the same topics") as caught:
        router.handle(twin, take)
    assert repr(pattern) in str(caught.value)
    assert repr(twin) in str(caught.value)
    router.handle(twin, seen.append, replace=True)
    await call_directly(router, Event(topic))
    assert [info.pattern for info in router.routes()] == [twin]
    assert len(seen) == 1
    router.remove(pattern)
    assert router.routes() == []


async def test_observers_of_equivalent_patterns_all_see_the_event(clock: Clock) -> None:
    router, seen = Router(), list[Any]()
    observers = [router.observe(each, seen.append) for each in ("a/{x}", "a/*", "\\a/*", "a/{rest:**}")]
    router.fallback(take)
    async with running(router):
        await (await router.emit(Event("a/b")))
    assert len(seen) == 4
    for observer in observers[:3]:
        observer.remove()
    assert [info.pattern for info in router.routes()] == ["a/{rest:**} (observed by append)"]


@given(st.lists(reference_patterns.patterns, max_size=8, unique_by=canonical), reference_patterns.topics)
def test_names_do_not_change_the_precedence(patterns: list[str], topic: str) -> None:
    plain = winners(router_of([reference_patterns.without_names(each) for each in patterns]), topic)
    assert [reference_patterns.without_names(each) for each in winners(router_of(patterns), topic)] == plain


async def test_replace_replaces_the_handler() -> None:
    router, seen = Router(), list[Any]()
    router.handle("a/*", lambda _: seen.append("old"))
    router.handle("a/*", lambda _: seen.append("new"), replace=True)
    await call_directly(router, Event("a/b"))
    assert seen == ["new"]
    assert len(router.routes()) == 1


def test_removing_a_missing_route_raises_a_readable_error() -> None:
    router = Router()
    with pytest.raises(RouteNotFound, match=r"no route is registered for 'a/\*'") as caught:
        router.remove("a/*")
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith('"')


async def test_removed_routes_no_longer_match_even_cached_topics() -> None:
    router, seen = Router(), list[Any]()
    router.handle("a/*", lambda _: seen.append("glob"))
    router.handle("a/b", lambda _: seen.append("exact"))
    await call_directly(router, Event("a/b"))
    router.remove("a/b")
    await call_directly(router, Event("a/b"))
    assert seen == ["exact", "glob"]


# -- memory ------------------------------------------------------------------------------------------------------


def test_ten_thousand_topics_that_occur_once_leave_a_bounded_cache() -> None:
    router, size = Router(), list[int]()
    tracemalloc.start()
    for round_ in range(3):
        for number in range(10_000):
            assert router.explain(f"once/{round_}/{number}") == []
        gc.collect()
        size.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert size[2] < 1.2 * size[0]


def test_a_repeated_topic_survives_a_flood_of_topics_that_occur_once() -> None:
    counted: Counter[str] = Counter()

    class Counting(Pattern):
        def matches(self, topic: str) -> bool:
            counted[topic] += 1
            return super().matches(topic)

    router = Router()
    router.handle(Counting("hot/?*"), take)
    for number in range(20_000):
        router.explain(f"flood/{number}")
        if number % 10 == 0:
            router.explain(f"hot/{number // 10 % 20}")
    # Each look-up in the index compares the pattern once.
    assert len(counted) == 20
    assert counted.total() <= 0.05 * 2000
