"""Flows at random, and the pure core driven without a loop: what is written, killed at any transaction, and resumed."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from lifecycle.flows import (
    JSON,
    AlwaysRevert,
    AlwaysRevertAll,
    Failure,
    Flow,
    FlowRow,
    Options,
    Snapshot,
    Task,
    Times,
    graph,
    linear,
    task,
    unordered,
)
from lifecycle.flows.core.cores import Call, Core
from lifecycle.flows.core.outcomes import Given, ended
from lifecycle.flows.plans.compiling import compile_flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Change

#: In how many rounds a task fails before it succeeds, and whether its revert fails.
Nature = tuple[int, bool]


class Play(NamedTuple):
    """A flow, and how its tasks behave."""

    flow: Flow | Task
    natures: dict[str, Nature]


def plays(*, failing_reverts: bool = True) -> st.SearchStrategy[Play]:
    """Flows of flows with retries and deciders, in which tasks fail now and then."""
    nature = st.tuples(st.sampled_from([0, 0, 0, 0, 1, 2, 9]), st.sampled_from([False, False, False, failing_reverts]))
    leaf = nature.map(lambda each: ("task", each))
    retry = st.sampled_from([None, None, None, "times", "revert", "all"])
    shape = st.recursive(
        leaf,
        lambda inner: st.tuples(
            st.sampled_from(["linear", "linear", "unordered", "graph"]),
            st.lists(inner, min_size=1, max_size=4),
            retry,
            st.lists(
                st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["all", "flow", "neighbors", "step"]))
            ),
        ),
        max_leaves=10,
    )
    return shape.map(_built)


def _built(shape: Any) -> Play:
    natures: dict[str, Nature] = {}
    numbers = count()

    def build(part: Any) -> Any:
        name = f"n{next(numbers)}"
        if part[0] == "task":
            natures[name] = part[1]
            return task(_nothing, name=name)
        pattern, inner, retry, links = part
        makers = {"linear": linear, "unordered": unordered, "graph": graph}
        items = [build(each) for each in inner]
        flow = makers[pattern](name, *items, retry=_RETRIES[retry])
        for place, agrees, depth in links:
            if pattern != "unordered" and place + 1 < len(items):
                flow.when(items[place], items[place + 1], _saying(agrees), depth=depth)
        return flow

    return Play(build(shape), natures)


def _saying(answer: bool) -> Callable[[dict[str, Any]], bool]:  # what it says
    return lambda _: answer


def _nothing() -> None: ...


_RETRIES: dict[str | None, Any] = {
    None: None,
    "times": Times(3),
    "revert": AlwaysRevert(),
    "all": AlwaysRevertAll(),
}


class Kept:
    """What a store would have."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.plan = compile_flow(play.flow)
        self.flow = FlowRow("id", self.plan.name, epoch=1)
        self.steps: dict[str, Any] = {}
        self.changes: list[Change] = []
        #: How often a task was executed, by its name and round, and whether its success was stored.
        self.executed: list[tuple[str, int]] = []

    def core(self) -> Core:
        """A core that goes on from what is kept."""
        return Core(self.plan, Snapshot(self.flow, dict(self.steps)), JSON(), Options())

    def keep(self, core: Core) -> bool:
        """Write what has changed; whether there was anything."""
        batch = core.ledger.drain()
        if batch is None:
            return False
        self.flow = self.flow._replace(state=batch.state, seq=batch.seq)
        self.steps |= {row.name: row for row in batch.steps}
        self.changes += batch.changes
        return True

    def states(self) -> dict[str, str]:
        """Of the steps."""
        return {name: row.state for name, row in sorted(self.steps.items())}


def run(kept: Kept, *, writes: int | None = None, watch: Any = None) -> bool:
    """Drive a core to its end, or die after so many ``writes``; whether it came to its end."""
    left = count() if writes is None else iter(range(writes))
    core = kept.core()
    for _ in _phases(kept, core):
        if watch is not None:
            watch(core)
        if kept.keep(core) and next(left, None) is None:
            return False
    return True


def _phases(kept: Kept, core: Core) -> Any:
    core.prepare()
    yield
    core.begin()
    yield
    core.resume()
    yield
    calls: list[Call] = []
    while core.may_schedule or calls:
        calls = core.schedule(None)
        yield
        for call in calls:
            ended(core, call.cell, outcome_of(kept, call), back=call.back)
        calls = []
        core.look()
        yield
    core.end()
    yield


def outcome_of(kept: Kept, call: Call) -> Given | Failure:
    """What the function of ``call`` would have done."""
    cell = call.cell
    if cell.node.kind == "retry":
        value = None if call.back else cell.step.fn(**call.arguments)  # type: ignore[union-attr]  # it is a step
        return Given(JSON().encode(value), value)
    rounds, bad = kept.play.natures[cell.name]
    if call.back:
        return Failure("RuntimeError", "cannot be undone") if bad else Given("null", None)
    kept.executed.append((cell.name, cell.round))
    return Failure("RuntimeError", "woot") if cell.round <= rounds else Given("5", 5)
