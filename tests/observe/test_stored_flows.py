"""Stored workflows in the control API: their steps, and the commands that signal, cancel and retry them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import FlowCancelled, FlowError, StepFailed
from lifecycle.flows import Flows, JobQueue, child, sleep, step, wait_for, workflow
from lifecycle.observe import PrometheusMetrics, Verdict, nodes, snapshot
from tests.observe.test_prometheus import value
from tests.observe.test_steering import steered
from tests.waiting import until

if TYPE_CHECKING:
    from lifecycle.flows import Run
    from lifecycle.observe import Console

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = pytest.mark.keeps_tasks


async def login(password: str) -> dict[str, str]:
    return {"user": "ada", "password": password}


@workflow
async def approval(amount: int) -> Any:
    """Wait for an answer."""
    await step(login, "hunter2")
    return [amount, await wait_for("answer")]


async def parked(run: Run[Any]) -> None:
    await until(lambda: run.parked)


async def test_a_workflow_that_waits_is_listed_and_has_its_steps_without_secrets() -> None:
    async with steered() as (_, console), Flows() as flows:
        run = flows.start(approval, 7, id="o-1")
        await parked(run)
        await flows.signal("o-1", "other", "token=hunter2")
        await until(lambda: run.parked)
        (listed,) = await console.flows()
        shown = await console.flow("o-1")
    assert (listed["id"], listed["name"], listed["kind"], listed["state"]) == ("o-1", "approval", "workflow", "WAITING")
    assert [(each["name"], each["kind"], each["state"]) for each in shown["steps"]] == [
        ("1 login", "step", "SUCCESS"),
        ("2 answer", "wait", "RUNNING"),
    ]
    assert shown["steps"][0]["result"] == {"user": "ada", "password": "***"}
    assert shown["steps"][0]["attempt"] == 1
    assert shown["steps"][0]["at"] >= listed["created"]
    assert shown["signals"] == ["other"]
    assert "hunter2" not in json.dumps(shown)


async def test_a_child_is_linked_and_a_timer_is_due() -> None:
    @workflow
    async def nap() -> None:
        await sleep(3600)

    @workflow
    async def parent() -> None:
        await child(nap)

    async with steered() as (_, console), Flows() as flows:
        await parked(flows.start(parent, id="p"))
        (row,) = (await console.flow("p"))["steps"]
        below = await console.flow(row["child"])
    assert row["kind"] == "child"
    assert below["parent"] == "p"
    assert below["steps"][0]["due"] == below["due"] > below["created"]


async def test_a_signal_continues_a_workflow() -> None:
    async with steered() as (_, console), Flows() as flows:
        run = flows.start(approval, 7, id="o-1")
        await parked(run)
        outcome = await console.command("""flows signal o-1 answer '{"yes": [1, "a b"]}'""")
        assert await run == [7, {"yes": [1, "a b"]}]
    assert (outcome.outcome, outcome.answer) == (Verdict.HANDLED, "stored the signal answer for o-1")


async def test_a_cancellation_ends_a_workflow() -> None:
    async with steered() as (_, console), Flows() as flows:
        run = flows.start(approval, 7, id="o-1")
        await parked(run)
        outcome = await console.command("flows cancel o-1")
        with pytest.raises(FlowCancelled):
            await run
        late = await console.command("flows signal o-1 answer")
    assert outcome.outcome is Verdict.HANDLED
    assert late.outcome is Verdict.DROPPED
    assert "has ended as CANCELLED" in str(late.error)


async def test_a_failed_workflow_is_retried_from_a_step() -> None:
    calls: list[str] = []

    async def first() -> None:
        calls.append("first")

    async def second() -> None:
        calls.append("second")

    async def third() -> None:
        calls.append("third")
        if calls.count("third") == 1:
            raise OSError("no network")

    @workflow
    async def order() -> str:
        for each in (first, second, third):
            await step(each)
        return "done"

    async with steered() as (_, console), Flows() as flows:
        with pytest.raises(StepFailed, match="no network"):
            await flows.start(order, id="o-1")
        (failed,) = await console.flows("FAILURE")
        shown = await console.flow("o-1")
        outcome = await console.command("flows retry o-1 2")
        await until(lambda: len(calls) == 5)
        await until(lambda: not flows.runs)
        assert (await flows.get("o-1")).result == "done"
    assert failed["id"] == "o-1"
    assert shown["steps"][2]["error"] == "OSError: no network"
    assert outcome.outcome is Verdict.HANDLED, outcome
    assert calls == ["first", "second", "third", "second", "third"]


async def test_the_workflow_of_a_complete_job_is_not_retried() -> None:
    @workflow
    async def order() -> None:
        raise OSError("no network")

    async with steered() as (_, console), Flows() as flows:
        queue = JobQueue(flows)
        job = await queue.enqueue("order", id="o-1")
        working = asyncio.create_task(queue.work({"order": order}))
        assert await job == "FAILURE"
        working.cancel()
        await asyncio.wait([working])
        outcome = await console.command("flows retry o-1")
    assert outcome.outcome is Verdict.DROPPED
    assert "belongs to a complete job" in str(outcome.error)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("flows", "usage: flows cancel ID"),
        ("flows drop o-1", "usage: flows cancel ID"),
        ("flows cancel", "usage: flows cancel ID"),
        ("flows cancel o-1 o-2", "usage: flows cancel ID"),
        ("flows signal o-1", "usage: flows cancel ID"),
        ("flows signal o-1 answer {", "is not JSON"),
        ("flows signal o-1 lifecycle.cancel", "must not be empty or begin with"),
        ("flows signal nothing answer", "no open store has a flow with the id 'nothing'"),
        ("flows retry o-1", "WAITING"),
    ],
)
async def test_a_refused_command_says_the_reason_and_changes_nothing(line: str, said: str) -> None:
    async with steered() as (_, console), Flows() as flows:
        await parked(flows.start(approval, 7, id="o-1"))
        outcome = await console.command(line)
        assert (await flows.get("o-1")).state == "WAITING"
        assert (await console.flow("o-1"))["signals"] == []
    assert outcome.outcome is Verdict.DROPPED
    assert said in str(outcome.error)


async def test_a_program_without_flows_has_none() -> None:
    async def ask(console: Console) -> None:
        assert await console.flows() == []
        with pytest.raises(FlowError, match="no open store"):
            await console.flow("o-1")

    async with steered() as (_, console):
        await asyncio.wait_for(ask(console), 30)


async def test_a_workflow_that_does_not_match_the_code_is_listed_as_stopped() -> None:
    @workflow(name="approval")
    async def changed(amount: int) -> Any:
        return [await wait_for("answer"), amount]

    async with steered() as (_, console), Flows() as flows, PrometheusMetrics() as metrics:
        run = flows.start(approval, 7, id="o-1")
        await parked(run)
        await flows.recover(changed)
        await flows.signal("o-1", "answer", "yes")
        await until(lambda: flows.runs and flows.runs[0].stopped)
        (listed,) = await console.flows()
        assert (listed["state"], listed["status"]) == ("WAITING", "STOPPED (WorkflowChanged)")
        assert "no longer matches the records of 'o-1'" in listed["error"]
        assert value(metrics, "lifecycle_flows", flow="approval", state="STOPPED (WorkflowChanged)") == 1
        assert nodes(snapshot(flows))["flow:o-1"]["status"] == "STOPPED (WorkflowChanged)"
