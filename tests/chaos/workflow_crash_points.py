"""A workflow has the same outcome even if its process dies after one of its writes.

The process dies once after each write of each workflow and of the signals to it, and a second time soon afterwards.
Everything happens in virtual time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from lifecycle.errors import FlowError, InvalidState
from lifecycle.flows import Flows, MemoryStore, current_task
from lifecycle.flows.records import CANCEL
from lifecycle.flows.states import ENDS
from lifecycle.flows.workflow_log import order
from lifecycle.testing.virtual import VirtualLoop
from tests.chaos.crash_points import with_random_numbers
from tests.flows.numbered_workflows import READY, Programs, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.flows import Change, StepRow, Store
    from tests.chaos.report import Report

__all__ = ["Life", "die_at_each_write", "histories_wrong", "in_memory", "left_of", "storm"]

#: The methods of a store that write, in the lives of these workflows.
_WRITES = ("create", "commit", "take", "signal")
#: Virtual seconds within which a workflow must end.
_LIMIT = 36000.0
_DONE = ("SUCCESS", "FAILURE")


class Mortal:
    """A store whose process dies after a number of writes: that write and all later calls never return."""

    def __init__(self, store: Store, writes: int = -1) -> None:
        self._store, self._left = store, writes
        self.written = 0
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._call, name, method) if inspect.iscoroutinefunction(method) else method

    async def _call(self, called: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await self.live_on()
        result = await method(*args, **kwargs)
        if called in _WRITES:
            self.written += 1
            if self.written == self._left:
                self.dead.set()
        await self.live_on()
        return result

    async def live_on(self) -> None:
        """Return if the process is alive. Otherwise, never return."""
        if self.dead.is_set():
            await asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.__aexit__(None, None, None)


class Life:
    """A workflow and its store, run by one process after another. ``pause`` is the time before each signal."""

    def __init__(self, number: int, make_store: Callable[[], Store], pause: float, flow: str = "w") -> None:
        self.number, self.make_store, self.pause, self.flow = number, make_store, pause, flow
        self.needs = expected(flow, number)
        #: The idempotency key and the attempt of each executed step, in order.
        self.executed: list[tuple[str, int]] = []
        self.lives = 0
        self._mortal = Mortal(make_store())

    async def _note(self) -> None:
        await self._mortal.live_on()
        self.executed.append((current_task().key, current_task().attempt))

    async def live(self, writes: int = -1) -> int:
        """Run the workflow until it ends or the process dies. Return the number of writes, or 0 if it died."""
        self.lives += 1
        mortal = self._mortal = Mortal(self.make_store(), writes)
        async with Flows(store=mortal, stop_timeout=0.0) as flows:  # pyright: ignore[reportArgumentType]  # it has all methods
            tasks = [asyncio.create_task(work) for work in (self._work(flows), mortal.dead.wait())]
            done, left = await asyncio.wait(tasks, timeout=_LIMIT, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            for run in flows.runs:
                await run.abandon(FlowError("killed"))
            await asyncio.gather(*left, return_exceptions=True)
            for task in done:
                task.result()
        assert done, f"workflow {self.number} did not end"
        return 0 if mortal.dead.is_set() else mortal.written

    async def _work(self, flows: Flows) -> None:
        programs = Programs(self._note)
        await flows.recover(programs.numbered, programs.pair)
        # Every second life leaves the workflow to `recover` and to the timer.
        if self.lives % 2 or await flows.store.get(self.flow) is None:
            flows.start(programs.numbered, self.flow, self.number, id=self.flow)
        async with asyncio.TaskGroup() as group:
            for flow, names in self.needs.signals.items():
                group.create_task(self._signal(flows, flow, names))
            for ready, flow in self.needs.cancels.items():
                group.create_task(self._cancel(flows, ready, flow))
        for flow in self.needs.signals:
            while (row := await flows.store.get(flow)) is None or row.state not in ENDS:
                await asyncio.sleep(0.3)

    async def _signal(self, flows: Flows, flow: str, names: list[str]) -> None:
        """Send all signals to a flow, as a program does that does not know which of them it has sent."""
        for place, name in enumerate(names):
            await asyncio.sleep(self.pause)
            await _acknowledged(partial(flows.signal, flow, name, place, key=f"{name} {place}"))

    async def _cancel(self, flows: Flows, ready: str, flow: str) -> None:
        while not await self._is_ready(flows, ready):
            await asyncio.sleep(0.3)
        await _acknowledged(partial(flows.cancel, flow))

    async def _is_ready(self, flows: Flows, flow: str) -> bool:
        if await flows.store.get(flow) is None:
            return False
        rows = (await flows.store.load(flow)).steps.values()
        return any(row.name.endswith(f" {READY}") and row.state == "SUCCESS" for row in rows)

    # -- results ------------------------------------------------------------------------------------------------------

    async def rows(self) -> dict[str, Any]:
        """Return the stored row of each operation, by its key."""
        async with self.make_store() as store:
            return await self._rows(store)

    async def _rows(self, store: Store) -> dict[str, Any]:
        stored = [flow for flow in self.needs.signals if await store.get(flow) is not None]
        return {
            f"{flow}/{row.name}/{row.undone + 1}": row
            for flow in stored
            for row in (await store.load(flow)).steps.values()
        }

    async def end(self) -> dict[str, Any]:
        """Return the state and the result of each flow, its recorded steps without times, and its signals."""
        ends: dict[str, Any] = {}
        async with self.make_store() as store:
            for flow in self.needs.signals:
                row, steps, _ = await store.load(flow)
                ends |= left_of(flow, (row.state, row.result, row.error), list(steps.values()))
                signals = [each for each in await store.signals(flow) if each.name != CANCEL]
                ends[f"signals to {flow}"] = [(each.name, each.data, each.taken) for each in signals]
        return ends

    async def wrong(self) -> list[str]:
        """Return what the flows, which must have ended, must not contain."""
        async with self.make_store() as store:
            histories = [await store.changes(flow, limit=9999) for flow in self.needs.signals]
            known = await self._rows(store)
            lines = [f"{key} is not the key of a recorded step" for key, _ in self.executed if key not in known]
            lines += [line for changes in histories for line in histories_wrong(changes)]
            return lines + [line for flow in self.needs.signals for line in await self._undelivered(store, flow)]

    async def _undelivered(self, store: Store, flow: str) -> list[str]:
        """Return an error unless all signals were received once each, and those of the same name in order."""
        rows = (await store.load(flow)).steps.values()
        stored = [(each.name, each.data) for each in await store.signals(flow) if each.taken]
        waits = [row for row in rows if row.kind == "wait" and row.state == "SUCCESS"]
        received = [(row.name.partition(" ")[2], row.result) for row in sorted(waits, key=lambda row: order(row.name))]
        found = [_by_name([each for each in signals if each[0] != CANCEL]) for signals in (stored, received)]
        sent = _by_name([(name, str(place)) for place, name in enumerate(self.needs.signals[flow])])
        return [f"{flow} needed {sent}, but stored and received {found}"] if found != [sent, sent] else []


def _by_name(signals: Sequence[tuple[str, str | None]]) -> dict[str, list[str | None]]:
    """Return the data of the signals of each name, in order."""
    return {name: [data for each, data in signals if each == name] for name, _ in signals}


async def _acknowledged(send: Callable[[], Any]) -> None:
    """Send a signal until it is stored or its workflow has ended."""
    while True:
        try:
            await send()
        except InvalidState:
            return
        except FlowError:
            # The workflow, a child, is not stored yet.
            await asyncio.sleep(0.3)
        else:
            return


def histories_wrong(changes: Sequence[Change]) -> list[str]:
    """Return the operations that were recorded twice or out of order."""
    now: dict[str, str] = {}
    lines: list[str] = []
    counts: Counter[tuple[str, str, str]] = Counter()
    for change in changes:
        if change.kind != "flow":
            if change.old != now.get(change.name, "PENDING"):
                lines.append(f"{change} has a wrong old state")
            now[change.name] = change.new
        if change.new in (*_DONE, "REVERTED", "CANCELLED") or change.kind == "sleep":
            counts[change.flow, change.name, change.new] += 1
    return lines + [f"{each} was recorded {count} times" for each, count in counts.items() if count > 1]


def left_of(flow: str, end: tuple[Any, ...], rows: Sequence[StepRow]) -> dict[str, Any]:
    """Return the end of a flow and its rows by key, without what a restart may change."""
    # Whether the endless wait of a cancelled workflow is stored depends on the time of the cancellation.
    left = [row for row in rows if (row.kind, row.state) != ("wait", "RUNNING")]
    return {flow: end} | {f"{flow}/{row.name}/{row.undone + 1}": _timeless(row) for row in left}


def _timeless(row: StepRow) -> StepRow:
    # An interrupted attempt counts for the task of a flow only.
    return row._replace(due=0.0, attempt=0 if row.kind == "task" else row.attempt)


def in_memory() -> Callable[[], Store]:
    """Return a function that returns the same store at each call."""
    store = MemoryStore()
    return lambda: store


async def die_at_each_write(
    number: int, report: Report, make: Callable[[], Callable[[], Store]] = in_memory, *, every: int = 1
) -> None:
    """Run the workflow with this number once for each of its writes, and let the process die after that write.

    ``make`` returns the function that opens a new, empty store. If ``every`` is set, only every so many writes are
    tried.
    """
    pause = (0.0, 0.05, 2.5)[number % 3]
    undisturbed = Life(number, make(), pause)
    assert await undisturbed.live()
    end = await undisturbed.end()
    report.lost += [f"workflow {number}: {wrong}" for wrong in await undisturbed.wrong()]
    report.double += [f"workflow {number}: {each} ran twice" for each in _twice(undisturbed.executed)]
    writes, died = 1 - every, True
    while died:
        writes += every
        report.operations += 1
        life = Life(number, make(), pause)
        died = not await life.live(writes)
        report.kills += died
        await _survive(life, writes, end, report)


def _twice(executed: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [each for each, count in Counter(executed).items() if count > 1]


async def _survive(life: Life, writes: int, end: dict[str, Any], report: Report) -> None:
    """Continue a workflow whose process has died. The process dies a second time soon afterwards, and never again."""
    name = f"workflow {life.number}, which died after {writes} writes"
    before = await life.rows()
    done = {key for key, row in before.items() if row.state in _DONE}
    first = len(life.executed)
    if not await life.live(1 + writes % 4):
        await life.live()
    report.double += [f"{name}: {key} ran again" for key in sorted(done & {key for key, _ in life.executed[first:]})]
    if (got := await life.end()) != end:
        changed = [f"{key}: {end.get(key)} became {got.get(key)}" for key in end | got if end.get(key) != got.get(key)]
        report.lost.append(f"{name}: {'; '.join(changed)}")
    report.lost += [f"{name}: {wrong}" for wrong in await life.wrong()]
    after = await life.rows()
    timers = {key: row.due for key, row in before.items() if row.kind in ("sleep", "wait") and row.due}
    report.lost += [f"{name}: the time of {key} changed" for key, due in timers.items() if after[key].due != due]


def storm(seconds: float, seed: int) -> Report:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(with_random_numbers(die_at_each_write, seconds, seed))
