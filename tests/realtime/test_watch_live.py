"""`lifecycle watch --live`: a page that is open in a real browser reloads itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.realtime.test_watch import here, until, watch, write
from tests.realtime.test_watch_socket import port_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["here", "watch"]  # fixtures

#: Says which of its pages hears of reloads: where it was only fetched, the script may not have been.
PAGES = """\
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<!doctype html>TAG<script>fetch('/heard')</script>" if self.path == "/" else b""
        self.do_HEAD(len(body))
        self.wfile.write(body)
        if self.path == "/heard":
            print("page", VALUE, flush=True)

    def do_HEAD(self, size=0):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("", 0), Page, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=3)
print("up", VALUE, flush=True)
server.serve_forever()
"""

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    # Without it the browser would end when the page is loaded.
    "--remote-debugging-port=0",
)


@contextmanager
def browser(url: str, profile: Path) -> Iterator[None]:
    """One that has ``url`` open; no process of it is left in the end."""
    command = ["chromium", *_OPTIONS, f"--user-data-dir={profile}", url]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null, process_group=0) as started:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


@pytest.mark.parametrize("options", [(), ("--keep-old", "--ready", "line:^up", "--stop-timeout", "1")])
def test_an_open_page_reloads_after_an_edit_and_survives_a_broken_one(
    watch: Any, here: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed; `make engines` installs it")
    seen = watch("--postpone", "--live", "0", "--socket", "127.0.0.1:0", *options)
    [tag] = seen.said(r"put this into your pages: (<script .*</script>)")
    pages = PAGES.replace("TAG", tag.replace('"', '\\"'))
    write(here / "app.py", "VALUE = 1\n" + pages)
    seen.seen("up 1")
    with browser(f"http://127.0.0.1:{port_of(seen)}/", tmp_path / "profile"):
        seen.seen("page 1")
        write(here / "app.py", "VALUE = 2\n" + pages)
        seen.seen("page 2")
        write(here / "app.py", "VALUE = = 3\n")
        seen.said("SyntaxError")
        write(here / "app.py", "raise SystemExit(3)\n")
        seen.said("exited with status 3|the old process goes on", times=2)
        write(here / "app.py", "VALUE = 4\n" + pages)
        seen.seen("page 4")
    until(lambda: len(seen.children()) == 1)
