"""The cost of metrics: a delivery through a lane, and a scrape of a program with many workers."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from benchmarks._measure import interleaved, ratio
from lifecycle.control import Event, Router
from lifecycle.observe import PrometheusMetrics
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from lifecycle.workers import Spec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

__all__ = ["lane_over_without", "scrape_over_plain"]


def lane_over_without(rounds: int, events: int) -> float:
    """Return the time of a delivery through a lane with `PrometheusMetrics`, divided by the time without it."""

    async def with_metrics() -> float:
        async with PrometheusMetrics():
            return await _lane(events)

    cases: dict[str, Callable[[], float]] = {
        "with": lambda: asyncio.run(with_metrics()),
        "without": lambda: asyncio.run(_lane(events)),
    }
    return ratio(interleaved(cases, rounds=rounds), "with", "without")


async def _lane(events: int) -> float:
    router, ended = Router(), asyncio.Event()
    router.handle("job/done", _handle)

    async def source() -> Any:
        for _ in range(events):
            yield Event("job/done")
        ended.set()

    router.add_source(source)
    began = time.perf_counter()
    async with running(router):
        await ended.wait()
    taken = time.perf_counter() - began
    assert router.state().handled == events
    return taken


async def _handle(_event: Any) -> None:
    pass


def scrape_over_plain(rounds: int, workers: int) -> float:
    """Return the time to scrape many restarted workers, divided by the time for the same number of plain series."""
    return asyncio.run(_scrape_over_plain(rounds, workers))


async def _scrape_over_plain(rounds: int, workers: int) -> float:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(lifetime())
        metrics = await stack.enter_async_context(PrometheusMetrics())
        specs = [Spec(f"worker {number}", _idle) for number in range(workers)]
        supervisor = await stack.enter_async_context(Supervisor("all", *specs, stop_order="parallel"))
        for spec in specs:
            await supervisor.restart(spec.name)
        text = metrics.expose()[0].decode()
        assert f'lifecycle_workers{{status="running",worker_type="task"}} {workers}.0' in text
        series = [line for line in text.splitlines() if not line.startswith("#")]
        plain = _plain(len(series))
        cases = {"ours": lambda: _timed(metrics.registry), "plain": lambda: _timed(plain)}
        return ratio(interleaved(cases, rounds=rounds), "ours", "plain")


async def _idle() -> None:
    await asyncio.Event().wait()


def _plain(number: int) -> CollectorRegistry:
    """Return a registry with ``number`` series: the values of a counter, and a creation time for each value."""
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    counter = Counter("plain", "Something that was counted.", ("supervisor", "child"), registry=registry)
    for each in range(number // 2):
        counter.labels("all", f"worker {each}").inc()
    return registry


def _timed(registry: CollectorRegistry) -> float:
    from prometheus_client import generate_latest

    began = time.perf_counter()
    generate_latest(registry)
    return time.perf_counter() - began
