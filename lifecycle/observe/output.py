"""The output of a program for listeners; nothing is replaced while there are none.

``sys.stdout``, ``sys.stderr`` and the streams of log handlers are replaced by files that copy what is written. Output
of a child process that writes to the descriptors themselves is not captured.
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

#: Characters that wait for the loop, or for a listener; beyond that the oldest are dropped.
_BUFFER = 256 * 1024

#: Characters that are dropped at once at most, so that of an endless line the end is kept.
_PIECE = 4096

#: Seconds that an outcome waits for what was printed before it.
_FLUSH_TIMEOUT = 1.0


class _Texts:
    """A bounded queue of texts that drops and counts the oldest.

    Any thread may add, one takes. There is no lock, since a signal handler may print too. If threads add at the same
    time, the length may be wrong until everything is taken.
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
        with suppress(IndexError):  # another thread took everything
            while self._length > _BUFFER:
                oldest = len(self._texts.popleft())
                self._length -= oldest
                self.dropped += oldest

    def take(self) -> str:
        """Remove and return everything."""
        # First, so that what is added from now on counts.
        self._length = 0
        taken: list[str] = []
        while self._texts:
            taken.append(self._texts.popleft())
        return "".join(taken)


class Listener:
    """The output from now on, in pieces, as an async iterator."""

    def __init__(self) -> None:
        self._texts = _Texts()
        self._added = asyncio.Event()
        #: Set while everything was taken and the reader waits for more.
        self.idle: asyncio.Event = asyncio.Event()

    @property
    def dropped(self) -> int:
        """Characters that came too fast."""
        return self._texts.dropped

    def add(self, text: str, dropped: int) -> None:
        """Add ``text``; ``dropped`` characters before it were lost."""
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
    """Copies the output of the program to any number of listeners."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._copies: list[_Copy] = []
        # Texts that the loop has to pass on, and whether that is scheduled.
        self._pending = _Texts()
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def listening(self) -> Generator[Listener]:
        """Listen for a block."""
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
        """Wait until the listeners have passed on all that was printed so far, for a second at most."""
        self._pass_on()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                for listener in tuple(self._listeners):
                    await listener.idle.wait()

    def add(self, text: str) -> None:
        """Note that ``text`` was printed, in any thread."""
        self._pending.add(text)
        if self._scheduled:
            return
        self._scheduled = True
        try:
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop is closed, so there are no listeners
            self._pending, self._scheduled = _Texts(), False

    def _pass_on(self) -> None:
        # First, or what is printed meanwhile could be forgotten.
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
        """Restore a stream unless another object has replaced it meanwhile, as a prompt does."""
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.output = None
            file = _original(copy)
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is copy:
                    setattr(sys, name, file)
            _redirect_handlers(copy, file)


class _Copy:
    """A text file that passes on what is written to it."""

    def __init__(self, file: TextIO, output: Output) -> None:
        self.file = file
        #: The output to copy to; None once it was restored.
        self.output: Output | None = output

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the file."""
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
    """Return the file under ``copy``, past copies that were restored meanwhile."""
    file: Any = copy.file
    while isinstance(file, _Copy) and file.output is None:
        file = file.file
    return cast("TextIO", file)


def _redirect_handlers(old: object, new: TextIO) -> None:
    """Let the log handlers that write to ``old`` write to ``new``."""
    for handler in stream_handlers():
        if handler.stream is old:
            handler.setStream(new)
