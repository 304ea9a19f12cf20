"""The receiver packaged by Debian as `webhook` (github.com/adnanh/webhook), which runs a command for each request."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks._webhook_server import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["missing", "started"]

_HOOKS = [
    {
        "id": "deploy",
        "execute-command": "/bin/true",
        "trigger-rule": {
            "match": {
                "type": "payload-hmac-sha256",
                "secret": SECRET.decode(),
                "parameter": {"source": "header", "name": "X-Hub-Signature-256"},
            }
        },
    }
]


def missing() -> str:
    """Return the reason why the receiver cannot be measured here, or an empty string."""
    if shutil.which("webhook") is None:
        return "webhook is not installed; `make engines` installs it (Debian: apt-get install webhook)"
    return ""


@contextmanager
def started() -> Iterator[tuple[str, psutil.Process]]:
    """Run the receiver. Yield its URL, and a function that returns its CPU time."""
    with tempfile.TemporaryDirectory() as directory:
        hooks = Path(directory, "hooks.json")
        hooks.write_text(json.dumps(_HOOKS))
        argv = ["webhook", "-hooks", str(hooks), "-urlprefix", "", "-ip", "127.0.0.1", "-port", "0"]
        with subprocess.Popen(argv) as process:
            try:
                yield f"http://127.0.0.1:{_port(process)}/deploy", psutil.Process(process.pid)
            finally:
                process.kill()


def _port(process: subprocess.Popen[bytes]) -> int:
    """Return the receiver's port. The receiver does not print the port, so it is read from the kernel."""
    while process.poll() is None:
        for connection in psutil.Process(process.pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
        time.sleep(0.01)
    raise RuntimeError(f"webhook exited with status {process.returncode} before it accepted requests")
