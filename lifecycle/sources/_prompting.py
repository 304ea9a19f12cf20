"""One conversation at a terminal with prompt_toolkit: imported when a prompt is really shown.

Ctrl+C stays what it is elsewhere: the terminal sends SIGINT. prompt_toolkit would read it as a key, and then nothing
could end a program whose loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.patch_stdout import StdoutProxy
from prompt_toolkit.shortcuts import CompleteStyle

from lifecycle.control.commands import split

if sys.platform != "win32":
    import termios

    from prompt_toolkit.input.vt100 import Vt100Input, raw_mode
    from prompt_toolkit.output.vt100 import Vt100_Output

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import TextIO

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

    from lifecycle.sources._vocabulary import Vocabulary

__all__ = ["Conversation", "close", "output_above"]

_log = logging.getLogger("lifecycle.sources")


class Conversation:
    """A prompt that is shown again and again."""

    def __init__(
        self, prompt: str, vocabulary: Vocabulary, history: Path | None, toolbar: str | Callable[[], str] | None
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            prompt,
            completer=_Words(vocabulary),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=InMemoryHistory() if history is None else FileHistory(history),
            key_bindings=_keys(),
            bottom_toolbar=toolbar,
            refresh_interval=1.0 if callable(toolbar) else 0.0,
            enable_suspend=True,
            **_terminal(),
        )

    async def ask(self) -> str | None:
        """What is typed until Enter; None for Ctrl+D or when the terminal is gone."""
        try:
            return await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        except EOFError:
            return None

    def clear_line(self) -> bool:
        """Give up what is half typed; whether there was anything."""
        buffer = self._session.default_buffer
        if not buffer.text:
            return False
        buffer.reset()
        self._session.app.invalidate()
        return True


# -- the terminal ----------------------------------------------------------------------------------------------


def _terminal() -> dict[str, Any]:
    """Our own input and output, where prompt_toolkit lets us have them."""
    if sys.platform == "win32":
        return {}
    output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
    # It asks the terminal where the cursor is and waits up to a second for the answer, also when leaving.
    output.enable_cpr = False
    return {"input": _Keyboard(sys.stdin), "output": output}


if sys.platform != "win32":

    class _Keyboard(Vt100Input):
        def __init__(self, stdin: TextIO) -> None:
            super().__init__(stdin)
            self._modes = _modes(self.fileno())

        def raw_mode(self) -> AbstractContextManager[None]:
            return _Raw(self.fileno())

        def cooked_mode(self) -> AbstractContextManager[None]:
            return _AsBefore(self.fileno(), self._modes)

    class _AsBefore(raw_mode):
        """The terminal as it was before the prompt, for output above it and while the process is stopped."""

        def __init__(self, fd: int, modes: list[Any]) -> None:
            super().__init__(fd)
            self._modes = modes

        def __enter__(self) -> None:
            if self._modes:
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._modes)

    class _Raw(raw_mode):
        """Keys come as they are pressed, but Ctrl+C is SIGINT."""

        def __enter__(self) -> None:
            super().__enter__()
            try:
                attributes = termios.tcgetattr(self.fileno)
                # Without NOFLSH, Ctrl+C would throw away output that is on its way.
                attributes[3] |= termios.ISIG | termios.NOFLSH
                # Ctrl+Z stays a key: prompt_toolkit restores the terminal before it stops the process.
                off = os.fpathconf(self.fileno, "PC_VDISABLE").to_bytes(1, sys.byteorder)
                attributes[6][termios.VSUSP] = attributes[6][termios.VQUIT] = off
                termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)
            except (OSError, termios.error) as error:
                _log.debug("the terminal cannot be set: %s", error)


def _modes(fd: int) -> list[Any]:
    try:
        return termios.tcgetattr(fd)
    except termios.error:  # it has just gone away
        return []


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("c-c")
    def interrupt(_: KeyPressEvent) -> None:
        """Where Ctrl+C is a key after all, it is made the signal."""
        signal.raise_signal(signal.SIGINT)

    return keys


# -- completion ------------------------------------------------------------------------------------------------


class _Words(Completer):
    """Completes the command, then its arguments."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  # prompt_toolkit's signature
        before = document.text_before_cursor
        typed = "" if before[-1:].isspace() else (before.split() or [""])[-1]
        for word in self._candidates(before[: len(before) - len(typed)], typed):
            yield Completion(word, start_position=-len(typed))

    def _candidates(self, before: str, typed: str) -> list[str]:
        words = split(before)
        if not words:
            return sorted(each.name for each in self._vocabulary.commands() if each.name.startswith(typed))
        command = self._vocabulary.get(words[0])
        try:
            return command.candidates(typed) if command else []
        except Exception:  # noqa: BLE001  # whatever a user's function raises
            _log.exception("completing the arguments of %r failed", words[0])
            return []


# -- output ----------------------------------------------------------------------------------------------------


@contextmanager
def output_above() -> Generator[StdoutProxy]:
    """Print and log above the prompt: stdout, stderr, and the log handlers that hold on to either.

    The proxy is to be closed afterwards, which waits for its thread.
    """
    before = sys.stdout, sys.stderr
    proxy = StdoutProxy(raw=True)
    handlers = [(handler, handler.stream) for handler in _handlers() if handler.stream in before]
    sys.stdout = sys.stderr = cast("TextIO", proxy)
    for handler, _ in handlers:
        handler.setStream(proxy)
    try:
        yield proxy
    finally:
        sys.stdout, sys.stderr = before
        for handler, stream in handlers:
            handler.setStream(stream)


def _handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *(each for each in logging.root.manager.loggerDict.values())]
    handlers = {handler for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers}
    return [handler for handler in handlers if type(handler) is logging.StreamHandler]


async def close(proxy: StdoutProxy) -> None:
    """Wait, without blocking the loop, until everything was written."""
    await asyncio.to_thread(proxy.close)
