"""The cost of a bridge, compared with plain nats-py.

Two processes exchange events of 1 KB, 64 at the same time, with acknowledgements. ``lean`` sends an id as its only
header. Latency is measured at 500 events per second. The PostgreSQL figures are compared with plain SQL.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks._measure import Samples, interleaved, ratio, report
from tests.nats_servers import NatsProcess

__all__ = ["main"]

ROUNDS = 5
EVENTS = 8_000
STEADY, RATE = 1_000, 500.0

BARS = {
    "e2e_over_raw_nats_py": "at least 0.7",
    "e2e_over_lean_nats_py": "printed",
    "p50_over_raw_nats_py": "at most 1.5",
    "faststream_over_ours": "printed",
    "events_a_second": "printed",
    "raw_events_a_second": "printed",
    "p50_ms": "printed",
    "p99_ms": "printed",
    "postgres_tasks_over_raw": "at least 0.4",
    "postgres_jobs_over_raw": "at least 0.4",
}


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    peers = ["raw", "lean", "lifecycle"]
    if importlib.util.find_spec("faststream") is None:
        print("faststream is not installed; `pip install --group bench` installs it", file=sys.stderr)
    else:
        peers.append("faststream")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bridge-") as directory:
        through = interleaved({peer: partial(_e2e, peer, directory) for peer in peers}, rounds=ROUNDS)
        steady = _latencies(directory)
    results: dict[str, object] = {
        "e2e_over_raw_nats_py": ratio(through, "lifecycle", "raw"),
        "e2e_over_lean_nats_py": ratio(through, "lifecycle", "lean"),
        "p50_over_raw_nats_py": ratio(steady, "lifecycle", "raw"),
    }
    if "faststream" in peers:
        results["faststream_over_ours"] = ratio(through, "faststream", "lifecycle")
    results |= {
        "events_a_second": int(_median(through, "lifecycle")),
        "raw_events_a_second": int(_median(through, "raw")),
        "p50_ms": _median(steady, "lifecycle") * 1000,
        "p99_ms": _median(steady, "lifecycle p99") * 1000,
    }
    report("bridge", results | _postgres(), BARS)


def _e2e(peer: str, directory: str) -> float:
    """Return the events per second of the slower process."""
    publisher, consumer = _ends(peer, directory, EVENTS, 0.0)
    return EVENTS / max(publisher["seconds"], consumer["seconds"])


def _latencies(directory: str) -> Samples:
    """Return the p50 latency of both cases, and our p99."""
    samples: Samples = {"raw": [], "lifecycle": [], "lifecycle p99": []}
    for _ in range(ROUNDS):
        for peer in ("raw", "lifecycle"):
            seen = _ends(peer, directory, STEADY, RATE)[1]
            samples[peer].append(seen["p50"])
            if peer == "lifecycle":
                samples["lifecycle p99"].append(seen["p99"])
    return samples


def _ends(peer: str, directory: str, count: int, rate: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the output from the publisher and the consumer, with a new server."""
    with tempfile.TemporaryDirectory(dir=directory) as own, NatsProcess(Path(own)) as server:
        _make_stream(server.url)
        arguments = [server.url, str(count), str(rate)]
        with _started(peer, "consume", arguments) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline().strip() == "up", f"the consumer of {peer} did not come up"
            with _started(peer, "publish", arguments) as publisher:
                sent = publisher.communicate(timeout=120)[0]
            seen = consumer.communicate(timeout=120)[0]
    return json.loads(sent), json.loads(seen)


def _started(peer: str, role: str, arguments: list[str]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchmarks._bridge_peers", peer, role, *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def _make_stream(url: str) -> None:
    """Create the same stream as a bridge would, so that all cases use equal streams."""
    import asyncio

    from lifecycle.bridges.connection import Connection, NatsServer
    from lifecycle.bridges.streams import ensure_stream

    async def make() -> None:
        async with Connection(NatsServer(url), "benchmark") as link:
            await ensure_stream(link, "EVENTS", "ev")

    asyncio.run(make())


def _postgres() -> dict[str, object]:
    """Return the figures for PostgreSQL, if it is installed."""
    if importlib.util.find_spec("benchmarks._bridge_postgres") is None:
        return {}
    found: dict[str, object] = importlib.import_module("benchmarks._bridge_postgres").figures()
    return found


def _median(samples: Samples, case: str) -> float:
    return sorted(samples[case])[len(samples[case]) // 2]


if __name__ == "__main__":
    main()
