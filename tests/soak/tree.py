"""The program's supervisors: processes, tasks and threads that crash on request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from lifecycle import Backoff, Gate, ProcessWorker, Spec, Supervisor, ThreadWorker
from lifecycle.workers import Intensity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["TASKS", "THREADS", "Tree"]

SOON = Backoff(initial=0.05, maximum=0.5)
#: The backoff for a child that crashes too often. Its supervisor stops restarting it, and a command
#: starts it again.
_BRITTLE = Backoff(initial=0.01, maximum=0.05, max_restarts=3, within=5.0)

#: Workers that a command can crash.
TASKS = ("counter", "pair-task", "link-2", "brittle")
THREADS = ("thread",)

_LONG = ["sleep", "100000"]
_CHATTY = "while :; do echo tick; sleep 0.2; done"
_FAMILY = "sleep 100000 & setsid sleep 100000 & wait"
_STUBBORN = "trap '' TERM; while :; do sleep 0.2; done"


class Tree:
    """The root supervisor, and the data that its workers share."""

    def __init__(self) -> None:
        self._fuses: dict[str, asyncio.Event] = {}
        self._thread_fuse = threading.Event()
        #: The number of each loop's iterations.
        self.rounds: Counter[str] = Counter()
        #: The number of output lines.
        self.lines = 0
        self.root = Supervisor(
            "tree",
            Spec("sleeper", _LONG, backoff=SOON),
            Spec("chatty", lambda: self._shell("chatty", _CHATTY), backoff=SOON, probe_interval=1.0),
            Spec("family", lambda: self._shell("family", _FAMILY), backoff=SOON),
            Spec("stubborn", lambda: self._shell("stubborn", _STUBBORN), backoff=SOON),
            Spec("counter", self._task("counter"), backoff=SOON),
            Spec("thread", lambda: ThreadWorker("thread", self._thread), backoff=SOON),
            Spec("brittle", self._task("brittle"), backoff=_BRITTLE),
            Spec("done", ["true"], restart="never"),
            Spec("pair", self._pair, backoff=SOON),
            Spec("chain", self._chain, backoff=SOON),
        )

    def crash(self, name: str) -> None:
        """Make the worker ``name`` fail."""
        if name in THREADS:
            self._thread_fuse.set()
        elif name in self._fuses:
            self._fuses[name].set()

    def _pair(self) -> Supervisor:
        """Return a supervisor that runs both children or neither. The root restarts it after too many failures."""
        return Supervisor(
            "pair",
            Spec("pair-process", _LONG, backoff=SOON),
            Spec("pair-task", self._task("pair-task"), backoff=SOON),
            strategy="one_for_all",
            intensity=Intensity(5, 1.0),
        )

    def _chain(self) -> Supervisor:
        return Supervisor(
            "chain",
            Spec("link-1", _LONG, backoff=SOON),
            Spec("link-2", self._task("link-2"), backoff=SOON),
            Spec("link-3", _LONG, backoff=SOON),
            strategy="rest_for_one",
            stop_order="parallel",
        )

    def _shell(self, name: str, script: str) -> ProcessWorker:
        return ProcessWorker(name, "sh", "-c", script, output=self._heard, stop_timeout=0.5)

    def _heard(self, line: str, stream: str) -> None:
        del line, stream
        self.lines += 1

    def _task(self, name: str) -> Callable[[Gate], Coroutine[Any, Any, None]]:
        async def work(gate: Gate) -> None:
            fuse = self._fuses[name] = asyncio.Event()
            while not fuse.is_set():
                await gate.checkpoint()
                self.rounds[name] += 1
                await asyncio.sleep(0.02)
            raise ValueError(f"{name} broke")

        return work

    def _thread(self, stop: threading.Event) -> None:
        self._thread_fuse.clear()
        while not stop.wait(0.05):
            self.rounds["thread"] += 1
            if self._thread_fuse.is_set():
                raise ValueError("the thread broke")
