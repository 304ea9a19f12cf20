"""Orphans: if this process is PID 1, it reaps the children whose parents have exited."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from multiprocessing import popen_fork
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterator

__all__ = ["reaping_orphans"]

_log = logging.getLogger("lifecycle.runtime")

#: Seconds between checks for orphans. Code that started a child has at least this much time to wait for it.
_ORPHAN_GRACE = 1.0


@contextmanager
def reaping_orphans(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Reap orphans during the block, in a process that is PID 1.

    A process whose parent has exited becomes a child of PID 1. When it exits, it stays a zombie until it is reaped.
    """
    reaper = _Reaper(loop)
    release = signal_registry().take([signal.SIGCHLD], reaper.wake)
    reaper.schedule()
    try:
        yield
    finally:
        release()
        reaper.cancel()


class _Reaper:
    """Reaps zombies that nothing waits for.

    It does not reap a child before the code that started the child has had a chance to. It never reaps a child before
    its `subprocess.Popen` object (or the `multiprocessing` equivalent) has noticed the exit. It waits at least a second
    before reaping any other child.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Zombies found by the last check that may be orphans. If they are still zombies at the next check, they are
        # reaped.
        self._suspects: set[int] = set()

    def wake(self, _signum: int) -> None:
        """Schedule a check. Called when a child has exited."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.schedule)

    def schedule(self) -> None:
        """Schedule a check in a second, unless one is already scheduled."""
        if self._timer is None:
            self._timer = self._loop.call_later(_ORPHAN_GRACE, self._check)

    def cancel(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        zombies = set(_zombies())
        if zombies:
            zombies -= _asked_for()
        for pid in zombies & self._suspects:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                _log.debug("reaped the orphan %d", pid)
        self._suspects = zombies - self._suspects
        if self._suspects:
            self.schedule()


def _zombies() -> Iterator[int]:
    """Return the children of this process that have exited but have not been waited for."""
    me = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The format is "pid (name) state parent …". The name may contain any character.
            state, parent = entry.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            if state == "Z" and parent == me:
                yield int(entry.parent.name)


def _asked_for() -> set[int]:
    """Return the children that a Popen object in this program waits for."""
    kinds = (subprocess.Popen, popen_fork.Popen)
    mine: list[Any] = [each for each in gc.get_objects() if isinstance(each, kinds)]
    return {each.pid for each in mine if each.returncode is None}
