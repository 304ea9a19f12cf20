"""The command and the standard streams of a process, and the splitting of its output into lines.

`ProcessWorker` watches a process and stops its process group, but leaves the streams to a `Stdio`. A `Stdio` starts the
process as the leader of a new group, and reads its output to the end. This module provides pipes and the inherited
terminal; `lifecycle.workers.terminals` provides a new terminal for the child. A `Receiver` turns bytes into lines,
whether they come from pipes, a terminal or a container engine.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import subprocess
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from lifecycle.workers._posix import Account

__all__ = [
    "DRAIN",
    "LIMIT",
    "Command",
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

#: Bytes per read. This is small enough to keep the loop responsive while a child floods its output with empty lines.
_CHUNK = 16 * 1024
#: The number of reads after the process has ended while another process still holds its pipe. It suffices for a full
#: pipe.
_LAST_READS = 1024 * 1024 // _CHUNK
#: Seconds to wait for the end of the output after the process group is dead.
DRAIN: Final = 0.5
#: The number of lines that are kept of each process, and the number of characters of each of them.
_KEPT: Final = 500
_LONGEST: Final = 2000
#: The size in bytes at which an incomplete line is delivered in pieces.
LIMIT: Final = 4 * 1024 * 1024

Stream: TypeAlias = Literal["stdout", "stderr"]


# -- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its environment and working directory. Nothing else is looked up or inherited later."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    #: File descriptors that the process inherits in addition to its streams, under the same numbers.
    inherit: Sequence[int] = ()
    #: The user that the process runs as, or None for the user of this program.
    account: Account | None = None


def check_argv(name: str, argv: tuple[str | os.PathLike[str], ...]) -> tuple[str, ...]:
    """Return the arguments of the worker ``name`` as strings.

    Raises:
        ValueError: if ``argv`` or its program is empty, or an argument contains a NUL.
        TypeError: if an argument is not a string or a path.
    """
    if not argv:
        raise ValueError(f"{name!r} has no command; give its arguments: ProcessWorker({name!r}, 'python', 'app.py')")
    for word in argv:
        if not isinstance(word, str | os.PathLike):
            raise TypeError(f"the command of {name!r} must consist of strings and paths, got {word!r}")
    found = tuple(os.fspath(word) for word in argv)
    if any("\0" in word for word in found) or not found[0]:
        raise ValueError(f"the command of {name!r} must begin with a program and must not contain NUL, got {found!r}")
    return found


def check_program(command: Command) -> None:
    """Check that the program exists. If it is started through `env`, the error from `env` would not name the cause.

    Raises:
        OSError: if the program is missing, is not executable, or looks like a variable assignment.
    """
    program = command.argv[0]
    if "=" in program:
        raise OSError(errno.EINVAL, f"env would read {program!r} as a variable assignment; rename the program")
    find_program(program, command)


def find_program(program: str, command: Command) -> str:
    """Return the file of ``program``, using the directory and PATH of ``command``. Raises OSError if it is missing."""
    at = Path(command.cwd or "", program)
    found = _found(at if os.sep in program else program, command)
    if found is None:
        code = errno.EACCES if os.sep in program and at.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), program)
    return str(found)


def fault_of(command: Command, error: OSError) -> str:
    """Return a description of the part of the command that is wrong, and how to fix it."""
    if command.cwd is not None and error.filename == command.cwd:
        return f"cwd={command.cwd!r} cannot be entered ({error.strerror}); create it, or give a different directory"
    program = command.argv[0]
    match error:
        case FileNotFoundError():
            fault = _missing(program, Path(command.cwd or "", program))
        case PermissionError() if command.account is not None:
            user = command.account.name
            fault = f"cannot be executed by the user {user!r}; check the permissions of the file and its directories"
        # A directory of PATH that cannot be searched causes the same error.
        case PermissionError() if os.sep not in program and _found(program, command, os.F_OK) is None:
            fault = _missing(program, Path(program))
        case PermissionError():
            fault = "is not executable; try `chmod +x`, or name its interpreter first"
        case OSError(errno=errno.ENOEXEC):
            fault = "is not a program for this machine; if it is a script, its first line must begin with #!"
        case _:
            fault = f"could not be executed: {error}"
    return f"the command {program!r} {fault}"


def _found(program: str | Path, command: Command, mode: int = os.F_OK | os.X_OK) -> str | Path | None:
    """Return the file of ``program``, found on the PATH of the child, or None."""
    return shutil.which(program, mode, command.env.get("PATH", os.defpath))


def _missing(program: str, path: Path) -> str:
    if os.sep in program:
        exists = path.exists()
        return "names a missing interpreter in its first line (#!)" if exists else "does not exist; check the path"
    hint = ", or give each argument separately" if " " in program else ""
    return f"was not found on PATH; check its spelling, or give its full path{hint}"


# -- the streams -------------------------------------------------------------------------------------------------


class Stdio(Protocol):
    """The streams of one process."""

    def spawn(self, command: Command) -> int:
        """Start the process as the leader of a new group, begin to read, and return its pid. Raises OSError."""
        ...

    async def drain(self) -> None:
        """Read the remaining output for a limited time after the process group is dead, then `close`."""
        ...

    def close(self) -> None:
        """Close every descriptor. Further calls do nothing."""
        ...

    def tail(self) -> str:
        """Return the last 4 KiB of stderr."""
        ...


@runtime_checkable
class LineSource(Protocol):
    """A `Stdio` that reads lines and can pass them to a listener."""

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call ``listener`` with each line too, from the start of the process."""
        ...


class Pipes:
    """Streams without input, and with one pipe each for stdout and stderr, which are read line by line.

    The process gets a new session. If ``output`` is slow, the pipe fills and slows the process down, because only the
    current line is buffered. ``output`` receives the lines. Without it, they are logged to ``log`` at level INFO.

    Raises:
        TypeError: if ``output`` is not callable or is async.
    """

    def __init__(self, output: Output | None, log: logging.Logger) -> None:
        self._receiver = Receiver(output, log)
        self._readers: list[Reader] = []

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call ``listener`` with each line too."""
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
        """Return the end of stderr."""
        return self._receiver.tail()

    def _reader(self, fd: int, stream: Stream) -> Reader:
        return Reader(fd, partial(self._receiver.feed, stream=stream))


class Inherited:
    """The streams of this program, for a child in a new process group within our session, like a shell job.

    Use it for a child on the real terminal. The caller makes it the foreground group with ``os.tcsetpgrp``, and then
    sends SIGCONT to the group, because it may have been stopped for using the terminal too early. At the end, the
    caller takes the terminal back.
    """

    def spawn(self, command: Command) -> int:
        """Start the process in a new group."""
        return popen(command, process_group=0)

    async def drain(self) -> None:
        """Do nothing: no stream is read."""

    def close(self) -> None:
        """Do nothing: no descriptor is held."""

    def tail(self) -> str:
        """Return an empty string."""
        return ""


class Reader:
    """A reader that owns a descriptor and reads up to ``chunk`` bytes whenever it is readable.

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
        """Read to the end, or until the loop time ``until`` if another process keeps the descriptor open."""
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
            # EIO means that the other end of a terminal is closed.
            data = b""
        if data:
            self._feed(data)
        else:
            self.close()
        return bool(data)


def pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Return the read end, which ``ours`` closes, and the write end, which ``theirs`` closes."""
    ends = os.pipe()
    ours.callback(os.close, ends[0])
    theirs.callback(os.close, ends[1])
    return ends


def popen(command: Command, **how: Any) -> int:
    """Start a process with `subprocess.Popen`, and return its pid. The caller watches and reaps it."""
    if (account := command.account) is not None:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
    process = subprocess.Popen(  # noqa: S603  # the caller chose the command
        command.argv, env=command.env, cwd=command.cwd, pass_fds=command.inherit, **how
    )
    # Without a return code, Popen would try to reap the process itself, and warn.
    process.returncode = 0
    return process.pid


# -- from bytes to lines ------------------------------------------------------------------------------------------


class Output(Protocol):
    """A function that receives each line of output. It runs in the event loop, so it must be quick."""

    def __call__(self, line: str, stream: Stream, /) -> object:
        """Receive one line, without its line ending."""
        ...


class Receiver:
    """Splits the two streams into lines and passes them to ``output``, or logs them to ``log`` at level INFO.

    It keeps the last 4 KiB of stderr.

    Raises:
        TypeError: if ``output`` is not callable or is async.
    """

    def __init__(self, output: Output | None, log: logging.Logger) -> None:
        if output is not None and not _is_plain(output):
            raise TypeError(f"output must be a plain function that takes (line, stream), or None, got {output!r}")
        self._log = log
        self._output: Output = self._to_log if output is None else output
        self._listener: Callable[[str], object] | None = None
        self._has_failed = False
        self._lines: dict[Stream, Lines] = {"stdout": Lines(), "stderr": Lines()}
        self._tail = Tail()

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call ``listener`` with each line too. It MUST NOT raise."""
        self._listener = listener

    def feed(self, data: bytes, stream: Stream) -> None:
        """Process bytes from ``stream``. ``b""`` marks its end."""
        if data and stream == "stderr":
            self._tail.feed(data)
        lines = self._lines[stream]
        for line in lines.feed(data) if data else lines.flush():
            self._give(line, stream)

    def tail(self) -> str:
        """Return the end of stderr."""
        return str(self._tail)

    def _give(self, line: str, stream: Stream) -> None:
        try:
            self._output(line, stream)
        except Exception:  # noqa: BLE001  # logged
            # Log only the first failure, because a broken function may fail for each of a million lines.
            if not self._has_failed:
                self._log.exception(
                    "the output function %r failed; the line is lost (logged once): %.200r", self._output, line
                )
            self._has_failed = True
        if self._listener is not None:
            self._listener(line)

    def _to_log(self, line: str, stream: Stream) -> None:
        self._log.info("%s", line, extra={"stream": stream})


class Lines:
    """Splits a stream of bytes into lines of text without line endings.

    Invalid UTF-8 is replaced. A line longer than `LIMIT` bytes is delivered in pieces.
    """

    def __init__(self) -> None:
        # The parts of the incomplete line. Joining them only once keeps the time for a long line linear.
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
    """The last 500 lines of a process, each cut to 2,000 characters. They survive restarts by a supervisor."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._count = 0
        self._added = asyncio.Event()

    def add(self, line: str) -> None:
        """Add ``line`` and drop the oldest one if there are too many."""
        self._lines.append(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…")
        self._count += 1
        if not self._added.is_set():
            self._added.set()

    def last(self, count: int) -> list[str]:
        """Return the last ``count`` lines, or all if fewer are kept."""
        lines = list(self._lines)
        return lines[max(0, len(lines) - count) :]

    async def follow(self, count: int) -> AsyncGenerator[tuple[list[str], int]]:
        """Yield the last ``count`` lines, then new lines, each time with the number of lines lost before them."""
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
        """Add ``data`` and drop the oldest bytes."""
        self._kept = (self._kept + data)[-self._size :]

    def __str__(self) -> str:
        return self._kept.decode(errors="replace")


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def _is_plain(function: object) -> bool:
    return callable(function) and not inspect.iscoroutinefunction(function)
