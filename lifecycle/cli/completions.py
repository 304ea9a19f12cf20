"""Command line completion for bash, zsh and fish.

For each completion, the scripts call `lifecycle --candidates WORD ...`. This also completes the names of running
programs, their commands and their workers.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle.cli.output import CliError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["SCRIPTS", "candidates"]

#: The timeout, in seconds, for responses from programs.
_TIMEOUT: Final = 1.0
#: Commands of `lifecycle ctl` that take the same arguments as another command.
_LIKE: Final = {"logs": "start", "stacks": "cancel"}

#: The script for each shell. If there are no candidates, it completes file names.
SCRIPTS: Final = {
    "bash": """\
_lifecycle() {
    local IFS=$'\\n'
    COMPREPLY=($(lifecycle --candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _lifecycle lifecycle
""",
    "zsh": """\
_lifecycle() {
    local found
    found=$(lifecycle --candidates "${(@)words[2,CURRENT]}" 2>/dev/null)
    if [[ -n $found ]]; then compadd -- "${(@f)found}"; else _files; fi
}
compdef _lifecycle lifecycle
""",
    "fish": """\
complete -c lifecycle -a '(lifecycle --candidates (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def candidates(words: Sequence[str]) -> list[str]:
    """Return any completions for the last word in ``words``, which contains the words after `lifecycle`."""
    *given, typed = words or [""]
    if "--" in given:
        return []
    with suppress(CliError, OSError):
        return sorted({each for each in _found(given, typed) if each.startswith(typed) and each.isprintable()})
    return []


def _found(given: list[str], typed: str) -> Iterable[str]:
    if given[:1] == ["ctl"]:
        return _found_for_ctl(given[1:], typed)
    from lifecycle.cli.app import build_parser

    parser: argparse.ArgumentParser | None = build_parser(*given[:1])
    for word in given:
        parser = _subparsers(parser).get(word, parser)
    return _options(parser) if typed.startswith("-") else _subparsers(parser)


def _found_for_ctl(given: list[str], typed: str) -> Iterable[str]:
    from lifecycle.cli.ctl.commands import COMMANDS, build_parser

    if given[-1:] in (["-p"], ["--program"]):
        from lifecycle.observe.sockets import find

        return [each.name for each in find()]
    program = given[1] if given[:1] in (["-p"], ["--program"]) else None
    rest = given[2:] if program is not None else given
    if not rest:
        return [*COMMANDS, "-p", "--program", "--help", *_commands_of(program)]
    if typed.startswith("-") and rest[0] in COMMANDS:
        return _options(build_parser(argparse.ArgumentParser, rest[0]))
    line = " ".join([_LIKE.get(rest[0], rest[0]), *rest[1:], typed])
    return [str(each) for each in _query(program, "/api/complete", line=line)]


def _commands_of(program: str | None) -> list[str]:
    with suppress(CliError):
        return [str(each["name"]) for each in _query(program, "/api/commands")]
    return []


def _query(program: str | None, target: str, **query: str) -> Any:
    from urllib.parse import urlencode

    from lifecycle.cli.ctl.client import Exchange, choose, decoded

    with Exchange(choose(program).program, f"{target}?{urlencode(query)}", timeout=_TIMEOUT) as exchange:
        return decoded(exchange.body(until=monotonic() + _TIMEOUT))


def _options(parser: argparse.ArgumentParser | None) -> list[str]:
    return [] if parser is None else [option for action in _actions(parser) for option in action.option_strings]


def _subparsers(parser: argparse.ArgumentParser | None) -> dict[str, argparse.ArgumentParser]:
    for action in () if parser is None else _actions(parser):
        if action.nargs == argparse.PARSER:
            return cast("dict[str, argparse.ArgumentParser]", action.choices)
    return {}


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # argparse offers no other way
