"""Checks a flow's stored changes against the transition tables, from the first change to the last."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lifecycle.flows.states import FLOWS, RETRIES, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lifecycle.flows import Change

__all__ = ["illegal"]

_TABLES: dict[str, Any] = {"flow": FLOWS, "task": TASKS, "retry": RETRIES}


def illegal(changes: Sequence[Change], *, continuous: bool = True) -> Iterator[str]:
    """Yield changes that the tables do not allow. If ``continuous``, also yield changes whose old state is wrong."""
    now: dict[tuple[str, str], str] = defaultdict(lambda: "PENDING")
    for change in changes:
        key = change.kind, change.name
        old, now[key] = now[key], change.new
        if continuous and old != change.old:
            yield f"{change} has a wrong old state: it was {old}"
        if change.old == change.new and change.reason == "restarted":
            continue
        table = _TABLES[change.kind]
        states = type(table.initial)
        try:
            legal = table.check(change.name, states(change.old), states(change.new), change.reason)
        except Exception as error:  # noqa: BLE001  # the caller looks for any error
            yield str(error)
        else:
            if not legal:
                yield f"{change} should have been ignored"
