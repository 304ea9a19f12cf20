"""Checks that the program must pass when attacks are off and it is idle."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]  # jsonschema has no stubs
import psutil

from lifecycle.flows import Change
from tests.flows.legality import illegal
from tests.guards import is_guard
from tests.soak.attacks import workers_of
from tests.soak.flow_jobs import ENDS, FILE
from tests.soak.lives import LIMIT, Broken
from tests.soak.pooling import SIZE
from tests.soak.program import CONFIG, HEALTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.soak.attacks import Attacks
    from tests.soak.history import History
    from tests.soak.lives import Life
    from tests.soak.steering import Console

__all__ = ["QuietCheck", "check_file"]

_SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "snapshot.schema.json").read_text())
_RESTLESS = ("created", "pending", "starting", "stopping", "suspended")
#: A child that fails on purpose until its supervisor stops restarting it. A command starts it again.
_BRITTLE = "brittle"
#: Loops that stop during a suspension.
_HELD = ("counter", "pair-task", "link-2", "brittle")


class QuietCheck:
    """Checks one run while attacks are off."""

    def __init__(self, life: Life, console: Console, attacks: Attacks, history: History) -> None:
        self._life, self._console, self._attacks, self._history = life, console, attacks, history
        self._config = 0

    async def check(self) -> None:
        """Run all checks.

        Raises:
            Broken: if any condition is violated. The message lists all violations.
        """
        await self._console.command(f"restart tree/{_BRITTLE}")
        self._config += 1
        (self._life.directory / CONFIG).write_text(json.dumps({"number": -self._config}))
        self._life.send(signal.SIGHUP)
        await self._until_true()
        await self._check_suspension()

    async def go_on(self) -> None:
        """Undo the attacks that keep the program busy, so that it becomes idle."""
        state = await self._console.state()
        for source in (source for router in state["routers"] for source in router["sources"] if source["held"]):
            await self._console.command(f"release {shlex.quote(source['name'])}")
        await self._console.command("resume")

    async def _until_true(self) -> None:
        """Repeat the checks for a while, because recent work may still be running. A real violation persists."""
        until = time.monotonic() + LIMIT
        while lies := await self._violations():
            if not self._life.alive:
                raise Broken(f"the program exited by itself, with {self._life.process.returncode}")
            if time.monotonic() > until:
                raise Broken(f"after {LIMIT:g} s without attacks: {'; '.join(lies)}")
            await asyncio.sleep(0.2)

    async def _violations(self) -> list[str]:
        self._history.read()
        state = await self._console.state()
        return [
            *self._history.lacking(),
            *self._unseen(),
            *_restless(state),
            *self._unlike(state),
            *check_file(self._life.directory, at_rest=True),
            *([] if await self._console.ready() else ["it is not ready"]),
        ]

    def _unseen(self) -> Iterator[str]:
        """Yield this run's attacks that had no effect."""
        history, directory = self._history, self._life.directory
        for name, content in self._attacks.files.items():
            if history.files.get(name) != content:
                yield f"{name} is {content!r}, and was last seen as {history.files.get(name)!r}"
        if history.health is not (directory / HEALTH).exists():
            yield f"health is {not history.health}, and was last reported as {history.health}"
        if history.config != -self._config:
            yield f"the configuration is {-self._config}, and the last to be loaded was {history.config}"
        if history.hellos != self._attacks.hellos:
            yield f"it was greeted {self._attacks.hellos} times, and heard {history.hellos}"

    def _unlike(self, state: Any) -> Iterator[str]:
        """Yield differences between the processes in the snapshot and the system's processes."""
        try:
            children = [child for child in psutil.Process(self._life.process.pid).children() if not is_guard(child)]
            zombies = [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE]
        except psutil.Error as error:
            yield f"its processes cannot be looked at: {error}"
            return
        claimed = {pid for _, pid in workers_of(state)}
        if zombies or {child.pid for child in children} != claimed:
            yield f"it has {[child.pid for child in children]} ({zombies} are zombies), and says {sorted(claimed)}"
        try:
            jsonschema.validate(state, _SCHEMA)
        except jsonschema.ValidationError as error:
            yield f"the snapshot is not what its schema says: {error.message[:200]}"

    async def _check_suspension(self) -> None:
        """Check that loops stop during a suspension and run again after the resume."""
        outcome = await self._console.command("suspend")
        if outcome != "handled":
            raise Broken(f"unexpected outcome of a suspension while idle: {outcome}")
        first = await self._noted(lambda _: True)
        then = await self._noted(lambda _: True)
        if moved := [name for name in _HELD if first.get(name) != then.get(name)]:
            raise Broken(f"{moved} kept running during the suspension: {first}, {then}")
        if (outcome := await self._console.command("resume")) != "handled":
            raise Broken(f"unexpected outcome of a resume while idle: {outcome}")
        await self._noted(lambda rounds: all(rounds[name] > then[name] for name in _HELD if name in then))

    async def _noted(self, good: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Wait for a note for which ``good`` is true, and return the loop counts in that note."""
        self._history.read()
        seen = self._history.lines["rounds"]
        try:
            async with asyncio.timeout(LIMIT):
                while self._history.lines["rounds"] < seen + 2 or not good(self._history.rounds):
                    await asyncio.sleep(0.05)
                    self._history.read()
        except TimeoutError:
            raise Broken(f"the loops did not continue: {self._history.rounds}") from None
        return self._history.rounds


def _restless(state: Any) -> Iterator[str]:
    """Yield the objects in a snapshot that are still busy or are unhealthy."""
    for worker in _all_workers(state):
        wanted = "finished" if worker["name"] == "done" else "running"
        if worker["status"] != wanted and (worker["kind"] != "member" or worker["status"] in _RESTLESS):
            yield f"{worker['name']} is {worker['status']}: {worker['error']}"
    for router in state["routers"]:
        yield from (f"the lane {lane['name']} is at work" for lane in router["lanes"] if _busy(lane))
        for source in router["sources"]:
            if not source["running"] or source["held"]:
                yield f"the source {source['name']} is {'held' if source['held'] else 'not running'}"
    for queue in (*state["queues"], *state["inboxes"]):
        if any(queue["depths"].values()):
            yield f"there are {queue['depths']} in {queue['name']}"
    yield from (f"the flow {run['id']} is {run['state']}" for flows in state["flows"] for run in flows["runs"])
    yield from (f"the pool has {pool['stats']}" for pool in state["pools"] if pool["stats"]["size"] != SIZE)
    yield from state["errors"]


def _busy(lane: Any) -> bool:
    """Return whether a lane contains events, ignoring ticks and similar periodic events."""
    return bool(lane["running"] or lane["waiting"]) and not lane["name"].startswith(("tick", "queue", "status"))


def _all_workers(state: Any) -> Iterator[Any]:
    left = [*state["workers"], *(pool["worker"] for pool in state["pools"])]
    while left:
        worker = left.pop()
        yield worker
        left += worker["children"]


def check_file(directory: Path, *, at_rest: bool) -> Iterator[str]:
    """Yield violations in the flow database: illegal transitions and, if idle, unfinished flows."""
    path = directory / FILE
    if not path.exists():
        return
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as db:
        flows: dict[str, list[Change]] = {}
        for row in db.execute(
            "SELECT flow, kind, name, old, new, reason, attempt, seq FROM lifecycle_flow_changes ORDER BY flow, seq"
        ):
            flow, kind, name, old, new, reason, attempt, seq = row
            flows.setdefault(flow, []).append(
                Change(kind, name, old, new, reason=reason, attempt=attempt, flow=flow, seq=seq)
            )
        for flow, changes in flows.items():
            yield from (f"{flow}: {what}" for what in illegal(changes))
        if at_rest:
            for flow, state in db.execute("SELECT id, state FROM lifecycle_flows"):
                if state not in ENDS:
                    yield f"{flow} is {state} in the file"
            for count, state in db.execute("SELECT count(*), state FROM lifecycle_jobs GROUP BY state"):
                if state != "COMPLETE":
                    yield f"{count} jobs are {state} in the file"
            if (events := db.execute("SELECT count(*) FROM lifecycle_outbox").fetchone()[0]) != 0:
                yield f"{events} events are in the outbox"
