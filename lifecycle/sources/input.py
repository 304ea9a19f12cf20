"""`InputSource`: reads lines from stdin, or any other file, as commands.

It reads any kind of file without blocking the event loop: a terminal, pipe, socket, file on disk, or object in memory.
This takes some care. ``O_NONBLOCK`` belongs to the open file description. For a terminal, this is shared with the shell
and other programs, so we never set it on a descriptor that we were passed. epoll rejects files on disk. A thread
blocked in a read prevents the process from exiting, unless it is a daemon thread and does not hold the lock of a Python
file object.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, TypeAlias, cast

from lifecycle.control.commands import Command, Commands, lifecycle_commands
from lifecycle.errors import LaneFull
from lifecycle.events import EndOfInputEvent, LineEvent, ShutdownEvent, TerminateEvent, Topical, UnknownCommandEvent
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from lifecycle.control import Emit, Router
    from lifecycle.control.deliveries import Delivery

__all__ = ["CommandSet", "GivenCommands", "InputSource", "is_terminal", "separate_descriptor"]

_log = logging.getLogger("lifecycle.sources")

#: The meaning of a command: an event, a function that returns an event for the arguments, or None for a `CommandEvent`.
Meaning: TypeAlias = Topical | Callable[[tuple[str, ...]], Topical] | None

#: A registry, a list of names, or a mapping from names to meanings.
GivenCommands: TypeAlias = Commands | Iterable[str] | Mapping[str, Meaning]

#: A text or binary file.
Stream: TypeAlias = IO[str] | IO[bytes]

#: The maximum length of a line, in bytes.
_MAX_LINE = 1_048_576

#: The maximum number of bytes per read.
_CHUNK = 65_536

#: Events that stop the program. If input comes from a pipe, any lines after such an event are ignored.
_ENDS = (ShutdownEvent, TerminateEvent)


class InputSource(Source):
    """Reads lines, emits an event for each, and emits `EndOfInputEvent` at the end.

    It never blocks the event loop or the program's exit.

    If the input is not a terminal, each line is read after the previous one has been handled. If the source is
    cancelled, it still emits the lines that have arrived, up to a line that stops the program. If the input is a
    terminal, lines do not wait for each other, and unread lines are dropped when the source is cancelled.

    A line can be up to 1,048,576 bytes long. A longer line is discarded, and an error is logged. Bytes that are not
    UTF-8 are replaced.

    Args:
        commands: The commands: a registry, a list of names, or a mapping from names to events. A value in the mapping
            may also be a function that returns an event for the arguments, or None for a `CommandEvent`. By default,
            the router's commands and the built-in ones (``suspend``, ``resume``, ``reload``, ``terminate``, ``quit``
            and their short forms, without arguments).
        raw: Whether to emit every line as a `LineEvent`, including blank lines, which are otherwise ignored.
        fallback: A function that returns the event for a line that is not a command, or None for no event. By default,
            the event is an `UnknownCommandEvent`.
        stream: A text or binary file. By default, stdin. If there is no stdin, it is treated as empty.
        command_prefix: The text that commands begin with, such as ``/``. No other line is a command, even if it begins
            with the name of one. A line with the prefix and an unknown name never goes to ``fallback``.

    Raises:
        ValueError: if ``raw`` is combined with ``commands`` or ``fallback``, or if ``command_prefix`` contains blanks.
        TypeError: if ``commands`` has the wrong type.
    """

    def __init__(
        self,
        *,
        commands: GivenCommands | None = None,
        raw: bool = False,
        fallback: Callable[[str], Topical | None] | None = None,
        stream: Stream | None = None,
        command_prefix: str = "",
    ) -> None:
        if raw and not (commands is None and fallback is None):
            raise ValueError(
                "InputSource(raw=True) turns every line into a LineEvent; leave out commands= and fallback="
            )
        self.name: str = "input"
        self._commands = CommandSet(commands, command_prefix)
        self._raw = raw
        self._fallback = fallback
        self._stream = stream
        # If true, lines that have already arrived are dropped when the source is cancelled.
        self._discards = False
        #: The number of lines of any kind read so far.
        self.lines: int = 0

    def __repr__(self) -> str:
        return f"<InputSource: {self.lines} lines so far>"

    @property
    def is_terminal(self) -> bool:
        """True if the input is a terminal."""
        return is_terminal(sys.stdin if self._stream is None else self._stream)

    def use_router(self, router: Router, /) -> None:
        """Also accept the router's commands, unless commands were specified explicitly."""
        self._commands.use(router.commands)

    async def run(self, emit: Emit) -> None:
        """Emit events until the input ends."""
        strict = self.is_terminal
        self._discards = strict
        lines, reader, left = _Lines(), _open_reader(self._stream), deque[str]()
        try:
            while chunk := await reader.read():
                left.extend(lines.feed(chunk))
                await self._emit_each(left, emit, wait=not strict)
        except asyncio.CancelledError:
            if not self._discards:
                left.extend(lines.feed(reader.read_nowait()))
                await self._emit_rest(left, emit)
            raise
        finally:
            reader.close()
        left.extend(lines.finish())
        await self._emit_each(left, emit, wait=not strict)
        await emit(EndOfInputEvent())

    def discard_rest(self) -> None:
        """When the source is cancelled, drop the lines that have not been emitted."""
        self._discards = True

    async def _take(self, lines: Iterable[str], emit: Emit) -> None:
        """Emit the events of ``lines`` without waiting for their handlers."""
        await self._emit_each(deque(lines), emit, wait=False)

    async def _emit_each(self, left: deque[str], emit: Emit, *, wait: bool) -> None:
        """Remove each line and emit its event. If ``wait`` is true, wait for the handler after each event."""
        while left:
            event = self._next_of(left)
            if event is None:
                continue
            delivery = await emit(event)
            if wait and inspect.isawaitable(delivery):  # in tests, the emit function may return None
                await _handled(delivery)

    async def _emit_rest(self, left: deque[str], emit: Emit) -> None:
        """Emit the lines that arrived before a cancellation, without waiting for space or for handlers."""
        while left and not self._discards:
            event = self._next_of(left)
            if event is not None:
                # If this call is cancelled while the router is draining, the router accepts the event even if its lane
                # is full.
                try:
                    async with asyncio.timeout(0):
                        await emit(event)
                except TimeoutError:
                    continue
                except LaneFull as error:
                    _log.warning("dropped %d input lines: %s", len(left) + 1, error)
                    return

    def _next_of(self, left: deque[str]) -> Topical | None:
        self.lines += 1
        event = self._event(left.popleft())
        self._discards |= isinstance(event, _ENDS)
        return event

    def _event(self, line: str) -> Topical | None:
        """Return the event for ``line``. If the user's function raises an error, only this line is lost."""
        if self._raw:
            return LineEvent(line)
        try:
            event = self._commands.parse(line)
            is_free = isinstance(event, UnknownCommandEvent) and not self._commands.has_prefix(line)
            if self._fallback is not None and is_free:
                return self._fallback(line)
        except Exception:  # noqa: BLE001  # a user's function may raise any error
            _log.exception("the line %.80r could not be turned into an event", line)
            return None
        return event


async def _handled(delivery: Delivery) -> None:
    """Wait until the event has been handled. If there was an error, the router has logged it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await delivery
    except asyncio.CancelledError:
        if task.cancelling():
            raise
    except Exception as error:  # noqa: BLE001  # a handler may raise any error, which is logged
        _log.debug("an input line caused %r", error)


# -- commands --------------------------------------------------------------------------------------------------


class CommandSet(Commands):
    """The commands of several registries. If several registries contain a word, the first registry takes precedence.

    If ``prefix`` is not empty, only lines that begin with it are commands. Names are registered without it.

    Raises:
        ValueError: if ``prefix`` contains blanks.
    """

    def __init__(self, commands: GivenCommands | None, prefix: str = "") -> None:
        super().__init__()
        if prefix and prefix.split() != [prefix]:
            raise ValueError(f"command_prefix={prefix!r} contains blanks; use a prefix such as '/'")
        self._prefix = prefix
        self._is_given = commands is not None
        self.include(Commands(*lifecycle_commands()) if commands is None else _registry(commands))

    def use(self, commands: Commands) -> None:
        """Give ``commands`` precedence over all others, unless commands were specified explicitly."""
        if not self._is_given:
            for each in dict.fromkeys((commands, *self.included)):
                self.exclude(each)
                self.include(each)

    def has_prefix(self, line: str) -> bool:
        """Return whether the line begins with the prefix, and there is one."""
        return self._prefix != "" and line.lstrip().startswith(self._prefix)

    def parse(self, line: str) -> Topical | None:
        """Return the event for the line. See `Commands.parse`."""
        if not self._prefix:
            return super().parse(line)
        words = line.split()
        if not words:
            return None
        event = super().parse(line.lstrip().removeprefix(self._prefix)) if self._names_command(words[0]) else None
        if event is None:
            return UnknownCommandEvent(words[0], self.typed_words())
        if isinstance(event, UnknownCommandEvent):
            return UnknownCommandEvent(self._prefix + event.command, self.typed_words())
        return event

    def typed_words(self) -> tuple[str, ...]:
        """Return all names and aliases with the prefix, sorted."""
        return tuple(self._prefix + word for word in self.words())

    def typed_names(self) -> list[str]:
        """Return the names with the prefix."""
        return [self._prefix + each.name for each in self]

    def typed(self, word: str) -> Command | None:
        """Return the command that the user runs with this word, including the prefix."""
        return self.get(word.removeprefix(self._prefix)) if self._names_command(word) else None

    def _names_command(self, word: str) -> bool:
        """Return whether the word begins with the prefix, and has more characters than that."""
        return word.startswith(self._prefix) and word != self._prefix


def _registry(commands: GivenCommands) -> Commands:
    """Return ``commands`` as a registry.

    Raises:
        TypeError: if ``commands`` is a single string, which would be read as a list of one-letter names, or a command
            is mapped to a value of the wrong type.
    """
    if isinstance(commands, Commands):
        return commands
    if isinstance(commands, str):
        raise TypeError(f"commands={commands!r} is a single string; pass a list of names: [{commands!r}]")
    meanings = cast("Mapping[str, Meaning]", commands if isinstance(commands, Mapping) else dict.fromkeys(commands))
    return Commands(*(Command(name, event=_event_of(name, meaning)) for name, meaning in meanings.items()))


def _event_of(name: str, meaning: Meaning) -> Callable[[tuple[str, ...]], Topical] | None:
    if meaning is None or callable(meaning):
        return meaning
    if not hasattr(meaning, "topic"):
        raise TypeError(
            f"the command {name!r} is mapped to {meaning!r}; use an event, a function that returns one, or None"
        )
    return lambda _: meaning


# -- lines -----------------------------------------------------------------------------------------------------


class _Lines:
    """Splits chunks into lines. LF ends a line, and a CR before it is dropped.

    Bytes that are not UTF-8 are replaced. If a line is longer than `_MAX_LINE` bytes, the whole line is discarded and
    an error is logged, because running part of a command is worse than not running it.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._too_long = False

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that ``chunk`` completes."""
        *ended, rest = chunk.split(b"\n")
        lines = [line for piece in ended if (line := self._end(piece)) is not None]
        self._hold(rest)
        return lines

    def finish(self) -> list[str]:
        """Return the last line, if it has no line ending."""
        line = self._end(b"") if self._held or self._too_long else None
        return [] if line is None else [line]

    def _hold(self, piece: bytes) -> None:
        if not self._too_long and len(self._held) + len(piece) > _MAX_LINE:
            self._too_long = True
            self._held.clear()
            _log.error("discarded an input line longer than %d bytes; send shorter lines", _MAX_LINE)
        if not self._too_long:
            self._held += piece

    def _end(self, piece: bytes) -> str | None:
        self._hold(piece)
        line = None if self._too_long else self._held.decode("utf-8", "replace").removesuffix("\r")
        self._held.clear()
        self._too_long = False
        return line


# -- reading ---------------------------------------------------------------------------------------------------
# Each reader has three methods. `read` waits for at least one byte, and returns ``b""`` at the end of the file. If it
# is cancelled, it has not read anything. `read_nowait` does not wait. `close` leaves the file itself open.


def is_terminal(stream: Stream | None) -> bool:
    """Return whether ``stream`` is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):  # closed
        return False


def _open_reader(stream: Stream | None) -> _Reader:
    """Return a reader for ``stream`` that does not block the event loop. None means stdin, which may be missing.

    The reader does not see bytes that Python's file object has already buffered.
    """
    stream = sys.stdin if stream is None else stream  # pyright: ignore[reportUnnecessaryComparison]
    if stream is None or getattr(stream, "closed", False):
        return _InlineReader(lambda: b"")
    try:
        fd = stream.fileno()
    except (OSError, AttributeError):  # io.UnsupportedOperation is an OSError
        in_memory = isinstance(stream, io.StringIO | io.BytesIO)
        return (
            _InlineReader(lambda: stream.read(_CHUNK)) if in_memory else _ThreadReader(lambda: stream.readline(_CHUNK))
        )
    return _open_descriptor(fd)


def _open_descriptor(fd: int) -> _Reader:
    try:
        kind = os.fstat(fd).st_mode
    except OSError:  # the descriptor was closed outside of Python's file object
        return _InlineReader(lambda: b"")
    if stat.S_ISREG(kind):
        return _InlineReader(lambda: os.read(fd, _CHUNK))
    own = separate_descriptor(fd)
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(own, lambda: None)
    except (OSError, NotImplementedError):
        return _ThreadReader(lambda: os.read(own, _CHUNK), lambda: os.close(own))
    loop.remove_reader(own)
    return _PollReader(own)


def separate_descriptor(fd: int) -> int:
    """Return a separate descriptor. If possible, open the file again in non-blocking mode."""
    if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)


class _PollReader:
    """Reads when the system reports that the descriptor is readable."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()

    async def read(self) -> bytes:
        while True:
            await self._readable()
            with suppress(BlockingIOError, InterruptedError):  # another process or thread has read the bytes
                return self._read()

    def read_nowait(self) -> bytes:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        with suppress(BlockingIOError, InterruptedError):
            return self._read() if poll.poll(0) else b""
        return b""

    def close(self) -> None:
        os.close(self._fd)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:  # the terminal hung up, or the peer reset the connection
            _warn(error)
            return b""

    async def _readable(self) -> None:
        """Wait until reading would not block. The loop polls the descriptor only during this wait."""
        ready = self._loop.create_future()
        self._loop.add_reader(self._fd, _settle, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._fd)


class _InlineReader:
    """Reads in the loop, because reading a file on disk or in memory does not block."""

    def __init__(self, read: Callable[[], str | bytes]) -> None:
        self._read = read

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return _as_bytes(self._read())

    def read_nowait(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class _ThreadReader:
    """Reads in daemon threads, one chunk per thread.

    If the reader is closed during a read, the file is closed once the read returns.
    """

    def __init__(self, read: Callable[[], str | bytes], close: Callable[[], None] = lambda: None) -> None:
        self._read, self._close_file = read, close
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[bytes] | None = None

    async def read(self) -> bytes:
        if self._waiting is None:
            self._waiting = self._loop.create_future()
            threading.Thread(target=self._work, args=(self._waiting,), name="lifecycle input", daemon=True).start()
        # If we are cancelled, the read continues, and the next call returns its result.
        chunk = await asyncio.shield(self._waiting)
        self._waiting = None
        return chunk

    def read_nowait(self) -> bytes:
        waiting = self._waiting
        return waiting.result() if waiting is not None and waiting.done() else b""

    def close(self) -> None:
        if self._waiting is None or not self._waiting.cancel():
            self._close_file()

    def _work(self, waiting: asyncio.Future[bytes]) -> None:
        outcome = self._outcome()
        try:
            self._loop.call_soon_threadsafe(self._end, waiting, outcome)
        except RuntimeError:  # the loop is closed
            self._close_file()

    def _end(self, waiting: asyncio.Future[bytes], outcome: bytes | Exception) -> None:
        if waiting.cancelled():
            self._close_file()
        elif isinstance(outcome, Exception):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)

    def _outcome(self) -> bytes | Exception:
        try:
            return _as_bytes(self._read())
        except OSError as error:
            _warn(error)
            return b""
        except ValueError as error:
            _log.debug("the input was closed while it was being read: %s", error)
            return b""
        except Exception as error:  # noqa: BLE001  # it is raised where the chunk is awaited
            return error


def _warn(error: OSError) -> None:
    _log.warning("reading the input failed, so any further lines are lost: %s", error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _as_bytes(chunk: str | bytes) -> bytes:
    return chunk.encode("utf-8", "replace") if isinstance(chunk, str) else chunk


_Reader: TypeAlias = _PollReader | _InlineReader | _ThreadReader
