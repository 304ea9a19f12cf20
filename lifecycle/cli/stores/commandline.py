"""The lines of the commands that look into a file which programs of this library write: `inbox`, `flows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.cli.failures import UsageError
from lifecycle.cli.parsers import typed

if TYPE_CHECKING:
    import argparse

__all__ = ["add_flows", "add_inbox"]


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
    from lifecycle.cli import values

    each = verbs.add_parser(verb, help=told, description=told, allow_abbrev=False)
    place = "file, or the URL of the server," if servers else "file"
    kind = values.store if servers else values.path
    each.add_argument("file", type=typed(kind), metavar="FILE", help=f"the {place} that {file_of}(…) was given")
    return each


def _inbox(parsed: argparse.Namespace) -> int:
    from lifecycle.cli.stores.inbox import inbox

    _take_no_command(parsed, "inbox")
    return inbox(parsed.verb, parsed.file, parsed.letters)


def _flows(parsed: argparse.Namespace) -> int:
    from lifecycle.cli.stores.flows import flows

    _take_no_command(parsed, "flows")
    return flows(parsed.verb, parsed.file, parsed.ids, json=parsed.json, flow=parsed.flow)


def _take_no_command(parsed: argparse.Namespace, name: str) -> None:
    if parsed.command:
        raise UsageError(f"lifecycle {name} takes no command after --")
