"""The lives of the program, one after the other: how long each is, how it ends, and what is looked at meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from tests.nats_servers import NatsProcess
from tests.soak.blows import Blows
from tests.soak.calm import Calm, check_file
from tests.soak.ledger import Ledger
from tests.soak.lives import LIMIT, Broken, Life
from tests.soak.program import CONFIG, HEALTH, WATCHED
from tests.soak.samples import JUDGED, JUDGED_ON_DISK, Series, Table, measured, on_disk
from tests.soak.senders import Senders
from tests.soak.steering import Console
from tests.soak.wind import Wind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Storm"]

#: The ways in which a life ends; all of them come by turns.
ENDS = ("kill", "terminate", "kill", "interrupt", "kill", "hammer", "kill", "stop", "kill", "close_input")
#: Seconds of storm between two calms of a long life, at most.
_ROUND = 45.0
_PAUSE = 0.5


class Storm:
    """Blows for some seconds; then `wrong` says what was, and `report` what was seen. ``tell`` hears of each life."""

    def __init__(self, directory: Path, seconds: float, seed: int, tell: Callable[[str], object]) -> None:
        self.directory, self._seconds, self._tell = directory, seconds, tell
        self._chance = random.Random(seed)
        self._ledger, self._wind = Ledger(directory), Wind()
        self._senders = Senders(self._ledger, self._wind, random.Random(seed + 1))
        self._ends = self._all_ends()
        self._files = Series()
        self._bus: NatsProcess | None = None
        self._begun = time.monotonic()
        self._life: Life | None = None
        self.lives = 0
        self.calms = 0
        self.done: Counter[str] = Counter()
        #: What was measured.
        self.tables: list[Table] = []
        #: What must not be, in words.
        self.wrong: list[str] = []

    def _all_ends(self) -> Iterator[str]:
        while True:
            yield from self._chance.sample(ENDS, len(ENDS))

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    # -- from the first to the last ------------------------------------------------------------------------------

    async def blow(self) -> None:
        """All of it; what is wrong ends it early."""
        self._prepare()
        with ExitStack() as held:
            if Path(sys.executable).with_name("nats-server").exists():
                self._bus = NatsProcess(self.directory / "bus")
                await asyncio.to_thread(self._bus.start)
                held.callback(self._bus.kill)
            senders = asyncio.create_task(self._senders.run())
            try:
                await self._live_all()
            finally:
                senders.cancel()
                await asyncio.wait({senders})
        self._judge_files()

    def _prepare(self) -> None:
        (self.directory / WATCHED).mkdir()
        (self.directory / "run").mkdir(mode=0o700)
        (self.directory / CONFIG).write_text('{"number": 0}')
        (self.directory / HEALTH).touch()

    async def _live_all(self) -> None:
        """Short lives, a long one that takes half of the time, short ones again, and a last one in peace."""
        with suppress(Broken):
            while self._elapsed < self._seconds * 0.2 or self.lives < 2:
                await self._live(self._short(), next(self._ends))
            await self._live(self._seconds * 0.55, "terminate", calms=True)
            while self._elapsed < self._seconds * 0.95:
                await self._live(self._short(), next(self._ends))
            await self._live(self._seconds * 0.05, "interrupt")

    def _short(self) -> float:
        return self._chance.random() ** 2 * min(40.0, self._seconds / 8)

    async def _live(self, seconds: float, end: str, *, calms: bool = False) -> None:
        """One life. Raises Broken, once it is told, if something was wrong."""
        self.lives += 1
        self._life = life = Life(self.directory, self.lives, self._bus.url if self._bus else None)
        self._ledger.begin()
        began, how = time.monotonic(), end
        try:
            await life.start()
            if end == "kill" and self._chance.random() < 0.2:
                how = "kill while it starts"
                await asyncio.sleep(self._chance.random())
                await life.kill()
            else:
                await self._stand(life, seconds, end, calms=calms)
            await life.check_nothing_left()
            self._ledger.read()
            self._check(life, clean=end not in ("kill", "hammer"))
        except (Broken, OSError, TimeoutError, aiohttp.ClientError, AssertionError) as error:
            self.wrong.append(f"life {life.number} ({how}): {str(error) or repr(error)}")
        finally:
            await life.end_by_force()
        self._tell(f"life {life.number}: {time.monotonic() - began:.1f} s, {how}")
        self._gather()
        if self.wrong:
            raise Broken

    def _check(self, life: Life, *, clean: bool) -> None:
        """What can be seen of a life when it is over."""
        if clean and life.number not in self._ledger.ended:
            raise Broken("it ended without having come to its end")
        self.wrong += check_file(self.directory, at_rest=False)
        life.log.unlink()

    def _gather(self) -> None:
        self.wrong += self._ledger.wrong
        self._ledger.wrong.clear()

    async def _stand(self, life: Life, seconds: float, end: str, *, calms: bool) -> None:
        await life.wait_up()
        self._senders.listens(life.up["webhooks"])
        series = Series()
        async with Console(life.up) as console:
            blows = Blows(
                life,
                console,
                ledger=self._ledger,
                wind=self._wind,
                chance=random.Random(self._chance.random()),
                bus=self._bus,
                done=self.done,
            )
            beside = [asyncio.create_task(blows.run()), asyncio.create_task(self._measure(life, series))]
            try:
                calm = Calm(life, console, blows, self._ledger)
                await self._weather(life, seconds, calm if calms else None, beside)
                await self._end(life, end, console, calm)
            finally:
                life.ending = True
                self._senders.listens("")
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
        if calms:
            table = Table(f"life {life.number}, {seconds:.0f} s", series, judged=seconds >= JUDGED)
            self.tables.append(table)
            self.wrong += table.wrong()

    async def _weather(self, life: Life, seconds: float, calm: Calm | None, beside: list[asyncio.Task[None]]) -> None:
        """Storm, for so long, and now and then calm."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 or calm is not None:
            self._wind.rise()
            await self._wait(life, min(left, _ROUND), beside)
            if calm is None:
                continue
            await self._calm_down(calm)
            if end < time.monotonic():
                return

    async def _wait(self, life: Life, seconds: float, beside: list[asyncio.Task[None]]) -> None:
        """As long as nothing is wrong."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            done, _ = await asyncio.wait(beside, timeout=min(left, _PAUSE), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # Neither ends by itself, unless it fails.
                task.result()
            if not life.alive:
                raise Broken(f"it has ended by itself, with {life.process.returncode}")
            self._ledger.read()
            if self._ledger.wrong:
                raise Broken("something is wrong that is told below")

    async def _calm_down(self, calm: Calm) -> None:
        await self._still(calm)
        await calm.check()
        self.calms += 1

    async def _still(self, calm: Calm) -> None:
        """Let the wind fall, and all that was asked for be answered."""
        falling = asyncio.create_task(self._wind.fall())
        try:
            async with asyncio.timeout(LIMIT):
                while not falling.done():
                    await calm.go_on()
                    await asyncio.wait({falling}, timeout=_PAUSE)
                # Who asked last may have paused something.
                await calm.go_on()
        except TimeoutError:
            raise Broken(f"what was asked of it is not answered after {LIMIT:g} s") from None
        finally:
            falling.cancel()
            await asyncio.wait({falling})

    async def _end(self, life: Life, end: str, console: Console, calm: Calm) -> None:
        """As it is called; those that need calm have it, the others come in the middle of the storm."""
        match end:
            case "kill":
                await life.kill()
            case "terminate":
                await life.terminate()
            case "hammer":
                await life.hammer(self._chance.choice((0.02, 0.1, 0.5)))
            case "stop":
                life.ending = True
                await console.command("stop")
                await life.over()
            case "close_input":
                life.type("status")
                await life.close_input()
            case "interrupt":
                await self._calm_down(calm)
                await self._interrupt(life, console)

    async def _interrupt(self, life: Life, console: Console) -> None:
        """The first Ctrl+C suspends, the second quits."""
        life.send(signal.SIGINT)
        async with asyncio.timeout(LIMIT):
            while not _suspended(await console.state()):
                await asyncio.sleep(0.05)
        life.ending = True
        life.send(signal.SIGINT)
        await life.over()

    # -- figures -----------------------------------------------------------------------------------------------------

    async def _measure(self, life: Life, series: Series) -> None:
        began = time.monotonic()
        while not life.ending:
            self._ledger.read()
            series.add(time.monotonic() - began, measured(life, self._ledger))
            self._files.add(self._elapsed, on_disk(self.directory))
            await asyncio.sleep(_PAUSE)

    def _judge_files(self) -> None:
        table = Table(
            f"all {self.lives} lives, {self._elapsed:.0f} s",
            self._files,
            judged=self._seconds >= JUDGED_ON_DISK and not self.wrong,
        )
        self.tables.append(table)
        self.wrong += table.wrong()

    def report(self) -> Iterator[str]:
        """What there is to tell, a line each."""
        yield f"done: {dict(sorted(self.done.items()))}"
        yield f"noted: {dict(sorted(self._ledger.lines.items()))}"
        accepted = sum(map(len, self._ledger.accepted.values()))
        yield (
            f"{self.lives} lives, {self.calms} calms, {accepted} webhooks accepted, {len(self._ledger.refused)} bad, "
            f"{len(self._ledger.on_the_bus)} events on the bus{'' if self._bus else ' (there is no nats-server)'}"
        )
        yield from map(str, self.tables)
        if self.wrong and self._life is not None and self._life.log.exists():
            yield f"the end of its log:\n{self._life.log.read_text(errors='replace')[-3000:]}"
        yield from (f"WRONG: {what}" for what in dict.fromkeys(self.wrong))
        yield f"{'BROKEN' if self.wrong else 'well'}, after {self._elapsed:.0f} s"


def _suspended(state: object) -> bool:
    assert isinstance(state, dict)
    return any(worker["name"] == "tree" and worker["status"] == "suspended" for worker in state["workers"])
