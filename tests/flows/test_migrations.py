"""Files and tables that earlier versions wrote."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from lifecycle.flows import Flows, JobQueue, Times, current_task, linear, task
from lifecycle.flows.stores.postgres import TABLES, prepare
from tests import postgres

if TYPE_CHECKING:
    from lifecycle.flows import Flow

LIMIT = 30.0

_DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """Return a file that the first version left behind.

    It was killed while the task `ship` in the flow `o7` was running.
    """
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((_DATA / "flows_v1.sql").read_text())
    return path


def order(keys: list[str]) -> Flow:
    @task
    async def charge() -> None:
        keys.append(current_task().key)

    @task
    async def ship() -> None:
        keys.append(current_task().key)
        if len(keys) == 1:
            raise OSError("no connection")

    charge.revert(lambda: None)
    return linear("order", charge, ship, retry=Times(3))


async def test_a_flow_of_the_first_version_continues_with_its_keys(first_version: Path) -> None:
    keys: list[str] = []
    flow = order(keys)
    async with Flows(first_version) as flows:
        (run,) = await flows.recover(flow)
        await run
    # The retry has reverted the second charge. The task `ship` has no revert, so it keeps its key.
    assert keys == ["o7/ship/1", "o7/charge/3", "o7/ship/1"]


async def test_a_flow_whose_job_was_discarded_by_the_first_version_is_not_recovered(first_version: Path) -> None:
    with closing(sqlite3.connect(first_version)) as db, db:
        db.execute("UPDATE lifecycle_jobs SET id = 'o7', state = 'COMPLETE', outcome = 'trashed' WHERE id = 'job-1'")
    async with Flows(first_version) as flows:
        assert await flows.recover(order([])) == []
        assert (await flows.store.load("o7")).flow.error == "its job was discarded"


@pytest.mark.engine("postgres")
async def test_tables_of_the_first_version_on_a_server_are_brought_up_to_date() -> None:
    url = postgres.server().url()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute((_DATA / "flows_v1_postgres.sql").read_bytes())
        for id_, name, state in (("one", "f", "RUNNING"), ("two", "f", "PENDING"), ("other", "g", "RUNNING")):
            db.execute(
                "INSERT INTO lifecycle_flows VALUES (DEFAULT, %s, %s, %s, 1, 1, '', 0, '{}', '', 0, 0)",
                (id_, name, state),
            )
            db.execute(
                "INSERT INTO lifecycle_jobs VALUES (DEFAULT, %s, 'f', 2, '{}', 0, 1, 'COMPLETE', '', '', 1, 0, 1, 0,"
                " 'trashed', '', 1, 0)",
                (id_,),
            )
    async with Flows(url) as flows:
        found = {row.id: (row.state, row.error) for row in await flows.store.flows()}
        why = "its job was discarded"
        assert found == {"one": ("FAILURE", why), "two": ("PENDING", why), "other": ("RUNNING", "")}
        assert await flows.recover(linear("f", task(lambda: 1, name="a"))) == []


@pytest.mark.engine("postgres")
def test_tables_are_migrated_while_a_process_locks_them_in_another_order() -> None:
    url = postgres.server().url()
    with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url) as worker:
        db.execute((_DATA / "flows_v1_postgres.sql").read_bytes())
        # The server ends one of two transactions that wait for each other: here always the migration.
        db.execute("SET deadlock_timeout = '2s'")
        worker.execute("SET deadlock_timeout = '1h'")
        worker.execute("LOCK TABLE lifecycle_outbox IN ROW EXCLUSIVE MODE")
        with ThreadPoolExecutor() as threads, psycopg.connect(url, autocommit=True) as watcher:
            prepared = threads.submit(prepare, db)
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s AND relation = 'lifecycle_outbox'::regclass"
            while not (prepared.done() or watcher.execute(waits, (db.info.backend_pid,)).fetchone()):
                time.sleep(0.01)
            worker.execute("LOCK TABLE lifecycle_flows IN ROW EXCLUSIVE MODE")
            worker.commit()
            prepared.result(LIMIT)
        assert db.execute("SELECT version FROM lifecycle_schemas").fetchall() == [(len(TABLES.steps),)]


async def test_jobs_and_events_of_the_first_version_are_kept(first_version: Path) -> None:
    async with Flows(first_version) as flows:
        assert [job.id for job in await JobQueue(flows).jobs()] == ["job-1", "job-2"]
        (sent,) = await flows.store.outbox().take(9, now=0.0, until=0.0)
        assert sent.id == "o7/charge/2/1"


# -- the second version ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))])
def second_version(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return tables that the second version left behind.

    It was killed during a repeated attempt of the task `ship` in the flow `o7`.
    """
    if request.param == "sqlite":
        path = tmp_path / "old.db"
        with closing(sqlite3.connect(path)) as db:
            db.executescript((_DATA / "flows_v2.sql").read_text())
        return str(path)
    url = postgres.server().url()
    with psycopg.connect(url, autocommit=True) as server:
        server.execute((_DATA / "flows_v2_postgres.sql").read_bytes())
    return url


async def test_flows_of_the_second_version_are_kept_and_continue(second_version: str) -> None:
    keys: list[str] = []
    async with Flows(second_version) as flows:
        done, left = await flows.store.flows()
        assert (done.id, done.state, done.seq) == ("d1", "SUCCESS", 4)
        assert (left.id, left.state, left.epoch, left.seq) == ("o7", "RUNNING", 1, 19)
        steps = (await flows.store.load("o7")).steps
        assert {name: (row.state, row.attempt, row.round, row.undone) for name, row in steps.items()} == {
            "charge": ("SUCCESS", 2, 2, 1),
            "order_retry": ("SUCCESS", 2, 2, 0),
            "ship": ("RUNNING", 2, 2, 0),
        }
        assert [change.new for change in await flows.store.changes("o7", after=17)] == ["SUCCESS", "RUNNING"]
        keys.append("begun before")
        (run,) = await flows.recover(order(keys))
        await run
    assert keys == ["begun before", "o7/ship/1"]


async def test_jobs_and_events_of_the_second_version_are_kept(second_version: str) -> None:
    async with Flows(second_version) as flows:
        queue = JobQueue(flows)
        assert [job.id for job in await queue.jobs()] == ["job-1", "job-2"]
        outcomes = {job.id: (job.outcome, job.error) for job in await queue.jobs("COMPLETE")}
        assert outcomes == {"job-3": ("discarded", "no such image"), "job-4": ("SUCCESS", "")}
        job = await queue.claim(flows=["order"])
        assert job is not None
        assert (job.id, job.row.epoch) == ("job-1", 1)
        assert (await queue.enqueue("order", id="job-5")).row.number == 5
        (sent,) = await flows.store.outbox().take(9, now=0.0, until=0.0)
        assert (sent.id, sent.number) == ("o7/charge/2/1", 2)
        (dead,) = await flows.store.outbox().dead()
        assert (dead.id, dead.failures, dead.error) == ("o7/charge/1/1", 3, "nobody takes it")


@pytest.mark.engine("postgres")
@pytest.mark.parametrize("version", range(2, len(TABLES.steps)))
async def test_tables_of_later_versions_are_migrated(version: int) -> None:
    url = postgres.server().url()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute((_DATA / "flows_v2_postgres.sql").read_bytes())
        for statement in [each for migration in TABLES.steps[2:version] for each in migration]:
            db.execute(statement.encode())
        db.execute("UPDATE lifecycle_schemas SET version = %s", (version,))
    async with Flows(url) as flows:
        assert [job.id for job in await JobQueue(flows).jobs()] == ["job-1", "job-2"]
        assert [row.id for row in await flows.store.flows()] == ["d1", "o7"]


def test_migrated_tables_have_the_same_schema_as_new_ones(tmp_path: Path) -> None:
    columns: list[dict[str, set[str]]] = []
    for name, version in (("new.db", ""), ("first.db", "flows_v1.sql"), ("second.db", "flows_v2.sql")):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            if version:
                db.executescript((_DATA / version).read_text())
        asyncio.run(_opened(tmp_path / name))
        with closing(sqlite3.connect(tmp_path / name)) as db:
            found = (
                "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.name LIKE 'lifecycle%'"
            )
            tables: dict[str, set[str]] = {}
            for table, column in db.execute(found):
                tables.setdefault(table, set()).add(column)
        columns.append(tables)
    assert columns[0] == columns[1] == columns[2]


async def _opened(path: Path) -> None:
    async with Flows(path):
        pass
