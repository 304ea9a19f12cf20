"""How much is written at once: the end of a task and the beginning of the next, unless somebody may step in between."""

from __future__ import annotations

from typing import Any

from lifecycle import hooks
from lifecycle.flows import Batch, Change, Flow, Flows, MemoryStore, Run, linear, task


class Noting(MemoryStore):
    """A store that notes what was written together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def commit(self, batch: Batch) -> None:
        if batch.changes:
            self.batches.append([f"{each.name} {each.new}" for each in batch.changes])
        await super().commit(batch)


def two() -> Flow:
    return linear("f", *[task(lambda: 1, name=name) for name in "ab"])


async def test_the_end_of_a_task_is_written_with_the_beginning_of_the_next() -> None:
    async with Flows(store=(store := Noting())) as flows:
        await flows.start(two())
    assert store.batches == [["f RUNNING"], ["a RUNNING"], ["a SUCCESS", "b RUNNING"], ["b SUCCESS"], ["f SUCCESS"]]


async def test_who_is_told_of_the_end_of_a_task_can_suspend_the_flow_before_the_next_begins() -> None:
    def told(run: Run, *, change: Change) -> None:
        if (change.name, change.new) == ("a", "SUCCESS"):
            run.suspend()

    async with Flows(store=(store := Noting())) as flows:
        with hooks.flow_changed.connected_to(told):
            run = flows.start(two())
            assert [state.value async for state in run.states()][-1] == "SUSPENDED"
            await flows.suspend()
        assert (run.state, run.atoms["b"].attempt) == ("SUSPENDED", 0)
    assert store.batches[2] == ["a SUCCESS"]


async def test_a_receiver_of_states_sees_each_as_it_is_stored() -> None:
    async with Flows(store=(store := Noting())) as flows:

        def told(_: Any, **_arguments: Any) -> None: ...

        with hooks.state_changed.connected_to(told):
            await flows.start(two())
    assert ["a SUCCESS"] in store.batches
    assert ["b RUNNING"] in store.batches
