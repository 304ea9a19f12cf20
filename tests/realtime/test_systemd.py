"""Real programs that notify a socket in place of systemd."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.managers import Manager
from tests.programs import Running

if TYPE_CHECKING:
    from pathlib import Path

SERVICE = """
import asyncio
from lifecycle import ReloadEvent, ReloadHandler, Router, on_shutdown, run

router = Router()
router.handle(ReloadEvent, ReloadHandler(lambda: {"parsed": True}, lambda new: print("reloaded", flush=True)))

async def main():
    on_shutdown(lambda: print("closed", flush=True))
    await asyncio.Event().wait()

run(router, main)
"""

PARENT = """
import asyncio, os, sys
from lifecycle import ProcessWorker, run

CHILD = '''
import os, socket, time
told = {name: os.environ.get(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
    manager.connect(chr(0) + told["NOTIFY_SOCKET"][1:])
    manager.send(b"STATUS=of the child")
    manager.send(b"READY=1")
print("child", told["NOTIFY_SOCKET"] != os.environ["PARENTS"], repr(told["WATCHDOG_USEC"]), flush=True)
time.sleep(300)
'''
PLAIN = "import os; print('plain', 'NOTIFY_SOCKET' in os.environ, flush=True)"

def show(line, stream):
    print(line, flush=True)

async def main():
    await ProcessWorker("plain", sys.executable, "-c", PLAIN, output=show).start()
    await asyncio.Event().wait()

run(ProcessWorker("child", sys.executable, "-c", CHILD, output=show, ready="notify"), main)
"""


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_a_service_notifies_its_whole_lifecycle_in_order(kind: str, tmp_path: Path) -> None:
    """The program behaves as ``Type=notify-reload`` requires: SIGHUP reloads it, and SIGTERM stops it."""
    env = {"WATCHDOG_USEC": "200000"}
    with (
        Manager(tmp_path if kind == "file" else None) as manager,
        closing(Running("-c", SERVICE, env={**env, "NOTIFY_SOCKET": manager.address})) as service,
    ):
        manager.until("READY", "1")
        manager.until("WATCHDOG", "1")
        manager.until("WATCHDOG", "1")
        service.process.send_signal(signal.SIGHUP)
        assert int(manager.until("RELOADING", "1")["MONOTONIC_USEC"]) > 0
        service.until("reloaded")
        assert manager.until("READY", "1")["STATUS"] == "running"
        service.process.send_signal(signal.SIGTERM)
        stopping = manager.until("STOPPING", "1")
        service.until("closed")
        service.rest()
        assert (stopping["STATUS"], stopping["EXTEND_TIMEOUT_USEC"]) == ("stopping: terminate", "10000000")
        given = [next(iter(notice)) for notice in manager.read() if "STATUS" in notice]
    assert given == ["READY", "RELOADING", "READY", "STOPPING"]


def test_workers_speak_to_their_parent_and_not_to_the_manager() -> None:
    with Manager() as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000", "PARENTS": manager.address}
        with closing(Running("-c", PARENT, env=env)) as parent:
            parent.until("child True ''")
            parent.until("plain False")
            manager.until("READY", "1")
            parent.stop()
        assert [notice["STATUS"] for notice in manager.read() if "STATUS" in notice] == [
            "running",
            "stopping: terminate",
        ]
