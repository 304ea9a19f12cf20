"""A conversation at a terminal with prompt_toolkit: imported when a prompt is really shown."""

from __future__ import annotations

import errno
import logging
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.shortcuts import CompleteStyle

from lifecycle.control.commands import completions
from lifecycle.sources._input.output import output_above
from lifecycle.sources._input.terminals import terminal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from pathlib import Path

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

    from lifecycle.sources._input.vocabulary import Vocabulary

__all__ = ["Conversation", "conversation"]

_log = logging.getLogger("lifecycle.sources")


@asynccontextmanager
async def conversation(
    prompt: str, vocabulary: Vocabulary, history: Path | None, toolbar: str | Callable[[], str] | None
) -> AsyncGenerator[Conversation]:
    """Talk for a block; what is printed or logged meanwhile appears above the prompt."""
    # A session of our own: prompt_toolkit's default one keeps the stdout that it saw first.
    with create_app_session(**terminal()):
        session: PromptSession[str] = PromptSession(
            prompt,
            completer=_Words(vocabulary),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=InMemoryHistory() if history is None else FileHistory(history),
            key_bindings=_keys(),
            bottom_toolbar=toolbar,
            refresh_interval=1.0 if callable(toolbar) else 0.0,
            enable_suspend=True,
        )
        async with output_above():
            yield Conversation(session)


class Conversation:
    """A prompt that is shown again and again."""

    def __init__(self, session: PromptSession[str]) -> None:
        self._session = session

    async def ask(self) -> str | None:
        """What is typed until Enter; None for Ctrl+D or when the terminal is gone."""
        try:
            return await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
        except EOFError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _log.debug("the terminal is gone: %s", error)
            return None

    def clear_line(self) -> bool:
        """Give up what is half typed; whether there was anything."""
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
        """Where Ctrl+C is a key after all, it is made the signal."""
        signal.raise_signal(signal.SIGINT)

    return keys


# -- completion ------------------------------------------------------------------------------------------------


class _Words(Completer):
    """Completes the command, then its arguments."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  # prompt_toolkit's signature
        vocabulary = self._vocabulary
        names = (each.name for each in vocabulary)
        typed, candidates = completions(document.text_before_cursor, names, vocabulary.get)
        for word in candidates:
            yield Completion(word, start_position=-len(typed))
