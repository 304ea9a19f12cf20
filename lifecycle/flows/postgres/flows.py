"""How rows of flows stand in the tables of a PostgreSQL server, and how they come back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lifecycle.flows.postgres.connectors import sql
from lifecycle.flows.records import Change, FlowRow, Snapshot, StepRow

if TYPE_CHECKING:
    from lifecycle.flows.postgres.connectors import Row, Statement
    from lifecycle.flows.records import Batch

__all__ = ["CHANGE", "FLOW", "SNAPSHOT", "begin", "change_of", "printable", "snapshot_of", "write"]

#: The columns of a `FlowRow`.
FLOW = ", ".join(FlowRow._fields)
_STEP = ", ".join(StepRow._fields)
_VALUES = ", ".join(f"%({name})s" for name in FlowRow._fields)

_OF_F = ", ".join(f"f.{name}" for name in FlowRow._fields)
_OF_A = ", ".join(f"a.{name}" for name in StepRow._fields)
#: What `snapshot_of` reads, of a flow that is called ``f``.
SNAPSHOT = f"""{_OF_F}, (
    SELECT coalesce(json_agg(json_build_array({_OF_A}) ORDER BY a.name), '[]')
    FROM lifecycle_flow_atoms a WHERE a.flow = f.id)"""  # noqa: S608  # our own columns

_WHOLE, _REAL = "integer", "float8"
_NUMBERS = {
    **dict.fromkeys(("attempt", "round", "undone"), _WHOLE),
    **dict.fromkeys(("due", "at"), _REAL),
    "seq": "bigint",
}
_CHANGE = ("seq", "at", "kind", "name", "old", "new", "reason", "attempt", "result")
_SENT = ("id", "topic", "data")


def _typed(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {_NUMBERS.get(name, 'text')}" for name in names)


_BEGIN = f"INSERT INTO lifecycle_flows ({FLOW}, stamp) VALUES ({_VALUES}, %(stamp)s) ON CONFLICT DO NOTHING RETURNING 1"  # noqa: S608  # our own columns
# A flow that was taken since has another epoch; and what is sent a second time, and comes after the first, or after
# what was written since, has an older stamp.
_HELD = """
UPDATE lifecycle_flows SET state = %(state)s, seq = greatest(seq, %(seq)s), error = %(error)s, stamp = %(stamp)s,
    at = CASE WHEN state = %(state)s THEN at ELSE %(at)s END, store = coalesce(%(store)s::text, store)
WHERE id = %(flow)s AND epoch = %(epoch)s AND stamp < %(stamp)s RETURNING id
"""
_STEPS = f"""
INSERT INTO lifecycle_flow_atoms (flow, {_STEP}) SELECT held.id, a.* FROM held,
    json_to_recordset(%(steps)s::json) AS a ({_typed(StepRow._fields)})
ON CONFLICT (flow, name) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in StepRow._fields[1:])}
"""  # noqa: S608  # our own columns
_CHANGES = f"""
INSERT INTO lifecycle_flow_changes (flow, {", ".join(_CHANGE)}) SELECT held.id, c.* FROM held,
    json_to_recordset(%(changes)s::json) AS c ({_typed(_CHANGE)})
"""  # noqa: S608  # the same
_SEND = f"""
INSERT INTO lifecycle_outbox (id, topic, data, until) SELECT s.*, 0 FROM held,
    json_to_recordset(%(sent)s::json) AS s ({_typed(_SENT)})
"""  # noqa: S608  # the same
_WRITE = f"WITH held AS ({_HELD}), steps AS ({_STEPS}), changes AS ({_CHANGES}) SELECT 1 FROM held"  # noqa: S608  # the same
_WRITE_AND_SEND = _WRITE.replace(") SELECT 1", f"), sent AS ({_SEND}) SELECT 1")
_TAKE_BACK = "DELETE FROM lifecycle_flow_changes c USING held WHERE c.flow = held.id AND c.seq >= %(taken_back)s"


def begin(flow: FlowRow, stamp: int) -> Statement:
    """Keeps a flow that is new; gives a row if it was."""
    return sql(_BEGIN, **flow._asdict(), stamp=stamp)


def write(batch: Batch, stamp: int) -> Statement:
    """Writes ``batch``; gives a row if the flow is still that of who writes."""
    values: dict[str, Any] = {
        name: getattr(batch, name) for name in ("flow", "epoch", "state", "seq", "at", "store", "error")
    }
    values["error"] = printable(batch.error)
    values["steps"] = json.dumps([row._asdict() for row in batch.steps])
    values["changes"] = json.dumps([_told(change) for change in batch.changes])
    text = _WRITE
    if batch.sent:
        text, values["sent"] = _WRITE_AND_SEND, json.dumps([row._asdict() for row in batch.sent])
    if batch.taken_back:
        text = text.replace(") SELECT 1", f"), gone AS ({_TAKE_BACK}) SELECT 1")
        values["taken_back"] = batch.taken_back
    return sql(text, **values, stamp=stamp)


def _told(change: Change) -> dict[str, Any]:
    row = {name: getattr(change, name) for name in _CHANGE[:-1]}
    return row | {"result": change.text}


def snapshot_of(row: Row) -> Snapshot:
    """What `SNAPSHOT` gave."""
    *flow, steps = row
    rows = [StepRow._make(step) for step in steps]
    return Snapshot(FlowRow._make(flow), {step.name: step for step in rows})


#: What `change_of` reads.
CHANGE = "kind, name, old, new, NULL, reason, attempt, flow, seq, at, result"


def change_of(row: Row) -> Change:
    """What `CHANGE` gave."""
    return Change._make(row)


def printable(text: str) -> str:
    """An error's words as PostgreSQL can keep them; what it cannot is escaped."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
