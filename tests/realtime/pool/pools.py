"""Helpers for tests of whole pools, with the targets of `pool_targets`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lifecycle.backoff import Intensity
from lifecycle.workers.pool import Phase, Pool, Process
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lifecycle.hooks import Hook

__all__ = ["QUICK", "announced", "gone", "pids", "pool_of", "ready", "started"]

#: Settings that avoid the cost of containment.
QUICK = Process(contain="group", grace=0.3)
#: An intensity that allows any number of lost workers.
ANY = Intensity(10_000, 30.0)


def pool_of(target: str = "Desk", *, size: tuple[int, int] = (1, 1), **how: Any) -> Pool:
    """Return a pool with this target."""
    how = {"process": QUICK, "intensity": ANY, "deadline": LIMIT, **how}
    return Pool("pool", f"tests.realtime.pool.pool_targets:{target}", size=size, **how)


async def started(*paths: Path) -> None:
    """Wait until these files exist. Each call creates its file when it starts."""
    await until(lambda: all(path.exists() for path in paths))


def pids(pool: Pool) -> set[int | None]:
    return {worker.pid for worker in pool.members()}


def ready(pool: Pool) -> int:
    return sum(worker.phase is Phase.READY for worker in pool.members())


def gone(pid: int | None) -> bool:
    """Return whether a process has exited. It may still be a zombie."""
    assert pid is not None
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123  # called often
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def announced(hook: Hook, pool: Pool) -> Iterator[list[dict[str, Any]]]:
    """Collect a hook's announcements about the pool."""
    received: list[dict[str, Any]] = []

    def receive(sender: object, **what: Any) -> None:
        if sender is pool:
            received.append(what)

    hook.connect(receive)
    try:
        yield received
    finally:
        hook.disconnect(receive)


def kill(pid: int | None, signum: int) -> None:
    assert pid is not None
    os.kill(pid, signum)
