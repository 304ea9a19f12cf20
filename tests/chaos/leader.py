"""Leaders that are killed and frozen, on one server or on a cluster.

Three processes are candidates, and the leader writes. At random moments, a process is killed with SIGKILL, or frozen
with SIGSTOP for longer than a lease. The server is killed as well. Some writes are delayed and do not check the clock.
At the end, no write may come after the first write from a later term, and every acknowledged write must be stored.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import ServiceUnavailableError

from lifecycle.bridges.lease import BUCKET, STREAM
from tests.chaos._leader_worker import NAME, WRITES
from tests.chaos._sites import Cluster, on_cluster, on_one_server
from tests.chaos.report import Report
from tests.processes import kill_all
from tests.waiting import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from tests.chaos._sites import Site

__all__ = ["Result", "Write", "cluster_storm", "read", "start_worker", "storm", "up"]

ROOT = Path(__file__).parents[2]
WORKERS = 3
#: The duration of a lease in seconds, which is short so that leases expire often.
LEASE = 1.0
LIMIT = 60.0
#: The minimum number of kills and freezes.
STRIKES = 2


@dataclass(frozen=True)
class Write:
    """A write that the server accepted."""

    revision: int
    token: int
    pid: int


@dataclass
class Result:
    """The observations from one test."""

    writes: list[Write] = field(default_factory=list[Write])
    #: Tokens of all terms, acknowledged revisions, and rejected writes.
    tokens: set[int] = field(default_factory=set[int])
    acknowledged: set[int] = field(default_factory=set[int])
    refused: int = 0

    @property
    def terms(self) -> set[int]:
        """Return every known term, including those of killed processes that wrote without recording their token."""
        return self.tokens | {write.token for write in self.writes}

    @property
    def both(self) -> list[Write]:
        """Return the writes that were accepted after a different process had become leader."""
        terms = self.terms
        return [each for each in self.writes if any(each.token < term < each.revision for term in terms)]

    @property
    def shared(self) -> set[int]:
        """Return the tokens that two processes used for writes."""
        return {token for token in self.terms if len({each.pid for each in self.writes if each.token == token}) > 1}

    @property
    def lost(self) -> set[int]:
        return self.acknowledged - {write.revision for write in self.writes}

    def wrong(self) -> list[str]:
        """Return the violations."""
        report = Report()
        self.judge(report)
        return report.violations

    def judge(self, report: Report) -> None:
        """Add the violations to the report."""
        report.lost += [f"the acknowledged revision {each} is missing" for each in sorted(self.lost)]
        report.double += [f"{each} came after another process had become leader" for each in self.both]
        report.double += [f"two processes wrote with the token {token}" for token in sorted(self.shared)]

    def note(self, line: str) -> None:
        """Evaluate a line that a worker has written."""
        word, _, number = line.partition(" ")
        if word == "refused":
            self.refused += 1
        elif word in ("gained", "put"):
            (self.tokens if word == "gained" else self.acknowledged).add(int(number))


class Storm:
    """Workers, the server, and the task that kills them."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.directory = directory = site.directory
        self.chance = random.Random(seed)
        self.report = Report()
        # A cluster survives the loss of a server, so its servers are attacked more often.
        self._attacks = 6 if isinstance(site, Cluster) else 1
        self._log = directory / "log"
        self._workers: list[Process] = []

    async def run(self, seconds: float) -> Report:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(lambda: kill_all(self._workers))
            self._workers = [await self._start(place) for place in range(WORKERS)]
            for process in self._workers:
                await up(process, self._log)
            await self._strike_for(seconds)
            await self._calm()
        result, report = self._noted(), self.report
        end = time.monotonic() + LIMIT
        # A server that was just cut off may answer with an old state.
        result.writes = await read(self.site.url)
        while result.lost and time.monotonic() < end:
            result.writes = await read(self.site.url)
        result.judge(report)
        report.operations = len(result.writes)
        report.notes = f"{len(result.terms)} terms, {result.refused} writes refused"
        return report

    def _noted(self) -> Result:
        result = Result()
        for path in self.directory.glob("notes-*"):
            for line in path.read_text().splitlines():
                result.note(line)
        return result

    async def _start(self, place: int) -> Process:
        return await start_worker(self.site.url, self.directory / f"notes-{place}", self._log)

    async def _strike_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.report.kills < STRIKES:
            await asyncio.sleep(self.chance.random() * 1.5 * LEASE)
            run = self.chance.choices([self._kill, self._freeze, self._attack], [4, 6, self._attacks])[0]
            await run()

    async def _kill(self) -> None:
        place = self._victim()
        process = self._workers[place]
        process.kill()
        await process.wait()
        self.report.kills += 1
        self._workers[place] = process = await self._start(place)
        await up(process, self._log)

    async def _freeze(self) -> None:
        """Freeze the worker, usually for longer than its lease, so that another process becomes leader."""
        process = self._workers[self._victim()]
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.random() * 3 * LEASE)
        process.send_signal(signal.SIGCONT)
        self.report.kills += 1

    def _victim(self) -> int:
        """Return the leader most of the time, and otherwise a random worker."""
        if self.chance.random() < 0.2:
            return self.chance.randrange(WORKERS)
        last = [self._last_token(place) for place in range(WORKERS)]
        return last.index(max(last))

    def _last_token(self, place: int) -> int:
        path = self.directory / f"notes-{place}"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((int(line.split()[1]) for line in lines if line.startswith("gained")), default=0)

    async def _attack(self) -> None:
        self.report.kills += 1
        await self.site.attack(self.chance)

    async def _calm(self) -> None:
        """Stop the kills, and wait until a leader has written and the workers have exited cleanly."""
        before = self._noted().acknowledged
        try:
            await until(lambda: self._noted().acknowledged - before, LIMIT)
        except TimeoutError:
            self.report.stuck.append("no process leads")
        for process in self._workers:
            process.terminate()
        async with asyncio.timeout(LIMIT):
            ended = [await process.wait() for process in self._workers]
        assert ended == [0] * WORKERS, (ended, self._log.read_text()[-5000:])


async def start_worker(url: str, notes: Path, log: Path, *via: str, lease: float = LEASE) -> Process:
    """Start a candidate. `up` returns when the candidate is running."""
    argv = [*via, sys.executable, "-m", "tests.chaos._leader_worker", url, str(notes), str(lease)]
    with log.open("a") as file:
        return await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=file)


async def up(process: Process, log: Path) -> None:
    """Wait until the worker has reported that it is up. A signal that arrives earlier would kill it without cleanup."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        assert await process.stdout.readline(), log.read_text()[-5000:]


async def read(url: str) -> list[Write]:
    """Return every write that the server has stored, in order. A cluster may have no leader for a while."""
    async with asyncio.timeout(LIMIT):
        while True:
            with suppress(NatsTimeout, ServiceUnavailableError):
                return await _read(url)


async def _read(url: str) -> list[Write]:
    client = await nats.connect(url.split(","))
    try:
        js = client.jetstream()
        subject = f"$KV.{BUCKET}.{NAME}.{WRITES}.>"
        left = (await js.stream_info(STREAM, subjects_filter=subject)).state.subjects or {}
        found: list[Write] = []
        subscription = await js.subscribe(subject, stream=STREAM, ordered_consumer=True)
        while len(found) < len(left):
            message = await subscription.next_msg(10.0)
            found.append(Write(message.metadata.sequence.stream, **json.loads(message.data)))
        await subscription.unsubscribe()
        return found
    finally:
        await client.close()


def storm(seconds: float, seed: int) -> Report:
    return on_one_server(lambda site: Storm(site, seed).run(seconds))


def cluster_storm(seconds: float, seed: int) -> Report:
    return on_cluster(lambda site: Storm(site, seed).run(seconds), STREAM)
