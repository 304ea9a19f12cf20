"""Beginning anew with a flow that has failed, where its program does not do so: in the store alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lifecycle.errors import InvalidState
from lifecycle.flows.records import Batch, Change
from lifecycle.flows.states import FLOWS, FlowState

if TYPE_CHECKING:
    from lifecycle.flows.records import StepRow
    from lifecycle.flows.stores import Store

__all__ = ["RETRIED", "begin_anew"]

#: From where it can be done.
RETRIED = (FlowState.FAILURE, FlowState.REVERTED)


async def begin_anew(store: Store, id: str) -> None:  # noqa: A002  # what it is
    """Reset the flow ``id``, so that its program begins it anew when it starts the next time, or recovers.

    What its tasks gave is forgotten, as with `Run.reset`, not how often they were started. Who has the flow in memory
    has lost it by that.

    Raises:
        InvalidState: unless it is FAILURE or REVERTED.
        FlowError: where there is none of that id; ClaimLost where somebody was quicker.
    """
    seen = (await store.load(id)).flow
    state = FlowState(seen.state)
    if state not in RETRIED:
        raise InvalidState(f"flow {id!r} is {state}; only what has failed can begin anew: FAILURE or REVERTED")
    FLOWS.check(id, state, FlowState.PENDING, "reset")
    flow, steps = await store.take(id, "", seen=seen.epoch)
    now = time.time()
    moved = [row for row in steps.values() if row.state != "PENDING"]
    changes = [
        *(Change(row.kind, row.name, row.state, "PENDING", reason="reset", attempt=row.attempt) for row in moved),
        Change("flow", flow.name, state, FlowState.PENDING, reason="reset"),
    ]
    told = [each._replace(flow=id, seq=flow.seq + n, at=now) for n, each in enumerate(changes, 1)]
    rows = list(map(_cleared, steps.values()))
    await store.commit(Batch(id, flow.epoch, FlowState.PENDING, flow.seq + len(told), now, rows, told))


def _cleared(row: StepRow) -> StepRow:
    return type(row)(row.name, row.kind, attempt=row.attempt, round=row.round, undone=row.round)
