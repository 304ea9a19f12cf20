"""What a program prints and logs, for those who listen; nothing is touched while nobody does.

``sys.stdout``, ``sys.stderr`` and the log handlers that write there are stood in for by files that pass everything on
and note it down. What a child process writes to the descriptors themselves is not seen.
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

#: Characters that wait for the loop, or a listener; then the oldest are dropped.
_HELD = 256 * 1024

#: Characters that are dropped at once at most: of a line without end, the end is heard.
_PIECE = 4096

#: Seconds that an outcome waits for what was printed before it.
_COURTESY = 1.0


class _Texts:
    """Texts that wait to be taken; where they are too long, the oldest are dropped and counted.

    Any thread may add, one takes. No lock: a signal handler may print, too. Threads that add at the same time may be
    counted wrong, until the next time that all is taken.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._texts: deque[str] = deque()
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        kept = text[-_HELD:]
        self.dropped += len(text) - len(kept)
        self._texts.extend(kept[at : at + _PIECE] for at in range(0, len(kept), _PIECE))
        self._length += len(kept)
        with suppress(IndexError):  # all was taken meanwhile
            while self._length > _HELD:
                oldest = len(self._texts.popleft())
                self._length -= oldest
                self.dropped += oldest

    def take(self) -> str:
        """All of them."""
        # First, for what is added from now on counts.
        self._length = 0
        taken: list[str] = []
        while self._texts:
            taken.append(self._texts.popleft())
        return "".join(taken)


class Listener:
    """What is printed from now on, in pieces, as an async iterator."""

    def __init__(self) -> None:
        self._texts = _Texts()
        self._stirred = asyncio.Event()
        #: Set while all was taken, and whoever listens is back for more.
        self.idle = asyncio.Event()

    @property
    def dropped(self) -> int:
        """Characters that came too fast."""
        return self._texts.dropped

    def add(self, text: str, dropped: int) -> None:
        """More was printed, and before it what could not even be noted."""
        self.idle.clear()
        self._texts.dropped += dropped
        self._texts.add(text)
        self._stirred.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._texts:
            self._stirred.clear()
            self.idle.set()
            await self._stirred.wait()
        return self._texts.take()


class Output:
    """Lets any number of listeners hear what the program prints."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._copies: list[_Copy] = []
        # What the loop has to pass on, and whether it was told so already.
        self._noted = _Texts()
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def listening(self) -> Generator[Listener]:
        """Hear it for a block."""
        listener = Listener()
        if not self._listeners:
            self._stand_in()
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
            listener.idle.set()
            if not self._listeners:
                self._step_back()

    async def heard(self) -> None:
        """Wait until whoever listens has passed on all that was printed so far; not for long where one is slow."""
        self._spread()
        with suppress(TimeoutError):
            async with asyncio.timeout(_COURTESY):
                for listener in tuple(self._listeners):
                    await listener.idle.wait()

    def note(self, text: str) -> None:
        """Something was printed, by any thread."""
        self._noted.add(text)
        if self._told:
            return
        self._told = True
        try:
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._spread)
        except RuntimeError:  # the loop is closed: nobody listens
            self._noted, self._told = _Texts(), False

    def _spread(self) -> None:
        # First, or what is printed meanwhile could be forgotten.
        self._told = False
        text, dropped = self._noted.take(), self._noted.dropped
        self._noted.dropped = 0
        if text:
            for listener in self._listeners:
                listener.add(text, dropped)

    def _stand_in(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("stdout", "stderr"):
            file: TextIO | None = getattr(sys, name)
            if file is not None:
                copy = _Copy(file, self)
                self._copies.append(copy)
                setattr(sys, name, copy)
                _hand_over(file, cast("TextIO", copy))

    def _step_back(self) -> None:
        """Only where nobody else has taken our place meanwhile, as a prompt does that has ended."""
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.output = None
            file = _beneath(copy)
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is copy:
                    setattr(sys, name, file)
            _hand_over(copy, file)


class _Copy:
    """A text file that passes on what is written to it."""

    def __init__(self, file: TextIO, output: Output) -> None:
        self.file = file
        #: Who wants to know; None: nobody any more.
        self.output: Output | None = output

    def __getattr__(self, name: str) -> Any:
        """Whatever else a text file has."""
        return getattr(self.file, name)

    def __iter__(self) -> Any:
        return iter(self.file)

    def write(self, text: str) -> int:
        """Pass ``text`` on, then note it."""
        written = self.file.write(text)
        if self.output is not None:
            self.output.note(text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)


def _beneath(copy: _Copy) -> TextIO:
    """The file that it stood in for; one that stood there itself may have stepped back meanwhile."""
    file: Any = copy.file
    while isinstance(file, _Copy) and file.output is None:
        file = file.file
    return cast("TextIO", file)


def _hand_over(old: object, new: TextIO) -> None:
    """Let the log handlers that write to ``old`` write to ``new``."""
    for handler in stream_handlers():
        if handler.stream is old:
            handler.setStream(new)
