"""A flow has the same outcome even if its process dies after one of its transactions.

The process dies once after each transaction of each flow, and a second time soon afterwards.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lifecycle.flows import JSON, FlowRow, MemoryStore, Options, current_task
from lifecycle.flows.engine import Engine
from lifecycle.flows.plan import compile_flow
from tests.chaos.report import Report
from tests.flows.legality import illegal
from tests.flows.numbered_flows import NumberedFlow, left_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.flows import Batch

__all__ = ["die_at_each_point", "storm", "with_random_numbers"]

CONCURRENCY = (None, 1, 2)


class Died(BaseException):
    """The simulated death of the process. Nothing runs after it."""


class Mortal(MemoryStore):
    """A store that kills its process after a number of transactions."""

    def __init__(self, writes: int = -1) -> None:
        super().__init__()
        self.left = writes
        self.written = 0

    async def commit(self, batch: Batch) -> None:
        await super().commit(batch)
        self.written += 1
        self.left -= 1
        if not self.left:
            raise Died


@dataclass
class Life:
    """A flow and its store, run by one process after another."""

    number: int
    store: Mortal
    options: Options = field(default_factory=Options)
    #: Keys of the executed tasks, in order.
    executed: list[str] = field(default_factory=list)

    async def _note(self) -> None:
        if not current_task().reverting:
            self.executed.append(current_task().key)

    async def start(self) -> Engine:
        plan = compile_flow(NumberedFlow(self.number, self._note).flow)
        await self.store.create(FlowRow("f", plan.name, epoch=1))
        return Engine(plan, await self.store.load("f"), store=self.store, codec=JSON(), options=self.options)

    async def live(self) -> bool:
        """Run the flow until it finishes or the process dies, and return whether the flow finished."""
        try:
            engine = await self.start()
            if self.number % 2:
                # Each phase is a separate transaction when it has a listener.
                engine.listeners.append(lambda _: None)
            await engine.prepare()
            await engine.run()
        except Died:
            return False
        return True

    async def done(self) -> set[str]:
        """Return the keys of the tasks with a stored success."""
        rows = (await self.store.load("f")).steps.values()
        numbers = {row.name: row.round if row.kind == "retry" else row.undone + 1 for row in rows}
        return {f"f/{row.name}/{numbers[row.name]}" for row in rows if row.state == "SUCCESS"}

    async def end(self) -> Any:
        """Return the flow's state, steps and values."""
        engine = await self.start()
        exactly = NumberedFlow(self.number).sequential
        state = engine.scheduler.state
        return state, left_of(engine.view(), state, exactly=exactly), engine.scheduler.values.provided()


async def die_at_each_point(number: int, report: Report) -> None:
    """Run the flow with this number once for each of its transactions, and let it die after the transaction."""
    undisturbed = Life(number, Mortal())
    assert await undisturbed.live()
    end = await undisturbed.end()
    report.lost += [f"flow {number}: {wrong}" for wrong in illegal(await undisturbed.store.changes("f", limit=9999))]
    options = Options(concurrency=CONCURRENCY[number % len(CONCURRENCY)])
    for writes in range(1, undisturbed.store.written):
        report.operations += 1
        life = Life(number, Mortal(writes), options)
        if await life.live():
            continue
        report.kills += 1
        done = await life.done()
        life.executed.clear()
        # The process dies a second time soon afterwards, and never again.
        life.store.left = 1 + writes % 4
        await life.live() or await life.live()
        name = f"flow {number}, which died after {writes} transactions"
        if (got := await life.end()) != end:
            report.lost.append(f"{name}: expected {end}, got {got}")
        report.double += [f"{name}: {key} was executed again" for key in done.intersection(life.executed)]
        report.lost += [f"{name}: {wrong}" for wrong in illegal(await life.store.changes("f", limit=9999))]


async def with_random_numbers(die: Callable[[int, Report], Awaitable[None]], seconds: float, seed: int) -> Report:
    """Call ``die`` with one random number after another for so many seconds, and return its report."""
    chance, report = random.Random(seed), Report()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await die(chance.randrange(2**32), report)
    return report


def storm(seconds: float, seed: int) -> Report:
    return asyncio.run(with_random_numbers(die_at_each_point, seconds, seed))
