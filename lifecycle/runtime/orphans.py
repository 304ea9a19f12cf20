"""Reaping orphans as PID 1: a process whose parent has ended becomes a child of PID 1, and a zombie until reaped."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterator

__all__ = ["reaping_orphans"]

_log = logging.getLogger("lifecycle.runtime")

#: Seconds between two looks: the code that started a child has at least one interval to wait for it.
_GRACE = 1.0


@contextmanager
def reaping_orphans(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Reap orphans during the block, if this process is PID 1."""
    if os.getpid() != 1:
        yield
        return
    reaper = _Reaper(loop)
    release = signal_registry().take([signal.SIGCHLD], reaper.wake)
    reaper.schedule()
    try:
        yield
    finally:
        release()
        reaper.cancel()


class _Reaper:
    """Reaps zombies that no code waits for.

    It does not reap a child before the code that started it can. A child with a `subprocess.Popen` (or that of
    `multiprocessing`) that has not seen its end is left alone, and any other is left for at least a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Zombies at the last look that may be orphans; those that are still zombies at the next look are.
        self._suspects: set[int] = set()

    def wake(self, _signum: int) -> None:
        """A child has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.schedule)

    def schedule(self) -> None:
        """Look in a second, unless a look is scheduled already."""
        if self._timer is None:
            self._timer = self._loop.call_later(_GRACE, self._look)

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
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
    """Children of this process that have ended and were not waited for."""
    from pathlib import Path  # slow to import, and few programs are PID 1

    me = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # "pid (name) state parent …"; the name may hold anything.
            state, parent = entry.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            if state == "Z" and parent == me:
                yield int(entry.parent.name)


def _asked_for() -> set[int]:
    """The children that a Popen of this program waits for."""
    from multiprocessing import popen_fork

    kinds = (subprocess.Popen, popen_fork.Popen)
    mine: list[Any] = [each for each in gc.get_objects() if isinstance(each, kinds)]
    return {each.pid for each in mine if each.returncode is None}
