"""The CPU time of a webhook server by the number of connections, and of a dashboard by the number of pages."""

from __future__ import annotations

import asyncio
import logging
import shutil
import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks._observe_dashboard import Load, attached, share_of_core
from benchmarks.webhook import cpu_a_request, script_file, server

if TYPE_CHECKING:
    from benchmarks._curves_plots import Points

__all__ = ["by_connections", "by_pages"]

ROUNDS, SECONDS = 2, 4
#: The smallest share of a core, in percent, that differs from noise.
_LEAST = 1.0
#: The limits of `plain_over_aiohttp` and `dashboard_cpu_percent`, and the share of a core for each further page.
OVER_AIOHTTP, FIRST_PAGE, FURTHER_PAGE = 0.75, 15.0, 0.6


def by_connections(sizes: tuple[int, ...]) -> Points:
    """Measure requests of 1 KB without a signature. The limit is relative to a bare aiohttp handler."""
    wrk = shutil.which("wrk")
    assert wrk is not None, "`make engines` installs wrk"
    found: dict[str, list[float]] = {"plain": [], "aiohttp": []}
    with ExitStack() as stack:
        script = stack.enter_context(script_file())
        servers = {name: stack.enter_context(server(name, "")) for name in found}
        for size in sizes:
            for name, each in servers.items():
                costs = [cpu_a_request(wrk, script, *each, connections=size, seconds=SECONDS) for _ in range(ROUNDS)]
                found[name].append(statistics.median(costs) * 1e6)
    return {"webhook": found["plain"], "bare aiohttp": found["aiohttp"]}, [
        each / OVER_AIOHTTP for each in found["aiohttp"]
    ]


def by_pages(sizes: tuple[int, ...]) -> Points:
    """Measure a program with 1,000 workers and 1,000 changes per second."""
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    found = asyncio.run(_by_pages(sizes))
    return {"pages": found}, [FIRST_PAGE + FURTHER_PAGE * (size - 1) for size in sizes]


async def _by_pages(sizes: tuple[int, ...]) -> list[float]:
    load = Load()
    async with load.living():
        changing = asyncio.create_task(load.run())
        # The first seconds of a program are not typical.
        await share_of_core()
        shares: list[float] = []
        for size in sizes:
            alone = await share_of_core()
            async with attached(size):
                shares.append(max(_LEAST, 100 * (await share_of_core() - alone)))
        changing.cancel()
        await asyncio.wait([changing])
    return shares
