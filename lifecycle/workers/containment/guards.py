"""Our side of the guard: the one process that ends what is left when this program is gone.

There is one for all workers of this program, whatever threads and loops they live in: it comes with the first of them
and goes with the last. If somebody kills it, the next worker brings another, which is told of all of them. What it
does is in `watchman`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.workers import _platform
from lifecycle.workers.containment import cookies
from lifecycle.workers.containment.cgroupfs import remove_cgroup
from lifecycle.workers.containment.sweeps import look
from lifecycle.workers.stdio import Command, popen

__all__ = ["Guard", "Guards", "guards", "why_no_guard"]

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Lines at once, at most: a pipe takes all of PIPE_BUF bytes (4,096) or nothing.
_LINES: Final = 256
_PROGRAM: Final = Path(__file__).with_name("watchman.py")


def why_no_guard() -> str | None:
    """Why there can be no guard here; None if there can."""
    if sys.platform != "linux":
        return f"a guard needs /proc and pidfds, which {sys.platform} does not have"
    if getattr(sys, "frozen", False) or not sys.executable or not _PROGRAM.is_file():
        return "a guard is a Python program, and this one is frozen: there is no interpreter to run it"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"a guard needs pidfds, which are refused here ({error.strerror})"
    return None


class Guard:
    """One process, and the pipe that it listens to. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        theirs, self._pipe = os.pipe()
        self._inode = os.fstat(self._pipe).st_ino
        os.set_blocking(self._pipe, False)
        try:
            self._pid = popen(
                Command([sys.executable, "-I", "-S", str(_PROGRAM), cookies.runtime(), str(os.getpid())], os.environ),
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except BaseException:
            # Before the pipe is closed, which would be the alarm.
            os.kill(self._pid, signal.SIGKILL)
            _reap(self._pid)
            os.close(self._pipe)
            raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; somebody may have killed it."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def tell(self, line: str) -> bool:
        """Tell it something, a line or several; False if it does not listen any more."""
        try:
            # A program may close whatever is open; by now the number may be that of a file of its own.
            if os.fstat(self._pipe).st_ino != self._inode:
                return False
            return os.write(self._pipe, line.encode() + b"\n") > len(line)
        except OSError:
            return False

    def dismiss(self) -> None:
        """End it: there is nothing to guard. It is gone a moment after, and still to be seen off."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.let_go()

    def let_go(self) -> None:
        """Close what we hold of it, in a copy of this program that it does not guard."""
        with suppress(OSError):
            if os.fstat(self._pipe).st_ino == self._inode:
                os.close(self._pipe)
        with suppress(OSError):
            os.close(self._pidfd)

    async def seen_off(self) -> None:
        """Wait for its end, once it was dismissed."""
        try:
            await _platform.process_end(self._pid)
        finally:
            _reap(self._pid)


class Guards:
    """The guard of this program: there while somebody holds it."""

    def __init__(self) -> None:
        # Workers live in any thread; nothing of theirs is called under it.
        self._lock = threading.Lock()
        self._guard: Guard | None = None
        self._holders = 0
        self._groups: dict[int, int] = {}
        self._places: set[str] = set()
        self._containers: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        """The guard's number, while there is one."""
        return self._guard.pid if self._guard is not None else None

    def hold(self) -> None:
        """Have a guard; it is started if there is none. Raises OSError if that fails."""
        with self._lock:
            self._holders += 1
            try:
                if self._guard is None or not self._guard.is_alive:
                    self._renew()
            except OSError:
                self._holders -= 1
                raise

    async def release(self) -> None:
        """Have it no more; the last one ends it, and sees it off."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._guard is None:
                return
            guard, self._guard = self._guard, None
            # Those that could not be killed in time may have ended since.
            self._places = {place for place in self._places if not remove_cgroup(place)}
            guard.dismiss()
        await guard.seen_off()

    def add(self, pgid: int) -> None:
        """Have it end the group ``pgid``, whose leader is our child. Raises OSError if there can be no guard."""
        if (leader := look(pgid)) is None:
            return
        with self._lock:
            self._groups[pgid] = leader.born
            self._tell(f"+{pgid} {leader.born}")

    def remove(self, pgids: Iterable[int]) -> None:
        """Have it forget the groups; this is to be said before the leaders are reaped."""
        with self._lock:
            lines = [f"-{pgid}" for pgid in pgids if self._groups.pop(pgid, None) is not None]
            if self._guard is not None:
                for first in range(0, len(lines), _LINES):
                    self._guard.tell("\n".join(lines[first : first + _LINES]))

    def add_place(self, path: str) -> None:
        """Have it kill all in the cgroup ``path``. Raises OSError if there can be no guard."""
        with self._lock:
            self._places.add(path)
            self._tell(f"@{path}")

    def remove_place(self, path: str) -> None:
        """Have the cgroup forgotten, which is gone; a guard that was told may still look there, and find nothing."""
        with self._lock:
            self._places.discard(path)

    def add_container(self, name: str, socket: str) -> None:
        """Have the engine at ``socket`` remove the container ``name``. Raises OSError if there can be no guard."""
        with self._lock:
            self._containers[name] = socket
            self._tell(f"%{name} {socket}")

    def remove_container(self, name: str) -> None:
        """Have it forget the container, which is gone."""
        with self._lock:
            if self._containers.pop(name, None) is not None and self._guard is not None:
                self._guard.tell(f"~{name}")

    def _tell(self, line: str) -> None:
        if self._guard is None or not self._guard.tell(line):
            self._renew()

    def _renew(self) -> None:
        """Start a guard in place of one that is gone, or does not listen, and tell it everything."""
        if self._guard is not None:
            self._guard.dismiss()
            _reap(self._guard.pid)
            self._guard = None
        guard = self._guard = Guard()
        for pgid, born in self._groups.items():
            guard.tell(f"+{pgid} {born}")
        for place in self._places:
            guard.tell(f"@{place}")
        for name, socket in self._containers.items():
            guard.tell(f"%{name} {socket}")

    def forget(self) -> None:
        """Begin anew, in a copy of this program made by fork: the workers are not the copy's."""
        if self._guard is not None:
            self._guard.let_go()
        self._lock = threading.Lock()
        self._guard = None
        self._holders = 0
        self._groups = {}
        self._places = set()
        self._containers = {}


guards: Final = Guards()
"""The one of this program."""

if hasattr(os, "register_at_fork"):
    # The copy must not keep the pipe open: the guard would not notice our end by it.
    os.register_at_fork(after_in_child=guards.forget)


def _reap(pid: int) -> None:
    """Wait for the end of a child that was killed."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)
