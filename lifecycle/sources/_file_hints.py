"""Paths at which something may have changed, as the system reports them to watchfiles' Rust backend."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.sources._file_tree import may_read

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from watchfiles._rust_notify import RustNotify

    from lifecycle.sources._file_tree import Identity

__all__ = ["WATCHES_DEEP", "Hints"]

#: Whether one watch covers everything below a directory. On Linux, each directory needs its own.
WATCHES_DEEP: Final = sys.platform != "linux"
_DELETED: Final = 3
#: The seconds in which a closed watcher frees its descriptors.
_CLOSING: Final = 0.1
#: The most milliseconds to wait for the last reports of a watcher.
_LAST: Final = 1000


class Hints:
    """Reports about directories, each of them collected for ``step`` seconds, and for ``longest`` if there are more.

    All methods block, so call them in a thread, one at a time. Setting ``stop`` ends a wait.
    """

    def __init__(self, step: float, longest: float, stop: threading.Event) -> None:
        self._step = max(1, round(step * 1000))
        self._longest = round(longest * 1000)
        self._stop = stop
        self._watcher: RustNotify | None = None
        self._watched: dict[str, Identity] = {}
        # A watcher that has reported a change to this file has reported everything before that change.
        self._mark = -1
        if sys.platform == "linux":
            self._mark = os.memfd_create("lifecycle files")
        self._marks = [path for path in [f"/proc/self/fd/{self._mark}"] if Path(path).exists()]

    def watch(self, directories: Mapping[str, Identity]) -> tuple[list[str], set[str]]:
        """Watch ``directories``. Return those that were not watched before, and the paths reported in the meantime.

        Raises:
            OSError: if a limit of the system has been reached. The message names the limit.
        """
        new = [path for path, identity in directories.items() if self._watched.get(path) != identity]
        old, late = self._watcher, set[str]()
        if not new:
            return new, late
        try:
            self._open(directories)
        except OSError:
            if old is None:
                raise
            # Both watchers together may exceed a limit, so remove the old one first.
            old.close()
            self._stop.wait(_CLOSING)
            self._open(directories)
            return [*directories], late
        for mark in self._marks:
            os.utime(mark)
        for watcher in (old, self._watcher):
            while watcher is not None and (found := self._collect(watcher, 1, _LAST if self._marks else 1)):
                late |= found
                if found.issuperset(self._marks):
                    break
        if old is not None:
            old.close()
        return new, late

    def wait(self, seconds: float) -> set[str] | None:
        """Return the reported paths, which are none after ``seconds``, or None if the watcher has failed.

        In the latter case, `watch` replaces all watches.
        """
        assert self._watcher is not None, "directories are watched"
        return self._collect(self._watcher, self._step, max(1, round(seconds * 1000)))

    def close(self) -> None:
        """Remove all watches."""
        if self._watcher is not None:
            self._watcher.close()
        if self._mark >= 0:
            os.close(self._mark)
        self._watcher, self._mark = None, -1

    def _collect(self, watcher: RustNotify, step: int, timeout: int) -> set[str] | None:
        from watchfiles._rust_notify import WatchfilesRustInternalError

        try:
            found = watcher.watch(self._longest, step, timeout, self._stop)
        except WatchfilesRustInternalError:
            # A name that is not UTF-8 has ended the watcher.
            self._watched.clear()
            return None
        if not isinstance(found, set):
            return set()
        for change, path in found:
            # A directory that was deleted or moved away is no longer watched, even if there is a new one at its path.
            if change == _DELETED:
                self._watched.pop(path, None)
        return {path for _, path in found}

    def _open(self, directories: Mapping[str, Identity]) -> None:
        """Watch the directories that still exist and can be read."""
        from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

        watched = dict(directories)
        while True:
            try:
                # These arguments have no keywords: debug, force polling, its delay, recursive, ignore permissions.
                self._watcher = RustNotify([*watched, *self._marks], False, False, 0, WATCHES_DEEP, False)
            except (FileNotFoundError, PermissionError):
                # The setting that ignores this error would ignore a reached limit, too.
                left = {path: identity for path, identity in watched.items() if may_read(path)}
                if len(left) == len(watched):
                    raise
                watched = left
            except WatchfilesRustInternalError as error:
                raise _explained("max_user_instances") if "os error 24" in str(error) else OSError(str(error)) from None
            except OSError as error:
                raise _explained("max_user_watches") if "MaxFilesWatch" in str(error) else error from None
            else:
                self._watched = watched
                return


def _explained(limit: str) -> OSError:
    """Return an error that names the limit that was reached, its value, and a remedy."""
    try:
        present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text(encoding="ascii"))
    except OSError as error:
        # The limit of open files has the same number. Then this file cannot be read, and its error names that limit.
        return error
    more = f"raise it with `sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    return OSError(errno.ENOSPC, f"the limit fs.inotify.{limit} ({present} on this system) has been reached; {more}")
