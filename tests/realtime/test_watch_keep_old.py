"""`lifecycle watch --keep-old`: one process is serving at any time."""

from __future__ import annotations

import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.realtime.test_watch_socket import SERVER, ask, clients, more, port_of
from tests.realtime.watches import LIMIT, has_ended, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["here", "watch"]  # fixtures

OPTIONS = ("--socket", "127.0.0.1:0", "--keep-old", "--ready", "line:^up", "--stop-timeout", "600")


def test_through_ten_replacements_each_request_is_answered(watch: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = watch(*OPTIONS)
    with clients(port_of(seen)) as answers:
        for replaced in range(10):
            seen.said("ready:", times=replaced + 1)
            before = answers["7"]
            until_blocking(partial(more, before, answers), "an answer")
            seen.process.send_signal(signal.SIGHUP)
        seen.said("ready:", times=11)
    assert set(answers) == {"7"}
    until_blocking(lambda: len(seen.children()) == 1, "the end of the old one")
    assert "did not stop in time" not in seen.err.read_text()


def test_failing_successor_leaves_the_old_run_serving(watch: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = watch(*OPTIONS)
    seen.said("ready:")
    [old] = seen.children()
    with clients(port_of(seen)) as answers:
        write(here / "app.py", "raise SystemExit(3)\n")
        seen.said("the old process keeps running")
        write(here / "app.py", "import time\nprint('hangs', flush=True)\ntime.sleep(600)\n")
        seen.seen("hangs")
        write(here / "app.py", "VALUE = 8\n" + SERVER)
        seen.seen("up 8")
        until_blocking(lambda: answers["8"], "an answer of the new one")
    assert set(answers) == {"7", "8"}
    until_blocking(lambda: has_ended(old), "the end of the old one")
    assert len(until_blocking(lambda: seen.children() if len(seen.children()) == 1 else None)) == 1


def test_old_run_answers_accepted_requests_while_the_new_one_serves(watch: Any, here: Path) -> None:
    write(here / "app.py", "VALUE = 7\n" + SERVER)
    seen = watch(*OPTIONS)
    seen.said("ready:")
    [old] = seen.children()
    with socket.create_connection(("127.0.0.1", port_of(seen)), timeout=LIMIT) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        until_blocking(lambda: len(old.net_connections()) == 2, "the connection")
        write(here / "app.py", "VALUE = 8\n" + SERVER)
        seen.seen("up 8")
        assert ask(port_of(seen)) == "8"
        assert not has_ended(old)
        slow.sendall(b"Host: x\r\n\r\n")
        assert slow.recv(4096).endswith(b"7")
    until_blocking(lambda: has_ended(old), "the end of the old one")
    assert len(seen.children()) == 1
