"""Queries and commands for the flows and workflows in the stores that a program has open.

A workflow that waits has no run in memory, so the store is read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lifecycle._masking import Limits, masked, masked_values
from lifecycle._steering.answers import refused, reply
from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.events import CommandEvent
    from lifecycle.flows import Flows
    from lifecycle.flows.records import FlowInfo, FlowRow, StepRow

__all__ = ["control_flows", "flow_details", "list_flows"]

#: The usage of the command.
_USAGE = "usage: flows cancel ID, flows signal ID NAME [JSON], or flows retry ID [STEP]"

#: The maximum number of steps, and of the latest changes that are read for their times.
_STEPS, _CHANGES = 500, 2000

#: The limits for each result.
_LIMITS = Limits(depth=8, text=2000, items=100, values=500)


def _opened(components: Iterable[object]) -> list[Flows]:
    from lifecycle.flows import Flows  # most programs have none

    return [each for each in components if isinstance(each, Flows)]


async def list_flows(components: Iterable[object], state: str, limit: int) -> list[dict[str, Any]]:
    """Return the stored flows in this state, newest first for each store.

    Raises:
        ValueError: if the state is unknown, or the limit is below 1.
    """
    found = [info for flows in _opened(components) for info in await flows.list(state=state, limit=limit)]
    return [_masked(info) for info in found[:limit]]


async def flow_details(components: Iterable[object], id: str) -> dict[str, Any]:  # noqa: A002  # the natural name
    """Return a stored flow with its steps in order, and the names of the signals that it has not received yet.

    Raises:
        FlowError: if no open store has a flow with this id.
    """
    from lifecycle.flows.lookup import failure_of, flow_info

    flows, _ = await _find(components, id)
    flow, steps, _ = await flows.store.load(id)
    info = flow_info(flow, flows.codec, error=failure_of(flow, steps))
    times = await _times(flows, flow)
    signals = [row.name for row in await flows.store.signals(id) if not row.taken]
    shown = [_step(flows, row, times.get(row.name)) for row in _in_order(steps.values())[-_STEPS:]]
    return _masked(info) | {"steps": shown, "signals": list(map(masked, signals))}


async def _find(components: Iterable[object], id: str) -> tuple[Flows, FlowRow]:  # noqa: A002  # the natural name
    for flows in _opened(components):
        if (row := await flows.store.get(id)) is not None:
            return flows, row
    raise FlowError(f"no open store has a flow with the id {id!r}")


def _masked(info: FlowInfo) -> dict[str, Any]:
    # Commands need the ids as they are.
    shown: dict[str, Any] = masked_values(info, limits=_LIMITS)
    return shown | {"id": info.id, "parent": info.parent, "status": masked(info.status)}


def _in_order(rows: Iterable[StepRow]) -> list[StepRow]:
    from lifecycle.flows.records import FAILURE
    from lifecycle.flows.workflow_log import order

    return sorted((row for row in rows if row.name != FAILURE), key=lambda row: order(row.name))


async def _times(flows: Flows, row: FlowRow) -> dict[str, float]:
    """Return the times of the steps' latest changes."""
    seq, times = max(0, row.seq - _CHANGES), dict[str, float]()
    while changes := await flows.store.changes(row.id, after=seq):
        times |= {each.name: each.at for each in changes}
        seq = changes[-1].seq
    return times


def _step(flows: Flows, row: StepRow, at: float | None) -> dict[str, Any]:
    from lifecycle.flows.records import Failure

    failed = row.revert_failure or row.failure
    result = None if row.result is None else flows.codec.decode(row.result)
    return {
        "name": masked(row.name),
        "kind": row.kind,
        "state": row.state,
        "attempt": row.attempt,
        "at": at,
        "due": row.due,
        "result": masked_values(result, row.name.rpartition(" ")[2], limits=_LIMITS),
        "error": masked(str(Failure.decode(failed))) if failed else "",
        "child": row.history if row.kind == "child" else None,
    }


# -- commands ----------------------------------------------------------------------------------------------------------


async def control_flows(components: Iterable[object], event: CommandEvent) -> None:
    """Cancel a workflow, send it a signal, or run a failed one again, and reply with the outcome."""
    action = _ACTIONS.get(event.args[0] if event.args else "")
    if action is None or not 2 <= len(event.args) <= 4:  # noqa: PLR2004  # the words of the command
        raise refused(_USAGE)
    try:
        flows, row = await _find(components, event.args[1])
        reply(await action(flows, row, event.args[2:]))
    except (FlowError, ValueError) as error:
        raise refused(str(error)) from None


async def _cancel(flows: Flows, row: FlowRow, words: Sequence[str]) -> str:
    if words:
        raise ValueError(_USAGE)
    await flows.cancel(row.id)
    return f"stored the cancellation of {row.id}"


async def _signal(flows: Flows, row: FlowRow, words: Sequence[str]) -> str:
    if not words:
        raise ValueError(_USAGE)
    name, text = words[0], words[1] if words[1:] else "null"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{masked(text)!r} is not JSON: {error}") from None
    await flows.signal(row.id, name, data)
    return f"stored the signal {name} for {row.id}"


async def _retry(flows: Flows, row: FlowRow, words: Sequence[str]) -> str:
    from lifecycle.flows.client import registry_of
    from lifecycle.flows.stores.base import has_complete_job, of_complete_job, reset_failed
    from lifecycle.flows.stores.presence import RECOVER

    if words[1:]:
        raise ValueError(_USAGE)
    if await has_complete_job(flows.store, flows.presence, row):
        raise of_complete_job(row.id)
    await reset_failed(flows.store, row.id, *words)
    registry_of(flows).recover_known()
    if row.owner not in ("", flows.presence.token):
        flows.requests.ask(RECOVER, row.owner)
    return f"{row.id} runs again"


_ACTIONS = {"cancel": _cancel, "signal": _signal, "retry": _retry}
