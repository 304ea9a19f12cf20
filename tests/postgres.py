"""A real PostgreSQL server for tests, with its data and its socket in a temporary directory.

The first test marked ``engine("postgres")`` starts the server, which runs until the session ends.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lifecycle.flows.stores.postgres import TABLES, prepare

__all__ = ["Postgres", "program", "server", "stop"]

#: The timeout in seconds. The server usually takes one second.
_LIMIT = 60.0
_SETTINGS = {
    "listen_addresses": "",
    # These settings matter only after a power cut, and tests only kill processes.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "300",
    "autovacuum_naptime": "10s",
    "logging_collector": "off",
}


def program(name: str) -> str | None:
    """Return the path of one of the server's programs, which Debian does not put on PATH.

    The variable ``LIFECYCLE_POSTGRES`` sets the directory with the programs of another version.
    """
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    first = os.environ.get("LIFECYCLE_POSTGRES", "/")
    return shutil.which(name, path=os.pathsep.join([first, *map(str, places), os.environ.get("PATH", ""), "/usr/sbin"]))


_TABLES = re.findall(r"CREATE TABLE (\w+)", str(TABLES))


class Postgres:
    """A server that can be killed and started again."""

    def __init__(self, **settings: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="lifecycle-postgres-"))
        self._settings = _SETTINGS | settings
        # The server refuses to run as root.
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.home, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = itertools.count(1)
        self._cleared: str | None = None
        options = ["--auth=trust", "--username=lifecycle", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = self._run("initdb", *options, f"--pgdata={self.home / 'data'}", stdout=subprocess.PIPE)
        output, _ = done.communicate(timeout=_LIMIT)
        assert done.returncode == 0, output.decode()
        rules = self.home / "data" / "pg_hba.conf"
        # The role `locked` needs its password.
        rules.write_text("local all locked scram-sha-256\nlocal all all trust\nhostssl all all all trust\n")

    @property
    def admin(self) -> str:
        """Return the URL of the first database, with all permissions."""
        return f"postgresql://lifecycle@/postgres?host={self.home}"

    def role(self, name: str, password: str = "") -> None:
        """Create a role without permissions."""
        if not self.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
            self.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")

    def url(self) -> str:
        """Return the URL of a new empty schema."""
        name = f"s{next(self._schemas)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.admin}&options=-csearch_path%3D{name}"

    def owner(self) -> str:
        """Create a role with an empty schema that has the same name, and return the name."""
        name = f"s{next(self._schemas)}"
        self.execute(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA AUTHORIZATION {name}")
        return name

    def cleared(self) -> str:
        """Return the URL of a schema with empty tables. Reusing the same schema is faster than creating one."""
        if self._cleared is None:
            self._cleared = self.url()
            with psycopg.connect(self._cleared, autocommit=True) as db:
                prepare(db)
        self.execute("; ".join(f"DELETE FROM s{self._cleared.rpartition('%3Ds')[2]}.{table}" for table in _TABLES))
        return self._cleared

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.admin, autocommit=True) as db:
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        argv = ["-D", str(self.home / "data"), "-k", str(self.home), *settings]
        with (self.home / "log").open("ab") as log:
            self._process = self._run("postgres", *argv, stdout=log)
        self.wait()

    def wait(self) -> None:
        """Wait until the server responds."""
        end = time.monotonic() + _LIMIT
        while True:
            try:
                psycopg.connect(self.admin).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"postgres did not start; it wrote:\n{(self.home / 'log').read_text(errors='replace')}")
                time.sleep(0.01)
            else:
                return

    def kill(self) -> None:
        """Kill the server, as a crash of the machine would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._wait_for_children()

    def stop(self) -> None:
        """Stop the server as an administrator does. It closes all connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._process = None

    def _wait_for_children(self) -> None:
        """Wait until backend processes notice that the server is gone, because it can be restarted only then."""
        with suppress(FileNotFoundError):
            (self.home / "data" / "postmaster.pid").unlink()
        end = time.monotonic() + _LIMIT
        while any(str(self.home) in _command(path) for path in Path("/proc").glob("[0-9]*")):
            assert time.monotonic() < end
            time.sleep(0.01)

    def close(self) -> None:
        """Remove the server's processes and files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _run(self, name: str, *words: str, stdout: Any) -> subprocess.Popen[bytes]:
        path = program(name)
        assert path is not None, "not installed, but the test was not skipped"
        # The kernel kills the server when this process exits for any reason.
        argv = ["setpriv", "--pdeathsig", "KILL"]
        if self._user is not None:
            argv += [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        return subprocess.Popen(
            [*argv, path, *words],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        )


def _command(path: Path) -> str:
    try:
        return (path / "environ").read_bytes().decode(errors="replace") + str((path / "cwd").readlink())
    except OSError:
        return ""


_server: Postgres | None = None


def server() -> Postgres:
    """Return the server that all tests in this session share."""
    global _server  # noqa: PLW0603  # each process has one
    if _server is None:
        started = Postgres()
        started.start()
        _server = started
    return _server


def stop() -> None:
    """Stop the server, if it was started."""
    global _server  # noqa: PLW0603  # each process has one
    if _server is not None:
        _server.close()
        _server = None
