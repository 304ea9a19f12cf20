"""Leaders that are killed and frozen: ``python -m tests.chaos.leader --seconds 60``.

Three processes are candidates, and the leader writes. At random moments, a process is killed with SIGKILL, or frozen
with SIGSTOP for longer than a lease. The server is killed as well. Some writes are delayed and do not check the clock.
At the end, no write may come after the first write from a later term, and every acknowledged write must be stored. The
last line of the output is the result. The exit status is 0 on success.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import nats

from lifecycle.bridges.lease import BUCKET, STREAM
from tests.chaos._leader_worker import NAME, WRITES
from tests.chaos.command_line import kill_all, run_from_command_line
from tests.nats_servers import NatsProcess, in_a_directory

if TYPE_CHECKING:
    from asyncio.subprocess import Process

__all__ = ["Result", "Write", "read", "start_worker", "storm", "up"]

ROOT = Path(__file__).parents[2]
WORKERS = 3
#: The duration of a lease in seconds, which is short so that leases expire often.
LEASE = 1.0
LIMIT = 60.0


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
    kills: int = 0
    freezes: int = 0

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
        found = {"two leaders": self.both, "shared tokens": self.shared, "lost": self.lost}
        return [f"{what}: {sorted(each, key=str)[:10]}" for what, each in found.items() if each]

    def note(self, line: str) -> None:
        """Evaluate a line that a worker has written."""
        word, _, number = line.partition(" ")
        if word == "refused":
            self.refused += 1
        elif word in ("gained", "put"):
            (self.tokens if word == "gained" else self.acknowledged).add(int(number))

    def __str__(self) -> str:
        return (
            f"terms {len(self.terms)}, writes {len(self.writes)}, refused {self.refused}, "
            f"two leaders {len(self.both)}, lost {len(self.lost)}, kills {self.kills}, freezes {self.freezes}"
        )


class Storm:
    """Workers, the server, and the task that kills them."""

    def __init__(self, directory: Path, server: NatsProcess, seed: int) -> None:
        self.directory = directory
        self.server = server
        self.chance = random.Random(seed)
        self.result = Result()
        self._log = directory / "log"
        self._workers: list[Process] = []

    async def run(self, seconds: float, strikes: int) -> Result:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(lambda: kill_all(self._workers))
            self._workers = [await self._start(place) for place in range(WORKERS)]
            for process in self._workers:
                await up(process, self._log)
            await self._strike_for(seconds, strikes)
            await self._calm()
        for path in self.directory.glob("notes-*"):
            for line in path.read_text().splitlines():
                self.result.note(line)
        self.result.writes = await read(self.server.url)
        return self.result

    async def _start(self, place: int) -> Process:
        return await start_worker(self.server.url, self.directory / f"notes-{place}", self._log)

    async def _strike_for(self, seconds: float, strikes: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.result.kills + self.result.freezes < strikes:
            await asyncio.sleep(self.chance.random() * 1.5 * LEASE)
            run = self.chance.choices([self._kill, self._freeze, self._kill_server], [4, 6, 1])[0]
            await run()

    async def _kill(self) -> None:
        place = self._victim()
        process = self._workers[place]
        process.kill()
        await process.wait()
        self.result.kills += 1
        self._workers[place] = process = await self._start(place)
        await up(process, self._log)

    async def _freeze(self) -> None:
        """Freeze the worker, usually for longer than its lease, so that another process becomes leader."""
        process = self._workers[self._victim()]
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.random() * 3 * LEASE)
        process.send_signal(signal.SIGCONT)
        self.result.freezes += 1

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

    async def _kill_server(self) -> None:
        self.result.kills += 1
        await self.server.restart(after=self.chance.random())

    async def _calm(self) -> None:
        """Stop the kills, and wait until the workers have exited cleanly."""
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
    """Return every write that the server has stored, in order."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        subject = f"$KV.{BUCKET}.{NAME}.{WRITES}.>"
        left = (await js.stream_info(STREAM, subjects_filter=subject)).state.subjects or {}
        found: list[Write] = []
        subscription = await js.subscribe(subject, stream=STREAM, ordered_consumer=True)
        while len(found) < len(left):
            message = await subscription.next_msg(LIMIT)
            found.append(Write(message.metadata.sequence.stream, **json.loads(message.data)))
        await subscription.unsubscribe()
        return found
    finally:
        await client.close()


async def storm(seconds: float, *, seed: int, strikes: int = 0) -> Result:
    """Run for at least ``seconds`` seconds, and until at least ``strikes`` attacks have been made."""
    async with in_a_directory() as (directory, server):
        return await Storm(directory, server, seed).run(seconds, strikes)


def main() -> None:
    logging.getLogger("lifecycle.bridges").setLevel(logging.ERROR)
    run_from_command_line("tests.chaos.leader", __doc__, storm)


if __name__ == "__main__":
    main()
