"""Functions that watch, signal and reap processes. Only this module depends on the operating system.

On Linux, a pidfd reports when a process exits. Where pidfds are unavailable (on macOS, on old kernels, or in a sandbox
that forbids them), one thread per process waits for it instead. Without pidfds, group members that outlive their leader
get no grace period, because we have no way to watch them. Both approaches are tested on Linux, but not on macOS.
Windows has no process groups to kill, so we refuse to start processes there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")
_R = TypeVar("_R")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    _Batch: TypeAlias = list[tuple[_T, asyncio.Future[_R]]]

__all__ = [
    "Account",
    "Coalescer",
    "exit_code",
    "find_account",
    "group_end",
    "group_gone",
    "mains_end",
    "process_end",
    "readable",
    "reap",
    "require_groups",
    "signal_group",
    "signal_mains",
    "signal_name",
    "stopped",
]


#: Shells do not handle a signal until the command that they are running has exited.
_SHELLS: Final = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "zsh"})
#: How long to wait for a group's killed members to disappear, in seconds.
_LAST_WAIT: Final = 1.0
#: How long to wait for SIGSTOP to take effect, in seconds.
_STOPS: Final = 5.0
#: Seconds between checks. The interval starts at the first value, and doubles until it reaches the second.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
#: After this many loop iterations, a batch is started even if requests are still arriving.
_MAX_TURNS: Final = 32


class Coalescer(Generic[_T, _R]):
    """Combines requests that arrive at about the same time on a loop into one call to ``work``.

    A batch is started once no new requests have arrived during a loop iteration. If ``thread`` is set, the work runs in
    a new thread of that name, because the loop's executor may have no free thread. Requests that arrive in the meantime
    form the next batch. Every caller receives the result or exception of its batch. A request that is cancelled before
    its batch is started is skipped.
    """

    def __init__(self, work: Callable[[Sequence[_T]], _R], *, thread: str | None = None) -> None:
        self._work = work
        self._thread = thread
        # The requests for the next batch of each loop that has a scheduled or running batch.
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, _Batch[_T, _R]]
        self._waiting = WeakKeyDictionary()

    def submit(self, item: _T) -> asyncio.Future[_R]:
        """Add ``item`` to the next batch, and return a future for the result."""
        loop = asyncio.get_running_loop()
        caller: asyncio.Future[_R] = loop.create_future()
        if (waiting := self._waiting.get(loop)) is not None:
            waiting.append((item, caller))
        else:
            self._waiting[loop] = [(item, caller)]
            self._begin_when_quiet(loop)
        return caller

    def _begin_when_quiet(self, loop: asyncio.AbstractEventLoop, seen: int = 0, turns: int = _MAX_TURNS) -> None:
        size = len(self._waiting[loop])
        if size > seen and turns:
            loop.call_soon(partial(self._begin_when_quiet, loop, size, turns - 1))
            return
        batch = [(item, caller) for item, caller in self._waiting[loop] if not caller.done()]
        if self._thread is None:
            del self._waiting[loop]
            self._settle(batch, self._outcome(batch))
        else:
            self._waiting[loop] = []
            threading.Thread(target=self._run, args=(loop, batch), name=self._thread, daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop, batch: _Batch[_T, _R]) -> None:
        outcome = self._outcome(batch)
        # If the loop has been closed, there is no caller left to notify.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._done, loop, batch, outcome)

    def _done(self, loop: asyncio.AbstractEventLoop, batch: _Batch[_T, _R], outcome: _R | Exception) -> None:
        self._settle(batch, outcome)
        if waiting := self._waiting[loop]:
            self._begin_when_quiet(loop, len(waiting))
        else:
            del self._waiting[loop]

    def _outcome(self, batch: _Batch[_T, _R]) -> _R | Exception:
        try:
            return self._work([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  # raised in the callers
            return error

    @staticmethod
    def _settle(batch: _Batch[_T, _R], outcome: _R | Exception) -> None:
        for _, caller in batch:
            if caller.done():
                continue
            if isinstance(outcome, Exception):
                caller.set_exception(outcome)
            else:
                caller.set_result(outcome)


class Account(NamedTuple):
    """The user that a process runs as, including the user's groups and the environment variables set at login."""

    name: str
    uid: int
    gid: int
    groups: Sequence[int]
    variables: Mapping[str, str]


def find_account(user: str | int) -> Account | None:
    """Return the account of ``user`` (a name or number), or None if this program is already running as that user.

    Raises:
        ValueError: if the user does not exist, or this program is not allowed to start processes as that user.
    """
    import pwd  # not available on Windows

    try:
        entry = pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)
    except KeyError:
        raise ValueError("does not exist on this machine; pass an existing user's name or number") from None
    if os.geteuid() != 0:
        if entry.pw_uid == os.geteuid():
            return None
        raise ValueError(f"requires root, but this program runs as user {os.geteuid()}; omit it, or run as root")
    variables = {"HOME": entry.pw_dir, "SHELL": entry.pw_shell, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, variables)


def require_groups() -> None:
    """Raise OSError if this system has no process groups."""
    if sys.platform == "win32":
        raise OSError("process workers require POSIX process groups, which Windows does not have")


async def process_end(pid: int) -> None:
    """Wait until the child ``pid`` has exited. We don't reap it here, so its pid cannot be reused yet."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        await _thread_end(pid)
        return
    try:
        await readable(fd)
    finally:
        os.close(fd)


async def group_end(pgid: int) -> None:
    """Wait until only the leader of the group ``pgid`` is left. If members cannot be watched, return immediately.

    The leader must not have been reaped, unless the group has other members. Otherwise, a different group could be
    using the id.
    """
    seen: set[int] = {pgid}
    while new := [pid for pid in (await _listings.submit(pgid))[pgid] if pid not in seen]:
        seen.update(new)
        await mains_end(pgid, new)


async def mains_end(pgid: int, pids: Iterable[int]) -> None:
    """Wait until these members of the group ``pgid`` have exited. Members that cannot be watched are skipped."""
    watched = [fd for pid in pids if (fd := _open_member(pid, pgid)) is not None]
    try:
        await asyncio.gather(*(readable(fd) for fd in watched))
    finally:
        for fd in watched:
            os.close(fd)


async def group_gone(pgid: int) -> None:
    """Wait up to a second for a group's killed members to exit. The leader may have been reaped already."""
    if _group_exists(pgid):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WAIT):
                await group_end(pgid)


def _group_exists(pgid: int) -> bool:
    """Return whether the group has members, including zombies."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def signal_group(pgid: int, signum: int) -> None:
    """Send ``signum`` to every member of the group. Do nothing if the group is gone."""
    # On macOS, signalling a group of zombies fails with EPERM.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def signal_mains(pgid: int, signum: int) -> list[int]:
    """Send ``signum`` to the leader and, if it is a shell, to the commands it is running. Return all of their pids.

    The leader must not have been reaped.
    """
    mains = [pgid]
    for pid in mains:
        mains += _children(pid) if _is_shell(pid) else []
    with suppress(ProcessLookupError, PermissionError):
        # Signal the shell first, so that it does not start its next command.
        os.kill(pgid, signum)
    for pid in mains[1:]:
        if (fd := _open_member(pid, pgid)) is not None:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signum)
            os.close(fd)
    return mains


def _is_shell(pid: int) -> bool:
    try:
        # Two paths of pathlib would take longer than the system call.
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2] in _SHELLS  # noqa: PTH115
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except OSError:
        return []


async def stopped(pid: int | None, wanted: Callable[[], bool]) -> None:
    """After sending SIGSTOP, wait until the child ``pid`` has stopped or exited, or until ``wanted`` returns False.

    The child is only polled for a limited time, because a process that is doing disk I/O does not stop until the I/O is
    complete.
    """
    until, pause = asyncio.get_running_loop().time() + _STOPS, _FIRST_PAUSE
    while pid is not None and wanted() and asyncio.get_running_loop().time() < until:
        if _is_stopped(pid):
            return
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)


def _is_stopped(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # Something else has reaped the child.
        return True


def exit_code(pid: int) -> int | None:
    """Return the exit code of the child ``pid``, or the negated signal number if a signal killed it.

    The child must have exited already. This function does not reap it. Return None if the exit status was lost because
    something else reaped the child or this program ignores SIGCHLD.
    """
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def reap(pid: int) -> None:
    """Reap the child ``pid``, which has exited."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _list_members(wanted: Sequence[int]) -> dict[int, list[int]]:
    """Return the members of each group in ``wanted``. The lists are empty if there is no /proc."""
    groups: dict[int, list[int]] = {pgid: [] for pgid in wanted}
    with suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):  # noqa: PTH208  # avoids creating thousands of Path objects
            if entry.isdigit() and (group := _group_of(int(entry))) in groups:
                groups[group].append(int(entry))
    return groups


# Concurrent requests share one scan of /proc. This keeps the cost linear when a hundred workers end at the same time.
_listings: Coalescer[int, dict[int, list[int]]] = Coalescer(_list_members)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _open_member(pid: int, pgid: int) -> int | None:
    """Return a pidfd for a member of the group, or None.

    The group is checked after opening the pidfd, because the pid may have been reused before that.
    """
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
    if _group_of(pid) == pgid:
        return fd
    os.close(fd)
    return None


async def readable(fd: int) -> None:
    """Wait until ``fd`` is readable."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(fd, _resolve, future)
    try:
        await future
    finally:
        loop.remove_reader(fd)


async def _thread_end(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # If the loop has been closed, there is no caller left to notify.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, ended)

    threading.Thread(target=wait, name=f"end of process {pid}", daemon=True).start()
    await ended


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def signal_name(signum: int) -> str:
    """Return the name of a signal, such as SIGTERM for 15, or its number if it has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return str(signum)
