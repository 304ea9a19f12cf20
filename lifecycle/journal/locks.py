"""A file that one process at a time holds locked: the system lets go of it when its holder dies, however it dies."""

from __future__ import annotations

import errno
import os

__all__ = ["FileLock"]


class FileLock:
    """An exclusive lock on a small file at ``path``, which is made if need be and left where it is.

    Two of them exclude each other also within one process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        self._file: int | None = None

    def take(self) -> bool:
        """Whether it is ours now; never waits.

        Raises:
            OSError: when the file cannot be made or opened.
        """
        import fcntl  # not on Windows

        if self._file is not None:
            return True
        file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def is_held(self) -> bool:
        """Whether somebody has taken it; those who ask do not get in each other's way, nor make the file."""
        import fcntl  # not on Windows

        try:
            # A FIFO would make who reads wait, and tells who writes that nobody reads.
            file = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def is_there(self) -> bool:
        """Whether it is ours and its file still stands at its path, where the others look for it."""
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))  # noqa: PTH116  # as in the rest
        except OSError:
            return False

    def release(self) -> None:
        """Let go of it; nothing happens if it is not ours."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
