"""The attacks on one run of the program, each at random moments."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.soak.program import CONFIG, HEALTH, WATCHED
from tests.soak.routes import OUTCOMES
from tests.soak.tree import TASKS, THREADS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.soak.lives import Life
    from tests.soak.shared import SharedState
    from tests.soak.steering import Console

__all__ = ["Attacks", "workers_of"]

#: Workers that an attack can restart by name.
_WORKERS = ("tree/sleeper", "tree/counter", "tree/stubborn", "tree/brittle", "tree/pair", "chain", "link-1", "model")
#: Sources that an attack can hold.
_SOURCES = ("ticker", "files", "disk", "QueueSource", "Outbox", "Supervisor.watch", "webhook", "prompt", "signals")
_STREAMS = ("/api/state/stream", "/api/events/stream")
_FILES = 4

#: Numbers that are unique across all runs, so that bus events and file contents all differ.
_numbers = count(1)


class Attacks:
    """The attackers. They record the effects to expect, which are checked while attacks are off."""

    def __init__(self, life: Life, console: Console, shared: SharedState) -> None:
        self._life, self._console = life, console
        self._history, self._attack_switch, self._chance, self._bus = (
            shared.history,
            shared.attack_switch,
            shared.chance,
            shared.bus,
        )
        self._done = shared.done
        #: The expected content by file name, or None for a deleted file.
        self.files: dict[str, str] = {}
        #: The number of greetings typed at the prompt.
        self.hellos = 0

    async def run(self) -> None:
        """Run several attacks concurrently until cancelled, each with its own average interval in seconds."""
        acts: list[tuple[Callable[[], Awaitable[None]], float, int]] = [
            (self.order, 0.3, 2),
            (self.emit, 0.1, 3),
            (self.kill, 0.7, 1),
            (self.edit, 0.3, 1),
            (self.type, 0.5, 1),
            (self.hang_up, 1.0, 1),
            (self.sicken, 1.0, 1),
            (self.stall, 1.0, 2),
            (self.scrape, 1.0, 1),
            (self.look, 0.7, 1),
        ]
        if self._bus is not None:
            acts += [(self.publish, 0.1, 2), (self.shake_the_bus, 20.0, 1)]
        async with asyncio.TaskGroup() as group:
            for act, pace, hands in acts:
                for _ in range(hands):
                    group.create_task(self._go_on(act, pace))

    async def _go_on(self, act: Callable[[], Awaitable[None]], pace: float) -> None:
        while True:
            await asyncio.sleep(self._chance.random() * 2 * pace)
            async with self._attack_switch.attacking():
                await self._once(act)

    async def _once(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run one attack. If a response is missing, raise an error unless the program is stopping."""
        self._done[act.__name__] += 1
        try:
            await act()
        except (OSError, TimeoutError, aiohttp.ClientError, AssertionError) as error:
            if not self._life.ending:
                self._history.wrong.append(f"life {self._life.number}: {act.__name__} came to {error!r}")

    # -- commands ----------------------------------------------------------------------------------------------------

    async def order(self) -> None:
        """Send one of the control commands."""
        words = ("restart", "hold", "suspend", "resume", "reload", "status", "hello", "nonsense")
        match word := self._chance.choices(words, (6, 4, 2, 2, 1, 2, 1, 1))[0]:
            case "restart":
                await self._tell(f"restart {self._chance.choice(_WORKERS)}")
            case "hold":
                source = shlex.quote(await self._source())
                await self._hold(f"hold {source}", f"release {source}")
            case "suspend":
                await self._hold("suspend", "resume")
            case _:
                self.hellos += word == "hello"
                await self._tell(word)

    async def _hold(self, word: str, opposite: str) -> None:
        """Send a command, and usually its opposite later. Otherwise a later attack or the next check reverts it."""
        await self._tell(word)
        await asyncio.sleep(self._chance.random() * 2)
        if self._chance.random() < 0.97:
            await self._tell(opposite)

    async def _tell(self, line: str) -> None:
        outcome = await self._console.command(line)
        self._done[f"{line.partition(' ')[0]} {outcome}"] += 1

    async def _source(self) -> str:
        """Return a source's full name, which may contain a path or an address after the known prefix."""
        wanted, state = self._chance.choice(_SOURCES), await self._console.state()
        names = [source["name"] for router in state["routers"] for source in router["sources"]]
        return next((name for name in names if name.startswith(wanted)), wanted)

    async def emit(self) -> None:
        """Emit an event of any kind through the dashboard."""
        topic = self._chance.choice(list(OUTCOMES))
        data: object = next(_numbers)
        if topic == "crash/worker":
            data = self._chance.choice((*TASKS, *THREADS))
        outcome = await self._console.emit(topic, data)
        if outcome not in (*OUTCOMES[topic], "busy") and not self._life.ending:
            raise AssertionError(f"unexpected outcome for {topic}: {outcome}")

    async def publish(self) -> None:
        """Emit an event that the bus delivers back to the program."""
        number = next(_numbers)
        outcome = await self._console.emit(f"bus/{number % 7}", number)
        self._done[f"publish {outcome}"] += 1
        if outcome == "handled":
            self._history.on_the_bus.add(number)

    async def look(self) -> None:
        """Read the whole state."""
        await self._console.state()

    async def scrape(self) -> None:
        """Scrape metrics as Prometheus does."""
        names = await self._console.scrape()
        assert "lifecycle_handler_duration_seconds" in names, names

    async def stall(self) -> None:
        """Open a stream, read a few bytes, stop reading, and disconnect."""
        stream = await self._console.stall(self._chance.choice(_STREAMS), page=self._chance.random() < 0.5)
        try:
            await stream.content.readany()
            await asyncio.sleep(self._chance.random() * 4)
        finally:
            stream.close()

    # -- kills -------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """Kill a worker, a pool worker, or one of their child processes."""
        victims = [(pid, worker["kind"]) for worker, pid in workers_of(await self._console.state())]
        if self._chance.random() < 0.2:
            victims = [(pid, "") for pid, what in self._life.relatives().items() if what.startswith("sleep ")]
        if not victims:
            return
        pid, kind = self._chance.choice(victims)
        signum = self._chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT))
        if kind == "member" and not self._life.ending and self._chance.random() < 0.2:
            # Health checks detect a process that does not respond.
            signum = signal.SIGSTOP
        if self._life.has(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    async def shake_the_bus(self) -> None:
        """Kill the bus server and start it again. Publishers wait for the server."""
        assert self._bus is not None
        self._bus.kill()
        try:
            await asyncio.sleep(self._chance.random())
        finally:
            # The next run also needs the server.
            self._bus.start()

    # -- files, lines and signals ------------------------------------------------------------------------------------

    async def edit(self) -> None:
        """Write a file in place or by replacing it, once or several times, or remove it."""
        path = self._life.directory / WATCHED / f"file-{self._chance.randrange(_FILES)}"
        for _ in range(self._chance.choice((1, 1, 1, 20))):
            content = str(next(_numbers))
            if self._chance.random() < 0.5:
                path.write_text(content)
            else:
                new = path.with_name(f".{path.name}.new")
                new.write_text(content)
                new.rename(path)
            self.files[path.name] = content
        if self._chance.random() < 0.1:
            path.unlink()
            del self.files[path.name]

    async def type(self) -> None:
        """Type a line at the program's prompt."""
        line = self._chance.choice(("hello", "hello", "status", "help", "no such word"))
        self.hellos += line == "hello"
        self._life.type(line)

    async def hang_up(self) -> None:
        """Send SIGHUP, which makes the program reload its configuration file. The file may be invalid."""
        content = json.dumps({"number": next(_numbers)})
        (self._life.directory / CONFIG).write_text(content if self._chance.random() < 0.7 else content[:-3])
        # After `run` has returned, the signal has its default action, which kills the process.
        if not self._life.ending:
            self._life.send(signal.SIGHUP)

    async def sicken(self) -> None:
        """Change the result of the health check."""
        path = self._life.directory / HEALTH
        path.unlink() if path.exists() else path.touch()


def workers_of(state: Any) -> Iterator[tuple[Any, int]]:
    """Return the pid of each running worker in a snapshot, including pool workers."""

    def below(worker: Any) -> Iterator[tuple[Any, int]]:
        if worker["pid"] is not None and worker["status"] in ("running", "suspended"):
            yield worker, worker["pid"]
        for child in worker["children"]:
            yield from below(child)

    for root in (*state["workers"], *(pool["worker"] for pool in state["pools"])):
        yield from below(root)
