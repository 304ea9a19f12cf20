"""A terminal prompt based on prompt_toolkit. This module is imported only when a prompt is shown.

Ctrl+C sends SIGINT, as in any program. If prompt_toolkit handled it as a key, it could not interrupt a program whose
event loop is blocked. The program's output appears above the prompt. We don't use prompt_toolkit's own
``patch_stdout``. It runs a thread that sleeps between writes, creates tasks that are never awaited, and keeps using the
first stdout that it saw.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
import os
import signal
import sys
from collections import deque
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from prompt_toolkit.application import create_app_session, get_app_session, in_terminal, run_in_terminal
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.shortcuts import PromptSession as ToolkitSession

from lifecycle._async import start_task
from lifecycle._util import stream_handlers
from lifecycle.control.commands import completions
from lifecycle.sources.input import separate_descriptor

if sys.platform != "win32":
    import termios

    from prompt_toolkit.input.vt100 import Vt100Input, raw_mode
    from prompt_toolkit.output.vt100 import Vt100_Output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

    from lifecycle.sources.input import CommandSet

__all__ = ["PromptSession", "lend_terminal", "prompt_session"]

_log = logging.getLogger("lifecycle.sources")


@asynccontextmanager
async def prompt_session(
    prompt: str, commands: CommandSet, history: Path | None, toolbar: str | Callable[[], str] | None
) -> AsyncGenerator[PromptSession]:
    """Open a prompt session. Text printed or logged inside the ``with`` block appears above the prompt."""
    # Create a new session, because prompt_toolkit's default session keeps using the first stdout that it saw.
    with _terminal() as terminal, create_app_session(**terminal):
        session: ToolkitSession[str] = ToolkitSession(
            prompt,
            completer=_Completer(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=InMemoryHistory() if history is None else FileHistory(history),
            key_bindings=_keys(),
            bottom_toolbar=toolbar,
            refresh_interval=1.0 if callable(toolbar) else 0.0,
            enable_suspend=True,
        )
        async with _output_above() as above:
            yield PromptSession(session, above)


async def lend_terminal(use: Callable[[TextIO], Coroutine[Any, Any, None]]) -> None:
    """Hide the prompt while ``use`` runs. It reads from stdin, and writes to the file that it receives.

    Other output appears afterwards, above the prompt.

    Raises:
        LookupError: if no prompt is shown.
    """
    above = cast("object", sys.stdout)
    if not isinstance(above, _Above):
        raise LookupError("no prompt is shown")  # noqa: TRY004  # not an argument
    await above.lend(use)


class PromptSession:
    """A prompt that can be shown repeatedly."""

    def __init__(self, session: ToolkitSession[str], above: _Above) -> None:
        self._session = session
        self._above = above

    async def ask(self) -> str | None:
        """Return the text typed before Enter, or None after Ctrl+D or if the terminal no longer exists."""
        await self._above.returned.wait()
        try:
            return await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        except EOFError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _log.debug("the terminal no longer exists: %s", error)
            return None

    def clear_line(self) -> bool:
        """Clear the typed text. Return False if there was none."""
        buffer = self._session.default_buffer
        if not buffer.text:
            return False
        buffer.reset()
        self._session.app.invalidate()
        return True


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("c-c")
    def interrupt(_: KeyPressEvent) -> None:
        """Send SIGINT on platforms where Ctrl+C arrives as a key."""
        signal.raise_signal(signal.SIGINT)

    return keys


# -- completion ------------------------------------------------------------------------------------------------


class _Completer(Completer):
    """Completes the names of commands and their arguments."""

    def __init__(self, commands: CommandSet) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  # prompt_toolkit's signature
        names = (each.name for each in self._commands)
        typed, candidates = completions(document.text_before_cursor, names, self._commands.get)
        for word in candidates:
            yield Completion(word, start_position=-len(typed))


# -- the terminal ----------------------------------------------------------------------------------------------


@contextmanager
def _terminal() -> Generator[dict[str, Any]]:
    """Yield the input and output to pass to prompt_toolkit. On Windows, yield an empty dictionary."""
    if sys.platform == "win32":
        yield {}
        return
    output = _Screen.from_pty(sys.stdout, term=os.environ.get("TERM"))
    output.enable_cpr = False
    with closing(_Keyboard(sys.stdin)) as keyboard:
        yield {"input": keyboard, "output": output}


if sys.platform != "win32":

    class _Screen(Vt100_Output):
        """An output that does not query the cursor position, because the reply can take a second, even on exit."""

        def get_rows_below_cursor_position(self) -> int:
            return 1  # scrolling makes space for more rows

    class _Keyboard(Vt100Input):
        """An input whose descriptor is watched by the loop, but not shared with stdout or other processes.

        uvloop makes watched descriptors non-blocking, which would affect every user of a shared terminal descriptor.
        """

        def __init__(self, stdin: TextIO) -> None:
            super().__init__(stdin)
            self._separate = separate_descriptor(stdin.fileno())
            self._modes = _modes(self._separate)

        def fileno(self) -> int:
            return self._separate

        def close(self) -> None:
            os.close(self._separate)

        def raw_mode(self) -> AbstractContextManager[None]:
            return _Raw(self.fileno())

        def cooked_mode(self) -> AbstractContextManager[None]:
            return _AsBefore(self.fileno(), self._modes)

    class _AsBefore(raw_mode):
        """The terminal mode that was set before the prompt was shown.

        It is used for output above the prompt and while the process is stopped.
        """

        def __init__(self, fd: int, modes: list[Any]) -> None:
            super().__init__(fd)
            self._modes = modes

        def __enter__(self) -> None:
            if self._modes:
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._modes)

    class _Raw(raw_mode):
        """The terminal mode of the prompt: keys arrive immediately, but Ctrl+C sends SIGINT."""

        def __enter__(self) -> None:
            super().__enter__()
            try:
                attributes = termios.tcgetattr(self.fileno)
                # Without NOFLSH, Ctrl+C would discard pending output.
                attributes[3] |= termios.ISIG | termios.NOFLSH
                # Ctrl+Z remains a key, because prompt_toolkit restores the terminal before it stops the process.
                off = os.fpathconf(self.fileno, "PC_VDISABLE").to_bytes(1, sys.byteorder)
                attributes[6][termios.VSUSP] = attributes[6][termios.VQUIT] = off
                termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)
            except (OSError, termios.error) as error:
                _log.debug("the terminal mode could not be set: %s", error)


def _modes(fd: int) -> list[Any]:
    try:
        return termios.tcgetattr(fd)
    except termios.error:  # the terminal has just been closed
        return []


# -- output above the prompt -----------------------------------------------------------------------------------


@asynccontextmanager
async def _output_above() -> AsyncGenerator[_Above]:
    """Within the ``with`` block, print everything written to stdout, stderr and their log handlers above the prompt."""
    above = _Above(sys.stdout)
    try:
        with _redirected(cast("TextIO", above)):
            yield above
    finally:
        await above.finish()


@contextmanager
def _redirected(file: TextIO) -> Generator[None]:
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
    """A file object that prints each line above the prompt of the current session.

    Any thread can write to it without waiting.

    A line is not shown until it is complete, because the prompt cannot be drawn after an incomplete line.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._output = get_app_session().output
        # Tasks created by other threads need the same session.
        self._context = contextvars.copy_context()
        # Any thread may append to this queue, and the loop's thread empties it. It has no lock, because a signal
        # handler may also print.
        self._pieces: deque[str] = deque()
        self._printing: asyncio.Task[None] | None = None
        self._finished = False
        #: Set unless the terminal is lent. The prompt is not shown again until then.
        self.returned: asyncio.Event = asyncio.Event()
        self.returned.set()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the terminal."""
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        """Queue ``text`` for printing."""
        if self._finished:
            return self._terminal.write(text)
        self._pieces.append(text)
        if "\n" in text:
            try:
                self._loop.call_soon_threadsafe(self._start)
            except RuntimeError:  # the loop is closed
                self._put(self._take())
        return len(text)

    def flush(self) -> None:
        """Flush the terminal once the session has ended.

        During the session, do nothing, because complete lines are printed anyway.
        """
        if self._finished:
            self._terminal.flush()

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
        self._finished = True
        self._put(self._take())

    def _start(self) -> None:
        if not self._finished and (self._printing is None or self._printing.done()):
            self._printing = start_task(self._print(), context=self._context)

    async def _print(self) -> None:
        """Print complete lines, as many as possible at a time, until none are left."""
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
            _log.debug("the terminal no longer exists; lost %r: %s", text, error)
