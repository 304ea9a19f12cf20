"""Printed responses are complete and contain no control characters."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lifecycle.cli.ctl import printing
from lifecycle.cli.ctl.printing import Table, rich_console, show, show_output
from lifecycle.cli.ctl.queries import entry_line
from lifecycle.cli.ctl.status import Tree, details, is_shown, state_table
from lifecycle.observe import nodes as nodes_of
from lifecycle.observe import snapshot
from lifecycle.workers import Spec, Supervisor, TaskWorker

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "a\n\x1b[2J\x9b1m\r'\"<b>[red][/]\u202e🐙"


class Terminal(io.StringIO):
    """A text file that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    # pytest replaces sys.stdout in each phase of a test.
    monkeypatch.setattr(printing, "sys", SimpleNamespace(stdout=terminal, stderr=terminal))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


SHEET = Table(("name", "status"), [(HOSTILE, "running"), ("b" * 100, "failed")])


def test_table_in_a_pipe_is_complete_and_plain() -> None:
    heading, first, second = SHEET.plain().splitlines()
    assert heading.split() == ["name", "status"]
    assert first == "a\\n\\x1b[2J\\x9b1m\\r'\"<b>[red][/]\\u202e🐙".ljust(100) + "  running"
    assert second == f"{'b' * 100}  failed"


def test_table_at_a_terminal_fits_and_escapes_control_characters(terminal: Terminal) -> None:
    assert show(SHEET)
    _, first, second = terminal.getvalue().splitlines()
    assert "\\x1b[2J\\x9b1m\\r'\"<b>[red][/]\\u202e" in first
    assert "\x1b[32mrunning" in first
    assert "…" in second
    assert "\x1b[31mfailed" in second


def test_no_column_shrinks_to_nothing(terminal: Terminal) -> None:
    assert show(Table(("name", "pattern", *(["numbers"] * 4)), [("n" * 30, "p" * 30, *(["1"] * 4))]))
    heading, row = COLOUR.sub("", terminal.getvalue()).splitlines()
    assert heading.split()[:2] == ["name", "pattern"]
    assert all(re.fullmatch("(n|p){9,}…", cell) for cell in row.split()[:2])


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_colours_a_terminal_gets_what_a_pipe_gets(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert rich_console() is None
    assert show(SHEET)
    assert terminal.getvalue() == SHEET.plain()


def test_without_rich_a_terminal_gets_what_a_pipe_gets(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert rich_console() is None
    assert show(SHEET)
    assert terminal.getvalue() == SHEET.plain()


def test_program_output_keeps_only_colours(terminal: Terminal) -> None:
    show_output([{"text": "\x1b[1;31mred\x1b[0m\n\x1b[2J\x1b]0;title\x07\tend\n"}, {"dropped": 7}])
    shown = terminal.getvalue()
    assert shown == "\x1b[1;31mred\x1b[0m\n\\x1b[2J\\x1b]0;title\\x07\tend\n\n(7 characters are not shown)\n"


def test_program_output_in_a_pipe_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    show_output([{"text": "\x1b[31mred\x1b[0m\n"}])
    assert capsys.readouterr().out == "\\x1b[31mred\\x1b[0m\n"


def test_terminal_line_endings_are_normalised(capsys: pytest.CaptureFixture[str]) -> None:
    show_output([{"text": "one\r\ntwo\r\n"}])
    assert capsys.readouterr().out == "one\ntwo\n"


# -- events --------------------------------------------------------------------------------------------------------

ENTRY: dict[str, Any] = {
    "id": 12,
    "topic": HOSTILE,
    "time": 0.25,
    "what": "failed",
    "handler": HOSTILE,
    "into": None,
    "merged": 3,
    "attempt": 2,
    "duration": 0.0125,
    "error": HOSTILE,
    "summary": HOSTILE,
}


def test_event_is_one_line() -> None:
    line = entry_line(ENTRY)
    assert line.isprintable()
    for part in (":00.250 #12    failed     a\\n", "with 3 merged, ", "attempt 2", "12.5 ms"):
        assert part.rstrip(", ") in line
    assert entry_line({**ENTRY, "into": 5, "error": None, "duration": 1.25}).count("into #5") == 1


def test_event_fits_the_terminal_and_is_complete_in_trace(terminal: Terminal) -> None:
    long = {**ENTRY, "error": "e" * 500}
    for wide in (60, 200):
        text = COLOUR.sub("", entry_line(long, width=wide))
        assert len(text) <= wide
        assert text.endswith("…")
    assert "e" * 500 not in entry_line(long)
    assert "e" * 500 in entry_line(long, whole=True)
    assert printing.width() == 60


def test_event_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert printing.width() is None


# -- states --------------------------------------------------------------------------------------------------------


async def test_a_tree_of_a_real_program_is_walked_parents_first() -> None:
    web = Supervisor("web", *(Spec(name, lambda name=name: TaskWorker(name, forever)) for name in ("one", HOSTILE)))
    async with web:
        tree = Tree()
        tree.update([{"nodes": nodes_of(snapshot(web))}])
        walked = [(depth, node["kind"], node["name"]) for depth, node in tree.walk()]
        assert walked == [
            (0, "program", walked[0][2]),
            (1, "supervisor", "web"),
            (2, "worker", "one"),
            (2, "worker", HOSTILE),
        ]
        [supervisor] = tree.of("supervisor")
        assert [each["name"] for each in tree.below(supervisor)] == ["one", HOSTILE]
        gone = tree.of("worker")[0]["id"]
        tree.update([{"nodes": {gone: None}}])
        assert tree.get(gone) is None
        assert len(list(tree.walk())) == 3


async def forever() -> None:
    import asyncio

    await asyncio.Event().wait()


WORKER = {
    "kind": "worker",
    "status": "running",
    "pid": 7,
    "started_at": None,
    "restarts": 2,
    "circuit": "open",
    "health": {"healthy": False, "message": "slow"},
    "error": "it\nfell",
}


@pytest.mark.parametrize(
    ("node", "report"),
    [
        (WORKER, "pid 7, 2 restarts, given up, unhealthy: slow, it\nfell"),
        (
            {"kind": "lane", "status": "busy", "running": 1, "waiting": 3, "limit": 10},
            "1 running, 3 waiting (limit 10)",
        ),
        ({"kind": "router", "status": "running", "handled": 3, "failed": 0, "dropped": 1}, "3 handled, 1 dropped"),
        ({"kind": "source", "status": "failed", "failures": 2, "error": "no"}, "2 failures, no"),
        ({"kind": "inbox", "status": "running", "depths": {"waiting": 2, "dead": 0}}, "2 waiting"),
        ({"kind": "flow", "status": "running", "flow": "order-7", "error": ""}, "id order-7"),
        ({"kind": "source", "status": "failed", "failures": 1}, "1 failure"),
        ({"kind": "component", "status": "running", "store": "<SQLiteStore a.db>"}, "SQLiteStore a.db"),
        ({"kind": "component", "status": "running", "class": "EventLog", "state": {"path": "a.log"}}, "a.log"),
        ({"kind": "item", "status": "running", "attempt": 2, "error": ""}, "attempt 2"),
        ({"kind": "lifetime", "status": "stopping", "stopping": True, "reason": "cancel"}, "cancel"),
        (
            {
                **WORKER,
                "kind": "pool",
                "restarts": 0,
                "circuit": "closed",
                "health": None,
                "error": None,
                "stats": {"busy": 2},
            },
            "pid 7, 2 busy",
        ),
        ({"kind": "what is new", "status": "fine"}, ""),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_unusual_states_are_shown(node: dict[str, Any], report: str) -> None:
    assert details(node) == report


def test_routine_nodes_are_hidden() -> None:
    assert not is_shown({"kind": "route", "status": "running"})
    assert not is_shown({"kind": "lane", "status": "idle"})
    assert is_shown({"kind": "lane", "status": "busy"})


LIFETIME = {"kind": "lifetime", "status": "running", "stopping": False}
LOG = {"kind": "component", "class": "EventLog", "status": "running", "state": {"path": None}}


def test_healthy_details_are_omitted() -> None:
    assert not is_shown(LIFETIME)
    assert is_shown({**LIFETIME, "tasks_crashed": 1})
    assert is_shown({**LIFETIME, "status": "stopping", "stopping": True, "reason": "cancel"})
    assert not is_shown(LOG)
    assert is_shown({**LOG, "state": {"path": "events.jsonl"}})
    assert is_shown({**LOG, "status": "unknown", "error": "it fell"})
    assert is_shown({"kind": "component", "class": "Cache", "status": "running"})


def test_flow_and_its_tasks_are_two_levels() -> None:
    """The flow's outermost item is the flow itself, so it is not shown."""
    tree = Tree()
    kinds = {"f": "flow", "f/trip": "item", "f/trip/hotel": "item", "f/trip/way": "item", "f/trip/way/bus": "item"}
    tree.update(
        [
            {"nodes": {name: {"id": name, "kind": kind, "parent": name.rpartition("/")[0] or None}}}
            for name, kind in kinds.items()
        ]
    )
    assert [(depth, node["id"]) for depth, node in tree.walk(is_shown)] == [
        (0, "f"),
        (1, "f/trip/hotel"),
        (1, "f/trip/way"),
        (2, "f/trip/way/bus"),
    ]


def test_status_names_a_program_as_it_is_asked_for(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    tree = Tree()
    root = {"id": "program", "kind": "program", "parent": None, "name": "examples.demo", "status": "running"}
    store = {
        "id": "flows",
        "kind": "component",
        "parent": "program",
        "name": "<M>",
        "store": "<M>",
        "status": "running",
    }
    tree.update([{"nodes": {"program": {**root, "pid": 7, "started_at": None, "python": "3.11"}, "flows": store}}])
    show(state_table(tree, "watch-site"))
    assert [line.split() for line in terminal.getvalue().splitlines()[1:]] == [
        ["watch-site", "program", "running", "pid", "7,", "Python", "3.11"],
        ["flows", "store", "running", "M"],
    ]
