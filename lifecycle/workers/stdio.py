"""How a child's standard streams and session are set up, and how what it writes is read.

`ProcessWorker` watches and stops a process by its group and knows nothing of this; a `Stdio` spawns it, as the leader
of a group of its own, and reads it to the end. Here are pipes and the terminal that is there already;
`lifecycle.workers.terminals` has a terminal of the child's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from lifecycle.workers.output import Output, Receiver

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping, Sequence

    from lifecycle.workers.output import Stream

__all__ = ["DRAIN", "Audible", "Command", "Inherited", "Output", "Pipes", "Reader", "Stdio", "pipe", "popen"]

#: Bytes a read: small enough that a child that floods us with empty lines does not hold the loop.
_CHUNK = 16 * 1024
#: Reads after the end of the process when somebody else still holds its pipe: what can be in it, and no more.
_LAST_READS = 1024 * 1024 // _CHUNK
#: Seconds to wait for the end of the output once the process group is dead.
DRAIN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be executed: nothing else is looked up or inherited any more."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    #: Descriptors that it has besides its streams, under the numbers that they have here.
    inherit: Sequence[int] = ()


class Stdio(Protocol):
    """The streams of one process."""

    def spawn(self, command: Command) -> int:
        """Start it as the leader of its own process group and begin to read; its pid. Raises OSError."""
        ...

    async def drain(self) -> None:
        """Read what is left, for a bounded time, once the process group is dead; then `close`."""
        ...

    def close(self) -> None:
        """Give back every descriptor; any number of times."""
        ...

    def tail(self) -> str:
        """The last 4 KiB of what was written as errors."""
        ...


@runtime_checkable
class Audible(Protocol):
    """A `Stdio` that reads what is written, and lets others hear it."""

    def hear(self, onlooker: Callable[[str], object]) -> None:
        """Have each line go to ``onlooker``, too, from the start on."""
        ...


class Pipes:
    """No input, and a pipe each for stdout and stderr, read line by line; a session of its own.

    A reader that is slow holds the process back through its pipe: nothing is buffered here but the line that is
    being read. ``output`` gets the lines; without, they go to ``log`` at level INFO.

    Raises:
        TypeError: for an ``output`` that cannot be called or is async.
    """

    def __init__(self, output: Output | None, log: logging.Logger) -> None:
        self._receiver = Receiver(output, log)
        self._readers: list[Reader] = []

    def hear(self, onlooker: Callable[[str], object]) -> None:
        """Have each line go to ``onlooker``, too."""
        self._receiver.hear(onlooker)

    def spawn(self, command: Command) -> int:
        """Start it in a new session."""
        with ExitStack() as ours, ExitStack() as theirs:
            (out, out_end), (err, err_end) = (pipe(ours, theirs) for _ in range(2))
            pid = popen(command, stdin=subprocess.DEVNULL, stdout=out_end, stderr=err_end, start_new_session=True)
            ours.pop_all()
        self._readers = [self._reader(out, "stdout"), self._reader(err, "stderr")]
        return pid

    async def drain(self) -> None:
        """Read on to the end of both."""
        until = asyncio.get_running_loop().time() + DRAIN
        for reader in self._readers:
            await reader.drain(until)

    def close(self) -> None:
        """Stop reading."""
        for reader in self._readers:
            reader.close()

    def tail(self) -> str:
        """The end of stderr."""
        return self._receiver.tail()

    def _reader(self, fd: int, stream: Stream) -> Reader:
        return Reader(fd, partial(self._receiver.feed, stream=stream))


class Inherited:
    """Our own streams, in a process group of its own within our session: a job, as a shell has it.

    For a child on the real terminal. Whoever started it makes it the foreground group (``os.tcsetpgrp`` with its
    pid, then SIGCONT to the group, which may have touched the terminal too early) and takes the terminal back.
    """

    def spawn(self, command: Command) -> int:
        """Start it in a new group."""
        return popen(command, process_group=0)

    async def drain(self) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """Nothing is held."""

    def tail(self) -> str:
        """Nothing is known."""
        return ""


class Reader:
    """Reads a descriptor, which it owns, as it becomes readable, at most ``chunk`` bytes at a time.

    ``feed(b"")`` is called once, before it is closed.
    """

    def __init__(self, fd: int, feed: Callable[[bytes], None], *, chunk: int = _CHUNK) -> None:
        self._fd = fd
        self._feed = feed
        self._chunk = chunk
        self._ended = asyncio.Event()
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    async def drain(self, until: float) -> None:
        """Read to the end; where somebody keeps it open, what is there at the time ``until`` of the loop's clock."""
        if self._ended.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._ended.wait()
        for _ in range(_LAST_READS):
            if not self._read():
                break
        self.close()

    def close(self) -> None:
        """Stop reading and close the descriptor; any number of times."""
        if self._ended.is_set():
            return
        self._ended.set()
        asyncio.get_running_loop().remove_reader(self._fd)
        try:
            self._feed(b"")
        finally:
            os.close(self._fd)

    def _read(self) -> bool:
        """Read once; False if there was nothing."""
        if self._ended.is_set():
            return False
        try:
            data = os.read(self._fd, self._chunk)
        except BlockingIOError:
            return False
        except OSError:
            # EIO: the other side of a terminal is gone.
            data = b""
        if data:
            self._feed(data)
        else:
            self.close()
        return bool(data)


def pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """The ends to read and to write, each closed by its stack."""
    ends = os.pipe()
    ours.callback(os.close, ends[0])
    theirs.callback(os.close, ends[1])
    return ends


def popen(command: Command, **how: Any) -> int:
    """`subprocess.Popen` for its way of spawning alone: the caller watches the pid and reaps it."""
    process = subprocess.Popen(  # noqa: S603  # it is our trade
        command.argv, env=command.env, cwd=command.cwd, pass_fds=command.inherit, **how
    )
    # Reaping belongs to whoever watches the pid; without a return code Popen would try it, too, and complain.
    process.returncode = 0
    return process.pid
