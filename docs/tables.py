"""Directives for tables that are made from declarations in the code.

``{options} watch`` shows the arguments and options of a command, as its ``--help`` does. ``{keys}`` shows the keys of a
process of `lifecycle up`, and ``{metrics}`` shows the metrics.
"""

# ruff: noqa: SLF001  # argparse has no public list of the arguments of a parser

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
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

__all__ = ["keys", "metrics", "options", "subparsers"]

#: What is code in a help text: options, quoted text, and names in capitals.
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


def options(command: str) -> str:
    """Return the tables of a command as Markdown: its subcommands, and the arguments of each, or its options."""
    parser = build_parser(command)
    for word in command.split():
        parser = subparsers(parser)[word]
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
    """Return a default, as code if it is a value and not a description."""
    return f"`{text}`" if re.fullmatch(r"[\w./*-]+", text) and text not in ("all", "empty") else text


def _marked(text: str) -> str:
    """Return a help text with options and names as code."""
    text = text[:1].upper() + text[1:].replace("|", r"\|").replace("<", r"\<")
    return _CODE.sub(lambda match: f"`{match['quoted'] or match['bare']}`", text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


class _Table(Directive):
    """A table that ``text`` makes, in the Markdown of the page."""

    optional_arguments = 2

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

    def text(self) -> str:
        return options(" ".join(self.arguments))


class _Keys(_Table):
    def text(self) -> str:
        return keys()


class _Metrics(_Table):
    def text(self) -> str:
        return metrics()


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the extension; Sphinx calls this."""
    app.add_directive("options", _Options)
    app.add_directive("keys", _Keys)
    app.add_directive("metrics", _Metrics)
    return {"parallel_read_safe": True}
