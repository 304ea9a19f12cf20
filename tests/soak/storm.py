"""The sequence of runs: the duration of each run, the way it ends, and the report."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import aiohttp

from tests.soak.lives import Broken, Life
from tests.soak.quiet_checks import check_file
from tests.soak.samples import JUDGED, JUDGED_ON_DISK, Table
from tests.soak.scenario import ENDS, UNCLEAN, Scenario
from tests.soak.shared import SharedState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Storm"]

#: The share of the total time for the long run, in which resources are compared.
_LONG = 0.55


class Storm:
    """The whole soak, which lasts a given number of seconds. `wrong` lists violations, and `report` yields the results.

    ``tell`` is called with a line about each run.
    """

    def __init__(self, directory: Path, seconds: float, seed: int, tell: Callable[[str], object]) -> None:
        self._seconds, self._tell = seconds, tell
        self._chance = random.Random(seed)
        self._shared = SharedState.at(directory, random.Random(seed + 1))
        self._ends = self._all_ends()
        self._life: Life | None = None
        self._tables: list[Table] = []
        self.lives = 0
        #: Violations, as text.
        self.wrong: list[str] = []

    @property
    def quiet_phases(self) -> int:
        """The number of times that all checks have passed."""
        return self._shared.quiet_phases

    async def run(self) -> None:
        """Run the soak, and end it early if there is a violation."""
        with ExitStack() as held:
            if self._shared.bus is not None:
                held.enter_context(self._shared.bus)
            senders = asyncio.create_task(self._shared.senders.run())
            try:
                await self._live_all(senders)
            finally:
                senders.cancel()
                await asyncio.wait({senders})
        long = self._seconds >= JUDGED_ON_DISK and not self.wrong
        self._judge(Table(f"all {self.lives} lives, {self._shared.elapsed:.0f} s", self._shared.files, judged=long))

    async def _live_all(self, senders: asyncio.Task[None]) -> None:
        """Run short runs, a long run, more short runs, and a last run that ends with checks."""
        with suppress(Broken):
            while self._shared.elapsed < self._seconds * 0.2 or self.lives < 2:
                await self._live(self._short(), next(self._ends))
            await self._live(self._seconds * _LONG, "terminate", quiet_phases=True)
            while self._shared.elapsed < self._seconds * 0.95:
                await self._live(self._short(), next(self._ends))
            await self._live(self._seconds * 0.05, "interrupt")
        if senders.done():
            # If a sender has finished, it has failed.
            senders.result()

    def _short(self) -> float:
        return self._chance.random() ** 2 * min(40.0, self._seconds / 8)

    def _all_ends(self) -> Iterator[str]:
        while True:
            yield from self._chance.sample(ENDS, len(ENDS))

    async def _live(self, seconds: float, end: str, *, quiet_phases: bool = False) -> None:
        """Run the program once. If there is a violation, report it and raise Broken."""
        self.lives += 1
        bus = self._shared.bus
        self._life = life = Life(self._shared.directory, self.lives, bus.url if bus else None)
        self._shared.history.begin()
        began, how = time.monotonic(), end
        try:
            await life.start()
            if end == "kill" and self._chance.random() < 0.2:
                how = "kill while it starts"
                await asyncio.sleep(self._chance.random())
                await life.kill()
            else:
                await self._stand(life, seconds, end, quiet_phases=quiet_phases)
            await life.check_nothing_left()
            self._check(life, clean=end not in UNCLEAN)
        except (Broken, OSError, TimeoutError, aiohttp.ClientError, AssertionError) as error:
            self.wrong.append(f"life {life.number} ({how}): {str(error) or repr(error)}")
        finally:
            await life.end_by_force()
        self._tell(f"life {life.number}: {time.monotonic() - began:.1f} s, {how}")
        self.wrong += self._shared.history.wrong
        if self.wrong:
            raise Broken

    async def _stand(self, life: Life, seconds: float, end: str, *, quiet_phases: bool) -> None:
        async with Scenario(life, self._shared) as scenario:
            await (scenario.storm_and_calm(seconds) if quiet_phases else scenario.storm(seconds))
            await scenario.end(end)
        if quiet_phases:
            self._judge(Table(f"life {life.number}, {seconds:.0f} s", scenario.series, judged=seconds >= JUDGED))

    def _check(self, life: Life, *, clean: bool) -> None:
        """Check a run after it has finished."""
        self._shared.history.read()
        if clean and life.number not in self._shared.history.ended:
            raise Broken("the program exited without recording a clean exit")
        self.wrong += check_file(self._shared.directory, at_rest=False)
        life.log.unlink()

    def _judge(self, table: Table) -> None:
        self._tables.append(table)
        self.wrong += table.wrong()

    def report(self) -> Iterator[str]:
        """Yield the lines of the report."""
        shared, history = self._shared, self._shared.history
        yield f"done: {dict(sorted(shared.done.items()))}"
        yield f"noted: {dict(sorted(history.lines.items()))}"
        accepted = sum(map(len, history.accepted.values()))
        yield (
            f"{self.lives} lives, {self.quiet_phases} calms, {accepted} webhooks accepted, {len(history.refused)} bad, "
            f"{len(history.on_the_bus)} events on the bus{'' if shared.bus else ' (there is no nats-server)'}"
        )
        yield from map(str, self._tables)
        if self.wrong and self._life is not None and self._life.log.exists():
            yield f"the end of its log:\n{self._life.log.read_text(errors='replace')[-3000:]}"
        yield from (f"WRONG: {what}" for what in dict.fromkeys(self.wrong))
        yield f"{'BROKEN' if self.wrong else 'well'}, after {shared.elapsed:.0f} s"
