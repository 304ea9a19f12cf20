"""The command line: its commands, their arguments, and the functions that run them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lifecycle.cli.completions import SCRIPTS, candidates
from lifecycle.cli.ctl.commands import add_ctl
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lifecycle.cli.options import Option

__all__ = ["build_parser", "parse"]

_EPILOG = """\
examples:
  lifecycle watch -- python app.py
  lifecycle up
  lifecycle run app:main
  lifecycle ctl status --watch

exit status:
  0  done, or stopped on request
  1  failed, or was forced to exit
  2  usage error
  3  configuration error: an invalid file, path or environment variable
  4  program not found (ctl)

If a process of `up` or `run` fails, its exit status is used.
"""
_WATCH = """\
example:
  lifecycle watch src --ext py,html --on '*.html=reload' -- gunicorn app:app

prompt:
  suspend    suspend the command, or stop it if it is not ready
  resume     resume the command, or restart it if something has changed
  hold       hold changes until release; the command keeps running
  release    react once to all held changes
  reload     react as if a file had changed
  restart    restart the command
  status     show the state of the command
  fg         give the terminal to the command until Ctrl+Z
  help       list the commands of the prompt
  terminate  suspend the command, then stop it and quit
  quit       stop the command and quit

environment of the command:
  LIFECYCLE_CHANGES      changed paths as JSON, truncated if too long
  LIFECYCLE_CHANGES_CUT  number of omitted changes
  LIFECYCLE_ATTEMPT      number of the start, from 1
  LIFECYCLE_PREV_EXIT    exit code of the previous run, negative for a signal
  LIFECYCLE_RESUME_ID    ID that stays the same for all runs
  PYTHONUNBUFFERED       1 if there is no terminal, unless already set

environment:
  NO_COLOR  print without colours
  SHELL     shell for --shell [default: /bin/sh]
"""
_UP = """\
examples:
  lifecycle up
  lifecycle up -f Procfile.dev --log-dir log web worker
  lifecycle up -c web=2,worker=4 -e test.env

environment of each process:
  PORT                 5000 for the first process in a Procfile, 5100 for the next
  PYTHONUNBUFFERED     1 unless already set
  LIFECYCLE_ATTEMPT    number of the start, from 1
  LIFECYCLE_PREV_EXIT  exit code of the previous run, negative for a signal
  LIFECYCLE_RESUME_ID  ID that stays the same for all runs

environment:
  NO_COLOR  print without colours
  PORT      port for the first process in a Procfile [default: 5000]
"""
_EXPORT = """\
example:
  lifecycle export systemd -c web=2 units
"""
_RUN = """\
examples:
  lifecycle run app:main
  lifecycle run shop.app:create --factory

environment:
  LIFECYCLE_DEBUG  set to 1 to print tracebacks for expected failures
  NO_COLOR         print without colours
"""
_SEND = """\
example:
  lifecycle webhook send http://127.0.0.1:9000/deploy --scheme github \\
    --secret-env WEBHOOK_SECRET --data @push.json

exit status:
  0  the response status is 2xx
  1  any other response status, or no data for 30 seconds
"""
_INBOX = """\
examples:
  lifecycle inbox list app.db
  lifecycle inbox replay app.db 7 8
  lifecycle inbox drop app.db dead
"""
_FLOWS = """\
examples:
  lifecycle flows list app.db
  lifecycle flows show postgresql://deploy@db.example/jobs order-7

environment:
  PGPASSWORD  password for PostgreSQL, used instead of ~/.pgpass
"""

#: The help text and an example for each subcommand.
_INBOX_COMMANDS = {
    "list": ("list the messages with their states", "app.db"),
    "show": ("show messages with their headers and bodies", "app.db 7 8"),
    "replay": ("deliver messages again, with new attempts", "app.db dead"),
    "drop": ("remove messages", "app.db 7"),
}
_FLOWS_COMMANDS = {
    "list": ("list flows with their states and the processes that run them", "app.db"),
    "show": ("show flows with their arguments, tasks and last changes", "app.db order-7"),
    "diagram": ("draw flows as a Mermaid diagram", "app.db order-7 --flow app:order"),
    "suspend": ("ask the processes that run flows to start no more tasks", "app.db order-7"),
    "resume": ("ask the processes that suspended flows to continue", "app.db order-7"),
    "retry": ("reset failed flows so that they run again", "app.db order-7"),
    "signal": ("send a signal to a workflow", "app.db order-7 approval true"),
    "cancel": ("cancel workflows, which then undo their steps", "app.db order-7"),
    "dead": ("list dead letters: jobs and sent events that failed too often", "app.db"),
    "replay": ("deliver dead letters of sent events again", "app.db order-7/mail/1/1"),
    "drop": ("remove dead letters of sent events", "app.db dead"),
}

#: The `up` options that `export` also accepts.
_EXPORTED = ("file", "concurrency", "formation", "env_file", "port")
#: The signature schemes that `webhook send` supports.
_SCHEMES = ("github", "standard", "stripe", "slack", "gitlab", "hmac")
#: The metavar and help text of each option that is only used with `hmac`.
_HMAC = {
    "header": ("NAME", "put the signature into this header; required"),
    "algorithm": ("NAME", "use this digest, such as sha512 [default: sha256]"),
    "encoding": ("NAME", "encode the signature as hex or base64 [default: hex]"),
    "prefix": ("TEXT", "put this text before the signature"),
}


class Arguments(argparse.Namespace):
    """A parsed command line."""

    #: The function that runs the command.
    main: Callable[[Arguments], int]
    #: The words after ``--``.
    command: tuple[str, ...]
    #: The error to raise if there are words after ``--``. The words replace ``{}``. Empty if the command accepts words.
    no_command: str = ""
    #: Components that run alongside the command started by `watch`.
    beside: tuple[object, ...] = ()

    def run(self) -> int:
        """Run the command and return its exit status.

        Raises:
            CliError: if the command fails.
        """
        if self.command and self.no_command:
            raise UsageError(self.no_command.format(repr(" ".join(self.command))))
        return self.main(self)


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a command line. Words after ``--`` are never treated as options; `watch` uses them as its command.

    Raises:
        SystemExit: with status 0 after ``--help`` or ``--version``, or 2 if the command line is invalid.
    """
    if argv[:1] == ["--candidates"]:
        _print_and_exit("".join(f"{each}\n" for each in candidates(argv[1:])))
    at = list(argv).index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:at]), tuple(argv[at + 1 :])
    return build_parser(*ours[:1]).parse_args(ours, Arguments(command=command))


def build_parser(first: str = "") -> argparse.ArgumentParser:
    """Return a parser for the command ``first``, or for all commands if ``first`` is not a command."""
    parser = argparse.ArgumentParser(
        prog="lifecycle",
        description="Run, restart, query and control programs.",
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "--completions",
        action=_Completions,
        choices=SCRIPTS,
        metavar="SHELL",
        help="print the completion script for bash, zsh or fish, and exit",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser)
    adding = {
        "watch": _add_watch,
        "up": _add_up,
        "export": _add_export,
        "run": _add_run,
        "ctl": add_ctl,
        "webhook": _add_webhook,
        "inbox": _add_inbox,
        "flows": _add_flows,
    }
    # Building a parser is slow, so all of them are built only for the general help.
    for add in [adding[first]] if first in adding else adding.values():
        add(commands)
    return parser


# -- commands ------------------------------------------------------------------------------------------------------


def _add_watch(commands: Any) -> None:
    from lifecycle.cli import options
    from lifecycle.cli.watch.settings import OPTIONS

    parser = commands.add_parser(
        "watch",
        usage="lifecycle watch [PATH ...] [options] -- COMMAND ...",
        help="restart a command when files change",
        description="Run COMMAND, and restart it when files below PATH change. "
        "Every option is also a key of [tool.lifecycle.watch] in pyproject.toml.",
        epilog=_WATCH,
    )
    parser.set_defaults(main=_watch)
    parser.add_argument(
        "paths",
        nargs="*",
        type=_typed(options.path),
        action=_Collect,
        metavar="PATH",
        help="watch these files and directories [default: the current directory]",
    )
    parser.add_argument(
        "-w",
        "--watch",
        dest="paths",
        type=_typed(options.paths),
        action=_Collect,
        metavar="PATH",
        help="same as PATH",
    )
    _add_options(parser, OPTIONS)


def _watch(arguments: Arguments) -> int:
    from lifecycle.cli.watch.run import watch

    _skip_collection_at_exit()
    return watch(vars(arguments))


def _skip_collection_at_exit() -> None:
    """Let Python end without a last search for reference cycles, which takes a sixth of a short run's time."""
    import atexit
    import gc

    atexit.register(gc.freeze)


def _add_up(commands: Any) -> None:
    from lifecycle.cli.up.selection import OPTIONS

    parser = commands.add_parser(
        "up",
        usage="lifecycle up [options] [NAME ...]",
        help="run the processes in a Procfile, a TOML file or process-compose.yaml",
        description="Start and stop the processes defined in FILE together. Without -f, use the Procfile, "
        "process-compose.yaml, lifecycle.toml with tables [processes.NAME], or pyproject.toml with "
        "tables [tool.lifecycle.processes.NAME].",
        epilog=_UP,
    )
    parser.set_defaults(main=_up, no_command="lifecycle up takes no command; add {} to a Procfile")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="run only these processes and their dependencies [default: all]",
    )
    _add_options(parser, OPTIONS)


def _up(arguments: Arguments) -> int:
    from lifecycle.cli.up.run import up
    from lifecycle.cli.up.selection import up_settings

    _skip_collection_at_exit()
    return up(up_settings(vars(arguments)))


def _add_export(commands: Any) -> None:
    from lifecycle.cli import options
    from lifecycle.cli.up.selection import OPTIONS

    group, subcommands = _add_group(commands, "export", "write the processes of lifecycle up for another tool", _EXPORT)
    parser = subcommands.add_parser(
        "systemd",
        usage="lifecycle export systemd [options] [DIRECTORY]",
        help="write unit files for systemd",
        description="Write a target, and a service for each process, and print their paths.",
        epilog=_EXPORT,
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=_typed(options.path),
        default=".",
        metavar="DIRECTORY",
        help="write the files into this directory [default: .]",
    )
    _add_options(parser, [each for each in OPTIONS if each.field in _EXPORTED])
    group.set_defaults(main=_export, names=(), no_command="lifecycle export takes no command; add {} to a Procfile")


def _export(arguments: Arguments) -> int:
    from pathlib import Path

    from lifecycle.cli.up.export import export_systemd
    from lifecycle.cli.up.selection import up_settings

    return export_systemd(up_settings(vars(arguments)), Path(arguments.directory))


def _add_run(commands: Any) -> None:
    from lifecycle.cli import options

    parser = commands.add_parser(
        "run",
        usage="lifecycle run [--factory] [--log-format FORMAT] MODULE:ATTRIBUTE",
        help="run an async function, a router or a worker from a module",
        description="Import MODULE from the current directory or sys.path, and pass ATTRIBUTE to lifecycle.run.",
        epilog=_RUN,
    )
    parser.set_defaults(main=_run, no_command="lifecycle run takes no command; to run {}, use lifecycle watch")
    parser.add_argument(
        "target",
        metavar="MODULE:ATTRIBUTE",
        help="run this async function, router, worker or object with a run method",
    )
    parser.add_argument(
        "--factory", action="store_true", help="call ATTRIBUTE, and run the object or list that it returns"
    )
    output = parser.add_argument_group("output")
    _add_option(output, options.LOG_FORMAT)


def _run(arguments: Arguments) -> int:
    from lifecycle.cli.run import run_target

    return run_target(arguments.target, factory=arguments.factory, log_format=arguments.log_format)


def _add_webhook(commands: Any) -> None:
    from lifecycle.cli import options

    _, subcommands = _add_group(commands, "webhook", "send a signed request to a webhook receiver", _SEND)
    parser = subcommands.add_parser(
        "send",
        usage="lifecycle webhook send URL --scheme SCHEME --secret-env NAME [options]",
        help="sign a request, send it and print the response",
        description="Sign the data, POST it to URL, and print the response's status and body.",
        epilog=_SEND,
    )
    parser.set_defaults(main=_send, no_command="lifecycle webhook send takes no command; pass {} with --data")
    parser.add_argument("url", metavar="URL", help="send the request to this address")
    parser.add_argument(
        "--scheme",
        required=True,
        choices=_SCHEMES,
        metavar="SCHEME",
        help=f"sign with this scheme: {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}; required",
    )
    parser.add_argument(
        "--secret-env",
        required=True,
        type=_typed(options.variable),
        metavar="NAME",
        help="read the secret from this environment variable; required",
    )
    parser.add_argument(
        "--data",
        default="",
        metavar="TEXT",
        help="send this body; @FILE reads it from a file, @- from standard input [default: empty]",
    )
    hmac = parser.add_argument_group("only for --scheme hmac")
    for name, (metavar, described) in _HMAC.items():
        hmac.add_argument(f"--{name}", metavar=metavar, help=described)


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

    group, subcommands = _add_group(commands, "inbox", "show and change the inbox of a webhook receiver", _INBOX)
    for name, (described, example) in _INBOX_COMMANDS.items():
        parser = _add_subcommand(subcommands, name, described, example)
        parser.add_argument(
            "file", type=_typed(options.path), metavar="FILE", help="open this inbox file, the path given to Inbox(…)"
        )
        if name != "list":
            parser.add_argument(
                "ids",
                nargs="+",
                metavar="ID",
                help=f"{name} the messages with these numbers, or all dead letters with 'dead'",
            )
    group.set_defaults(main=_inbox, ids=(), no_command="lifecycle inbox takes no command after --")


def _inbox(arguments: Arguments) -> int:
    from lifecycle.cli.inbox import inbox

    return inbox(arguments.subcommand, arguments.file, arguments.ids)


def _add_flows(commands: Any) -> None:
    from lifecycle.cli import options

    group, subcommands = _add_group(commands, "flows", "show and control the flows in a file or on a server", _FLOWS)
    for name, (described, example) in _FLOWS_COMMANDS.items():
        parser = _add_subcommand(subcommands, name, described, example)
        parser.add_argument(
            "file",
            type=_typed(options.store),
            metavar="FILE",
            help="open this file, or the PostgreSQL server at this URL",
        )
        if name in ("replay", "drop"):
            parser.add_argument(
                "ids", nargs="+", metavar="ID", help=f"{name} the dead letters with these IDs, or all with 'dead'"
            )
        elif name == "signal":
            parser.add_argument("ids", nargs=1, metavar="ID", help="send to this workflow")
            parser.add_argument("signal", metavar="NAME", help="set the name of the signal")
            parser.add_argument(
                "data", nargs="?", default="null", metavar="DATA", help="send this JSON [default: null]"
            )
            parser.add_argument("--key", help="send nothing if the workflow already has a signal with this key")
        elif name == "cancel":
            parser.add_argument("ids", nargs="+", metavar="ID", help="cancel these workflows")
        elif name != "dead":
            parser.add_argument("ids", nargs="*", metavar="ID", help="select these flows [default: all that apply]")
        if name in ("list", "show", "dead"):
            parser.add_argument("--json", action="store_true", help="print JSON")
        if name == "retry":
            parser.add_argument(
                "--from",
                dest="step",
                default="",
                metavar="NUMBER",
                help="repeat a failed workflow from this operation on [default: the one that failed]",
            )
        if name == "diagram":
            parser.add_argument(
                "--flow",
                metavar="MODULE:ATTRIBUTE",
                help="import the flow's definition, and draw its links and nested flows",
            )
    group.set_defaults(
        main=_flows, ids=(), json=False, flow=None, step="", no_command="lifecycle flows takes no command after --"
    )


def _flows(arguments: Arguments) -> int:
    from lifecycle.cli.flows import Message, flows

    message = Message(arguments.signal, arguments.data, arguments.key) if arguments.subcommand == "signal" else None
    return flows(
        arguments.subcommand,
        arguments.file,
        arguments.ids,
        json=arguments.json,
        flow=arguments.flow,
        message=message,
        step=arguments.step,
    )


def _add_group(commands: Any, name: str, described: str, epilog: str) -> tuple[Any, Any]:
    """Add a command with subcommands. Return its parser and the object to add the subcommands to."""
    parser = commands.add_parser(
        name,
        usage=f"lifecycle {name} COMMAND ...",
        help=described,
        description=_sentence(described),
        epilog=epilog,
    )
    parser.intermixes = False  # argparse cannot parse intermixed arguments if there are subcommands
    subcommands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, dest="subcommand", prog=f"lifecycle {name}"
    )
    return parser, subcommands


def _add_subcommand(subcommands: Any, name: str, described: str, example: str) -> Any:
    """Add a subcommand, and return its parser."""
    parser = subcommands.add_parser(name, help=described, description=_sentence(described))
    parser.epilog = f"example:\n  {parser.prog} {example}\n"
    return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# -- parsing -------------------------------------------------------------------------------------------------------


class _HelpFormatter(argparse.HelpFormatter):
    """A formatter that wraps single-line text but keeps the line breaks in multi-line text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        # Don't break words such as on-failure.
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _CommandParser(argparse.ArgumentParser):
    """A parser that accepts positional arguments before and after options, and suggests similar option names."""

    #: Whether positional arguments may appear both before and after an option.
    intermixes: bool = True

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"formatter_class": _HelpFormatter, "allow_abbrev": False}
        super().__init__(**(defaults | settings))
        self._positionals.title = "arguments"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # its overloads
        """Parse like argparse, but exit with an error if there are unknown arguments."""
        if not self.intermixes:
            return super().parse_known_args(args, namespace)
        self.intermixes = False  # the next line calls this method again
        arguments, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            import difflib

            known = [name for name in self._option_string_actions if name.startswith("--")]
            close = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1)
            self.error(f"unknown: {' '.join(unknown)}" + (f"; did you mean {close[0]}?" if close else ""))
        return arguments, unknown


def _add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add ``options``, each under the heading of its group."""
    groups: dict[str, Any] = {"options": parser}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add_option(groups[option.group], option)


def _add_option(group: Any, option: Option) -> None:
    """Add an option with a value, or both forms of a flag. The help shows only the form that changes the default."""
    for name, value in option.presets:
        group.add_argument(name, dest=option.field, action="store_const", const=value, help=option.preset_help(value))
    if option.is_flag:
        for name, value in ((option.name, True), (f"no-{option.name}", False)):
            is_shown = name == option.shown
            names = (*(option.aliases if is_shown else ()), f"--{name}")
            shown = option.help if is_shown else argparse.SUPPRESS
            group.add_argument(*names, dest=option.field, action="store_const", const=value, help=shown)
        return
    group.add_argument(
        *option.aliases,
        f"--{option.name}",
        dest=option.field,
        metavar=option.metavar,
        help=option.described,
        type=_typed(option.read),
        action=_Collect if option.many else "store",
    )


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap ``read`` for argparse, which shows the message of an `ArgumentTypeError`, but not of a `ValueError`."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return typed


class _Collect(argparse.Action):
    """An action that joins the values of a repeated option into one tuple."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), *values))


class _Completions(argparse.Action):
    """An action that prints the completions for a shell."""

    def __call__(self, _parser: object, _namespace: object, shell: Any, *_: Any) -> NoReturn:
        _print_and_exit(SCRIPTS[shell])


def _print_and_exit(text: str) -> NoReturn:
    from lifecycle.cli.output import print_result

    print_result(sys.stdout, text)
    sys.exit()


class _Version(argparse.Action):
    """An action that prints the version. It is looked up only on request, because this is slow."""

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
