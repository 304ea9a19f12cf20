"""A bus with failing members: ``python -m tests.chaos.bridge --seconds 60``.

Producers in this process send numbered events with unusual topics and await each one. Some events are poison, which
makes their handlers fail. Three consumers share the events. Consumers are killed and frozen at random moments, and the
server is killed as well. At the end, every event that the bus acknowledged must have been handled, or must be a dead
letter if it was poison. The last line of the output is the result. The exit status is 0 on success.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.bridges import BusEvent, NatsBridge, NotPublished
from lifecycle.control import Router
from lifecycle.testing import running
from tests.chaos.command_line import kill_all, run_from_command_line
from tests.nats_servers import NatsProcess, in_a_directory

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator

__all__ = ["Result", "storm"]

ROOT = Path(__file__).parents[2]
CONSUMERS, PRODUCERS = 3, 8
LIMIT = 60.0

#: Topics with characters that are not allowed in a subject, or that are unusual in another way.
ODD = ["plain", "a.b", "*", ">", "ü/ß", "sp ace", "=", "", "new\nline", "x" * 300, "deep/" * 20]


@dataclass(frozen=True)
class Numbered:
    """An event with an id, so that sending it twice creates only one event."""

    topic: str
    number: int
    poison: bool

    @property
    def id(self) -> str:
        return f"number-{self.number}"


@dataclass
class Result:
    """The observations from one test."""

    published: set[int] = field(default_factory=set)
    poison: set[int] = field(default_factory=set)
    #: The number of deliveries of each event.
    handled: Counter[int] = field(default_factory=Counter)
    dead: set[int] = field(default_factory=set)
    kills: int = 0
    freezes: int = 0

    @property
    def lost(self) -> set[int]:
        return self.published - self.handled.keys() - self.dead

    @property
    def duplicates(self) -> int:
        return sum(times - 1 for times in self.handled.values())

    def wrong(self) -> list[str]:
        """Return the violations."""
        found = {
            "lost": self.lost,
            "poison that was handled": self.poison & self.handled.keys(),
            "dead, and no poison": self.dead - self.poison,
            "never sent": (self.handled.keys() | self.dead) - self.published,
        }
        return [f"{what}: {sorted(numbers)[:10]}" for what, numbers in found.items() if numbers]

    def __str__(self) -> str:
        return (
            f"published {len(self.published)}, handled {len(self.handled)}, lost {len(self.lost)}, "
            f"duplicates {self.duplicates}, dead letters {len(self.dead)}, kills {self.kills}"
        )


class Storm:
    """Producers, consumers, the server, and the task that kills them."""

    def __init__(self, directory: Path, server: NatsProcess, seed: int) -> None:
        self.directory = directory
        self.server = server
        self.chance = random.Random(seed)
        self.result = Result()
        self.stopping = False
        self._numbers = iter(range(1, 10**9))
        self._consumers: list[Process] = []

    async def run(self, seconds: float, kills: int) -> Result:
        router = Router()
        router.add_source(NatsBridge(self.server.url, group="producers", publish=("chaos/**",), subscribe=("dead/**",)))
        router.handle("dead/chaos/**", self._bury)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(router))
            stack.push_async_callback(lambda: kill_all(self._consumers))
            self._consumers = [await self._start(place) for place in range(CONSUMERS)]
            async with asyncio.TaskGroup() as group:
                for _ in range(PRODUCERS):
                    group.create_task(self._produce(router))
                await self._strike_for(seconds, kills)
                self.stopping = True
            await self._calm()
        return self.result

    # -- sending and checking ----------------------------------------------------------------------------------------

    async def _produce(self, router: Router) -> None:
        while not self.stopping:
            number, poison = next(self._numbers), self.chance.random() < 0.01
            event = Numbered(f"chaos/{self.chance.choice(ODD)}", number, poison)
            if poison:
                self.result.poison.add(number)
            await self._insist(router, event)
            self.result.published.add(number)
            await asyncio.sleep(self.chance.random() * 0.05)

    async def _insist(self, router: Router, event: Numbered) -> None:
        while True:
            with suppress(NotPublished):
                await (await router.emit(event))
                return

    async def _bury(self, event: BusEvent) -> None:
        self.result.dead.add(event.data["number"])

    def _read(self) -> None:
        self.result.handled = Counter(self._lines())

    def _lines(self) -> Iterator[int]:
        for path in self.directory.glob("handled-*"):
            yield from (int(line.split()[0]) for line in path.read_text().splitlines())

    # -- attacks -----------------------------------------------------------------------------------------------------

    async def _start(self, place: int) -> Process:
        argv = [sys.executable, "-m", "tests.chaos._bridge_consumer"]
        arguments = [self.server.url, str(self.directory / f"handled-{place}")]
        with (self.directory / "log").open("a") as log:
            pipe = asyncio.subprocess.PIPE
            return await asyncio.create_subprocess_exec(*argv, *arguments, cwd=ROOT, stdout=pipe, stderr=log)

    async def _up(self, place: int) -> None:
        """Wait until the consumer has reported that it is up.

        A signal that arrives earlier would kill the consumer without cleanup. A consumer that cannot connect to a
        server exits and is restarted, as a service would be.
        """
        async with asyncio.timeout(LIMIT):
            while True:
                process = self._consumers[place]
                assert process.stdout is not None
                if await process.stdout.readline():
                    return
                await process.wait()
                self._consumers[place] = await self._start(place)

    async def _strike_for(self, seconds: float, kills: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.result.kills < kills:
            await asyncio.sleep(self.chance.random() * 0.8)
            run = self.chance.choices([self._kill, self._freeze, self._kill_server], [7, 2, 2])[0]
            await run()

    async def _kill(self) -> None:
        place = self.chance.randrange(CONSUMERS)
        process = self._consumers[place]
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self.result.kills += 1
        self._consumers[place] = await self._start(place)

    async def _freeze(self) -> None:
        """Freeze the consumer long enough for the server to redeliver its events to other consumers."""
        process = self.chance.choice(self._consumers)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.chance.random() * 4)
            process.send_signal(signal.SIGCONT)
        self.result.freezes += 1

    async def _kill_server(self) -> None:
        self.result.kills += 1
        await self.server.restart(after=self.chance.random())

    async def _calm(self) -> None:
        """Stop the kills. Wait until the remaining events are handled and the consumers have exited cleanly."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            self._read()
            if not self.result.lost:
                break
            for place, process in enumerate(self._consumers):
                if process.returncode is not None:
                    # The consumer could not connect to a server in time. A service manager would restart it.
                    self._consumers[place] = await self._start(place)
            await asyncio.sleep(0.1)
        else:
            print((self.directory / "log").read_text()[-20_000:], self.server.log(), sep="\n", file=sys.stderr)
        for place in range(CONSUMERS):
            await self._up(place)
            self._consumers[place].terminate()
        async with asyncio.timeout(LIMIT):
            ended = [await process.wait() for process in self._consumers]
        assert ended == [0] * CONSUMERS, (ended, (self.directory / "log").read_text()[-5000:])
        self._read()


async def storm(seconds: float, *, seed: int, kills: int = 0) -> Result:
    """Run for at least ``seconds``, and until the required number of kills is reached."""
    async with in_a_directory() as (directory, server):
        return await Storm(directory, server, seed).run(seconds, kills)


def main() -> None:
    logging.getLogger("lifecycle.bridges").setLevel(logging.ERROR)
    run_from_command_line("tests.chaos.bridge", __doc__, storm, "freezes", "poison")


if __name__ == "__main__":
    main()
