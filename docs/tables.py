"""Directives for tables that are generated from declarations in the code.

- ``{commands}`` shows all commands, with links to their pages.
- ``{options} watch`` shows the arguments and options of a command, or its subcommands.
- ``{section} watch prompt`` shows a list at the end of the help of a command.
- ``{keys}`` shows the keys of a process of `lifecycle up`.
- ``{metrics}`` and ``{labels}`` show the metrics and their labels.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from lifecycle.cli.app import build_parser
from lifecycle.cli.ctl import commands as ctl
from lifecycle.cli.up.processes import BASIC_KEYS, KEYS
from lifecycle.cli.watch.settings import OPTIONS
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS, LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

__all__ = ["commands", "keys", "labels", "metrics", "options", "section", "subparsers"]

#: Options, quoted texts and names in capitals. They are formatted as code.
_CODE = re.compile(
    r"'(?P<quoted>[^']+)'|(?P<bare>--[a-z-]+|\b(?:KEY=VALUE|DIR/NAME\.log|READY=1|COMMAND|ATTRIBUTE|[a-z]+:[A-Z]+)\b)"
)
_DEFAULT = re.compile(r" ?\[default: (.+)\]$")


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    if parser.prog == "lifecycle ctl":
        return {name: ctl.build_parser(type(parser), name) for name in ctl.COMMANDS}
    return {}


def commands() -> str:
    """Return the table of all commands as Markdown."""
    parser = build_parser()
    [action] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    rows = [
        _row(f"[`lifecycle {each.dest}`]({each.dest}.md)", _marked(each.help or "")) for each in action._choices_actions
    ]
    return "\n".join([_row("command", "purpose"), _row("---", "---"), *rows])


def section(command: str, title: str) -> str:
    """Return one list in the epilog of a command as a table. ``lifecycle`` is the main command."""
    epilog = _parser("" if command == "lifecycle" else command).epilog or ""
    lines = epilog.partition(f"{title}:\n")[2].partition("\n\n")[0].splitlines()
    rows = [_row(f"`{name}`", _marked(text)) for name, text in (line.split(maxsplit=1) for line in lines)]
    if not rows:
        raise ValueError(f"the help of {command!r} has no list {title!r}")
    return "\n".join([_row(title, "meaning"), _row("---", "---"), *rows])


def _parser(command: str) -> argparse.ArgumentParser:
    parser = build_parser(command)
    for word in command.split():
        parser = subparsers(parser)[word]
    return parser


def options(command: str) -> str:
    """Return the table of a command as Markdown: its subcommands, or its arguments and options."""
    parser = _parser(command)
    below = subparsers(parser)
    if not below:
        return "\n".join(_groups(parser, watch=command == "watch"))
    own = [] if command != "ctl" else [*_groups(parser), ""]
    rows = [_row(f"`{' '.join(_usage(each))}`", _meaning(each)) for each in below.values()]
    return "\n".join([*own, _row("command", "meaning"), _row("---", "---"), *rows])


def keys() -> str:
    """Return the table of the keys of a process of `lifecycle up` as Markdown."""
    rows = [_row(f"`{each.name}`", _default(each.shown_default), _marked(each.help)) for each in (*BASIC_KEYS, *KEYS)]
    return "\n".join([_row("key", "default", "meaning"), _row("---", "---", "---"), *rows])


def metrics() -> str:
    """Return the table of the metrics as Markdown."""
    kinds = (("histogram", "_seconds", HISTOGRAMS), ("counter", "_total", COUNTERS), ("gauge", "", GAUGES))
    rows = [
        _row(
            f"`{each.name}`",
            f"`{each.plain_name}{suffix}`",
            kind,
            ", ".join(f"`{label}`" for label in each.labels),
            each.help.removesuffix("."),
        )
        for kind, suffix, declared in kinds
        for each in declared
    ]
    head = _row("metric", "for Prometheus", "type", "labels", "meaning")
    return "\n".join([head, _row(*["---"] * 5), *rows])


def labels() -> str:
    """Return the table of the labels of metrics as Markdown."""
    rows = [_row(f"`{name}`", _marked(meaning)) for name, meaning in LABELS.items()]
    return "\n".join([_row("label", "meaning"), _row("---", "---"), *rows])


def _groups(parser: argparse.ArgumentParser, *, watch: bool = False) -> Iterator[str]:
    """Yield the lines of one table with the arguments and options of ``parser``."""
    known = {option.shown: option for option in OPTIONS} if watch else {}
    head = ("option", "key", "default", "meaning") if watch else ("option", "default", "meaning")
    yield _row(*head)
    yield _row(*["---"] * len(head))
    for action in _shown(parser):
        default, meaning = _split(action.help or "")
        cells = [_name(action), _default(default), _marked(meaning)]
        if watch:
            option = known.get((action.option_strings or [""])[-1].removeprefix("--"))
            key = option.name if option else action.dest
            cells.insert(1, f"`{key} = false`" if option and option.default is True else f"`{key}`")
        yield _row(*cells)


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions that the help shows, group by group, without ``--help``."""
    return [
        action
        for group in parser._action_groups
        for action in group._group_actions
        if action.help != argparse.SUPPRESS
        and action.dest != "help"
        and not isinstance(action, argparse._SubParsersAction)
    ]


def _name(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings[:-1])
    last = " ".join(filter(None, [*action.option_strings[-1:], "" if action.nargs == 0 else _metavar(action)]))
    return f"{names}, `{last}`" if names else f"`{last}`"


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the words of the usage of a subcommand, without ``lifecycle``."""
    yield parser.prog.removeprefix("lifecycle ")
    for action in sorted(_shown(parser), key=lambda each: bool(each.option_strings)):
        text = " ".join(filter(None, [*action.option_strings[-1:], "" if action.nargs == 0 else _metavar(action)]))
        if action.nargs in ("*", "+"):
            text += " ..."
        yield text if action.required and action.nargs != "*" else f"[{text}]"


def _meaning(parser: argparse.ArgumentParser) -> str:
    """Return the description of a subcommand."""
    return _marked((parser.description or "").rstrip("."))


def _split(text: str) -> tuple[str, str]:
    """Return the default in a help text, and the text without it."""
    match = _DEFAULT.search(text)
    return (match[1], text[: match.start()]) if match else ("", text)


def _default(text: str) -> str:
    """Return a default, formatted as code if it is a value and not a description."""
    return f"`{text}`" if re.fullmatch(r"[\w./*-]+", text) and text not in ("all", "empty") else text


def _marked(text: str) -> str:
    """Return a help text with options and names formatted as code."""
    text = text[:1].upper() + text[1:].replace("|", r"\|").replace("<", r"\<")
    return _CODE.sub(lambda match: f"`{match['quoted'] or match['bare']}`", text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


class _Table(Directive):
    """A directive with a table in the Markdown that ``text`` returns."""

    def text(self) -> str:
        """Return the Markdown."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the table."""
        found = nodes.Element()
        self.state.nested_parse(StringList(self.text().splitlines(), source="generated"), self.content_offset, found)
        return found.children


class _Options(_Table):
    required_arguments = 1
    final_argument_whitespace = True

    def text(self) -> str:
        return options(self.arguments[0])


class _Commands(_Table):
    def text(self) -> str:
        return commands()


class _Section(_Table):
    required_arguments = 2
    final_argument_whitespace = True

    def text(self) -> str:
        return section(self.arguments[0], self.arguments[1])


class _Keys(_Table):
    def text(self) -> str:
        return keys()


class _Labels(_Table):
    def text(self) -> str:
        return labels()


class _Metrics(_Table):
    def text(self) -> str:
        return metrics()


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the extension. Sphinx calls this."""
    app.add_directive("commands", _Commands)
    app.add_directive("options", _Options)
    app.add_directive("section", _Section)
    app.add_directive("keys", _Keys)
    app.add_directive("metrics", _Metrics)
    app.add_directive("labels", _Labels)
    return {"parallel_read_safe": True}
