"""Requests that a webhook handles per CPU second, compared with a bare aiohttp handler.

``wrk`` sends signed POST requests of 1 KB over 32 connections. Our server applies limits and uses an event, a lane and
a handler, each of which costs a few microseconds.

- ``adnanh_webhook``: the CPU time of Debian's ``webhook``, which starts a command per request.
- ``inbox``: accepted requests per second, limited by the disk, compared with single-row commits in SQLite.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import _webhook_adnanh as adnanh
from benchmarks._measure import Samples, interleaved, ratio, report
from benchmarks._webhook_server import SECRET, SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["cpu_a_request", "main", "script_file", "server"]

ROUNDS = 9
SECONDS = 1
BODY = '{"ref": "' + "x" * 1013 + '"}'

BARS = {
    "plain_over_aiohttp": "at least 0.75",
    "hmac_over_aiohttp": "at least 0.6",
    "hmac_over_aiohttp_with_hmac": "printed",
    "adnanh_webhook_over_ours": "printed",
    "microseconds_a_request": "printed",
    "inbox_over_plain": "at least 0.3",
    "inbox_over_raw_commits": "at least 1",
    "inbox_p99_over_plain_p99": "printed",
    "inbox_accepted_a_second": "printed",
}

SCRIPT = """
wrk.method = "POST"
wrk.body = '{body}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-GitHub-Delivery"] = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
wrk.headers["X-Hub-Signature-256"] = "sha256={signature}"
"""


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed; `make engines` installs it (Debian: apt-get install wrk)")
    with ExitStack() as stack:
        script = stack.enter_context(script_file())
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".webhook-"))
        servers = {name: stack.enter_context(server(name, f"{directory}/{name}.db")) for name in SERVERS}
        cases = {name: partial(cpu_a_request, wrk, script, *servers[name]) for name in SERVERS if name != "inbox"}
        if absent := adnanh.missing():
            print(absent, file=sys.stderr)
        else:
            cases["adnanh_webhook"] = partial(cpu_a_request, wrk, script, *stack.enter_context(adnanh.started()))
        samples = interleaved(cases, rounds=ROUNDS)
        kept = _inbox_rounds(wrk, script, {name: servers[name][0] for name in ("plain", "inbox")}, directory)
    results = {
        "plain_over_aiohttp": ratio(samples, "aiohttp", "plain"),
        "hmac_over_aiohttp": ratio(samples, "aiohttp", "hmac"),
        "hmac_over_aiohttp_with_hmac": ratio(samples, "aiohttp_hmac", "hmac"),
        "adnanh_webhook_over_ours": None if absent else ratio(samples, "adnanh_webhook", "hmac"),
        "microseconds_a_request": {name: round(sorted(s)[len(s) // 2] * 1e6, 1) for name, s in samples.items()},
        "inbox_over_plain": ratio(kept, "inbox", "plain"),
        "inbox_over_raw_commits": ratio(kept, "inbox", "raw"),
        "inbox_p99_over_plain_p99": ratio(kept, "inbox_p99", "plain_p99"),
        "inbox_accepted_a_second": round(statistics.median(kept["inbox"])),
    }
    report("webhook", results, BARS)


@contextmanager
def script_file() -> Iterator[str]:
    """Write the script that makes wrk sign its requests. Yield the path."""
    signature = hmac.new(SECRET, BODY.encode(), hashlib.sha256).hexdigest()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "post.lua")
        path.write_text(SCRIPT.format(body=BODY, signature=signature))
        yield str(path)


@contextmanager
def server(name: str, file: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server in a separate process. Yield its URL, and a function that returns its CPU time."""
    argv = [sys.executable, "-m", "benchmarks._webhook_server", name, file]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip() + "/deploy", psutil.Process(process.pid)
        finally:
            process.kill()


def cpu_a_request(
    wrk: str, script: str, url: str, server: psutil.Process, *, connections: int = 32, seconds: int = SECONDS
) -> float:
    """Return the seconds of CPU time that the server uses per request."""
    before = server.cpu_times()
    answered, _, _ = _load(wrk, script, url, connections=connections, seconds=seconds)
    after = server.cpu_times()
    return (after.user + after.system - before.user - before.system) / answered


def _load(
    wrk: str, script: str, url: str, *, connections: int = 32, seconds: int = SECONDS
) -> tuple[int, float, float]:
    """Return the number of accepted requests, the seconds, and the 99th percentile of the latency in ms."""
    output = subprocess.check_output(
        [
            wrk,
            "-t",
            "1",
            "-c",
            str(connections),
            "--duration",
            f"{seconds}s",
            "--latency",
            "--timeout",
            "10s",
            "--script",
            script,
            url,
        ],
        text=True,
    )
    if "Non-2xx" in output or "Socket errors" in output or " 0 requests in" in output:
        sys.exit(f"{url} did not accept every request:\n{output}")
    answered = re.search(r"(\d+) requests in ([\d.]+)s", output)
    slowest = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    assert answered is not None, output
    assert slowest is not None, output
    return int(answered[1]), float(answered[2]), float(slowest[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[slowest[2]]


def _inbox_rounds(wrk: str, script: str, urls: Mapping[str, str], directory: str) -> Samples:
    """Return accepted requests per second, raw commits per second, and latencies, measured in alternating rounds."""
    samples: Samples = {name: [] for name in ("plain", "inbox", "raw", "plain_p99", "inbox_p99")}
    for _ in range(ROUNDS):
        for name, url in urls.items():
            answered, seconds, slowest = _load(wrk, script, url)
            samples[name].append(answered / seconds)
            samples[f"{name}_p99"].append(slowest)
        samples["raw"].append(_raw_commits(f"{directory}/raw.db"))
    return samples


def _raw_commits(file: str) -> float:
    """Return the number of request-sized rows that SQLite commits per second, with one row per transaction."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body BLOB)")
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            db.execute("INSERT INTO rows (body) VALUES (?)", (BODY.encode(),))
            count += 1
        return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
