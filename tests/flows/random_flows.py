"""Random flows, and a scheduler that runs without an event loop, is killed at any transaction, and resumes."""

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
from lifecycle.flows.decisions import Call, Scheduler, StepResult
from lifecycle.flows.plan import compile_flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Change

#: The number of rounds in which a task fails before it succeeds, and whether its revert fails.
Nature = tuple[int, bool]


#: A task that fails this often has a retry of its own.
_WITH_RETRY = 2


class RandomFlow(NamedTuple):
    """A flow and its tasks' behaviour."""

    flow: Flow | Task
    natures: dict[str, Nature]


def random_flows(*, failing_reverts: bool = True) -> st.SearchStrategy[RandomFlow]:
    """Create nested flows with retries and deciders, in which some tasks fail."""
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


def _built(shape: Any) -> RandomFlow:
    natures: dict[str, Nature] = {}
    numbers = count()

    def build(part: Any) -> Any:
        name = f"n{next(numbers)}"
        if part[0] == "task":
            natures[name] = part[1]
            return task(_nothing, name=name, retry=Times(2) if part[1][0] == _WITH_RETRY else None)
        pattern, inner, retry, links = part
        makers = {"linear": linear, "unordered": unordered, "graph": graph}
        items = [build(each) for each in inner]
        flow = makers[pattern](name, *items, retry=_RETRIES[retry])
        for place, agrees, depth in links:
            if pattern != "unordered" and place + 1 < len(items):
                flow.when(items[place], items[place + 1], _saying(agrees), depth=depth)
        return flow

    return RandomFlow(build(shape), natures)


def _saying(answer: bool) -> Callable[[dict[str, Any]], bool]:
    return lambda _: answer


def _nothing() -> None: ...


_RETRIES: dict[str | None, Any] = {
    None: None,
    "times": Times(3),
    "revert": AlwaysRevert(),
    "all": AlwaysRevertAll(),
}


class StoredFlow:
    """The content of a store."""

    def __init__(self, random_flow: RandomFlow) -> None:
        self.random_flow = random_flow
        self.plan = compile_flow(random_flow.flow)
        self.flow = FlowRow("id", self.plan.name, epoch=1)
        self.steps: dict[str, Any] = {}
        self.changes: list[Change] = []
        #: Each execution of a task: its name and round, and whether its success was stored.
        self.executed: list[tuple[str, int]] = []

    def scheduler(self) -> Scheduler:
        """Return a scheduler that continues from the stored state."""
        return Scheduler(self.plan, Snapshot(self.flow, dict(self.steps)), JSON(), Options())

    def keep(self, scheduler: Scheduler) -> bool:
        """Write the changes, and return whether there were any."""
        batch = scheduler.work.drain()
        if batch is None:
            return False
        self.flow = self.flow._replace(state=batch.state, seq=batch.seq)
        self.steps |= {row.name: row for row in batch.steps}
        self.changes += batch.changes
        return True

    def states(self) -> dict[str, str]:
        """Return the states of the steps."""
        return {name: row.state for name, row in sorted(self.steps.items())}


def run(kept: StoredFlow, *, writes: int | None = None, watch: Any = None) -> bool:
    """Run a scheduler to completion, or kill it after ``writes`` writes. Return whether it completed."""
    left = count() if writes is None else iter(range(writes))
    scheduler = kept.scheduler()
    for _ in _phases(kept, scheduler):
        if watch is not None:
            watch(scheduler)
        if kept.keep(scheduler) and next(left, None) is None:
            return False
    return True


def _phases(kept: StoredFlow, scheduler: Scheduler) -> Any:
    scheduler.prepare()
    yield
    scheduler.begin()
    yield
    scheduler.resume()
    yield
    calls: list[Call] = []
    while scheduler.may_schedule or calls:
        calls = scheduler.schedule(None)
        yield
        for call in calls:
            scheduler.finish(call, outcome_of(kept, call))
        calls = []
        scheduler.find_ready()
        yield
    scheduler.end()
    yield


def outcome_of(kept: StoredFlow, call: Call) -> StepResult | Failure:
    """Return the result that the function in ``call`` would return."""
    node = call.node
    if node.kind == "retry":
        value = None if call.reverting else node.step.function.fn(**call.arguments)  # type: ignore[union-attr]  # has a step
        return StepResult(JSON().encode(value), value)
    rounds, bad = kept.random_flow.natures[node.name]
    if call.reverting:
        return Failure("RuntimeError", "cannot be undone") if bad else StepResult("null", None)
    kept.executed.append((node.name, node.round))
    return Failure("RuntimeError", "woot") if node.round <= rounds else StepResult("5", 5)
