"""What can stand after `lifecycle ctl`: its own words with what they take, and any word of the program itself."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lifecycle._util import error_text
from lifecycle.cli.output import CliError, UsageError, harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["VERBS", "Request", "add_ctl"]

#: Raised where an answer is read that has other fields or other values than those of a program of this library.
_MISREAD: Final = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
_JSON: Final = (("--json", {"action": "store_true", "help": "for programs"}),)


@dataclass(frozen=True, slots=True)
class Verb:
    """One word: the module and the function that carry it out, and what may follow."""

    told: str
    module: str
    function: str
    takes: tuple[tuple[str, dict[str, Any]], ...] = ()

    def run(self, request: Request) -> int:
        """Carry it out."""
        module = importlib.import_module(f"lifecycle.cli.ctl.{self.module}")
        carry_out: Callable[[Request], int] = getattr(module, self.function)
        return carry_out(request)


@dataclass(frozen=True, slots=True)
class Request:
    """What was typed."""

    #: The name of the program, if one was given.
    program: str | None
    verb: str
    #: The words for the program itself.
    words: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def json(self) -> bool:
        """Whether the answer is for a program."""
        return bool(self.given.get("json"))


def _one(name: str, told: str, **how: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    return ((name, {"metavar": name.upper(), "help": told, **how}),)


def _command(told: str, *takes: tuple[str, dict[str, Any]]) -> Verb:
    return Verb(told, "actions", "command", (*takes, *_JSON))


VERBS: Final = {
    "ps": Verb("the programs that can be asked", "queries", "ps", _JSON),
    "status": Verb(
        "what lives in the program, and how it does",
        "status",
        "status",
        (*_JSON, ("--watch", {"action": "store_true", "help": "go on, and show what changes"})),
    ),
    "tail": Verb(
        "the events as they come, and what became of each",
        "queries",
        "tail",
        (*_one("pattern", "only these topics, such as 'file/**'", nargs="?", default="**"), *_JSON),
    ),
    "routes": Verb("which handlers there are, and for what", "queries", "routes", _JSON),
    "explain": Verb(
        "why nothing happens for a topic",
        "queries",
        "explain",
        (*_one("topic", "such as file/modified"), *_JSON),
    ),
    "trace": Verb(
        "an event, what led to it, and what came of it",
        "queries",
        "trace",
        (*_one("id", "as tail shows it"), *_JSON),
    ),
    "diagram": Verb(
        "a drawing of the program, for Mermaid",
        "queries",
        "diagram",
        _one("of", "system (this is meant without), lifetime, a worker or a flow", nargs="?", default="system"),
    ),
    "dump": Verb("where each thread and each task stands", "queries", "dump"),
    "commands": Verb("the words that the program knows", "queries", "commands", _JSON),
    "emit": Verb(
        "send an event into the program",
        "actions",
        "emit",
        (
            *_one("topic", "such as deploy/start"),
            *_one("data", "what it carries, as JSON", nargs="?", default=None),
            *_JSON,
        ),
    ),
    "suspend": _command("pause: keep state, stop taking on work"),
    "resume": _command("go on after a pause"),
    "reload": _command("read the configuration again"),
    "restart": Verb(
        "start a worker anew, or the members of a pool one after the other",
        "actions",
        "restart",
        (*_one("name", "its name, or the path to it", nargs="?"), *_JSON),
    ),
    "hold": _command("let nothing of a source in", *_one("name", "the source", nargs="?")),
    "release": _command("let it in again", *_one("name", "the source", nargs="?")),
    "stop": Verb("end the program, and wait until it has ended", "actions", "stop", _JSON),
    "terminate": Verb("suspend, so that state is saved, and end", "actions", "stop", _JSON),
    "attach": Verb("a prompt of the program; Ctrl+D leaves it running", "attach", "attach"),
}

_EPILOG: Final = """\
Any other word is sent to the program as one of its commands: lifecycle ctl deploy prod.
So is one of these words after --, where the program has a command of that name: lifecycle ctl -- status.

exit codes: 0 done, 1 it failed or was refused, 2 usage, 4 no such program
"""


def add_ctl(commands: Any) -> None:
    """Add `lifecycle ctl` to ``commands``."""
    width = max(map(len, VERBS))
    listed = "\n".join(f"  {word:<{width}}  {verb.told}" for word, verb in VERBS.items())
    parser = commands.add_parser(
        "ctl",
        usage="lifecycle ctl [-p NAME] COMMAND ...",
        help="ask a running program, and tell it what to do",
        description="Ask a running program, and tell it what to do.",
        epilog=f"commands:\n{listed}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.intermixes = False  # what follows the command is the command's
    parser.set_defaults(main=_ctl, request=None)
    parser.add_argument("-p", "--program", metavar="NAME", help="which program, where several run; see ps")
    parser.add_argument("words", nargs=argparse.REMAINDER, action=_Words, metavar="COMMAND ...", help=argparse.SUPPRESS)


class _Words(argparse.Action):
    """Reads the command and what follows it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        if values:
            namespace.request = _request(type(parser), namespace.program, tuple(values))


def _request(parsers: type[argparse.ArgumentParser], program: str | None, words: Sequence[str]) -> Request:
    verb = VERBS.get(words[0])
    if verb is None:
        return Request(program, "", tuple(words))
    parser = parsers(prog=f"lifecycle ctl {words[0]}", description=_sentence(verb.told), allow_abbrev=False)
    for name, how in verb.takes:
        parser.add_argument(name, **how)
    given = vars(parser.parse_args(words[1:]))
    return Request(program, words[0], tuple(words), given)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _ctl(parsed: Any) -> int:
    request: Request | None = parsed.request
    if request is None and not parsed.command:
        raise UsageError("lifecycle ctl needs a command, such as status; `lifecycle ctl --help` lists them")
    if request is None:
        request = Request(parsed.program, "", parsed.command)
    elif parsed.command:
        request = _with_rest(request, parsed.command)
    verb = VERBS[request.verb] if request.verb else _command("")
    try:
        return verb.run(request)
    except _MISREAD as error:
        raise CliError(
            f"the program answered JSON of an unexpected form ({harmless(error_text(error))}); "
            "is it a program of this library, and of the same version?"
        ) from error


def _with_rest(request: Request, rest: tuple[str, ...]) -> Request:
    """What follows ``--`` belongs to a word of the program; none of ours takes it."""
    if request.verb:
        raise UsageError(f"lifecycle ctl {request.verb} takes nothing after --")
    return Request(request.program, "", (*request.words, "--", *rest))
