"""Finds the remaining processes of workers by cookie, ancestry and cgroup, and kills them. Linux only.

This module only imports parts of the standard library, because the guard process runs it without the rest of the
package. A process is identified by its pid and start time. To kill a process, we first open a pidfd and then check the
start time. The pidfd always refers to the same process, even if the pid is reused.
"""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import TypeAlias

    #: The identity of a process: its pid, and its start time in clock ticks since boot.
    Identity: TypeAlias = tuple[int, int]

__all__ = [
    "COOKIE",
    "CookieScan",
    "Process",
    "all_processes",
    "descendants",
    "descendants_of",
    "has_cookie",
    "is_starting",
    "kill_cgroup",
    "kill_found",
    "kill_group",
    "read_process",
    "remove_cgroup",
    "ticks_since_boot",
]

#: The environment variable that contains the cookies, as a comma-separated list.
COOKIE = "LIFECYCLE_COOKIE"

_ENTRY = COOKIE.encode() + b"="
#: Seconds to wait for killed processes to disappear.
_LAST_WAIT = 1.0
#: PF_KTHREAD, from the kernel's sched.h.
_OF_KERNEL = 0x200000
#: PF_FORKNOEXEC, from the same file: the process has been forked and has not executed a program yet.
_NO_EXEC = 0x40
#: PR_GET_DUMPABLE and PR_SET_DUMPABLE, from the kernel's prctl.h.
_GET_DUMPABLE = 3
_SET_DUMPABLE = 4
#: Bytes per read, which is more than most environments contain. For files in /proc, a shorter result means end of file.
_PART = 1 << 16


class Process:
    """A process as shown in /proc."""

    __slots__ = ("flags", "group", "parent", "pid", "start_time", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The second field is a name in parentheses, which may itself contain parentheses.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid: int = pid
        self.state: bytes = fields[0]
        self.parent: int = int(fields[1])
        self.group: int = int(fields[2])
        self.flags: int = int(fields[6])
        self.start_time: int = int(fields[19])

    @property
    def is_dead(self) -> bool:
        """True if the process has exited and only needs to be reaped."""
        return self.state in b"ZXx"

    @property
    def identity(self) -> Identity:
        """The pid and the start time, which together are unique."""
        return self.pid, self.start_time


def read_process(pid: int) -> Process | None:
    """Return the process ``pid``, or None if it does not exist."""
    stat = _read(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def ticks_since_boot() -> int:
    """Return the current time in clock ticks since boot, like the start time of a process."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def is_starting(process: Process) -> bool:
    """Return whether the process has not executed a program yet, so that its environment cannot be read."""
    if process.is_dead or process.flags & _OF_KERNEL or process.pid == os.getpid():
        return False
    # The environment is empty during the exec.
    return bool(process.flags & _NO_EXEC) or _read(f"/proc/{process.pid}/environ") == b""


def all_processes() -> dict[int, Process]:
    """Return all processes by pid."""
    return {pid: process for pid in _pids() if (process := read_process(pid)) is not None}


def descendants(roots: Iterable[int], table: dict[int, Process]) -> list[Process]:
    """Return the descendants of ``roots`` in ``table``, excluding the roots."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(roots)
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def descendants_of(root: int) -> list[Process]:
    """Return the descendants of the process ``root``."""
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        if children is None:
            # The kernel does not list children, because CONFIG_PROC_CHILDREN is off.
            return descendants([root], all_processes())
        found += [process for pid in children if (process := read_process(pid)) is not None]
        waiting += children
    return found


class CookieScan:
    """Finds processes that have a cookie that ``is_ours`` accepts. Call it once per scan.

    Only root finds the processes of other users. Only complete cookies in complete environment entries are compared.
    """

    def __init__(self, is_ours: Callable[[bytes], bool]) -> None:
        self._is_ours = is_ours
        # The pids of processes without such a cookie. If such a pid is reused between two scans, the new process is
        # overlooked.
        self._strangers = {os.getpid(), *_kernel_threads()}

    def __call__(self, but: Collection[int] = ()) -> Iterator[Identity]:
        """Yield the processes with such a cookie. Processes in ``but`` are skipped."""
        for pid in _pids():
            if pid in but or pid in self._strangers:
                continue
            if self._holds(pid) and (known := self._confirmed(pid)) is not None:
                yield known

    def _holds(self, pid: int) -> bool:
        environ = _environ(pid)
        if environ is None:
            return False
        held = any(self._is_ours(cookie) for cookie in _cookies(environ))
        # The environment of a kernel thread is empty, as is that of a process during an exec.
        if environ and not held:
            self._strangers.add(pid)
        return held

    def _confirmed(self, pid: int) -> Identity | None:
        """Read the process again. Read the start time first, so that it and the cookie belong to the same process."""
        process = read_process(pid)
        if process is None or process.is_dead or not _may_be_killed(pid) or not self._holds(pid):
            return None
        return process.identity


def has_cookie(pid: int, cookie: bytes) -> bool:
    """Return whether the environment of ``pid`` contains ``cookie``. Return False if we cannot read it."""
    return cookie in _cookies(_environ(pid) or b"")


def kill_found(
    find: Callable[[], Iterable[Identity]], *, scans: int = 2, pause: float = 0.0, limit: float = 10.0
) -> int:
    """Kill the processes returned by ``find`` until ``scans`` consecutive scans find none. Return how many were killed.

    A single scan is not enough, because it can miss a process during a fork or exec. ``pause`` is the number of seconds
    to wait between scans. The call blocks for a few milliseconds if nothing is found, and for at most ``limit`` seconds
    if a process cannot be killed.
    """
    killed: set[Identity] = set()
    until, empty = time.monotonic() + limit, 0
    while empty < scans and time.monotonic() < until:
        found = list(find())
        empty = 0 if found else empty + 1
        killed |= _kill_all(found)
        if pause:
            select.select([], [], [], pause)
    return len(killed)


def kill_cgroup(path: str) -> None:
    """Kill all processes in a cgroup and its nested cgroups. Do nothing if the cgroup is gone."""
    try:
        with open(f"{path}/cgroup.kill", "w") as kill:  # noqa: PTH123  # pathlib costs the guard a megabyte
            kill.write("1")
    except OSError:
        pass


def remove_cgroup(path: str) -> bool:
    """Remove a cgroup and its nested cgroups. Return False if processes are still inside."""
    try:
        # Usually, there are no nested cgroups.
        os.rmdir(path)  # noqa: PTH106  # pathlib costs the guard a megabyte
    except FileNotFoundError:
        return True
    except OSError:
        return _remove_below(path)
    return True


def _remove_below(path: str) -> bool:
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir()]
        if not below or not all(remove_cgroup(each) for each in below):
            return False
        os.rmdir(path)  # noqa: PTH106  # pathlib costs the guard a megabyte
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def kill_group(pgid: int) -> None:
    """Kill all members of a group. The caller must be certain that the id has not been reused."""
    try:  # noqa: SIM105  # contextlib costs the guard memory
        os.killpg(pgid, signal.SIGKILL)
    except OSError:
        pass


def _kill_all(found: list[Identity]) -> set[Identity]:
    """Kill the processes, and wait up to a second for them to exit."""
    killed: dict[Identity, int] = {}
    try:
        # Remove duplicates, because a process may be found both by ancestry and by cookie.
        for known in set(found):
            if (fd := _kill(*known)) is not None:
                killed[known] = fd
        _wait_gone(set(killed.values()))
    finally:
        for fd in killed.values():
            os.close(fd)
    return set(killed)


def _kill(pid: int, start_time: int) -> int | None:
    """Kill the process ``pid`` if it has this start time. Return its pidfd, or None if it cannot be killed now."""
    if pid == os.getpid():
        return None
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        process = read_process(pid)
        if process is not None and process.start_time == start_time and not process.is_dead:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _wait_gone(fds: set[int]) -> None:
    """Wait up to a second for the processes behind the pidfds ``fds`` to exit."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    until = time.monotonic() + _LAST_WAIT
    while fds and (left := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            fds.discard(fd)


def _cookies(environ: bytes) -> list[bytes]:
    # Most environments don't contain a cookie, so avoid splitting them.
    if _ENTRY not in environ:
        return []
    values = [entry[len(_ENTRY) :] for entry in environ.split(b"\0") if entry.startswith(_ENTRY)]
    return [cookie for value in values for cookie in value.split(b",")]


def _kernel_threads() -> list[int]:
    """Return the kernel threads, which are children of the first one. Often, they make up half of all processes."""
    first = read_process(2)
    return (_children(2) or []) if first is not None and first.flags & _OF_KERNEL else []


def _may_be_killed(pid: int) -> bool:
    """Return whether the process runs as our user. Root may kill the processes of all users."""
    owner = _owner(pid)
    return owner is not None and os.geteuid() in (0, owner[0])


def _owner(pid: int) -> tuple[int, int] | None:
    """Return the user and group of ``pid``, or None if it is gone."""
    try:
        found = os.stat(f"/proc/{pid}")  # noqa: PTH116  # pathlib costs the guard a megabyte
    except OSError:
        return None
    return found.st_uid, found.st_gid


def _environ(pid: int) -> bytes | None:
    """Return the environment of ``pid``, or None if it is gone or unreadable."""
    environ = _read(f"/proc/{pid}/environ")
    if environ is None and os.geteuid() == 0 and (owner := _owner(pid)) is not None and owner[0]:
        # In most containers, root lacks the capability to read the environments of other users' processes.
        return _read_as(*owner, f"/proc/{pid}/environ")
    return environ


def _read_as(user: int, group: int, path: str) -> bytes | None:
    """Read a file in /proc with the file access of another user. Only the current thread changes its user."""
    import ctypes  # imported only when needed, because it costs the guard a megabyte

    libc = ctypes.CDLL(None)
    dumpable = libc.prctl(_GET_DUMPABLE)
    libc.setfsgid(group)
    libc.setfsuid(user)
    try:
        return _read(path)
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())
        # A change of the user disables core dumps of the whole process.
        libc.prctl(_SET_DUMPABLE, dumpable)


def _children(pid: int) -> list[int] | None:
    """Return the children of all threads of ``pid``, or None if the kernel does not list them."""
    try:
        lists = [_read(f"/proc/{pid}/task/{thread}/children") for thread in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []
    if None in lists and not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110  # as above
        return None
    return [int(pid) for each in lists if each for pid in each.split()]


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  # as above


def _read(path: str) -> bytes | None:
    """Return the contents of a file in /proc, or None if it is gone or unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = part = os.read(fd, _PART)
        while len(part) == _PART:
            part = os.read(fd, _PART)
            data += part
    except OSError:
        return None
    else:
        return data
    finally:
        os.close(fd)
