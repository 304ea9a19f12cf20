"""A receiver that is killed repeatedly while requests arrive.

The sender posts numbered signed requests. It repeats each request with the same id until a response arrives, and
records the requests that were accepted with 202. The receiver is killed with SIGKILL at random moments, even while it
starts, and started again. At the end, the receiver must have handled every accepted number and no rejected one. It may
handle a number twice only if it was killed between the two attempts.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from lifecycle.sources._inbox_store import WEBHOOKS
from tests.chaos._receiver import SECRET
from tests.chaos.report import Report

if TYPE_CHECKING:
    from asyncio.subprocess import Process

__all__ = ["storm"]

ROOT = Path(__file__).parents[2]

#: The number of senders. It exceeds the receiver's capacity, so the receiver must reject some requests.
SENDERS = 16
LIMIT = 60.0
#: The minimum number of kills.
KILLS = 2


class Storm:
    """The sender, the killer, and the runs of the receiver."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.report = Report()
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        # For each request number, the run and the attempt of each handler call, in order.
        self.handled: dict[int, list[tuple[int, int]]] = defaultdict(list)
        # The number of dead letters.
        self.dead = 0
        # The receiver's address. The future is pending while the receiver is not listening.
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.numbers = iter(range(1, 10**9))
        self.stopping = False
        self.life = 0

    async def run(self, seconds: float) -> Report:
        end = time.monotonic() + seconds
        async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
            senders = [group.create_task(self._send(client)) for _ in range(SENDERS)]
            while time.monotonic() < end or self.report.kills < KILLS:
                await self._live_and_die()
            self.stopping = True
            await self._last_life(senders)
        self._judge()
        return self.report

    # -- the receiver ----------------------------------------------------------------------------------------------

    async def _start(self) -> Process:
        self.life += 1
        argv = [sys.executable, "-m", "tests.chaos._receiver", str(self.directory), str(self.life)]
        with (self.directory / "log").open("a") as log:
            return await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log)

    async def _listening(self, process: Process) -> None:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await process.stdout.readline()
        assert line, (self.directory / "log").read_text()[-5000:]
        self.url.set_result(line.decode().strip())

    async def _live_and_die(self) -> None:
        process = await self._start()
        try:
            if self.chance.random() < 0.1:
                await asyncio.sleep(self.chance.random() * 0.5)
            else:
                await self._listening(process)
                await asyncio.sleep(self.chance.random() ** 2 * 2)
        finally:
            if self.url.done():
                self.url = asyncio.get_running_loop().create_future()
            process.kill()
            await process.wait()
        self.report.kills += 1

    async def _last_life(self, senders: list[asyncio.Task[None]]) -> None:
        """Stop the kills. Wait until the remaining messages are delivered and the receiver has exited cleanly."""
        process = await self._start()
        try:
            await self._listening(process)
            await asyncio.wait(senders)
            async with asyncio.timeout(LIMIT):
                while self._left():
                    await asyncio.sleep(0.05)
            process.terminate()
            assert await process.wait() == 0, (self.directory / "log").read_text()[-5000:]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _left(self) -> int:
        with closing(sqlite3.connect(self.directory / "inbox.db")) as db:
            entries = WEBHOOKS.entries(db)
        self.dead = sum(entry.dead for entry in entries)
        return len(entries) - self.dead

    # -- the sender ------------------------------------------------------------------------------------------------

    async def _send(self, client: aiohttp.ClientSession) -> None:
        while not self.stopping:
            number = next(self.numbers)
            status = await self._post(client, number)
            if status == 202:
                self.acknowledged.add(number)
            else:
                assert status in (429, 503), status
                self.refused.add(number)
                await asyncio.sleep(0.02)

    async def _post(self, client: aiohttp.ClientSession, number: int) -> int:
        """Post with the same id until a response arrives, and return the response's status.

        A request without a response may have been accepted, so a later rejection proves nothing and is ignored.
        """
        body = str(number).encode()
        signature = hmac.digest(SECRET, body, hashlib.sha256).hex()
        headers = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": f"number-{number}"}
        path = "/batch" if _is_merged(number) else "/one"
        unanswered = False
        while True:
            url = await asyncio.shield(self.url) + path
            try:
                async with client.post(url, data=body, headers=headers) as answer:
                    if answer.status == 202 or not unanswered:
                        return answer.status
            except aiohttp.ClientConnectorError:
                # The receiver was not running, so it cannot have accepted the request.
                pass
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                unanswered = True
            await asyncio.sleep(0.01)

    # -- results -----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for line in (self.directory / "handled").read_text().splitlines():
            life, number, attempt = map(int, line.split())
            self.handled[number].append((life, attempt))
        report, duplicates = self.report, {number for number, calls in self.handled.items() if len(calls) > 1}
        report.operations = len(self.acknowledged)
        report.notes = f"{len(self.refused)} refused, {len(duplicates)} handled again after a kill"
        report.lost += [f"{number} was accepted and not handled" for number in self.acknowledged - self.handled.keys()]
        report.lost += [f"{self.dead} dead letters"] * bool(self.dead)
        report.double += [f"{number} was refused and handled" for number in self.refused & self.handled.keys()]
        for number in duplicates:
            lives, attempts = zip(*self.handled[number], strict=True)
            # A merged call has the highest attempt of its requests, so the attempts of a single request may fall.
            if list(lives) != sorted(set(lives)) or (
                not _is_merged(number) and list(attempts) != sorted(set(attempts))
            ):
                report.double.append(f"{number} was handled twice without a kill between: {self.handled[number]}")


def _is_merged(number: int) -> bool:
    return number % 3 == 0


def storm(seconds: float, seed: int) -> Report:
    async def run(directory: Path) -> Report:
        return await Storm(directory, seed).run(seconds)

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(Path(directory)))
