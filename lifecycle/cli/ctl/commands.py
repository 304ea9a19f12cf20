"""The commands of `lifecycle ctl`, with their arguments and the functions that implement them.

Any other word is sent to the program as one of its own commands.
"""

from __future__ import annotations

import argparse
import importlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle._text import printable
from lifecycle._util import error_text
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "Request", "add_ctl", "build_parser"]

#: Exceptions raised when a response contains unexpected fields or values.
_MISREAD: Final = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)

#: An argument's name and its options for `argparse`.
_Argument: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed `lifecycle ctl` command line."""

    #: The program's name, if given.
    program: str | None
    #: The name in `COMMANDS`, or an empty string for the program's own command.
    command: str
    #: The command and its arguments, as typed.
    words: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def json(self) -> bool:
        """True if the result is printed as JSON."""
        return bool(self.arguments.get("json"))

    @property
    def plain_words(self) -> tuple[str, ...]:
        """The command and its arguments, without the options of `lifecycle ctl`."""
        if not self.command:
            return self.words
        given = (self.arguments.get(name) for name in ("name", "topic", "data"))
        return (self.command, *self.names, *(each for each in given if each is not None))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of workers."""
        return tuple(self.arguments.get("names") or ())

    @property
    def doing(self) -> str:
        """The command, as shown in messages."""
        return printable(" ".join(self.plain_words))

    @property
    def timeout(self) -> float | None:
        """The maximum number of seconds to wait for the result. None means no limit."""
        timeout: float | None = self.arguments.get("timeout")
        return timeout


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, with its help, the module and function that implement it, and its arguments."""

    help: str
    function: str
    arguments: tuple[_Argument, ...] = ()
    #: The arguments in the example shown by --help.
    example: str = ""

    def run(self, request: Request) -> int:
        """Run the command, and return the exit status."""
        module, _, function = self.function.partition(".")
        carry_out: Callable[[Request], int] = getattr(importlib.import_module(f"lifecycle.cli.ctl.{module}"), function)
        return carry_out(request)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"the timeout must be a positive number of seconds, got {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"the number of lines must be 1 or more, got {text!r}")
    return int(text)


_TIMEOUT: Final[_Argument] = (
    "--timeout",
    {"metavar": "SECONDS", "type": _seconds, "help": "stop waiting after this time; the program continues"},
)
_JSON: Final[_Argument] = ("--json", {"action": "store_true", "help": "print JSON"})


def _argument(name: str, help: str, **options: Any) -> _Argument:  # noqa: A002  # as argparse calls it
    return (name, {"metavar": name.upper(), "help": help, **options})


def _names(help: str) -> _Argument:  # noqa: A002  # as argparse calls it
    return ("names", {"metavar": "NAME", "nargs": "*", "help": help})


_LINES: Final[_Argument] = (
    "-n",
    {
        "dest": "lines",
        "metavar": "LINES",
        "type": _count,
        "default": 100,
        "help": "show at most this many lines, up to 500 [default: 100]",
    },
)


def _built_in(help: str, *arguments: _Argument, example: str = "") -> _Command:  # noqa: A002  # as argparse calls it
    """Return a command that is built into every program."""
    return _Command(help, "actions.command", (*arguments, _TIMEOUT, _JSON), example)


COMMANDS: Final = {
    "ps": _Command("list the programs that can be controlled", "queries.ps", (_JSON,)),
    "status": _Command(
        "show the components of the program and their states",
        "status.status",
        (("--watch", {"action": "store_true", "help": "keep running, and show changes"}), _JSON),
        "--watch",
    ),
    "logs": _Command(
        "show the last lines of processes",
        "queries.logs",
        (
            _names("show the processes with these names or paths [default: all]"),
            _LINES,
            ("-f", {"dest": "follow", "action": "store_true", "help": "keep running, and show new lines"}),
            _JSON,
        ),
        "-f web",
    ),
    "tail": _Command(
        "show the last 10 events, then new events, with their results",
        "queries.tail",
        (
            _argument("pattern", "show only matching topics, such as 'file/**' [default: **]", nargs="?", default="**"),
            _JSON,
        ),
        "'deploy/**'",
    ),
    "routes": _Command("list the handlers with their patterns and counts", "queries.routes", (_JSON,)),
    "explain": _Command(
        "explain which handlers receive events with a topic, or why none does",
        "queries.explain",
        (_argument("topic", "explain events with this topic"), _JSON),
        "file/modified",
    ),
    "trace": _Command(
        "show an event with its causes and results",
        "queries.trace",
        (_argument("id", "show the event with this number, as printed by tail"), _JSON),
        "17",
    ),
    "diagram": _Command(
        "draw the program as a Mermaid diagram",
        "queries.diagram",
        (
            _argument(
                "of",
                "draw the worker with this name or path, the flow with this ID, lifetime, or system [default: system]",
                nargs="?",
                default="system",
            ),
        ),
        "root/web",
    ),
    "tasks": _Command("list the asyncio tasks, with their ages and where each is waiting", "queries.tasks", (_JSON,)),
    "stacks": _Command(
        "show the stacks of all threads and tasks",
        "queries.stacks",
        (_argument("task", "show only the task with this name or ID", nargs="?"),),
        "poll",
    ),
    "commands": _Command("list the commands of the program", "queries.commands", (_JSON,)),
    "emit": _Command(
        "send an event to the program, and wait for the result",
        "actions.emit",
        (
            _argument("topic", "set the topic of the event"),
            _argument("data", "set the data of the event, as JSON [default: null]", nargs="?", default=None),
            _TIMEOUT,
            _JSON,
        ),
        """deploy/start '{"version": 2}'""",
    ),
    "suspend": _built_in("suspend the program; it keeps its state"),
    "resume": _built_in("resume a suspended program"),
    "reload": _built_in("reload the configuration of the program"),
    "restart": _Command(
        "restart workers, or the workers of a pool one at a time",
        "actions.restart",
        (_names("restart the workers or pools with these names or paths, or all"), _TIMEOUT, _JSON),
        "web worker",
    ),
    "hold": _built_in(
        "hold the events of a source", _argument("name", "hold this source", nargs="?"), example="ticker"
    ),
    "release": _built_in(
        "release the events of a held source", _argument("name", "release this source", nargs="?"), example="ticker"
    ),
    "start": _built_in(
        "start stopped workers", _names("start the workers with these names or paths, or all"), example="web"
    ),
    "stop": _Command(
        "stop the program and wait until its process has exited, or stop workers",
        "actions.stop",
        (_names("stop only the workers with these names or paths, or all workers"), _TIMEOUT, _JSON),
    ),
    "scale": _built_in(
        "change the number of copies of a process of lifecycle up",
        _argument("name", "run N copies of the process NAME", metavar="NAME=N", nargs="?"),
        example="web=3",
    ),
    "terminate": _Command("suspend the program to save its state, then stop it", "actions.stop", (_TIMEOUT, _JSON)),
    "cancel": _built_in(
        "cancel an asyncio task", _argument("name", "cancel the task with this name or ID", nargs="?"), example="poll"
    ),
    "attach": _Command("open the prompt of the program; Ctrl+D leaves it", "attach.attach"),
    "console": _Command("open a Python prompt in the program, if it allows this", "console.console"),
}

#: The commands in the order shown by --help.
_GROUPS: Final = {
    "look": ("ps", "status", "routes", "explain", "diagram", "tasks", "stacks", "logs", "commands"),
    "control": (
        *("suspend", "resume", "reload", "start", "restart", "stop", "scale", "terminate", "cancel"),
        *("attach", "console"),
    ),
    "events": ("tail", "trace", "emit", "hold", "release"),
}

_EPILOG: Final = """\
Any other word is sent to the program as one of its own commands. To send a
command whose name is listed above, write it after --.

examples:
  lifecycle ctl status --watch
  lifecycle ctl -p shop deploy prod
  lifecycle ctl -- status

exit status:
  0  success, or tail or --watch was interrupted
  1  failed or rejected, or the program exited
  2  usage error, or several programs match and -p is missing
  4  program not found

environment:
  NO_COLOR         print without colours
  XDG_RUNTIME_DIR  look for programs in its lifecycle subdirectory
"""


def add_ctl(commands: Any) -> None:
    """Add `lifecycle ctl` to ``commands``."""
    width = max(map(len, COMMANDS))
    listed = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {COMMANDS[name].help}" for name in names)])
        for title, names in _GROUPS.items()
    )
    parser = commands.add_parser(
        "ctl",
        usage="lifecycle ctl [-p NAME] COMMAND ...",
        help="query and control a running program",
        description="Query and control a running program.",
        epilog=f"{listed}\n\n{_EPILOG}",
    )
    parser.intermixes = False  # words after the command are its arguments
    parser.set_defaults(main=_ctl, request=None)
    parser.add_argument(
        "-p",
        "--program",
        metavar="NAME",
        help="select the program [default: the only one, or the one in this directory]",
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, action=_ParseRequest, metavar="COMMAND ...", help=argparse.SUPPRESS
    )


def build_parser(parser_class: type[argparse.ArgumentParser], name: str) -> argparse.ArgumentParser:
    """Return the parser for the arguments of the command ``name``."""
    command = COMMANDS[name]
    description = f"{command.help[0].upper()}{command.help[1:]}."
    epilog = f"example:\n  lifecycle ctl {name} {command.example}".rstrip() + "\n"
    parser = parser_class(prog=f"lifecycle ctl {name}", description=description, epilog=epilog, allow_abbrev=False)
    for argument, options in command.arguments:
        parser.add_argument(argument, **options)
    return parser


class _ParseRequest(argparse.Action):
    """An action that parses the command and its arguments."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        if values:
            namespace.request = _parse(type(parser), namespace.program, tuple(values))


def _parse(parser_class: type[argparse.ArgumentParser], program: str | None, words: Sequence[str]) -> Request:
    name = words[0]
    if name not in COMMANDS:
        return Request(program, "", tuple(words))
    return Request(program, name, tuple(words), vars(build_parser(parser_class, name).parse_args(words[1:])))


def _ctl(arguments: Any) -> int:
    request: Request | None = arguments.request
    # Words after ``--`` are sent to the program as one of its own commands.
    rest: tuple[str, ...] = arguments.command
    if request is None:
        if not rest:
            raise UsageError("lifecycle ctl needs a command, such as status; `lifecycle ctl --help` lists them")
        request = Request(arguments.program, "", rest)
    elif rest:
        if request.command:
            raise UsageError(f"lifecycle ctl {request.command} takes no arguments after --")
        request = Request(request.program, "", (*request.words, "--", *rest))
    try:
        return _run(request)
    except CliError as error:
        if request.json:
            from lifecycle.cli.ctl.printing import show_json

            show_json({"error": str(error)}, line=True)
        raise


def _run(request: Request) -> int:
    command = COMMANDS[request.command] if request.command else _built_in("")
    try:
        return command.run(request)
    except _MISREAD as error:
        raise CliError(
            f"the program's response has an unexpected format ({printable(error_text(error))}); "
            "does the program use the same version of this library?"
        ) from error
