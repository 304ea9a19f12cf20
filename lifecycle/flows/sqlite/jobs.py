"""`SQLiteJobs`: jobs in the file of the flows that do them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle.flows.jobs.rows import DISCARDED, JobRow, discarded, flow_of, lapsed, taken
from lifecycle.flows.jobs.stores import lost_job, other_flow
from lifecycle.flows.sqlite.flows import begin, discard, fence, snapshot
from lifecycle.journal import Schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Sequence

    from lifecycle.flows.jobs.rows import Claim
    from lifecycle.flows.owners import Owners
    from lifecycle.flows.records import FlowRow, Snapshot
    from lifecycle.journal import Journal

__all__ = ["JOB_TABLES", "SQLiteJobs"]

_T = TypeVar("_T")

JOB_TABLES = Schema(
    "jobs",
    (
        (
            # A number is never used again, so that it is an order; ``due`` is 0 once that time is over, so that who
            # looks for a job need not go through those that wait for theirs.
            """CREATE TABLE lifecycle_jobs (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                flow TEXT NOT NULL,
                rank INTEGER NOT NULL,
                store TEXT NOT NULL,
                posted REAL NOT NULL,
                max_attempts INTEGER NOT NULL,
                state TEXT NOT NULL,
                owner TEXT NOT NULL,
                token TEXT NOT NULL,
                epoch INTEGER NOT NULL,
                until REAL NOT NULL,
                attempts INTEGER NOT NULL,
                due REAL NOT NULL,
                outcome TEXT NOT NULL,
                error TEXT NOT NULL,
                ended REAL NOT NULL
            )""",
            """CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (flow, rank, number)
                WHERE state = 'UNCLAIMED' AND due = 0""",
            "CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0",
            "CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED'",
            "CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE'",
        ),
        (
            # A flow whose job was discarded could be left unfinished before, and was done again.
            """UPDATE lifecycle_flows
                SET state = CASE state WHEN 'PENDING' THEN state ELSE 'FAILURE' END,
                    epoch = epoch + 1, owner = '', error = 'its job was discarded'
                WHERE state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED') AND EXISTS (SELECT 1 FROM lifecycle_jobs j
                    WHERE j.id = lifecycle_flows.id AND j.flow = lifecycle_flows.name AND j.outcome = 'trashed')""",
        ),
        ("UPDATE lifecycle_jobs SET outcome = 'discarded' WHERE outcome = 'trashed'",),
    ),
)

_COLUMNS = ", ".join(JobRow._fields)
_SELECT = f"SELECT {_COLUMNS} FROM lifecycle_jobs"  # noqa: S608  # our own columns
_INSERT = (
    "INSERT INTO lifecycle_jobs (id, flow, rank, store, posted, max_attempts, state, owner, token, epoch, until,"
    " attempts, due, outcome, error, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
_UPDATE = (
    "UPDATE lifecycle_jobs SET state = ?, owner = ?, token = ?, epoch = ?, until = ?, attempts = ?, due = ?,"
    " outcome = ?, error = ?, ended = ? WHERE id = ? AND state = ? AND epoch = ? AND (state != 'CLAIMED' OR until > ?)"
)
# Each of them has an index.
_COUNTS = (
    "SELECT 'UNCLAIMED', (SELECT count(*) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0)"
    " + (SELECT count(*) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > 0)"
    " UNION ALL SELECT 'CLAIMED', (SELECT count(*) FROM lifecycle_jobs WHERE state = 'CLAIMED')"
)
_NUMBER = JobRow._fields.index("number")


class SQLiteJobs:
    """A `JobStore` in the file that ``journal`` writes; ``owners`` know which of those who claimed live."""

    def __init__(self, journal: Journal, owners: Owners) -> None:
        self._journal, self._owners = journal, owners
        # How many of the owners we know to be gone: those whom we did not see may be too.
        self._losses = -1

    async def add(self, row: JobRow) -> JobRow:
        """Keep a job that is new; what is kept under its id, which may be another."""

        def write(db: sqlite3.Connection) -> JobRow:
            added = db.execute(_INSERT, row[:_NUMBER] + row[_NUMBER + 1 :])
            if added.rowcount:
                return row._replace(number=added.lastrowid or 0)
            return _one(db, "id = ?", row.id) or row

        return await self._journal.run(write)

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # what it is
        """One job."""
        return await self._read(now, lambda db: _one(db, "id = ?", id))

    async def rows(
        self, *states: str, now: float, after: tuple[int, int] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """The jobs in those states, in order: at most ``limit``, and those ``after`` a rank and a number."""
        places = ", ".join("?" * len(states))
        where = f"state IN ({places}) AND (rank, number) > (?, ?) ORDER BY rank, number LIMIT ?"
        values = (*states, *(after or (-1, -1)), -1 if limit is None else limit)
        return await self._read(now, lambda db: _rows(db, where, *values))

    async def take(self, flows: Collection[str] | None, claim: Claim) -> JobRow | None:
        """Claim the first job that is due and that one of ``flows`` does, or any; None where there is none."""
        return next(iter(await self.take_many(flows, claim, 1)), None)

    async def take_many(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        """Claim the first ``limit`` jobs that are due and that one of ``flows`` does, or any; fewer if there are."""
        return await self._run(claim.now, lambda db: _take(db, flows, claim, limit))

    async def begin_many(
        self, flows: Collection[str], claim: Claim, limit: int
    ) -> list[tuple[JobRow, Snapshot | None]]:
        """As `take_many` and `adopt` in one transaction; None for a flow that `adopt` has to be asked for."""
        return await self._run(
            claim.now, lambda db: [(row, _adopt(db, flow_of(row))) for row in _take(db, flows, claim, limit)]
        )

    async def swap(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        """Write ``new`` where the job has the state and the epoch of ``old``; False where it has not."""
        # What claims are over need not be looked up for it: of this one the time tells.
        return await self._journal.run(lambda db: _swap(db, old, new, now))

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        """Have those claims end later; gives those that are lost."""

        def write(db: sqlite3.Connection) -> list[JobRow]:
            return [row for row in rows if not _renew(db, row, until)]

        return await self._run(now, write)

    async def adopt(self, row: JobRow, flow: FlowRow, *, now: float) -> Snapshot:
        """Take the flow of a job that was claimed, or begin it.

        Raises:
            ClaimLost: if the claim is lost.
            FlowError: if the id is that of a flow with another name, which is left alone.
        """

        def write(db: sqlite3.Connection) -> Snapshot:
            if _one(db, "id = ? AND state = 'CLAIMED' AND epoch = ?", row.id, row.epoch) is None:
                raise lost_job(row)
            found = _adopt(db, flow)
            if found is None:
                raise other_flow(row, snapshot(db, flow.id).flow.name)
            return found

        return await self._run(now, write)

    async def next(self, *, now: float) -> float | None:
        """When a job will be due, or a claim may end, without anybody doing something."""

        def read(db: sqlite3.Connection) -> float | None:
            found = db.execute(
                "SELECT min(due) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > ?"
                " UNION ALL SELECT min(until) FROM lifecycle_jobs WHERE state = 'CLAIMED'",
                (now,),
            )
            return min((at for (at,) in found if at is not None), default=None)

        return await self._journal.read(read)

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        """Which of those are ids of jobs that are not complete."""

        def read(db: sqlite3.Connection) -> set[str]:
            return {each for each in ids if _one(db, "id = ? AND state != 'COMPLETE'", each) is not None}

        return await self._journal.read(read)

    async def purge(self, *, before: float) -> int:
        """Forget the jobs that were completed before then, with their flows; how many that were."""

        def write(db: sqlite3.Connection) -> int:
            old = "SELECT id FROM lifecycle_jobs WHERE state = 'COMPLETE' AND ended < ?"
            for table, column in _OF_FLOWS:
                db.execute(f"DELETE FROM {table} WHERE {column} IN ({old})", (before,))  # noqa: S608  # our own names
            return db.execute("DELETE FROM lifecycle_jobs WHERE state = 'COMPLETE' AND ended < ?", (before,)).rowcount

        return await self._journal.run(write)

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state, but for those that are complete."""
        return await self._journal.read(lambda db: dict(db.execute(_COUNTS)))

    def doubt(self) -> None:
        """Ask of all owners whether they live, before anything else is done."""
        self._losses = -1

    async def _read(self, now: float, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """What ``fn`` reads, once the claims that are over have ended; nothing is written if there are none."""

        def read(db: sqlite3.Connection) -> tuple[bool, _T]:
            over = db.execute("SELECT 1 FROM lifecycle_jobs WHERE state = 'CLAIMED' AND until <= ? LIMIT 1", (now,))
            return over.fetchone() is not None, fn(db)

        if self._losses == self._owners.losses:
            over, result = await self._journal.read(read)
            if not over:
                return result
        return await self._run(now, fn)

    async def _run(self, now: float, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """What ``fn`` gives, once the claims that are over have ended."""
        known, losses = self._losses, self._owners.losses

        def settled(db: sqlite3.Connection) -> _T:
            _lapse(db, now, "until <= ?", now)
            if known != losses:
                self._bury(db, now)
            return fn(db)

        result = await self._journal.run(settled)
        self._losses = losses
        return result

    def _bury(self, db: sqlite3.Connection, now: float) -> None:
        """End the claims of those who are gone."""
        tokens = db.execute("SELECT DISTINCT token FROM lifecycle_jobs WHERE state = 'CLAIMED' AND token != ''")
        for token in [token for (token,) in tokens if not self._owners.alive(token)]:
            _lapse(db, now, "token = ?", token)


_OF_FLOWS = (("lifecycle_flow_atoms", "flow"), ("lifecycle_flow_changes", "flow"), ("lifecycle_flows", "id"))


def _rows(db: sqlite3.Connection, where: str, *values: Any) -> list[JobRow]:
    return list(map(JobRow._make, db.execute(f"{_SELECT} WHERE {where}", values)))


def _one(db: sqlite3.Connection, where: str, *values: Any) -> JobRow | None:
    return next(iter(_rows(db, where, *values)), None)


def _take(db: sqlite3.Connection, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
    db.execute("UPDATE lifecycle_jobs SET due = 0 WHERE state = 'UNCLAIMED' AND due > 0 AND due <= ?", (claim.now,))
    claimed = [(row, taken(row, claim)) for row in _firsts(db, flows, limit)]
    for row, mine in claimed:
        _swap(db, row, mine, claim.now)
    return [mine for _, mine in claimed]


def _adopt(db: sqlite3.Connection, flow: FlowRow) -> Snapshot | None:
    """Begin the flow, or take it; None if its id is that of a flow with another name."""
    if begin(db, flow):
        return snapshot(db, flow.id)
    fence(db, flow.id, flow.owner, name=flow.name)
    found = snapshot(db, flow.id)
    return found if found.flow.name == flow.name else None


def _firsts(db: sqlite3.Connection, flows: Collection[str] | None, limit: int) -> list[JobRow]:
    """The first that are ready: each flow has an order of its own in the index."""
    ready, order = "state = 'UNCLAIMED' AND due = 0", f"ORDER BY rank, number LIMIT {limit:d}"
    if flows is None:
        return _rows(db, f"{ready} {order}")
    firsts = [row for flow in flows for row in _rows(db, f"{ready} AND flow = ? {order}", flow)]
    return sorted(firsts, key=lambda row: (row.rank, row.number))[:limit]


def _swap(db: sqlite3.Connection, old: JobRow, new: JobRow, now: float) -> bool:
    written = db.execute(_UPDATE, (*new[_NUMBER + 1 :], old.id, old.state, old.epoch, now))
    if not written.rowcount:
        return False
    if new.outcome == DISCARDED:
        discard(db, new.id, discarded(new), name=new.flow)
    return True


def _lapse(db: sqlite3.Connection, now: float, where: str, value: Any) -> None:
    """End claims without anybody having said what became of the jobs."""
    for row in _rows(db, f"state = 'CLAIMED' AND {where}", value):
        _swap(db, row, lapsed(row, now=now, flow=fence(db, row.id, "", name=row.flow)), 0.0)


def _renew(db: sqlite3.Connection, row: JobRow, until: float) -> bool:
    renewed = db.execute(
        "UPDATE lifecycle_jobs SET until = ? WHERE id = ? AND state = 'CLAIMED' AND epoch = ?",
        (until, row.id, row.epoch),
    )
    return renewed.rowcount > 0
