"""`PostgresJobs`: jobs beside the flows that do them, claimed by workers on many machines."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from lifecycle.flows.jobs.rows import DISCARDED, JobRow, discarded
from lifecycle.flows.jobs.stores import lost_job, other_flow
from lifecycle.flows.postgres.connectors import sql
from lifecycle.flows.postgres.flows import SNAPSHOT, printable, snapshot_of
from lifecycle.flows.records import FlowRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lifecycle.flows.jobs.rows import Claim
    from lifecycle.flows.postgres.connectors import Row, Statement
    from lifecycle.flows.postgres.servers import Server
    from lifecycle.flows.records import Snapshot

__all__ = ["PostgresJobs"]

_COLUMNS = ", ".join(JobRow._fields)
_GIVEN = [name for name in JobRow._fields if name != "number"]
_WRITTEN = _GIVEN[_GIVEN.index("state") :]
_SELECT = f"SELECT {_COLUMNS} FROM lifecycle_jobs"  # noqa: S608  # our own columns
_PAGE = (
    f"{_SELECT} WHERE state = ANY (%(states)s) AND (rank, number) > (%(rank)s, %(number)s)"
    " ORDER BY rank, number LIMIT %(limit)s"
)
_ADD = (
    f"INSERT INTO lifecycle_jobs ({', '.join(_GIVEN)}, stamp)"  # noqa: S608  # the same
    f" VALUES ({', '.join(f'%({name})s' for name in _GIVEN)}, 0) ON CONFLICT (id) DO NOTHING RETURNING {_COLUMNS}"
)
# What `lapsed` says of a row, for all whose time is over; another process may be about it, and then does it. The flow
# comes first: a commit to it that is under way is waited for, and `RETURNING` gives the state after that commit.
_LAPSE = """
WITH over AS (
    SELECT number, id, flow, attempts >= max_attempts AS last,
        owner || ' claimed it and was gone before it was done' AS words
    FROM lifecycle_jobs WHERE state = 'CLAIMED' AND until <= %(now)s FOR UPDATE SKIP LOCKED
), fenced AS (
    UPDATE lifecycle_flows f SET epoch = f.epoch + 1, owner = '', stamp = 0,
        at = CASE WHEN o.last AND f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED') THEN %(at)s ELSE f.at END,
        state = CASE WHEN o.last AND f.state NOT IN ('PENDING', 'SUCCESS', 'FAILURE', 'REVERTED')
            THEN 'FAILURE' ELSE f.state END,
        error = CASE WHEN o.last AND f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED')
            THEN 'its job was discarded: ' || o.words ELSE f.error END
    FROM over o WHERE f.id = o.id AND f.name = o.flow RETURNING o.number, f.state
)
UPDATE lifecycle_jobs j SET
    state = CASE WHEN over.last THEN 'COMPLETE' ELSE 'UNCLAIMED' END,
    outcome = CASE WHEN NOT over.last THEN j.outcome
        WHEN fenced.state IN ('SUCCESS', 'REVERTED') THEN fenced.state ELSE 'discarded' END,
    ended = CASE WHEN over.last THEN %(now)s ELSE j.ended END,
    owner = '', token = '', until = 0,
    error = CASE WHEN over.last AND fenced.state = 'SUCCESS' THEN '' ELSE over.words END
FROM over LEFT JOIN fenced USING (number) WHERE j.number = over.number
"""
_DUE = """
UPDATE lifecycle_jobs SET due = 0 WHERE number IN (SELECT number FROM lifecycle_jobs
    WHERE state = 'UNCLAIMED' AND due > 0 AND due <= %(now)s FOR UPDATE SKIP LOCKED)
"""
# Each flow has an order of its own in the index. Of several the first are found before any is locked: a job that is
# locked and not claimed would be passed over by others. Some more are found than are wanted: others may have the first.
_OF_ONE = "WHERE state = 'UNCLAIMED' AND due = 0 AND flow = %(flow)s"
_OF_SEVERAL = """WHERE state = 'UNCLAIMED' AND due = 0 AND number IN (
        SELECT each.number FROM unnest(%(flows)s::text[]) AS wanted (flow) CROSS JOIN LATERAL (
            SELECT number, rank FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0 AND flow = wanted.flow
            ORDER BY rank, number LIMIT %(limit)s + 100
        ) each ORDER BY each.rank, each.number LIMIT %(limit)s + 100
    )"""
_OF_ALL = "WHERE state = 'UNCLAIMED' AND due = 0"
_CLAIM = f"""
WITH first AS (
    SELECT number FROM lifecycle_jobs {{which}}
    ORDER BY rank, number LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE lifecycle_jobs j SET state = 'CLAIMED', owner = %(owner)s, token = %(token)s, until = %(until)s,
    epoch = epoch + 1, attempts = attempts + 1, stamp = %(stamp)s
FROM first WHERE j.number = first.number RETURNING {", ".join(f"j.{name}" for name in JobRow._fields)}
"""  # noqa: S608  # our own columns
_CLAIM_ANY, _CLAIM_OF_ONE, _CLAIM_OF_SEVERAL = (
    _CLAIM.replace("{which}", which) for which in (_OF_ALL, _OF_ONE, _OF_SEVERAL)
)
_CLAIMED = f"{_SELECT} WHERE state = 'CLAIMED' AND token = %(token)s AND stamp = %(stamp)s"
_SWAP = f"""
UPDATE lifecycle_jobs SET {", ".join(f"{name} = %({name})s" for name in _WRITTEN)}, stamp = %(stamp)s
WHERE id = %(id)s AND state = %(old_state)s AND epoch = %(old_epoch)s AND (state != 'CLAIMED' OR until > %(now)s)
RETURNING id, flow
"""  # noqa: S608  # the same
_DISCARD = f"""
WITH written AS ({_SWAP}), discarded AS (
    UPDATE lifecycle_flows f SET state = CASE f.state WHEN 'PENDING' THEN f.state ELSE 'FAILURE' END,
        error = %(words)s, at = %(at)s, epoch = f.epoch + 1, owner = '', stamp = 0
    FROM written w WHERE f.id = w.id AND f.name = w.flow AND f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED')
) SELECT 1 FROM written
"""  # noqa: S608  # the same
_RENEW = """
UPDATE lifecycle_jobs j SET until = %(until)s FROM json_to_recordset(%(claims)s::json) AS c (id text, epoch bigint)
WHERE j.id = c.id AND j.epoch = c.epoch AND j.state = 'CLAIMED' RETURNING j.id, j.epoch
"""
# What is sent a second time does not fence ourselves. The tasks are read by the next statement, `_ADOPTED`: this one
# may wait for a commit of the owner before, and would read the tasks as they were before that commit.
_ADOPT = f"""
WITH claim AS (
    SELECT id FROM lifecycle_jobs WHERE id = %(id)s AND state = 'CLAIMED' AND epoch = %(job_epoch)s
        AND until > %(now)s FOR SHARE
)
INSERT INTO lifecycle_flows AS had ({", ".join(FlowRow._fields)}, stamp)
SELECT {", ".join(f"%({name})s" for name in FlowRow._fields)}, %(stamp)s FROM claim
ON CONFLICT (id) DO UPDATE SET epoch = had.epoch + 1, owner = excluded.owner, stamp = excluded.stamp
WHERE had.name = excluded.name AND NOT (had.owner = excluded.owner AND had.stamp >= excluded.stamp)
"""  # noqa: S608  # the same
_ADOPTED = f"SELECT {SNAPSHOT} FROM lifecycle_flows f WHERE id = %(id)s AND owner = %(owner)s AND stamp = %(stamp)s"  # noqa: S608  # the same
# The same for all jobs that a statement before has claimed. A flow with another name is left alone.
_BEGIN_CLAIMED = f"""
INSERT INTO lifecycle_flows AS had ({", ".join(FlowRow._fields)}, stamp)
SELECT id, flow, 'PENDING', 1, 1, token, 0, store, '', 0, stamp FROM lifecycle_jobs
WHERE state = 'CLAIMED' AND token = %(token)s AND stamp = %(stamp)s
ON CONFLICT (id) DO UPDATE SET epoch = had.epoch + 1, owner = excluded.owner, stamp = excluded.stamp
WHERE had.name = excluded.name AND NOT (had.owner = excluded.owner AND had.stamp >= excluded.stamp)
"""  # noqa: S608  # our own columns
_BEGUN = f"""
SELECT {", ".join(f"j.{name}" for name in JobRow._fields)}, {SNAPSHOT}
FROM lifecycle_jobs j LEFT JOIN lifecycle_flows f
    ON f.id = j.id AND f.name = j.flow AND f.owner = j.token AND f.stamp = j.stamp
WHERE j.state = 'CLAIMED' AND j.token = %(token)s AND j.stamp = %(stamp)s ORDER BY j.rank, j.number
"""  # noqa: S608  # the same
_PURGE = """
WITH old AS (DELETE FROM lifecycle_jobs WHERE state = 'COMPLETE' AND ended < %(before)s RETURNING id),
steps AS (DELETE FROM lifecycle_flow_atoms a USING old WHERE a.flow = old.id),
changes AS (DELETE FROM lifecycle_flow_changes c USING old WHERE c.flow = old.id),
flows AS (DELETE FROM lifecycle_flows f USING old WHERE f.id = old.id)
SELECT count(*) FROM old
"""


class PostgresJobs:
    """A `JobStore` on ``server``. A claim ends with its lease: nothing else tells, from machine to machine."""

    def __init__(self, server: Server, stamps: Iterator[int]) -> None:
        self._server, self._stamps = server, stamps

    async def add(self, row: JobRow) -> JobRow:
        """Keep a job that is new; what is kept under its id, which may be another."""
        added = await self._server.run(sql(_ADD, **row._asdict()))
        return _first(added or await self._server.run(_one(row.id))) or row

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # what it is
        """One job."""
        return _first(await self._server.run(_lapse(now), _one(id)))

    async def rows(
        self, *states: str, now: float, after: tuple[int, int] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """The jobs in those states, in order: at most ``limit``, and those ``after`` a rank and a number."""
        rank, number = after or (-1, -1)
        wanted = sql(_PAGE, states=list(map(str, states)), rank=rank, number=number, limit=limit)
        return list(map(JobRow._make, await self._server.run(_lapse(now), wanted)))

    async def take(self, flows: Collection[str] | None, claim: Claim) -> JobRow | None:
        """Claim the first job that is due and that one of ``flows`` does, or any; None where there is none."""
        return next(iter(await self.take_many(flows, claim, 1)), None)

    async def take_many(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        """Claim the first ``limit`` jobs that are due and that one of ``flows`` does, or any; fewer if there are."""
        stamp = next(self._stamps)
        done = sql(_CLAIMED, token=claim.token, stamp=stamp)
        rows = map(JobRow._make, await self._server.run(*_taking(flows, claim, limit, stamp), done=done))
        return sorted(rows, key=lambda row: (row.rank, row.number))

    async def begin_many(
        self, flows: Collection[str], claim: Claim, limit: int
    ) -> list[tuple[JobRow, Snapshot | None]]:
        """As `take_many` and `adopt` in one transaction; None for a flow that `adopt` has to be asked for."""
        stamp = next(self._stamps)
        begun = sql(_BEGUN, token=claim.token, stamp=stamp)
        beginning = sql(_BEGIN_CLAIMED, token=claim.token, stamp=stamp)
        rows = await self._server.run(*_taking(flows, claim, limit, stamp), beginning, begun, done=begun)
        return [_begun(row) for row in rows]

    async def swap(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        """Write ``new`` where the job has the state and the epoch of ``old``; False where it has not."""
        values = {name: getattr(new, name) for name in _WRITTEN} | {"id": old.id, "stamp": next(self._stamps)}
        values |= {"old_state": old.state, "old_epoch": old.epoch, "now": now, "error": printable(new.error)}
        swapping = sql(_SWAP, **values)
        if new.outcome == DISCARDED:
            swapping = sql(_DISCARD, at=time.time(), words=printable(discarded(new)), **values)
        done = sql(
            "SELECT 1 FROM lifecycle_jobs WHERE id = %(id)s AND stamp = %(stamp)s", id=old.id, stamp=values["stamp"]
        )
        return bool(await self._server.run(swapping, done=done))

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        """Have those claims end later; gives those that are lost."""
        claims = json.dumps([{"id": row.id, "epoch": row.epoch} for row in rows])
        kept = set(await self._server.run(_lapse(now), sql(_RENEW, claims=claims, until=until)))
        return [row for row in rows if (row.id, row.epoch) not in kept]

    async def adopt(self, row: JobRow, flow: FlowRow, *, now: float) -> Snapshot:
        """Take the flow of a job that was claimed, or begin it.

        Raises:
            ClaimLost: if the claim is lost.
            FlowError: if the id is that of a flow with another name, which is left alone.
        """
        values = flow._asdict() | {"job_epoch": row.epoch, "now": now, "stamp": next(self._stamps)}
        adopted = sql(_ADOPTED, **values)
        for found in await self._server.run(sql(_ADOPT, **values), adopted, done=adopted):
            return snapshot_of(found)
        named = sql("SELECT name FROM lifecycle_flows WHERE id = %(id)s", id=row.id)
        for (name,) in await self._server.run(named):
            if name != flow.name:
                raise other_flow(row, name)
        raise lost_job(row)

    async def next(self, *, now: float) -> float | None:
        """When a job will be due, or a claim may end, without anybody doing something."""
        ((then,),) = await self._server.run(
            sql(
                "SELECT least((SELECT min(due) FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > %(now)s),"
                " (SELECT min(until) FROM lifecycle_jobs WHERE state = 'CLAIMED'))",
                now=now,
            )
        )
        return None if then is None else float(then)

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        """Which of those are ids of jobs that are not complete."""
        asked = "SELECT id FROM lifecycle_jobs WHERE id = ANY (%(ids)s) AND state != 'COMPLETE'"
        return {id for (id,) in await self._server.run(sql(asked, ids=list(ids)))}  # noqa: A001  # what it is

    async def purge(self, *, before: float) -> int:
        """Forget the jobs that were completed before then, with their flows; how many that were."""
        ((count,),) = await self._server.run(sql(_PURGE, before=before))
        return int(count)

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state, but for those that are complete."""
        found = await self._server.run(
            sql("SELECT state, count(*) FROM lifecycle_jobs WHERE state != 'COMPLETE' GROUP BY state")
        )
        return {"UNCLAIMED": 0, "CLAIMED": 0} | {str(state): int(count) for state, count in found}

    def doubt(self) -> None:
        """Each method looks at the leases anyway."""


def _taking(flows: Collection[str] | None, claim: Claim, limit: int, stamp: int) -> list[Statement]:
    """What claims jobs, after the claims that are over have ended."""
    values = claim._asdict() | {"stamp": stamp, "limit": limit}
    if flows is None:
        taking = sql(_CLAIM_ANY, **values)
    elif len(flows) == 1:
        taking = sql(_CLAIM_OF_ONE, flow=next(iter(flows)), **values)
    else:
        taking = sql(_CLAIM_OF_SEVERAL, flows=list(flows), **values)
    return [_lapse(claim.now), sql(_DUE, now=claim.now), taking]


def _lapse(now: float) -> Statement:
    return sql(_LAPSE, now=now, at=time.time())


def _begun(row: Row) -> tuple[JobRow, Snapshot | None]:
    job, flow = row[: len(JobRow._fields)], row[len(JobRow._fields) :]
    return JobRow._make(job), None if flow[0] is None else snapshot_of(flow)


def _one(id: str) -> Statement:  # noqa: A002  # what it is
    return sql(f"{_SELECT} WHERE id = %(id)s", id=id)


def _first(rows: list[Row]) -> JobRow | None:
    return JobRow._make(rows[0]) if rows else None
