"""Queries: choosing a program, and missing or invalid responses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.ctl import client, queries
from lifecycle.cli.ctl.client import Exchange
from tests.cli.ctl.fake_sockets import answer, speaker

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = answer(json.dumps({"name": "app", "pid": 7, "status": "running", "started_at": 0}))
ROUTES = answer("[]")


STREAM = b"HTTP/1.0 200 OK\r\n\r\n"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["ctl", *argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_ps_imports_nothing_heavy(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFECYCLE_LOOP", raising=False)  # it imports asyncio
    program = "import sys; from lifecycle.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    with speaker(sockets / "app.sock", PROGRAM):
        asked = subprocess.run(
            [sys.executable, "-c", program, "ctl", "ps"], capture_output=True, text=True, check=True, timeout=30
        )
    assert "app" in asked.stdout
    heavy = {"asyncio", "aiohttp", "http", "logging", "prompt_toolkit", "rich", "lifecycle.control"}
    assert heavy.isdisjoint(asked.stdout.split())


# -- choosing a program --------------------------------------------------------------------------------------------


def test_commands_exit_with_4_without_a_program(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, "routes")
    assert (status, out) == (4, "")
    assert "no program with a control socket is running" in err


def test_a_program_of_another_name_is_named(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "shop.sock", ROUTES):
        status, _, err = said(capsys, "-p", "shpo", "routes")
    assert status == 4
    assert err.startswith("[lifecycle] no program called 'shpo' is running; running programs:\n[lifecycle]   shop ")


def test_several_programs_require_a_name(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "a.sock", ROUTES), speaker(sockets / "b.sock", ROUTES):
        status, _, err = said(capsys, "routes", "--json")
        assert status == 2
        assert [line.split()[1] for line in err.splitlines()[1:]] == ["a", "b"]
        assert said(capsys, "-p", "b", "routes", "--json") == (0, '{\n  "routes": []\n}\n', "")


def test_socket_of_ended_program_is_ignored(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app.sock", ROUTES):
        pass
    (sockets / "app.sock").touch()
    assert json.loads(said(capsys, "ps", "--json")[1]) == {"programs": []}
    assert said(capsys, "-p", "app", "routes")[0] == 4


def test_ps_without_programs_is_not_a_failure(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "ps") == (0, "", "[lifecycle] no program with a control socket is running\n")


def test_ps_of_unknown_name_exits_with_4(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "-p", "app", "ps")[0] == 4


def test_several_numbered_programs_require_a_name(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app-1.sock", ROUTES), speaker(sockets / "app-2.sock", ROUTES):
        status, _, err = said(capsys, "-p", "app", "routes")
    assert status == 2
    assert err.splitlines()[0] == "[lifecycle] several programs are called 'app'; select one with -p:"


def test_ps_shows_programs_with_invalid_responses(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "good.sock", PROGRAM), speaker(sockets / "bad.sock", b"what?\r\n\r\n"):
        status, out, _ = said(capsys, "ps")
        assert status == 0
        assert [line.split()[0] for line in out.splitlines()] == ["name", "bad", "good"]
        assert "no response" in out
        _, out, _ = said(capsys, "ps", "--json")
        error, success = json.loads(out)["programs"]
    assert "does not use this library" in error["error"]
    assert success["status"] == "running"


def test_silent_program_does_not_block(
    sockets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system accepts connections on behalf of a stopped program."""
    monkeypatch.setattr(queries, "PS_TIMEOUT", 0.1)
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(sockets / "stuck.sock"))
        listener.listen()
        assert "no response" in said(capsys, "ps")[1]
        for words in (["routes"], ["status"], ["tail"], ["stop"], ["attach"]):
            status, out, err = said(capsys, *words)
            assert (status, out) == (1, "")
            assert err == (
                f"[lifecycle] stuck (pid {os.getpid()}) does not respond: its event loop is blocked, or the process is "
                "stopped\n"
            )


@pytest.mark.parametrize(
    ("given", "report"),
    [
        (answer("[" * 500_000, length=500_000), "exceeds 65536 bytes"),
        (answer("[" * 60_000), "not JSON"),
        (answer('{"deep": ' + "[" * 900 + "]" * 900 + "}"), ""),
        (answer("[]"), "does not describe a program"),
        (answer('{"name": "' + "x" * 100_000 + '"}'), "exceeds 65536 bytes"),
        (answer('{"started_at": 1e999, "pid": {}}'), ""),
        (answer('{"started_at": 1' + "0" * 400 + "}"), ""),
        (answer('{"error": "no"}', status=500), "no"),
    ],
    ids=["deep and long", "deep", "less deep", "list", "long", "odd values", "no float", "refusal"],
)
def test_ps_survives_whatever_one_program_answers(
    sockets: Path, capsys: pytest.CaptureFixture[str], given: bytes, report: str
) -> None:
    with speaker(sockets / "good.sock", PROGRAM), speaker(sockets / "odd.sock", given):
        status, out, _ = said(capsys, "ps")
        assert status == 0
        assert [line.split()[0] for line in out.splitlines()] == ["name", "good", "odd"]
        success, odd = json.loads(said(capsys, "ps", "--json")[1])["programs"]
    assert success["status"] == "running"
    assert report in odd.get("error", "")


def test_slow_response_times_out_as_a_whole(
    sockets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PS_TIMEOUT", 0.2)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        # The first connection only checks whether there is a program.
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" if connection.recv(65_536) else b"")
                while not ended.wait(0.02):
                    connection.sendall(b" ")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(sockets / "slow.sock"))
        listener.listen()
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        try:
            assert "no response" in said(capsys, "ps")[1]
        finally:
            ended.set()
            dripping.join()


@pytest.mark.parametrize("head", [b"", STREAM, STREAM + b"data: "], ids=["head", "comments", "message"])
@pytest.mark.parametrize("words", ["status", "status --json", "status --watch", "stop"])
def test_endless_response_times_out(
    sockets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, head: bytes
) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 0.2)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        # The first connection only checks whether there is a program.
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(head if connection.recv(65_536) else b"")
                while not ended.wait(0.02):
                    connection.sendall(b":\n")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(sockets / "slow.sock"))
        listener.listen()
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        try:
            status, out, err = said(capsys, *words.split())
        finally:
            ended.set()
            dripping.join()
    assert status == 1
    assert bool(out) == ("--json" in words)
    assert "slow" in err
    assert "does not respond" in err


def test_silent_programs_share_one_timeout(
    sockets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs share one timeout: if the first program uses it up, no time is left for the others."""
    monkeypatch.setattr(queries, "PS_TIMEOUT", 0.1)
    waited: list[float | None] = []
    monkeypatch.setattr(Exchange, "set_timeout", lambda _, seconds: waited.append(seconds))
    with ExitStack() as stuck:
        for number in range(3):
            listener = stuck.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(sockets / f"stuck-{number}.sock"))
            listener.listen()
        assert said(capsys, "ps")[1].count("no response") == 3
    first, *others = [seconds or 0.0 for seconds in waited]
    assert 0 <= first <= 0.1
    assert others == [0.0, 0.0], "the first program has used up the timeout"


# -- responses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "report"),
    [
        (b"", "the program exited before it responded"),
        (b"HTTP/1.0 200 OK\r\nConte", "the program exited before it responded"),
        (answer("[", length=20), "the program exited before it responded"),
        (answer("[} "), "the program's response is not JSON: b'[} '"),
        (answer("[" * 100_000), "the program's response is not JSON: b'[[["),
        (answer(b"\xff\xfe"), "the program's response is not JSON"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the listening program does not use this library; it responded 'SSH-2.0-OpenSSH'"),
        (b"HTTP/1.0 abc\r\n\r\n", "the listening program does not use this library"),
        (answer('{"error": "no such \\u001b[2Jthing"}', status=404), r"no such \x1b[2Jthing"),
        (answer("[]", status=500), "the program refused the request with status 500"),
        (answer("", status=503), "the program refused the request with status 503"),
        (b"x" * 200_000, "the program exited before it responded"),
    ],
    ids=range(12),
)
def test_invalid_response_is_a_failure_in_one_line(
    sockets: Path, capsys: pytest.CaptureFixture[str], given: bytes, report: str
) -> None:
    with speaker(sockets / "app.sock", given):
        status, out, err = said(capsys, "routes", "--json")
    assert status == 1
    assert report in err
    assert json.loads(out).keys() == {"error"}
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("commands", [answer('[{"name": "x"}]')]),
        ("commands", [answer("5")]),
        ("routes", [answer("[[]]")]),
        ("explain x", [answer("[]")]),
        ("trace 1", [answer('{"nodes": [{"depth": "x", "what": 5}]}')]),
        ("tail", [STREAM, answer("[5]")]),
        ("tail", [STREAM, answer('[{"id": 1, "what": "handled", "topic": "x", "time": 1e300}]')]),
        ("tail --json", [STREAM, answer("5")]),
        ("status", [answer("{}")]),
        ("status --watch", [STREAM + b'data: {"nodes": {"x": []}}\n\n']),
        ("stop", [answer("[]")]),
        ("suspend", [answer("[]")]),
        ("attach", [STREAM, answer("[{}]")]),
    ],
    ids=range(13),
)
def test_json_of_another_form_is_a_failure_in_one_line(
    sockets: Path, capsys: pytest.CaptureFixture[str], words: str, answers: list[bytes]
) -> None:
    with speaker(sockets / "app.sock", *answers):
        status, _, err = said(capsys, *words.split())
    assert status == 1
    assert err.startswith("[lifecycle] the program's response has an unexpected format (")
    assert err.count("\n") == 1


def test_response_in_pieces_is_joined(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"router": "r", "pattern": f"topic/{number}", "handler": "h", "place": "f:1"} for number in range(5000)]
    with speaker(sockets / "app.sock", answer(json.dumps(rows))):
        status, out, _ = said(capsys, "routes")
    assert status == 0
    assert len(out.splitlines()) == 5001


def test_routes_show_counts_and_shared_lanes(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"routed": 4, "handled": 3, "failed": 1, "dropped": 0, "held": 0}
    rows = [
        {"router": "r", "pattern": "a/*", "handler": "h", "busy": "queue", "lane": "a/*", **counts},
        {"router": "r", "pattern": "b", "handler": "h", "busy": "drop", "lane": "slow", **dict.fromkeys(counts, 0)},
    ]
    with speaker(sockets / "app.sock", answer(json.dumps(rows))):
        _, out, _ = said(capsys, "routes")
    assert out == (
        "router  pattern  handler  busy   lane\n"
        "r       a/*      h        queue        3 handled, 1 failed\n"
        "r       b        h        drop   slow\n"
    )


def test_query_is_quoted(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer('{"lines": ["a", "b\\u001b[2J"]}')
    with speaker(sockets / "app.sock", lines) as asked:
        assert said(capsys, "explain", "a b&c=#/ü\n") == (0, "a\nb\\x1b[2J\n", "")
        said(capsys, "trace", "../../api/stacks", "--json")
    assert asked[0].startswith(b"GET /api/explain?topic=a+b%26c%3D%23%2F%C3%BC%0A HTTP/1.0\r\n")
    assert asked[1].startswith(b"GET /api/trace/..%2F..%2Fapi%2Fstacks HTTP/1.0\r\n")


# -- commands ------------------------------------------------------------------------------------------------------


def outcome(what: str, **more: object) -> bytes:
    return answer(json.dumps({"outcome": what, "delivery": 3, "error": None, "answer": None, **more}))


@pytest.mark.parametrize("what", ["failed", "dropped", "unknown"])
def test_a_command_that_is_not_carried_out_ends_with_1(
    sockets: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    with speaker(sockets / "app.sock", outcome(what, error="a\nb\x1b[2J")):
        assert said(capsys, "deploy", "prod") == (1, "", "[lifecycle] app: a\n[lifecycle] b\\x1b[2J\n")
        status, out, err = said(capsys, "reload", "--json")
    assert (status, err) == (1, "")
    assert json.loads(out)["outcome"] == what


def test_commands_reach_the_program_as_typed(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app.sock", outcome("handled", answer="it is\tdone\x07")) as asked:
        assert said(capsys, "deploy", "two words", "it's", "--json", "-p")[:2] == (0, "it is\tdone\\x07\n")
        said(capsys, "suspend", "--json")
        said(capsys, "--", "status", "--watch")
        said(capsys, "deploy", "--", "-x")
    lines = [json.loads(question.partition(b"\r\n\r\n")[2])["line"] for question in asked]
    assert lines == ["""deploy 'two words' 'it'"'"'s' --json -p""", "suspend", "status --watch", "deploy -- -x"]


def test_an_event_is_sent_with_its_data(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "app.sock", outcome("handled")) as asked:
        assert said(capsys, "emit", "deploy/start", '{"ref": "v2"}')[0] == 0
        assert said(capsys, "emit", "deploy/start")[0] == 0
        status, _, err = said(capsys, "emit", "deploy/start", "v2")
    assert status == 2
    assert "'v2' is not JSON" in err
    bodies = [json.loads(question.partition(b"\r\n\r\n")[2]) for question in asked]
    assert bodies == [{"topic": "deploy/start", "data": {"ref": "v2"}}, {"topic": "deploy/start", "data": None}]
