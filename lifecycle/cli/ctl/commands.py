"""The commands of `lifecycle ctl`: their arguments, and the functions that carry them out.

Any other word is sent to the program as one of its own commands.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle._text import printable
from lifecycle._util import error_text
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "Request", "add_ctl"]

#: Raised when an answer has other fields or values than those of a program of this library.
_MISREAD: Final = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)

#: The name of an argument, and what `argparse` needs to know of it.
_Argument: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """A command line of `lifecycle ctl`."""

    #: The name of the program, if one was given.
    program: str | None
    #: The name in `COMMANDS`; empty for a command of the program itself.
    command: str
    #: The command and its arguments, as typed.
    words: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def json(self) -> bool:
        """Whether to print JSON."""
        return bool(self.arguments.get("json"))


@dataclass(frozen=True, slots=True)
class _Command:
    """A command: its help, the module and the function that carry it out, and its arguments."""

    help: str
    function: str
    arguments: tuple[_Argument, ...] = ()

    def run(self, request: Request) -> int:
        """Carry it out."""
        module, _, function = self.function.partition(".")
        carry_out: Callable[[Request], int] = getattr(importlib.import_module(f"lifecycle.cli.ctl.{module}"), function)
        return carry_out(request)


_JSON: Final[_Argument] = ("--json", {"action": "store_true", "help": "print JSON"})


def _argument(name: str, help: str, **options: Any) -> _Argument:  # noqa: A002  # as argparse calls it
    return (name, {"metavar": name.upper(), "help": help, **options})


def _built_in(help: str, *arguments: _Argument) -> _Command:  # noqa: A002  # as argparse calls it
    """A command that every program has."""
    return _Command(help, "actions.command", (*arguments, _JSON))


COMMANDS: Final = {
    "ps": _Command("list the programs that can be controlled", "queries.ps", (_JSON,)),
    "status": _Command(
        "show the components of the program and their states",
        "status.status",
        (_JSON, ("--watch", {"action": "store_true", "help": "continue, and show changes"})),
    ),
    "tail": _Command(
        "show the events as they come, and the result of each",
        "queries.tail",
        (_argument("pattern", "only these topics, such as 'file/**'", nargs="?", default="**"), _JSON),
    ),
    "routes": _Command("list the handlers and their patterns", "queries.routes", (_JSON,)),
    "explain": _Command(
        "explain which handlers get an event of a topic, or why none does",
        "queries.explain",
        (_argument("topic", "such as file/modified"), _JSON),
    ),
    "trace": _Command(
        "show an event, its causes and its results", "queries.trace", (_argument("id", "as tail shows it"), _JSON)
    ),
    "diagram": _Command(
        "draw the program as a Mermaid diagram",
        "queries.diagram",
        (_argument("of", "system, lifetime, a worker or a flow [default: system]", nargs="?", default="system"),),
    ),
    "dump": _Command("show the stacks of all threads and tasks", "queries.dump"),
    "commands": _Command("list the commands of the program", "queries.commands", (_JSON,)),
    "emit": _Command(
        "send an event into the program",
        "actions.emit",
        (
            _argument("topic", "such as deploy/start"),
            _argument("data", "its data, as JSON", nargs="?", default=None),
            _JSON,
        ),
    ),
    "suspend": _built_in("suspend: keep state, accept no new work"),
    "resume": _built_in("continue after a suspension"),
    "reload": _built_in("read the configuration again"),
    "restart": _Command(
        "restart a worker, or the members of a pool one after the other",
        "actions.restart",
        (_argument("name", "its name, or the path to it", nargs="?"), _JSON),
    ),
    "hold": _built_in("hold the events of a source", _argument("name", "the source", nargs="?")),
    "release": _built_in("release a source that is held", _argument("name", "the source", nargs="?")),
    "stop": _Command("stop the program, and wait until it has ended", "actions.stop", (_JSON,)),
    "terminate": _Command("suspend, so that state is saved, and stop", "actions.stop", (_JSON,)),
    "attach": _Command("open the prompt of the program; Ctrl+D leaves it running", "attach.attach"),
}

_EPILOG: Final = """\
Any other word is sent to the program as one of its commands: lifecycle ctl deploy prod.
So is one of these words after --, if the program has a command of that name: lifecycle ctl -- status.

exit codes: 0 done, 1 it failed or was refused, 2 usage, 4 no such program
"""


def add_ctl(commands: Any) -> None:
    """Add `lifecycle ctl` to ``commands``."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = commands.add_parser(
        "ctl",
        usage="lifecycle ctl [-p NAME] COMMAND ...",
        help="query and control a running program",
        description="Query and control a running program.",
        epilog=f"commands:\n{listed}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.intermixes = False  # the words after the command are its arguments
    parser.set_defaults(main=_ctl, request=None)
    parser.add_argument("-p", "--program", metavar="NAME", help="the program, if several run; see ps")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, action=_ParseRequest, metavar="COMMAND ...", help=argparse.SUPPRESS
    )


class _ParseRequest(argparse.Action):
    """Parses the command and its arguments."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        if values:
            namespace.request = _parse(type(parser), namespace.program, tuple(values))


def _parse(parser_class: type[argparse.ArgumentParser], program: str | None, words: Sequence[str]) -> Request:
    name = words[0]
    command = COMMANDS.get(name)
    if command is None:
        return Request(program, "", tuple(words))
    description = f"{command.help[0].upper()}{command.help[1:]}."
    parser = parser_class(prog=f"lifecycle ctl {name}", description=description, allow_abbrev=False)
    for argument, options in command.arguments:
        parser.add_argument(argument, **options)
    return Request(program, name, tuple(words), vars(parser.parse_args(words[1:])))


def _ctl(arguments: Any) -> int:
    request: Request | None = arguments.request
    # Words after ``--`` belong to a command of the program.
    rest: tuple[str, ...] = arguments.command
    if request is None:
        if not rest:
            raise UsageError("lifecycle ctl needs a command, such as status; `lifecycle ctl --help` lists them")
        request = Request(arguments.program, "", rest)
    elif rest:
        if request.command:
            raise UsageError(f"lifecycle ctl {request.command} takes nothing after --")
        request = Request(request.program, "", (*request.words, "--", *rest))
    command = COMMANDS[request.command] if request.command else _built_in("")
    try:
        return command.run(request)
    except _MISREAD as error:
        raise CliError(
            f"the program answered JSON of an unexpected form ({printable(error_text(error))}); "
            "is it a program of this library, and of the same version?"
        ) from error
