"""Paths at which something may have changed, as the system reports them to watchfiles' Rust backend."""

from __future__ import annotations

import errno
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
#: Linux keeps 16,384 reports, and about four per new file. If so many paths are reported at once, others may be lost.
_FLOOD: Final = 3000
_DELETED: Final = 3
#: The errors if a limit has been reached, and the seconds in which a closed watcher frees its descriptors.
_LIMITS, _CLOSING = (errno.ENOSPC, errno.EMFILE), 0.1


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
        # Whether the last reports of a watcher that was replaced may be lost.
        self._is_lost = False
        #: The seconds to wait before a watcher that has failed is replaced.
        self.pause: float = 0.0

    def watch(self, directories: Mapping[str, Identity]) -> tuple[list[str], set[str] | None]:
        """Watch ``directories``. Return those that were not watched before, and the paths reported in the meantime.

        The paths are None if reports may be lost.

        Raises:
            OSError: if a limit of the system has been reached. The message names the limit.
        """
        new = [path for path, identity in directories.items() if self._watched.get(path) != identity]
        if not new:
            return [], set()
        old = self._watcher
        try:
            self._watcher, self._watched = _open(directories)
        except OSError as error:
            if old is None or error.errno not in _LIMITS:
                raise
            # Both watchers together exceed a limit, so remove the old one first. Its descriptor is closed in a thread.
            self.close()
            self._stop.wait(_CLOSING)
            self._watcher, self._watched = _open(directories)
            return [*directories], set()
        late = set[str]() if old is None else self._collect(old, 1, 1)
        self._is_lost = late is None
        if old is not None:
            old.close()
        return new, late

    def wait(self, seconds: float) -> set[str] | None:
        """Return the reported paths, which are none after ``seconds``, or None if reports may be lost.

        In the latter case, `watch` replaces all watches. A directory may have been deleted and made again with the same
        inode.
        """
        assert self._watcher is not None, "directories are watched"
        if self._is_lost:
            self._is_lost = False
            return None
        return self._collect(self._watcher, self._step, max(1, round(seconds * 1000)))

    def close(self) -> None:
        """Remove all watches."""
        if self._watcher is not None:
            self._watcher.close()
        self._watcher = None
        self._watched.clear()

    def _collect(self, watcher: RustNotify, step: int, timeout: int) -> set[str] | None:
        from watchfiles._rust_notify import WatchfilesRustInternalError

        try:
            found = watcher.watch(self._longest, step, timeout, self._stop)
        except WatchfilesRustInternalError:
            # A name that is not UTF-8 has ended the watcher.
            self._watched.clear()
            self._stop.wait(self.pause)
            return None
        if not isinstance(found, set):
            return set()
        for change, path in found:
            # A directory that was deleted or moved away is no longer watched, even if there is a new one at its path.
            if change == _DELETED:
                self._watched.pop(path, None)
        if len(found) < _FLOOD:
            return {path for _, path in found}
        self._watched.clear()
        return None


def _open(directories: Mapping[str, Identity]) -> tuple[RustNotify, dict[str, Identity]]:
    """Return a watcher, and the directories that it watches: those that still exist and can be read."""
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

    watched = dict(directories)
    while True:
        try:
            return RustNotify([*watched], False, False, 0, WATCHES_DEEP, False), watched  # not keyword arguments
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


def _explained(limit: str) -> OSError:
    """Return an error that names the limit that was reached, its value, and a remedy."""
    remedy = "raise it, watch fewer directories, or poll"
    try:
        present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text(encoding="ascii"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return OSError(errno.EMFILE, "this process has reached its limit of open files; raise it with `ulimit -n`")
        return OSError(errno.ENOSPC, f"the limit on watched files ({limit}) has been reached; {remedy}")
    more = f"raise it with `sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    return OSError(errno.ENOSPC, f"the limit fs.inotify.{limit} ({present} on this system) has been reached; {more}")
