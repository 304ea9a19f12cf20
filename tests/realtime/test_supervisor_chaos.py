"""Fifty workers, and somebody who kills, stops, adds, removes, suspends and resumes them at random.

Ten seconds in the suite; ``LIFECYCLE_SOAK`` is another number of seconds, ``LIFECYCLE_SEED`` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.errors import LifecycleError
from lifecycle.workers import Backoff, Gate, Intensity, Spec, Status, Supervisor, ThreadWorker

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable, Iterator

    from lifecycle.workers import WorkerState

SECONDS = float(os.environ.get("LIFECYCLE_SOAK", "6"))
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))
LIMIT = 30.0
SOON = Backoff(initial=0.01, maximum=0.05)
BUDGET = Intensity(20, 1.0)


class Chaos:
    """A tree of five supervisors of ten workers, and what can be done to it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fuses: dict[str, asyncio.Event] = {}
        self.added = 0
        self.root = Supervisor("root", *(self._inner(number) for number in range(5)))

    def _inner(self, number: int) -> Spec:
        strategy: Any = ("one_for_one", "one_for_one", "rest_for_one", "one_for_all", "one_for_one")[number]

        def make() -> Supervisor:
            return Supervisor(
                f"s{number}",
                *(self._worker(f"s{number}.{which}", which) for which in range(10)),
                strategy=strategy,
                intensity=BUDGET,
                on_limit="pause" if number % 2 else "escalate",
                stop_order="parallel" if number == 4 else "reverse",
            )

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
            if self.chance.random() < 0.8:
                raise ValueError(f"{name} broke")

        return work

    # -- what is done to it -----------------------------------------------------------------------------------------

    async def strike(self) -> None:
        """One random act; that it comes at the wrong moment is part of it."""
        acts: list[Callable[[], Awaitable[None]]] = [self._kill, self._burn, self._burn, self._kill]
        acts += [self._stop, self._restart, self._add, self._remove, self._suspend, self._resume, self._resume]
        try:
            await self.chance.choice(acts)()
        except (LifecycleError, LookupError, ValueError, TimeoutError, ProcessLookupError):
            return

    async def _kill(self) -> None:
        if pids := [pid for pid in pids_of(self.root.state()) if pid is not None]:
            os.kill(self.chance.choice(pids), signal.SIGKILL)

    async def _burn(self) -> None:
        if self.fuses:
            self.chance.choice(list(self.fuses.values())).set()

    async def _stop(self) -> None:
        inner = self._somebody()
        await inner.stop_child(self._child(inner))

    async def _restart(self) -> None:
        inner = self._somebody()
        await inner.restart(self._child(inner))

    async def _add(self) -> None:
        self.added += 1
        await self._somebody().add(self._worker(f"x{self.added}", self.added % 10))

    async def _remove(self) -> None:
        inner = self._somebody()
        await inner.remove(self._child(inner))

    async def _suspend(self) -> None:
        async with asyncio.timeout(0.5):
            await self.chance.choice((self.root, self._somebody())).suspend()

    async def _resume(self) -> None:
        async with asyncio.timeout(0.5):
            await self.chance.choice((self.root, self._somebody())).resume()

    def _somebody(self) -> Supervisor:
        worker = self.root[f"s{self.chance.randrange(5)}"]
        assert isinstance(worker, Supervisor)
        return worker

    def _child(self, inner: Supervisor) -> str:
        return self.chance.choice([child.name for child in inner.workers()])


def _thread(stop: threading.Event) -> None:
    stop.wait()


def leaves(state: WorkerState) -> Iterator[WorkerState]:
    for child in state.children:
        yield from leaves(child) if child.children or child.kind == "supervisor" else (child,)


def pids_of(state: WorkerState) -> list[int | None]:
    running = (Status.RUNNING, Status.SUSPENDED)
    return [leaf.pid for leaf in leaves(state) if leaf.kind == "process" and leaf.status in running]


def settled(state: WorkerState) -> bool:
    unrest = (Status.PENDING, Status.STARTING, Status.STOPPING)
    return state.status not in unrest and all(settled(child) for child in state.children)


@pytest.mark.timeout(SECONDS + 120)
async def test_the_tree_survives_a_storm_and_says_the_truth_about_it() -> None:
    chaos = Chaos(SEED)
    loop = asyncio.get_running_loop()
    async with chaos.root as root:
        until = loop.time() + SECONDS
        while loop.time() < until:
            strikes = [asyncio.create_task(chaos.strike()) for _ in range(chaos.chance.randrange(1, 8))]
            await asyncio.sleep(chaos.chance.random() * 0.03)
            await asyncio.wait(strikes)
        await calm_down(root)
        state = root.state()
        ours = {child.pid for child in psutil.Process().children() if child.name() == "sleep"}
        assert set(pids_of(state)) == ours, f"seed {SEED}"
        zombies = [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
        assert zombies == [], f"seed {SEED}"
        assert root.status is Status.RUNNING
        assert all(child.status is Status.RUNNING for child in state.children), f"seed {SEED}"
        for leaf in leaves(state):
            assert leaf.status in ("running", "stopped", "finished", "failed", "killed"), f"seed {SEED}: {leaf}"
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"], f"seed {SEED}"
    assert not any(leaf.status in ("running", "suspended", "pending", "starting") for leaf in leaves(root.state()))


async def calm_down(root: Supervisor) -> None:
    """Let everything go on, and wait until nothing is on its way any more."""
    async with asyncio.timeout(LIMIT):
        while True:
            for supervisor in (root, *(root[child.name] for child in root.workers())):
                try:
                    await supervisor.resume()  # type: ignore[attr-defined]
                except LifecycleError:
                    continue
            await asyncio.sleep(0.05)
            state = root.state()
            if settled(state) and not any(s.status is Status.SUSPENDED for s in (state, *state.children)):
                return


@pytest.mark.parametrize("seed", range(20))
async def test_budgets_are_exact_whenever_children_crash(clock: Any, seed: int) -> None:
    """Against the plainest model: a list of the moments of all restarts."""
    chance = random.Random(seed)
    intensity = Intensity(chance.randrange(4), chance.choice((1.0, 2.5, 10.0)))
    fuses: dict[str, asyncio.Future[None]] = {}

    def child(name: str) -> Spec:
        async def work() -> None:
            fuses[name] = asyncio.get_running_loop().create_future()
            await fuses[name]

        return Spec(name, work, backoff=Backoff(initial=0, jitter=0))

    supervisor = Supervisor("s", child("a"), child("b"), intensity=intensity)
    await supervisor.start()
    await clock.settle()
    moments: list[float] = []
    for _ in range(200):
        await clock.advance(chance.choice((0.0, 0.25, 0.5, 1.0, 2.5)))
        moments.append(clock.time())
        fuses[chance.choice("ab")].set_exception(ValueError())
        await clock.settle()
        spent = len([at for at in moments if at >= moments[-1] - intensity.within]) > intensity.limit
        assert (supervisor.status is Status.FAILED) is spent
        if spent:
            return
    await supervisor.stop()
