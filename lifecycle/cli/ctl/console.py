"""`lifecycle ctl console`: a Python prompt in a program whose control socket allows it.

The program compiles and runs the code. This module reads lines, and shows the output and the results.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lifecycle._text import printable
from lifecycle.cli.ctl.client import choose, is_readable
from lifecycle.cli.ctl.printing import show_output
from lifecycle.cli.output import DONE, FAILED, CliError, is_terminal, stderr_console, write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lifecycle.cli.ctl.client import Client, Stream
    from lifecycle.cli.ctl.commands import Request

__all__ = ["console"]


def console(request: Request) -> int:
    """Show a prompt until Ctrl+D, or until the input ends or the program exits. Returns 1 if piped code failed."""
    client = choose(request.program)
    with client.stream("/api/console", sys.stdout) as stream:
        session = _Session(client, stream)
        try:
            session.run()
        except KeyboardInterrupt:
            raise CliError(f"left the console; the code is still running in {client.name}") from None
    return FAILED if session.failed else DONE


class _Session:
    """A connection to a console in the program."""

    def __init__(self, client: Client, stream: Stream) -> None:
        self.failed = False
        self._client = client
        self._stream = stream
        self._at_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        # The program's prompt, or an empty string while code is running.
        self._prompt = ""
        self._interrupted = self._left = False
        self._has_readline = False
        greeting = stream.first()
        self._target = f"/api/console/{greeting['console']}"
        if self._at_terminal:
            with suppress(ImportError):
                import_module("readline")  # `input` uses readline to edit lines once it is imported
                self._has_readline = True
            names = printable(", ".join(greeting["variables"]))
            stderr_console().info(
                f"Python {printable(greeting['python'])} in {client.name}, with {names}\n"
                "`await` works; Ctrl+C cancels running code, Ctrl+D leaves the console"
            )

    def run(self) -> None:
        """Read and send input until it ends, or until the program exits."""
        while not self._left and not self._stream.ended:
            try:
                if self._prompt:
                    self._send(self._read())
                else:
                    self._show(self._stream.take())
            except KeyboardInterrupt:
                if self._interrupted:
                    raise
                self._interrupt()
        if not self._left and not self._stream.unread:
            stderr_console().warning(f"{self._client.name} has exited")
            self.failed = not self._at_terminal

    def _show(self, messages: list[Any]) -> None:
        for message in messages:
            if "prompt" in message:
                self._prompt = printable(message["prompt"])
                self._interrupted = False
                self.failed |= message["failed"] and not self._at_terminal
            elif "left" in message:
                self._left = True
            else:
                show_output([message])

    def _read(self) -> str | None:
        """Return a line, a pasted block, or a whole script from a pipe. Return None at the end of the input."""
        if not self._at_terminal:
            return sys.stdin.read() or None
        if not self._has_readline:
            # Without readline, the first key would not be shown.
            return self._input()
        with _unbuffered_keys() as show_keys:
            self._wait_for_key()
            # readline shows what is typed only if the terminal does.
            show_keys()
            return None if self._stream.ended else self._input()

    def _input(self) -> str | None:
        try:
            return input(self._prompt)
        except EOFError:
            write(sys.stdout, "\n")
            return None

    def _wait_for_key(self) -> None:
        """Show output from background tasks until a key is pressed. While a line is being edited, output waits."""
        write(sys.stdout, self._prompt)
        while not self._stream.ended and not is_readable([sys.stdin], 0):
            if messages := self._stream.take(None, sys.stdin):
                self._erase_prompt()
                self._show(messages)
                write(sys.stdout, self._prompt)
        # `input` prints the prompt again.
        self._erase_prompt()

    def _erase_prompt(self) -> None:
        write(sys.stdout, f"\r{' ' * len(self._prompt)}\r")

    def _send(self, text: str | None) -> None:
        if text is not None:
            self._client.post(self._target, {"line": text})
        elif self._prompt.startswith("...") and not self._at_terminal:
            raise CliError("the code is incomplete")
        else:
            self._left = not self._stream.ended
        self._prompt = ""

    def _interrupt(self) -> None:
        self._interrupted = True
        self._prompt = ""
        if self._at_terminal:
            write(sys.stdout, "\n")
        self._client.post(f"{self._target}/interrupt", {})


@contextmanager
def _unbuffered_keys() -> Generator[Callable[[], None]]:
    """Make stdin readable as soon as a key is pressed, and hide keys until the yielded function is called."""
    import termios

    saved = termios.tcgetattr(sys.stdin)
    mode = [*saved[:3], saved[3] & ~(termios.ICANON | termios.ECHO), *saved[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)

    def show_keys() -> None:
        mode[3] |= termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)

    try:
        yield show_keys
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
