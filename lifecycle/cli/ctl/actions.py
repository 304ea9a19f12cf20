"""Functions that send commands and events to a program. `stop` and `restart` also show progress."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import printable
from lifecycle.cli.ctl.client import GoneError, SilentError, choose, choose_to_stop, decoded, is_readable
from lifecycle.cli.ctl.printing import show_json, show_text
from lifecycle.cli.ctl.status import Tree
from lifecycle.cli.ctl.waiting import RestartProgress, StopProgress, Wait
from lifecycle.cli.output import DONE, FAILED, CliError, UsageError, stderr_console

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.cli.ctl.client import Client, Exchange
    from lifecycle.cli.ctl.commands import Request

__all__ = ["command", "emit", "restart", "stop"]

#: The maximum number of seconds to wait for the process to exit after it has closed its socket. By default, a program
#: exits within 25 seconds.
EXIT_TIMEOUT: Final = 30.0
#: The maximum number of seconds to wait for the exit if other code started the program's event loop. Such a process
#: usually keeps running.
_EMBEDDED_EXIT_TIMEOUT: Final = 1.0
#: The timeout, in seconds, for the rest of a response after its first bytes.
_RESPONSE_TIMEOUT: Final = 10.0


def command(request: Request) -> int:
    """Send a command to the program, and wait for the result."""
    return _post(request, "/api/command", {"line": _line(request)})


def emit(request: Request) -> int:
    """Send an event, and wait for the result."""
    text, data = request.arguments["data"], None
    try:
        data = None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not JSON: {error}; write a string as '\"text\"'") from None
    return _post(request, "/api/emit", {"topic": request.arguments["topic"], "data": data})


def _post(request: Request, target: str, body: object, client: Client | None = None) -> int:
    client = client or choose(request.program)
    wait = Wait(client, request.doing, request.timeout)
    with _interruptible(client), wait, client.send(target, body) as exchange:
        wait.until(exchange)
        outcome = _result(exchange)
    return _report(client, request, outcome)


@contextmanager
def _interruptible(client: Client) -> Generator[None]:
    """Raise `CliError` if Ctrl+C interrupts the wait for a result. The program is not affected."""
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(f"stopped waiting for the result; {client.name} continues") from None


def _line(request: Request) -> str:
    """Return the command as typed at the program's prompt."""
    return shlex.join(request.plain_words)


def _report(client: Client, request: Request, result: dict[str, Any]) -> int:
    """Print the result, and return the exit status."""
    done = result.get("outcome") == "handled"
    if request.json:
        show_json(result)
        return DONE if done else FAILED
    show_text(result.get("answer") or "")
    if done:
        stderr_console().success(f"{client.name}: {request.doing}: done")
    else:
        error = str(result.get("error") or result.get("outcome"))
        stderr_console().error(f"{client.name}: {printable(error, chr(10))}")
    return DONE if done else FAILED


def stop(request: Request) -> int:
    """Stop the program and wait until its process has exited. With names, stop only these workers.

    A program in another directory is stopped only if the command names it.
    """
    client = choose_to_stop(request.program)
    if request.names:
        return _post(request, "/api/command", {"line": _line(request)}, client)
    tree = Tree.of_program(client)
    embedded = any(node.get("embedded") for node in tree.of("lifetime"))
    wait = Wait(client, f"stopping {client.name}", request.timeout, tree, StopProgress())
    with _interruptible(client), _process(client) as process:
        with wait:
            result, stops = _send_stop(client, _line(request), wait)
            if not stops:
                return _report(client, request, result)
            wait.until(process)
        most = wait.left(_EMBEDDED_EXIT_TIMEOUT if embedded else EXIT_TIMEOUT)
        if process is not None and not is_readable([process], most):
            why = "other code started its event loop" if embedded else f"it has not exited within {most:g} s"
            error = f"the program has stopped, but its process (pid {client.program.pid}) is still running: {why}"
            return _report(client, request, {**result, "outcome": "failed", "error": error})
    if request.json:
        show_json(result)
    else:
        stderr_console().success(f"{client.name} has exited")
    return DONE


def _send_stop(client: Client, line: str, wait: Wait) -> tuple[dict[str, Any], bool]:
    """Return the command's result, and whether the program is stopping."""
    with client.send("/api/command", {"line": line}) as exchange:
        wait.until(exchange)
        try:
            result = _result(exchange)
        except SilentError:
            raise
        except GoneError:  # the program has already exited
            result = {"outcome": "handled", "delivery": None, "error": None, "answer": None}
    return result, result.get("outcome") == "handled" and _is_stopping(client)


def restart(request: Request) -> int:
    """Restart workers and show the progress."""
    if not request.names:  # a program's own `restart` may not need a name
        return command(request)
    client = choose(request.program)
    tree = Tree.of_program(client)
    progress = RestartProgress(tree, request.names)
    wait = Wait(client, f"restarting {progress.named}", request.timeout, tree, progress)
    with _interruptible(client), wait, client.send("/api/command", {"line": _line(request)}) as exchange:
        wait.until(exchange)
        result = _result(exchange)
    return _report(client, request, result)


def _result(exchange: Exchange) -> dict[str, Any]:
    """Return the response. Once its first bytes have arrived, the rest must follow within a timeout."""
    until = None
    if exchange.is_answered():
        exchange.set_timeout(_RESPONSE_TIMEOUT)
        until = monotonic() + _RESPONSE_TIMEOUT
    result: dict[str, Any] = decoded(exchange.body(until=until))
    return result


def _is_stopping(client: Client) -> bool:
    """Return whether the program is stopping. A `stop` command that it defines may do something else."""
    try:
        return bool(client.get("/api/state")["lifetime"]["stopping"])
    except GoneError:
        return True


@contextmanager
def _process(client: Client) -> Generator[int | None]:
    """Yield a pidfd for the process, or None on systems without pidfds.

    Without a pidfd, the process is considered to have exited when its socket is closed.
    """
    try:
        descriptor = os.pidfd_open(client.program.pid or 0)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
