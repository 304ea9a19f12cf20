"""Looking up flows by id in the store: snapshots, and the outcomes of flows that any process runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle._async import wait_within
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError
from lifecycle.flows.records import FAILURE, Failure, FlowInfo, Snapshot
from lifecycle.flows.states import ENDS, FlowState
from lifecycle.flows.stores.base import cancelled, unknown
from lifecycle.flows.stores.presence import AT_REST, FOLLOW, GONE, end_of_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.flows.records import FlowRow, StepRow
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["failure_of", "flow_info", "outcome", "wait_for_end"]

#: Seconds between checks of a flow. Usually, a message arrives before the next check.
_POLLING = Backoff(initial=0.1, maximum=5.0)


def flow_info(row: FlowRow, codec: Codec, *, error: str = "") -> FlowInfo:
    """Return a record of the flow stored in ``row``, with ``error`` unless the row contains an error."""
    return FlowInfo(
        id=row.id,
        name=row.name,
        kind=row.kind,
        state=FlowState(row.state),
        result=None if row.result is None else codec.decode(row.result),
        error=row.error or error,
        created=row.created,
        changed=row.at,
        due=row.due,
        parent=row.parent,
    )


def failure_of(flow: FlowRow, steps: Mapping[str, StepRow]) -> str:
    """Return the text of the error that made the flow fail, or an empty string."""
    failed = _failed(steps) if flow.state in (FlowState.FAILURE, FlowState.REVERTED) else None
    return "" if failed is None else str(failed[1])


def _failed(steps: Mapping[str, StepRow]) -> tuple[str, Failure] | None:
    """Return the name and the failure of the first failed step. Errors of workflows and of reverts come first."""
    if (row := steps.get(FAILURE)) is not None and row.kind == "undo" and row.failure is not None:
        return row.name, Failure.decode(row.failure)
    for text in ("revert_failure", "failure"):
        for row in steps.values():
            if (found := getattr(row, text)) is not None:
                return row.name, Failure.decode(found)
    return None


async def wait_for_end(store: Store, presence: Presence, id: str) -> Snapshot:  # noqa: A002  # the natural name
    """Wait until the flow with this id has ended in any process, and return the flow and its steps.

    Raises:
        FlowError: if there is neither a flow nor a job with that id.
    """
    news, tries = asyncio.Event(), 0
    silences = [presence.listen(each, news.set) for each in (f"{AT_REST} {id}", end_of_job(id), GONE)]
    try:
        while True:
            news.clear()
            row = await store.get(id)
            # A job may begin and end between the first two questions.
            if row is None and not await store.jobs(presence).unfinished([id]) and (row := await store.get(id)) is None:
                raise unknown(id)
            if row is not None and row.state in ENDS:
                return await store.load(id)
            presence.notify(f"{FOLLOW} {id}")
            await wait_within(_POLLING.delay(tries), news)
            tries += 1
    finally:
        for silence in silences:
            silence()


def outcome(flow: FlowRow, steps: Mapping[str, StepRow], codec: Codec) -> Any:
    """Return the result of a workflow that has ended.

    Raises:
        FlowError: if the flow did not succeed, or if it is not a workflow.
    """
    if flow.state == FlowState.CANCELLED:
        raise cancelled(flow.id)
    if flow.state != FlowState.SUCCESS:
        failed = _failed(steps)
        if failed is not None and (flow.kind == "workflow" or not flow.error):
            raise failed[1].exception(flow.name if failed[0] == FAILURE else failed[0])
        raise FlowError(f"{flow.kind} {flow.id!r} is {flow.state}: {flow.error or 'the error is unknown'}")
    if flow.kind != "workflow":
        raise FlowError(
            f"the results of flow {flow.id!r} cannot be read without its definition; call Flows.start with the flow"
            f" {flow.name!r} and this id"
        )
    return None if flow.result is None else codec.decode(flow.result)
