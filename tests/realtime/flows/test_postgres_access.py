"""PostgreSQL behind PgBouncer, and over TLS."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from lifecycle.errors import JournalError
from lifecycle.flows import Flows, JobQueue, linear, task
from tests import postgres
from tests.flows.working import working
from tests.pgbouncer import PgBouncer
from tests.programs import Running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Bouncing = Callable[..., PgBouncer]

pytestmark = pytest.mark.engine("postgres")
pgbouncer = pytest.mark.engine("pgbouncer")

LIMIT = 30.0
#: A lease in seconds with which polling alone would take twenty minutes.
POLLED = 3600.0
ONE = linear("one", task(lambda: 1, name="a"))
PRESENT = """
import asyncio, sys
from lifecycle.flows import Flows

async def main():
    async with Flows(sys.argv[1]) as flows:
        print(f"<{flows.presence.token}>", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def opened(url: str) -> None:
    async with Flows(url) as flows:
        assert await flows.start(ONE) == {"a": 1}


# -- PgBouncer ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bouncing() -> Iterator[Bouncing]:
    """Start PgBouncer with the given settings."""
    started: list[PgBouncer] = []

    def start(**settings: str) -> PgBouncer:
        started.append(PgBouncer(postgres.server(), **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pgbouncer
async def test_flows_and_jobs_work_behind_a_pooler_with_session_pooling(bouncing: Bouncing) -> None:
    bouncer = bouncing(pool_mode="session")
    async with Flows(bouncer.url) as flows, Flows(bouncer.url) as others, working(JobQueue(flows), ONE, lease=POLLED):
        for _ in range(10):
            assert await flows.start(ONE) == {"a": 1}
        async with asyncio.timeout(LIMIT):
            assert await (await JobQueue(others).enqueue("one")) == "SUCCESS"
        bouncer.kill()
        enqueuing = asyncio.create_task(JobQueue(others).enqueue("one"))
        await asyncio.to_thread(bouncer.start)
        async with asyncio.timeout(LIMIT):
            assert await (await enqueuing) == "SUCCESS"


@pgbouncer
async def test_a_process_that_is_killed_behind_a_pooler_is_missed(bouncing: Bouncing) -> None:
    bouncer = bouncing(pool_mode="session")
    async with Flows(bouncer.url) as flows:
        other = Running("-c", PRESENT, bouncer.url, env={})
        try:
            await asyncio.to_thread(other.until, ">")
            token = other.text[other.text.index("<") + 1 : other.text.index(">")]
            assert await flows.presence.lives(token)
        finally:
            other.close()
        async with asyncio.timeout(LIMIT):
            while await flows.presence.lives(token):
                await asyncio.sleep(0.01)


@pgbouncer
async def test_a_pooler_with_transaction_pooling_is_refused_and_its_sessions_are_not_changed(
    bouncing: Bouncing,
) -> None:
    bouncer = bouncing(pool_mode="transaction")
    with pytest.raises(JournalError, match=r"notifications do not arrive.* use session pooling \(pool_mode = session"):
        await opened(bouncer.url)
    with psycopg.connect(bouncer.url, autocommit=True) as db:
        assert db.execute("SHOW synchronous_commit").fetchone() == ("on",)
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert db.execute(locks).fetchone() == (0,)


@pgbouncer
@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({"pool_mode": "statement"}, "", "set pool_mode = session in PgBouncer"),
        ({}, "&options=-csearch_path%3Dx", "a pooler refuses the options in the URL; run ALTER ROLE"),
        (
            {"ignore_startup_parameters": "options"},
            "&options=-csearch_path%3Dx",
            "a pooler ignores the search_path in the URL; run ALTER ROLE",
        ),
        ({"default_pool_size": "1", "query_wait_timeout": "1"}, "", "increase default_pool_size in PgBouncer"),
        ({"max_client_conn": "1"}, "", "increase max_client_conn in PgBouncer"),
    ],
)
async def test_settings_of_a_pooler_that_do_not_work_are_refused(
    bouncing: Bouncing, settings: dict[str, str], options: str, words: str
) -> None:
    bouncer = bouncing(**{"pool_mode": "session", **settings})
    with pytest.raises(JournalError, match=words):
        await opened(f"{bouncer.url}{options}")


# -- TLS ---------------------------------------------------------------------------------------------------------------


class Secured:
    """A server with a certificate for ``db.example``, which accepts only TLS on its TCP port."""

    def __init__(self) -> None:
        # All of 127.0.0.0/8 belongs to this machine, so the standard port is free at one of its addresses.
        self._address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.server = postgres.Postgres(listen_addresses=self._address, ssl="on")
        self._certify("ca", "ca")
        self._certify("other", "other")
        self._certify("data/server", "db.example", "-CA", "ca.crt", "-CAkey", "ca.key")
        data = (self.server.home / "data").stat()
        os.chown(self.server.home / "data" / "server.key", data.st_uid, data.st_gid)
        self.server.start()

    def _certify(self, path: str, name: str, *words: str) -> None:
        """Create a certificate for ``name``, signed by itself or as in ``words``."""
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{path}.key"]
        about = ["-out", f"{path}.crt", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
        argv = ["openssl", "req", "-x509", "-days", "2", *key, *about, *words]
        subprocess.run(argv, cwd=self.server.home, check=True, capture_output=True)

    def url(self, mode: str = "verify-full", ca: str = "ca", host: str = "db.example") -> str:
        """Return the URL of a new empty schema."""
        schema = self.server.url().rpartition("&")[2]
        given = f"hostaddr={self._address}&sslmode={mode}&sslrootcert={self.server.home}/{ca}.crt&{schema}"
        return f"postgresql://lifecycle@{host}/postgres?{given}"


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    if postgres.server().execute("SHOW ssl_library") == [("",)]:
        pytest.skip("this PostgreSQL was built without TLS")
    made = Secured()
    yield made
    made.server.close()


async def test_flows_and_jobs_work_over_tls(secured: Secured) -> None:
    url = secured.url()
    async with Flows(url) as flows, Flows(url) as others, working(JobQueue(flows), ONE, lease=POLLED):
        assert await flows.start(ONE) == {"a": 1}
        # The messages fill several records of TLS.
        received: set[int] = set()
        for number in range(900):
            others.presence.listen(f"{'long ' * 30}{number}", partial(received.add, number))
        for number in range(900):
            flows.presence.notify(f"{'long ' * 30}{number}")
        await until(lambda: len(received) == 900)
        encrypted = "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL"
        assert secured.server.execute(f"SELECT bool_and(ssl) {encrypted}") == [(True,)]
        secured.server.execute(f"SELECT pg_terminate_backend(pid) {encrypted}")
        async with asyncio.timeout(LIMIT):
            assert await (await JobQueue(others).enqueue("one")) == "SUCCESS"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ca": "other"}, "check that sslrootcert in the URL is the certificate of the server's CA"),
        ({"ca": "missing"}, r"set the file with the certificate .* in the URL \(\?sslrootcert=FILE\)"),
        ({"host": "db2.example"}, "use a host name that is in the server's certificate"),
        ({"mode": "disable"}, r"add \?sslmode=verify-full to the URL, or allow this host and user"),
    ],
)
async def test_a_connection_without_the_right_certificate_is_refused(
    secured: Secured, given: dict[str, str], words: str
) -> None:
    with pytest.raises(JournalError, match=words):
        await opened(secured.url(**given))


async def test_a_server_without_tls_is_refused_if_the_url_requires_it() -> None:
    address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    server = postgres.Postgres(listen_addresses=address)
    try:
        server.start()
        with pytest.raises(JournalError, match="enable TLS on the server"):
            await opened(f"postgresql://lifecycle@localhost/postgres?hostaddr={address}&sslmode=require")
    finally:
        server.close()
