"""The cost of observation.

- ``snapshot``: the state of 1,000 workers as data, compared with ``json.dumps``.
- ``dashboard``: the share of one core used by an open page while 1,000 workers change 1,000 times per second.
- ``metrics_scrape``: a scrape, compared with the same number of series in prometheus_client.
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
    """Run all benchmarks in this module, and print their figures."""
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    found = results()
    report("observe", {name: found[name] for name in BARS}, BARS)


if __name__ == "__main__":
    main()
