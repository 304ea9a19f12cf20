"""`lifecycle ctl ps`: which programs there are that can be asked."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.ctl.clients import NoProgramError
from lifecycle.cli.ctl.exchanges import Exchange, GoneError, decoded
from lifecycle.cli.ctl.printing import Sheet, show, show_json
from lifecycle.cli.failures import DONE, CliError
from lifecycle.cli.listing import ago
from lifecycle.cli.messages import voice

if TYPE_CHECKING:
    from lifecycle.cli.ctl.verbs import Request
    from lifecycle.observe.sockets import Program

__all__ = ["ps"]

#: Seconds after which those that have not answered are shown as that.
_PATIENCE: Final = 5.0
#: Bytes of an answer: a description of a program has some hundred.
_LARGEST: Final = 64 * 1024
#: No program started later, in seconds since 1970.
_LATEST: Final = 1e11


def ps(request: Request) -> int:
    """List them."""
    from lifecycle.observe.sockets import find

    programs = find(request.program)
    if request.program is not None and not programs:
        raise NoProgramError(f"no program called {request.program!r} runs here")
    answers = _asked(programs)
    if request.json:
        show_json([{**answer, "name": each.name, "path": str(each.path)} for each, answer in answers])
    elif answers:
        show(Sheet(("name", "pid", "since"), [_row(each, answer) for each, answer in answers]))
    else:
        voice().say("no program runs here that could be asked")
    return DONE


def _asked(programs: list[Program]) -> list[tuple[Program, dict[str, Any]]]:
    """What each says of itself; all are asked before the first answer is waited for."""
    until = monotonic() + _PATIENCE
    with ExitStack() as open_ones:
        exchanges: list[tuple[Program, Exchange]] = []
        for program in programs:
            try:
                exchange = Exchange(program, "/api/program", timeout=_PATIENCE)
            except GoneError:
                continue  # it has ended meanwhile
            exchanges.append((program, open_ones.enter_context(exchange)))
        return [(program, _answer(exchange, until)) for program, exchange in exchanges]


def _answer(exchange: Exchange, until: float) -> dict[str, Any]:
    exchange.wait_for(max(0.0, until - monotonic()))
    try:
        answer: Any = decoded(exchange.body(until=until, most=_LARGEST))
    except CliError as error:
        return {"error": str(error)}
    if not isinstance(answer, dict):
        return {"error": "it answered what is no description of a program"}
    fields: dict[str, Any] = answer  # pyright: ignore[reportUnknownVariableType]  # of JSON
    return {name: value for name, value in fields.items() if not isinstance(value, (dict, list))}


def _row(program: Program, answer: dict[str, Any]) -> tuple[str, ...]:
    pid = program.pid or answer.get("pid")
    if "error" in answer:
        return program.name, str(pid or ""), "no answer"
    since = answer.get("started_at")
    return program.name, str(pid), ago(since) if isinstance(since, (int, float)) and 0 < since < _LATEST else ""
