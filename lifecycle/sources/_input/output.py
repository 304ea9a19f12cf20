"""What is printed or logged while a prompt is shown goes above it.

prompt_toolkit has the same as ``patch_stdout``, with a thread that sleeps between writes, tasks that nobody awaits,
and the stdout of its first use for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from prompt_toolkit.application import get_app_session, run_in_terminal

from lifecycle._util import stream_handlers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

__all__ = ["output_above"]

_log = logging.getLogger("lifecycle.sources")


@asynccontextmanager
async def output_above() -> AsyncGenerator[None]:
    """Let stdout, stderr and the log handlers that hold on to either write above the prompt, for a block."""
    above = _Above(sys.stdout)
    try:
        with _standing_in(cast("TextIO", above)):
            yield
    finally:
        await above.finish()


@contextmanager
def _standing_in(file: TextIO) -> Generator[None]:
    before = sys.stdout, sys.stderr
    handlers = [(handler, handler.stream) for handler in stream_handlers() if handler.stream in before]
    sys.stdout = sys.stderr = file
    for handler, _ in handlers:
        handler.setStream(file)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for handler, stream in handlers:
            handler.setStream(stream)


class _Above:
    """A text file whose lines are printed above the prompt of the present session; from any thread, never waiting.

    A line is shown when it is complete: the prompt could not be drawn behind half a one.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._output = get_app_session().output
        # Tasks made from other threads have to find the same session.
        self._context = contextvars.copy_context()
        # Appended to by any thread, emptied by the loop's. No lock: a signal handler may print, too.
        self._pieces: deque[str] = deque()
        self._printing: asyncio.Task[None] | None = None
        self._finished = False

    def __getattr__(self, name: str) -> Any:
        """Whatever else a text file has, as the terminal has it."""
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        """Take ``text``."""
        if self._finished:
            return self._terminal.write(text)
        self._pieces.append(text)
        if "\n" in text:
            try:
                self._loop.call_soon_threadsafe(self._start, context=self._context)
            except RuntimeError:  # the loop is closed
                self._put(self._take())
        return len(text)

    def flush(self) -> None:
        """Nothing to do: complete lines are on their way."""
        if self._finished:
            self._terminal.flush()

    async def finish(self) -> None:
        """Print what is left; from now on it writes straight to the terminal."""
        if self._printing is not None:
            await asyncio.wait({self._printing})
        self._finished = True
        self._put(self._take())

    def _start(self) -> None:
        if not self._finished and (self._printing is None or self._printing.done()):
            self._printing = self._loop.create_task(self._print(), context=self._context)

    async def _print(self) -> None:
        """Print complete lines while there are any: all that came together at once."""
        while True:
            lines, ending, rest = self._take().rpartition("\n")
            if rest:
                self._pieces.appendleft(rest)
            if not ending:
                return
            await run_in_terminal(lambda text=lines + ending: self._put(text))  # type: ignore[misc]  # a bound default

    def _take(self) -> str:
        taken: list[str] = []
        while self._pieces:
            taken.append(self._pieces.popleft())
        return "".join(taken)

    def _put(self, text: str) -> None:
        try:
            self._output.write_raw(text)
            self._output.flush()
        except (OSError, ValueError) as error:
            _log.debug("the terminal is gone, and with it %r: %s", text, error)
