"""The command lines: what can be typed, and who carries it out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lifecycle.cli.ctl.commands import add_ctl
from lifecycle.cli.failures import CliError, UsageError
from lifecycle.cli.parsers import CommandParser, typed
from lifecycle.cli.stores.commandline import add_flows, add_inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["Parsed", "parse"]

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


class Parsed(argparse.Namespace):
    """What was typed: ``main`` carries out the subcommand."""

    main: Callable[[Parsed], int]
    command: tuple[str, ...]
    #: What runs beside the command of `watch`.
    beside: tuple[object, ...] = ()


def parse(argv: Sequence[str]) -> Parsed:
    """Read the command line; what follows ``--`` is the command of `watch`, and never an option.

    Raises:
        SystemExit: with 0 after ``--help`` or ``--version``, with 2 for what cannot be understood.
    """
    ours, command = _split(argv)
    return _parser(*ours[:1]).parse_args(ours, Parsed(command=command))


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
    from lifecycle.cli import values
    from lifecycle.cli.options import Option
    from lifecycle.cli.watch.options import OPTIONS

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
        type=typed(values.path),
        action=_Collect,
        metavar="PATH",
        help="files and directories to watch",
    )
    for option in OPTIONS:
        if isinstance(option, Option):
            parser.add_argument(f"--{option.name}", **_with_value(option))
        else:
            _add_flag(parser, option)


def _with_value(option: Any) -> dict[str, Any]:
    action = _Collect if option.many else "store"
    return {"metavar": option.metavar, "help": option.help, "type": typed(option.read), "action": action}


def _add_flag(parser: argparse.ArgumentParser, flag: Any) -> None:
    """Both forms; the help shows the one that changes something."""
    for name, value in ((flag.name, True), (f"no-{flag.name}", False)):
        shown = flag.help if name == flag.shown else argparse.SUPPRESS
        parser.add_argument(f"--{name}", dest=flag.field, action="store_const", const=value, help=shown)


def _add_up(commands: Any) -> None:
    from lifecycle.cli import values

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
        "-f", "--file", type=typed(values.path), metavar="FILE", help="a Procfile, or what ends in .toml"
    )
    parser.add_argument(
        "--log-dir", type=typed(values.path), metavar="DIR", help="write the lines of each to DIR/NAME.log as well"
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
    """The option that `watch` has in its table."""
    from lifecycle.cli.options import LOG_FORMAT

    parser.add_argument(f"--{LOG_FORMAT.name}", **_with_value(LOG_FORMAT))


def _add_webhook(commands: Any) -> None:
    from lifecycle.cli import values

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
        "--secret-env", required=True, type=typed(values.variable), metavar="NAME", help="the variable with the secret"
    )
    parser.add_argument(
        "--data", default="", metavar="TEXT", help="the body; @FILE is what a file holds, @- is standard input"
    )
    for name, described in _HMAC.items():
        parser.add_argument(f"--{name}", help=f"of hmac: {described}")


def _watch(parsed: Parsed) -> int:
    from lifecycle.cli.watch.running import watch

    return watch(vars(parsed))


def _up(parsed: Parsed) -> int:
    from lifecycle.cli.up.run import up

    if parsed.command:
        raise UsageError(f"lifecycle up takes no command; write {' '.join(parsed.command)!r} into a Procfile")
    return up(parsed.file, parsed.names, parsed.log_dir, log_format=parsed.log_format)


def _run(parsed: Parsed) -> int:
    from lifecycle.cli.targets import run_target

    if parsed.command:
        raise UsageError(f"lifecycle run takes no command; {' '.join(parsed.command)!r} would be for lifecycle watch")
    return run_target(parsed.target, factory=parsed.factory, log_format=parsed.log_format)


def _webhook_send(parsed: Parsed) -> int:
    from lifecycle.cli.webhook_sending import send

    if parsed.command:
        raise UsageError(f"lifecycle webhook send takes no command; give {' '.join(parsed.command)!r} as --data")
    given = vars(parsed)
    options = {name: given[name] for name in _HMAC if given[name] is not None}
    return send(parsed.url, scheme=parsed.scheme, secret_env=parsed.secret_env, data=parsed.data, options=options)


class _Collect(argparse.Action):
    """Joins what is given into one tuple."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), *values))


class _Version(argparse.Action):
    """Looks up the version, which takes a while, when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        from lifecycle.cli.messages import give, voice

        try:
            found = version("lifecycle-control")
        except PackageNotFoundError:
            found = "unknown (lifecycle-control is not installed; this is a copy of its source)"
        try:
            give(sys.stdout, f"lifecycle {found}\n")
        except CliError as error:
            voice().bad(str(error))
            parser.exit(error.status)
        parser.exit(0)
