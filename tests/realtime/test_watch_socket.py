"""`lifecycle watch --socket`: no connection is refused between two runs."""

from __future__ import annotations

import signal
import socket
import sys
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.realtime.clients import requesting, response_to
from tests.realtime.test_watch_terminal import terminal
from tests.realtime.watches import LIMIT, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections import Counter
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["here", "terminal", "watch"]  # fixtures

#: Answers one request after the other. After a stop signal, it answers the requests that it has accepted, and exits.
SERVER = """\
import os, select, signal, socket
assert os.environ["LISTEN_FDS"] == "1" and os.environ["LISTEN_PID"] == str(os.getpid()), os.environ
ended, end = socket.socketpair()
end.setblocking(False)
signal.set_wakeup_fd(end.fileno())
signal.signal(signal.SIGTERM, lambda *_: None)
server = socket.socket(fileno=3)
server.setblocking(False)
print("up", VALUE, sorted(map(int, os.listdir("/proc/self/fd"))), flush=True)
while ended not in select.select([server, ended], [], [])[0]:
    try:
        connection, _ = server.accept()
    except BlockingIOError:
        continue
    with connection:
        connection.setblocking(True)
        while not connection.recv(4096).endswith(b"\\r\\n\\r\\n"):
            pass
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\nConnection: close\\r\\n\\r\\n%d" % VALUE)
"""


def ask(port: int) -> str:
    """Return the body of the response, or the error."""
    return response_to(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", lambda answer: answer.rpartition(b"\r\n\r\n")[2])


def clients(port: int, *, number: int = 8, rate: float = 200.0) -> AbstractContextManager[Counter[str]]:
    """Run clients that send ``rate`` requests per second in total, and count the responses."""
    return requesting(partial(ask, port), number=number, pause=number / rate)


def more(before: int, answers: Counter[str]) -> bool:
    return answers["7"] > before


def port_of(seen: Any) -> int:
    return int(seen.said(r"listening on 127\.0\.0\.1:(\d+) for the command")[0])


def test_no_connection_is_refused_or_reset_during_twenty_reloads(watch: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = watch("--socket", "127.0.0.1:0")
    with clients(port_of(seen)) as answers:
        for reload in range(1, 21):
            seen.seen("up 7", times=reload)
            before = answers["7"]
            until_blocking(partial(more, before, answers), "an answer")
            seen.process.send_signal(signal.SIGHUP)
        seen.seen("up 7", times=21)
    assert set(answers) == {"7"}
    assert "did not stop in time" not in seen.err.read_text()


def test_connection_without_a_run_is_answered_by_the_next(watch: Any, here: Path) -> None:
    write(here / "app.py", "raise SystemExit(1)\n")
    seen = watch("--socket", "127.0.0.1:0")
    seen.said("waiting for a change")
    answers: list[str] = []
    client = Thread(target=lambda: answers.append(ask(port_of(seen))))
    client.start()
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    client.join(LIMIT)
    assert answers == ["7"]


def test_the_command_has_the_socket_and_no_other_descriptor_of_ours(watch: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = watch("--socket", "127.0.0.1:0")
    # The command has opened descriptors 4 to 6 itself: a socket pair, and the directory that it reads.
    assert seen.seen(r"up 7 \[(.*)\]") == ["0, 1, 2, 3, 4, 5, 6"]


def test_restart_works_at_a_terminal(terminal: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = terminal("--socket", "127.0.0.1:0")
    seen.sees(r"listening on 127\.0\.0\.1:\d+ ")
    port = int(seen.tty.after.rpartition(":")[2])
    seen.sees(r"up 7 \[0, 1, 2, 3, 4, 5, 6\]")
    assert ask(port) == "7"
    seen.presses("c")
    seen.ends(0)


@pytest.mark.parametrize("left", ["3</dev/null", "3</dev/null 4</dev/null 5</dev/null"])
def test_inherited_open_descriptors_do_not_matter(watch: Any, here: Path, left: str) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    line = f"exec {sys.executable} -m lifecycle watch --socket 127.0.0.1:0 -- {sys.executable} app.py {left}"
    seen = watch("--shell", "--", line)
    seen.seen("up 7")
    assert ask(port_of(seen)) == "7"


def test_taken_port_is_reported_and_nothing_starts(watch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        seen = watch("--socket", f"127.0.0.1:{taken.getsockname()[1]}", ready=False)
        seen.ends(1)
    assert "Address already in use; use an address of this machine and a free port" in seen.err.read_text()
    assert "Traceback" not in seen.err.read_text()
    assert seen.out.read_text() == ""


@pytest.mark.parametrize("ready", ["port:8000", "http://127.0.0.1:8000/health"])
def test_ready_port_of_the_socket_is_refused(watch: Any, ready: str) -> None:
    seen = watch("--socket", "127.0.0.1:8000", "--ready", ready, ready=False)
    seen.ends(2)
    assert f"--ready {ready} cannot detect when a run is ready" in seen.err.read_text()
