"""`PromptSource`: a prompt at the terminal, with completion and history."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.events import EndOfInputEvent
from lifecycle.sources._input.chunks import is_terminal
from lifecycle.sources._input.vocabulary import Vocabulary, Words
from lifecycle.sources.input import InputSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lifecycle.control.commands import Commands
    from lifecycle.control.types import Emit
    from lifecycle.events import Topical
    from lifecycle.sources._input.conversations import Conversation

__all__ = ["PromptSource"]


class PromptSource:
    """Asks for commands at a prompt: Tab completes them and their arguments, the arrow keys go through the history.

    What is printed or logged meanwhile appears above the prompt. Without a terminal at stdin and stdout it is an
    `InputSource`. ``commands`` and ``fallback`` are as there. ``history`` is a file; without one, history lasts as
    long as the program. ``toolbar`` is the line at the bottom, or a function that returns it, asked once a second.

    Ctrl+C is SIGINT here as anywhere: it reaches whoever handles that signal. `clear_line` gives up what is half
    typed. Ctrl+D on an empty line is `EndOfInputEvent`, and the prompt ends. Ctrl+Z stops the process as usual. The
    terminal is set back on every way out.

    Raises:
        TypeError: for commands that are none.
    """

    def __init__(
        self,
        *,
        prompt: str = "> ",
        commands: Words | None = None,
        history: str | os.PathLike[str] | None = None,
        toolbar: str | Callable[[], str] | None = None,
        fallback: Callable[[str], Topical | None] | None = None,
    ) -> None:
        self.name = "prompt"
        self._prompt = prompt
        self._vocabulary = Vocabulary(commands)
        self._history = None if history is None else Path(history).expanduser()
        self._toolbar = toolbar
        self._input = InputSource(commands=commands, fallback=fallback)
        self._conversation: Conversation | None = None

    def __repr__(self) -> str:
        return f"<PromptSource {self._prompt!r}>"

    @property
    def is_terminal(self) -> bool:
        """Whether a person may be typing."""
        return self._input.is_terminal

    @property
    def lines(self) -> int:
        """Lines that have come so far, of whatever kind."""
        return self._input.lines

    def use_commands(self, commands: Commands) -> None:
        """Know these commands too, unless some were given explicitly; a router calls this with its own."""
        self._vocabulary.use(commands)
        self._input.use_commands(commands)

    def discard_rest(self) -> None:
        """When the source is cancelled, drop the lines that have come and were not emitted."""
        self._input.discard_rest()

    def clear_line(self) -> bool:
        """Give up what is half typed; whether there was anything."""
        return self._conversation is not None and self._conversation.clear_line()

    async def __aenter__(self) -> Self:
        """Find out now, not at the first Enter, that the history cannot be kept.

        Raises:
            OSError: when its file cannot be written.
        """
        if self._history is not None and self._can_ask():
            with self._history.open("ab"):
                pass
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left to do."""

    async def run(self, emit: Emit) -> None:
        """Ask until Ctrl+D."""
        if not self._can_ask():
            await self._input.run(emit)
            return
        from lifecycle.sources._input.conversations import conversation

        async with conversation(self._prompt, self._vocabulary, self._history, self._toolbar) as talk:
            self._conversation = talk
            try:
                await self._converse(talk, emit)
            finally:
                self._conversation = None
        await emit(EndOfInputEvent())

    def _can_ask(self) -> bool:
        return self.is_terminal and is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"

    async def _converse(self, conversation: Conversation, emit: Emit) -> None:
        while (text := await conversation.ask()) is not None:
            # Text that was pasted may have several lines.
            await self._input.take(text.splitlines(), emit)
