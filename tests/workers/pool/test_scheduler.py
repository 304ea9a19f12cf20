"""The queue for slots, compared with a slow model: calls are served in arrival order, and no slot is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.workers.pool.scheduler import SlotQueue, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable


class Place:
    """A worker with slots."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leases = 0

    def __repr__(self) -> str:
        return self.name

    def check_out(self, session: str | None) -> None:
        del session
        self.leases += 1

    def check_in(self) -> None:
        self.leases -= 1
        assert self.leases >= 0


class Game:
    """The queue under test, and a model of it that uses lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.loop = asyncio.new_event_loop()
        self.slots: Any = SlotQueue(capacity)
        self.places = [Place(name) for name in "abc"]
        self.offered: set[Place] = set()
        self.paused = False
        #: Waiting calls in arrival order, each with the required worker, or None if any worker will do.
        self.queue: list[tuple[Waiter, Place | None]] = []
        #: The worker of each slot in use, one entry per slot.
        self.taken: list[Place] = []
        self.granted: dict[Waiter, Place] = {}
        self.fussy: set[Waiter] = set()

    def free(self, place: Place) -> int:
        return 0 if place not in self.offered or self.paused else self.capacity - self.taken.count(place)

    def settle(self) -> None:
        """Update the model after the queue has granted slots. Each slot must go to the first call that may use it."""
        for waiter, place in list(self.granted.items()):
            first = next(each for each, wanted in self.queue if wanted in (None, place) and not each.future.done())
            assert waiter is first
            self.queue = [entry for entry in self.queue if entry[0] is not waiter]
            waiter.future.set_result(None)
            del self.granted[waiter]

    def play(self, move: str, which: int) -> None:
        place = self.places[which % 3]
        getattr(self, move)(place)

    def offer(self, place: Place) -> None:
        self.offered.add(place)
        self.slots.offer(place)

    def withdraw(self, place: Place) -> None:
        self.offered.discard(place)
        self.slots.withdraw(place)

    def take(self, _: Place) -> None:
        free = [place for place in self.places if self.free(place)]
        place = self.slots.take()
        assert (place is None) == (not free)
        if place is not None:
            assert place.leases - 1 == min(self.taken.count(each) for each in free)
            self.taken.append(place)

    def take_strictly(self, place: Place) -> None:
        assert (self.slots.take(None, place) is place) == (self.free(place) > 0)
        if place.leases > self.taken.count(place):
            self.taken.append(place)

    def wait(self, _: Place) -> None:
        self._wait(None)

    def wait_strictly(self, place: Place) -> None:
        self._wait(place)

    def wait_in_vain(self, place: Place) -> None:
        """Add a waiting call that declines the offered slot."""
        self._wait(place, fussy=True)

    def _wait(self, wanted: Place | None, *, fussy: bool = False) -> None:
        # A call that accepts any worker waits only if no slot is free.
        if wanted is None and any(map(self.free, self.places)):
            return

        def use(place: Place) -> bool:
            if fussy:
                self.queue = [entry for entry in self.queue if entry[0] is not waiter]
                return False
            self.taken.append(place)
            self.granted[waiter] = place
            return True

        waiter: Waiter = Waiter(self.loop.create_future(), cast("Any", use))
        self.queue.append((waiter, wanted))
        self.slots.add(waiter, wanted)

    def release(self, place: Place) -> None:
        if place in self.taken:
            self.taken.remove(place)
            self.slots.release(place)

    def cancel(self, place: Place) -> None:
        """Cancel a waiting call that is still in the queue."""
        for waiter, wanted in self.queue:
            if wanted in (None, place) and not waiter.future.done():
                waiter.future.cancel()
                return

    def leave(self, place: Place) -> None:
        for waiter, wanted in self.queue:
            if wanted in (None, place):
                self.slots.leave(waiter)
                self.queue.remove((waiter, wanted))
                return

    def pause(self, _: Place) -> None:
        self.paused = True
        self.slots.pause()

    def resume(self, _: Place) -> None:
        self.paused = False
        self.slots.resume()

    def check(self) -> None:
        self.settle()
        for place in self.places:
            assert place.leases == self.taken.count(place), "a slot was lost, or granted twice"
            assert place.leases <= self.capacity
            waits = any(wanted in (None, place) and not each.future.done() for each, wanted in self.queue)
            assert not (waits and self.free(place)), "a call is waiting for a slot that is free"
        assert len(self.slots) <= len(self.queue)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("offer", "withdraw", "take", "take_strictly", "wait", "wait_strictly", "wait_in_vain"),
                *("release", "release", "release", "cancel", "leave", "pause", "resume", "resume"),
            ]
        ),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(st.integers(1, 3), MOVES)
def test_slots_are_never_lost_or_given_twice_or_withheld(capacity: int, moves: list[tuple[str, int]]) -> None:
    game = Game(capacity)
    try:
        for move, which in moves:
            game.play(move, which)
            game.check()
    finally:
        game.loop.close()


@pytest.fixture
def asker() -> Callable[[], tuple[Waiter, asyncio.Future[Place]]]:
    def make() -> tuple[Waiter, asyncio.Future[Place]]:
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()

        def use(place: Place) -> bool:
            future.set_result(place)
            return True

        return Waiter(future, cast("Any", use)), future

    return make


def _of(*names: str, capacity: int = 1) -> tuple[Any, list[Place]]:
    slots: Any = SlotQueue(capacity)
    places = [Place(name) for name in names]
    for place in places:
        slots.offer(place)
    return slots, places


def test_the_worker_that_was_used_last_is_used_first() -> None:
    slots, (a, b) = _of("a", "b")
    assert [slots.take(), slots.take()] == [b, a]
    slots.release(a)
    slots.release(b)
    assert slots.take() is b
    assert list(slots.idle()) == [a]


def test_the_worker_with_the_fewest_calls_is_next() -> None:
    slots, (a, b) = _of("a", "b", capacity=2)
    assert [slots.take() for _ in range(4)] == [b, a, a, b]
    assert slots.take() is None


async def test_a_call_that_waits_for_one_worker_delays_no_other(
    asker: Callable[[], tuple[Waiter, asyncio.Future[Place]]],
) -> None:
    slots, (a, b) = _of("a", "b")
    slots.take()
    slots.take()
    (strict, got_strict), (other, got_other) = asker(), asker()
    slots.add(strict, a)
    slots.add(other)
    slots.release(b)
    assert got_other.result() is b
    assert not got_strict.done()
    slots.release(a)
    assert got_strict.result() is a


async def test_a_call_that_waits_for_one_worker_keeps_its_rank(
    asker: Callable[[], tuple[Waiter, asyncio.Future[Place]]],
) -> None:
    slots, (a,) = _of("a")
    slots.take()
    (strict, got_strict), (other, got_other) = asker(), asker()
    slots.add(strict, a)
    slots.add(other)
    slots.release(a)
    assert got_strict.done()
    assert not got_other.done()


async def test_a_waiter_cancelled_in_the_step_of_the_release_gets_no_slot(
    asker: Callable[[], tuple[Waiter, asyncio.Future[Place]]],
) -> None:
    """Otherwise the slot would go to a caller that no longer waits, a classic defect of pools."""
    slots, (a,) = _of("a")
    slots.take()
    (first, gone), (second, stays) = asker(), asker()
    slots.add(first)
    slots.add(second)
    gone.cancel()
    slots.release(a)
    assert stays.result() is a
    assert a.leases == 1


async def test_each_dismissed_waiter_gets_its_own_error(
    asker: Callable[[], tuple[Waiter, asyncio.Future[Place]]],
) -> None:
    slots, _ = _of("a")
    slots.take()
    waiters = [asker() for _ in range(3)]
    for each, _ in waiters:
        slots.add(each)
    for waiter in slots.waiters():
        slots.dismiss(waiter, RuntimeError("closed"))
    errors = [future.exception() for _, future in waiters]
    assert len({id(error) for error in errors}) == 3
    assert len(slots) == 0
