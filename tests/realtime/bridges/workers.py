"""Candidate processes for tests of leaders. Tests start the processes, read their notes, and always stop them."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from tests.chaos.leader import Result, start_worker, up

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.chaos.leader import Write

__all__ = ["Worker", "result_of", "workers"]


class Worker:
    """A candidate process and its notes."""

    def __init__(self, process: Process, path: Path) -> None:
        self.process = process
        self._path = path

    def notes(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def turns(self) -> list[tuple[str, int]]:
        """Return the leader events in the worker's notes, with their tokens."""
        lines = (line.split() for line in self.notes() if line.startswith(("gained", "lost")))
        return [("", 0), *((word, int(token)) for word, token in lines)]

    @property
    def last(self) -> int:
        """Return the last token that the worker received."""
        return self.turns()[-1][1]

    @property
    def token(self) -> int:
        """Return the worker's token while it is the leader, and 0 otherwise."""
        word, token = self.turns()[-1]
        return token if word == "gained" else 0

    @property
    def wrote(self) -> int:
        """Return the last revision that the server acknowledged to this worker."""
        return max((int(line.split()[1]) for line in self.notes() if line.startswith("put")), default=0)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def workers(directory: Path, *places: tuple[str, tuple[str, ...]]) -> AsyncIterator[list[Worker]]:
    """Start a worker for each of ``places``.

    Each contains the server's address in a network, and the prefix that runs a command in that network.
    """
    log = directory / "log"
    async with AsyncExitStack() as stack:
        all_of_them: list[Worker] = []
        for number, (url, via) in enumerate(places):
            notes = directory / f"notes-{number}"
            all_of_them.append(Worker(await start_worker(url, notes, log, *via), notes))
            stack.push_async_callback(all_of_them[-1].kill)
        for worker in all_of_them:
            await up(worker.process, log)
        yield all_of_them


def result_of(workers: list[Worker], writes: list[Write]) -> Result:
    """Combine the notes of the stopped workers with the writes on the server."""
    result = Result(writes)
    for worker in workers:
        for line in worker.notes():
            result.note(line)
    return result
