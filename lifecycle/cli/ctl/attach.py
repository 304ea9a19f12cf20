"""`lifecycle ctl attach`: a prompt for a running program's commands, with its output.

The prompt is a small program built with this library: a `PromptSource` reads lines, and a handler sends each line to
the running program.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import printable
from lifecycle.cli.ctl.client import choose, decoded
from lifecycle.cli.ctl.printing import show_output, show_text
from lifecycle.cli.ctl.queries import show_commands
from lifecycle.cli.output import DONE, FAILED, CliError, stderr_console
from lifecycle.control import Command, Router
from lifecycle.control.commands import Commands
from lifecycle.events import LineEvent
from lifecycle.runtime import current, run, shutdown
from lifecycle.sources import PromptSource, SignalSource

if TYPE_CHECKING:
    from lifecycle.cli.ctl.client import Client, Exchange, Stream
    from lifecycle.cli.ctl.commands import Request
    from lifecycle.events import Topical

__all__ = ["attach"]

#: The maximum number of lines to run at the same time. It is greater than one so that `status` works while another
#: command is running.
_CONCURRENCY: Final = 100


def attach(request: Request) -> int:
    """Show a prompt until Ctrl+D, or until the input ends or the program exits. Returns 1 if a piped line failed."""
    client = choose(request.program)
    with client.stream("/api/attach", sys.stdout) as output:
        session = _Session(client, output)
        run(session.router(), session.listen)
        show_output(output.take(0))
    return FAILED if session.failed else DONE


class _Session:
    """The prompt and the program's output."""

    def __init__(self, client: Client, output: Stream) -> None:
        self.failed = False
        self._client = client
        self._output = output
        self._known = client.get("/api/commands")
        commands = Commands(*map(self._command, self._known))
        if "help" not in commands:  # only programs with a prompt have this command
            commands.add(Command("help", "List the commands."))
        self._keyboard = PromptSource(prompt=f"{client.name}> ", commands=commands, fallback=LineEvent)

    def router(self) -> Router:
        """Return the router that handles the lines. It stops without waiting for running commands."""
        router = Router("attach", drain_timeout=0)
        router.handle("input/line", self._carry_out, concurrency=_CONCURRENCY)
        router.handle("command/help", self._show_help)
        router.handle("input/eof", lambda _: shutdown())
        if self._keyboard.is_terminal:
            router.handle("signal/interrupt", self._interrupt)
            router.add_source(SignalSource(signal.SIGINT))
        router.add_source(self._keyboard)
        return router

    async def listen(self) -> None:
        """Print the program's output until it exits."""
        while not self._output.ended:
            show_output(self._output.take(0))
            await _readable(self._output)
        if not self._output.unread:
            stderr_console().warning(f"{self._client.name} has exited")

    def _command(self, described: dict[str, Any]) -> Command:
        """Return a command that sends its line to the program."""
        name = described["name"]
        return Command(
            name,
            described["help"],
            event=lambda args: LineEvent(shlex.join((name, *args))),
            complete=lambda typed: self._candidates(f"{name} {typed}"),
            aliases=tuple(described["aliases"]),
        )

    def _candidates(self, line: str) -> list[str]:
        try:
            answer: list[str] = self._client.get("/api/complete", line=line)
        except CliError:
            return []
        return [word for word in answer if word == printable(word)]

    def _show_help(self, _: Topical) -> None:
        show_commands(self._known)

    async def _carry_out(self, event: LineEvent) -> None:
        if current().stopping:
            return  # the line was queued behind another line
        try:
            with self._client.send("/api/command", {"line": event.line}) as exchange:
                await _readable(exchange)
                outcome = decoded(exchange.body())
        except CliError as error:
            outcome = {"outcome": "failed", "error": str(error)}
        # Show the command's output before its result.
        show_output(self._output.take(0))
        show_text(outcome.get("answer") or "")
        if outcome["outcome"] != "handled":
            self.failed |= not self._keyboard.is_terminal
            stderr_console().error(printable(outcome.get("error") or outcome["outcome"], "\n"))

    def _interrupt(self, _: Topical) -> None:
        """Clear the typed line. Ctrl+C does not affect the program."""
        current().reset_signals()
        if not self._keyboard.clear_line():
            stderr_console().info(
                f"press Ctrl+D to leave the prompt; {self._client.name} keeps running unless you type stop"
            )


async def _readable(one: Stream | Exchange) -> None:
    """Wait until ``one`` has data to receive."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(one.fileno())
