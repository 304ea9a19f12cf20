"""Sweeps: finding what is left of workers, by cookie and by descent, and killing it and nothing else.

It stands on a handful of the standard library and on nothing of ours: the guard runs it without the rest. Whoever is
found is known by number and time of birth. It is killed through a pidfd, opened before its birth is looked at again:
from then on the number cannot pass to a stranger. Linux only.
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

    #: A process: its number, and when it was born, in clock ticks since the machine was started.
    Known: TypeAlias = tuple[int, int]

__all__ = [
    "COOKIE",
    "Holders",
    "Process",
    "carries",
    "descendants",
    "family",
    "kill_group",
    "look",
    "processes",
    "sweep",
]

#: The variable in the environment that holds cookies, separated by commas.
COOKIE = "LIFECYCLE_COOKIE"

_ENTRY = COOKIE.encode() + b"="
#: Seconds for those that were killed to be gone.
_LAST_WAIT = 1.0
#: PF_KTHREAD, from the kernel's sched.h.
_OF_KERNEL = 0x200000
#: Bytes a read: more than most environments; a file of /proc that gives less than is asked for has no more.
_PART = 1 << 16


class Process:
    """What /proc says of a process."""

    __slots__ = ("born", "flags", "group", "parent", "pid", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The second field is a name in parentheses, which may hold anything, parentheses too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid: int = pid
        self.state: bytes = fields[0]
        self.parent: int = int(fields[1])
        self.group: int = int(fields[2])
        self.flags: int = int(fields[6])
        self.born: int = int(fields[19])

    @property
    def dead(self) -> bool:
        """Whether it has ended, and waits only for somebody to take note."""
        return self.state in b"ZXx"

    @property
    def known(self) -> Known:
        """How to find it again."""
        return self.pid, self.born


def look(pid: int) -> Process | None:
    """The process ``pid``; None if there is none."""
    stat = _read(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def processes() -> dict[int, Process]:
    """All there are now."""
    return {pid: process for pid in _pids() if (process := look(pid)) is not None}


def descendants(roots: Iterable[int], table: dict[int, Process]) -> list[Process]:
    """Who descends from ``roots`` in ``table``; not they themselves."""
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


def family(root: int) -> list[Process]:
    """Who descends from the process ``root``."""
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        if children is None:
            # A kernel that keeps no such lists (CONFIG_PROC_CHILDREN).
            return descendants([root], processes())
        found += [process for pid in children if (process := look(pid)) is not None]
        waiting += children
    return found


class Holders:
    """Finds processes of our own user that hold a cookie that ``ours`` accepts; call it once for each look.

    A cookie is compared whole, in an entry of the environment that is taken whole.
    """

    def __init__(self, ours: Callable[[bytes], bool]) -> None:
        self._ours = ours
        # Numbers; within the moment that one sweep takes none passes to somebody else. If it did, he would be spared.
        self._strangers = {os.getpid(), *_kernel_threads()}

    def __call__(self, but: Collection[int] = ()) -> Iterator[Known]:
        """Who there is now, ``but`` those, who are not looked at."""
        for pid in _pids():
            if pid in but or pid in self._strangers:
                continue
            if self._holds(pid) and (known := self._confirmed(pid)) is not None:
                yield known

    def _holds(self, pid: int) -> bool:
        environ = _read(f"/proc/{pid}/environ")
        if environ is None:
            return False
        held = any(self._ours(cookie) for cookie in _cookies(environ))
        # Empty: a kernel thread, or one that is just being executed.
        if environ and not held:
            self._strangers.add(pid)
        return held

    def _confirmed(self, pid: int) -> Known | None:
        """Look again, now with the birth first: that this number has that birth *and* the cookie is certain then."""
        process = look(pid)
        if process is None or process.dead or not _is_our_users(pid) or not self._holds(pid):
            return None
        return process.known


def carries(pid: int, cookie: bytes) -> bool:
    """Whether the process ``pid`` has ``cookie`` in its environment; not if that is not for us to read."""
    return cookie in _cookies(_read(f"/proc/{pid}/environ") or b"")


def sweep(find: Callable[[], Iterable[Known]], *, looks: int = 2, pause: float = 0.0, limit: float = 10.0) -> int:
    """Kill whom ``find`` finds until it finds nobody for ``looks`` in a row; how many were killed.

    One look is not enough: who is just being forked or executed is missed by it. There are ``pause`` seconds between
    two. It blocks, for milliseconds if there is nobody; for at most ``limit`` seconds with one that cannot be killed.
    """
    killed: set[Known] = set()
    until, empty = time.monotonic() + limit, 0
    while empty < looks and time.monotonic() < until:
        found = list(find())
        empty = 0 if found else empty + 1
        killed |= _kill_all(found)
        if pause:
            select.select([], [], [], pause)
    return len(killed)


def kill_group(pgid: int) -> None:
    """Kill all members of a group whose number is certain."""
    try:  # noqa: SIM105  # contextlib costs the guard memory
        os.killpg(pgid, signal.SIGKILL)
    except OSError:
        pass


def _kill_all(found: list[Known]) -> set[Known]:
    """Kill them, and wait a moment for their ends."""
    killed: dict[Known, int] = {}
    try:
        # The same may be found by its descent and by its cookie.
        for known in set(found):
            if (fd := _kill(*known)) is not None:
                killed[known] = fd
        _see_off(set(killed.values()))
    finally:
        for fd in killed.values():
            os.close(fd)
    return set(killed)


def _kill(pid: int, born: int) -> int | None:
    """Kill the process ``pid`` that was born then: its pidfd, or None if it is gone, or out of reach for now."""
    if pid == os.getpid():
        return None
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        process = look(pid)
        if process is not None and process.born == born and not process.dead:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _see_off(fds: set[int]) -> None:
    """Wait until they have ended, or a moment."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    until = time.monotonic() + _LAST_WAIT
    while fds and (left := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            fds.discard(fd)


def _cookies(environ: bytes) -> list[bytes]:
    # Most have none, and are not worth being taken apart.
    if _ENTRY not in environ:
        return []
    values = [entry[len(_ENTRY) :] for entry in environ.split(b"\0") if entry.startswith(_ENTRY)]
    return [cookie for value in values for cookie in value.split(b",")]


def _kernel_threads() -> list[int]:
    """Half of all that is listed on many machines, and nothing to look at: the children of the first of them."""
    first = look(2)
    return (_children(2) or []) if first is not None and first.flags & _OF_KERNEL else []


def _is_our_users(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116  # pathlib costs the guard a megabyte
    except OSError:
        return False


def _children(pid: int) -> list[int] | None:
    """The children of all threads; None where they are not listed."""
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
    """The whole of a file of /proc; None if it is gone, or not for us."""
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
