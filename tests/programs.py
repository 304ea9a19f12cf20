"""Programs in separate processes. Their output is read with generous time limits, and they are always stopped."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["LIMIT", "Running", "connect", "free_port", "in_this_process", "post"]

LIMIT = 30.0  # seconds; a working program needs much less


def in_this_process(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run the command `lifecycle` without starting a process, and return its exit status and output."""
    try:
        status: Any = main(argv)
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


class Running:
    """A program and its output so far, with both streams combined."""

    def __init__(self, *argv: str, cwd: Path | None = None, keyboard: bool = False, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=cwd,
            stdin=subprocess.PIPE if keyboard else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
        self.text = ""
        # The position in the output after the last matched text.
        self._at = 0

    def until(self, text: str) -> None:
        """Read until ``text`` appears after the text that was matched before."""
        if not self.says(text, LIMIT):
            pytest.fail(f"{text!r} was not printed; the output was:\n{self.text}")

    def says(self, text: str, within: float) -> bool:
        """Return whether ``text`` appears in time after the text that was matched before."""
        end = time.monotonic() + within
        while (found := self.text.find(text, self._at)) < 0:
            if not self._read(end):
                return False
        self._at = found + len(text)
        return True

    def answers(self, ask: Callable[[], object], text: str, *, every: float = 1.0) -> None:
        """Call ``ask`` until ``text`` is printed, because the start of a watch is not visible from outside."""
        end = time.monotonic() + LIMIT
        while True:
            ask()
            if self.says(text, every):
                return
            assert time.monotonic() < end, f"{text!r} was not printed; the output was:\n{self.text}"

    def rest(self, status: int = 0) -> str:
        """Wait until the program has exited with ``status``, and return its output."""
        assert self.exit_code() == status, self.text
        return self.text

    def exit_code(self) -> int:
        """Wait until the program has exited, read the rest of its output, and return its exit code."""
        end = time.monotonic() + LIMIT
        while self._read(end):
            pass
        return self.process.wait(max(0, end - time.monotonic()))

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(signum)
        return self.rest()

    def _read(self, end: float) -> bool:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
            return False
        piece = os.read(self.process.stdout.fileno(), 65536)
        self.text += piece.decode()
        return bool(piece)

    def close(self) -> None:
        """Stop the program, first with SIGTERM, because a killed program would leave its workers."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(LIMIT)


def free_port() -> int:
    """Return a free port below 32768, which the system does not assign automatically."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
            return int(probe.getsockname()[1])


def connect(port: int) -> None:
    """Wait until the port accepts connections."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), LIMIT).close()
        except OSError:
            assert time.monotonic() < end, f"port {port} does not accept connections"
            time.sleep(0.02)
        else:
            return


def post(port: int, path: str, body: bytes, secret: str) -> int:
    signature = hmac.digest(secret.encode(), body, hashlib.sha256).hex()
    headers = {"X-Hub-Signature-256": f"sha256={signature}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
