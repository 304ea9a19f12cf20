"""The command line: its commands, their arguments, and the functions that carry them out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lifecycle.cli.ctl.commands import add_ctl
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.cli.options import Option

__all__ = ["parse"]

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

#: The signatures that `webhook send` can make.
_SCHEMES = ("github", "standard", "stripe", "slack", "gitlab", "hmac")
#: Options of `hmac` alone.
_HMAC = {
    "header": "the header of the signature",
    "algorithm": "the digest, such as sha512 [default: sha256]",
    "encoding": "hex or base64 [default: hex]",
    "prefix": "a text before the signature",
}


class Arguments(argparse.Namespace):
    """A parsed command line."""

    #: Carries out the command.
    main: Callable[[Arguments], int]
    #: The words after ``--``.
    command: tuple[str, ...]
    #: The error if the command takes nothing after ``--``, with ``{}`` for that.
    no_command: str = ""
    #: Components that run with the command of `watch`.
    beside: tuple[object, ...] = ()

    def run(self) -> int:
        """Carry out the command, and return the exit status.

        Raises:
            CliError: if that fails.
        """
        if self.command and self.no_command:
            raise UsageError(self.no_command.format(repr(" ".join(self.command))))
        return self.main(self)


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a command line; what follows ``--`` is the command of `watch`, and never an option.

    Raises:
        SystemExit: with 0 after ``--help`` or ``--version``, with 2 for mistakes.
    """
    at = list(argv).index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:at]), tuple(argv[at + 1 :])
    return _parser(*ours[:1]).parse_args(ours, Arguments(command=command))


def _parser(first: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command ``first``, or of all commands."""
    parser = argparse.ArgumentParser(
        prog="lifecycle",
        description="Run programs that react: restart on changes, stop cleanly.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser)
    adding = {
        "watch": _add_watch,
        "up": _add_up,
        "run": _add_run,
        "ctl": add_ctl,
        "webhook": _add_webhook,
        "inbox": _add_inbox,
        "flows": _add_flows,
    }
    # Only the help needs all of them, which take long to build.
    for add in [adding[first]] if first in adding else adding.values():
        add(commands)
    return parser


# -- the commands --------------------------------------------------------------------------------------------------


def _add_watch(commands: Any) -> None:
    from lifecycle.cli import options
    from lifecycle.cli.watch.settings import OPTIONS

    parser = commands.add_parser(
        "watch",
        usage="lifecycle watch [PATH ...] [options] -- COMMAND ...",
        help="restart a command when files change",
        description="Run COMMAND and restart it when files below PATH (here) change. "
        "The same options can be set in pyproject.toml under [tool.lifecycle.watch].",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_watch)
    parser.add_argument(
        "paths",
        nargs="*",
        type=_typed(options.path),
        action=_Collect,
        metavar="PATH",
        help="files and directories to watch",
    )
    for option in OPTIONS:
        _add_option(parser, option)


def _watch(arguments: Arguments) -> int:
    from lifecycle.cli.watch.run import watch

    return watch(vars(arguments))


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
    parser.set_defaults(main=_up, no_command="lifecycle up takes no command; write {} into a Procfile")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these processes")
    parser.add_argument(
        "-f", "--file", type=_typed(options.path), metavar="FILE", help="a Procfile, or a file that ends in .toml"
    )
    parser.add_argument(
        "--log-dir", type=_typed(options.path), metavar="DIR", help="write the lines of each to DIR/NAME.log as well"
    )
    _add_option(parser, options.LOG_FORMAT)


def _up(arguments: Arguments) -> int:
    from lifecycle.cli.up.run import up

    return up(arguments.file, arguments.names, arguments.log_dir, log_format=arguments.log_format)


def _add_run(commands: Any) -> None:
    from lifecycle.cli import options

    parser = commands.add_parser(
        "run",
        help="run a program of this library: an async function, a router, a worker",
        description="Import MODULE and give ATTRIBUTE to lifecycle.run.",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_run, no_command="lifecycle run takes no command; {} would be for lifecycle watch")
    parser.add_argument("target", metavar="MODULE:ATTRIBUTE", help="such as app:main or shop.app:router")
    parser.add_argument("--factory", action="store_true", help="ATTRIBUTE is a function that returns what to run")
    _add_option(parser, options.LOG_FORMAT)


def _run(arguments: Arguments) -> int:
    from lifecycle.cli.run import run_target

    return run_target(arguments.target, factory=arguments.factory, log_format=arguments.log_format)


def _add_webhook(commands: Any) -> None:
    from lifecycle.cli import options

    _, subcommands = _add_group(commands, "webhook", "try out a webhook, as its sender would")
    parser = subcommands.add_parser(
        "send",
        help="sign a request, post it and show the response",
        description="Sign the data, post it to URL and print the response. The exit code is 0 for a status of 2xx.",
        allow_abbrev=False,
    )
    parser.set_defaults(main=_send, no_command="lifecycle webhook send takes no command; give {} as --data")
    parser.add_argument("url", metavar="URL", help="such as http://127.0.0.1:9000/deploy")
    parser.add_argument("--scheme", required=True, choices=_SCHEMES, help="how the receiver verifies")
    parser.add_argument(
        "--secret-env",
        required=True,
        type=_typed(options.variable),
        metavar="NAME",
        help="the variable with the secret",
    )
    parser.add_argument(
        "--data", default="", metavar="TEXT", help="the body; @FILE reads it from a file, @- from standard input"
    )
    for name, described in _HMAC.items():
        parser.add_argument(f"--{name}", help=f"of hmac: {described}")


def _send(arguments: Arguments) -> int:
    from lifecycle.cli.webhook import send

    given = vars(arguments)
    return send(
        arguments.url,
        scheme=arguments.scheme,
        secret_env=arguments.secret_env,
        data=arguments.data,
        options={name: given[name] for name in _HMAC if given[name] is not None},
    )


def _add_inbox(commands: Any) -> None:
    from lifecycle.cli import options

    group, subcommands = _add_group(commands, "inbox", "show the inbox of a webhook source, and its dead letters")
    for name, described in (
        ("list", "list the messages that wait, are being delivered, or are dead"),
        ("show", "show messages"),
        ("replay", "deliver messages again, now and with new attempts"),
        ("drop", "remove messages"),
    ):
        parser = subcommands.add_parser(name, help=described, description=described, allow_abbrev=False)
        parser.add_argument("file", type=_typed(options.path), metavar="FILE", help="the file that Inbox(…) was given")
        if name != "list":
            parser.add_argument("ids", nargs="+", metavar="ID", help="their numbers, or: dead, for all dead letters")
    group.set_defaults(main=_inbox, ids=(), no_command="lifecycle inbox takes no command after --")


def _inbox(arguments: Arguments) -> int:
    from lifecycle.cli.inbox import inbox

    return inbox(arguments.subcommand, arguments.file, arguments.ids)


def _add_flows(commands: Any) -> None:
    from lifecycle.cli import options

    group, subcommands = _add_group(commands, "flows", "show flows in a file or on a server, and control them")
    for name, described in (
        ("list", "list the flows, their states, and the processes that run them"),
        ("show", "show flows"),
        ("diagram", "draw one flow with its tasks as a Mermaid diagram"),
        ("suspend", "have the processes that run flows start no more tasks"),
        ("resume", "have the processes that suspended flows continue"),
        ("retry", "reset failed flows, which run again when their program starts"),
        ("dead", "list the dead letters: jobs and sent events that were given up"),
        ("replay", "deliver sent events that are dead letters again"),
        ("drop", "remove sent events that are dead letters"),
    ):
        parser = subcommands.add_parser(name, help=described, description=described, allow_abbrev=False)
        parser.add_argument(
            "file",
            type=_typed(options.store),
            metavar="FILE",
            help="the file, or the URL of the server, that Flows(…) was given",
        )
        if name in ("replay", "drop"):
            parser.add_argument("ids", nargs="+", metavar="ID", help="their ids, or: dead, for all of them")
        elif name != "dead":
            parser.add_argument("ids", nargs="*", metavar="ID", help="only these flows")
        if name in ("list", "show", "dead"):
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "diagram":
            parser.add_argument("--flow", metavar="MODULE:ATTRIBUTE", help="its definition, such as app:deploy")
    group.set_defaults(
        main=_flows, ids=(), json=False, flow=None, no_command="lifecycle flows takes no command after --"
    )


def _flows(arguments: Arguments) -> int:
    from lifecycle.cli.flows import flows

    return flows(arguments.subcommand, arguments.file, arguments.ids, json=arguments.json, flow=arguments.flow)


def _add_group(commands: Any, name: str, described: str) -> tuple[Any, Any]:
    """Add a command that consists of subcommands; return its parser, and what they are added to."""
    parser = commands.add_parser(name, help=described, description=described, allow_abbrev=False)
    parser.intermixes = False  # argparse cannot intermix with subcommands
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="subcommand")


# -- parsing -------------------------------------------------------------------------------------------------------


class _CommandParser(argparse.ArgumentParser):
    """Allows names on both sides of an option, and suggests options for unknown ones."""

    #: Whether names may be on both sides.
    intermixes: bool = True
    _known_options: tuple[str, ...] = ()

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # pyright: ignore[reportIncompatibleMethodOverride]  # argparse has no better names
        """As in argparse."""
        self._known_options += tuple(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # its overloads
        """As in argparse, but for unknown options."""
        if not self.intermixes:
            return super().parse_known_args(args, namespace)
        self.intermixes = False  # the next line calls this method again
        arguments, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            import difflib

            close = difflib.get_close_matches(unknown[0].partition("=")[0], self._known_options, 1)
            self.error(f"unknown: {' '.join(unknown)}" + (f"; did you mean {close[0]}?" if close else ""))
        return arguments, unknown


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    """Add an option with a value, or both forms of a flag, of which the help shows the one that changes the default."""
    if option.is_flag:
        for name, value in ((option.name, True), (f"no-{option.name}", False)):
            shown = option.help if name == option.shown else argparse.SUPPRESS
            parser.add_argument(f"--{name}", dest=option.field, action="store_const", const=value, help=shown)
        return
    action = _Collect if option.many else "store"
    parser.add_argument(
        f"--{option.name}", metavar=option.metavar, help=option.described, type=_typed(option.read), action=action
    )


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader for argparse, which shows the text of an `ArgumentTypeError` but not of a `ValueError`."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return typed


class _Collect(argparse.Action):
    """Joins the values of an option into one tuple."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), *values))


class _Version(argparse.Action):
    """Prints the version, which takes a while to look up."""

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
