"""The pure scheduler: a flow killed at any point reaches the same final state, and all changes are legal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.flows import JSON, Failure, FlowRow, FlowState, InvalidState, Options, Snapshot, linear, task
from lifecycle.flows.decisions import Scheduler, StepResult
from lifecycle.flows.plan import compile_flow, precedes
from lifecycle.flows.states import FLOWS, RETRIES, TASKS
from tests.flows.random_flows import RandomFlow, StoredFlow, random_flows, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.flows.execution import NodeState

TABLES: dict[str, Any] = {"flow": FLOWS, "task": TASKS, "retry": RETRIES}
ENDS = {"SUCCESS", "FAILURE", "REVERTED"}


@given(random_flows())
def test_every_flow_ends(random_flow: RandomFlow) -> None:
    kept = StoredFlow(random_flow)
    assert run(kept)
    assert kept.flow.state in ENDS
    if kept.flow.state == "SUCCESS":
        assert set(kept.states().values()) <= {"SUCCESS", "IGNORE"}
    assert (kept.flow.state == "FAILURE") == ("REVERT_FAILURE" in kept.states().values())


@given(random_flows())
def test_every_change_is_in_its_table(random_flow: RandomFlow) -> None:
    kept = StoredFlow(random_flow)
    run(kept)
    now = {change.name if change.kind != "flow" else "": "PENDING" for change in kept.changes}
    for change in kept.changes:
        name = change.name if change.kind != "flow" else ""
        assert now[name] == change.old
        table = TABLES[change.kind]
        kind = type(table.initial)
        assert table.check(name, kind(change.old), kind(change.new), change.reason)
        now[name] = change.new


@given(random_flows(), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_a_flow_killed_after_any_write_ends_the_same(random_flow: RandomFlow, kills: list[int]) -> None:
    undisturbed, killed = StoredFlow(random_flow), StoredFlow(random_flow)
    run(undisturbed)
    for writes in kills:
        if killed.flow.state not in ENDS:
            run(killed, writes=writes)
    if killed.flow.state not in ENDS:
        run(killed)
    assert (killed.flow.state, killed.states()) == (undisturbed.flow.state, undisturbed.states())


@given(random_flows(), st.integers(0, 40))
def test_a_stored_success_is_not_executed_again(random_flow: RandomFlow, writes: int) -> None:
    kept = StoredFlow(random_flow)
    if run(kept, writes=writes):
        return
    done = {(name, row.round) for name, row in kept.steps.items() if row.state == "SUCCESS"}
    kept.executed.clear()
    run(kept)
    assert not done & set(kept.executed)


@given(random_flows())
def test_the_counters_agree_with_a_walk_through_the_graph(random_flow: RandomFlow) -> None:
    run(StoredFlow(random_flow), watch=_check_counters)


def _check_counters(scheduler: Scheduler) -> None:
    for node in scheduler.nodes:
        assert node.done == all(_is_done(each) for each in [node, *_all(node, "predecessors")])
        assert node.reverted == all(_is_still(each) for each in [node, *_all(node, "successors")])


def _all(node: NodeState, direction: str) -> list[NodeState]:
    found: dict[int, NodeState] = {}
    ways = [node]
    while ways:
        for each in getattr(ways.pop(), direction):
            if each.number not in found:
                found[each.number] = each
                ways.append(each)
    return list(found.values())


def _is_done(node: NodeState) -> bool:
    return node.step is None or (node.state in {"SUCCESS", "IGNORE"} and node.intention in {"EXECUTE", "IGNORE"})


def _is_still(node: NodeState) -> bool:
    return node.step is None or node.state in {"PENDING", "REVERTED", "IGNORE"}


@given(random_flows())
def test_precedence_by_scope_agrees_with_the_graph(random_flow: RandomFlow) -> None:
    nodes = compile_flow(random_flow.flow).nodes
    for node in nodes:
        assert all(number < node.number for number in node.predecessors)
    before: dict[int, set[int]] = {}
    for node in nodes:
        before[node.number] = {one for each in node.predecessors for one in (each, *before[each])}
    steps = [node for node in nodes if node.step is not None]
    for one in steps:
        for other in steps:
            placed = one is not other and precedes((one.scope, one.place), (other.scope, other.place))
            assert placed == (one.number in before[other.number])


@pytest.mark.parametrize(
    ("loaded", "becomes"),
    [
        ("PENDING", []),
        ("SUCCESS", []),
        ("FAILURE", []),
        ("SUSPENDED", []),
        ("RUNNING", ["RESUMING", "SUSPENDED"]),
        ("SUSPENDING", ["RESUMING", "SUSPENDED"]),
        ("RESUMING", ["SUSPENDED"]),
        ("REVERTED", ["PENDING"]),
    ],
)
def test_prepare_moves_a_loaded_flow_to_a_state_that_can_run(loaded: str, becomes: list[str]) -> None:
    scheduler = scheduler_in(loaded)
    scheduler.prepare()
    batch = scheduler.work.drain()
    assert [change.new for change in (batch.changes if batch else []) if change.kind == "flow"] == becomes
    scheduler.begin()
    assert scheduler.state == "RUNNING"


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDING", "SUSPENDED", "RESUMING"])
def test_a_flow_that_has_not_ended_cannot_be_reset(state: str) -> None:
    with pytest.raises(InvalidState, match=f"is {state} and cannot be reset"):
        scheduler_in(state).reset()


def test_a_move_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidState, match="cannot go from SUCCESS to FAILURE; legal: PENDING, RUNNING"):
        scheduler_in("SUCCESS").work.move_flow(FlowState.FAILURE)


def test_a_step_that_could_not_be_undone_provides_nothing() -> None:
    undone = Failure("RuntimeError", "gotcha")
    plan = compile_flow(linear("f", task(lambda: 1, name="a").revert(lambda: None), task(lambda: 1, name="b")))
    scheduler = Scheduler(plan, Snapshot(FlowRow("id", "f", epoch=1), {}), JSON(), Options())
    scheduler.begin()
    scheduler.resume()
    woot = Failure("RuntimeError", "woot")
    outcomes: Iterator[StepResult | Failure] = iter([StepResult("1", 1), woot, StepResult("null", None), undone])
    while scheduler.may_schedule:
        (call,) = scheduler.schedule(None)
        scheduler.finish(call, next(outcomes))
        scheduler.find_ready()
    assert scheduler.end() == "FAILURE"
    assert scheduler.failures()["b"].message == "woot"
    assert scheduler.values.provided() == {}


def scheduler_in(state: str) -> Scheduler:
    plan = compile_flow(linear("f", task(lambda: None, name="a")))
    return Scheduler(plan, Snapshot(FlowRow("id", "f", state, epoch=1), {}), JSON(), Options())
