"""A problematic server: unreachable, too old, without permission, with foreign tables, or changed while in use."""

from __future__ import annotations

import asyncio
import sys
import traceback
from socket import gethostname
from typing import TYPE_CHECKING

import psycopg
import pytest

from lifecycle.errors import FlowError, JournalError
from lifecycle.flows import Claim, FlowRow, Flows, JobQueue, JobRow, PostgresStore, linear, send, task
from lifecycle.flows.stores.server import Connector, check_version, sql
from tests import postgres

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine("postgres")

ONE = linear("one", task(lambda: 1, name="a"))


@pytest.fixture
def server() -> postgres.Postgres:
    return postgres.server()


async def opened(url: str) -> None:
    async with Flows(url) as flows:
        assert await flows.start(ONE) == {"a": 1}


@pytest.mark.parametrize("pid", ["9" * 30, "9" * 5000])
async def test_a_stored_owner_with_an_impossible_pid_is_gone(server: postgres.Postgres, pid: str) -> None:
    url = server.url()
    async with Flows(url) as flows:
        await flows.start(ONE, id="f").suspend()
    server.execute(f"UPDATE {url.rpartition('%3D')[2]}.lifecycle_flows SET owner = '{gethostname()}-{pid}-{'0' * 12}'")
    async with Flows(url) as flows:
        [run] = await flows.recover(ONE)
        assert await run == {"a": 1}


# -- connecting ------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    url = f"postgresql://me:geheim@/jobs?host={tmp_path}"
    with pytest.raises(JournalError, match=r"postgresql://me@.*/jobs: check that the server is running") as caught:
        await opened(url)
    assert "geheim" not in str(caught.value)
    # The error has a single traceback, without the tracebacks of the thread and of psycopg.
    assert "The above exception" not in "".join(traceback.format_exception(caught.value))
    assert "geheim" not in repr(Flows(url))


async def test_a_wrong_password_is_reported_and_not_shown(server: postgres.Postgres) -> None:
    server.role("locked", "right")
    for given, words in ((":wrong", "set the right password"), ("", "set the password")):
        with pytest.raises(JournalError, match=words) as caught:
            await opened(f"postgresql://locked{given}@/postgres?host={server.home}")
        assert "wrong" not in str(caught.value)


async def test_a_database_that_is_not_there_is_named(server: postgres.Postgres) -> None:
    with pytest.raises(JournalError, match=r'create it, or use an existing one .*"nowhere" does not exist'):
        await opened(f"postgresql://lifecycle@/nowhere?host={server.home}")


async def test_a_missing_schema_is_reported(server: postgres.Postgres) -> None:
    with pytest.raises(JournalError, match="no schema in the search_path can be used"):
        await opened(f"{server.admin}&options=-csearch_path%3Dnowhere")


async def test_a_role_that_may_not_create_tables_gets_an_error_naming_the_right(server: postgres.Postgres) -> None:
    server.role("nobody")
    url = server.url().replace("//lifecycle@", "//nobody@")
    with pytest.raises(JournalError, match=r"GRANT USAGE on it to the role in the URL"):
        await opened(url)
    server.execute(f"GRANT USAGE ON SCHEMA {url.rpartition('%3D')[2]} TO nobody")
    with pytest.raises(JournalError, match=r"denied; grant the role in the URL CREATE on the schema"):
        await opened(url)


async def test_a_read_only_server_is_reported(server: postgres.Postgres) -> None:
    url = f"{server.url()}%20-cdefault_transaction_read_only%3Don"
    with pytest.raises(JournalError, match=r"the server is read-only; .*target_session_attrs=read-write"):
        await opened(url)


@pytest.mark.parametrize("url", ["postgresql://[", "postgresql://me:geheim@here/x?y", "postgresql://?nonsense=1"])
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="the PostgreSQL server's URL is invalid") as caught:
        Flows(url)
    assert "geheim" not in str(caught.value)


def test_the_number_of_connections_must_be_positive() -> None:
    with pytest.raises(ValueError, match="connections must be 1 or more, got 0"):
        PostgresStore("postgresql://here", connections=0)


def test_a_server_that_is_too_old_is_refused() -> None:
    check_version("here", 150000)
    with pytest.raises(JournalError, match="here runs PostgreSQL 14; version 15 or newer is required"):
        check_version("here", 140011)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JournalError, match=r"install the extra 'postgres': pip install"):
        Flows("postgresql://here")


# -- the tables --------------------------------------------------------------------------------------------------------


async def test_tables_of_another_program_are_not_changed(server: postgres.Postgres) -> None:
    url = server.url()
    with psycopg.connect(url) as db:
        db.execute("CREATE TABLE lifecycle_jobs (mine text)")
    with pytest.raises(JournalError, match=r"has the same name as ours .*use a separate schema"):
        await opened(url)
    with psycopg.connect(url) as db:
        tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    assert tables == [("lifecycle_jobs",)]


async def test_tables_of_a_newer_program_are_refused(server: postgres.Postgres) -> None:
    url = server.url()
    await opened(url)
    with psycopg.connect(url) as db:
        db.execute("UPDATE lifecycle_schemas SET version = 99")
    with pytest.raises(JournalError, match=r"'flows' have version 99.*use the newer program"):
        await opened(url)


async def test_only_one_of_many_processes_creates_the_tables(server: postgres.Postgres) -> None:
    url = server.url()
    await asyncio.gather(*[opened(url) for _ in range(5)])
    await opened(url)


async def test_two_schemas_are_independent(server: postgres.Postgres) -> None:
    async with Flows(server.url()) as flows, Flows(server.url()) as others:
        await flows.start(ONE, id="x")
        assert await others.store.flows() == []


async def test_a_missing_table_is_reported_with_the_way_out(server: postgres.Postgres) -> None:
    url = server.url()
    async with Flows(url) as flows:
        with psycopg.connect(url) as db:
            db.execute("DROP TABLE lifecycle_jobs, lifecycle_schemas")
        with pytest.raises(JournalError, match="a table is missing; restore it, or use a separate schema"):
            await JobQueue(flows).enqueue("one")
    with pytest.raises(JournalError, match="has the same name as ours"):
        await opened(url)


async def test_a_connection_that_is_lost_between_statements_is_reported_once(
    server: postgres.Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    connector = Connector(server.url())
    with connector.connect() as db:
        with psycopg.connect(server.url()) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            connector.carry_out(db, [[sql(f"SELECT {number}") for number in range(100)]])
    assert caplog.messages == []


# -- queries -----------------------------------------------------------------------------------------------------------


async def test_text_that_the_server_cannot_keep_is_refused_alone(server: postgres.Postgres) -> None:
    async with Flows(server.cleared()) as flows:
        for id_ in ("a\0b", "\ud800"):
            with pytest.raises(FlowError, match="NUL or half a surrogate pair"):
                await flows.store.create(FlowRow(id_, "f"))
            with pytest.raises(FlowError, match="NUL or half a surrogate pair"):
                await flows.start(ONE, id=id_)
        assert await flows.start(ONE, id="good") == {"a": 1}


async def test_values_and_errors_with_such_text_are_kept(server: postgres.Postgres) -> None:
    def fails() -> None:
        raise ValueError("\0 and \ud800")

    async with Flows(server.cleared()) as flows:
        given = flows.start(linear("f", task(lambda: "a\0b\ud800", name="a")))
        assert await given == {"a": "a\0b\ud800"}
        queue = JobQueue(flows)
        job = await queue.enqueue("fails", id="x")
        work = asyncio.create_task(queue.work({"fails": linear("fails", task(fails, name="a"))}))
        assert await job == "REVERTED"
        assert job.error == "ValueError: \\x00 and \\ud800"
        work.cancel()
        await asyncio.wait([work])


async def test_a_topic_that_the_server_cannot_keep_stops_a_flow_that_can_be_resumed(
    server: postgres.Postgres,
) -> None:
    async with Flows(server.cleared()) as flows:
        run = flows.start(linear("f", task(lambda: send("a\0b"), name="a")), id="x")
        with pytest.raises(FlowError, match="NUL or half a surrogate pair"):
            await run
        assert run.stopped


async def test_a_bad_text_does_not_repeat_the_queries_that_are_sent_with_it(server: postgres.Postgres) -> None:
    async with PostgresStore(server.cleared()) as store:
        jobs = store.jobs(store.presence())
        for number in range(4):
            await jobs.add(JobRow(f"j{number}", "f", 2, "{}", 1.0, 3))
        for text in ("a\0b", "\ud800"):
            taking = jobs.take(None, Claim("me", "token", 10.0, 20.0), 1)
            taken, error = await asyncio.gather(taking, store.load(text), return_exceptions=True)
            assert isinstance(error, FlowError)
            assert isinstance(taken, list)
            assert len(taken) == 1
        assert len(await jobs.rows("CLAIMED", now=10.0)) == 2


@pytest.mark.parametrize(
    ("setting", "words"), [("statement_timeout", "longer statement_timeout"), ("lock_timeout", "held a lock for too")]
)
async def test_a_query_that_the_server_cancels_raises_a_clear_error_and_can_be_repeated(
    server: postgres.Postgres, setting: str, words: str
) -> None:
    url = server.cleared()
    async with PostgresStore(f"{url}%20-c{setting}%3D1000", connections=1) as store:
        # psycopg prepares a statement on the server when it runs for the sixth time.
        for _ in range(5):
            with pytest.raises(FlowError, match="no flow in this store has the id 'x'"):
                await store.take("x", "me", seen=1)
        with psycopg.connect(url) as db:
            db.execute("LOCK TABLE lifecycle_flows")
            with pytest.raises(JournalError, match=words):
                await store.take("x", "me", seen=1)
        with pytest.raises(FlowError, match="no flow in this store has the id 'x'"):
            await store.take("x", "me", seen=1)


async def test_a_store_that_is_not_entered_raises() -> None:
    store = PostgresStore("postgresql://here")
    with pytest.raises(JournalError, match="is not open; enter"):
        await store.load("x")
