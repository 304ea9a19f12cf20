"""Progress messages: partial messages, unfinished events, and workers that have not restarted."""

from __future__ import annotations

import io
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from lifecycle.cli import main
from lifecycle.cli.ctl import actions, queries, waiting
from lifecycle.cli.ctl.client import Messages
from lifecycle.cli.ctl.queries import EntryBuffer
from lifecycle.cli.ctl.status import Tree
from lifecycle.cli.ctl.waiting import RestartProgress, StopProgress, bar
from tests.cli.ctl.fake_sockets import answer, speaker

if TYPE_CHECKING:
    from pathlib import Path


HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def report(*messages: Any) -> bytes:
    return HEAD + b": begun\n\n" + b"".join(f"event: x\ndata: {json.dumps(each)}\n\n".encode() for each in messages)


# -- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("size", range(1, 40))
def test_messages_do_not_depend_on_chunks(size: int, ending: str) -> None:
    values = [{"a": "x\ny: ü🐙\r\n\n"}, None, [1, [2.5]], "data: {}", ""]
    whole = "".join(f"event: x{ending}data: {json.dumps(each)}{ending}{ending}:{ending}{ending}" for each in values)
    data, messages = whole.encode(), Messages()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [each for piece in pieces for each in messages.feed(piece)] == values


def test_cut_stream_ends_with_last_complete_message(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app.sock", report({"dropped": 3}) + b'data: {"id', answer("[]")):
        assert main(["ctl", "tail"]) == 1
    out, err = capsys.readouterr()
    assert out == "(3 events are not shown)\n"
    assert err == "[lifecycle] app has exited\n"


# -- tail ----------------------------------------------------------------------------------------------------------


def entry(number: int, what: str) -> dict[str, Any]:
    return {"id": number, "topic": f"topic/{number}", "time": 0.0, "what": what}


def shown(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [(line[1], line[2]) for line in lines]


def test_each_event_is_shown_once_at_its_end(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = report(entry(1, "handled"), entry(3, "running"), entry(2, "failed"), entry(3, "handled"))
    with speaker(sockets / "app.sock", stream, answer(json.dumps([entry(1, "handled"), entry(2, "running")]))):
        assert main(["ctl", "tail"]) == 1
    assert shown(capsys) == [("#1", "handled"), ("#2", "failed"), ("#3", "handled")]


def test_json_tail_shows_each_change(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [entry(1, "queued"), entry(1, "running"), entry(1, "handled")]
    with speaker(sockets / "app.sock", report(*changes), answer(json.dumps(changes[:1]))):
        assert main(["ctl", "tail", "--json"]) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == changes


def test_slow_event_is_shown_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    held = EntryBuffer()
    assert held.timeout() is None
    assert list(held.add([entry(1, "queued")])) == []
    assert 0 < (held.timeout() or 0) <= 1
    assert list(held.due()) == []
    monkeypatch.setattr(queries, "SLOW", 0.0)
    assert list(held.add([entry(2, "running"), entry(1, "running")])) == []
    assert [each["id"] for each in held.due()] == [2, 1]
    assert list(held.add([entry(1, "handled")])) == [entry(1, "handled")]


# -- stop ----------------------------------------------------------------------------------------------------------


LIFE: dict[str, Any] = {"id": "lifetime", "kind": "lifetime", "parent": None, "name": "lifetime"}
LIFE |= {"status": "running", "stopping": False, "tasks": [], "tasks_crashed": 0}
NODES = answer(json.dumps({"time": 0.0, "nodes": {"lifetime": LIFE}}))
DONE = {"outcome": "handled", "delivery": None, "error": None, "answer": None}
STOPPING = answer(json.dumps({"lifetime": {"stopping": True}}))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_process_that_does_not_end_is_waited_for_with_timeout(
    sockets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """The listening process is this test."""
    monkeypatch.setattr(actions, "EXIT_TIMEOUT", 0.01)
    monkeypatch.setattr(waiting, "QUIET", 0.5)
    stream = report({"nodes": {"lifetime": LIFE}})
    with speaker(sockets / "app.sock", NODES, answer(json.dumps(DONE)), STOPPING, stream):
        assert main(["ctl", "stop", *options]) == 1
    shown = capsys.readouterr()
    expected = (
        f"the program has stopped, but its process (pid {os.getpid()}) is still running: "
        "it has not exited within 0.01 s"
    )
    if options:
        assert json.loads(shown.out)["error"] == expected
    else:
        assert expected in shown.err


def test_quick_command_opens_no_stream(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app.sock", NODES, answer(json.dumps(DONE))) as asked:
        assert main(["ctl", "restart", "web"]) == 0
    assert [each.split()[1] for each in asked] == [b"/api/nodes", b"/api/command"]
    assert capsys.readouterr().err == "[lifecycle] app: restart web: done\n"


def test_status_opens_no_stream(sockets: Path) -> None:
    with speaker(sockets / "app.sock", NODES) as asked:
        assert main(["ctl", "status"]) == 0
    assert [each.split()[1] for each in asked] == [b"/api/nodes"]


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf"])
def test_timeout_must_be_a_positive_number(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["ctl", "stop", f"--timeout={given}"])
    assert f"the timeout must be a positive number of seconds, got '{given}'" in capsys.readouterr().err


# -- progress ------------------------------------------------------------------------------------------------------


def tree(**nodes: dict[str, Any]) -> Tree:
    known = Tree()
    known.update(
        [{"nodes": {name: {"id": name, "parent": None, "name": name, **node} for name, node in nodes.items()}}]
    )
    return known


def lane(waiting: int, running: int) -> dict[str, Any]:
    return {"kind": "lane", "waiting": waiting, "running": running}


def worker(status: str, pid: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": "worker", "status": status, "pid": pid, **more}


def test_stop_progress_counts_from_the_maximum() -> None:
    left = StopProgress()
    life = {"kind": "lifetime", "tasks": ["poll"]}
    assert left.of(tree(a=lane(2, 1), b=lane(0, 1), l=life, w=worker("running"), v=worker("finished"))) == (
        0,
        6,
        "4 events, 1 task and worker w",
    )
    assert left.of(tree(a=lane(0, 1), w=worker("stopping"))) == (4, 6, "1 event and worker w")
    assert left.of(tree(a=lane(0, 0), w=worker("stopped"))) == (6, 6, "")


def test_stop_progress_counts_many_workers() -> None:
    assert StopProgress().of(tree(**{f"w{number}": worker("running") for number in range(4)})) == (0, 4, "4 workers")


def test_restarted_workers_are_counted_as_new() -> None:
    pool = {"kind": "pool"}
    members = {f"m{number}": worker("running", number, parent="model") for number in range(3)}
    known = tree(model=pool, **members)
    renewal = RestartProgress(known, ["shop/model"])
    assert renewal.named == "model"
    assert renewal.of(known) == (0, 3, "3 workers")
    known.update([{"nodes": {"m0": None}}])
    known.update([{"nodes": {"m1": {**worker("starting", 7), "id": "m1", "name": "m1", "parent": "model"}}}])
    assert renewal.of(known) == (1, 3, "2 workers")
    known.update([{"nodes": {"m1": {**worker("running", 7), "id": "m1", "name": "m1", "parent": "model"}}}])
    known.update([{"nodes": {"m2": None}}])
    assert renewal.of(known) == (3, 3, "")


def test_restart_progress_of_unknown_name_is_empty() -> None:
    known = tree(w=worker("running"))
    assert RestartProgress(known, ["nobody"]).of(known) == (0, 0, "")


def test_progress_bar_appears_only_with_work_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    screen = Console(file=drawn, force_terminal=True, width=60)
    monkeypatch.setattr(waiting, "rich_console", lambda *, errors: screen)
    with bar("restarting nobody") as draw:
        draw(0, 0, "")
    assert "nobody" not in drawn.getvalue()
    with bar("restarting web") as draw:
        draw(1, 2, "1 worker to go")
        assert re.search("restarting web.*1 worker to go", drawn.getvalue())
    assert drawn.getvalue().endswith("\x1b[2K"), "the line is not cleared"


def test_in_a_pipe_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("stopping app") as draw:
        for left in ("2 events", "2 events", "1 event", ""):
            draw(0, 2, left)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"[lifecycle] stopping app: waiting for {left}" for left in ("2 events", "1 event")]


def test_progress_in_a_pipe_omits_steps_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that crashes repeatedly alternates between stopped and running."""
    with bar("stopping app") as draw:
        for done in (0, 1, 0, 1, 0, 2, 3):
            draw(done, 3, f"{3 - done} left")
    assert [line.split()[-2] for line in capsys.readouterr().err.splitlines()] == ["3", "2", "1", "0"]
