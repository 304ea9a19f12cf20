"""Words that the program is to carry out, and events that it is sent; the exit status says what became of them."""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.printing import show_json, show_text
from lifecycle.cli.failures import DONE, FAILED, CliError, UsageError
from lifecycle.cli.listing import harmless
from lifecycle.cli.messages import voice

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.ctl.clients import Client
    from lifecycle.cli.ctl.verbs import Request

__all__ = ["command", "emit", "line_of", "patiently", "told"]


def command(request: Request) -> int:
    """Have the program carry out its command, and wait for the outcome."""
    client = choose(request.program)
    with patiently(client):
        outcome = client.post("/api/command", {"line": line_of(request)})
    return told(client, request, outcome)


def emit(request: Request) -> int:
    """Send an event, and wait for what becomes of it."""
    text, data = request.given["data"], None
    try:
        data = None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no JSON: {error}; a text is given as '\"text\"'") from None
    client = choose(request.program)
    with patiently(client):
        outcome = client.post("/api/emit", {"topic": request.given["topic"], "data": data})
    return told(client, request, outcome)


@contextmanager
def patiently(client: Client) -> Generator[None]:
    """Within the block Ctrl+C ends the waiting, which the program does not notice.

    Raises:
        CliError: when it was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(f"not waited for any longer; {client.name} goes on with it") from None


def line_of(request: Request) -> str:
    """The command as a person at the program's prompt would type it; options of ours are none of its."""
    return shlex.join(word for word in request.words if not request.verb or word != "--json")


def told(client: Client, request: Request, outcome: dict[str, Any]) -> int:
    """Show what became of it, and give the status to exit with."""
    done = outcome.get("outcome") == "handled"
    if request.json:
        show_json(outcome)
        return DONE if done else FAILED
    show_text(outcome.get("answer") or "")
    if done:
        voice().good(f"{client.name}: {harmless(' '.join(request.words))}: done")
    else:
        voice().bad(f"{client.name}: {harmless(str(outcome.get('error') or outcome.get('outcome')), chr(10))}")
    return DONE if done else FAILED
