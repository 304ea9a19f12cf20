"""A program exits in time and with its own exit status, even if a disk or an exporter hangs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, threading
from opentelemetry.sdk.trace import TracerProvider
from lifecycle import Event, Router, run
from lifecycle.observe import EventLog, OpenTelemetryTraces
from lifecycle.observe.eventlog import files

files._CLOSING = 0.1
write, hangs = os.write, threading.Event()


def hang(fd, data):
    if b'"topic"' in data:
        hangs.set()
        threading.Event().wait()
    return write(fd, data)


class Provider(TracerProvider):
    def force_flush(self, timeout_millis=30_000):
        threading.Event().wait()


os.write = hang
router = Router()
router.handle("a", print)


async def main():
    await (await router.emit(Event("a")))
    await __import__("asyncio").to_thread(hangs.wait)
    await router.emit(Event("a"))


provider = Provider(shutdown_on_exit=False)
run(EventLog(path="events.jsonl"), OpenTelemetryTraces(provider, flush_timeout=0.1), router, main)
print("ended")
"""


def test_a_hanging_disk_or_exporter_does_not_keep_a_program_running(tmp_path: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=str(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "ended"), ended.stderr
    assert "events are missing from events.jsonl: the disk is too slow" in ended.stderr
    assert "could not send all spans within 0.1 s" in ended.stderr
    assert "forced to exit" not in ended.stderr
