"""The cost of routing one event, compared with a bare ``await handler(event)``.

`names_over_star` compares a route for `svc/{name}/x` with a route for `svc/*/x`. For `_cold`, each topic occurs only
once; with many routes, their memory is not in the processor's cache. `declared_name_over_split` compares a handler that
declares `name` with a handler that splits the topic itself.

`lane_over_queue`: most of the difference is a `Delivery` per event, and a new task for each burst of a lane.

`exact`, `three_middlewares` and `names` find the route and call the handler, without the lane.

For blinker, pyee and bubus, each figure is that library's time divided by ours (`exact`).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import statistics
import subprocess
import sys
import time
import tracemalloc
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from benchmarks._measure import report
from lifecycle.control import Event, Router, debounce
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Case = Callable[[int], Awaitable[None]]

BARS = {
    "exact_over_bare": "at most 1.9",
    "three_middlewares_over_bare": "at most 4.6",
    "debounce_over_bare": "at most 6",
    "glob_10000_over_1_hot": "at most 1.1",
    "glob_10000_over_1_cold": "at most 1.3",
    "cold_over_bare": "at most 14",
    "names_over_star": "at most 1.1",
    "names_over_star_cold": "at most 1.1",
    "declared_name_over_split": "at most 1.5",
    "hot_hit_rate_under_flood": "at least 0.95",
    "lane_over_queue": "at most 1.4",
    "new_topic_100_us": "at most 20",
    "new_topic_10000_us": "at most 250",
    "bytes_per_route": "at most 1,800",
}

ROUNDS = 31
EVENTS = 20_000

_count = 0


async def handler(_event: Any) -> None:
    """Do minimal work, as a real handler might."""
    global _count  # noqa: PLW0603  # the cheapest possible effect
    _count += 1


async def ratio(ours: Case, base: Case, *, events: int = EVENTS, rounds: int = ROUNDS) -> float:
    """Return the median of our time divided by the base, over alternating rounds."""
    return (await ratios({"ours": ours}, base, events=events, rounds=rounds))["ours"]


async def ratios(cases: dict[str, Case], base: Case, *, events: int = EVENTS, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median of each case divided by the base, all measured in the same rounds."""
    quotients: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        unit = await _timed(base, events)
        for name, case in cases.items():
            quotients[name].append(await _timed(case, events) / unit)
    return {name: round(statistics.median(each), 3) for name, each in quotients.items()}


async def _timed(case: Case, events: int) -> float:
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    await case(events)
    taken = time.perf_counter() - began
    gc.enable()
    return taken


# -- cases -------------------------------------------------------------------------------------------------------


async def bare(events: int) -> None:
    event = Event("job/done")
    for _ in range(events):
        await handler(event)


def dispatching(router: Router, topic: str = "job/done") -> Case:
    """Return a case that finds the route of each event and calls its handler, without a lane."""

    async def case(events: int) -> None:
        event, known = Event(topic), router._known  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the core of `call`
        for _ in range(events):
            await known[event.topic].first.call(event)  # type: ignore[attr-defined]  # the topic has a route

    return case


def dispatching_new_topics(router: Router, routes: int) -> Case:
    """Return a case that dispatches each topic once. Every topic matches one of ``routes``."""
    numbers = count()

    async def case(_events: int) -> None:
        made = prepared.pop()
        known = router._known  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # see `dispatching`
        for event in made:
            await known[event.topic].first.call(event)  # type: ignore[attr-defined]  # the topic has a route

    prepared: list[list[Event]] = []

    def prepare(events: int) -> None:
        prepared.append([Event(f"svc{number % routes}/{number}/x") for number in islice(numbers, events)])

    case.prepare = prepare  # type: ignore[attr-defined]  # read by _cold
    return case


async def _cold(ours: Case, base: Case, events: int = 4000) -> float:
    quotients: list[float] = []
    for _ in range(ROUNDS):
        for case in (base, ours):
            if (prepare := getattr(case, "prepare", None)) is not None:
                prepare(events)
        unit = await _timed(base, events)
        quotients.append(await _timed(ours, events) / unit)
    return round(statistics.median(quotients), 3)


def with_globs(number: int) -> Router:
    router = Router()
    for each in range(number):
        router.handle(f"svc{each}/*/x", handler)
    return router


def with_one(pattern: str, handler: Callable[..., Awaitable[None]] = handler) -> Router:
    router = Router()
    router.handle(pattern, handler)
    return router


async def declaring(_event: Any, name: str) -> None:
    """Get a segment of the topic from the router."""
    global _count  # noqa: PLW0603  # see `handler`
    _count += len(name)


async def splitting(event: Any) -> None:
    """Read a segment of the topic."""
    global _count  # noqa: PLW0603  # see `handler`
    name = event.topic.split("/")[1]
    _count += len(name)


async def measure_names() -> dict[str, float]:
    """Return the cost of names in patterns, compared with ``*``."""
    star, names = with_one("svc0/*/x"), with_one("svc0/{name}/x")
    split, declared = with_one("svc0/*/x", splitting), with_one("svc0/{name}/x", declaring)
    topic = "svc0/a/x"
    return {
        "names_over_star": await ratio(dispatching(names, topic), dispatching(star, topic)),
        "names_over_star_cold": await _cold(dispatching_new_topics(names, 1), dispatching_new_topics(star, 1)),
        "declared_name_over_split": await ratio(dispatching(declared, topic), dispatching(split, topic)),
    }


async def pass_through(router: Router) -> None:
    def middleware(following: Any) -> Any:
        async def passing(event: Any) -> None:
            await following(event)

        return passing

    router.use(middleware, middleware, middleware)


def queue_loop() -> Case:
    """A hand-written equivalent of a lane: one task puts events into a queue, and a second one awaits their handler."""

    async def case(events: int) -> None:
        queue: asyncio.Queue[Event | None] = asyncio.Queue(100)

        async def consume() -> None:
            while (event := await queue.get()) is not None:
                await handler(event)

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for _ in range(events):
                await queue.put(Event("job/done"))
            await queue.put(None)

    return case


def lane() -> Case:
    async def case(events: int) -> None:
        router, ended = Router(), asyncio.Event()
        router.handle("job/done", handler)
        router.handle("job/end", lambda _: ended.set(), lane="end")

        async def source() -> AsyncIterator[Event]:
            for _ in range(events):
                yield Event("job/done")
            ended.set()

        router.add_source(source)
        async with running(router):
            await ended.wait()
        assert router.state().handled == events

    return case


def window() -> Case:
    async def case(events: int) -> None:
        held = debounce(handler, 60)
        event = Event("job/done")
        await held(event)
        for _ in range(events):
            await held(event)
        await held.flush()

    return case


async def hit_rate_under_flood() -> float:
    """Return the cache's hit rate for frequent topics while nine tenths of all topics occur only once."""
    router = with_globs(10_000)
    known = router._known  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the cache is not public
    hot = [Event(f"svc{each}/hot/x") for each in range(100)]
    hits = asked = 0
    for number in range(100_000):
        event = hot[number // 10 % 100] if number % 10 == 0 else Event(f"svc{number % 10_000}/{number}/x")
        if number % 10 == 0 and number > 10_000:
            asked += 1
            hits += event.topic in known or event.topic in known.aside
        _ = known[event.topic]
    return round(hits / asked, 4)


def new_topic_us(routes: int, topics: int = 20_000) -> float:
    """Return the microseconds of the first look-up of a topic among ``routes`` globs."""
    known = with_globs(routes)._known  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the core of `call`
    names = [f"svc{number % routes}/{number}/x" for number in range(topics)]
    began = time.perf_counter()
    for name in names:
        _ = known[name]
    return round((time.perf_counter() - began) / topics * 1e6, 1)


def bytes_per_route(number: int = 10_000) -> int:
    router = Router()
    patterns = [f"svc{each}/*/ev{each}/x" for each in range(number)]
    gc.collect()
    tracemalloc.start()
    for pattern in patterns:
        router.handle(pattern, handler)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used // number


# -- peers -------------------------------------------------------------------------------------------------------


def blinker_peer() -> Case:
    from blinker import Signal

    signal = Signal()
    signal.connect(_with_event, weak=False)

    async def case(events: int) -> None:
        event = Event("job/done")
        for _ in range(events):
            await signal.send_async(event)

    return case


async def _with_event(event: Any) -> None:
    await handler(event)


def pyee_peer() -> Case:
    emitter = importlib.import_module("pyee.asyncio").AsyncIOEventEmitter()
    emitter.on("job/done", handler)

    async def case(events: int) -> None:
        event = Event("job/done")
        for _ in range(events // 20):
            for _ in range(20):
                emitter.emit("job/done", event)
                await emitter.wait_for_complete()

    return case


async def measure() -> dict[str, float | int]:
    """Return all figures. Each figure's name describes its ratio."""
    exact = Router()
    exact.handle("job/done", handler)
    wrapped = Router()
    wrapped.handle("job/done", handler)
    await pass_through(wrapped)
    one, many = with_globs(1), with_globs(10_000)

    figures: dict[str, float | int] = {}
    direct = await ratios(
        {
            "exact_over_bare": dispatching(exact),
            "three_middlewares_over_bare": dispatching(wrapped),
            "debounce_over_bare": window(),
        },
        bare,
    )
    figures |= direct
    figures["glob_10000_over_1_hot"] = await ratio(dispatching(many, "svc0/a/x"), dispatching(one, "svc0/a/x"))
    cold_many, cold_one = dispatching_new_topics(many, 10_000), dispatching_new_topics(one, 1)
    figures["glob_10000_over_1_cold"] = await _cold(cold_many, cold_one)
    figures["cold_over_bare"] = await _cold(cold_many, bare)
    figures["new_topic_100_us"], figures["new_topic_10000_us"] = new_topic_us(100), new_topic_us(10_000)
    figures |= await measure_names()
    figures["hot_hit_rate_under_flood"] = await hit_rate_under_flood()
    figures["lane_over_queue"] = await ratio(lane(), queue_loop())
    figures["bytes_per_route"] = bytes_per_route()
    figures["blinker_over_exact"] = await ratio(blinker_peer(), dispatching(exact))
    if importlib.util.find_spec("pyee"):
        figures["pyee_over_exact"] = await ratio(pyee_peer(), dispatching(exact), events=2000)
    if importlib.util.find_spec("bubus"):
        # A separate process, because bubus keeps the loop running.
        output = subprocess.run(  # noqa: ASYNC221  # nothing else is measured meanwhile
            [sys.executable, "-m", "benchmarks._bubus"], check=True, stdout=subprocess.PIPE
        )
        figures["bubus_over_exact"] = float(output.stdout)
    return figures


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    report("router", asyncio.run(measure()), BARS)


if __name__ == "__main__":
    main()
