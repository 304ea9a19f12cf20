"""Fifty workers that are killed, stopped, added, removed, suspended and resumed at random.

Between rounds of actions, the tree must become idle, and must match the processes, tasks, threads and descriptors that
exist. Each worker's last announced status must be its real one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from lifecycle.errors import LifecycleError
from lifecycle.workers import Backoff, Gate, Intensity, Spec, Status, Supervisor, ThreadWorker
from lifecycle.workers.containment.guard import guard_manager
from tests.chaos.report import Report
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from lifecycle.workers import WorkerState

__all__ = ["storm"]

#: The maximum number of seconds of attacks between two checks.
ROUND = 2.5
LIMIT = 30.0
SOON = Backoff(initial=0.01, maximum=0.05)
BUDGET = Intensity(5, 0.5)


class Chaos:
    """A tree of six supervisors with fifty workers, and the actions on it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fuses: dict[str, asyncio.Event] = {}
        self.added = 0
        self.done: Counter[str] = Counter()
        self.by_hand: set[str] = set()
        self.root = Supervisor("root", *(self._inner(number) for number in range(5)))

    def _inner(self, number: int) -> Spec:
        strategy: Any = ("one_for_one", "one_for_one", "rest_for_one", "one_for_all", "one_for_one")[number]

        def make() -> Supervisor:
            workers = [self._worker(f"s{number}.{which}", which) for which in range(10)]
            if number == 4:
                workers[5:] = [Spec("deep", lambda: Supervisor("deep", *deep), backoff=SOON)]
            return Supervisor(
                f"s{number}",
                *workers,
                strategy=strategy,
                intensity=BUDGET,
                on_limit="pause" if number % 2 else "escalate",
                stop_order="parallel" if number == 4 else "reverse",
            )

        deep = [self._worker(f"deep.{which}", which) for which in range(5)]
        return Spec(f"s{number}", make, backoff=SOON)

    def _worker(self, name: str, which: int) -> Spec:
        restart: Any = ("always", "on_failure", "never")[self.chance.choice((0, 0, 0, 1, 1, 2))]
        if which % 3 == 0:
            return Spec(name, ["sleep", "1000"], backoff=SOON, restart=restart)
        if which == 1:
            return Spec(name, lambda: ThreadWorker(name, _thread), backoff=SOON, restart=restart)
        return Spec(name, self._task(name), backoff=SOON, restart=restart)

    def _task(self, name: str) -> Callable[[Gate], Any]:
        async def work(gate: Gate) -> None:
            fuse = self.fuses[name] = asyncio.Event()
            while not fuse.is_set():
                await gate.checkpoint()
                await asyncio.sleep(0.005)
            if name[-1] != "5":
                raise ValueError(f"{name} broke")

        return work

    # -- actions ----------------------------------------------------------------------------------------------------

    def strikes(self) -> list[asyncio.Task[None]]:
        """Start some random actions at the same time.

        Each has its own generator, so that their order is irrelevant.
        """
        acts = self.chance.choices(ACTS, weights=WEIGHTS, k=self.chance.randrange(1, 8))
        self.done.update(act.__name__ for act in acts)
        return [
            asyncio.create_task(self._strike(act, random.Random(self.chance.random())), name=act.__name__)
            for act in acts
        ]

    async def _strike(self, act: Callable[[Chaos, random.Random], Awaitable[None]], chance: random.Random) -> None:
        """Perform an action, which may fail if it comes at the wrong moment."""
        try:
            await act(self, chance)
        except (LifecycleError, LookupError, ValueError, TimeoutError, ProcessLookupError):
            return

    async def kill(self, chance: random.Random) -> None:
        os.kill(chance.choice(pids_of(self.root.state())), signal.SIGKILL)

    async def freeze(self, chance: random.Random) -> None:
        os.kill(chance.choice(pids_of(self.root.state())), signal.SIGSTOP)

    async def burn(self, chance: random.Random) -> None:
        chance.choice(list(self.fuses.values())).set()

    async def stop(self, chance: random.Random) -> None:
        inner = self._somebody(chance)
        await inner.stop_child(self._child(inner, chance))

    async def restart(self, chance: random.Random) -> None:
        inner = self._somebody(chance)
        await inner.restart(self._child(inner, chance))

    async def give_up_restart(self, chance: random.Random) -> None:
        inner = self._somebody(chance)
        async with asyncio.timeout(0.005):
            await inner.restart(self._child(inner, chance))

    async def add(self, chance: random.Random) -> None:
        self.added += 1
        await self._somebody(chance).add(self._worker(f"x{self.added}", self.added % 10))

    async def remove(self, chance: random.Random) -> None:
        inner = self._somebody(chance)
        await inner.remove(self._child(inner, chance))

    async def suspend(self, chance: random.Random) -> None:
        async with asyncio.timeout(0.5):
            await chance.choice((self.root, self._somebody(chance))).suspend()

    async def resume(self, chance: random.Random) -> None:
        async with asyncio.timeout(0.5):
            await chance.choice((self.root, self._somebody(chance))).resume()

    async def probe(self, chance: random.Random) -> None:
        await chance.choice((self.root, self._somebody(chance))).probe()

    async def whole(self, chance: random.Random) -> None:
        """Stop a supervisor of ten workers, or stop and start it."""
        name = f"s{chance.randrange(5)}"
        self.by_hand.add(name)
        await chance.choice((self.root.restart, self.root.stop_child))(name)

    def _somebody(self, chance: random.Random) -> Supervisor:
        inner = self.root[f"s{chance.randrange(5)}"]
        assert isinstance(inner, Supervisor)
        deep = inner["deep"] if "deep" in inner and chance.random() < 0.5 else None
        return deep if isinstance(deep, Supervisor) else inner

    def _child(self, inner: Supervisor, chance: random.Random) -> str:
        return chance.choice([child.name for child in inner.workers() if child.name != "deep"])

    # -- after the actions ------------------------------------------------------------------------------------------

    def supervisors(self) -> Iterator[Supervisor]:
        """Return all supervisors that have a worker, the root first."""
        left = [self.root]
        while left:
            supervisor = left.pop(0)
            yield supervisor
            below = (supervisor[child.name] for child in supervisor.workers() if child.started_at is not None)
            left += [each for each in below if isinstance(each, Supervisor)]

    async def calm_down(self) -> list[str]:
        """Start all stopped supervisors, and wait until the tree is idle. Return the reason if it stays busy."""
        try:
            async with asyncio.timeout(LIMIT):
                while True:
                    for supervisor in list(self.supervisors()):
                        await self._encourage(supervisor)
                    await asyncio.sleep(0.05)
                    if settled(self.root.state()):
                        return []
        except TimeoutError:
            # Show every task, because a stuck task may keep another task from finishing.
            return [f"not settled: {drawn(self.root.state())}; {whereabouts()}"]

    async def _encourage(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.resume()
            for child in supervisor.workers():
                # Nothing restarts a child that failed while it was being stopped, or that could not start.
                down = child.status is Status.STOPPED or (child.status is Status.FAILED and child.name in self.by_hand)
                if child.kind == "supervisor" and down:
                    await supervisor.restart(child.name)
        except (LifecycleError, LookupError):
            return


ACTS = (
    *(Chaos.kill, Chaos.burn, Chaos.freeze, Chaos.stop, Chaos.restart, Chaos.give_up_restart, Chaos.add),
    *(Chaos.remove, Chaos.suspend, Chaos.resume, Chaos.probe, Chaos.whole),
)
WEIGHTS = (20, 20, 2, 10, 10, 2, 12, 9, 8, 16, 2, 1)


def _thread(stop: threading.Event) -> None:
    stop.wait()


def leaves(state: WorkerState) -> Iterator[WorkerState]:
    for child in state.children:
        yield from leaves(child) if child.kind == "supervisor" else (child,)


def pids_of(state: WorkerState) -> list[int]:
    alive = (Status.RUNNING, Status.SUSPENDED)
    return [leaf.pid for leaf in leaves(state) if leaf.pid is not None and leaf.status in alive]


def settled(state: WorkerState) -> bool:
    """Return whether all supervisors run and no child is being started or stopped."""
    if state.kind == "supervisor" and state.status is not Status.RUNNING:
        return False
    unrest = (Status.CREATED, Status.PENDING, Status.STARTING, Status.STOPPING, Status.SUSPENDED)
    return state.status not in unrest and all(map(settled, state.children))


# -- invariants -------------------------------------------------------------------------------------------------------


def held() -> Counter[str]:
    """Return the resources that this program currently uses."""
    return Counter(
        tasks=len(asyncio.all_tasks()),
        threads=len([each for each in threading.enumerate() if not each.name.startswith("asyncio_")]),
        descriptors=psutil.Process().num_fds(),
    )


def alive(state: WorkerState) -> Counter[str]:
    """Return the number of running workers of each kind in the tree."""
    return Counter(leaf.kind for leaf in leaves(state) if leaf.status is Status.RUNNING)


async def steady() -> Counter[str]:
    """Wait until no helper thread runs and nothing changes, then return the resources."""
    looks: list[Counter[str]] = []
    async with asyncio.timeout(LIMIT):
        while len(looks) < 10 or any(look != looks[-1] for look in looks[-10:]):
            await asyncio.sleep(0.005)
            looks.append(held())
            if any(thread.name.startswith(("sweep for", "move of")) for thread in threading.enumerate()):
                looks.clear()
    return looks[-1]


async def prices() -> dict[str, Counter[str]]:
    """Measure the resources of one running worker of each kind, as the difference between two workers and one."""
    specs: dict[str, Any] = {
        "process": lambda: ["sleep", "1000"],
        "task": lambda: asyncio.Event().wait,
        "thread": lambda: lambda: ThreadWorker("t", _thread),
    }
    found = {}
    for kind, child in specs.items():
        async with Supervisor("price", Spec("one", child())) as supervisor:
            one = await steady()
            await supervisor.add(Spec("two", child()))
            two = await steady()
        found[kind] = Counter({what: two[what] - one[what] for what in two})
    return found


def bill(state: WorkerState, each: dict[str, Counter[str]]) -> Counter[str]:
    """Return the resources that the running workers in the tree should use."""
    total: Counter[str] = Counter()
    for kind, number in alive(state).items():
        total.update({what: number * price for what, price in each[kind].items()})
    return total


def processes() -> dict[int, str]:
    """Return the states of our child processes by PID, except for the guard and the server that tests share."""
    ours = (
        child for child in psutil.Process().children() if child.pid != guard_manager.pid and child.name() != "postgres"
    )
    return {child.pid: child.status() for child in ours}


def drawn(state: WorkerState) -> str:
    """Format the tree on one line."""
    below = f" ({', '.join(map(drawn, state.children))})" if state.children else ""
    return f"{state.name} {state.status}{below}"


def whereabouts() -> str:
    """Return the position at which each task is waiting."""
    return "\n".join(f"{task.get_name()}: {' > '.join(_chain(task.get_coro()))}" for task in asyncio.all_tasks())


def _chain(waits: Any) -> Iterator[str]:
    while (frame := getattr(waits, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        waits = waits.cr_await
    yield repr(waits)


async def check(
    chaos: Chaos, base: Counter[str], each: dict[str, Counter[str]], announced: dict[str, str]
) -> list[str]:
    """Return the differences between the tree and the processes, zombies, tasks, threads and descriptors."""

    def lies() -> list[str]:
        # Repeat the comparison, because the death of a killed process may not have been detected yet.
        state = chaos.root.state()
        expected = base + bill(state, each)
        claims = {
            "not settled": settled(state),
            f"{processes()} for {pids_of(state)}": processes().keys() == set(pids_of(state)),
            f"zombies in {processes()}": psutil.STATUS_ZOMBIE not in processes().values(),
            f"held {held()} instead of {expected} for {alive(state)}": held() == expected,
            f"last told were {announced}": all(announced[leaf.name] == leaf.status for leaf in leaves(state)),
        }
        return [claim for claim, true in claims.items() if not true]

    with suppress(TimeoutError):
        await until(lambda: not lies(), LIMIT)
    return [f"{lie}; {drawn(chaos.root.state())}" for lie in lies()]


async def _storm(seconds: float, seed: int) -> Report:
    each = await prices()
    chaos, report = Chaos(seed), Report()
    announced: dict[str, str] = {}
    ends: Counter[str] = Counter()

    async def listen() -> None:
        async for event in changes:
            announced[event.component] = event.new
            ends[f"{event.state.kind} {event.new}"] += 1

    changes = chaos.root.watch()
    loop = asyncio.get_running_loop()
    async with chaos.root:
        listening = asyncio.create_task(listen())
        base = await steady()
        base.subtract(bill(chaos.root.state(), each))
        until_ = loop.time() + seconds
        while loop.time() < until_ and not report.stuck:
            pause = loop.time() + min(ROUND, seconds / 2)
            while loop.time() < pause and not report.stuck:
                strikes = chaos.strikes()
                await asyncio.sleep(chaos.chance.random() * 0.03)
                _, stuck = await asyncio.wait(strikes, timeout=LIMIT)
                report.stuck += [f"no response to {strike}; {whereabouts()}" for strike in stuck]
            report.stuck += await chaos.calm_down()
            report.stuck += await check(chaos, base, each, announced)
    await listening
    report.stuck += [f"the process {pid} is left" for pid in processes()]
    report.stuck += [f"a worker of {chaos.root} is left"] * bool(alive(chaos.root.state()))
    report.lost += [f"{changes.dropped} changes were dropped"] * bool(changes.dropped)
    report.operations, report.kills = sum(chaos.done.values()), chaos.done["kill"]
    report.notes = f"done: {dict(chaos.done)}; seen: {dict(ends)}"
    return report


def storm(seconds: float, seed: int) -> Report:
    return asyncio.run(_storm(seconds, seed))
