"""Our side of the guard: the one process that ends what is left when this program is gone.

There is one for all workers of this program, whatever threads and loops they live in: it comes with the first of them
and goes with the last. All that it has to end stands in notes in memory that it shares with us, which it reads when we
have ended. To write there never waits, however busy the guard is, and if the guard is killed, the next worker brings
another, which has the same notes. What it does is in `watchman`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.backoff import Backoff
from lifecycle.workers import _posix
from lifecycle.workers.containment import cookies
from lifecycle.workers.containment.cgroupfs import remove_cgroup
from lifecycle.workers.containment.sweeps import look
from lifecycle.workers.stdio import Command, popen

__all__ = ["Guard", "Guards", "Notes", "guards", "why_no_guard"]

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_log = logging.getLogger("lifecycle.workers")

#: Bytes of notes that are out of date, at most, besides as many as are not.
_STALE: Final = 1 << 16
#: Between the starts of guards that end one after the other; the first of them is replaced at once.
_PATIENCE: Final = Backoff(initial=0.1, maximum=5.0, jitter=0.0, reset_after=60.0)
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


class Notes:
    """What a guard has to end, as lines in memory that it shares with us. Raises OSError if there is none to be had.

    They grow at their end. Once most of them are out of date, those that are not are written to another file, which
    counts when its number, at its beginning, is the higher one: wherever we are killed, one of the two is complete.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        with ExitStack() as stack:
            #: The descriptors of the two files.
            self.files: Final = (_memory(stack), _memory(stack))
            self._identities = [_identity(file) for file in self.files]
            self._number = 0
            self.rewrite(lines)
            stack.pop_all()

    def write(self, lines: Sequence[str]) -> None:
        """Add ``lines``. Raises OSError if the files were closed, or memory is short."""
        self._check()
        text = "".join(f"{line}\n" for line in lines).encode()
        if (written := os.pwrite(self._file, text, self._size)) < len(text):
            # Half a line would make one line with the next.
            raise OSError(errno.ENOSPC, f"{written} of {len(text)} bytes of the notes for the guard were written")
        self._size += written

    @property
    def is_stale(self) -> bool:
        """Whether most of them may be out of date."""
        return self._size > self._enough

    def rewrite(self, lines: Sequence[str]) -> None:
        """Replace all by ``lines``. Raises OSError as `write` does."""
        self._check()
        self._number += 1
        os.ftruncate(self._file, 0)
        self._size = len(self._header)
        self.write(lines)
        os.pwrite(self._file, self._header, 0)
        self._enough = 2 * self._size + _STALE

    def close(self) -> None:
        """Close the files."""
        for file, identity in zip(self.files, self._identities, strict=True):
            with suppress(OSError):
                if _identity(file) == identity:
                    os.close(file)

    @property
    def _file(self) -> int:
        return self.files[self._number % 2]

    @property
    def _header(self) -> bytes:
        return b"%016x" % self._number

    def _check(self) -> None:
        # A program may close whatever is open; by now the number may be that of a file of its own.
        if [_identity(file) for file in self.files] != self._identities:
            raise OSError(errno.EBADF, "the notes for the guard were closed")


def _memory(stack: ExitStack) -> int:
    try:
        file = os.memfd_create("lifecycle-guard")
    except (AttributeError, OSError):
        # A Python that was built for an old C library does not have it, and a sandbox may refuse it.
        import tempfile

        file, path = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112, S108  # a name is made there
        os.unlink(path)  # noqa: PTH108  # as above
    stack.callback(os.close, file)
    return file


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


class Guard:
    """One process with ``notes``, and the pipe by which it knows our end. Raises OSError if it cannot be started."""

    def __init__(self, notes: Notes) -> None:
        theirs, self._pipe = os.pipe()
        self._inode = os.fstat(self._pipe).st_ino
        argv = [sys.executable, "-I", "-S", str(_PROGRAM), cookies.runtime(), str(os.getpid()), *map(str, notes.files)]
        try:
            self._pid = popen(
                Command(argv, os.environ, inherit=notes.files),
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
            await _posix.process_end(self._pid)
        finally:
            _reap(self._pid)


class Guards:
    """The guard of this program: there while somebody holds it."""

    def __init__(self) -> None:
        # Workers live in any thread; nothing of theirs is called under it.
        self._lock = threading.Lock()
        self._guard: Guard | None = None
        self._notes: Notes | None = None
        self._holders = 0
        self._groups: dict[int, int] = {}
        self._places: set[str] = set()
        self._containers: dict[str, str] = {}
        # When the guard was started, and how many before it ended by themselves, one soon after the other.
        self._started_at = 0.0
        self._lost = 0

    @property
    def pid(self) -> int | None:
        """The guard's number, while there is one."""
        return self._guard.pid if self._guard is not None else None

    async def may_start(self) -> None:
        """Return when a guard that has ended may be replaced: at once, or later if it is not the first one."""
        while (seconds := self._seconds_to_wait()) > 0:  # noqa: ASYNC110  # the time itself is what is waited for
            await asyncio.sleep(seconds)

    def hold(self) -> None:
        """Have a guard; it is started if there is none.

        Raises OSError if that fails, or if guards have ended so often that the next one has to wait.
        """
        with self._lock:
            self._require()
            self._holders += 1

    def keep(self) -> None:
        """Have the guard that there is stay, until `release`."""
        with self._lock:
            self._holders += 1

    async def release(self) -> None:
        """Have it no more; the last one ends it, and sees it off."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            guard, self._guard = self._guard, None
            # Those that could not be killed in time may have ended since.
            self._places = {place for place in self._places if not remove_cgroup(place)}
            if guard is not None:
                guard.dismiss()
            self._close_notes()
        if guard is not None:
            await guard.seen_off()

    def add(self, pgid: int) -> None:
        """Have it end the group ``pgid``, whose leader is our child. Raises OSError as `hold` does."""
        if (leader := look(pgid)) is None:
            return
        with self._lock:
            self._groups[pgid] = leader.born
            self._add(f"+{pgid} {leader.born}")

    def remove(self, pgids: Iterable[int]) -> None:
        """Have it forget the groups; call this before the leaders are reaped."""
        with self._lock:
            self._note([f"-{pgid}" for pgid in pgids if self._groups.pop(pgid, None) is not None])

    def add_place(self, path: str) -> None:
        """Have it kill all in the cgroup ``path``. Raises OSError as `hold` does."""
        with self._lock:
            self._places.add(path)
            self._add(f"@{path}")

    def remove_place(self, path: str) -> None:
        """Have the cgroup forgotten, which is gone; it may stay in the notes, and then the guard finds nothing."""
        with self._lock:
            self._places.discard(path)

    def add_container(self, name: str, socket: str) -> None:
        """Have the engine at ``socket`` remove the container ``name``. Raises OSError as `hold` does."""
        with self._lock:
            self._containers[name] = socket
            self._add(f"%{name} {socket}")

    def remove_container(self, name: str) -> None:
        """Have it forget the container, which is gone."""
        with self._lock:
            if self._containers.pop(name, None) is not None:
                self._note([f"~{name}"])

    def _add(self, line: str) -> None:
        self._note([line])
        self._require()

    def _note(self, lines: Sequence[str]) -> None:
        if self._notes is None or not lines:
            return
        try:
            if self._notes.is_stale:
                self._notes.rewrite(self._lines())
            else:
                self._notes.write(lines)
        except OSError:
            # The next start has notes of its own, and a guard that reads them.
            self._close_notes()

    def _lines(self) -> list[str]:
        """All that there is to end."""
        return [
            *(f"+{pgid} {born}" for pgid, born in self._groups.items()),
            *(f"@{place}" for place in self._places),
            *(f"%{name} {socket}" for name, socket in self._containers.items()),
        ]

    def _require(self) -> None:
        """Have a guard that is alive, and reads what we write: another, if that one has ended."""
        if self._guard is not None and self._notes is not None and self._guard.is_alive:
            return
        if self._guard is not None:
            if not self._guard.is_alive:
                self._count_lost(self._guard.pid)
            self._guard.dismiss()
            _reap(self._guard.pid)
            self._guard = None
        if self._notes is None:
            self._notes = Notes(self._lines())
        try:
            self._guard = Guard(self._notes)
        except OSError:
            if not self._holders:
                self._close_notes()
            raise
        self._started_at = time.monotonic()

    def _seconds_to_wait(self) -> float:
        """Seconds before the guard, if it has ended, is replaced: it could end again and again."""
        if self._guard is None or self._guard.is_alive:
            return 0.0
        age = time.monotonic() - self._started_at
        return _PATIENCE.delay(self._lost - 1) - age if self._lost and age < _PATIENCE.reset_after else 0.0

    def _count_lost(self, pid: int) -> None:
        """The guard has ended. Raise OSError if it is not to be replaced yet."""
        if (seconds := self._seconds_to_wait()) > 0:
            raise OSError(
                errno.EAGAIN, f"its guard (pid {pid}) has ended, and the next one is started in {seconds:.1f} s"
            )
        if time.monotonic() - self._started_at >= _PATIENCE.reset_after:
            self._lost = 0
        before = f", as {self._lost} before it; look for what kills them" if self._lost else ""
        self._lost += 1
        _log.warning("the guard (pid %d) has ended%s; another takes its place", pid, before)

    def _close_notes(self) -> None:
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def forget(self) -> None:
        """Begin anew, in a copy of this program made by fork: the workers are not the copy's."""
        if self._guard is not None:
            self._guard.let_go()
        self._close_notes()
        self._lock = threading.Lock()
        self._guard = None
        self._holders = 0
        self._groups = {}
        self._places = set()
        self._containers = {}
        self._lost = 0


guards: Final = Guards()
"""The one of this program."""

if hasattr(os, "register_at_fork"):
    # The copy must not keep the pipe open: the guard would not notice our end by it.
    os.register_at_fork(after_in_child=guards.forget)


def _reap(pid: int) -> None:
    """Wait for the end of a child that was killed."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)
