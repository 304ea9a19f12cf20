"""A terminal prompt based on prompt_toolkit. This module is imported only when a prompt is shown.

Ctrl+C sends SIGINT, as in any program. If prompt_toolkit handled it as a key, it could not interrupt a program whose
event loop is blocked. The program's output appears above the prompt (`_terminal_output`).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from prompt_toolkit.application import create_app_session
from prompt_toolkit.application.current import set_app
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.search import stop_search
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.shortcuts import PromptSession as ToolkitSession

from lifecycle.control.commands import completions
from lifecycle.sources._terminal_output import output_above
from lifecycle.sources.input import separate_descriptor

if sys.platform != "win32":
    import termios

    from prompt_toolkit.input.vt100 import Vt100Input, raw_mode
    from prompt_toolkit.output.vt100 import Vt100_Output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

    from lifecycle.sources._terminal_output import OutputAbove
    from lifecycle.sources.input import CommandSet

__all__ = ["PromptSession", "prompt_session"]

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
        async with output_above(session) as above:
            yield PromptSession(session, above)


class PromptSession:
    """A prompt that can be shown repeatedly."""

    def __init__(self, session: ToolkitSession[str], above: OutputAbove) -> None:
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
        """Clear the typed text, and leave a search in the history. Return False if there was neither."""
        buffer, searching = self._session.default_buffer, self._session.layout.is_searching
        if not (buffer.text or searching):
            return False
        if searching:
            with set_app(self._session.app):
                stop_search()
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
        commands = self._commands
        typed, candidates = completions(document.text_before_cursor, commands.typed_names(), commands.typed)
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
