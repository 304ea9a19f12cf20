"""`lifecycle watch --live`: a page that is open in a real browser reloads itself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.browsers import browsing
from tests.realtime.test_watch_socket import port_of
from tests.realtime.watches import here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["here", "watch"]  # fixtures

#: Prints which of its pages a browser has displayed. Pages that were only fetched are not printed.
PAGES = """\
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        body = {"/": b"<!doctype html>TAG<script>fetch('/shown')</script>", "/run": b"%d" % VALUE}.get(self.path, b"")
        self.send_response(STATUS)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/shown":
            print("page", VALUE, flush=True)
        elif STATUS != 200:
            print("refused", VALUE, flush=True)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("", 0), Page, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=3)
print("up", VALUE, flush=True)
server.serve_forever()
"""

#: Waits until a new run responds before it requests the script.
LATE = """\
<script>
const wait = () => fetch('/run').then((answer) => answer.text()).then((run) => {
  if (run === 'VALUE') return setTimeout(wait, 20);
  document.head.append(Object.assign(document.createElement('script'), {src: 'SOURCE'}));
}, () => setTimeout(wait, 20));
wait();
</script>
"""

# With this option, the browser does not exit when the page is loaded.
_STAYING = "--remote-debugging-port=0"


def served(value: int, tag: str, *, status: int = 200) -> str:
    return f"VALUE = {value}\nSTATUS = {status}\n" + PAGES.replace("TAG", tag.replace('"', '\\"').replace("\n", "\\n"))


@pytest.mark.parametrize("options", [(), ("--keep-old", "--ready", "line:^up", "--stop-timeout", "1")])
def test_an_open_page_reloads_after_an_edit_and_survives_a_broken_one(
    watch: Any, here: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed; `make engines` installs it")
    seen = watch("--postpone", "--live", "0", "--socket", "127.0.0.1:0", *options)
    [(tag, source)] = seen.said(r'add this to your pages: (<script src="(.*)"></script>)')
    app = here / "app.py"
    write(app, served(1, tag))
    seen.seen("up 1")
    with browsing(f"http://127.0.0.1:{port_of(seen)}/", tmp_path / "profile", _STAYING):
        seen.seen("page 1")
        write(app, served(2, tag))
        seen.seen("page 2")
        write(app, "VALUE = = 3\n")
        seen.said("SyntaxError")
        write(app, "raise SystemExit(3)\n")
        seen.said("exited with status 3|the old process keeps running", times=2)
        write(app, served(4, tag))
        seen.seen("page 4")
        # An error page has no script tag, and the browser does not display it.
        write(app, served(5, tag, status=500))
        seen.seen("refused 5")
        write(app, served(6, tag))
        seen.seen("page 6")
        # This page requests the script only after a new run has started, so its copy is out of date.
        write(app, served(7, LATE.replace("VALUE", "7").replace("SOURCE", source)))
        seen.seen("page 7")
        write(app, served(8, tag))
        seen.seen("page 8")
    until_blocking(lambda: len(seen.children()) == 1)
