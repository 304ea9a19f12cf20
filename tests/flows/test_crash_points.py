"""A flow has the same outcome even if its process dies after one of its transactions.

The test is exhaustive: the process dies once after each transaction of each flow. ``LIFECYCLE_CHAOS`` (`make chaos`)
adds more flows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import JSON, FlowRow, MemoryStore, Options, current_task
from lifecycle.flows.engine import Engine
from lifecycle.flows.plan import compile_flow
from tests.flows.legality import illegal
from tests.flows.numbered_flows import NumberedFlow, left_of

if TYPE_CHECKING:
    from lifecycle.flows import Batch

#: The numbers of the flows. `NumberedFlow` always builds the same flow for the same number.
FLOWS = range(150 if "LIFECYCLE_CHAOS" in os.environ else 14)
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


@pytest.mark.parametrize("number", FLOWS)
async def test_a_flow_that_dies_after_any_transaction_ends_the_same(number: int) -> None:
    undisturbed = Life(number, Mortal())
    assert await undisturbed.live()
    end = await undisturbed.end()
    assert list(illegal(await undisturbed.store.changes("f", limit=9999))) == []
    options = Options(concurrency=CONCURRENCY[number % len(CONCURRENCY)])
    for writes in range(1, undisturbed.store.written):
        life = Life(number, Mortal(writes), options)
        if await life.live():
            continue
        done = await life.done()
        life.executed.clear()
        # The process dies a second time soon afterwards, and never again.
        life.store.left = 1 + writes % 4
        await life.live() or await life.live()
        assert await life.end() == end, writes
        assert done.isdisjoint(life.executed), writes
        assert list(illegal(await life.store.changes("f", limit=9999))) == [], writes


def test_the_numbered_flows_cover_all_patterns_and_retries() -> None:
    flows = [NumberedFlow(number).flow for number in FLOWS]
    assert {flow.pattern for flow in flows} == {"linear", "unordered", "graph"}
    assert any(flow.edges for flow in flows)
    assert len({type(flow.retry and flow.retry.retry) for flow in flows}) > 3
