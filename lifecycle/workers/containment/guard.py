"""The guard process from the side of the program that it guards: it ends what is left when this program is gone.

There is one for all workers of this program, in all threads and loops: it is started with the first of them and ends
with the last. Both share a log in memory of all that is to be ended, which the guard reads when this program has ended.
Writing there never waits, however busy the guard is. If the guard is killed, the next worker starts another, which has
the same log. `guard_main` is its program. Here are also the cookies by which it finds processes.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import secrets
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
from lifecycle.workers.containment.process_scan import COOKIE, read_process, remove_cgroup
from lifecycle.workers.stdio import Command, popen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ContainerGuard",
    "GuardManager",
    "GuardProcess",
    "GuardRef",
    "SharedLog",
    "guard_manager",
    "new_cookie",
    "runtime_id",
    "why_no_guard",
    "with_cookie",
    "without_cookies",
]

_log = logging.getLogger("lifecycle.workers")

#: Bytes of outdated lines, at most, besides as many as are not outdated.
_STALE: Final = 1 << 16
#: Between the starts of guards that end one after the other; the first of them is replaced at once.
_BACKOFF: Final = Backoff(initial=0.1, maximum=5.0, jitter=0.0, reset_after=60.0)
_PROGRAM: Final = Path(__file__).with_name("guard_main.py")


def why_no_guard() -> str | None:
    """Return why there can be no guard here; None if there can."""
    if sys.platform != "linux":
        return f"a guard needs /proc and pidfds, which {sys.platform} does not have"
    if getattr(sys, "frozen", False) or not sys.executable or not _PROGRAM.is_file():
        return "a guard is a Python program, and this one is frozen: there is no interpreter to run it"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"a guard needs pidfds, which are refused here ({error.strerror})"
    return None


class SharedLog:
    """The lines that tell a guard what to end, in memory that it shares. Raises OSError if there is no such memory.

    Lines are appended. Once most of them are outdated, the others are written to a second file, which counts when its
    number, at its beginning, is the higher one: wherever this program is killed, one of the two files is complete.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        with ExitStack() as stack:
            #: The descriptors of the two files.
            self.files: Final = (_memory(stack), _memory(stack))
            self._identities = [_identity(file) for file in self.files]
            self._number = 0
            self.compact(lines)
            stack.pop_all()

    def append(self, lines: Sequence[str]) -> None:
        """Append ``lines``. Raises OSError if the files were closed, or memory is short."""
        self._check()
        text = "".join(f"{line}\n" for line in lines).encode()
        if (written := os.pwrite(self._file, text, self._size)) < len(text):
            # The next line would be joined to a line that was written in part.
            raise OSError(errno.ENOSPC, f"{written} of {len(text)} bytes of the log for the guard were written")
        self._size += written

    @property
    def is_stale(self) -> bool:
        """Whether most lines may be outdated."""
        return self._size > self._enough

    def compact(self, lines: Sequence[str]) -> None:
        """Replace all lines by ``lines``. Raises OSError as `append` does."""
        self._check()
        self._number += 1
        os.ftruncate(self._file, 0)
        self._size = len(self._header)
        self.append(lines)
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
        # The program may close any descriptor; by now the number may be that of another file.
        if [_identity(file) for file in self.files] != self._identities:
            raise OSError(errno.EBADF, "the log for the guard was closed")


def _memory(stack: ExitStack) -> int:
    try:
        file = os.memfd_create("lifecycle-guard")
    except (AttributeError, OSError):
        # Missing in a Python that was built for an old C library, and refused by some sandboxes.
        import tempfile

        file, path = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112, S108  # only to make a name
        os.unlink(path)  # noqa: PTH108  # as above
    stack.callback(os.close, file)
    return file


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


class GuardProcess:
    """One guard process, with ``log``, and the pipe that ends with this program. Raises OSError if it cannot start."""

    def __init__(self, log: SharedLog) -> None:
        theirs, self._pipe = os.pipe()
        self._inode = os.fstat(self._pipe).st_ino
        argv = [sys.executable, "-I", "-S", str(_PROGRAM), runtime_id(), str(os.getpid()), *map(str, log.files)]
        try:
            self._pid = popen(
                Command(argv, os.environ, inherit=log.files),
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
            # Before the pipe is closed, which would make it act.
            os.kill(self._pid, signal.SIGKILL)
            _reap(self._pid)
            os.close(self._pipe)
            raise

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; other code may have killed it."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def dismiss(self) -> None:
        """Kill it, since there is nothing to guard; then `wait` for its end."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close the pipe and the pidfd, also in a forked copy of this program, which it does not guard."""
        with suppress(OSError):
            if os.fstat(self._pipe).st_ino == self._inode:
                os.close(self._pipe)
        with suppress(OSError):
            os.close(self._pidfd)

    async def wait(self) -> None:
        """Wait for its end, after `dismiss`."""
        try:
            await _posix.process_end(self._pid)
        finally:
            _reap(self._pid)


class GuardManager:
    """The guard of this program: it runs while it has users."""

    def __init__(self) -> None:
        # Workers live in any thread; no code of theirs runs under the lock.
        self._lock = threading.Lock()
        self._guard: GuardProcess | None = None
        self._shared_log: SharedLog | None = None
        self._users = 0
        self._groups: dict[int, int] = {}
        self._cgroups: set[str] = set()
        self._containers: dict[str, str] = {}
        # When the guard was started, and how many before it were lost, one soon after the other.
        self._started_at = 0.0
        self._lost = 0

    @property
    def pid(self) -> int | None:
        """The pid of the guard, while there is one."""
        return self._guard.pid if self._guard is not None else None

    async def wait_for_backoff(self) -> None:
        """Return when a guard that was lost may be replaced: at once, or later if it is not the first one."""
        while (seconds := self._seconds_to_wait()) > 0:  # noqa: ASYNC110  # it waits for the time itself
            await asyncio.sleep(seconds)

    def acquire(self) -> None:
        """Add a user; start the guard if there is none.

        Raises OSError if that fails, or if guards were lost so often that the next one has to wait.
        """
        with self._lock:
            self._require()
            self._users += 1

    def keep(self) -> None:
        """Add a user of the guard that there is."""
        with self._lock:
            self._users += 1

    async def release(self) -> None:
        """Remove a user; the last one ends the guard and waits for that."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            guard, self._guard = self._guard, None
            # Those that were not empty in time may be by now.
            self._cgroups = {path for path in self._cgroups if not remove_cgroup(path)}
            if guard is not None:
                guard.dismiss()
            self._close_log()
        if guard is not None:
            await guard.wait()

    def add_group(self, pgid: int) -> None:
        """Have it end the group ``pgid``, whose leader is our child. Raises OSError as `acquire` does."""
        if (leader := read_process(pgid)) is None:
            return
        with self._lock:
            self._groups[pgid] = leader.start_time
            self._add(f"+{pgid} {leader.start_time}")

    def remove_groups(self, pgids: Iterable[int]) -> None:
        """Have it forget the groups; call this before the leaders are reaped."""
        with self._lock:
            self._note([f"-{pgid}" for pgid in pgids if self._groups.pop(pgid, None) is not None])

    def add_cgroup(self, path: str) -> None:
        """Have it kill all in the cgroup ``path``. Raises OSError as `acquire` does."""
        with self._lock:
            self._cgroups.add(path)
            self._add(f"@{path}")

    def remove_cgroup(self, path: str) -> None:
        """Have it forget the cgroup, which is gone; its line may stay in the log, where it does no harm."""
        with self._lock:
            self._cgroups.discard(path)

    def add_container(self, name: str, socket: str) -> None:
        """Have the engine at ``socket`` remove the container ``name``. Raises OSError as `acquire` does."""
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
        if self._shared_log is None or not lines:
            return
        try:
            if self._shared_log.is_stale:
                self._shared_log.compact(self.entries())
            else:
                self._shared_log.append(lines)
        except OSError:
            # The next start makes another log, and a guard that reads it.
            self._close_log()

    def entries(self) -> list[str]:
        """Return a line of the log for all that there is to end."""
        return [
            *(f"+{pgid} {born}" for pgid, born in self._groups.items()),
            *(f"@{path}" for path in self._cgroups),
            *(f"%{name} {socket}" for name, socket in self._containers.items()),
        ]

    def _require(self) -> None:
        """Start a guard unless there is one that is alive and has the log."""
        if self._guard is not None and self._shared_log is not None and self._guard.is_alive:
            return
        if self._guard is not None:
            if not self._guard.is_alive:
                self._count_lost(self._guard.pid)
            self._guard.dismiss()
            _reap(self._guard.pid)
            self._guard = None
        if self._shared_log is None:
            self._shared_log = SharedLog(self.entries())
        try:
            self._guard = GuardProcess(self._shared_log)
        except OSError:
            if not self._users:
                self._close_log()
            raise
        self._started_at = time.monotonic()

    def _seconds_to_wait(self) -> float:
        """Return the seconds until the guard, if it was lost, may be replaced: it could end again and again."""
        if self._guard is None or self._guard.is_alive:
            return 0.0
        age = time.monotonic() - self._started_at
        return _BACKOFF.delay(self._lost - 1) - age if self._lost and age < _BACKOFF.reset_after else 0.0

    def _count_lost(self, pid: int) -> None:
        """Count a guard that was lost. Raises OSError if it may not be replaced yet."""
        if (seconds := self._seconds_to_wait()) > 0:
            raise OSError(
                errno.EAGAIN, f"its guard (pid {pid}) has ended, and the next one is started in {seconds:.1f} s"
            )
        if time.monotonic() - self._started_at >= _BACKOFF.reset_after:
            self._lost = 0
        before = f", as {self._lost} before it; look for what kills them" if self._lost else ""
        self._lost += 1
        _log.warning("the guard (pid %d) has ended%s; another takes its place", pid, before)

    def _close_log(self) -> None:
        if self._shared_log is not None:
            self._shared_log.close()
            self._shared_log = None

    def reset_after_fork(self) -> None:
        """Start empty in a forked copy of this program: the workers are not the copy's."""
        if self._guard is not None:
            self._guard.close()
        self._close_log()
        self._lock = threading.Lock()
        self._guard = None
        self._users = 0
        self._groups = {}
        self._cgroups = set()
        self._containers = {}
        self._lost = 0


#: The one of this program.
guard_manager: Final = GuardManager()

if hasattr(os, "register_at_fork"):
    # The copy must not keep the pipe open, by which the guard notices the end of this program.
    os.register_at_fork(after_in_child=guard_manager.reset_after_fork)


def _reap(pid: int) -> None:
    """Wait for the end of a child that was killed."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)


# -- users of the guard besides processes ------------------------------------------------------------------------------


class GuardRef:
    """A user of the guard from one worker to the next: starting another guard takes far longer than a command."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used = False

    def acquire(self) -> None:
        """Keep the guard that there is until the release; any number of times."""
        if not self._used and guard_manager.pid is not None:
            guard_manager.keep()
            self._used = True

    async def release(self) -> None:
        """Keep it no longer; any number of times."""
        if self._used:
            self._used = False
            await guard_manager.release()


class ContainerGuard:
    """Has the guard remove one container, through its engine, from before its creation until its removal."""

    def __init__(self) -> None:
        self._container: str | None = None

    def add(self, container: str, socket: str | None) -> bool:
        """Add ``container``, whose engine has a ``socket`` if it is on this machine; return False without a guard."""
        if socket is None or why_no_guard() is not None:
            return False
        try:
            guard_manager.acquire()
            self._container = container
            guard_manager.add_container(container, socket)
        except OSError:
            return False
        return True

    async def release(self) -> None:
        """Remove the container from the guard, once it is gone; any number of times."""
        if self._container is not None:
            guard_manager.remove_container(self._container)
            self._container = None
            await guard_manager.release()


# -- cookies -----------------------------------------------------------------------------------------------------------

_runtime: str | None = None
_numbers = itertools.count(1)


def runtime_id() -> str:
    """Return 128 random bits, with which all cookies of this program begin; a forked copy of it has others."""
    global _runtime  # noqa: PLW0603  # there is one for each process
    if _runtime is None:
        _runtime = secrets.token_hex(16)
    return _runtime


def new_cookie() -> str:
    """Return a cookie for one life of one worker: the runtime's id, and a number."""
    return f"{runtime_id()}:{next(_numbers)}"


def with_cookie(env: Mapping[str, str], cookie: str) -> dict[str, str]:
    """Return ``env`` with ``cookie``, and with those of this program: a worker of a worker has both."""
    inherited = os.environ.get(COOKIE)
    return {**env, COOKIE: f"{inherited},{cookie}" if inherited else cookie}


def without_cookies(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` for a process that no worker owns."""
    return {name: value for name, value in env.items() if name != COOKIE}


def _forget_runtime() -> None:
    global _runtime  # noqa: PLW0603  # as above
    _runtime = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_runtime)
