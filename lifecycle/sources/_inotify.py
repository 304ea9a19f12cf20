"""Watches on directories through inotify(7). The event loop waits for its reports, so an idle watch costs nothing.

watchfiles checks for reports every few milliseconds, and inotify_simple starts ldconfig to find the C library.
Therefore, we call the C library directly.
"""

# We use strings for paths, as the system does.
# ruff: noqa: PTH118

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Inotify", "Reports"]

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _MOVE_SELF = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200, 0x800
_OVERFLOW, _IGNORED, _ONLYDIR, _MASK_ADD = 0x4000, 0x8000, 0x1000000, 0x20000000
_NAMES = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _MOVE_SELF | _ONLYDIR | _MASK_ADD

# Watch descriptor, mask, cookie, and the size of the name that follows.
_HEADER = struct.Struct("iIII")
_READ_SIZE = 1024 * 1024

# Errors for a directory that has been deleted or replaced, or that this process may not read.
_SKIPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG)


@dataclass(slots=True)
class Reports:
    """Reports since the last call of `Inotify.read`."""

    #: Entries that have changed, each with True if its contents or attributes were reported as modified.
    hints: dict[str, bool] = field(default_factory=dict[str, bool])
    #: Directories that are no longer watched, because they were deleted or moved.
    ended: set[str] = field(default_factory=set[str])
    #: True if reports were lost, because the kernel's queue was full.
    overflowed: bool = False


class Inotify:
    """Watches on single directories. All methods may be called in any thread.

    Raises:
        OSError: if the limit on instances has been reached. The message names the limit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _explained(ctypes.get_errno())
        # A directory can be reached through several paths, such as bind mounts. It then has one watch.
        self._watches: dict[str, int] = {}
        self._paths: dict[int, set[str]] = {}

    @property
    def watched(self) -> set[str]:
        """The paths of the watched directories."""
        return set(self._watches)

    def watch(self, path: str, *, contents: bool = True) -> bool:
        """Watch a directory, unless it has been deleted or may not be read. Return whether its watch is new.

        A new directory replaces an old one. Without ``contents``, writes to its files are not reported.

        Raises:
            OSError: if the limit on watches has been reached. The message names the limit.
        """
        with self._lock:
            if self._fd < 0:
                return False
            mask = _NAMES | _MODIFY if contents else _NAMES
            watch: int = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
            if watch < 0 and ctypes.get_errno() not in _SKIPPED:
                raise _explained(ctypes.get_errno())
            if self._watches.get(path) == watch:
                return False
            self._remove(path)
            if watch >= 0:
                self._watches[path] = watch
                self._paths.setdefault(watch, set()).add(path)
            return watch >= 0

    def unwatch(self, path: str) -> None:
        """Stop watching a directory."""
        with self._lock:
            self._remove(path)

    async def ready(self) -> None:
        """Wait until there are reports to read."""
        loop, fd, readable = asyncio.get_running_loop(), self._fd, asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(fd)

    def read(self) -> Reports:
        """Return the reports since the last call, without waiting."""
        reports = Reports()
        with self._lock:
            try:
                data = os.read(self._fd, _READ_SIZE)
            except OSError:
                return reports  # there are no reports, or the watches have been closed
            at = 0
            while at < len(data):
                watch, mask, _, size = _HEADER.unpack_from(data, at)
                at += _HEADER.size + size
                self._take(reports, watch, mask, data[at - size : at].rstrip(b"\0"))
        return reports

    def close(self) -> None:
        """Remove all watches."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def _take(self, reports: Reports, watch: int, mask: int, name: bytes) -> None:
        reports.overflowed |= bool(mask & _OVERFLOW)
        if mask & (_IGNORED | _MOVE_SELF):
            ended = set(self._paths.get(watch, ()))
            reports.ended |= ended
            for path in ended:
                self._remove(path)
        elif name:
            text, modified = os.fsdecode(name), bool(mask & (_MODIFY | _ATTRIB))
            for directory in self._paths.get(watch, ()):
                path = os.path.join(directory, text)
                reports.hints[path] = modified or reports.hints.get(path, False)

    def _remove(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is None:
            return
        self._paths[watch].discard(path)
        if not self._paths[watch]:
            del self._paths[watch]
            # This fails if the directory has been deleted, which removes its watch.
            self._libc.inotify_rm_watch(self._fd, watch)


def _explained(number: int) -> OSError:
    """Return the error to raise. If a system limit was reached, the message names the limit, its value and a remedy."""
    limit = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}.get(number)
    return OSError(number, os.strerror(number)) if limit is None else OSError(errno.ENOSPC, _advice(limit))


def _advice(limit: str) -> str:
    try:
        present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text(encoding="ascii"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return "this process has reached its limit of open files; raise it with `ulimit -n`"
        return f"the limit on watched files ({limit}) has been reached; raise it, watch fewer directories, or poll"
    return (
        f"the limit fs.inotify.{limit} ({present} on this system) has been reached; raise it with "
        f"`sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    )
