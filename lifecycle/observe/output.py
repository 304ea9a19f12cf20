"""Copying of a program's output to listeners. Streams are replaced only while there are listeners.

While there are listeners, ``sys.stdout``, ``sys.stderr`` and the streams of log handlers are replaced by files that
also copy the text written to them. Output that a child process writes directly to the file descriptors is not captured.

Code run by a `PythonConsole` prints to its client instead. Its log messages still go to the program's log.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, cast

from lifecycle._util import stream_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Listener", "Output", "TextQueue", "print_to"]

#: A function that receives the text printed in this context. It returns False if it no longer accepts text.
print_to: ContextVar[Callable[[str], bool] | None] = ContextVar("print_to", default=None)

#: The maximum number of characters waiting for the loop or for a listener. Beyond that, the oldest are dropped.
_BUFFER = 256 * 1024

#: The maximum number of characters dropped at a time. It is small enough to keep the end of a very long line.
_PIECE = 4096

#: The maximum number of seconds that a command's outcome is delayed until its output has been read.
_FLUSH_TIMEOUT = 1.0


class TextQueue:
    """A bounded text queue. When it is full, it drops the oldest text and counts the dropped characters.

    Any thread can add text, but only one thread can remove it. We cannot use a lock here, because a signal handler may
    print while the lock is held. If several threads add text at the same time, the length may be wrong until the queue
    is empty.
    """

    def __init__(self) -> None:
        #: The number of dropped characters.
        self.dropped: int = 0
        self._texts: deque[str] = deque()
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        """Add ``text``. If the queue is full, drop the oldest text."""
        kept = text[-_BUFFER:]
        self.dropped += len(text) - len(kept)
        self._texts.extend(kept[at : at + _PIECE] for at in range(0, len(kept), _PIECE))
        self._length += len(kept)
        with suppress(IndexError):  # another thread has emptied the queue
            while self._length > _BUFFER:
                oldest = len(self._texts.popleft())
                self._length -= oldest
                self.dropped += oldest

    def take(self) -> str:
        """Remove and return all text."""
        # Reset the length first, so that text added during the loop is counted.
        self._length = 0
        taken: list[str] = []
        while self._texts:
            taken.append(self._texts.popleft())
        return "".join(taken)


class Listener:
    """An async iterator of everything that the program prints from now on."""

    def __init__(self) -> None:
        self._texts = TextQueue()
        self._added = asyncio.Event()
        #: Set while the reader has removed all text and is waiting for more.
        self.idle: asyncio.Event = asyncio.Event()

    @property
    def dropped(self) -> int:
        """The number of characters dropped because the reader was too slow."""
        return self._texts.dropped

    def add(self, text: str, dropped: int) -> None:
        """Add ``text``, which follows a gap of ``dropped`` lost characters."""
        self.idle.clear()
        self._texts.dropped += dropped
        self._texts.add(text)
        self._added.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._texts:
            self._added.clear()
            self.idle.set()
            await self._added.wait()
        return self._texts.take()


class Output:
    """Copies the program's output to all listeners."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        # The number of contexts that need the streams to be replaced.
        self._users = 0
        self._copies: list[_Copy] = []
        # Text waiting for the loop to distribute it. `_scheduled` is true if the loop has been asked to do this.
        self._pending = TextQueue()
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def listening(self) -> Generator[Listener]:
        """Add a listener for the duration of the context, and yield it."""
        listener = Listener()
        with self.replacing():
            self._listeners.append(listener)
            try:
                yield listener
            finally:
                self._listeners.remove(listener)
                listener.idle.set()

    @contextmanager
    def replacing(self) -> Generator[None]:
        """Replace the streams for the duration of the context, so that `print_to` has an effect."""
        if not self._users:
            self._replace_streams()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._restore_streams()

    async def flush(self) -> None:
        """Wait at most one second for all listeners to read the output so far."""
        self._pass_on()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                for listener in tuple(self._listeners):
                    await listener.idle.wait()

    def add(self, text: str) -> None:
        """Add printed ``text``. This can be called from any thread."""
        if not self._listeners:
            return
        self._pending.add(text)
        if self._scheduled:
            return
        self._scheduled = True
        try:
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop is closed, so there are no listeners
            self._pending, self._scheduled = TextQueue(), False

    def _pass_on(self) -> None:
        # Reset the flag first, so that text printed during this call schedules another call.
        self._scheduled = False
        text, dropped = self._pending.take(), self._pending.dropped
        self._pending.dropped = 0
        if text:
            for listener in self._listeners:
                listener.add(text, dropped)

    def _replace_streams(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("stdout", "stderr"):
            file: Any = getattr(sys, name)
            if isinstance(file, _Printed):
                file = file.file
            if file is not None:
                copy = _Copy(file, self)
                self._copies.append(copy)
                setattr(sys, name, copy.printed)
                _redirect_handlers(file, copy)

    def _restore_streams(self) -> None:
        """Restore the original streams, unless other code, such as a prompt, has since replaced our copies."""
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.output = None
            file = _original(copy)
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is copy.printed:
                    setattr(sys, name, file.printed if isinstance(file, _Copy) else file)
            _redirect_handlers(copy, file)
            _redirect_handlers(copy.printed, file)


class _Wrapper:
    """A wrapper around a text file. Subclasses override ``write``."""

    def __init__(self, file: Any) -> None:
        self.file: Any = file

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the underlying file."""
        return getattr(self.file, name)

    def __iter__(self) -> Any:
        return iter(self.file)

    def write(self, text: str) -> int:
        raise NotImplementedError

    def writelines(self, lines: Any) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)


class _Copy(_Wrapper):
    """A text file that also copies everything written to it to an `Output`. Log handlers write to it directly."""

    def __init__(self, file: Any, output: Output) -> None:
        super().__init__(file)
        #: The output to copy to, or None once the stream has been restored.
        self.output: Output | None = output
        #: The replacement for ``sys.stdout`` or ``sys.stderr``.
        self.printed: _Printed = _Printed(self)

    def write(self, text: str) -> int:
        """Write ``text``, then copy it."""
        written: int = self.file.write(text)
        if self.output is not None:
            self.output.add(text)
        return written


class _Printed(_Wrapper):
    """A text file that passes the text to `print_to`, or to the file if no function accepts it."""

    def write(self, text: str) -> int:
        """Write ``text``."""
        redirected = print_to.get()
        if redirected is not None and redirected(text):
            return len(text)
        written: int = self.file.write(text)
        return written


def _original(copy: _Copy) -> Any:
    """Return the file behind ``copy``, skipping any copies that are no longer in use."""
    file = copy.file
    while isinstance(file, _Copy) and file.output is None:
        file = file.file
    return file


def _redirect_handlers(old: object, new: Any) -> None:
    """Make the log handlers that write to ``old`` write to ``new`` instead."""
    for handler in stream_handlers():
        if handler.stream is old:
            handler.setStream(new)
