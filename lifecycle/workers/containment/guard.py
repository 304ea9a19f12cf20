"""The guarded program's side of the guard process, which kills all remaining processes once the program is gone.

One guard serves all of this program's workers, in all threads and loops. A log in shared memory lists everything that
the guard must clean up. The guard runs until there are no workers and nothing is listed. It does not read the log until
the program has exited, so writing to it never blocks. If the guard is killed, the next worker starts a new guard with
the same log. The guard runs the program `guard_main`. This module also creates the cookies that the guard uses to find
processes.
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
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lifecycle.backoff import Backoff
from lifecycle.workers import _posix
from lifecycle.workers.containment.process_scan import COOKIE, read_process, remove_cgroup, ticks_since_boot
from lifecycle.workers.stdio import Command, popen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

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

#: The log is compacted when its outdated lines are this many bytes larger than its current lines.
_STALE: Final = 1 << 16
#: How long to wait before replacing a lost guard if guards keep dying.
_BACKOFF: Final = Backoff(initial=0.1, maximum=5.0, jitter=0.0, reset_after=60.0)
_PROGRAM: Final = Path(__file__).with_name("guard_main.py")


def why_no_guard() -> str | None:
    """Return why a guard cannot run here, or None if it can."""
    if sys.platform != "linux":
        return f"a guard needs /proc and pidfds, which {sys.platform} does not have"
    if getattr(sys, "frozen", False) or not sys.executable or not _PROGRAM.is_file():
        return "a guard is a Python program, but this program is frozen and has no interpreter to run it"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"a guard needs pidfds, which are refused here ({error.strerror})"
    return None


class SharedLog:
    """Lines in shared memory that list what the guard must clean up. Raises OSError if shared memory is unavailable.

    Lines are appended. Once most lines are outdated, the current lines are written to a second file. Each file begins
    with a number, and the file with the higher number is valid. This way, one of the two files is always complete,
    whenever this program is killed.
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
        """Append ``lines``. Raises OSError if the files have been closed or memory has run out."""
        self._check()
        text = "".join(f"{line}\n" for line in lines).encode()
        if (written := os.pwrite(self._file, text, self._size)) < len(text):
            # Otherwise, the next line would be appended to the partial one.
            raise OSError(errno.ENOSPC, f"only {written} of {len(text)} bytes were written to the guard's log")
        self._size += written

    @property
    def is_stale(self) -> bool:
        """True if most lines may be outdated."""
        return self._size > self._enough

    def compact(self, lines: Sequence[str]) -> None:
        """Replace all lines with ``lines``. Raises OSError, like `append`."""
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
        # Other code in this program may have closed the descriptor, and its number may now refer to a different file.
        if [_identity(file) for file in self.files] != self._identities:
            raise OSError(errno.EBADF, "the guard's log was closed")


def _memory(stack: ExitStack) -> int:
    try:
        file = os.memfd_create("lifecycle-guard")
    except (AttributeError, OSError):
        # Python does not have this function if it was built for an old C library, and some sandboxes forbid it.
        import tempfile

        file, path = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: PTH112, S108  # only names a file
        os.unlink(path)  # noqa: PTH108  # as above
    stack.callback(os.close, file)
    return file


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


class GuardProcess:
    """A guard process for ``log``, and a pipe that closes when this program ends. Raises OSError on failure."""

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
            # Kill the guard before closing the pipe. Otherwise, the guard would start killing processes.
            os.kill(self._pid, signal.SIGKILL)
            self.reap()
            os.close(self._pipe)
            raise

    @property
    def pid(self) -> int:
        """The guard's pid."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        """True if the guard is still running. Something else may have killed it."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def dismiss(self) -> None:
        """Kill the guard, because there is nothing left to guard. Call `wait` afterwards."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.close()

    def reap(self) -> None:
        """After `dismiss`, block until the guard has exited."""
        _reap(self._pid)

    def close(self) -> None:
        """Close the pipe and the pidfd. Also called in a forked copy of this program, which is not guarded."""
        with suppress(OSError):
            if os.fstat(self._pipe).st_ino == self._inode:
                os.close(self._pipe)
        with suppress(OSError):
            os.close(self._pidfd)

    async def wait(self) -> None:
        """After `dismiss`, wait until the guard has exited."""
        try:
            await _posix.process_end(self._pid)
        finally:
            self.reap()


class GuardManager:
    """This program's guard, which runs while it has users or anything to clean up."""

    def __init__(self) -> None:
        # A lock is needed because workers can run in any thread. It is reentrant because garbage collection can close a
        # worker's coroutine while this thread holds it. The operations of such a coroutine are deferred.
        self._lock = threading.RLock()
        self._is_busy = False
        self._deferred: deque[Callable[[], None]] = deque()
        self._guard: GuardProcess | None = None
        self._shared_log: SharedLog | None = None
        self._users = 0
        self._starts: dict[str, int] = {}
        self._groups: dict[int, int] = {}
        self._cgroups: set[str] = set()
        self._containers: dict[str, str] = {}
        # When the guard was started, and how many guards were lost in quick succession before that.
        self._started_at = 0.0
        self._lost = 0

    @property
    def pid(self) -> int | None:
        """The guard's pid, or None if it is not running."""
        return self._guard.pid if self._guard is not None else None

    async def wait_for_backoff(self) -> None:
        """Wait until a lost guard may be replaced. The first replacement is not delayed."""
        while (seconds := self._seconds_to_wait()) > 0:  # noqa: ASYNC110  # it waits for the time itself
            await asyncio.sleep(seconds)

    def acquire(self) -> None:
        """Add a user, and start the guard if it is not running.

        Raises:
            OSError: if the guard cannot start, or must wait because too many guards have been lost.
        """
        with self._locked():
            self._require()
            self._users += 1

    def keep(self) -> None:
        """Add a user to the running guard."""
        with self._locked():
            self._users += 1

    async def release(self) -> None:
        """Remove a user. If it was the last one, and nothing is left to guard, kill the guard and wait for its exit."""
        dismissed: list[GuardProcess] = []
        self._run(partial(self._remove_user, dismissed.append), partial(self._remove_user, GuardProcess.reap))
        for guard in dismissed:
            await guard.wait()

    def add_start(self, cookie: str) -> None:
        """Have the guard wait for the process that is about to be forked. Raises OSError, like `acquire`.

        If this program is killed before the process has executed its command, neither a group nor a cookie identifies
        the process.
        """
        with self._locked():
            self._starts[cookie] = ticks_since_boot()
            self._add(f"?{cookie} {self._starts[cookie]}")

    def remove_start(self, cookie: str) -> None:
        """Forget a process whose group has been added, or that could not be started."""
        self._run(partial(self._forget, self._starts, cookie, f"!{cookie}"))

    def add_group(self, pgid: int) -> None:
        """Have the guard kill the group ``pgid``, whose leader is our child. Raises OSError, like `acquire`."""
        if (leader := read_process(pgid)) is None:
            return
        with self._locked():
            self._groups[pgid] = leader.start_time
            self._add(f"+{pgid} {leader.start_time}")

    def remove_groups(self, pgids: Iterable[int]) -> None:
        """Remove the groups from the log. Call this before their leaders are reaped."""
        with self._locked():
            self._note([f"-{pgid}" for pgid in pgids if self._groups.pop(pgid, None) is not None])

    def add_cgroup(self, path: str) -> None:
        """Have the guard kill all processes in the cgroup ``path``. Raises OSError, like `acquire`."""
        with self._locked():
            self._cgroups.add(path)
            self._add(f"@{path}")

    def remove_cgroup(self, path: str) -> None:
        """Forget a removed cgroup. The cgroup's line can stay in the log without causing harm."""
        self._run(partial(self._cgroups.discard, path))

    def add_container(self, name: str, socket: str) -> None:
        """Have the guard remove the container ``name`` via the engine at ``socket``. Raises OSError, like `acquire`."""
        with self._locked():
            self._containers[name] = socket
            self._add(f"%{name} {socket}")

    def remove_container(self, name: str) -> None:
        """Forget a removed container."""
        self._run(partial(self._forget, self._containers, name, f"~{name}"))

    @contextmanager
    def _locked(self) -> Generator[None]:
        with self._lock:
            try:
                self._is_busy = True
                yield
            finally:
                while self._deferred:
                    self._deferred.popleft()()
                self._is_busy = False

    def _run(self, operation: Callable[[], None], later: Callable[[], None] | None = None) -> None:
        """Run ``operation`` under the lock.

        If garbage collection calls this during another operation, run ``later`` or ``operation`` after that one.
        """
        with self._lock:
            if self._is_busy:
                self._deferred.append(later or operation)
                return
            with self._locked():
                operation()

    def _remove_user(self, wait_for: Callable[[GuardProcess], None]) -> None:
        # In a forked copy of this program, coroutines of the original's workers may be closed.
        self._users = max(0, self._users - 1)
        if self._users:
            return
        # Cgroups that could not be removed earlier may be empty by now.
        self._cgroups -= {path for path in self._cgroups if remove_cgroup(path)}
        if self.entries():
            # A worker could not clean up, for example because its loop was closed. The guard does so at exit.
            return
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.dismiss()
            wait_for(guard)
        self._close_log()

    def _forget(self, registered: dict[str, Any], key: str, line: str) -> None:
        if registered.pop(key, None) is not None:
            self._note([line])

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
            # The next start creates a new log and a guard that reads it.
            self._close_log()

    def entries(self) -> list[str]:
        """Return the log lines for everything that is currently registered."""
        return [
            *(f"?{cookie} {since}" for cookie, since in self._starts.items()),
            *(f"+{pgid} {born}" for pgid, born in self._groups.items()),
            *(f"@{path}" for path in self._cgroups),
            *(f"%{name} {socket}" for name, socket in self._containers.items()),
        ]

    def _require(self) -> None:
        """Start a guard, unless one with the current log is already running."""
        if self._guard is not None and self._shared_log is not None and self._guard.is_alive:
            return
        if self._guard is not None:
            if not self._guard.is_alive:
                self._count_lost(self._guard.pid)
            self._guard.dismiss()
            self._guard.reap()
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
        """Return how many seconds to wait before replacing a lost guard. There is no delay unless guards keep dying."""
        if self._guard is None or self._guard.is_alive:
            return 0.0
        age = time.monotonic() - self._started_at
        return _BACKOFF.delay(self._lost - 1) - age if self._lost and age < _BACKOFF.reset_after else 0.0

    def _count_lost(self, pid: int) -> None:
        """Record that a guard was lost. Raises OSError if it must not be replaced yet."""
        if (seconds := self._seconds_to_wait()) > 0:
            raise OSError(
                errno.EAGAIN, f"its guard (pid {pid}) has exited, and the next guard starts in {seconds:.1f} s"
            )
        if time.monotonic() - self._started_at >= _BACKOFF.reset_after:
            self._lost = 0
        before = f" after {self._lost} earlier ones; find out what kills them" if self._lost else ""
        self._lost += 1
        _log.warning("the guard (pid %d) has exited and is being replaced%s", pid, before)

    def _close_log(self) -> None:
        if self._shared_log is not None:
            self._shared_log.close()
            self._shared_log = None

    def reset_after_fork(self) -> None:
        """Discard all state in a forked child process, which does not own the workers."""
        if self._guard is not None:
            self._guard.close()
        self._close_log()
        self._lock = threading.RLock()
        self._is_busy = False
        self._deferred.clear()
        self._guard = None
        self._users = 0
        self._starts = {}
        self._groups = {}
        self._cgroups = set()
        self._containers = {}
        self._lost = 0


#: The only instance in this program.
guard_manager: Final = GuardManager()

if hasattr(os, "register_at_fork"):
    # A forked copy must not keep the pipe open, because the guard relies on the pipe closing when this program ends.
    os.register_at_fork(after_in_child=guard_manager.reset_after_fork)


def _reap(pid: int) -> None:
    """Wait until a killed child has exited, and reap it."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)


# -- other users of the guard ------------------------------------------------------------------------------------------


class GuardRef:
    """Keeps the guard running between workers, because starting it takes far longer than starting a command."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used = False

    def acquire(self) -> None:
        """Keep the running guard alive until `release` is called. Further calls do nothing."""
        if not self._used and guard_manager.pid is not None:
            guard_manager.keep()
            self._used = True

    async def release(self) -> None:
        """Stop keeping the guard alive. Further calls do nothing."""
        if self._used:
            self._used = False
            await guard_manager.release()


class ContainerGuard:
    """Registers a container with the guard, from before it is created until it is removed."""

    def __init__(self) -> None:
        self._container: str | None = None

    def add(self, container: str, socket: str | None) -> bool:
        """Register ``container``. Return False if the engine is not local (``socket`` is None) or there is no guard."""
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
        """Forget the container after it has been removed. Further calls do nothing."""
        if self._container is not None:
            guard_manager.remove_container(self._container)
            self._container = None
            await guard_manager.release()


# -- cookies -----------------------------------------------------------------------------------------------------------

_runtime: str | None = None
_numbers = itertools.count(1)


def runtime_id() -> str:
    """Return the 128 random bits at the start of all of this program's cookies. Forked copies use different bits."""
    global _runtime  # noqa: PLW0603  # there is one per process
    if _runtime is None:
        _runtime = secrets.token_hex(16)
    return _runtime


def new_cookie() -> str:
    """Return a cookie for one run of a worker. The cookie consists of this program's id and a number."""
    return f"{runtime_id()}:{next(_numbers)}"


def with_cookie(env: Mapping[str, str], cookie: str) -> dict[str, str]:
    """Return ``env`` with ``cookie`` and this program's own cookies, because this program may itself be a worker."""
    inherited = os.environ.get(COOKIE)
    return {**env, COOKIE: f"{inherited},{cookie}" if inherited else cookie}


def without_cookies(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without cookies, for a process that must not be considered part of a worker."""
    return {name: value for name, value in env.items() if name != COOKIE}


def _forget_runtime() -> None:
    global _runtime  # noqa: PLW0603  # as above
    _runtime = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_runtime)
