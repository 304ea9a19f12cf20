"""What a webhook costs beside a bare aiohttp handler: ``python -m benchmarks.webhook [--json]``.

The figure is the server's CPU seconds for an accepted POST of 1 KB, under `wrk` with 32 connections. Ours goes the
whole way: limits, signature, event, router, lane, handler. The peer reads the body and returns 202.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks._measure import interleaved, ratio, report
from benchmarks._webhook_server import SECRET, SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

ROUNDS = 9
SECONDS = 1
BODY = "x" * 1024

BARS = {
    "plain_over_aiohttp": "at least 0.75",
    "hmac_over_aiohttp": "at least 0.6",
    "hmac_over_aiohttp_with_hmac": "printed",
    "microseconds_a_request": "printed",
}

SCRIPT = """
wrk.method = "POST"
wrk.body = "{body}"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-GitHub-Delivery"] = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
wrk.headers["X-Hub-Signature-256"] = "sha256={signature}"
"""


def main() -> None:
    """Measure and print."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed; `make engines` installs it (Debian: apt-get install wrk)")
    with ExitStack() as stack:
        script = stack.enter_context(_script())
        servers = {name: stack.enter_context(_server(name)) for name in SERVERS}
        cases = {name: partial(_cpu_a_request, wrk, script, *server) for name, server in servers.items()}
        samples = interleaved(cases, rounds=ROUNDS)
    results = {
        "plain_over_aiohttp": ratio(samples, "aiohttp", "plain"),
        "hmac_over_aiohttp": ratio(samples, "aiohttp", "hmac"),
        "hmac_over_aiohttp_with_hmac": ratio(samples, "aiohttp_hmac", "hmac"),
        "microseconds_a_request": {name: round(sorted(s)[len(s) // 2] * 1e6, 1) for name, s in samples.items()},
    }
    report("webhook", results, BARS)


@contextmanager
def _script() -> Iterator[str]:
    signature = hmac.new(SECRET, BODY.encode(), hashlib.sha256).hexdigest()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "post.lua")
        path.write_text(SCRIPT.format(body=BODY, signature=signature))
        yield str(path)


@contextmanager
def _server(name: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own: its URL, and where to read its CPU time."""
    argv = [sys.executable, "-m", "benchmarks._webhook_server", name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip() + "/deploy", psutil.Process(process.pid)
        finally:
            process.kill()


def _cpu_a_request(wrk: str, script: str, url: str, server: psutil.Process) -> float:
    before = server.cpu_times()
    told = subprocess.check_output(
        [wrk, "--threads", "1", "--connections", "32", "--duration", f"{SECONDS}s", "--script", script, url],
        text=True,
    )
    after = server.cpu_times()
    if "Non-2xx" in told or "Socket errors" in told:
        sys.exit(f"{url} did not accept every request:\n{told}")
    answered = re.search(r"(\d+) requests in", told)
    assert answered is not None, told
    return (after.user + after.system - before.user - before.system) / int(answered[1])


if __name__ == "__main__":
    main()
