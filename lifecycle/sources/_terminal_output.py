"""Output above the prompt. This module is imported only when a prompt is shown.

Complete lines scroll up. An incomplete line (``print(…, end="", flush=True)``) is drawn directly above the prompt, and
grows there until it is complete. Each task and each thread has its own incomplete line, so the output of others appears
above the line rather than inside it.

We don't use prompt_toolkit's own ``patch_stdout``. It runs a thread that sleeps between writes, creates tasks that are
never awaited, and keeps using the first stdout that it saw.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import sys
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

from prompt_toolkit.application import in_terminal, run_in_terminal
from prompt_toolkit.filters import Condition, is_done
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window
from prompt_toolkit.utils import get_cwidth

from lifecycle._async import start_task
from lifecycle._util import stream_handlers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable

    from prompt_toolkit.shortcuts import PromptSession

__all__ = ["OutputAbove", "lend_terminal", "output_above"]

_log = logging.getLogger("lifecycle.sources")

#: A task of the prompt's loop, or the identifier of a thread.
_Writer: TypeAlias = "asyncio.Task[Any] | int"

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|\[?[0-?]*$|[^\[\]])", re.DOTALL)
_STYLE = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = {code: None for code in (*range(32), 127) if chr(code) not in "\t\x1b"}
_TAB = 8


@asynccontextmanager
async def output_above(session: PromptSession[str]) -> AsyncGenerator[OutputAbove]:
    """Within the ``with`` block, print everything written to stdout, stderr and their log handlers above the prompt."""
    above = OutputAbove(session, sys.stdout)
    try:
        with _redirected(above):
            yield above
    finally:
        await above.finish()


async def lend_terminal(use: Callable[[TextIO], Coroutine[Any, Any, None]]) -> None:
    """Hide the prompt while ``use`` runs. It reads from stdin, and writes to the file that it receives.

    Other output appears afterwards, above the prompt.

    Raises:
        LookupError: if no prompt is shown.
    """
    file = cast("object", sys.stdout)
    if not isinstance(file, _File):
        raise LookupError("no prompt is shown")  # noqa: TRY004  # not an argument
    await file.above.lend(use)


@contextmanager
def _redirected(above: OutputAbove) -> Generator[None]:
    before = sys.stdout, sys.stderr
    handlers = [(handler, handler.stream) for handler in stream_handlers() if handler.stream in before]
    sys.stdout, sys.stderr = above.new_file(), above.new_file()
    for handler, _ in handlers:
        handler.setStream(above.new_file())
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for handler, stream in handlers:
            handler.setStream(stream)


class _File:
    """A replacement for stdout or stderr that prints above the prompt."""

    def __init__(self, above: OutputAbove, terminal: TextIO) -> None:
        self.above = above
        self._terminal = terminal

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the terminal."""
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        """Queue ``text`` for printing."""
        if self.above.finished:
            return self._terminal.write(text)
        self.above.add(self, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Queue each of ``lines`` for printing."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Show an incomplete line. Complete lines are printed anyway."""
        if self.above.finished:
            self._terminal.flush()
        else:
            self.above.wake()


class OutputAbove:
    """Prints lines above the prompt of ``session``. Any thread can write without waiting."""

    def __init__(self, session: PromptSession[str], terminal: TextIO) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._app = session.app
        # Tasks created by other threads need the same session.
        self._context = contextvars.copy_context()
        # Any thread may append to this queue, and the loop's thread empties it. It has no lock, because a signal
        # handler may also print. A piece without a file marks the end of its writer.
        self._pieces: deque[tuple[_File | None, _Writer, str]] = deque()
        # The tasks that have written, until they are done.
        self._writers: set[asyncio.Task[Any]] = set()
        # The incomplete lines, oldest first. Together they take at most half of the terminal's rows.
        self._incomplete: dict[tuple[_File, _Writer], str] = {}
        self._printing: asyncio.Task[None] | None = None
        #: True once the prompt has ended. Text is then written directly to the terminal.
        self.finished: bool = False
        #: Set unless the terminal is lent. The prompt is not shown again until then.
        self.returned: asyncio.Event = asyncio.Event()
        self.returned.set()
        control = FormattedTextControl(lambda: ANSI("\n".join(map(_shown, self._incomplete.values()))))
        session.layout.container = HSplit(
            [
                ConditionalContainer(
                    Window(control, wrap_lines=True, dont_extend_height=True),
                    Condition(lambda: bool(self._incomplete)) & ~is_done,
                ),
                session.layout.container,
            ]
        )

    def new_file(self) -> TextIO:
        """Return a file object. Text written to it is not mixed with the incomplete lines of other files."""
        return cast("TextIO", _File(self, self._terminal))

    def add(self, file: _File, text: str) -> None:
        """Queue ``text``, which the current task or thread has written to ``file``."""
        self._pieces.append((file, self._writer(), text))
        if "\n" in text:
            self.wake()

    def wake(self) -> None:
        """Print the queued text soon."""
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop is closed
            self._put(self._take())

    async def lend(self, use: Callable[[TextIO], Coroutine[Any, Any, None]]) -> None:
        """Lend the terminal to ``use``. Output is queued in the meantime."""
        # A new task, because the session is a context variable.
        await start_task(self._lend(use), name="terminal lent", context=self._context)

    async def _lend(self, use: Callable[[TextIO], Coroutine[Any, Any, None]]) -> None:
        self.returned.clear()
        try:
            async with in_terminal():
                await use(self._terminal)
        finally:
            self.returned.set()

    async def finish(self) -> None:
        """Print the remaining text. Later text is written directly to the terminal."""
        if self._printing is not None:
            await asyncio.wait({self._printing})
        self.finished = True
        for task in self._writers:
            task.remove_done_callback(self._end)
        self._put(self._take() + "\n".join(self._incomplete.values()))

    def _writer(self) -> _Writer:
        try:
            task = asyncio.current_task() if asyncio.get_running_loop() is self._loop else None
        except RuntimeError:  # no loop runs in this thread
            task = None
        if task is None:
            return threading.get_ident()
        if task not in self._writers:
            self._writers.add(task)
            task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        """End the incomplete lines of ``task``, so that output of others begins on a new line."""
        self._writers.discard(task)
        self._pieces.append((None, task, ""))
        self._start()

    def _start(self) -> None:
        if not self.finished and self._pieces and (self._printing is None or self._printing.done()):
            self._printing = start_task(self._print(), context=self._context)

    async def _print(self) -> None:
        """Print complete lines, as many as possible at a time, and redraw incomplete ones, until none are queued."""
        while self._pieces:
            before = [*self._incomplete.values()]
            if text := self._take():
                await run_in_terminal(lambda text=text: self._put(text))  # type: ignore[misc]  # a bound default
            else:
                if before != [*self._incomplete.values()]:
                    self._app.invalidate()
                # A thread that keeps writing must not occupy the loop.
                await asyncio.sleep(0)

    def _take(self) -> str:
        """Empty the queue. Return the text that will not change any more, and keep incomplete lines."""
        taken: list[str] = []
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        for (file, writer), run in groupby(pieces, lambda piece: piece[:2]):
            if file is None:
                taken.extend(self._ended(writer))
            else:
                taken.append(self._completed(file, writer, "".join(text for _, _, text in run)))
        taken.extend(self._excess())
        return "".join(taken)

    def _completed(self, file: _File, writer: _Writer, text: str) -> str:
        """Add ``text`` to the incomplete line of its writer, and return what is complete."""
        lines, ending, rest = (self._incomplete.get((file, writer), "") + text).rpartition("\n")
        if rest:
            # A carriage return begins the row again, as progress bars do.
            self._incomplete[file, writer] = rest[rest.rstrip("\r").rfind("\r") + 1 :]
        else:
            self._incomplete.pop((file, writer), None)
        return lines + ending

    def _ended(self, writer: _Writer) -> list[str]:
        ended = [key for key in self._incomplete if key[1] is writer]
        return [f"{self._incomplete.pop(key)}\n" for key in ended]

    def _excess(self) -> list[str]:
        """End incomplete lines, oldest first, until the others need at most half of the terminal's rows."""
        size = self._app.output.get_size()
        excess: list[str] = []
        while sum(_cells(line) // size.columns + 1 for line in self._incomplete.values()) > max(1, size.rows // 2):
            excess.append(f"{self._incomplete.pop(next(iter(self._incomplete)))}\n")
        return excess

    def _put(self, text: str) -> None:
        try:
            self._app.output.write_raw(text)
            self._app.output.flush()
        except (OSError, ValueError) as error:
            _log.debug("the terminal no longer exists; lost %r: %s", text, error)


def _shown(line: str) -> str:
    """Return the line without control characters other than those for colours and styles."""
    styled = _ESCAPE.sub(lambda found: found[0] if _STYLE.fullmatch(found[0]) else "", line)
    return styled.expandtabs(_TAB).translate(_CONTROL)


def _cells(line: str) -> int:
    """Return the width of a line in cells of the terminal."""
    return get_cwidth(_STYLE.sub("", _shown(line)))
