"""A process's command and standard streams, and code for splitting its output into lines.

`ProcessWorker` watches a process and stops its process group, while a `Stdio` starts the process as the leader of a new
group and reads all of its output. This module provides pipes and the inherited terminal, and
`lifecycle.workers.terminals` provides a new terminal for the child. A `Receiver` turns bytes from pipes, a terminal or
a container engine into lines.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import os
import shutil
import subprocess
import sys
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from lifecycle._text import plain_line
from lifecycle._util import file_mode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from lifecycle.workers._posix import Account

__all__ = [
    "DRAIN",
    "LIMIT",
    "Command",
    "File",
    "Inherited",
    "LineSource",
    "Lines",
    "Output",
    "Pipes",
    "Reader",
    "Receiver",
    "RecentLines",
    "Stdio",
    "Stream",
    "Tail",
    "check_argv",
    "check_program",
    "fault_of",
    "find_program",
    "pipe",
    "popen",
]

#: Bytes per read. The number is small enough to keep the loop responsive even if a child floods us with empty lines.
_CHUNK = 16 * 1024
#: How many more times to read if the process has exited but another process still has its pipe open. This is enough to
#: empty a full pipe.
_LAST_READS = 1024 * 1024 // _CHUNK
#: Seconds to wait for the output to end once the process group is dead.
DRAIN: Final = 0.5
#: How many lines of output to keep per process.
_KEPT: Final = 500
#: How many characters to keep per line.
_LONGEST: Final = 2000
#: The size in bytes above which a line is delivered in pieces.
LIMIT: Final = 4 * 1024 * 1024

Stream: TypeAlias = Literal["stdout", "stderr"]


# -- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its complete environment and working directory. Nothing is looked up or inherited later."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    #: File descriptors that the process inherits under the same numbers, in addition to its streams.
    inherit: Sequence[int] = ()
    #: The user that the process runs as, or None for the same user as this program.
    account: Account | None = None


def check_argv(name: str, argv: tuple[str | os.PathLike[str], ...]) -> tuple[str, ...]:
    """Return the arguments of the worker ``name`` as strings.

    Raises:
        ValueError: if ``argv`` or its program is empty, or an argument contains a NUL.
        TypeError: if an argument is not a string or a path.
    """
    if not argv:
        raise ValueError(f"{name!r} has no command; pass one, as in ProcessWorker({name!r}, 'python', 'app.py')")
    for word in argv:
        if not isinstance(word, str | os.PathLike):
            raise TypeError(f"the command of {name!r} must consist of strings and paths, got {word!r}")
    found = tuple(os.fspath(word) for word in argv)
    if any("\0" in word for word in found) or not found[0]:
        raise ValueError(f"the command of {name!r} must start with a program and must not contain NUL, got {found!r}")
    return found


def check_program(command: Command) -> None:
    """Check that the program exists before starting it through `env`, whose error would be unclear.

    Raises:
        OSError: if the program is missing, is not executable, or looks like a variable assignment.
    """
    program = command.argv[0]
    if "=" in program:
        raise OSError(errno.EINVAL, f"env would read {program!r} as a variable assignment; rename the program")
    find_program(program, command)


def find_program(program: str, command: Command) -> str:
    """Return the path of ``program``, found with the working directory and PATH of ``command``.

    Raises OSError if the program does not exist.
    """
    at = Path(command.cwd or "", program)
    found = _found(at if os.sep in program else program, command)
    if found is None:
        code = errno.EACCES if os.sep in program and file_mode(at) else errno.ENOENT
        raise OSError(code, os.strerror(code), program)
    return str(found)


def fault_of(command: Command, error: OSError) -> str:
    """Describe what is wrong with the command and how to fix it."""
    if command.cwd is not None and error.filename == command.cwd:
        return f"cannot enter cwd={command.cwd!r} ({error.strerror}); create it, or use a different directory"
    program = command.argv[0]
    if error.filename not in (None, program):
        return f"cannot open {error.filename!r} ({error.strerror}); check the path and its permissions"
    match error:
        case FileNotFoundError():
            fault = _missing(program, Path(command.cwd or "", program))
        case PermissionError() if command.account is not None:
            user = command.account.name
            fault = f"cannot be executed by the user {user!r}; check the permissions of the file and its directories"
        # A directory on PATH that cannot be searched causes the same error.
        case PermissionError() if os.sep not in program and _found(program, command, os.F_OK) is None:
            fault = _missing(program, Path(program))
        case PermissionError():
            fault = "is not executable; try `chmod +x`, or put its interpreter first in the command"
        case OSError(errno=errno.ENOEXEC):
            fault = "is not a program for this machine; if it is a script, its first line must start with #!"
        case _:
            fault = f"could not be executed: {error}"
    return f"the command {program!r} {fault}"


def _found(program: str | Path, command: Command, mode: int = os.F_OK | os.X_OK) -> str | Path | None:
    """Return the path of ``program`` as found on the child's PATH, or None."""
    return shutil.which(program, mode, command.env.get("PATH", os.defpath))


def _missing(program: str, path: Path) -> str:
    if os.sep in program:
        exists = path.exists()
        return "has a first line (#!) that names a missing interpreter" if exists else "does not exist; check the path"
    hint = ", or pass each argument separately" if " " in program else ""
    return f"was not found on PATH; check the spelling, or use the full path{hint}"


# -- the streams -------------------------------------------------------------------------------------------------


class Stdio(Protocol):
    """A process's standard streams."""

    def spawn(self, command: Command) -> int:
        """Start the process as the leader of a new group, start reading, and return its pid. Raises OSError."""
        ...

    async def drain(self) -> None:
        """Once the process group is dead, read the remaining output for a limited time, and then call `close`."""
        ...

    def close(self) -> None:
        """Close all descriptors. Further calls do nothing."""
        ...

    def tail(self) -> str:
        """Return the last 4 KiB of stderr."""
        ...


@runtime_checkable
class LineSource(Protocol):
    """A `Stdio` that reads lines, and can pass them to additional listeners."""

    def listen(self, listener: Callable[[str], object]) -> None:
        """Also call ``listener`` with each line, from the start of the process."""
        ...


class Pipes:
    """Separate pipes for stdout and stderr, which are read line by line. There is no standard input.

    The process runs in a new session. A `Receiver`, which has the same arguments, handles the lines. Only the current
    line is buffered, so if ``output`` is slow, the pipe fills up and slows down the process.

    Raises:
        TypeError: if ``output`` is neither a plain function nor "inherit".
    """

    def __init__(
        self, output: Output | Literal["inherit"] | None, name: str, extra: Mapping[str, str] | None = None
    ) -> None:
        self._receiver = Receiver(output, name, extra)
        self._readers: list[Reader] = []

    def listen(self, listener: Callable[[str], object]) -> None:
        """Also call ``listener`` with each line."""
        self._receiver.listen(listener)

    def spawn(self, command: Command) -> int:
        """Start the process in a new session."""
        with ExitStack() as ours, ExitStack() as theirs:
            (out, out_end), (err, err_end) = (pipe(ours, theirs) for _ in range(2))
            pid = popen(command, stdin=subprocess.DEVNULL, stdout=out_end, stderr=err_end, start_new_session=True)
            ours.pop_all()
        self._readers = [self._reader(out, "stdout"), self._reader(err, "stderr")]
        return pid

    async def drain(self) -> None:
        """Read both pipes to the end."""
        until = asyncio.get_running_loop().time() + DRAIN
        for reader in self._readers:
            await reader.drain(until)

    def close(self) -> None:
        """Stop reading."""
        for reader in self._readers:
            reader.close()

    def tail(self) -> str:
        """Return the last part of stderr."""
        return self._receiver.tail()

    def _reader(self, fd: int, stream: Stream) -> Reader:
        return Reader(fd, partial(self._receiver.feed, stream=stream))


class Inherited:
    """This program's own streams, for a child in a new process group within our session, like a shell job.

    Use this for a child on the real terminal. The caller is responsible for making the child's group the foreground
    group with ``os.tcsetpgrp``. The caller must then send SIGCONT to the group, because the child may have been stopped
    for using the terminal too early. Once the child has exited, the caller takes back the terminal.
    """

    def spawn(self, command: Command) -> int:
        """Start the process in a new group."""
        return popen(command, process_group=0)

    async def drain(self) -> None:
        """Do nothing, because we don't read any streams."""

    def close(self) -> None:
        """Do nothing, because we don't own any descriptors."""

    def tail(self) -> str:
        """Return an empty string."""
        return ""


class File:
    """A file to which the process appends its output, both stdout and stderr. There is no standard input.

    The process writes to the file itself, in a new session, so it can outlive this program. This program does not read
    the output, so there are no recent lines, and errors do not include the end of stderr. ``os.devnull`` discards it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def spawn(self, command: Command) -> int:
        """Start the process in a new session."""
        with open(self._path, "ab") as file:  # noqa: PTH123  # an error contains the path as it was given
            return popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)

    async def drain(self) -> None:
        """Do nothing, because we don't read the file."""

    def close(self) -> None:
        """Do nothing, because only the process has the file open."""

    def tail(self) -> str:
        """Return an empty string."""
        return ""


class Reader:
    """A reader that owns a descriptor, and reads up to ``chunk`` bytes whenever it is readable.

    ``feed(b"")`` is called once, before the descriptor is closed.
    """

    def __init__(self, fd: int, feed: Callable[[bytes], None], *, chunk: int = _CHUNK) -> None:
        self._fd = fd
        self._feed = feed
        self._chunk = chunk
        self._ended = asyncio.Event()
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    async def drain(self, until: float) -> None:
        """Read until the end, or until the loop time ``until`` if another process keeps the descriptor open."""
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
        """Stop reading and close the descriptor. Further calls do nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        asyncio.get_running_loop().remove_reader(self._fd)
        try:
            self._feed(b"")
        finally:
            os.close(self._fd)

    def _read(self) -> bool:
        """Read once. Return False if no data was available."""
        if self._ended.is_set():
            return False
        try:
            data = os.read(self._fd, self._chunk)
        except BlockingIOError:
            return False
        except OSError:
            # EIO means that the other end of the terminal has been closed.
            data = b""
        if data:
            self._feed(data)
        else:
            self.close()
        return bool(data)


def pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Open a pipe. Return the read end, which ``ours`` closes, and the write end, which ``theirs`` closes."""
    ends = os.pipe()
    ours.callback(os.close, ends[0])
    theirs.callback(os.close, ends[1])
    return ends


def popen(command: Command, **how: Any) -> int:
    """Start a process with `subprocess.Popen`, and return its pid. The caller must watch and reap it."""
    if (account := command.account) is not None:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
    process = subprocess.Popen(  # noqa: S603  # the caller chose the command
        command.argv, env=command.env, cwd=command.cwd, pass_fds=command.inherit, **how
    )
    # Without a return code, Popen would warn about the process and try to reap it.
    process.returncode = 0
    return process.pid


# -- from bytes to lines ------------------------------------------------------------------------------------------


class Output(Protocol):
    """A function that receives each line of output. It is called in the event loop, so it must return quickly."""

    def __call__(self, line: str, stream: Stream, /) -> object:
        """Receive one line, without its line ending."""
        ...


class Receiver:
    """Splits stdout and stderr into lines, and passes them to ``output``.

    "inherit" prints the lines to this program's own stdout and stderr. None logs them to ``lifecycle.workers.<name>``
    at level INFO, without control sequences other than colours, or prints them if no handler would show such a record.
    The last 4 KiB of stderr are kept.

    Raises:
        TypeError: if ``output`` is neither a plain function nor "inherit".
    """

    def __init__(
        self, output: Output | Literal["inherit"] | None, name: str, extra: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        # The attributes of each log record, in addition to the stream.
        self._extra = extra or {}
        self._output: Output = self._function(output)
        self._listener: Callable[[str], object] | None = None
        self._has_failed = False
        self._lines: dict[Stream, Lines] = {"stdout": Lines(), "stderr": Lines()}
        self._tail = Tail()

    def listen(self, listener: Callable[[str], object]) -> None:
        """Also call ``listener`` with each line. The listener MUST NOT raise."""
        self._listener = listener

    def feed(self, data: bytes, stream: Stream) -> None:
        """Process bytes from ``stream``. ``b""`` marks the end of the stream."""
        if data and stream == "stderr":
            self._tail.feed(data)
        lines = self._lines[stream]
        for line in lines.feed(data) if data else lines.flush():
            self._give(line, stream)

    def tail(self) -> str:
        """Return the last part of stderr."""
        return str(self._tail)

    def _give(self, line: str, stream: Stream) -> None:
        try:
            self._output(line, stream)
        except Exception:  # noqa: BLE001  # logged
            # Only log the first failure, because a broken function might fail for each of a million lines.
            if not self._has_failed:
                self._log.exception(
                    "the output function %r failed, so a line was lost (logged only once): %.200r", self._output, line
                )
            self._has_failed = True
        if self._listener is not None:
            self._listener(line)

    def _function(self, output: Output | Literal["inherit"] | None) -> Output:
        if output is None:
            return self._to_log
        if output == "inherit":
            return _print
        if not _is_plain(output):
            raise TypeError(f'output must be a plain function that takes (line, stream), or "inherit", got {output!r}')
        return output

    @cached_property
    def _log(self) -> logging.Logger:
        # Create the logger only when it is needed, because loggers are never freed.
        return logging.getLogger(f"lifecycle.workers.{self._name}")

    def _to_log(self, line: str, stream: Stream) -> None:
        if _is_handled(self._log, logging.INFO):
            self._log.info("%s", plain_line(line), extra={**self._extra, "stream": stream})
        else:
            _print(line, stream)


def _print(line: str, stream: Stream) -> None:
    print(line, file=getattr(sys, stream), flush=True)


def _is_handled(log: logging.Logger, level: int) -> bool:
    """Return whether a handler receives the records of ``log`` at ``level``. Ignore Python's handler of last resort."""
    if not log.isEnabledFor(level):
        return False
    at: logging.Logger | None = log
    while at is not None:
        if any(handler.level <= level and not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


class Lines:
    """Splits a stream of bytes into lines of text without line endings.

    Invalid UTF-8 is replaced. Lines longer than `LIMIT` bytes are delivered in pieces.
    """

    def __init__(self) -> None:
        # The pieces of the incomplete line. They are only joined once, so that handling a long line takes linear time.
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes."""
        first, *more = data.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if not more:
            return self.flush() if self._size >= LIMIT else []
        *whole, rest = more
        lines = [_text(self._take()), *map(_text, whole)]
        if rest:
            self._begun, self._size = [rest], len(rest)
        return lines

    def flush(self) -> list[str]:
        """Return the incomplete line, if any."""
        return [_text(rest)] if (rest := self._take()) else []

    def _take(self) -> bytes:
        whole = b"".join(self._begun)
        self._begun, self._size = [], 0
        return whole


class RecentLines:
    """The last 500 lines of a process's output, each truncated to 2,000 characters. Restarts don't clear them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._count = 0
        self._added = asyncio.Event()

    def add(self, line: str) -> None:
        """Add ``line``, and drop the oldest line if there are too many."""
        self._lines.append(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…")
        self._count += 1
        if not self._added.is_set():
            self._added.set()

    def last(self, count: int) -> list[str]:
        """Return the last ``count`` lines, or all lines if there are fewer."""
        lines = list(self._lines)
        return lines[max(0, len(lines) - count) :]

    async def follow(self, count: int) -> AsyncGenerator[tuple[list[str], int]]:
        """Yield the last ``count`` lines, followed by new lines as they arrive.

        Each item is a batch of lines and the number of lines lost before the batch.
        """
        seen = self._count - len(self.last(count))
        while True:
            if lines := self.last(self._count - seen):
                lost = self._count - seen - len(lines)
                seen = self._count
                yield lines, lost
            self._added.clear()
            if self._count == seen:
                await self._added.wait()


class Tail:
    """The last ``size`` bytes of a stream."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """Append ``data``, dropping the oldest bytes."""
        self._kept = (self._kept + data)[-self._size :]

    def __str__(self) -> str:
        return self._kept.decode(errors="replace")


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def _is_plain(function: object) -> bool:
    return callable(function) and not inspect.iscoroutinefunction(function)
