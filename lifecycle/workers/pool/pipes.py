"""The standard streams of one member: frames go in and come out as bytes, and what it writes as errors goes to the log.

Nothing here waits to write: what the pipe does not take is kept until it does, and calls bound how much that can be.
Nothing here stops reading, either: the credits of a stream bound what can come, so a pong never waits behind chunks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lifecycle.workers.pool.frames import CODEC
from lifecycle.workers.stdio import Pipes, Reader, pipe, popen

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.stdio import Command

__all__ = ["MemberPipes"]

#: Bytes a read: what a pipe holds.
_CHUNK: Final = 64 * 1024


class MemberPipes(Pipes):
    """A pipe each for stdin, stdout and stderr, in a session of its own; for the one life that a member has.

    Args:
        name: the member's; what it writes as errors goes to the log ``lifecycle.workers.<name>``.
        codec: the name of the codec that it is to use, which is told it in its environment.
        take: called with what comes; with nothing, once, at the end.
    """

    def __init__(self, name: str, codec: str, take: Callable[[bytes], None]) -> None:
        super().__init__(None, logging.getLogger(f"lifecycle.workers.{name}"))
        self._codec = codec
        self._take = take
        #: The variables of our environment that it does not inherit.
        self.omitted: frozenset[str] = frozenset()
        # From `spawn` on.
        self._outlet: _Outlet | None = None

    def spawn(self, command: Command) -> int:
        """Start it in a new session."""
        inherited = {name: value for name, value in command.env.items() if name not in self.omitted}
        command = replace(command, env={**inherited, CODEC: self._codec})
        with ExitStack() as ours, ExitStack() as theirs:
            given, given_end = pipe(theirs, ours)
            out, out_end = pipe(ours, theirs)
            err, err_end = pipe(ours, theirs)
            pid = popen(command, stdin=given, stdout=out_end, stderr=err_end, start_new_session=True)
            ours.pop_all()
        self._outlet = _Outlet(given_end)
        self._readers = [Reader(out, self._take, chunk=_CHUNK), self._reader(err, "stderr")]
        return pid

    def close(self) -> None:
        """Stop reading and writing."""
        if self._outlet is not None:
            self._outlet.close()
        super().close()

    def write(self, data: bytes) -> None:
        """Write ``data``; before the start and after `end`, nothing happens."""
        if self._outlet is not None:
            self._outlet.write(data)

    def end(self) -> None:
        """Close its standard input when all is written."""
        if self._outlet is not None:
            self._outlet.end()


class _Outlet:
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
