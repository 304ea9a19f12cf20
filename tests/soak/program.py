"""The program: ``python -m tests.soak.program DIRECTORY LIFE [BUS]``. It uses every package of the library.

Lines, signals, files, webhooks, the control socket and the bus control the program. When all parts have started, it
writes its addresses to the file ``up-LIFE``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle import (
    Backoff,
    Debounce,
    Event,
    FileBatch,
    FileWatchSource,
    HealthCheckSource,
    HealthEvent,
    ProbeServer,
    QueueSource,
    ReloadHandler,
    Router,
    SuspendHandler,
    TickerSource,
    merge_files,
    new_interactive_router,
    notify,
    run,
)
from lifecycle.observe import ControlSocket, Dashboard, EventLog, PrometheusMetrics
from tests.soak.flow_jobs import FlowJobs
from tests.soak.notes import Notes
from tests.soak.observer import Observer
from tests.soak.pooling import Callers, pool_of
from tests.soak.routes import Routes
from tests.soak.tree import Tree
from tests.soak.webhooks import Webhooks

if TYPE_CHECKING:
    from lifecycle.flows import SentEvent

__all__ = ["CONFIG", "DEADLINE", "HEALTH", "LOG", "NAME", "TOKEN", "WATCHED", "main"]

NAME = "soak"
TOKEN = "a-token-of-the-soak"
#: The maximum duration of a clean stop, in seconds.
DEADLINE = 25.0
#: The configuration file, the health file and the directory, all of which are watched.
CONFIG, HEALTH, WATCHED = "config.json", "healthy", "watched"
#: The name of the event log's file.
LOG = "events.jsonl"


class Soak:
    """The complete program."""

    def __init__(self, directory: Path, life: int, bus: str | None) -> None:
        self.directory = directory
        self.notes = Notes(directory, life)
        self.tree, self.flow_jobs = Tree(), FlowJobs(self.notes)
        self.pool = pool_of(self.notes)
        self.callers = Callers(self.pool, self.notes)
        self.observer = Observer(self.notes, self.tree)
        self.webhooks = Webhooks(self.notes, self.flow_jobs)
        self.routes = Routes(self.notes, self.tree, self.pool)
        self.health = HealthCheckSource("disk", self._is_well, interval=0.3, timeout=2.0)
        self.metrics = PrometheusMetrics()
        self.probes = ProbeServer("127.0.0.1", 0, checks=[self.health], metrics=self.metrics)
        self.dashboard = Dashboard(token=TOKEN)
        self.control = ControlSocket(NAME)
        self.suspender = SuspendHandler(timeout=30.0)
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=50)
        self._ticks: asyncio.Queue[Any] = asyncio.Queue(maxsize=5)
        self._last = 0
        self.router = self._router(bus)
        self.prompt = self._prompt()

    def run(self) -> None:
        """Run until the program is stopped."""
        log = EventLog(300, path=self.directory / LOG, max_bytes=100_000, backups=1)
        run(
            *(self.control, log, self.metrics, self.probes, self.dashboard, self.observer),
            *(self.tree.root, self.pool, self.flow_jobs, self.prompt, self.router, self.callers, self.main),
            exit_timeout=DEADLINE,
        )
        # This note proves that the program exited cleanly. A single system call writes it.
        self.notes.note("ended", self.callers.begun, dict(self.callers.outcomes))

    async def main(self) -> None:
        """Write the program's addresses to a file, and put numbers into the queue."""
        up = {"webhooks": self.webhooks.source.url, "dashboard": self.dashboard.url, "probes": self.probes.url}
        new = self.directory / f"up-{self.notes.life}.new"
        new.write_text(json.dumps({**up, "control": str(self.control.path)}))
        new.rename(new.with_suffix(""))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.routes.read(self.router))
            group.create_task(self._count())

    # -- routes and sources ------------------------------------------------------------------------------------------

    def _router(self, bus: str | None) -> Router:
        router = Router("soak", buffer=20)
        watched = self.directory / WATCHED
        router.add_source(FileWatchSource(watched))
        router.handle("file/*", self._edited, debounce=Debounce(0.1, max_wait=0.5, merge=merge_files))
        router.add_source(TickerSource(0.05))
        router.handle("tick/*", notify(self._ticks))
        router.add_source(self.health)
        router.on(HealthEvent)(self._felt)
        router.add_source(QueueSource(self._queue))
        router.handle("queue/*", self._in_order)
        router.add_source(self.tree.root.watch)
        router.handle("status/**", self.observer.on_status)
        router.add_source(self.flow_jobs.flows.outbox())
        router.handle("job/done", self._done, concurrency=4)
        self.webhooks.add_to(router)
        self.routes.add_to(router)
        if bus is not None:
            self._connect(router, bus)
        return router

    def _connect(self, router: Router, bus: str) -> None:
        from lifecycle.bridges import NatsBridge

        bridge = NatsBridge(
            bus,
            group="soak",
            subscribe=("bus/**",),
            publish=("bus/**",),
            ack_wait=2.0,
            max_deliver=20,
            backoff=Backoff(initial=0.05, maximum=0.5),
        )
        router.add_source(bridge, backoff=Backoff(initial=0.1, maximum=0.5))

    def _prompt(self) -> Router:
        self.suspender.manage(self.tree.root, self.pool, self.flow_jobs.flows)
        prompt = new_interactive_router(suspend=self.suspender)
        prompt.command("hello", self._hello, help="Say hello.")
        reload = ReloadHandler(self._read_config, self._take_config)
        prompt.handle("lifecycle/reload", reload, lane="lifecycle")
        return prompt

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _hello(self, _: object) -> None:
        self.notes.note("hello")

    def _edited(self, batch: FileBatch) -> None:
        for path, change in batch.changes.items():
            if change != "deleted":
                self.notes.note("file", path.name, path.read_text() if path.exists() else None)

    def _felt(self, event: HealthEvent) -> None:
        # The bridge uses the same event class to report its connection.
        if event.name == self.health.name:
            self.notes.note("health", event.healthy)

    def _is_well(self) -> None:
        (self.directory / HEALTH).read_bytes()

    def _in_order(self, event: Event) -> None:
        if event.data != self._last + 1:
            self.notes.wrong(f"{event.data} came after {self._last}")
        self._last = event.data

    def _done(self, event: SentEvent) -> None:
        self.notes.note("done", event.data["number"], event.id)

    def _read_config(self) -> int:
        return int(json.loads((self.directory / CONFIG).read_text())["number"])

    def _take_config(self, number: int) -> None:
        self.notes.note("config", number)

    async def _count(self) -> None:
        for number in range(1, 10**9):
            await self._queue.put(Event("queue/number", number))
            await self._ticks.get()


def main() -> None:
    """Run the program with the arguments of the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    directory, life, *bus = sys.argv[1:]
    Soak(Path(directory), int(life), bus[0] if bus else None).run()


if __name__ == "__main__":
    main()
