"""`lifecycle flows`: what a file or a server of flows holds, and requests to the processes that run them."""

from __future__ import annotations

import asyncio
import json as js
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle._masking import HIDDEN, is_secret, masked, masked_values
from lifecycle._text import plural, printable, shorten
from lifecycle.cli.files import check_file
from lifecycle.cli.output import (
    DONE,
    FAILED,
    CliError,
    UsageError,
    ago,
    columns,
    local_time,
    print_result,
    stderr_console,
)
from lifecycle.errors import FlowError, JournalError
from lifecycle.flows import Flows
from lifecycle.flows.definition import Flow, Task
from lifecycle.flows.outboxes import SENT
from lifecycle.flows.postgres import PostgresStore
from lifecycle.flows.records import Failure
from lifecycle.flows.requests import RECOVER, RESUME, SUSPEND
from lifecycle.flows.resets import RETRIED, begin_anew
from lifecycle.flows.sqlite.flows import FLOW_TABLES
from lifecycle.flows.states import ENDS, FlowState, JobState
from lifecycle.flows.stores import clock_of
from lifecycle.flows.views import run_info, step_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from lifecycle.flows import Change, FlowRow, Snapshot, StepRow, Store
    from lifecycle.flows.records import RunInfo

__all__ = ["flows"]

_RUNS = (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING)

#: Changes of a flow that a person is shown; JSON has all.
_LATEST = 20
_DEAD = ("kind", "id", "name", "attempts", "error")


def flows(verb: str, place: Path | str, ids: Sequence[str], *, json: bool = False, flow: str | None = None) -> int:
    """Carry out ``verb`` on the flows with these ids, or on all that it applies to; ``flow`` is MODULE:ATTRIBUTE.

    Raises:
        UsageError: for a file, or the URL of a server, that holds no flows.
        CliError: for a flow that is not there, or a file or a server that cannot be read.
    """
    if not isinstance(place, str):
        check_file(place, FLOW_TABLES, lacks="holds no flows", given_to="Flows")
    try:
        chosen = _Selection(Flows(place), ids, json=json, flow=flow)
        return asyncio.run(_carry_out(COMMANDS[verb], chosen))
    except (JournalError, FlowError, OSError) as error:
        raise CliError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


class _Selection:
    """The flows that a verb is about, and how to tell of them."""

    def __init__(self, flows: Flows, ids: Sequence[str], *, json: bool, flow: str | None) -> None:
        self.flows, self.ids, self.json, self.flow = flows, ids, json, flow

    async def rows(self) -> list[FlowRow]:
        """The flows that are meant; each is there."""
        rows = await self.flows.store.flows()
        if not self.ids:
            return rows
        known = {row.id: row for row in rows}
        if missing := [each for each in self.ids if each not in known]:
            raise CliError(f"there is no flow {missing[0]!r}; `lifecycle flows list` shows those that are there")
        return [known[each] for each in dict.fromkeys(self.ids)]

    async def runner(self, row: FlowRow) -> str:
        """The process that has the flow and lives, by its host, if there are several, and its number; or nothing."""
        lives = row.owner and row.state not in ENDS and await self.flows.owners.lives(row.owner)
        return _process_of(row.owner) if lives else ""

    def ring(self, what: str, whom: Iterable[str]) -> None:
        """Ask each of ``whom`` for ``what``."""
        self.flows.owners.open()
        try:
            for each in whom:
                self.flows.requests.ask(what, each)
        finally:
            self.flows.owners.close()


def _process_of(owner: str) -> str:
    return owner.rpartition("-")[0]


async def _carry_out(verb: Callable[[_Selection], Awaitable[int]], chosen: _Selection) -> int:
    store = chosen.flows.store
    if isinstance(store, PostgresStore) and not await store.holds_flows():
        raise UsageError(f"{store!r} holds no flows; give the URL that Flows(…) was given")
    async with store:
        return await verb(chosen)


# -- the verbs -----------------------------------------------------------------------------------------------------


async def _list(chosen: _Selection) -> int:
    """A line a flow, the oldest first."""
    rows = [(row, await chosen.runner(row)) for row in await chosen.rows()]
    if rows or chosen.json:
        print_result(sys.stdout, listed_as_json(rows) if chosen.json else listed(rows))
    else:
        stderr_console().info("there are no flows")
    return DONE


async def _show(chosen: _Selection) -> int:
    """All that is known of each."""
    shown = [(*await _read(chosen, row.id), await chosen.runner(row)) for row in await chosen.rows()]
    print_result(sys.stdout, described(shown, json=chosen.json))
    return DONE


async def _diagram(chosen: _Selection) -> int:
    """One flow with its tasks, or of several each as a node, for Mermaid."""
    snapshots = [(await _read(chosen, row.id))[0] for row in await chosen.rows()]
    print_result(sys.stdout, picture(snapshots, chosen.flow))
    return DONE


async def _read(chosen: _Selection, flow: str) -> tuple[Snapshot, list[Change]]:
    """A flow, with its tasks in the order in which they began, and all its changes."""
    changes = [change async for change in whole(chosen.flows.store, flow)]
    return in_order(await chosen.flows.store.load(flow), changes), changes


async def _suspend(chosen: _Selection) -> int:
    """Ask who runs them to begin nothing more; what is at work ends first."""
    asked = await _ask(chosen, SUSPEND, _RUNS)
    left = [row for row in await chosen.rows() if row.state in _RUNS and row.id not in asked]
    for row in left:
        stderr_console().info(
            f"{row.id} is not running: it is {row.state}, and its program goes on with it when it starts"
        )
    if not asked and not left:
        stderr_console().info("there is nothing to suspend")
    return DONE


async def _resume(chosen: _Selection) -> int:
    """Ask who has them to go on."""
    asked = await _ask(chosen, RESUME, (FlowState.SUSPENDED,))
    others = [row for row in await chosen.rows() if row.state not in ENDS and row.id not in asked]
    left = [row for row in others if not await chosen.runner(row)]
    for row in left:
        stderr_console().info(f"{row.id} is {row.state}, and nobody runs who could go on with it; start its program")
    if not asked and not left:
        stderr_console().info("there is nothing to resume")
    return FAILED if left else DONE


async def _ask(chosen: _Selection, what: str, states: Sequence[FlowState]) -> set[str]:
    """Ask for all that are in ``states`` and in somebody's hands; give their ids."""
    rows = await chosen.rows()
    if chosen.ids and (ended := [row for row in rows if row.state in ENDS]):
        raise CliError(f"flow {ended[0].id!r} is at its end: {ended[0].state}")
    meant = {row.id: runner for row in rows if row.state in states and (runner := await chosen.runner(row))}
    chosen.ring(what, meant)
    for each, runner in meant.items():
        stderr_console().info(f"process {runner} was asked to {what} {each}")
    return set(meant)


async def _retry(chosen: _Selection) -> int:
    """Begin anew with what failed: now if who carried it out lives, or when its program starts the next time."""
    rows = [row for row in await chosen.rows() if chosen.ids or row.state in RETRIED]
    living = {row.owner for row in rows if row.owner and await chosen.flows.owners.lives(row.owner)}
    for row in rows:
        await begin_anew(chosen.flows.store, row.id)
        when = f"by process {_process_of(row.owner)}" if row.owner in living else "when its program starts, or recovers"
        stderr_console().info(f"{row.id} was {row.state}, and is begun anew {when}")
    chosen.ring(RECOVER, living)
    if not rows:
        stderr_console().info("nothing has failed")
    return DONE


async def _dead(chosen: _Selection) -> int:
    """List the jobs and the sent events that were given up, the oldest first."""
    store, now = chosen.flows.store, clock_of(chosen.flows.store)()
    jobs = await store.jobs(chosen.flows.owners).rows(JobState.COMPLETE, now=now)
    letters = [
        *(("job", row.id, row.flow, row.attempts, row.error) for row in jobs if row.outcome == "discarded"),
        *(("event", row.id, row.topic, row.failures, row.error) for row in await store.outbox().dead()),
    ]
    if letters or chosen.json:
        print_result(sys.stdout, dead_as_json(letters) if chosen.json else dead(letters))
    else:
        stderr_console().info("there are no dead letters")
    return DONE


async def _replay(chosen: _Selection) -> int:
    """Have sent events delivered again, with new attempts."""
    numbers = await _letters(chosen)
    await chosen.flows.store.outbox().revive(numbers)
    chosen.flows.owners.open()
    try:
        chosen.flows.owners.ring(SENT)
    finally:
        chosen.flows.owners.close()
    stderr_console().info(f"{plural(len(numbers), 'event')} to be delivered again")
    return DONE


async def _drop(chosen: _Selection) -> int:
    """Remove sent events that are dead letters."""
    numbers = await _letters(chosen)
    await chosen.flows.store.outbox().forget(numbers)
    stderr_console().info(f"{plural(len(numbers), 'event')} removed")
    return DONE


async def _letters(chosen: _Selection) -> list[int]:
    """The numbers of the dead letters with the given ids; each is there."""
    letters = await chosen.flows.store.outbox().dead()
    if list(chosen.ids) == ["dead"]:
        return [row.number for row in letters]
    if missing := set(chosen.ids) - {row.id for row in letters}:
        shown = "`lifecycle flows dead` shows those that are there"
        raise CliError(f"there is no sent event {min(missing)!r} among the dead letters; {shown}")
    return [row.number for row in letters if row.id in chosen.ids]


COMMANDS: dict[str, Callable[[_Selection], Awaitable[int]]] = {
    "list": _list,
    "show": _show,
    "diagram": _diagram,
    "suspend": _suspend,
    "resume": _resume,
    "retry": _retry,
    "dead": _dead,
    "replay": _replay,
    "drop": _drop,
}


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
    return columns([("id", "flow", "state", "changed", "process"), *(tuple(map(printable, row)) for row in cells)])


def listed_as_json(rows: Sequence[tuple[FlowRow, str]]) -> str:
    """The same for programs."""
    return _json([_record(row, runner) for row, runner in rows])


def dead(letters: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Format the dead letters, one per line: kind, id, name of the flow or topic, attempts and last error."""
    rows = [(kind, id, name, str(attempts), shorten(masked(error))) for kind, id, name, attempts, error in letters]  # noqa: A001  # what it is
    return columns([_DEAD, *(tuple(map(printable, row)) for row in rows)])


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
        ("changed", f"{local_time(flow.at)}, {ago(flow.at)} ago" if flow.at else "not yet"),
        ("process", runner or "none"),
        ("given", _given(flow.store)),
    ]
    text = "".join(f"{name:<10}{printable(value)}\n" for name, value in known)
    steps = snapshot.steps.values()
    rows = [(row.name, row.kind, row.state, row.intention, str(row.attempt), _outcome(row)) for row in steps]
    heading = ("name", "kind", "state", "intention", "attempts", "result")
    text += "\n" + columns([heading, *(tuple(map(printable, row)) for row in rows)])
    return text + _history(changes)


def _given(text: str) -> str:
    given = _value(text)
    if not isinstance(given, dict):
        return shorten(masked(str(text)))
    return shorten(js.dumps(masked_values(cast("dict[str, object]", given))))


def _outcome(row: StepRow) -> str:
    error = masked(step_view(row).error)
    if error or row.result is None:
        return shorten(error)
    return HIDDEN if is_secret(row.name) else shorten(_result(row.result))


def _result(text: str) -> str:
    value = _value(text)
    return masked(text) if value is text else js.dumps(masked_values(value), separators=(",", ":"))


def _history(changes: Sequence[Change]) -> str:
    if not changes:
        return ""
    rows = [(local_time(each.at), each.name, each.old, each.new, _why(each)) for each in changes[-_LATEST:]]
    left = len(changes) - len(rows)
    text = f"\n({left} changes before these; --json has all)\n" if left else "\n"
    return text + columns([("at", "name", "from", "to", ""), *(tuple(map(printable, row)) for row in rows)])


def _why(change: Change) -> str:
    if change.text is not None and change.new in ("FAILURE", "REVERT_FAILURE"):
        return shorten(masked(str(Failure.decode(change.text))))
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
    from lifecycle.cli.run import find

    sys.path.insert(0, str(Path.cwd()))
    found = find(target, _is_flow)
    if not _is_flow(found):
        raise UsageError(f"{target} is {found!r}, which is not a flow; give what linear, unordered, graph or task made")
    flow: Flow | Task = found
    return flow


def _is_flow(thing: object) -> bool:
    return isinstance(thing, (Flow, Task))
