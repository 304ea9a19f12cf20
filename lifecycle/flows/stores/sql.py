"""`SQLStore`: flows, jobs and sent events in database tables.

SQLite and PostgreSQL use the same statements. Their SQL differs in row locks, comparisons with lists, and column types.
In these places, a statement contains a placeholder in braces, which a `Dialect` fills in. A `Database` sends several
statements together and runs them as one transaction.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lifecycle.flows.records import (
    CANCEL,
    DISCARDED,
    DUE_NOW,
    PRIORITIES,
    UNENDED,
    UNLIMITED,
    Change,
    FlowRow,
    JobRow,
    OutboxRow,
    SignalRow,
    Snapshot,
    StepRow,
)
from lifecycle.flows.states import ENDS, FlowState
from lifecycle.flows.stores.base import (
    UNRELEASED,
    JobStore,
    OutboxStore,
    Store,
    cancelled,
    discarded,
    keyed,
    lost,
    lost_job,
    not_taken,
    other_flow,
    storable,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from lifecycle.flows.records import Batch, Claim, FailedDelivery, Limits
    from lifecycle.flows.stores.presence import Presence

__all__ = [
    "CREATE_FLOWS",
    "CREATE_JOBS",
    "CREATE_OUTBOX",
    "CREATE_SCHEDULES",
    "CREATE_SIGNALS",
    "FLOW_INDEXES",
    "JOB_KEYS",
    "QUEUES",
    "Database",
    "Dialect",
    "Guarded",
    "Row",
    "Rows",
    "SQLStore",
    "Statement",
    "committing",
]

#: A row in a result.
Row = tuple[Any, ...]


# -- what a database runs
# ------------------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """A statement, and the ``values`` of its parameters, which are written as ``:name`` in the text."""

    text: str
    values: Mapping[str, Any]
    #: True to return the rows that the statement produces.
    asked: bool = False


class Rows(NamedTuple):
    """Rows to insert. If ``key`` is set, they replace existing rows with the same key, or if ``keep`` is set, don't."""

    table: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    key: str = ""
    keep: bool = False


class Guarded(NamedTuple):
    """Statements that run only if ``guard`` returns a row. The result contains the guard's rows."""

    guard: Statement
    then: Sequence[Statement | Rows]


class Database(Protocol):
    """A connection that runs statements on the tables."""

    dialect: Dialect

    def run(self, *works: Statement | Guarded, done: Sequence[Statement] = ()) -> Awaitable[list[list[Row]]]:
        """Run ``works`` as one transaction, and return the requested rows.

        If the response to ``works`` is lost, ``done`` runs before ``works`` is sent again. If ``works`` was committed,
        ``done`` returns the same rows. If you don't pass ``done``, running ``works`` twice must have the same effect as
        running it once.
        """
        ...

    def read(self, *statements: Statement) -> Awaitable[list[list[Row]]]:
        """Run read-only statements on one snapshot of the data."""
        ...


_NOTHING: Mapping[str, Any] = {}
_UNCANCELLED = f"""(:state != 'SUCCESS' OR :kind != 'workflow' OR NOT EXISTS (SELECT 1 FROM lifecycle_signals s
    WHERE s.flow = :flow AND s.name = '{CANCEL}' AND NOT s.taken AND NOT s.number {{among[taken]}}))"""  # noqa: S608  # our own text


class _Lists:
    """The placeholder ``{among[name]}``, which compares a column with a list of values."""

    def __init__(self, template: str) -> None:
        self._template = template

    def __getitem__(self, name: str) -> str:
        return self._template.format(name=name)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL that differs between databases."""

    #: True if `FOR UPDATE` locks rows, as in PostgreSQL.
    locks: bool
    #: The SQL that compares a column with the list in the parameter ``name``.
    among: str
    #: The column that orders flows by insertion.
    number: str
    #: The first statement of a commit, which returns a row if the flow still belongs to the writer, and if it is not a
    #: workflow that would succeed although a cancellation is stored.
    guard: str
    #: The statements that follow the guard in a commit.
    then: tuple[str, ...] = ()
    #: The types and options to use in `CREATE TABLE`.
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    #: True if the database is a file. In that case, `Presence` needs no query to detect that owners have exited, reads
    #: don't need a write transaction, and responses cannot be lost.
    local: bool = False
    #: Converts a list to a parameter value. If None, lists are passed unchanged.
    encode_list: Callable[[list[Any]], Any] | None = None
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    def text(self, template: str) -> str:
        """Return ``template`` with its placeholders replaced by this dialect's SQL."""
        text = self._texts.get(template)
        if text is None:
            text = self._texts[template] = template.format(
                update=" FOR UPDATE" if self.locks else "",
                skip=" FOR UPDATE SKIP LOCKED" if self.locks else "",
                counted=" RETURNING 1" if self.locks else "",
                share=" FOR SHARE" if self.locks else "",
                held="EXISTS (SELECT 1 FROM held)" if self.locks else "true",
                unsent="NOT (had.owner = excluded.owner AND had.stamp >= excluded.stamp)" if self.locks else "true",
                among=_Lists(self.among),
                uncancelled=_UNCANCELLED.format(among=_Lists(self.among)),
                number=self.number,
                # SQLite uses no index for a term with a plus sign. PostgreSQL chooses by its statistics.
                unindexed="" if self.locks else "+",
                # PostgreSQL looks up the elements of an array by their index.
                chosen="= ANY (ARRAY(SELECT number FROM free))" if self.locks else "IN (SELECT number FROM free)",
                **self.types,
            )
        return text

    def do(self, template: str, values: Mapping[str, Any] = _NOTHING) -> Statement:
        """Return a statement that returns no rows."""
        return Statement(self.text(template), values)

    def ask(self, template: str, values: Mapping[str, Any] = _NOTHING) -> Statement:
        """Return a statement that returns its rows."""
        return Statement(self.text(template), values, asked=True)

    def recovery(self, values: Mapping[str, Any], *templates: str) -> Sequence[Statement]:
        """Return the queries that find the result of a write whose response was lost. Files don't need them."""
        return () if self.local else [self.ask(each, values) for each in templates]

    def listed(self, values: Iterable[Any]) -> Any:
        """Return ``values`` as a parameter for ``{among[name]}``."""
        values = list(values)
        return values if self.encode_list is None else self.encode_list(values)


# -- the tables --------------------------------------------------------------------------------------------------------

# A stamp identifies the last write to a row. Writers use it to find the rows that they have claimed, and to check
# whether a write was committed when the server's response was lost. Some columns have defaults because they were added
# to existing tables.
FLOW_INDEXES = (
    "CREATE INDEX lifecycle_flows_created ON lifecycle_flows (created)",
    # A timer reads only the flows that sleep.
    "CREATE INDEX lifecycle_flows_due ON lifecycle_flows (name, due) WHERE state = 'WAITING' AND due > 0",
)
CREATE_SIGNALS = (
    """CREATE TABLE lifecycle_signals (
        number {key},
        flow TEXT NOT NULL,
        name TEXT NOT NULL,
        data TEXT NOT NULL,
        key TEXT NOT NULL,
        at {real} NOT NULL,
        taken BOOLEAN NOT NULL DEFAULT false,
        UNIQUE (flow, key)
    )""",
    "CREATE INDEX lifecycle_signals_left ON lifecycle_signals (flow) WHERE NOT taken",
)
CREATE_SCHEDULES = ("CREATE TABLE lifecycle_schedules (name TEXT PRIMARY KEY, last {real} NOT NULL)",)
CREATE_FLOWS = (
    """CREATE TABLE lifecycle_flows (
        {serial}id TEXT {flow_key},
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        owner TEXT NOT NULL,
        store TEXT NOT NULL,
        error TEXT NOT NULL,
        at {real} NOT NULL,
        stamp BIGINT NOT NULL DEFAULT 0,
        due {real} NOT NULL DEFAULT 0,
        parent TEXT NOT NULL DEFAULT '',
        result TEXT,
        created {real} NOT NULL DEFAULT 0,
        kind TEXT NOT NULL DEFAULT 'flow'
    ){spare}""",
    "CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state)",
    *FLOW_INDEXES,
    """CREATE TABLE lifecycle_flow_steps (
        flow TEXT NOT NULL,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        state TEXT NOT NULL,
        intention TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        round INTEGER NOT NULL,
        result TEXT,
        failure TEXT,
        revert_failure TEXT,
        history TEXT,
        undone INTEGER NOT NULL DEFAULT 0,
        due {real} NOT NULL DEFAULT 0,
        PRIMARY KEY (flow, name)
    ){clustered}{spare}""",
    """CREATE TABLE lifecycle_flow_changes (
        flow TEXT NOT NULL,
        seq BIGINT NOT NULL,
        at {real} NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        old TEXT NOT NULL,
        new TEXT NOT NULL,
        reason TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        result TEXT,
        PRIMARY KEY (flow, seq)
    ){clustered}""",
)
JOB_KEYS = """CREATE INDEX lifecycle_jobs_keys ON lifecycle_jobs (queue, key, rank, number)
    WHERE state = 'UNCLAIMED' AND due = 0"""
QUEUES = (
    """CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (queue, flow, rank, number)
        WHERE state = 'UNCLAIMED' AND due = 0""",
    JOB_KEYS,
    # When jobs of queues with a rate limit were claimed.
    "CREATE TABLE lifecycle_job_starts (queue TEXT NOT NULL, at {real} NOT NULL)",
    "CREATE INDEX lifecycle_job_starts_by_queue ON lifecycle_job_starts (queue, at)",
)
CREATE_JOBS = (
    # Numbers are never reused, so they order the jobs by insertion. ``due`` is set to 0 when a job becomes due, so
    # that claiming doesn't have to read jobs that are not due yet.
    """CREATE TABLE lifecycle_jobs (
        number {key},
        id TEXT NOT NULL UNIQUE,
        flow TEXT NOT NULL,
        rank INTEGER NOT NULL,
        store TEXT NOT NULL,
        enqueued {real} NOT NULL,
        max_attempts INTEGER NOT NULL,
        state TEXT NOT NULL,
        owner TEXT NOT NULL,
        token TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        until {real} NOT NULL,
        attempts INTEGER NOT NULL,
        due {real} NOT NULL,
        outcome TEXT NOT NULL,
        error TEXT NOT NULL,
        ended {real} NOT NULL,
        stamp BIGINT NOT NULL DEFAULT 0,
        queue TEXT NOT NULL DEFAULT '',
        key TEXT NOT NULL DEFAULT ''
    )""",
    *QUEUES,
    "CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0",
    "CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED'",
    "CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE'",
)
CREATE_OUTBOX = (
    """CREATE TABLE lifecycle_outbox (
        number {key},
        id TEXT NOT NULL,
        topic TEXT NOT NULL,
        data TEXT NOT NULL,
        until {real} NOT NULL,
        failures INTEGER NOT NULL DEFAULT 0,
        error TEXT NOT NULL DEFAULT '',
        dead BOOLEAN NOT NULL DEFAULT false
    )""",
    "CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE NOT dead",
    "CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead",
)


# -- flows -------------------------------------------------------------------------------------------------------------

#: The number of flows that `SQLStore.purge` deletes per transaction.
_PURGED = 500
# We read the number of a flow's last change from the table of changes, so that it is stored in only one place.
_LAST = "(SELECT coalesce(max(seq), 0) FROM lifecycle_flow_changes c WHERE c.flow = f.id)"
_FLOW = ", ".join(f"f.{name}" for name in FlowRow._fields).replace("f.seq", _LAST)
_STEP = ", ".join(f"s.{name}" for name in StepRow._fields)
_WIDTH = len(FlowRow._fields)
_STORED = tuple(name for name in FlowRow._fields if name != "seq")
_ROW_OF = attrgetter(*_STORED)
_CHANGE = ("flow", "seq", "at", "kind", "name", "old", "new", "reason", "attempt", "result")
_CHANGE_OF = attrgetter(*_CHANGE[:-1], "text")

_CREATE = (
    f"INSERT INTO lifecycle_flows ({', '.join(_STORED)}, stamp)"  # noqa: S608  # our own columns
    f" VALUES ({', '.join(f':{name}' for name in _STORED)}, :stamp) ON CONFLICT (id) DO NOTHING RETURNING 1"
)
_CREATED = "SELECT 1 FROM lifecycle_flows WHERE id = :id AND owner = :owner AND stamp = :stamp"
# A single statement reads flows and their steps, so that they are consistent. In the rows for steps, the second column
# is NULL.
_SNAPSHOTS = f"""
SELECT {_FLOW}{", NULL" * len(StepRow._fields)} FROM lifecycle_flows f WHERE WHICH
UNION ALL
SELECT f.id{", NULL" * (_WIDTH - 1)}, {_STEP}
FROM lifecycle_flows f JOIN lifecycle_flow_steps s ON s.flow = f.id WHERE WHICH
ORDER BY 1, {_WIDTH + 1}
"""  # noqa: S608  # our own columns
_LOAD = _SNAPSHOTS.replace("WHICH", "f.id = :id")
# As `resumed` does.
_RESUME = "due = 0, state = CASE had.state WHEN 'WAITING' THEN 'RUNNING' ELSE had.state END"
_TAKE = (
    f"UPDATE lifecycle_flows AS had SET epoch = epoch + 1, owner = :owner, stamp = :stamp, {_RESUME}"  # noqa: S608  # our own text
    " WHERE id = :id AND epoch = :seen AND (:ended OR state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED'))"
)
# This is a separate statement because `_TAKE` may have to wait for a commit by the previous owner. If `_TAKE` also read
# the steps, it would see them as they were before that commit.
_TAKEN = _SNAPSHOTS.replace("WHICH", "f.id = :id AND f.epoch = :seen + 1 AND f.owner = :owner AND f.stamp = :stamp")
_GET = f"SELECT {_FLOW} FROM lifecycle_flows f WHERE f.id = :id"  # noqa: S608  # our own columns
_FIND = f"SELECT {_FLOW} FROM lifecycle_flows f WHERE WHICH ORDER BY f.{{number}}"  # noqa: S608  # our own columns
_NEWEST = _FIND.replace("f.{number}", "f.created DESC, f.{number} DESC LIMIT :newest")
_ENDED = "('SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED')"
_WITHOUT_JOB = "NOT EXISTS (SELECT 1 FROM lifecycle_jobs j WHERE j.id = f.id AND j.state != 'COMPLETE')"
_OWNERS = f"""
SELECT DISTINCT f.name, f.owner FROM lifecycle_flows f WHERE f.name {{among[names]}}
    AND f.state IN ('PENDING', 'RUNNING', 'SUSPENDING', 'SUSPENDED', 'RESUMING')
    AND NOT (f.state = 'PENDING' AND f.error != '') AND {_WITHOUT_JOB}
"""  # noqa: S608  # our own text
_ASLEEP = "f.state = 'WAITING' AND f.due > 0 AND f.name {among[names]} AND " + _WITHOUT_JOB
_DUE_FLOWS = f"SELECT {_FLOW} FROM lifecycle_flows f WHERE {_ASLEEP} AND f.due <= :now ORDER BY f.due LIMIT :limit"  # noqa: S608  # our own columns
_DUE_OTHERS = _DUE_FLOWS.replace("f.name {among[names]}", "NOT f.name {among[names]}")
_COMMITTED = "SELECT 1 FROM lifecycle_flows WHERE id = :flow AND epoch = :epoch AND stamp = :stamp"
_TAKE_BACK = "DELETE FROM lifecycle_flow_changes WHERE flow = :flow AND seq >= :taken_back AND {held}"
_CHANGES = (
    "SELECT kind, name, old, new, NULL, reason, attempt, flow, seq, at, result FROM lifecycle_flow_changes"
    " WHERE flow = :id AND seq > :after ORDER BY seq LIMIT :limit"
)
# The first statement waits for any commit in progress, so that the rows from that commit are also deleted.
_DELETE = (
    "SELECT 1 FROM lifecycle_flows WHERE id = :id{update}",
    "DELETE FROM lifecycle_flow_steps WHERE flow = :id",
    "DELETE FROM lifecycle_flow_changes WHERE flow = :id",
    "DELETE FROM lifecycle_signals WHERE flow = :id",
    "DELETE FROM lifecycle_flows WHERE id = :id",
)
_OLD_FLOWS = f"""
SELECT f.id FROM lifecycle_flows f WHERE f.state IN {_ENDED} AND f.at < :before AND {_WITHOUT_JOB} AND NOT EXISTS
    (SELECT 1 FROM lifecycle_flows p WHERE p.id = f.parent AND p.state NOT IN {_ENDED}) AND WHICH
ORDER BY f.created LIMIT {_PURGED}
"""  # noqa: S608  # our own text
_ORPHANS = "flow {among[ids]} AND NOT EXISTS (SELECT 1 FROM lifecycle_flows f WHERE f.id = flow)"
_PURGE_FLOWS = (
    f"DELETE FROM lifecycle_flows WHERE id {{among[ids]}} AND state IN {_ENDED} AND at < :before",  # noqa: S608  # our own text
    f"DELETE FROM lifecycle_flow_steps WHERE {_ORPHANS}",  # noqa: S608  # our own text
    f"DELETE FROM lifecycle_flow_changes WHERE {_ORPHANS}",  # noqa: S608  # our own text
    f"DELETE FROM lifecycle_signals WHERE {_ORPHANS}",  # noqa: S608  # our own text
)

# -- signals and children ---------------------------------------------------------------------------------------------

_SIGNAL = ", ".join(SignalRow._fields)
_RECEIVE = "UPDATE lifecycle_signals SET taken = true WHERE flow = :flow AND number {among[taken]} AND {held}"
# These statements run after the batch has locked the flow's row, and signals and children lock that row, too. Thus
# either these statements see the signal or the child's end, or the signal or the child sees that the flow is WAITING.
_WAKE_IF_OVER = f"""
UPDATE lifecycle_flows SET due = {DUE_NOW} WHERE id = :flow AND epoch = :epoch AND state = 'WAITING' AND (
    EXISTS (SELECT 1 FROM lifecycle_signals s WHERE s.flow = :flow AND NOT s.taken AND s.name {{among[awaited]}})
    OR EXISTS (SELECT 1 FROM lifecycle_flows c WHERE c.id {{among[awaited_children]}} AND c.state IN {_ENDED}))
"""  # noqa: S608  # our own text
# Like the statements that claim jobs, we lock the job before the flow.
_LOCK_JOB = "SELECT 1 FROM lifecycle_jobs WHERE id = :woken{update}"
_LOCK_FLOW = "SELECT 1 FROM lifecycle_flows WHERE id = :woken{update}"
_WAKE_FLOW = f"UPDATE lifecycle_flows SET due = {DUE_NOW} WHERE id = :woken AND state = 'WAITING'"  # noqa: S608  # our own text
_WAKE_JOB = """
UPDATE lifecycle_jobs SET due = 0 WHERE id = :woken AND state = 'UNCLAIMED' AND due > 0
    AND EXISTS (SELECT 1 FROM lifecycle_flows f WHERE f.id = :woken AND f.state = 'WAITING')
"""
# The name of a child's step does not contain the child's id, but its history does.
_WAITING_PARENTS = f"""
WHERE name {{among[names]}} AND state = 'WAITING' AND EXISTS (
    SELECT 1 FROM lifecycle_flow_steps s JOIN lifecycle_flows c ON c.id = s.history
    WHERE s.flow = lifecycle_flows.id AND s.kind = 'child' AND s.state = 'RUNNING'
    AND c.state NOT IN {_ENDED} AND NOT c.name {{among[known]}})
"""  # noqa: S608  # our own text
_ANY_PARENT = f"SELECT id FROM lifecycle_flows {_WAITING_PARENTS} LIMIT 1"  # noqa: S608  # our own text
_WAKE_PARENTS = f"UPDATE lifecycle_flows SET due = {DUE_NOW} {_WAITING_PARENTS} RETURNING id"  # noqa: S608  # our own text
_ADD_SIGNAL = f"""
INSERT INTO lifecycle_signals (flow, name, data, key, at) SELECT :flow, :name, :data, :key, :at
WHERE EXISTS (SELECT 1 FROM lifecycle_flows f WHERE f.id = :flow AND f.state NOT IN {_ENDED})
    OR (NOT EXISTS (SELECT 1 FROM lifecycle_flows f WHERE f.id = :flow)
        AND EXISTS (SELECT 1 FROM lifecycle_jobs j WHERE j.id = :flow AND j.state != 'COMPLETE'))
ON CONFLICT (flow, key) DO NOTHING
"""  # noqa: S608  # our own text
_STATES = """
SELECT (SELECT f.state FROM lifecycle_flows f WHERE f.id = :flow),
    EXISTS (SELECT 1 FROM lifecycle_jobs j WHERE j.id = :flow AND j.state != 'COMPLETE')
"""
_SIGNALS = f"SELECT {_SIGNAL} FROM lifecycle_signals WHERE flow = :id AND number > :after ORDER BY number"  # noqa: S608  # our own columns
_LEFT = f"SELECT {_SIGNAL} FROM lifecycle_signals WHERE flow = :id AND NOT taken ORDER BY number"  # noqa: S608  # our own columns


_SCHEDULE = "INSERT INTO lifecycle_schedules (name, last) VALUES (:schedule, :now) ON CONFLICT (name) DO NOTHING"
_SCHEDULED = "SELECT last FROM lifecycle_schedules WHERE name = :schedule"
_RESET_SCHEDULE = "UPDATE lifecycle_schedules SET last = :now WHERE name = :schedule AND last = :seen"
_START_SCHEDULED = "UPDATE lifecycle_schedules SET last = :due WHERE name = :schedule AND last < :due RETURNING name"


class SQLStore(Store):
    """The `Store` methods, which store flows in a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database, self._sql = database, database.dialect
        # Stamps increase with each write, even across restarts of this process.
        self._stamps = itertools.count(time.time_ns())

    async def create(self, flow: FlowRow) -> bool:
        values = flow._asdict() | {"stamp": next(self._stamps)}
        done = self._sql.recovery(values, _CREATED)
        (created,) = await self._database.run(self._sql.ask(_CREATE, values), done=done)
        return bool(created)

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # the natural name
        (rows,) = await self._database.read(self._sql.ask(_LOAD, {"id": id}))
        if not rows:
            raise unknown(id)
        return _snapshots(rows)[id]

    async def take(self, id: str, owner: str, *, seen: int, ended: bool = False) -> Snapshot:  # noqa: A002  # the natural name
        values = {"id": id, "owner": owner, "seen": seen, "ended": ended, "stamp": next(self._stamps)}
        works = self._sql.do(_TAKE, values), self._sql.ask(_TAKEN, values), self._sql.ask(_LEFT, values)
        rows, signals = await self._database.run(*works, done=self._sql.recovery(values, _TAKEN, _LEFT))
        if not rows:
            raise not_taken((await self.load(id)).flow, seen)
        return _snapshots(rows)[id]._replace(signals=_signals(signals))

    async def commit(self, batch: Batch) -> None:
        work = committing(self._sql, batch, next(self._stamps))
        done = self._sql.recovery(work.guard.values, _COMMITTED)
        (held,) = await self._database.run(*self._locking(batch), work, *self._waking(batch), done=done)
        if not held:
            row = await self.get(batch.flow) if batch.is_success else None
            raise lost(batch.flow, batch.epoch) if row is None or row.epoch != batch.epoch else cancelled(batch.flow)

    def _locking(self, batch: Batch) -> list[Statement]:
        """Return the statements that lock the rows of the parent, and then the row of a workflow that succeeds.

        A signal locks the row of its flow, too. So the commit either sees a cancellation, or the cancellation sees that
        the workflow has ended.
        """
        parent = self._lock(batch.parent) if batch.parent and batch.state in ENDS else []
        own = [self._sql.do(_LOCK_FLOW, {"woken": batch.flow})] if batch.is_success and self._sql.locks else []
        return parent + own

    def _lock(self, id: str) -> list[Statement]:  # noqa: A002  # the natural name
        return [self._sql.do(each, {"woken": id}) for each in (_LOCK_JOB, _LOCK_FLOW)] if self._sql.locks else []

    def _waking(self, batch: Batch) -> list[Statement]:
        """Return the statements that make the flow or its parent due if what it waits for is over."""
        if batch.state == FlowState.WAITING:
            values = {
                "flow": batch.flow,
                "epoch": batch.epoch,
                "awaited": self._sql.listed([CANCEL, *batch.awaited]),
                "awaited_children": self._sql.listed(batch.awaited_children),
            }
            return [self._sql.do(_WAKE_IF_OVER, values)]
        return self._wake(batch.parent) if batch.parent and batch.state in ENDS else []

    def _wake(self, id: str) -> list[Statement]:  # noqa: A002  # the natural name
        return [self._sql.do(each, {"woken": id}) for each in (_WAKE_FLOW, _WAKE_JOB)]

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # the natural name
        (rows,) = await self._database.read(self._sql.ask(_GET, {"id": id}))
        return FlowRow._make(rows[0]) if rows else None

    async def flows(
        self,
        *,
        name: str | None = None,
        states: Collection[str] = (),
        since: float = 0.0,
        newest: int | None = None,
    ) -> list[FlowRow]:
        # Compare only the columns that we filter by, so that an index on them is used. With ``since``, use that on the
        # time.
        plus = "{unindexed}" if since else ""
        wanted = [] if name is None else [f"{plus}f.name = :name"]
        if states:
            wanted.append(f"{plus}f.state {{among[states]}}")
        if since:
            wanted.append("f.created >= :since")
        values = {"name": name, "states": self._sql.listed(map(str, states)), "since": since, "newest": newest}
        text = (_FIND if newest is None else _NEWEST).replace("WHICH", " AND ".join(wanted) or "true")
        (rows,) = await self._database.read(self._sql.ask(text, values))
        return [FlowRow._make(row) for row in rows]

    async def owners(self, names: Collection[str]) -> set[tuple[str, str]]:
        (rows,) = await self._database.read(self._sql.ask(_OWNERS, {"names": self._sql.listed(names)}))
        return {(name, owner) for name, owner in rows}

    async def due(self, names: Collection[str], *, now: float, limit: int, others: bool = False) -> list[FlowRow]:
        values = {"names": self._sql.listed(names), "now": now, "limit": limit}
        (rows,) = await self._database.read(self._sql.ask(_DUE_OTHERS if others else _DUE_FLOWS, values))
        return [FlowRow._make(row) for row in rows]

    async def scheduled(self, schedule: str, *, now: float) -> float:
        values = {"schedule": schedule, "now": now}
        (((last,),),) = await self._database.run(self._sql.do(_SCHEDULE, values), self._sql.ask(_SCHEDULED, values))
        return float(last)

    async def start_scheduled(self, flow: FlowRow, schedule: str, *, due: float) -> bool:
        stamp = next(self._stamps)
        values = {"id": flow.id, "owner": flow.owner, "stamp": stamp}
        row = Rows("lifecycle_flows", (*_STORED, "stamp"), [(*_ROW_OF(flow), stamp)], key="id", keep=True)
        starting = Guarded(self._sql.do(_START_SCHEDULED, {"schedule": schedule, "due": due}), [row])
        done = self._sql.recovery(values, _CREATED)
        (created,) = await self._database.run(starting, self._sql.ask(_CREATED, values), done=done)
        return bool(created)

    async def reset_schedule(self, schedule: str, *, seen: float, now: float) -> None:
        values = {"schedule": schedule, "seen": seen, "now": now}
        await self._database.run(self._sql.do(_RESET_SCHEDULE, values))

    async def wake_parents(self, names: Collection[str], *, known: Collection[str]) -> bool:
        values = {"names": self._sql.listed(names), "known": self._sql.listed(known)}
        # A read does not wait while another process has locked the file.
        (rows,) = await self._database.read(self._sql.ask(_ANY_PARENT, values))
        if not rows:
            return False
        (rows,) = await self._database.run(self._sql.ask(_WAKE_PARENTS, values))
        jobs = [self._sql.do(_WAKE_JOB, {"woken": id}) for (id,) in rows]  # noqa: A001  # the natural name
        if jobs:
            await self._database.run(*jobs)
        return bool(rows)

    async def signal(self, row: SignalRow) -> FlowState:
        # The key makes a repeated insert harmless if the response is lost.
        adding = self._sql.do(_ADD_SIGNAL, keyed(row)._asdict())
        states = self._sql.ask(_STATES, {"flow": row.flow})
        works = (*self._lock(row.flow), adding, *self._wake(row.flow), states)
        (((state, with_job),),) = await self._database.run(*works)
        if state is None and not with_job:
            raise unknown(row.flow)
        return FlowState(state or FlowState.PENDING)

    async def signals(self, id: str, *, after: int = 0) -> list[SignalRow]:  # noqa: A002  # the natural name
        (rows,) = await self._database.read(self._sql.ask(_SIGNALS, {"id": id, "after": after}))
        return _signals(rows)

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # the natural name
        (rows,) = await self._database.read(self._sql.ask(_CHANGES, {"id": id, "after": after, "limit": limit}))
        return [Change._make(row) for row in rows]

    async def delete(self, id: str) -> bool:  # noqa: A002  # the natural name
        first, *rest = _DELETE
        works = [self._sql.ask(first, {"id": id}), *(self._sql.do(each, {"id": id}) for each in rest)]
        (found,) = await self._database.run(*works)
        return bool(found)

    async def purge(self, before: float, *, name: str | None = None) -> int:
        old = _OLD_FLOWS.replace("WHICH", "true" if name is None else "f.name = :name")
        count = 0
        while True:
            (rows,) = await self._database.read(self._sql.ask(old, {"before": before, "name": name}))
            if not rows:
                return count
            values = {"before": before, "ids": self._sql.listed(id for (id,) in rows)}  # noqa: A001  # the natural name
            await self._database.run(*[self._sql.do(each, values) for each in _PURGE_FLOWS])
            count += len(rows)

    def jobs(self, presence: Presence) -> SQLJobs:
        return SQLJobs(self._database, presence, self._stamps)

    def outbox(self) -> SQLOutbox:
        return SQLOutbox(self._database)


def committing(sql: Dialect, batch: Batch, stamp: int) -> Guarded:
    """Return the statements that write ``batch`` if the flow's epoch is unchanged."""
    flow = batch.flow
    values = {
        "flow": flow,
        "epoch": batch.epoch,
        "state": batch.state,
        "at": batch.at,
        "store": batch.store,
        "error": storable(batch.error),
        "stamp": stamp,
        "kind": batch.kind,
        "due": batch.due,
        "result": batch.result,
        "taken": sql.listed(batch.taken),
    }
    then: list[Statement | Rows] = [sql.do(each, values) for each in sql.then]
    if batch.steps:
        steps = [(flow, *row) for row in batch.steps]
        then.append(Rows("lifecycle_flow_steps", ("flow", *StepRow._fields), steps, key="flow, name"))
    if batch.taken_back:
        then.append(sql.do(_TAKE_BACK, {"flow": flow, "taken_back": batch.taken_back}))
    if batch.changes:
        then.append(Rows("lifecycle_flow_changes", _CHANGE, [_CHANGE_OF(change) for change in batch.changes]))
    if batch.taken:
        then.append(sql.do(_RECEIVE, {"flow": flow, "taken": sql.listed(batch.taken)}))
    if batch.children:
        children = [_ROW_OF(child) for child in batch.children]
        then.append(Rows("lifecycle_flows", _STORED, children, key="id", keep=True))
    if batch.sent:
        sent = [(row.id, row.topic, row.data, 0.0) for row in batch.sent]
        then.append(Rows("lifecycle_outbox", ("id", "topic", "data", "until"), sent))
    return Guarded(sql.ask(sql.guard, values), then)


def _signals(rows: list[Row]) -> list[SignalRow]:
    return [SignalRow._make(row)._replace(taken=bool(row[-1])) for row in rows]


def _snapshots(rows: list[Row]) -> dict[str, Snapshot]:
    """Convert rows from `_SNAPSHOTS` to snapshots, by flow id."""
    flows: dict[str, FlowRow] = {}
    steps: dict[str, dict[str, StepRow]] = {}
    for row in rows:
        if row[1] is None:
            step = StepRow._make(row[_WIDTH:])
            steps.setdefault(row[0], {})[step.name] = step
        else:
            flows[row[0]] = FlowRow._make(row[:_WIDTH])
    return {id: Snapshot(flow, steps.get(id, {})) for id, flow in flows.items()}  # noqa: A001  # the natural name


# -- jobs --------------------------------------------------------------------------------------------------------------

_JOB = ", ".join(JobRow._fields)
_GIVEN = [name for name in JobRow._fields if name != "number"]
_WRITTEN = _GIVEN[_GIVEN.index("state") :]
_ADD = (
    f"INSERT INTO lifecycle_jobs ({', '.join(_GIVEN)})"  # noqa: S608  # our own columns
    f" VALUES ({', '.join(f':{name}' for name in _GIVEN)}) ON CONFLICT (id) DO NOTHING"
)
_ONE = f"SELECT {_JOB} FROM lifecycle_jobs WHERE id = :id"  # noqa: S608  # our own columns
_PAGE = (
    f"SELECT {_JOB} FROM lifecycle_jobs WHERE state {{among[states]}} AND (rank, number) > (:rank, :number)"  # noqa: S608  # our own columns
    " AND QUEUE"
    " ORDER BY rank, number LIMIT :limit"
)
_EVERY = 2**62
_OVER = "SELECT 1 FROM lifecycle_jobs WHERE state = 'CLAIMED' AND until <= :now LIMIT 1"
_TOKENS = "SELECT DISTINCT token FROM lifecycle_jobs WHERE state = 'CLAIMED' AND token != ''"
# Expired claims are ended in three steps. First, we set their ``until`` to -1. Only this transaction sees this
# value, and other processes that end claims at the same time skip these claims. Second, we increment the epochs of
# their flows, which waits for commits in progress. Third, we update the jobs as `expired` does, depending on the states
# of the flows after those commits.
_MARK = """
UPDATE lifecycle_jobs SET until = -1 WHERE number IN (SELECT number FROM lifecycle_jobs
    WHERE state = 'CLAIMED' AND until >= 0 AND WHICH{skip})
"""
_MARK_EXPIRED = _MARK.replace("WHICH", "until <= :now")
_MARK_GONE = _MARK.replace("WHICH", "token {among[gone]}")
# As `is_suspect` does.
_SUSPECT = f"replace(error, '{UNRELEASED}', '') != error"
_EXPIRE = (
    f"""UPDATE lifecycle_flows SET epoch = epoch + 1, owner = '', stamp = 0,
        at = CASE WHEN expired.final AND state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED')
            THEN :at ELSE at END,
        error = CASE WHEN expired.final AND state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED')
            THEN 'its job was discarded: ' || expired.words ELSE error END,
        state = CASE WHEN expired.final AND state NOT IN ('PENDING', 'SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED')
            THEN 'FAILURE' ELSE state END
    FROM (SELECT id AS job, flow, attempts >= max_attempts AND {_SUSPECT} AS final,
        owner || ' {UNRELEASED}' AS words
        FROM lifecycle_jobs WHERE state = 'CLAIMED' AND until = -1) AS expired
    WHERE id = expired.job AND name = expired.flow""",  # noqa: S608  # our own text
    f"""UPDATE lifecycle_jobs SET
        state = CASE WHEN expired.final THEN 'COMPLETE' ELSE 'UNCLAIMED' END,
        outcome = CASE WHEN NOT expired.final THEN outcome
            WHEN expired.done IN ('SUCCESS', 'REVERTED', 'CANCELLED') THEN expired.done ELSE 'discarded' END,
        ended = CASE WHEN expired.final THEN :now ELSE ended END,
        attempts = CASE WHEN {_SUSPECT} THEN attempts ELSE attempts - 1 END,
        error = CASE WHEN expired.final AND expired.done = 'SUCCESS' THEN '' ELSE owner || ' {UNRELEASED}' END,
        owner = '', token = '', until = 0
    FROM (SELECT j.number AS place, j.attempts >= j.max_attempts AND {_SUSPECT.replace("error", "j.error")} AS final,
        f.state AS done
        FROM lifecycle_jobs j LEFT JOIN lifecycle_flows f ON f.id = j.id AND f.name = j.flow
        WHERE j.state = 'CLAIMED' AND j.until = -1) AS expired
    WHERE number = expired.place""",  # noqa: S608  # our own text
)
_DUE = """
UPDATE lifecycle_jobs SET due = 0 WHERE number IN (SELECT number FROM lifecycle_jobs
    WHERE state = 'UNCLAIMED' AND due > 0 AND due <= :now{skip})
"""
_CLAIM = f"""
WITH first AS (
    SELECT number AS place FROM lifecycle_jobs AS j WHERE state = 'UNCLAIMED' AND due = 0 AND queue = :queue AND WHICH
    ORDER BY rank, number LIMIT :limit{{skip}}
)
UPDATE lifecycle_jobs SET state = 'CLAIMED', owner = :owner, token = :token, until = :until, epoch = epoch + 1,
    attempts = attempts + 1, stamp = :stamp
FROM first WHERE number = first.place RETURNING {_JOB}
"""  # noqa: S608  # our own columns
_CLAIM_ANY, _CLAIM_OF_ONE = _CLAIM.replace("WHICH", "true"), _CLAIM.replace("WHICH", "flow = :flow0")
# The index orders the jobs for each flow separately. We find the first jobs for each flow before locking any, because
# other processes would skip a job that is locked but not claimed. We look for more jobs than requested, because other
# processes may claim the first ones.
_FIRST_OF = """SELECT * FROM (SELECT number, rank FROM lifecycle_jobs
    WHERE state = 'UNCLAIMED' AND due = 0 AND queue = :queue AND flow = :flow{}
    ORDER BY rank, number LIMIT :limit + 100) AS each{}"""
_OF_SEVERAL = "number IN (SELECT number FROM ({}) AS every ORDER BY rank, number LIMIT :limit + 100)"
# The maximum number of flows to query separately. If there are more, we sort all jobs instead, because databases limit
# the number of parts in a statement, and long statements are slow to parse.
_PARTS = 100
_CLAIM_OF_MANY = _CLAIM.replace("WHICH", "flow {among[flows]}")
# If a queue has limits, its claims take turns, so that each one sees the claims of the others.
_TURN = "SELECT pg_advisory_xact_lock(hashtext('lifecycle queue'), hashtext(current_schema() || :queue))"
_PLACES = """(SELECT CASE WHEN min(places) > 0 THEN min(places) ELSE 0 END FROM (SELECT :limit AS places
    UNION ALL SELECT :concurrency - (SELECT count(*) FROM lifecycle_jobs WHERE state = 'CLAIMED' AND queue = :queue)
    UNION ALL SELECT :most - (SELECT count(*) FROM lifecycle_job_starts WHERE queue = :queue AND at > :since)
) AS rooms)"""
# With a limit per key, the jobs of busy keys must not be read one by one. So ``head`` contains the first jobs of the
# queue, and if there are too few free ones among them, ``walk`` contains the first jobs of each key. Jobs without a key
# have no such limit. ``place`` counts the jobs with the same key.
_FIRST_WITH_KEY = _FIRST_OF.replace("rank FROM", "rank, key FROM").replace("100", "20")
_HEAD = """
SELECT number, key, row_number() OVER (PARTITION BY key ORDER BY rank, number) AS place
FROM (SELECT * FROM ({}) AS every ORDER BY rank, number LIMIT :limit + 20) AS firsts
"""
_NO_HEAD = "SELECT number, key, 0 AS place FROM lifecycle_jobs WHERE false"
_IS_FREE = """SEEN.place <= CASE SEEN.key WHEN '' THEN :limit
    ELSE :key_concurrency - coalesce((SELECT jobs FROM busy WHERE busy.key = SEEN.key), 0) END"""
_OF_HEAD, _OF_WALK = _IS_FREE.replace("SEEN", "head"), _IS_FREE.replace("SEEN", "walk")
_TOO_FEW = f"(SELECT count(*) FROM head) = :limit + 20 AND (SELECT count(*) FROM head WHERE {_OF_HEAD}) < :limit"  # noqa: S608  # our own text
_FREE = f"""RECURSIVE busy AS (
    SELECT key, count(*) AS jobs FROM lifecycle_jobs WHERE state = 'CLAIMED' AND queue = :queue AND key != ''
    GROUP BY key
), head AS (HEAD), walk (number, rank, key, place) AS (
    SELECT CAST(-1 AS BIGINT), -1, '', 0 WHERE TOO_FEW
    UNION ALL
    SELECT j.number, j.rank, j.key, CASE j.key WHEN walk.key THEN walk.place + 1 ELSE 1 END
    FROM walk CROSS JOIN lifecycle_jobs AS j WHERE j.number = (
        SELECT o.number FROM lifecycle_jobs AS o
        WHERE o.state = 'UNCLAIMED' AND o.due = 0 AND o.queue = :queue AND FLOWS AND (o.key, o.rank, o.number) > (
            walk.key,
            CASE WHEN walk.place < CASE walk.key WHEN '' THEN :limit ELSE :key_concurrency END THEN walk.rank
                ELSE {len(PRIORITIES)} END,
            walk.number)
        ORDER BY o.key, o.rank, o.number LIMIT 1)
), free AS (
    SELECT number FROM head WHERE {_OF_HEAD} UNION SELECT number FROM walk WHERE {_OF_WALK}
), first"""  # noqa: S608  # our own text
_COUNT_STARTS = """INSERT INTO lifecycle_job_starts (queue, at) SELECT :queue, :now FROM lifecycle_jobs
    WHERE state = 'CLAIMED' AND until = :until AND token = :token AND stamp = :stamp"""
_FORGET_STARTS = "DELETE FROM lifecycle_job_starts WHERE queue = :queue AND at <= :since"
_NEXT_START = """SELECT at + :per FROM lifecycle_job_starts WHERE queue = :queue AND at + :per > :now
    ORDER BY at DESC LIMIT 1 OFFSET :most - 1"""
_CLAIMED = f"SELECT {_JOB} FROM lifecycle_jobs WHERE state = 'CLAIMED' AND token = :token AND stamp = :stamp"  # noqa: S608  # our own columns
_WRITE = f"""
UPDATE lifecycle_jobs SET {", ".join(f"{name} = :{name}" for name in _WRITTEN)}, stamp = :stamp
WHERE id = :id AND state = :old_state AND epoch = :old_epoch AND (state != 'CLAIMED' OR until > :now){{counted}}
"""  # noqa: S608  # our own columns
# The first statement locks the flow's row, so that no signal is lost that arrives at the same time. The second one
# changes the job as `parked` does.
_PARK = f"""
UPDATE lifecycle_jobs SET state = 'UNCLAIMED', owner = '', token = '', until = 0, attempts = attempts - 1,
    error = CASE WHEN {_SUSPECT} THEN '' ELSE error END,
    due = coalesce((SELECT nullif(f.due, 0) FROM lifecycle_flows f WHERE f.id = :woken), :never), stamp = :stamp
WHERE id = :woken AND state = 'CLAIMED' AND epoch = :epoch AND until > :now{{counted}}
"""  # noqa: S608  # our own text
# A flow that has started is cancelled by a signal instead, so that a workflow can undo its steps.
_CANCEL_FLOW = """
INSERT INTO lifecycle_flows AS had (id, name, state, epoch, owner, store, error, at, created)
SELECT id, flow, 'CANCELLED', 1, '', store, '', :at, :at FROM lifecycle_jobs WHERE id = :woken AND state = 'UNCLAIMED'
ON CONFLICT (id) DO UPDATE SET state = 'CANCELLED', epoch = had.epoch + 1, owner = '', at = excluded.at
WHERE had.name = excluded.name AND had.state = 'PENDING'
"""
_CANCEL_JOB = """
UPDATE lifecycle_jobs SET state = 'COMPLETE', outcome = 'CANCELLED', error = '', ended = :now, stamp = :stamp
WHERE id = :woken AND state = 'UNCLAIMED' AND EXISTS (SELECT 1 FROM lifecycle_flows f
    WHERE f.id = :woken AND f.name = lifecycle_jobs.flow AND f.state = 'CANCELLED') RETURNING 1
"""
_WRITTEN_BY = "SELECT 1 FROM lifecycle_jobs WHERE id = :id AND stamp = :stamp"
_DISCARD = """
UPDATE lifecycle_flows SET state = CASE state WHEN 'PENDING' THEN state ELSE 'FAILURE' END,
    error = :words, at = :at, epoch = epoch + 1, owner = '', stamp = 0
WHERE id = :id AND name = :flow AND state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED', 'CANCELLED') AND {held}
"""
_RENEW = """
UPDATE lifecycle_jobs SET until = :until
WHERE state = 'CLAIMED' AND id {among[ids]} AND epoch || '/' || id {among[claims]} RETURNING id, epoch
"""
# Creates the flows of claimed jobs, or takes those that already exist. If this statement reaches a server twice, the
# second copy does not increment the epochs again. Flows with a different name are not changed.
_ADOPT = f"""
INSERT INTO lifecycle_flows AS had (id, name, state, epoch, owner, store, error, at, created, stamp)
SELECT id, flow, 'PENDING', 1, token, store, '', 0, :at, :stamp FROM lifecycle_jobs
WHERE state = 'CLAIMED' AND WHICH ORDER BY rank, number{{share}}
ON CONFLICT (id) DO UPDATE SET epoch = had.epoch + 1, owner = excluded.owner, stamp = excluded.stamp, {_RESUME}
WHERE had.name = excluded.name AND {{unsent}}
"""  # noqa: S608  # our own columns
_OURS = "id = :id AND epoch = :epoch AND until > :now"
_HELD = f"SELECT 1 FROM lifecycle_jobs WHERE state = 'CLAIMED' AND {_OURS}"  # noqa: S608  # our own text
_ADOPT_ONE = _ADOPT.replace("WHICH", _OURS)
# We also compare ``until``, because that column has an index.
_ADOPT_CLAIMED = _ADOPT.replace("WHICH", "until = :until AND token = :token AND stamp = :stamp")
_ADOPTED = _SNAPSHOTS.replace("WHICH", "f.id = :id AND f.owner = :owner AND f.stamp = :stamp")
_BEGUN = _SNAPSHOTS.replace(
    "WHICH",
    "f.owner = :token AND f.stamp = :stamp AND f.id IN (SELECT j.id FROM lifecycle_jobs j"
    " WHERE j.state = 'CLAIMED' AND j.until = :until AND j.token = :token AND j.stamp = :stamp)",
)
_NEXT = """
SELECT (SELECT min(due) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > 0 AND due > :now AND due < :never),
    (SELECT min(until) FROM lifecycle_jobs WHERE state = 'CLAIMED')
"""
_OTHERS = (
    f"SELECT {_JOB} FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0 AND queue = :queue"  # noqa: S608  # our own columns
    " AND NOT flow {among[flows]} LIMIT :limit"
)
_UNFINISHED = "SELECT id FROM lifecycle_jobs WHERE id {among[ids]} AND state != 'COMPLETE'"
_OLD_JOBS = f"""
SELECT id, ended FROM lifecycle_jobs WHERE state = 'COMPLETE' AND ended < :before AND ended >= :since AND queue = :queue
ORDER BY ended LIMIT {_PURGED}
"""  # noqa: S608  # our own text
_OLD = "state = 'COMPLETE' AND ended < :before"
# As elsewhere, the jobs are locked before their flows. Flows with a different name are kept.
_PURGE_JOBS = (
    f"SELECT 1 FROM lifecycle_jobs WHERE id {{among[ids]}} AND {_OLD} ORDER BY number{{update}}",  # noqa: S608  # our own text
    f"""DELETE FROM lifecycle_flows WHERE id {{among[ids]}} AND EXISTS (SELECT 1 FROM lifecycle_jobs j
        WHERE j.id = lifecycle_flows.id AND j.flow = lifecycle_flows.name AND {_OLD.replace("state", "j.state")})""",  # noqa: S608  # our own text
    f"DELETE FROM lifecycle_jobs WHERE id {{among[ids]}} AND {_OLD}",  # noqa: S608  # our own text
    *_PURGE_FLOWS[1:],
)
# Each of these counts uses an index.
_COUNTS = """
SELECT 'UNCLAIMED', (SELECT count(*) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0 AND QUEUE)
    + (SELECT count(*) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > 0 AND QUEUE)
UNION ALL SELECT 'CLAIMED', (SELECT count(*) FROM lifecycle_jobs WHERE state = 'CLAIMED' AND QUEUE)
"""


class SQLJobs(JobStore):
    """A `JobStore` that uses a `Database`."""

    def __init__(self, database: Database, presence: Presence, stamps: itertools.count[int]) -> None:
        self._database, self._sql, self._presence, self._stamps = database, database.dialect, presence, stamps
        self._expiring = [self._sql.text(each) for each in (_MARK_EXPIRED, *_EXPIRE)]
        # The value of `Presence.losses` when all tokens were last checked. -1 requests a check.
        self._losses = -1

    async def add(self, row: JobRow) -> JobRow:
        values = row._asdict()
        ((kept,),) = await self._database.run(self._sql.do(_ADD, values), self._sql.ask(_ONE, values))
        return JobRow._make(kept)

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # the natural name
        rows = await self._look(now, self._sql.ask(_ONE, {"id": id}))
        return JobRow._make(rows[0]) if rows else None

    async def rows(
        self,
        *states: str,
        now: float,
        queue: str | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        rank, number = after or (-1, -1)
        most = _EVERY if limit is None else limit
        values = {"states": self._sql.listed(map(str, states)), "rank": rank, "number": number, "limit": most}
        page = self._sql.ask(_of_queue(_PAGE, queue), values | {"queue": queue})
        return list(map(JobRow._make, await self._look(now, page)))

    async def take(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        if flows is not None and not flows:
            return []
        values = self._values(flows, claim, limit)
        done = self._sql.recovery(values, _CLAIMED)
        (rows,) = await self._run(claim.now, *self._claiming(flows, claim, values), done=done)
        return _in_order(rows)

    async def begin(self, flows: Collection[str], claim: Claim, limit: int) -> list[tuple[JobRow, Snapshot | None]]:
        values = self._values(flows, claim, limit)
        adopting, begun = self._sql.do(_ADOPT_CLAIMED, values), self._sql.ask(_BEGUN, values)
        done = self._sql.recovery(values, _CLAIMED, _BEGUN)
        rows, flows_ = await self._run(claim.now, *self._claiming(flows, claim, values), adopting, begun, done=done)
        found = _snapshots(flows_)
        return [(job, found.get(job.id)) for job in _in_order(rows)]

    def _values(self, flows: Collection[str] | None, claim: Claim, limit: int) -> dict[str, Any]:
        values = claim._asdict()
        values |= {"stamp": next(self._stamps), "limit": limit, "at": time.time()}
        for place, flow in enumerate(flows or ()):
            values[f"flow{place}"] = flow
        return values

    def _claiming(self, flows: Collection[str] | None, claim: Claim, values: dict[str, Any]) -> list[Statement]:
        due = self._sql.do(_DUE, values)
        if claim.limits != UNLIMITED:
            return [due, *self._claiming_with_limits(flows, claim.limits, values)]
        if flows is None:
            text = _CLAIM_ANY
        elif len(flows) == 1:
            text = _CLAIM_OF_ONE
        elif len(flows) > _PARTS:
            text, values = _CLAIM_OF_MANY, values | {"flows": self._sql.listed(flows)}
        else:
            firsts = " UNION ALL ".join(_FIRST_OF.format(place, place) for place in range(len(flows)))
            text = _CLAIM.replace("WHICH", _OF_SEVERAL.format(firsts))
        return [due, self._sql.ask(text, values)]

    def _claiming_with_limits(
        self, flows: Collection[str] | None, limits: Limits, values: dict[str, Any]
    ) -> list[Statement]:
        text = _CLAIM.replace("WHICH", "true" if flows is None else "j.flow {among[flows]}")
        if limits.key_concurrency is not None:
            text = _claim_free(None if flows is None else len(flows))
        values |= {
            "concurrency": _EVERY if limits.concurrency is None else limits.concurrency,
            "key_concurrency": limits.key_concurrency,
            "most": _EVERY if limits.limit is None else limits.limit,
            "since": values["now"] - limits.per,
            "flows": self._sql.listed(flows or ()),
        }
        turn = [self._sql.do(_TURN, values)] if self._sql.locks else []
        text = text.replace("LIMIT :limit{skip}", f"LIMIT {_PLACES}{{skip}}")
        counting = (
            [] if limits.limit is None else [self._sql.do(each, values) for each in (_FORGET_STARTS, _COUNT_STARTS)]
        )
        return [*turn, self._sql.ask(text, values), *counting]

    async def compare_and_set(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        values = new._asdict()
        values |= {"old_state": old.state, "old_epoch": old.epoch, "now": now, "stamp": next(self._stamps)}
        # We don't have to end expired claims first, because this statement checks that its own claim has not expired.
        writing = self._sql.ask(_WRITE, values)
        work: Statement | Guarded = writing
        if new.outcome == DISCARDED:
            ending = {"id": new.id, "flow": new.flow, "words": storable(discarded(new)), "at": time.time()}
            work = Guarded(writing, [self._sql.do(_DISCARD, ending)])
        (rows,) = await self._database.run(work, done=self._sql.recovery(values, _WRITTEN_BY))
        return bool(rows)

    async def cancel(self, id: str, *, now: float) -> bool:  # noqa: A002  # the natural name
        values = {"woken": id, "id": id, "now": now, "at": time.time(), "stamp": next(self._stamps)}
        locks = [self._sql.do(each, values) for each in (_LOCK_JOB, _LOCK_FLOW)] if self._sql.locks else []
        works = (*locks, self._sql.do(_CANCEL_FLOW, values), self._sql.ask(_CANCEL_JOB, values))
        (rows,) = await self._run(now, *works, done=self._sql.recovery(values, _WRITTEN_BY))
        return bool(rows)

    async def park(self, row: JobRow, *, now: float) -> bool:
        values = {"woken": row.id, "id": row.id, "epoch": row.epoch, "now": now}
        values |= {"never": math.inf, "stamp": next(self._stamps)}
        locks = [self._sql.do(each, values) for each in (_LOCK_JOB, _LOCK_FLOW)] if self._sql.locks else []
        done = self._sql.recovery(values, _WRITTEN_BY)
        (rows,) = await self._database.run(*locks, self._sql.ask(_PARK, values), done=done)
        return bool(rows)

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        values = {
            "ids": self._sql.listed(row.id for row in rows),
            "claims": self._sql.listed(f"{row.epoch}/{row.id}" for row in rows),
            "until": until,
        }
        (kept,) = await self._run(now, self._sql.ask(_RENEW, values))
        return [row for row in rows if (row.id, row.epoch) not in set(kept)]

    async def adopt(self, row: JobRow, *, now: float) -> Snapshot:
        values = {"id": row.id, "epoch": row.epoch, "owner": row.token, "now": now, "stamp": next(self._stamps)}
        values["at"] = time.time()
        works = self._sql.do(_ADOPT_ONE, values), self._sql.ask(_ADOPTED, values)
        (found,) = await self._run(now, *works, done=self._sql.recovery(values, _ADOPTED))
        if found:
            return _snapshots(found)[row.id]
        held, named = await self._database.read(
            self._sql.ask(_HELD, values), self._sql.ask("SELECT name FROM lifecycle_flows WHERE id = :id", values)
        )
        if held and named and named[0][0] != row.flow:
            raise other_flow(row, named[0][0])
        raise lost_job(row)

    async def next(self, *, now: float, queue: str = "", limits: Limits = UNLIMITED) -> float | None:
        asks = [self._sql.ask(_NEXT, {"now": now, "never": math.inf})]
        if limits.limit is not None:
            values = {"now": now, "queue": queue, "most": limits.limit, "per": limits.per}
            asks.append(self._sql.ask(_NEXT_START, values))
        found = await self._database.read(*asks)
        return min((time for rows in found for row in rows for time in row if time is not None), default=None)

    async def others(self, flows: Collection[str], *, queue: str, limit: int) -> list[JobRow]:
        values = {"flows": self._sql.listed(flows), "queue": queue, "limit": limit}
        (rows,) = await self._database.read(self._sql.ask(_OTHERS, values))
        return list(map(JobRow._make, rows))

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        (rows,) = await self._database.read(self._sql.ask(_UNFINISHED, {"ids": self._sql.listed(ids)}))
        return {id for (id,) in rows}  # noqa: A001  # the natural name

    async def purge(self, *, before: float, queue: str) -> int:
        count, since = 0, -math.inf
        while True:
            values = {"before": before, "queue": queue, "since": since}
            (rows,) = await self._database.read(self._sql.ask(_OLD_JOBS, values))
            if not rows:
                return count
            # The jobs of other queues that ended earlier are not read again.
            since = rows[-1][1]
            values["ids"] = self._sql.listed(id for id, _ in rows)  # noqa: A001  # the natural name
            await self._database.run(*[self._sql.do(each, values) for each in _PURGE_JOBS])
            count += len(rows)

    async def counts(self, queue: str | None = None) -> dict[str, int]:
        (rows,) = await self._database.read(self._sql.ask(_of_queue(_COUNTS, queue), {"queue": queue}))
        return {str(state): int(count) for state, count in rows}

    def doubt(self) -> None:
        self._losses = -1

    async def _look(self, now: float, statement: Statement) -> list[Row]:
        """End expired claims, then run ``statement`` and return its rows."""
        if self._sql.local and self._losses == self._presence.losses:
            # This way, reads wait for writers only if a claim has expired.
            over, rows = await self._database.read(self._sql.ask(_OVER, {"now": now}), statement)
            if not over:
                return rows
        (rows,) = await self._run(now, statement)
        return rows

    async def _run(self, now: float, *works: Statement | Guarded, done: Sequence[Statement] = ()) -> list[list[Row]]:
        """End expired claims, then run ``works``."""
        losses, values = self._presence.losses, {"now": now, "at": time.time()}
        expiring = [Statement(each, values) for each in self._expiring]
        first: list[Statement] | list[Guarded] = expiring
        if self._sql.local:
            if self._losses != losses and (gone := await self._find_gone()):
                expiring.insert(1, self._sql.do(_MARK_GONE, {"gone": self._sql.listed(gone)}))
            else:
                # With a file, checking for expired claims is faster than running updates that don't change anything.
                first = [Guarded(self._sql.do(_OVER, values), expiring)]
        results = await self._database.run(*first, *works, done=done)
        self._losses = losses
        return results

    async def _find_gone(self) -> list[str]:
        """Return the claim tokens of processes that have exited."""
        (tokens,) = await self._database.read(self._sql.ask(_TOKENS))
        return [token for (token,) in tokens if not self._presence.alive(token)]


@functools.cache
def _claim_free(flows: int | None) -> str:
    """Return the statement that claims jobs for so many flows, or for all, in a queue with a limit per key."""
    free = _FREE.replace("FLOWS", "true" if flows is None else "o.flow {among[flows]}")
    if flows is None or flows > _PARTS:
        free = free.replace("TOO_FEW", "true").replace("HEAD", _NO_HEAD)
    else:
        firsts = " UNION ALL ".join(_FIRST_WITH_KEY.format(place, place) for place in range(flows))
        free = free.replace("TOO_FEW", _TOO_FEW).replace("HEAD", _HEAD.format(firsts))
    # The indexes of all unclaimed jobs do not fit this comparison, so only the free jobs are read.
    claim = _CLAIM.replace("due = 0 AND", "due <= 0 AND").replace("WHICH", "number {chosen}")
    return claim.replace("WITH first", f"WITH {free}")


def _of_queue(template: str, queue: str | None) -> str:
    return template.replace("QUEUE", "true" if queue is None else "queue = :queue")


def _in_order(rows: list[Row]) -> list[JobRow]:
    return sorted(map(JobRow._make, rows), key=lambda row: (row.rank, row.number))


# -- sent events -------------------------------------------------------------------------------------------------------

_EVENT = ", ".join(OutboxRow._fields)
# The index orders new events by number, and all others by when their lease or delay ends. The statement updates events
# the way `records.taken` does.
_TAKE_EVENTS = f"""
WITH new AS (
    SELECT number AS place FROM lifecycle_outbox WHERE NOT dead AND until = 0
    ORDER BY number LIMIT :limit{{skip}}
), again AS (
    SELECT number AS place FROM lifecycle_outbox WHERE NOT dead AND until > 0 AND until <= :now
    ORDER BY until LIMIT :limit{{skip}}
), free AS (
    SELECT place FROM new UNION ALL SELECT place FROM again ORDER BY place LIMIT :limit
) UPDATE lifecycle_outbox SET until = :until,
    failures = failures + CASE WHEN until > 0 AND error IN ('', '{UNENDED}') THEN 1 ELSE 0 END,
    error = CASE WHEN error = '{UNENDED}' OR (until > 0 AND error = '') THEN '{UNENDED}' ELSE '' END
WHERE number IN (SELECT place FROM free) RETURNING {_EVENT}
"""  # noqa: S608  # our own columns
_TAKEN_EVENTS = f"SELECT {_EVENT} FROM lifecycle_outbox WHERE until = :until"  # noqa: S608  # our own columns
_DEAD = f"SELECT {_EVENT} FROM lifecycle_outbox WHERE dead ORDER BY number"  # noqa: S608  # our own columns
_FAIL = (
    "UPDATE lifecycle_outbox SET failures = :failures, error = :error, until = :until, dead = :dead"
    " WHERE number = :number"
)
_REVIVE = "UPDATE lifecycle_outbox SET failures = 0, until = 0, dead = false WHERE dead AND number {among[numbers]}"
_HOLD = "UPDATE lifecycle_outbox SET until = :until WHERE number {among[numbers]}"
_FORGET = "DELETE FROM lifecycle_outbox WHERE number {among[numbers]}"


class SQLOutbox(OutboxStore):
    """An `OutboxStore` that uses a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database, self._sql = database, database.dialect

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        values = {"limit": limit, "now": now, "until": until}
        done = self._sql.recovery(values, _TAKEN_EVENTS)
        (rows,) = await self._database.run(self._sql.ask(_TAKE_EVENTS, values), done=done)
        return sorted(map(OutboxRow._make, rows), key=attrgetter("number"))

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        await self._database.run(self._sql.do(_HOLD, {"numbers": self._sql.listed(numbers), "until": until}))

    async def forget(self, numbers: Collection[int]) -> None:
        await self._database.run(self._sql.do(_FORGET, {"numbers": self._sql.listed(numbers)}))

    async def settle(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        works = [self._sql.do(_FORGET, {"numbers": self._sql.listed(delivered)})] if delivered else []
        if freed:
            works.append(self._sql.do(_HOLD, {"numbers": self._sql.listed(freed), "until": 0.0}))
        for row in failed:
            values = row._asdict() | {
                "error": storable(row.error),
                "until": row.until or 0.0,
                "dead": row.until is None,
            }
            works.append(self._sql.do(_FAIL, values))
        if works:
            await self._database.run(*works)

    async def dead(self) -> list[OutboxRow]:
        (rows,) = await self._database.read(self._sql.ask(_DEAD))
        return list(map(OutboxRow._make, rows))

    async def revive(self, numbers: Collection[int]) -> None:
        await self._database.run(self._sql.do(_REVIVE, {"numbers": self._sql.listed(numbers)}))
