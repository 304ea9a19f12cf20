"""The output of a program, copied to listeners. Without listeners, no stream is replaced.

``sys.stdout``, ``sys.stderr`` and the streams of log handlers are replaced by files that copy the written text. Output
that a child process writes directly to the file descriptors is not captured.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from lifecycle._util import stream_handlers

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Listener", "Output"]

#: The maximum number of characters that wait for the loop or for a listener. Beyond that, the oldest are dropped.
_BUFFER = 256 * 1024

#: The maximum number of characters dropped at a time. It is small, so that the end of a very long line is kept.
_PIECE = 4096

#: The maximum number of seconds that a command's outcome waits for earlier output.
_FLUSH_TIMEOUT = 1.0


class _Texts:
    """A bounded queue of texts that drops and counts the oldest.

    Any thread may add texts, and one thread takes them. It has no lock, because a signal handler may also print. If
    threads add texts at the same time, the length may be wrong until the queue is empty.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._texts: deque[str] = deque()
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        kept = text[-_BUFFER:]
        self.dropped += len(text) - len(kept)
        self._texts.extend(kept[at : at + _PIECE] for at in range(0, len(kept), _PIECE))
        self._length += len(kept)
        with suppress(IndexError):  # another thread emptied the queue
            while self._length > _BUFFER:
                oldest = len(self._texts.popleft())
                self._length -= oldest
                self.dropped += oldest

    def take(self) -> str:
        """Remove and return all texts."""
        # Reset first, so that texts added during the loop are counted.
        self._length = 0
        taken: list[str] = []
        while self._texts:
            taken.append(self._texts.popleft())
        return "".join(taken)


class Listener:
    """The output of the program from now on, as an async iterator of texts."""

    def __init__(self) -> None:
        self._texts = _Texts()
        self._added = asyncio.Event()
        #: Set while all texts have been taken and the reader waits for more.
        self.idle: asyncio.Event = asyncio.Event()

    @property
    def dropped(self) -> int:
        """The number of characters dropped because the reader was too slow."""
        return self._texts.dropped

    def add(self, text: str, dropped: int) -> None:
        """Add ``text``, before which ``dropped`` characters were lost."""
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
    """Copies the output of the program to all listeners."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._copies: list[_Copy] = []
        # Texts that the loop has yet to distribute, and whether it is scheduled to do so.
        self._pending = _Texts()
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def listening(self) -> Generator[Listener]:
        """Yield a listener for the output within the context."""
        listener = Listener()
        if not self._listeners:
            self._replace_streams()
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
            listener.idle.set()
            if not self._listeners:
                self._restore_streams()

    async def flush(self) -> None:
        """Wait until the listeners' readers have taken all output so far, for at most one second."""
        self._pass_on()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                for listener in tuple(self._listeners):
                    await listener.idle.wait()

    def add(self, text: str) -> None:
        """Add printed ``text``. Any thread may call this."""
        self._pending.add(text)
        if self._scheduled:
            return
        self._scheduled = True
        try:
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop is closed, so there are no listeners
            self._pending, self._scheduled = _Texts(), False

    def _pass_on(self) -> None:
        # Reset first, so that text printed during this call is scheduled again.
        self._scheduled = False
        text, dropped = self._pending.take(), self._pending.dropped
        self._pending.dropped = 0
        if text:
            for listener in self._listeners:
                listener.add(text, dropped)

    def _replace_streams(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("stdout", "stderr"):
            file: TextIO | None = getattr(sys, name)
            if file is not None:
                copy = _Copy(file, self)
                self._copies.append(copy)
                setattr(sys, name, copy)
                _redirect_handlers(file, cast("TextIO", copy))

    def _restore_streams(self) -> None:
        """Restore the streams, except those that another object, such as a prompt, has replaced in the meantime."""
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.output = None
            file = _original(copy)
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is copy:
                    setattr(sys, name, file)
            _redirect_handlers(copy, file)


class _Copy:
    """A text file that also copies the written text to an `Output`."""

    def __init__(self, file: TextIO, output: Output) -> None:
        self.file = file
        #: The output to copy to; None after the stream was restored.
        self.output: Output | None = output

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the underlying file."""
        return getattr(self.file, name)

    def __iter__(self) -> Any:
        return iter(self.file)

    def write(self, text: str) -> int:
        """Write ``text``, then copy it."""
        written = self.file.write(text)
        if self.output is not None:
            self.output.add(text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)


def _original(copy: _Copy) -> TextIO:
    """Return the file behind ``copy``, skipping copies that are no longer in use."""
    file: Any = copy.file
    while isinstance(file, _Copy) and file.output is None:
        file = file.file
    return cast("TextIO", file)


def _redirect_handlers(old: object, new: TextIO) -> None:
    """Make the log handlers that write to ``old`` write to ``new``."""
    for handler in stream_handlers():
        if handler.stream is old:
            handler.setStream(new)
