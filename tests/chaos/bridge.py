"""A bus with failing members, on one server or on a cluster.

Producers in this process send numbered events with unusual topics and await each one. Some events are poison, which
makes their handlers fail. Three consumers share the events. Consumers are killed and frozen at random moments, and the
server is killed as well. At the end, every event that the bus acknowledged must have been handled, or must be a dead
letter if it was poison.

In a cluster, servers are also frozen and cut off, and an operator deletes, purges or changes the stream and its
consumer. Events whose publication began before the stream was deleted or purged may be lost.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from lifecycle.bridges import BusEvent, NatsBridge, NotPublished
from lifecycle.control import Router
from lifecycle.testing import running
from tests.chaos._sites import Cluster, by_hand, on_cluster, on_one_server
from tests.chaos.report import Report
from tests.processes import kill_all

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator

    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from tests.chaos._sites import Site

__all__ = ["cluster_storm", "storm"]

ROOT = Path(__file__).parents[2]
CONSUMERS, PRODUCERS = 3, 8
#: The bridge's stream, and the group of the consumers.
STREAM, GROUP = "EVENTS", "consumers"
LIMIT = 60.0
#: The minimum number of kills.
KILLS = 2

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


class Storm:
    """Producers, consumers, the server, and the task that kills them."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.directory = site.directory
        self.chance = random.Random(seed)
        self.report = Report()
        self.published: set[int] = set()
        self.poison: set[int] = set()
        # The number of deliveries of each event.
        self.handled: Counter[int] = Counter()
        self.dead: set[int] = set()
        # The events whose publication has begun, and those that an operator may have deleted.
        self.begun: set[int] = set()
        self.forfeited: set[int] = set()
        self.operations: Counter[str] = Counter()
        self.stopping = False
        self._numbers = iter(range(1, 10**9))
        self._consumers: list[Process] = []

    async def run(self, seconds: float) -> Report:
        router = Router()
        router.add_source(NatsBridge(self.site.url, group="producers", publish=("chaos/**",), subscribe=("dead/**",)))
        router.handle("dead/chaos/**", self._bury)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(router))
            stack.push_async_callback(lambda: kill_all(self._consumers))
            self._consumers = [await self._start(place) for place in range(CONSUMERS)]
            async with asyncio.TaskGroup() as group:
                for _ in range(PRODUCERS):
                    group.create_task(self._produce(router))
                await self._strike_for(seconds)
                self.stopping = True
            await self._calm()
        await self._judge()
        return self.report

    # -- sending and checking ----------------------------------------------------------------------------------------

    async def _produce(self, router: Router) -> None:
        while not self.stopping:
            number, poison = next(self._numbers), self.chance.random() < 0.01
            event = Numbered(f"chaos/{self.chance.choice(ODD)}", number, poison)
            if poison:
                self.poison.add(number)
            self.begun.add(number)
            await self._insist(router, event)
            self.published.add(number)
            await asyncio.sleep(self.chance.random() * 0.05)

    async def _insist(self, router: Router, event: Numbered) -> None:
        while True:
            with suppress(NotPublished):
                await (await router.emit(event))
                return

    async def _bury(self, event: BusEvent) -> None:
        self.dead.add(event.data["number"])

    def _read(self) -> None:
        self.handled = Counter(self._lines())

    def _lost(self) -> set[int]:
        return self.published - self.handled.keys() - self.dead - self.forfeited

    async def _stored(self) -> set[int]:
        """Return the events in the stream, without using the bridge."""
        found: set[int] = set()
        with suppress(TimeoutError, NatsError):
            async with by_hand(self.site.url) as js:
                subscription = await js.subscribe("ev.chaos.>", stream=STREAM, ordered_consumer=True)
                while True:
                    found.add(json.loads((await subscription.next_msg(2.0)).data)["number"])
        return found

    async def _judge(self) -> None:
        self._read()
        report, handled, dead = self.report, self.handled.keys(), self.dead
        report.operations = len(self.published)
        again = sum(times - 1 for times in self.handled.values())
        report.notes = f"{len(self.poison)} poison, {again} handled again; operator: {dict(self.operations)}"
        stored = await self._stored() if self._lost() else set()
        for number in self._lost():
            where = "is in the stream" if number in stored else "is not in the stream any more"
            report.lost.append(f"{number} was acknowledged and not handled; it {where}")
        report.lost += [f"{number} is not poison, but a dead letter" for number in dead - self.poison]
        report.double += [f"{number} is poison, but was handled" for number in self.poison & handled]
        report.double += [f"{number} was never published" for number in (handled | dead) - self.published]

    def _lines(self) -> Iterator[int]:
        for path in self.directory.glob("handled-*"):
            yield from (int(line.split()[0]) for line in path.read_text().splitlines())

    # -- attacks -----------------------------------------------------------------------------------------------------

    async def _start(self, place: int) -> Process:
        argv = [sys.executable, "-m", "tests.chaos._bridge_consumer"]
        arguments = [self.site.url, str(self.directory / f"handled-{place}")]
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

    async def _strike_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.report.kills < KILLS:
            await asyncio.sleep(self.chance.random() * 0.8)
            operator = 2 if isinstance(self.site, Cluster) else 0
            ways = [self._kill, self._freeze, self._attack, self._operate]
            run = self.chance.choices(ways, [7, 2, 2 + operator, operator])[0]
            await run()

    async def _kill(self) -> None:
        place = self.chance.randrange(CONSUMERS)
        process = self._consumers[place]
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self.report.kills += 1
        self._consumers[place] = await self._start(place)

    async def _freeze(self) -> None:
        """Freeze the consumer long enough for the server to redeliver its events to other consumers."""
        process = self.chance.choice(self._consumers)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.chance.random() * 4)
            process.send_signal(signal.SIGCONT)
        self.report.kills += 1

    async def _attack(self) -> None:
        self.report.kills += 1
        await self.site.attack(self.chance)

    async def _operate(self) -> None:
        """Change the stream or its consumer, as an operator could."""
        ways = (self._delete_stream, self._purge, self._delete_group, self._pause, self._other_subjects, self._one_copy)
        way = self.chance.choice(ways)
        with suppress(NatsError, TimeoutError, OSError):
            async with by_hand(self.site.url) as js:
                await way(js)
                self.operations[way.__name__.strip("_")] += 1

    async def _delete_stream(self, js: JetStreamContext) -> None:
        try:
            await js.delete_stream(STREAM)
        finally:
            # An operation without a response may have been carried out.
            self.forfeited |= self.begun

    async def _purge(self, js: JetStreamContext) -> None:
        try:
            await js.purge_stream(STREAM)
        finally:
            self.forfeited |= self.begun

    async def _delete_group(self, js: JetStreamContext) -> None:
        await js.delete_consumer(STREAM, GROUP)

    async def _pause(self, js: JetStreamContext) -> None:
        until = datetime.now(UTC) + timedelta(seconds=2 * self.chance.random())
        await js.pause_consumer(STREAM, GROUP, until.isoformat())

    async def _other_subjects(self, js: JetStreamContext) -> None:
        await self._change_for_a_while(js, subjects=["elsewhere.>"])

    async def _one_copy(self, js: JetStreamContext) -> None:
        await self._change_for_a_while(js, num_replicas=1)

    async def _change_for_a_while(self, js: JetStreamContext, **change: Any) -> None:
        before = (await js.stream_info(STREAM)).config
        try:
            await js.update_stream(before.evolve(**change))
            await asyncio.sleep(2 * self.chance.random())
        finally:
            await self._restore(before)

    async def _restore(self, before: StreamConfig) -> None:
        """Repeat until the servers accept the old settings, or the stream does not exist any more."""
        async with asyncio.timeout(LIMIT):
            while True:
                with suppress(NatsError, TimeoutError, OSError):
                    async with by_hand(self.site.url) as js:
                        try:
                            await js.update_stream(before)
                        except NotFoundError:
                            return
                        return
                await asyncio.sleep(0.2)

    async def _calm(self) -> None:
        """Stop the kills. Wait until the remaining events are handled and the consumers have exited cleanly."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            self._read()
            if not self._lost():
                break
            for place, process in enumerate(self._consumers):
                if process.returncode is not None:
                    # The consumer could not connect to a server in time. A service manager would restart it.
                    self._consumers[place] = await self._start(place)
            await asyncio.sleep(0.1)
        else:
            print((self.directory / "log").read_text()[-20_000:], file=sys.stderr)
        for place in range(CONSUMERS):
            await self._up(place)
            self._consumers[place].terminate()
        async with asyncio.timeout(LIMIT):
            ended = [await process.wait() for process in self._consumers]
        assert ended == [0] * CONSUMERS, (ended, (self.directory / "log").read_text()[-5000:])


def storm(seconds: float, seed: int) -> Report:
    return on_one_server(lambda site: Storm(site, seed).run(seconds))


def cluster_storm(seconds: float, seed: int) -> Report:
    return on_cluster(lambda site: Storm(site, seed).run(seconds), STREAM)
