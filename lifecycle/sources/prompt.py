"""`PromptSource`: a prompt at the terminal, with completion and history."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.events import EndOfInputEvent
from lifecycle.sources.input import GivenCommands, InputSource, is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lifecycle.control import Emit
    from lifecycle.events import Topical
    from lifecycle.sources._terminal import PromptSession

__all__ = ["PromptSource"]


class PromptSource(InputSource):
    """Reads commands from a prompt with history and completion for commands and their arguments.

    Text printed or logged while the prompt is shown appears above it. An incomplete line is shown as soon as it is
    flushed, and output of other tasks and threads appears above that line. If stdin or stdout is not a terminal, the
    source works like `InputSource`.

    Ctrl+C sends SIGINT as in any program. Ctrl+D on an empty line emits `EndOfInputEvent` and ends the prompt. Ctrl+Z
    stops the process as usual. The terminal is restored whenever the program exits.

    Args:
        prompt: The prompt, shown before each input line.
        commands: See `InputSource`.
        history: A file for the history, created with mode 0600. By default, the history is kept only while the program
            runs.
        toolbar: A line to show at the bottom, or a function that returns this line and is called once per second.
        fallback: See `InputSource`.
        command_prefix: See `InputSource`.

    Raises:
        ValueError: if ``command_prefix`` contains blanks.
        TypeError: if ``commands`` has the wrong type.
    """

    def __init__(
        self,
        *,
        prompt: str = "> ",
        commands: GivenCommands | None = None,
        history: str | os.PathLike[str] | None = None,
        toolbar: str | Callable[[], str] | None = None,
        fallback: Callable[[str], Topical | None] | None = None,
        command_prefix: str = "",
    ) -> None:
        super().__init__(commands=commands, fallback=fallback, command_prefix=command_prefix)
        self.name = "prompt"
        self._prompt = prompt
        self._history = None if history is None else Path(history).expanduser()
        self._toolbar = toolbar
        self._session: PromptSession | None = None

    def __repr__(self) -> str:
        return f"<PromptSource {self._prompt!r}>"

    def clear_line(self) -> bool:
        """Clear the typed text, and leave a search in the history. Return False if there was neither."""
        return self._session is not None and self._session.clear_line()

    async def __aenter__(self) -> Self:
        """Check that the history file can be written. A new file gets mode 0600, because lines may contain secrets.

        Raises:
            OSError: if the file cannot be written.
        """
        if self._history is not None and self._can_ask():
            os.close(os.open(self._history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        return self

    async def run(self, emit: Emit) -> None:
        """Show the prompt until Ctrl+D."""
        if not self._can_ask():
            await super().run(emit)
            return
        from lifecycle.sources._terminal import prompt_session  # importing prompt_toolkit is slow

        async with prompt_session(self._prompt, self._commands, self._history, self._toolbar) as session:
            self._session = session
            try:
                while (text := await session.ask()) is not None:
                    # Pasted text may contain several lines.
                    await self._take(text.splitlines(), emit)
            finally:
                self._session = None
        await emit(EndOfInputEvent())

    def _can_ask(self) -> bool:
        return self.is_terminal and is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
