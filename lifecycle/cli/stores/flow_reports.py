"""What `lifecycle flows` shows: lists, all of one flow, diagrams; for people, and as JSON for programs."""

from __future__ import annotations

import json as js
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle._masking import HIDDEN, is_secret, masked, masked_values
from lifecycle.cli.failures import UsageError
from lifecycle.cli.listing import ago, columns, harmless, moment, short
from lifecycle.flows.patterns import Flow
from lifecycle.flows.records import Failure
from lifecycle.flows.tasks import Task
from lifecycle.flows.views import run_info, step_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from lifecycle.flows import Change, FlowRow, Snapshot, StepRow, Store
    from lifecycle.flows.records import RunInfo

__all__ = ["dead", "dead_as_json", "described", "in_order", "listed", "listed_as_json", "picture", "whole"]

#: Changes of a flow that a person is shown; JSON has all.
_LATEST = 20
_DEAD = ("kind", "id", "name", "attempts", "error")


async def whole(store: Store, id: str) -> AsyncIterator[Change]:  # noqa: A002  # what it is
    """All changes of a flow."""
    seq = 0
    while changes := await store.changes(id, after=seq):
        for change in changes:
            yield change
        seq = changes[-1].seq


def in_order(snapshot: Snapshot, changes: Sequence[Change]) -> Snapshot:
    """With the tasks in the order in which they began, first of all."""
    begun: dict[str, int] = {}
    for change in changes:
        begun.setdefault(change.name, change.seq)
    rows = sorted(snapshot.steps.values(), key=lambda row: begun.get(row.name, math.inf))
    return snapshot._replace(steps={row.name: row for row in rows})


# -- lists ---------------------------------------------------------------------------------------------------------


def listed(rows: Sequence[tuple[FlowRow, str]]) -> str:
    """A line a flow."""
    cells = [(row.id, row.name, row.state, ago(row.at) if row.at else "", runner) for row, runner in rows]
    return columns([("id", "flow", "state", "changed", "process"), *(tuple(map(harmless, row)) for row in cells)])


def listed_as_json(rows: Sequence[tuple[FlowRow, str]]) -> str:
    """The same for programs."""
    return _json([_record(row, runner) for row, runner in rows])


def dead(letters: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Format the dead letters, one per line: kind, id, name of the flow or topic, attempts and last error."""
    rows = [(kind, id, name, str(attempts), short(masked(error))) for kind, id, name, attempts, error in letters]  # noqa: A001  # what it is
    return columns([_DEAD, *(tuple(map(harmless, row)) for row in rows)])


def dead_as_json(letters: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Format the same for programs."""
    return _json([masked_values(dict(zip(_DEAD, letter, strict=True))) for letter in letters])


def _record(row: FlowRow, runner: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "flow": row.name,
        "state": row.state,
        "changed": row.at or None,
        "process": int(runner) if runner.isdecimal() else runner or None,
    }


def _json(value: object) -> str:
    return js.dumps(value, indent=2) + "\n"


# -- all of one flow -----------------------------------------------------------------------------------------------


def described(shown: Sequence[tuple[Snapshot, Sequence[Change], str]], *, json: bool) -> str:
    """All that is known of some flows."""
    if json:
        return _json([_all(*each) for each in shown])
    return "\n".join(_told(*each) for each in shown)


def _all(snapshot: Snapshot, changes: Sequence[Change], runner: str) -> dict[str, Any]:
    return _record(snapshot.flow, runner) | {
        "given": masked_values(_value(snapshot.flow.store)),
        "tasks": [_task(row) for row in snapshot.steps.values()],
        "changes": [
            {"seq": each.seq, "at": each.at, "kind": each.kind, "name": each.name, "old": each.old, "new": each.new}
            | {"reason": masked(each.reason), "attempt": each.attempt}
            for each in changes
        ],
    }


def _task(row: StepRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "state": row.state,
        "intention": row.intention,
        "attempt": row.attempt,
        "result": masked_values(_value(row.result), row.name),
        "error": masked(step_view(row).error) or None,
    }


def _value(text: str | None) -> Any:
    """What a text of the store means, if it is JSON; else the text, which another codec wrote."""
    try:
        return None if text is None else js.loads(text)
    except ValueError:
        return text


def _told(snapshot: Snapshot, changes: Sequence[Change], runner: str) -> str:
    flow = snapshot.flow
    known = [
        ("flow", flow.name),
        ("id", flow.id),
        ("state", flow.state),
        ("changed", f"{moment(flow.at)}, {ago(flow.at)} ago" if flow.at else "not yet"),
        ("process", runner or "none"),
        ("given", _given(flow.store)),
    ]
    text = "".join(f"{name:<10}{harmless(value)}\n" for name, value in known)
    steps = snapshot.steps.values()
    rows = [(row.name, row.kind, row.state, row.intention, str(row.attempt), _outcome(row)) for row in steps]
    heading = ("name", "kind", "state", "intention", "attempts", "result")
    text += "\n" + columns([heading, *(tuple(map(harmless, row)) for row in rows)])
    return text + _history(changes)


def _given(text: str) -> str:
    given = _value(text)
    if not isinstance(given, dict):
        return short(masked(str(text)))
    return short(js.dumps(masked_values(cast("dict[str, object]", given))))


def _outcome(row: StepRow) -> str:
    error = masked(step_view(row).error)
    if error or row.result is None:
        return short(error)
    return HIDDEN if is_secret(row.name) else short(_result(row.result))


def _result(text: str) -> str:
    value = _value(text)
    return masked(text) if value is text else js.dumps(masked_values(value), separators=(",", ":"))


def _history(changes: Sequence[Change]) -> str:
    if not changes:
        return ""
    rows = [(moment(each.at), each.name, each.old, each.new, _why(each)) for each in changes[-_LATEST:]]
    left = len(changes) - len(rows)
    text = f"\n({left} changes before these; --json has all)\n" if left else "\n"
    return text + columns([("at", "name", "from", "to", ""), *(tuple(map(harmless, row)) for row in rows)])


def _why(change: Change) -> str:
    if change.text is not None and change.new in ("FAILURE", "REVERT_FAILURE"):
        return short(masked(str(Failure.decode(change.text))))
    return masked(change.reason)


# -- diagrams ------------------------------------------------------------------------------------------------------


def picture(snapshots: Sequence[Snapshot], flow: str | None) -> str:
    """One flow with its tasks, as ``flow`` (MODULE:ATTRIBUTE) has them if it is given; several as a node each.

    Raises:
        UsageError: when there is no such flow, or it is another one than that of the file.
    """
    from lifecycle.observe import mermaid

    definition = None if flow is None else _definition(flow)
    infos = [_info(snapshot, definition) for snapshot in snapshots]
    return mermaid.flow(infos[0]) if len(infos) == 1 else mermaid.system(infos)


def _info(snapshot: Snapshot, definition: Flow | Task | None) -> RunInfo:
    views = {row.name: step_view(row) for row in snapshot.steps.values()}
    if definition is not None and definition.name != snapshot.flow.name:
        raise UsageError(f"{definition!r} is not the flow {snapshot.flow.name!r}; give that, or the id of another")
    return run_info(definition, snapshot.flow, views)


def _definition(target: str) -> Flow | Task:
    from lifecycle.cli.targets import find

    sys.path.insert(0, str(Path.cwd()))
    found = find(target, _is_flow)
    if not _is_flow(found):
        raise UsageError(f"{target} is {found!r}, which is no flow; give what linear, unordered, graph or task made")
    flow: Flow | Task = found
    return flow


def _is_flow(thing: object) -> bool:
    return isinstance(thing, (Flow, Task))
