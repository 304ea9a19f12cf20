"""Peers that restart a command when files change."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

from tests.conformance.peers.programs import PARENT, edit, folder, lives, pids, running, until

__all__ = [
    "uvicorn_lets_clients_wait_while_what_was_saved_does_not_compile",
    "watchfiles_leaves_alone_what_the_command_has_started",
    "watchfiles_starts_what_does_not_compile_in_place_of_what_ran",
]

BROKEN = "\ndef (\n"


def watchfiles_starts_what_does_not_compile_in_place_of_what_ran() -> None:
    with folder(PARENT) as here, running(here, "watchfiles", f"{sys.executable} app.py", "."):
        [parent, _] = pids(here, 1)
        edit(here, BROKEN)
        until(lambda: not lives(parent))


def watchfiles_leaves_alone_what_the_command_has_started() -> None:
    with folder(PARENT) as here, running(here, "watchfiles", f"{sys.executable} app.py", "."):
        [parent, child] = pids(here, 1)
        edit(here, "# changed\n")
        pids(here, 2)
        assert not lives(parent)
        assert lives(child)


def uvicorn_lets_clients_wait_while_what_was_saved_does_not_compile() -> None:
    app = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with folder(app) as here, running(here, "uvicorn", "app:app", "--reload", "--port", str(port)):
        until(lambda: answers(port, within=2.0))
        edit(here, BROKEN)
        until(lambda: not answers(port, within=2.0))
        with socket.create_connection(("127.0.0.1", port), 2.0):
            assert not answers(port, within=2.0)


def answers(port: int, *, within: float) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), within) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return client.recv(100).startswith(b"HTTP/1.1 204")
    return False
