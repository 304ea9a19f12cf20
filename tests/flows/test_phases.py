"""What belongs to one phase of the engine is looked at, written and told together."""

from __future__ import annotations

import pytest

from lifecycle.flows import Flows, Run, linear, task, unordered


async def woot() -> None:
    raise RuntimeError("woot")


async def gotcha() -> None:
    raise RuntimeError("gotcha")


async def failed(run: Run, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        await run


async def states(run: Run) -> list[str]:
    return [state.value async for state in run.states()]


async def test_who_has_nothing_to_undo_does_not_make_a_phase_of_his_own(flows: Flows) -> None:
    async def undo() -> None: ...

    async def one() -> int:
        return 1

    items = [task(one, name="a"), task(one, name="b").revert(undo), task(woot, name="c")]
    run = flows.start(unordered("f", *items))
    phases = ["SCHEDULING", "WAITING", "ANALYZING"]
    assert await states(run) == ["RESUMING", *phases, *phases, "REVERTED"]
    await failed(run, "woot")


async def test_what_could_not_be_undone_is_not_provided(flows: Flows) -> None:
    flow = linear("f", task(lambda: 1, name="a").revert(gotcha), task(woot, name="b"))
    run = flows.start(flow, id="one")
    await failed(run, "gotcha")
    assert run.steps["a"].state == "REVERT_FAILURE"
    assert run._engine is not None
    assert run._engine.scheduler.values.provided() == {}
