"""`lifecycle ctl attach`: the prompt of a program that runs elsewhere, with its words and what it prints.

It is a small program of this library itself: a `PromptSource` asks for lines, and each is told to the other program.
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

#: Lines at a terminal that are carried out beside each other: who waits for one can ask for the status meanwhile.
_AT_ONCE: Final = 100


def attach(request: Request) -> int:
    """Talk to the program until Ctrl+D, the end of the lines, or its own end; 1 if a line from a pipe failed."""
    client = choose(request.program)
    with client.stream("/api/attach", sys.stdout) as output:
        talk = _Session(client, output)
        run(talk.router(), talk.listen)
        show_output(output.take(0))
    return FAILED if talk.failed else DONE


class _Session:
    """What is said to the program, and what comes back."""

    def __init__(self, client: Client, output: Stream) -> None:
        self.failed = False
        self._client = client
        self._output = output
        self._known = client.get("/api/commands")
        words = Commands(*map(self._command, self._known))
        if "help" not in words:  # only a program that has a prompt of its own needs one
            words.add(Command("help", "List the commands."))
        # From a pipe, each line waits for the one before it.
        self._keyboard = PromptSource(prompt=f"{client.name}> ", commands=words, fallback=LineEvent)

    def router(self) -> Router:
        """What takes the lines; who leaves waits for nothing."""
        router = Router("attach", drain_timeout=0)
        router.handle("input/line", self._carry_out, concurrency=_AT_ONCE)
        router.handle("command/help", self._tell_help)
        router.handle("input/eof", lambda _: shutdown())
        if self._keyboard.is_terminal:
            router.handle("signal/interrupt", self._interrupt)
            router.add_source(SignalSource(signal.SIGINT))
        router.add_source(self._keyboard)
        return router

    async def listen(self) -> None:
        """Show what the program prints, until it has ended."""
        while not self._output.ended:
            show_output(self._output.take(0))
            await _readable(self._output)
        if not self._output.unread:
            stderr_console().warning(f"{self._client.name} has ended")

    def _command(self, report: dict[str, Any]) -> Command:
        """A word of the program, which goes back to it as the line that it came from."""
        name = report["name"]
        return Command(
            name,
            report["help"],
            event=lambda args: LineEvent(shlex.join((name, *args))),
            complete=lambda typed: self._candidates(f"{name} {typed}"),
            aliases=tuple(report["aliases"]),
        )

    def _candidates(self, line: str) -> list[str]:
        try:
            answer: list[str] = self._client.get("/api/complete", line=line)
        except CliError:
            return []
        return [word for word in answer if word == printable(word)]

    def _tell_help(self, _: Topical) -> None:
        show_commands(self._known)

    async def _carry_out(self, event: LineEvent) -> None:
        if current().stopping:
            return  # it came from a pipe together with others, and waited for one of them
        try:
            with self._client.tell("/api/command", {"line": event.line}) as exchange:
                await _readable(exchange)
                outcome = decoded(exchange.body())
        except CliError as error:
            outcome = {"outcome": "failed", "error": str(error)}
        # What it printed came first.
        show_output(self._output.take(0))
        show_text(outcome.get("answer") or "")
        if outcome["outcome"] != "handled":
            self.failed |= not self._keyboard.is_terminal
            stderr_console().error(printable(outcome.get("error") or outcome["outcome"], "\n"))

    def _interrupt(self, _: Topical) -> None:
        """Ctrl+C is not for the program: it gives up what is half typed."""
        current().reset_signals()
        if not self._keyboard.clear_line():
            stderr_console().info(f"Ctrl+D leaves, and {self._client.name} goes on; `stop` ends it")


async def _readable(one: Stream | Exchange) -> None:
    """Wait until something of it has come, or it has ended."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(one.fileno())
