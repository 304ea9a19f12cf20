"""The cost of observation: ``python -m benchmarks.observe [--json]``.

lane_with_prometheus_over_without: a delivery through a lane to a handler that does nothing, with `PrometheusMetrics`
and without. snapshot_1000_workers_over_json_dumps: a program's whole state as plain data, compared with ``json.dumps``
of it. metrics_scrape_1000_workers_over_plain_series: a scrape of a program with a thousand workers, each restarted
once, compared with prometheus_client with as many series counted by hand. dashboard_cpu_percent: the share of one core
that an open page costs a program in which a thousand workers change a thousand times per second.
dashboard_changes_per_second: the rate that was reached. Memory is measured over minutes by
``python -m benchmarks._observe_dashboard 600``.
"""

from __future__ import annotations

import asyncio
import logging

from benchmarks._measure import report
from benchmarks._observe_dashboard import dashboard_cpu
from benchmarks._observe_metrics import lane_over_without, scrape_over_plain
from benchmarks._observe_snapshots import snapshot_over_dumps

__all__ = ["BARS", "main", "results"]

BARS = {
    "lane_with_prometheus_over_without": "at most 4",
    "snapshot_1000_workers_ms": "printed",
    "snapshot_1000_workers_over_json_dumps": "at most 3",
    "dashboard_cpu_percent": "at most 15",
    "dashboard_changes_per_second": "at least 950",
    "dashboard_memory_growth_mib": "printed",
    "metrics_scrape_1000_workers_over_plain_series": "at most 1.5",
}


def results() -> dict[str, float]:
    """Return all figures."""
    return {
        "lane_with_prometheus_over_without": lane_over_without(rounds=15, events=20_000),
        **asyncio.run(snapshot_over_dumps()),
        "metrics_scrape_1000_workers_over_plain_series": scrape_over_plain(rounds=15, workers=1000),
        **dashboard_cpu(),
    }


def main() -> None:
    """Measure and print."""
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    found = results()
    report("observe", {name: found[name] for name in BARS}, BARS)


if __name__ == "__main__":
    main()
