"""Writing to a pipe without waiting: what it does not take is kept until it does."""

from __future__ import annotations

import asyncio
import os
from collections import deque

__all__ = ["Outlet"]


class Outlet:
    """Writes to a descriptor, which it owns, in the order in which it is told to.

    How much is kept is bounded by whoever writes. When nobody reads at the other end, what is written is lost.
    """

    def __init__(self, fd: int) -> None:
        # None once it is closed.
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        # What the pipe did not take, the oldest first; the loop tells us of room while there is any.
        self._kept: deque[bytes | memoryview] = deque()
        self._ending = False
        os.set_blocking(fd, False)

    def write(self, data: bytes | memoryview) -> None:
        """Write ``data``; after `end` and `close`, nothing happens."""
        if self._fd is None or self._ending:
            return
        if not self._kept:
            written = self._offer(self._fd, data)
            if written == len(data):
                return
            data = memoryview(data)[written:]
            self._loop.add_writer(self._fd, self._flush)
        self._kept.append(data)

    def end(self) -> None:
        """Close it when all is written."""
        self._ending = True
        if not self._kept:
            self.close()

    def close(self) -> None:
        """Close it now, whatever is kept; any number of times."""
        if self._fd is None:
            return
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = None
        self._kept.clear()

    def _flush(self) -> None:
        fd = self._fd
        assert fd is not None, "whoever closes it takes this from the loop"
        while self._kept:
            data = self._kept[0]
            if (written := self._offer(fd, data)) < len(data):
                self._kept[0] = memoryview(data)[written:]
                return
            self._kept.popleft()
        self._loop.remove_writer(fd)
        if self._ending:
            self.close()

    @staticmethod
    def _offer(fd: int, data: bytes | memoryview) -> int:
        """Write what the pipe takes: how much that was."""
        try:
            return os.write(fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # Nobody reads any more; what they wrote before is still to be read.
            return len(data)
