"""The tables of flows, jobs and the outbox on a PostgreSQL server, and the way from an older version to this one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError
from lifecycle.journal import Schema

if TYPE_CHECKING:
    import psycopg

    from lifecycle.flows.postgres.connectors import Row

__all__ = ["TABLES", "is_made", "prepare"]

# Rows are written again and again: room in their pages saves the indexes a visit. A stamp is that of the write before,
# by which who has lost its answer knows it again.
TABLES = Schema(
    "flows",
    (
        (
            """CREATE TABLE lifecycle_flows (
                number bigint GENERATED ALWAYS AS IDENTITY,
                id text PRIMARY KEY,
                name text NOT NULL,
                state text NOT NULL,
                version integer NOT NULL,
                epoch bigint NOT NULL,
                owner text NOT NULL,
                seq bigint NOT NULL,
                store text NOT NULL,
                error text NOT NULL,
                at float8 NOT NULL,
                stamp bigint NOT NULL
            ) WITH (fillfactor = 70)""",
            "CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name)",
            """CREATE TABLE lifecycle_flow_atoms (
                flow text NOT NULL,
                name text NOT NULL,
                kind text NOT NULL,
                state text NOT NULL,
                intention text NOT NULL,
                attempt integer NOT NULL,
                round integer NOT NULL,
                result text,
                failure text,
                revert_result text,
                revert_failure text,
                history text,
                PRIMARY KEY (flow, name)
            ) WITH (fillfactor = 70)""",
            """CREATE TABLE lifecycle_flow_changes (
                flow text NOT NULL,
                seq bigint NOT NULL,
                at float8 NOT NULL,
                kind text NOT NULL,
                name text NOT NULL,
                old text NOT NULL,
                new text NOT NULL,
                reason text NOT NULL,
                attempt integer NOT NULL,
                result text,
                PRIMARY KEY (flow, seq)
            )""",
            """CREATE TABLE lifecycle_jobs (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                id text NOT NULL UNIQUE,
                flow text NOT NULL,
                rank integer NOT NULL,
                store text NOT NULL,
                posted float8 NOT NULL,
                max_attempts integer NOT NULL,
                state text NOT NULL,
                owner text NOT NULL,
                token text NOT NULL,
                epoch bigint NOT NULL,
                until float8 NOT NULL,
                attempts integer NOT NULL,
                due float8 NOT NULL,
                outcome text NOT NULL,
                error text NOT NULL,
                ended float8 NOT NULL,
                stamp bigint NOT NULL
            )""",
            """CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (rank, number, flow)
                WHERE state = 'UNCLAIMED' AND due = 0""",
            "CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0",
            "CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED'",
            "CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE'",
            """CREATE TABLE lifecycle_outbox (
                number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                id text NOT NULL,
                topic text NOT NULL,
                data text NOT NULL,
                until float8 NOT NULL
            )""",
        ),
        (
            """ALTER TABLE lifecycle_flow_atoms ADD COLUMN undone integer NOT NULL DEFAULT 0,
                ADD COLUMN due float8 NOT NULL DEFAULT 0""",
            # Each round had a key of its own before.
            """UPDATE lifecycle_flow_atoms SET undone = CASE WHEN state IN ('PENDING', 'REVERTED') THEN round
                ELSE greatest(round - 1, 0) END WHERE round > 0""",
            # What is added to the server's clock, so that a step of it moves nothing; and its time when it was read.
            """CREATE TABLE lifecycle_clock (
                one boolean PRIMARY KEY DEFAULT true CHECK (one),
                correction float8 NOT NULL DEFAULT 0,
                seen float8 NOT NULL DEFAULT 0
            )""",
            # Finds the unfinished flows of a name without the finished ones.
            "DROP INDEX lifecycle_flows_by_name",
            "CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state)",
            """ALTER TABLE lifecycle_outbox ADD COLUMN failures integer NOT NULL DEFAULT 0,
                ADD COLUMN error text NOT NULL DEFAULT '', ADD COLUMN dead boolean NOT NULL DEFAULT false""",
            "CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE NOT dead",
            "CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead",
            "DROP INDEX lifecycle_jobs_ready",
            """CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (flow, rank, number)
                WHERE state = 'UNCLAIMED' AND due = 0""",
            # A flow whose job was discarded could be left unfinished before, and was done again.
            """UPDATE lifecycle_flows f
                SET state = CASE f.state WHEN 'PENDING' THEN f.state ELSE 'FAILURE' END,
                    epoch = f.epoch + 1, owner = '', stamp = 0, error = 'its job was discarded' FROM lifecycle_jobs j
                WHERE f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED')
                AND j.id = f.id AND j.flow = f.name AND j.outcome = 'trashed'""",
        ),
        ("UPDATE lifecycle_jobs SET outcome = 'discarded' WHERE outcome = 'trashed'",),
    ),
)

_ALONE = "SELECT pg_advisory_xact_lock(hashtext('lifecycle tables'), hashtext(current_schema()))"
# All at once, and in the order of most transactions.
_STILL = """LOCK TABLE lifecycle_jobs, lifecycle_flows, lifecycle_flow_atoms, lifecycle_flow_changes, lifecycle_outbox
    IN ACCESS EXCLUSIVE MODE"""
#: How often it is tried to bring the tables up to date.
_TRIES = 10
_VERSIONS = "CREATE TABLE IF NOT EXISTS lifecycle_schemas (name text PRIMARY KEY, version integer NOT NULL)"
_FOUND = """SELECT current_schema(),
    to_regclass(quote_ident(current_schema()) || '.lifecycle_schemas') IS NOT NULL"""
_VERSION = "SELECT version FROM lifecycle_schemas WHERE name = %s"
_KEEP = "INSERT INTO lifecycle_schemas VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET version = excluded.version"


def prepare(db: psycopg.Connection[Row], schema: Schema = TABLES) -> None:
    """Bring the tables up to date; of several that come at once, one does it.

    Raises:
        JournalError: where they are of a newer version than this program knows, or are not ours.
    """
    import psycopg

    # Most find everything in order, and need neither a lock nor the right to make tables.
    if _version(db, schema) == len(schema.steps):
        return
    for _ in range(_TRIES - 1):
        # Processes of the version before may be at work, and hold locks in another order.
        with suppress(psycopg.errors.DeadlockDetected):
            _migrate(db, schema)
            return
    _migrate(db, schema)


def _migrate(db: psycopg.Connection[Row], schema: Schema) -> None:
    with db.transaction():
        db.execute(_ALONE)
        db.execute(_VERSIONS)
        found = _version(db, schema)
        if found and found < len(schema.steps):
            db.execute(_STILL)
        for step in schema.steps[found:]:
            for statement in step:
                _make(db, statement)
        if found < len(schema.steps):
            db.execute(_KEEP, (schema.name, len(schema.steps)))


def is_made(db: psycopg.Connection[Row]) -> bool:
    """Whether the tables are there, of whichever version.

    Raises:
        JournalError: where they are of a newer version than this program knows.
    """
    return _version(db, TABLES) > 0


def _version(db: psycopg.Connection[Row], schema: Schema) -> int:
    ((place, there),) = db.execute(_FOUND)
    if place is None:
        raise JournalError(
            "there is no schema to be in; make that of the search_path, and let the role of the URL use it "
            "(GRANT USAGE)"
        )
    row = db.execute(_VERSION, (schema.name,)).fetchone() if there else None
    found, known = (row[0] if row else 0), len(schema.steps)
    if found > known:
        raise JournalError(
            f"the tables {schema.name!r} are of version {found}, and this program knows them up to {known}; "
            "use the newer program that wrote them, or another schema"
        )
    return found


def _make(db: psycopg.Connection[Row], statement: str) -> None:
    import psycopg

    try:
        db.execute(statement.encode())
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
        raise JournalError(
            f"there is something that is called as a table of ours and is none ({str(error).splitlines()[0]}); "
            "give the URL a schema of its own (?options=-csearch_path%3Dname)"
        ) from error
