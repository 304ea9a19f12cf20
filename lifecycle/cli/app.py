"""The command lines: what can be typed, and which module carries it out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lifecycle.cli.ctl.commands import add_ctl
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.cli.options import Option

__all__ = ["CommandParser", "parse"]

_EPILOG = """\
examples:
  lifecycle watch -- python app.py
  lifecycle watch src --ext py,html --on '*.html=reload' -- gunicorn app:app
  lifecycle watch --webhook 127.0.0.1:9000 --secret-env WEBHOOK_SECRET -- python app.py
  lifecycle up
  lifecycle run app:main
  lifecycle ctl status --watch
  lifecycle webhook send http://127.0.0.1:9000/deploy --scheme github --secret-env WEBHOOK_SECRET

exit codes: 0 done or stopped on request, 1 failure or forced, 2 usage, 3 bad configuration;
of up, the code of the process that failed first; of ctl, 4 for no such program
"""

#: The names of the signatures that `webhook send` can make.
_SCHEMES = ("github", "standard", "stripe", "slack", "gitlab", "hmac")

#: The options that only the last of them has.
_HMAC = {
    "header": "the header that the signature goes into",
    "algorithm": "the digest, such as sha512 (sha256)",
    "encoding": "hex or base64 (hex)",
    "prefix": "what stands before the signature (nothing)",
}


class Arguments(argparse.Namespace):
    """What was typed: ``main`` carries out the subcommand."""

    main: Callable[[Arguments], int]
    command: tuple[str, ...]
    #: What runs beside the command of `watch`.
    beside: tuple[object, ...] = ()


def parse(argv: Sequence[str]) -> Arguments:
    """Read the command line; what follows ``--`` is the command of `watch`, and never an option.

    Raises:
        SystemExit: with 0 after ``--help`` or ``--version``, with 2 for what cannot be understood.
    """
    ours, command = _split(argv)
    return _parser(*ours[:1]).parse_args(ours, Arguments(command=command))


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    if "--" not in argv:
        return list(argv), ()
    at = list(argv).index("--")
    return list(argv[:at]), tuple(argv[at + 1 :])


def _parser(first: str = "") -> argparse.ArgumentParser:
    """For the command ``first``; for any, where there is none of that name."""
    parser = argparse.ArgumentParser(
        prog="lifecycle",
        description="Run programs that react: restart on changes, stop cleanly.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    adding = {
        "watch": _add_watch,
        "up": _add_up,
        "run": _add_run,
        "ctl": add_ctl,
        "webhook": _add_webhook,
        "inbox": add_inbox,
        "flows": add_flows,
    }
    # All of them take longer than many a command, and only the help has to know them all.
    for add in [adding[first]] if first in adding else adding.values():
        add(commands)
    return parser


def _add_watch(commands: Any) -> None:
    """The options of the table, and the paths."""
    from lifecycle.cli import options
    from lifecycle.cli.watch.settings import OPTIONS

    parser = commands.add_parser(
        "watch",
        usage="lifecycle watch [PATH ...] [options] -- COMMAND ...",
        help="restart a command when files change",
        description="Run COMMAND and restart it when files below PATH (here) change. "
        "The same options can stand in pyproject.toml under [tool.lifecycle.watch].",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_watch)
    parser.add_argument(
        "paths",
        nargs="*",
        type=typed(options.path),
        action=_Collect,
        metavar="PATH",
        help="files and directories to watch",
    )
    for option in OPTIONS:
        _add_option(parser, option)


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    """Add an option with a value, or both forms of a flag, of which the help shows the one that changes the default."""
    if option.is_flag:
        for name, value in ((option.name, True), (f"no-{option.name}", False)):
            shown = option.help if name == option.shown else argparse.SUPPRESS
            parser.add_argument(f"--{name}", dest=option.field, action="store_const", const=value, help=shown)
        return
    action = _Collect if option.many else "store"
    parser.add_argument(
        f"--{option.name}", metavar=option.metavar, help=option.described, type=typed(option.read), action=action
    )


def _add_up(commands: Any) -> None:
    from lifecycle.cli import options

    parser = commands.add_parser(
        "up",
        usage="lifecycle up [-f FILE] [--log-dir DIR] [--log-format FORMAT] [NAME ...]",
        help="run the processes of a Procfile, or of tables in a TOML file",
        description="Run the processes of FILE, or those called NAME, and stop them together. Without -f: the "
        "Procfile, else lifecycle.toml with [up.NAME], else pyproject.toml with [tool.lifecycle.up.NAME].",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_up)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these processes")
    parser.add_argument(
        "-f", "--file", type=typed(options.path), metavar="FILE", help="a Procfile, or what ends in .toml"
    )
    parser.add_argument(
        "--log-dir", type=typed(options.path), metavar="DIR", help="write the lines of each to DIR/NAME.log as well"
    )
    _add_log_format(parser)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a program of this library: an async function, a router, a worker",
        description="Import MODULE and give ATTRIBUTE to lifecycle.run.",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_run)
    parser.add_argument("target", metavar="MODULE:ATTRIBUTE", help="such as app:main or shop.app:router")
    parser.add_argument("--factory", action="store_true", help="ATTRIBUTE is a function that returns what to run")
    _add_log_format(parser)


def _add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add the option that `watch` declares with its settings."""
    from lifecycle.cli.options import LOG_FORMAT

    _add_option(parser, LOG_FORMAT)


def _add_webhook(commands: Any) -> None:
    from lifecycle.cli import options

    described = "try a webhook out, as its sender would"
    parser = commands.add_parser("webhook", help=described, description=described, allow_abbrev=False)
    parser.intermixes = False  # argparse cannot, where commands follow
    parser = parser.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "send",
        help="sign a request, post it and show the answer",
        description="Sign the data, post it to URL and print the answer. The exit code is 0 for a status of 2xx.",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_webhook_send)
    parser.add_argument("url", metavar="URL", help="such as http://127.0.0.1:9000/deploy")
    parser.add_argument("--scheme", required=True, choices=_SCHEMES, help="how the receiver verifies")
    parser.add_argument(
        "--secret-env", required=True, type=typed(options.variable), metavar="NAME", help="the variable with the secret"
    )
    parser.add_argument(
        "--data", default="", metavar="TEXT", help="the body; @FILE is what a file holds, @- is standard input"
    )
    for name, described in _HMAC.items():
        parser.add_argument(f"--{name}", help=f"of hmac: {described}")


def _watch(arguments: Arguments) -> int:
    from lifecycle.cli.watch.run import watch

    return watch(vars(arguments))


def _up(arguments: Arguments) -> int:
    from lifecycle.cli.up.run import up

    if arguments.command:
        raise UsageError(f"lifecycle up takes no command; write {' '.join(arguments.command)!r} into a Procfile")
    return up(arguments.file, arguments.names, arguments.log_dir, log_format=arguments.log_format)


def _run(arguments: Arguments) -> int:
    from lifecycle.cli.run import run_target

    if arguments.command:
        raise UsageError(
            f"lifecycle run takes no command; {' '.join(arguments.command)!r} would be for lifecycle watch"
        )
    return run_target(arguments.target, factory=arguments.factory, log_format=arguments.log_format)


def _webhook_send(arguments: Arguments) -> int:
    from lifecycle.cli.webhook import send

    if arguments.command:
        raise UsageError(f"lifecycle webhook send takes no command; give {' '.join(arguments.command)!r} as --data")
    given = vars(arguments)
    options = {name: given[name] for name in _HMAC if given[name] is not None}
    return send(
        arguments.url, scheme=arguments.scheme, secret_env=arguments.secret_env, data=arguments.data, options=options
    )


class _Collect(argparse.Action):
    """Joins what is given into one tuple."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), *values))


class _Version(argparse.Action):
    """Looks up the version, which takes a while, when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        from lifecycle.cli.output import print_result, stderr_console

        try:
            found = version("lifecycle-control")
        except PackageNotFoundError:
            found = "unknown (lifecycle-control is not installed; this is a copy of its source)"
        try:
            print_result(sys.stdout, f"lifecycle {found}\n")
        except CliError as error:
            stderr_console().error(str(error))
            parser.exit(error.status)
        parser.exit(0)


class CommandParser(argparse.ArgumentParser):
    """Takes names on both sides of an option, and answers itself for options that it does not know."""

    #: Whether it does the former.
    intermixes: bool = True
    #: The long options.
    _known: tuple[str, ...] = ()

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # pyright: ignore[reportIncompatibleMethodOverride]  # argparse has no better names
        """As in argparse."""
        self._known += tuple(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # its overloads
        """As in argparse, but for what is unknown."""
        if not self.intermixes:
            return super().parse_known_args(args, namespace)
        self.intermixes = False  # what follows comes back here
        arguments, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self.error(f"unknown: {' '.join(unknown)}{self._meant(unknown[0])}")
        return arguments, unknown

    def _meant(self, unknown: str) -> str:
        import difflib

        close = difflib.get_close_matches(unknown.partition("=")[0], self._known, 1)
        return f"; did you mean {close[0]}?" if close else ""


def typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader whose `ValueError` argparse shows as it is."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return typed


def add_inbox(commands: Any) -> None:
    """Add `lifecycle inbox` to ``commands``."""
    parser, verbs = _group(commands, "inbox", "look into the inbox of a webhook source, and at its dead letters")
    for verb, told in (
        ("list", "what waits, is being delivered, or is dead"),
        ("show", "all that is known of some letters"),
        ("replay", "deliver some again, now and with new attempts"),
        ("drop", "remove some"),
    ):
        each = _verb(verbs, verb, told, file_of="Inbox")
        if verb != "list":
            each.add_argument("letters", nargs="+", metavar="ID", help="their numbers, or: dead, for all dead letters")
    parser.set_defaults(main=_inbox, letters=())


def add_flows(commands: Any) -> None:
    """Add `lifecycle flows` to ``commands``."""
    described = "look into a file of flows, and ask for them what its programs can be asked"
    parser, verbs = _group(commands, "flows", described)
    for verb, told in (
        ("list", "the flows, their states, and who runs them"),
        ("show", "all that is known of some flows"),
        ("diagram", "one flow with its tasks, as text for Mermaid"),
        ("suspend", "have who runs them begin nothing more"),
        ("resume", "have who suspended them go on"),
        ("retry", "begin anew with what failed, when its program starts"),
        ("dead", "list the dead letters: jobs and sent events that were given up"),
        ("replay", "deliver sent events that are dead letters again"),
        ("drop", "remove sent events that are dead letters"),
    ):
        each = _verb(verbs, verb, told, file_of="Flows", servers=True)
        if verb in ("replay", "drop"):
            each.add_argument("ids", nargs="+", metavar="ID", help="their ids, or: dead, for all of them")
        elif verb != "dead":
            each.add_argument("ids", nargs="*", metavar="ID", help="only these flows")
        if verb in ("list", "show", "dead"):
            each.add_argument("--json", action="store_true", help="for programs")
        if verb == "diagram":
            each.add_argument("--flow", metavar="MODULE:ATTRIBUTE", help="how it is built, such as app:deploy")
    parser.set_defaults(main=_flows, ids=(), json=False, flow=None)


def _group(commands: Any, name: str, described: str) -> tuple[Any, Any]:
    """Add a command that consists of others, and what these are added to."""
    parser = commands.add_parser(name, help=described, description=described, allow_abbrev=False)
    parser.intermixes = False  # argparse cannot, where commands follow
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")


def _verb(verbs: Any, verb: str, told: str, *, file_of: str, servers: bool = False) -> Any:
    """Add one of them, which begins with the file that a ``file_of`` writes; ``servers`` are taken too."""
    from lifecycle.cli import options

    each = verbs.add_parser(verb, help=told, description=told, allow_abbrev=False)
    place = "file, or the URL of the server," if servers else "file"
    kind = options.store if servers else options.path
    each.add_argument("file", type=typed(kind), metavar="FILE", help=f"the {place} that {file_of}(…) was given")
    return each


def _inbox(arguments: argparse.Namespace) -> int:
    from lifecycle.cli.inbox import inbox

    _take_no_command(arguments, "inbox")
    return inbox(arguments.verb, arguments.file, arguments.letters)


def _flows(arguments: argparse.Namespace) -> int:
    from lifecycle.cli.flows import flows

    _take_no_command(arguments, "flows")
    return flows(arguments.verb, arguments.file, arguments.ids, json=arguments.json, flow=arguments.flow)


def _take_no_command(arguments: argparse.Namespace, name: str) -> None:
    if arguments.command:
        raise UsageError(f"lifecycle {name} takes no command after --")
