"""As PID 1, nobody else buries the dead: processes whose parents ended come to us, and stay zombies until reaped."""

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

#: Seconds that whoever started a child has to ask for its end before it is looked at.
_GRACE = 1.0


@contextmanager
def reaping_orphans(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Reap orphans for a block, if this process is PID 1."""
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
    """Reaps zombies that nobody has asked for.

    A child of our own is never taken from who started it: one that has a `subprocess.Popen` (or one of
    `multiprocessing`) which has not seen its end is left alone, and any other is left for a second at least.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Zombies of the last look that may be orphans: those still there at the next one are.
        self._suspects: set[int] = set()

    def wake(self, _signum: int) -> None:
        """A child has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.schedule)

    def schedule(self) -> None:
        """Look in a while, unless that is going to happen anyway."""
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
    """The children that a Popen of this program will ask for."""
    from multiprocessing import popen_fork

    kinds = (subprocess.Popen, popen_fork.Popen)
    mine: list[Any] = [each for each in gc.get_objects() if isinstance(each, kinds)]
    return {each.pid for each in mine if each.returncode is None}
