"""PgBouncer between tests and a PostgreSQL server, with its settings and its socket in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.postgres import program

if TYPE_CHECKING:
    from tests.postgres import Postgres

__all__ = ["PgBouncer"]

#: The timeout in seconds. PgBouncer usually takes some milliseconds.
_LIMIT = 60.0


class PgBouncer:
    """A pooler that is running from the start. It logs in as a role with its own empty schema."""

    def __init__(self, server: Postgres, **settings: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="lifecycle-pgbouncer-"))
        self._role = server.owner()
        # PgBouncer refuses to run as root.
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.home, self._user.pw_uid, self._user.pw_gid)
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (self.home / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host={server.home} user={self._role}\n"
            f"[pgbouncer]\nauth_type = any\nlisten_addr =\nunix_socket_dir = {self.home}\nlisten_port = 5432\n"
            + "\n".join(lines)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://{self._role}@/postgres?host={self.home}"

    def start(self) -> None:
        # The kernel kills PgBouncer when this process exits for any reason.
        argv = ["setpriv", "--pdeathsig", "KILL"]
        if self._user is not None:
            argv += [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        path = program("pgbouncer")
        assert path is not None, "not installed, but the test was not skipped"
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, path, str(self.home / "pgbouncer.ini")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + _LIMIT
        while not _accepts(self.home / ".s.PGSQL.5432"):
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"pgbouncer did not start; it wrote:\n{(self.home / 'log').read_text(errors='replace')}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill PgBouncer, which closes all connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self.home / ".s.PGSQL.5432").unlink()

    def close(self) -> None:
        """Remove the process and its files."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        # The file exists before the socket listens.
        return client.connect_ex(str(path)) == 0
