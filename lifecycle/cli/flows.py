"""`lifecycle flows`: list the flows in a file or on a server, and send requests to the processes that run them.

The command itself does not run flows and, except for `diagram --flow`, does not import your program. To suspend or
resume a flow, it sends a request to the process that runs the flow. To retry a failed flow, it resets the flow, so that
your program runs it again. Signals and cancellations are stored, and your program reads them.
"""

from __future__ import annotations

import asyncio
import json as js
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
from lifecycle.flows.outbox import SENT
from lifecycle.flows.records import DISCARDED, FAILURE, Failure, FlowRow, Snapshot, status_of
from lifecycle.flows.run import run_info, step_view
from lifecycle.flows.states import ENDS, FlowState, JobState, StepState
from lifecycle.flows.stores.base import RESTARTABLE, clock_of, has_complete_job, of_complete_job, reset_failed
from lifecycle.flows.stores.postgres import PostgresStore
from lifecycle.flows.stores.presence import RECOVER, RESUME, SUSPEND
from lifecycle.flows.stores.sqlite import FLOW_TABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

    from lifecycle.flows import Change, StepRow, Store
    from lifecycle.flows.records import JobRow, RunInfo

__all__ = ["Message", "flows"]

_RUNS = (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING)

#: The number of changes to show for each flow. JSON output contains all of them.
_RECENT = 20
#: The states in which a task's last change contains an error.
_FAILED = ("FAILURE", "REVERT_FAILURE")
#: The states in which an operation of a workflow has ended.
_ENDED = ("SUCCESS", "FAILURE")
_DEAD = ("kind", "id", "name", "attempts", "error")


class Message(NamedTuple):
    """A signal to send: its name, its data as JSON, and its key."""

    name: str
    data: str
    key: str | None


def flows(  # the options of the command
    subcommand: str,
    place: Path | str,
    ids: Sequence[str],
    *,
    json: bool = False,
    flow: str | None = None,
    message: Message | None = None,
    step: str = "",
) -> int:
    """Run a subcommand on the flows with these IDs. Without IDs, it runs on every flow to which it applies.

    ``flow`` is MODULE:ATTRIBUTE. ``message`` is for `signal`, and ``step`` for `retry`.

    Raises:
        UsageError: if there are no flows in the file or on the server.
        CliError: if a flow does not exist, or the file or the server cannot be read.
    """
    if not isinstance(place, str):
        check_file(place, FLOW_TABLES, lacks="contains no flows", given_to="Flows")
    try:
        selection = _Selection(Flows(place), ids, json=json, flow=flow, message=message, step=step)
        return asyncio.run(_carry_out(_SUBCOMMANDS[subcommand], selection))
    except (JournalError, FlowError, OSError) as error:
        raise CliError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


class _Selection:
    """The flows to which a subcommand applies, and its options."""

    def __init__(  # the options of the command
        self, flows: Flows, ids: Sequence[str], *, json: bool, flow: str | None, message: Message | None, step: str
    ) -> None:
        self.flows, self.ids, self.json, self.flow = flows, ids, json, flow
        self.message, self.step = message, step

    async def rows(self) -> list[FlowRow]:
        """Return the selected flows.

        Raises:
            CliError: if a selected flow does not exist.
        """
        if not self.ids:
            return await self.flows.store.flows()
        return [await self._row(each) for each in dict.fromkeys(self.ids)]

    async def _row(self, id: str) -> FlowRow:  # noqa: A002  # the natural name
        try:
            return (await self.flows.store.load(id)).flow
        except FlowError:
            job = await _job(self, id)
            if job is not None:
                raise CliError(
                    f"{id!r} is a job whose flow {job.flow!r} has not started; `lifecycle flows show` prints it"
                ) from None
            raise CliError(f"flow {id!r} does not exist; `lifecycle flows list` shows the flows") from None

    async def jobs(self) -> list[JobRow]:
        """Return the jobs with the selected ids whose flows have not started."""
        store = self.flows.store
        jobs = [await _job(self, each) for each in dict.fromkeys(self.ids) if await store.get(each) is None]
        return [job for job in jobs if job is not None]

    async def process(self, row: FlowRow) -> str:
        """Return the PID of the process that runs a flow, or an empty string. Add the host if there are several."""
        lives = row.owner and row.state not in ENDS and await self.flows.presence.lives(row.owner)
        return _process_of(row.owner) if lives else ""

    def send(self, request: str, flows_or_owners: Iterable[str]) -> None:
        """Send a request to processes. Each is identified by its owner ID or by a flow that it runs."""
        self.flows.presence.open()
        try:
            for each in flows_or_owners:
                self.flows.requests.ask(request, each)
        finally:
            self.flows.presence.close()


def _process_of(owner: str) -> str:
    return owner.rpartition("-")[0]


async def _carry_out(subcommand: Callable[[_Selection], Awaitable[int]], selection: _Selection) -> int:
    store = selection.flows.store
    if isinstance(store, PostgresStore) and not await store.holds_flows():
        raise UsageError(f"{store!r} contains no flows; use the URL that your program passes to Flows(…)")
    # Other processes must see the process that sends a message.
    async with selection.flows if subcommand in (_signal, _cancel) else store:
        return await subcommand(selection)


# -- subcommands ---------------------------------------------------------------------------------------------------


async def _list(selection: _Selection) -> int:
    """Print the flows, oldest first, followed by the jobs that have not run yet. Each takes one line."""
    rows = [(_as_listed(row), await selection.process(row)) for row in await selection.rows()]
    rows += [(row, "") for row in ([] if selection.ids else await _waiting(selection, {row.id for row, _ in rows}))]
    if rows or selection.json:
        print_result(sys.stdout, _flows_json(rows) if selection.json else _flows_table(rows))
    else:
        stderr_console().info("no flows")
    return DONE


def _as_listed(row: FlowRow) -> FlowRow:
    """Return the row of a flow as `list` prints it. PENDING with an error means that the job was discarded."""
    return row._replace(state=DISCARDED) if row.state == FlowState.PENDING and row.error else row


async def _waiting(selection: _Selection, known: Collection[str]) -> list[FlowRow]:
    """Return the waiting jobs that are not in ``known``, in the form of flow rows."""
    store = selection.flows.store
    jobs = await store.jobs(selection.flows.presence).rows(JobState.UNCLAIMED, now=clock_of(store)())
    return [_of_job(job) for job in jobs if job.id not in known]


def _of_job(job: JobRow) -> FlowRow:
    """Return a row for the flow of a job that has not started."""
    state = job.outcome or job.state
    return FlowRow(job.id, job.flow, state=state, at=job.enqueued, store=job.store, due=job.due)


async def _show(selection: _Selection) -> int:
    """Print the full details of each flow, and of each job whose flow has not started."""
    jobs = await selection.jobs()
    selection.ids = [each for each in selection.ids if each not in {job.id for job in jobs}]
    rows = [] if jobs and not selection.ids else await selection.rows()
    shown: list[tuple[Snapshot, Sequence[Change], str, JobRow | None]] = []
    for row in rows:
        snapshot, changes = await _read(selection, row.id)
        snapshot = snapshot._replace(flow=_as_listed(snapshot.flow))
        shown.append((snapshot, changes, await selection.process(row), await _job(selection, row.id)))
    shown += [(Snapshot(_of_job(job), {}), [], "", job) for job in jobs]
    print_result(sys.stdout, _format_flows(shown, json=selection.json))
    return DONE


async def _diagram(selection: _Selection) -> int:
    """Print a Mermaid diagram of one flow's tasks, or of several flows with one node per flow."""
    snapshots = [(await _read(selection, row.id))[0] for row in await selection.rows()]
    print_result(sys.stdout, _mermaid(snapshots, selection.flow))
    return DONE


async def _read(selection: _Selection, flow: str) -> tuple[Snapshot, list[Change]]:
    """Return a flow with all its changes, and its tasks sorted by when they started."""
    changes = [change async for change in _all_changes(selection.flows.store, flow)]
    return _in_order(await selection.flows.store.load(flow), changes), changes


async def _suspend(selection: _Selection) -> int:
    """Ask the processes that run the flows to start no more tasks. Tasks that are already running finish first."""
    asked = await _ask(selection, SUSPEND, _RUNS)
    orphans = [row for row in await selection.rows() if row.state in _RUNS and row.id not in asked]
    for row in orphans:
        stderr_console().info(
            f"no process runs {row.id} (state {row.state}); its program will continue it after the next start"
        )
    if not asked and not orphans:
        stderr_console().info("no flows to suspend")
    return DONE


async def _resume(selection: _Selection) -> int:
    """Ask the processes that suspended the flows to continue."""
    asked = await _ask(selection, RESUME, (FlowState.SUSPENDED,))
    others = [row for row in await selection.rows() if row.state not in ENDS and row.id not in asked]
    orphans = [row for row in others if not await selection.process(row)]
    for row in orphans:
        stderr_console().info(f"no process runs {row.id} (state {row.state}); start its program to continue it")
    if not asked and not orphans:
        stderr_console().info("no flows to resume")
    return FAILED if orphans else DONE


async def _ask(selection: _Selection, request: str, states: Sequence[FlowState]) -> set[str]:
    """Send a request to the processes that run flows in one of ``states``, and return the IDs of these flows."""
    rows = await selection.rows()
    if selection.ids and (ended := [row for row in rows if row.state in ENDS]):
        raise CliError(f"flow {ended[0].id!r} has already finished: {ended[0].state}")
    processes = {row.id: process for row in rows if row.state in states and (process := await selection.process(row))}
    selection.send(request, processes)
    for flow, process in processes.items():
        stderr_console().info(f"asked process {process} to {request} {flow}")
    return set(processes)


async def _retry(selection: _Selection) -> int:
    """Reset failed flows.

    A flow runs again immediately or, if its process is not alive, when its program next starts.
    """
    rows = [row for row in await selection.rows() if selection.ids or row.state in RESTARTABLE]
    store, presence = selection.flows.store, selection.flows.presence
    of_jobs = [row for row in rows if await has_complete_job(store, presence, row)]
    if selection.ids and of_jobs:
        raise of_complete_job(of_jobs[0].id)
    rows = [row for row in rows if row not in of_jobs]
    living = {row.owner for row in rows if row.owner and await presence.lives(row.owner)}
    for row in rows:
        await reset_failed(store, row.id, selection.step)
        later = "it runs again when its program starts or recovers"
        then = f"process {_process_of(row.owner)} runs it again" if row.owner in living else later
        stderr_console().info(f"reset {row.id} (state {row.state}); {then}")
    selection.send(RECOVER, living)
    for row in of_jobs:
        stderr_console().info(f"{row.id} was not reset: it belongs to a complete job; enqueue the job with a new id")
    if not rows and not of_jobs:
        stderr_console().info("no failed flows")
    return DONE


async def _signal(selection: _Selection) -> int:
    """Send a signal to one workflow.

    Raises:
        UsageError: if the data is not JSON.
    """
    (id,), message = selection.ids, selection.message  # noqa: A001  # the natural name
    assert message is not None
    try:
        data = js.loads(message.data)
    except ValueError as error:
        raise UsageError(f"DATA must be JSON, such as 7 or '\"text\"', got {message.data!r}: {error}") from error
    await selection.flows.signal(id, message.name, data, key=message.key)
    stderr_console().info(f"stored the signal {message.name} for {id}")
    return DONE


async def _cancel(selection: _Selection) -> int:
    """Ask for the cancellation of workflows."""
    for id in selection.ids:  # noqa: A001  # the natural name
        await selection.flows.cancel(id)
        stderr_console().info(f"stored the cancellation of {id}; its program runs its undo functions")
    return DONE


async def _job(selection: _Selection, id: str) -> JobRow | None:  # noqa: A002  # the natural name
    store = selection.flows.store
    return await store.jobs(selection.flows.presence).get(id, now=clock_of(store)())


async def _dead(selection: _Selection) -> int:
    """List the dead letters: discarded jobs, followed by events that could not be delivered."""
    store, now = selection.flows.store, clock_of(selection.flows.store)()
    jobs = await store.jobs(selection.flows.presence).rows(JobState.COMPLETE, now=now)
    letters = [
        *(("job", row.id, row.flow, row.attempts, row.error) for row in jobs if row.outcome == "discarded"),
        *(("event", row.id, row.topic, row.failures, row.error) for row in await store.outbox().dead()),
    ]
    if letters or selection.json:
        print_result(sys.stdout, _dead_json(letters) if selection.json else _dead_table(letters))
    else:
        stderr_console().info("no dead letters")
    return DONE


async def _replay(selection: _Selection) -> int:
    """Deliver dead events again, with a new set of attempts."""
    numbers = await _letters(selection)
    await selection.flows.store.outbox().revive(numbers)
    selection.flows.presence.open()
    try:
        selection.flows.presence.notify(SENT)
    finally:
        selection.flows.presence.close()
    stderr_console().info(f"{plural(len(numbers), 'event')} will be delivered again")
    return DONE


async def _drop(selection: _Selection) -> int:
    """Remove dead events."""
    numbers = await _letters(selection)
    await selection.flows.store.outbox().forget(numbers)
    stderr_console().info(f"{plural(len(numbers), 'event')} removed")
    return DONE


async def _letters(selection: _Selection) -> list[int]:
    """Return the numbers of the dead events with the given IDs.

    Raises:
        CliError: if an ID does not belong to a dead letter.
    """
    letters = await selection.flows.store.outbox().dead()
    if list(selection.ids) == ["dead"]:
        return [row.number for row in letters]
    if missing := set(selection.ids) - {row.id for row in letters}:
        if await _job(selection, min(missing)) is not None:
            raise CliError(
                f"{min(missing)!r} is a job, but replay and drop are for sent events. To run it again, enqueue it with "
                "a new id. To remove complete jobs, call JobQueue.purge"
            )
        raise CliError(
            f"sent event {min(missing)!r} is not a dead letter; `lifecycle flows dead` lists the dead letters"
        )
    return [row.number for row in letters if row.id in selection.ids]


_SUBCOMMANDS: dict[str, Callable[[_Selection], Awaitable[int]]] = {
    "list": _list,
    "show": _show,
    "diagram": _diagram,
    "suspend": _suspend,
    "resume": _resume,
    "retry": _retry,
    "signal": _signal,
    "cancel": _cancel,
    "dead": _dead,
    "replay": _replay,
    "drop": _drop,
}


async def _all_changes(store: Store, id: str) -> AsyncIterator[Change]:  # noqa: A002  # the natural name
    """Yield all of a flow's changes, reading one page at a time."""
    seq = 0
    while changes := await store.changes(id, after=seq):
        for change in changes:
            yield change
        seq = changes[-1].seq


def _in_order(snapshot: Snapshot, changes: Sequence[Change]) -> Snapshot:
    """Sort the tasks by when they first started."""
    begun: dict[str, int] = {}
    for change in changes:
        begun.setdefault(change.name, change.seq)
    rows = sorted(snapshot.steps.values(), key=lambda row: begun.get(row.name, math.inf))
    return snapshot._replace(steps={row.name: row for row in rows})


# -- lists ---------------------------------------------------------------------------------------------------------


def _flows_table(rows: Sequence[tuple[FlowRow, str]]) -> str:
    """Format the flows, one per line."""
    heading = ["id", "flow", "state", "changed", "process"]
    cells = [
        [row.id, row.name, _status(row), ago(row.at) if row.at else "", runner or _claim(row)] for row, runner in rows
    ]
    if any(_status(row) != row.state for row, _ in rows):
        heading.append("error")
        cells = [[*each, shorten(masked(row.error))] for each, (row, _) in zip(cells, rows, strict=True)]
    return columns([tuple(heading), *(tuple(map(printable, each)) for each in cells)])


def _status(row: FlowRow) -> str:
    return status_of(row.state, row.error)


def _claim(row: FlowRow) -> str:
    """Return a note on a job that is due and that no worker has claimed, for example because its flow is misspelt."""
    return "no worker yet" if row.state == JobState.UNCLAIMED and not row.due else ""


def _flows_json(rows: Sequence[tuple[FlowRow, str]]) -> str:
    """Format the flows as JSON."""
    return _json([_record(row, runner) for row, runner in rows])


def _dead_table(letters: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Format the dead letters, one per line: kind, ID, flow name or topic, attempts and last error."""
    rows = [(kind, id, name, str(attempts), shorten(masked(error))) for kind, id, name, attempts, error in letters]  # noqa: A001  # the natural name
    return columns([_DEAD, *(tuple(map(printable, row)) for row in rows)])


def _dead_json(letters: Sequence[tuple[str, str, str, int, str]]) -> str:
    """Format the dead letters as JSON."""
    return _json([masked_values(dict(zip(_DEAD, letter, strict=True))) for letter in letters])


def _record(row: FlowRow, runner: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "flow": row.name,
        "state": _status(row),
        "changed": row.at or None,
        "process": int(runner) if runner.isdecimal() else runner or None,
    }


def _json(value: object) -> str:
    return js.dumps(value, indent=2) + "\n"


# -- one flow -----------------------------------------------------------------------------------------------


def _format_flows(shown: Sequence[tuple[Snapshot, Sequence[Change], str, JobRow | None]], *, json: bool) -> str:
    """Format the full details of each flow."""
    if json:
        return _json([_flow_json(*each) for each in shown])
    return "\n".join(_format_flow(*each) for each in shown)


def _flow_json(snapshot: Snapshot, changes: Sequence[Change], runner: str, job: JobRow | None) -> dict[str, Any]:
    return _record(snapshot.flow, runner) | {
        "error": _error(snapshot, changes, job) or None,
        "given": masked_values(_value(snapshot.flow.store)),
        "tasks": [_task_json(row) for row in snapshot.steps.values()],
        "changes": [
            {"seq": each.seq, "at": each.at, "kind": each.kind, "name": each.name, "old": each.old, "new": each.new}
            | {"reason": masked(each.reason), "attempt": each.attempt}
            for each in changes
        ],
    }


def _task_json(row: StepRow) -> dict[str, Any]:
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
    """Decode JSON from the store. Text written by a different serializer is returned unchanged."""
    try:
        return None if text is None else js.loads(text)
    except ValueError:
        return text


def _error(snapshot: Snapshot, changes: Sequence[Change], job: JobRow | None) -> str:
    """Return the error of a flow that has not succeeded: its job's error, its own, or the last failed task's."""
    if snapshot.flow.state == FlowState.SUCCESS:
        return ""
    if error := (job.error if job is not None else "") or snapshot.flow.error:
        return masked(error)
    failures = [each.text for each in changes if each.text is not None and each.new in _FAILED]
    return masked(str(Failure.decode(failures[-1]))) if failures else ""


def _format_flow(snapshot: Snapshot, changes: Sequence[Change], runner: str, job: JobRow | None) -> str:
    flow = snapshot.flow
    known = [
        ("flow", flow.name),
        ("id", flow.id),
        ("state", _status(flow)),
        ("changed", f"{local_time(flow.at)}, {ago(flow.at)} ago" if flow.at else "not yet"),
        ("process", runner or "none"),
        ("given", _given(flow.store)),
    ]
    if job is not None:
        if job.state == JobState.UNCLAIMED:
            known.append(("due", _job_due(job)))
        attempts = f"{job.attempts} of {job.max_attempts} attempts"
        known.append(("job", f"{job.outcome or job.state}, {attempts}"))
    if error := _error(snapshot, changes, job):
        known.append(("error", error))
    known += _waits(snapshot)
    text = "".join(f"{name:<10}{printable(value)}\n" for name, value in known)
    rows = _timeline(snapshot, changes) if flow.kind == "workflow" else _steps(snapshot)
    text += "\n" + columns([tuple(map(printable, row)) for row in rows])
    return text + _history(changes)


def _job_due(job: JobRow) -> str:
    """Return when a job is due, as far as that is known."""
    if not job.due:
        return f"now; no worker has claimed it, so check that a worker runs {job.flow!r}"
    return local_time(job.due) if math.isfinite(job.due) else "when its flow receives a signal"


def _steps(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return the heading and the rows of a flow's tasks and retries."""
    heading = ("name", "kind", "state", "intention", "attempts", "result")
    steps = snapshot.steps.values()
    return [
        heading,
        *((row.name, row.kind, row.state, row.intention, str(row.attempt), _outcome(row)) for row in steps),
    ]


def _timeline(snapshot: Snapshot, changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return the heading and the rows of a workflow's operations, each with the time of its last change."""
    at = {change.name: local_time(change.at) for change in changes}
    rows = [row for row in snapshot.steps.values() if row.name != FAILURE]
    return [
        ("at", "operation", "kind", "state", "attempts", "due", "result"),
        *(
            (at.get(row.name, ""), row.name, row.kind, row.state, str(row.attempt), _due(row), _end(row))
            for row in rows
        ),
    ]


def _due(row: StepRow) -> str:
    return local_time(row.due) if row.due and row.state not in _ENDED else ""


def _end(row: StepRow) -> str:
    """Return the result of an operation, or the id of the child that it waits for."""
    return row.history or "" if row.kind == "child" and row.state not in _ENDED else _outcome(row)


def _waits(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return a workflow's parent, result, and the operations that it waits for."""
    flow, waiting = snapshot.flow, [row.name for row in snapshot.steps.values() if row.state == StepState.RUNNING]
    lines = [("parent", flow.parent)] if flow.parent else []
    if flow.state == FlowState.WAITING:
        lines.append(("waits in", ", ".join(waiting)))
        lines += [("due", local_time(flow.due))] if flow.due else []
    if flow.result is not None and flow.state == FlowState.SUCCESS:
        lines.append(("result", shorten(_result(flow.result))))
    return lines


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
    rows = [(local_time(each.at), each.name, each.old, each.new, _why(each)) for each in changes[-_RECENT:]]
    left = len(changes) - len(rows)
    text = f"\n({left} earlier changes; --json shows all)\n" if left else "\n"
    return text + columns([("at", "name", "from", "to", ""), *(tuple(map(printable, row)) for row in rows)])


def _why(change: Change) -> str:
    if change.text is not None and change.new in _FAILED:
        return shorten(masked(str(Failure.decode(change.text))))
    return masked(change.reason)


# -- diagrams ------------------------------------------------------------------------------------------------------


def _mermaid(snapshots: Sequence[Snapshot], flow: str | None) -> str:
    """Draw one flow's tasks, or several flows as one node each. ``flow`` is the definition as MODULE:ATTRIBUTE.

    Raises:
        UsageError: if the definition does not exist or defines a different flow.
    """
    from lifecycle.observe import mermaid

    definition = None if flow is None else _definition(flow)
    infos = [_info(snapshot, definition) for snapshot in snapshots]
    return mermaid.flow(infos[0]) if len(infos) == 1 else mermaid.system(infos)


def _info(snapshot: Snapshot, definition: Flow | Task | None) -> RunInfo:
    views = {row.name: step_view(row) for row in snapshot.steps.values()}
    if definition is not None and definition.name != snapshot.flow.name:
        raise UsageError(
            f"{definition!r} does not define the flow {snapshot.flow.name!r}; use its definition, or a different id"
        )
    return run_info(definition, snapshot.flow, views)


def _definition(target: str) -> Flow | Task:
    from lifecycle.cli.run import find

    sys.path.insert(0, str(Path.cwd()))
    found = find(target, _is_flow)
    if not _is_flow(found):
        raise UsageError(f"{target} must be a flow (the result of linear, unordered, graph or task), got {found!r}")
    flow: Flow | Task = found
    return flow


def _is_flow(thing: object) -> bool:
    return isinstance(thing, (Flow, Task))
