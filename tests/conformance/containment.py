"""Which of seven processes survive a kill: ``python -m tests.conformance.containment``.

An app starts the processes under a `ProcessWorker`, once for each level that this machine supports. Then SIGKILL kills
either the app or only the worker. A second app with its own processes runs at the same time and must survive. For each
level, the output shows how many of the seven processes are dead, and the milliseconds until the last death.

C0 is the child itself, C1 a fork in its group, and C2 a fork in a new session. C3 is a daemon that keeps its
environment, and C4 a daemon with an empty environment and no open descriptors. C5 ignores TERM, INT and HUP, and C6 is
in a new process group.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.errors import WorkerFailed
from lifecycle.workers import ProcessWorker
from lifecycle.workers.containment.guard import guard_manager

if TYPE_CHECKING:
    from typing import Self

__all__ = ["EXPECTED", "LEVELS", "MEMBERS", "VICTIMS", "Case", "Family", "measured"]

LEVELS = ("group", "guard", "cgroup", "pidns")
VICTIMS = ("app", "worker")
MEMBERS = tuple(f"C{number}" for number in range(7))
#: The expected survivors, by level and victim.
EXPECTED = {
    ("group", "app"): set(MEMBERS),
    ("group", "worker"): {"C2", "C3", "C4", "C6"},
    ("guard", "app"): {"C4"},
    ("guard", "worker"): {"C4"},
    ("cgroup", "app"): set(),
    ("cgroup", "worker"): set(),
    ("pidns", "app"): set(),
    ("pidns", "worker"): set(),
}
LIMIT = 20.0
ROOT = Path(__file__).parents[2]

#: Each process reports through a socket, whose credentials contain the process's PID outside any namespace.
FAMILY = """
import os, signal, socket, sys
def member(name, *steps):
    if os.fork():
        return
    for step in steps:
        step()
    report(name)
    if name == "C4":
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    linger()
def report(name):
    talk = socket.socket(socket.AF_UNIX)
    talk.connect(sys.argv[1])
    talk.sendall(name.encode())
    talk.recv(1)
    talk.close()
def linger():
    while True:
        signal.pause()
def fork():
    if os.fork():
        os._exit(0)
def deaf():
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
member("C1")
member("C2", os.setsid)
member("C3", fork, os.setsid, fork)
member("C4", fork, os.setsid, fork)
member("C5", deaf)
member("C6", lambda: os.setpgid(0, 0))
report("C0")
linger()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The result of one kill."""

    level: str
    victim: str
    survivors: frozenset[str]
    #: Milliseconds from the kill to the last resulting death.
    last_death: float

    @property
    def as_expected(self) -> bool:
        return self.survivors == EXPECTED[self.level, self.victim]


class Refused(Exception):
    """Raised if this machine does not support the level."""


class Family:
    """An app and its seven processes. Leaving the block kills all of them, whatever their state."""

    def __init__(self, level: str) -> None:
        self.level = level
        self._open = ExitStack()
        self._fds: dict[str, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._end)
            self._begin()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def alive(self) -> frozenset[str]:
        """Return the running processes, including "app" and "guard"."""
        return frozenset(name for name, fd in self._fds.items() if not select.select([fd], [], [], 0)[0])

    def kill(self, victim: str) -> Case:
        """Kill "app" or "worker", and return the result."""
        began = time.monotonic()
        signal.pidfd_send_signal(self._fds["app" if victim == "app" else "C0"], signal.SIGKILL)
        deaths = self._deaths_until(self._ends_guard if victim == "app" else self._ends_worker)
        members = {name: at - began for name, at in deaths.items() if name in MEMBERS}
        last = max(members.values(), default=0.0) * 1000
        return Case(self.level, victim, frozenset(MEMBERS) - set(members), last)

    def _begin(self) -> None:
        place = self._open.enter_context(tempfile.TemporaryDirectory())
        listener = self._open.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(LIMIT)
        listener.bind(f"{place}/who")
        listener.listen(10)
        app = [sys.executable, "-m", "tests.conformance.containment", "--app", self.level, f"{place}/who"]
        self._app = subprocess.Popen(app, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._fds["app"] = os.pidfd_open(self._app.pid)
        self._meet_app()
        for _ in MEMBERS:
            self._meet(listener)
        _until(lambda: self._pids["C4"].read_text() == "sleep\n")

    def _meet_app(self) -> None:
        assert self._app.stdout is not None
        said = json.loads(self._app.stdout.readline())
        if "refused" in said:
            raise Refused(said["refused"])
        assert said["level"] == self.level, said
        self._pids: dict[str, Path] = {}
        if said["guard"]:
            self._fds["guard"] = os.pidfd_open(said["guard"])

    def _meet(self, listener: socket.socket) -> None:
        talk, _ = listener.accept()
        with talk:
            name = talk.recv(10).decode()
            pid, _, _ = struct.unpack("3i", talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self._fds[name] = os.pidfd_open(pid)
            self._pids[name] = Path(f"/proc/{pid}/comm")

    def _deaths_until(self, over: object) -> dict[str, float]:
        """Return the time of each death. Stop when ``over`` returns true, because no more deaths are expected."""
        assert callable(over)
        poll = select.poll()
        names = {fd: name for name, fd in self._fds.items()}
        for fd in names:
            poll.register(fd, select.POLLIN)
        deaths: dict[str, float] = {}
        until = time.monotonic() + LIMIT
        last = False
        while time.monotonic() < until:
            for fd, _ in poll.poll(1):
                deaths[names[fd]] = time.monotonic()
                poll.unregister(fd)
            if last:
                return deaths
            last = over(deaths)
        raise TimeoutError(f"the expected deaths were not reported within {LIMIT} s; dead: {sorted(deaths)}")

    def _ends_guard(self, deaths: dict[str, float]) -> bool:
        return "guard" in deaths or ("guard" not in self._fds and "app" in deaths)

    def _ends_worker(self, _: dict[str, float]) -> bool:
        assert self._app.stdout is not None
        return bool(select.select([self._app.stdout], [], [], 0)[0])

    def _end(self) -> None:
        """Kill all processes through the pidfds that were opened when they reported. The guard exits by itself."""
        for name, fd in self._fds.items():
            if name != "guard":
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        if "guard" in self._fds:
            select.select([self._fds["guard"]], [], [], LIMIT)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        with suppress(AttributeError):
            self._app.communicate(timeout=LIMIT)
        self._open.close()


def measured(level: str, victim: str) -> Case:
    """Return the result of one kill. Raises `Refused` if the level is not supported."""
    with Family(level) as family:
        return family.kill(victim)


def _until(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.001)


# -- the app ------------------------------------------------------------------------------------------------------


async def _app(level: str, place: str) -> None:
    worker = ProcessWorker("family", sys.executable, "-I", "-S", "-c", FAMILY, place, contain=level)
    try:
        await worker.start()
    except WorkerFailed as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    print(json.dumps({"level": worker.state().contain, "guard": guard_manager.pid}), flush=True)
    await worker.wait()
    print("over", flush=True)
    await asyncio.Event().wait()


def main() -> int:
    """Print the table, and return 1 if it differs from the expectations."""
    failed = 0
    print(f"{'level':8} {'killed':8} {'dead':>6} {'last death':>12}  survivors")
    with Family("guard") as stranger:
        before = stranger.alive
        for level in LEVELS:
            try:
                cases = [measured(level, victim) for victim in VICTIMS]
            except Refused as error:
                print(f"{level:8} -        {error}")
                continue
            for case in cases:
                dead = f"{len(MEMBERS) - len(case.survivors)} of 7"
                note = "" if case.as_expected else "   NOT AS EXPECTED"
                lived = " ".join(sorted(case.survivors))
                print(f"{level:8} {case.victim:8} {dead:>6} {case.last_death:9.1f} ms  {lived}{note}")
                failed += not case.as_expected
        unharmed = stranger.alive == before
    print(f"an unrelated runtime next to it {'survived all of it' if unharmed else 'WAS HARMED'}")
    return int(failed > 0 or not unharmed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--app"]:
        asyncio.run(_app(*sys.argv[2:]))
    else:
        sys.exit(main())
