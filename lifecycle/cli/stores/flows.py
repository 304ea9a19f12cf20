"""`lifecycle flows`: what a file of flows says, or a server, and what can be asked of who runs them.

A command has none of the program's code, so it carries out no flow. It reads the file, asks the process that runs a
flow to suspend it or to go on, and resets one that failed, for its program to begin it anew.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from lifecycle.cli.failures import DONE, FAILED, CliError, UsageError
from lifecycle.cli.listing import several
from lifecycle.cli.messages import give, voice
from lifecycle.cli.stores.files import check_file
from lifecycle.cli.stores.flow_reports import (
    dead,
    dead_as_json,
    described,
    in_order,
    listed,
    listed_as_json,
    picture,
    whole,
)
from lifecycle.errors import FlowError, JournalError
from lifecycle.flows import Flows
from lifecycle.flows.outboxes import SENT
from lifecycle.flows.postgres import PostgresStore
from lifecycle.flows.requests import RECOVER, RESUME, SUSPEND
from lifecycle.flows.resets import RETRIED, begin_anew
from lifecycle.flows.sqlite.flows import FLOW_TABLES
from lifecycle.flows.states import ENDS, FlowState, JobState
from lifecycle.flows.stores import clock_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from lifecycle.flows import Change, FlowRow, Snapshot

__all__ = ["VERBS", "flows"]

_RUNS = (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING)


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
        return asyncio.run(_carry_out(VERBS[verb], chosen))
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
        return _process(row.owner) if lives else ""

    def ring(self, what: str, whom: Iterable[str]) -> None:
        """Ask each of ``whom`` for ``what``."""
        self.flows.owners.open()
        try:
            for each in whom:
                self.flows.requests.ask(what, each)
        finally:
            self.flows.owners.close()


def _process(owner: str) -> str:
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
        give(sys.stdout, listed_as_json(rows) if chosen.json else listed(rows))
    else:
        voice().say("there are no flows")
    return DONE


async def _show(chosen: _Selection) -> int:
    """All that is known of each."""
    shown = [(*await _read(chosen, row.id), await chosen.runner(row)) for row in await chosen.rows()]
    give(sys.stdout, described(shown, json=chosen.json))
    return DONE


async def _diagram(chosen: _Selection) -> int:
    """One flow with its tasks, or of several each as a node, for Mermaid."""
    snapshots = [(await _read(chosen, row.id))[0] for row in await chosen.rows()]
    give(sys.stdout, picture(snapshots, chosen.flow))
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
        voice().say(f"{row.id} is not running: it is {row.state}, and its program goes on with it when it starts")
    if not asked and not left:
        voice().say("there is nothing to suspend")
    return DONE


async def _resume(chosen: _Selection) -> int:
    """Ask who has them to go on."""
    asked = await _ask(chosen, RESUME, (FlowState.SUSPENDED,))
    others = [row for row in await chosen.rows() if row.state not in ENDS and row.id not in asked]
    left = [row for row in others if not await chosen.runner(row)]
    for row in left:
        voice().say(f"{row.id} is {row.state}, and nobody runs who could go on with it; start its program")
    if not asked and not left:
        voice().say("there is nothing to resume")
    return FAILED if left else DONE


async def _ask(chosen: _Selection, what: str, states: Sequence[FlowState]) -> set[str]:
    """Ask for all that are in ``states`` and in somebody's hands; give their ids."""
    rows = await chosen.rows()
    if chosen.ids and (ended := [row for row in rows if row.state in ENDS]):
        raise CliError(f"flow {ended[0].id!r} is at its end: {ended[0].state}")
    meant = {row.id: runner for row in rows if row.state in states and (runner := await chosen.runner(row))}
    chosen.ring(what, meant)
    for each, runner in meant.items():
        voice().say(f"process {runner} was asked to {what} {each}")
    return set(meant)


async def _retry(chosen: _Selection) -> int:
    """Begin anew with what failed: now if who carried it out lives, or when its program starts the next time."""
    rows = [row for row in await chosen.rows() if chosen.ids or row.state in RETRIED]
    living = {row.owner for row in rows if row.owner and await chosen.flows.owners.lives(row.owner)}
    for row in rows:
        await begin_anew(chosen.flows.store, row.id)
        when = f"by process {_process(row.owner)}" if row.owner in living else "when its program starts, or recovers"
        voice().say(f"{row.id} was {row.state}, and is begun anew {when}")
    chosen.ring(RECOVER, living)
    if not rows:
        voice().say("nothing has failed")
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
        give(sys.stdout, dead_as_json(letters) if chosen.json else dead(letters))
    else:
        voice().say("there are no dead letters")
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
    voice().say(f"{several(len(numbers), 'event')} to be delivered again")
    return DONE


async def _drop(chosen: _Selection) -> int:
    """Remove sent events that are dead letters."""
    numbers = await _letters(chosen)
    await chosen.flows.store.outbox().forget(numbers)
    voice().say(f"{several(len(numbers), 'event')} removed")
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


VERBS: dict[str, Callable[[_Selection], Awaitable[int]]] = {
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
