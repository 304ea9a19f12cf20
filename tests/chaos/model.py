"""A supervisor is compared with a model under random operations, in virtual time.

The model consists of lists: the running children, the number of starts per child, and the times of all restarts. It
shares no code with the supervisor, not even the arithmetic of `Intensity`.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lifecycle.errors import LifecycleError
from lifecycle.testing import Clock, VirtualLoop
from lifecycle.workers import Backoff, Intensity, RestartLimitReached, Spec, Supervisor
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Game", "storm"]

#: The number of operations on one supervisor.
MOVES_PER_GAME = 100


@dataclass
class Child:
    """A child's state in the model."""

    name: str
    restart: str
    status: str = "created"
    starts: int = 0
    #: The number of restarts above which the child's circuit opens, or 0 if there is no limit.
    patience: int = 0
    #: The times of the restarts that are counted towards the limit.
    moments: list[float] = field(default_factory=list)
    #: Whether the circuit is open.
    given_up: bool = False


@dataclass
class Model:
    """The expected behaviour of a supervisor if starts take no time and there is no backoff."""

    strategy: str
    limit: int
    within: float
    children: list[Child] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    #: Starts postponed by a suspension: the child, and whether the restart policy (not a caller) starts it.
    waiting: list[tuple[Child, bool]] = field(default_factory=list)
    #: Children that the policy restarts after this step unless they are stopped before that.
    due: list[Child] = field(default_factory=list)
    suspended: bool = False
    over: bool = False
    now: float = 0.0

    def child(self, name: str) -> Child:
        return next(child for child in self.children if child.name == name)

    def up(self, child: Child) -> None:
        child.status = "running"
        child.starts += 1

    def settle(self) -> None:
        for child in self.due:
            self.up(child)
        self.due.clear()

    def add(self, child: Child) -> None:
        self.children.append(child)
        self.by_hand(child)

    def by_hand(self, child: Child) -> None:
        self.forget(child)
        child.moments, child.given_up = [], False
        if self.suspended:
            child.status = "pending"
            self.waiting.append((child, False))
        else:
            self.up(child)

    def ended(self, child: Child, *, failed: bool) -> None:
        child.status = "failed" if failed else "finished"
        if child.restart == "always" or (failed and child.restart == "on_failure"):
            if self.suspended:
                self.waiting.append((child, True))
            else:
                self.again(child)

    def stopped(self, child: Child) -> None:
        if child.status in ("running", "pending") or child in self.due:
            child.status = "stopped"
        self.forget(child)

    def removed(self, child: Child) -> None:
        self.forget(child)
        self.children.remove(child)

    def resumed(self) -> None:
        self.suspended = False
        while self.waiting and not self.over:
            child, by_policy = self.waiting.pop(0)
            if by_policy:
                self.again(child)
            else:
                self.up(child)

    def again(self, child: Child) -> None:
        child.moments.append(self.now)
        if child.patience and self.recent(child.moments) > child.patience:
            child.status, child.given_up = "failed", True
            return
        self.moments.append(self.now)
        if self.recent(self.moments) > self.limit:
            self.over = True
            for each in self.children:
                self.stopped(each)
            return
        for each in self.group(child):
            if each is not child:
                self.stopped(each)
            self.forget(each)
            if each is child or not (each.restart == "never" or each.given_up):
                self.due.append(each)

    def recent(self, moments: list[float]) -> int:
        return len([moment for moment in moments if self.now - moment <= self.within])

    def group(self, child: Child) -> list[Child]:
        match self.strategy:
            case "one_for_one":
                return [child]
            case "one_for_all":
                return list(self.children)
            case _:
                return self.children[self.children.index(child) :]

    def forget(self, child: Child) -> None:
        self.due = [each for each in self.due if each is not child]
        self.waiting = [each for each in self.waiting if each[0] is not child]


def as_shown(child: Child) -> tuple[str, str, int, str]:
    return child.name, child.status, max(0, child.starts - 1), "open" if child.given_up else "closed"


class Game:
    """A supervisor and its model, and the operations on both."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock = clock
        self.chance = random.Random(seed)
        self.names = 0
        self.fuses: dict[str, asyncio.Future[None]] = {}
        strategy: Any = self.chance.choice(("one_for_one", "one_for_all", "rest_for_one"))
        self.model = Model(strategy, self.chance.choice((0, 1, 2, 3, 5, 8)), self.chance.choice((0.5, 1.0, 5.0)))
        self.model.children = [self._child() for _ in range(self.chance.randrange(1, 6))]
        self.supervisor = Supervisor(
            "s",
            *map(self._spec, self.model.children),
            strategy=strategy,
            intensity=Intensity(self.model.limit, self.model.within),
        )

    def _child(self) -> Child:
        self.names += 1
        restart = self.chance.choice(("always", "on_failure", "never"))
        return Child(f"c{self.names}", restart, patience=self.chance.choice((0, 0, 1, 3)))

    def _spec(self, child: Child) -> Spec:
        async def work() -> None:
            self.fuses[child.name] = asyncio.get_running_loop().create_future()
            await self.fuses[child.name]

        restart: Any = child.restart
        backoff = Backoff(initial=0, jitter=0, max_restarts=child.patience, within=self.model.within)
        return Spec(child.name, work, restart=restart, backoff=backoff)

    async def play(self, moves: int) -> list[str]:
        """Make random moves, and return the first difference between the supervisor and its model."""
        try:
            await self._play(moves)
        except (AssertionError, LifecycleError) as error:
            return [f"{type(error).__name__}: {error}"]
        return []

    async def _play(self, moves: int) -> None:
        self.model.now = self.clock.time()
        await self.supervisor.start()
        for child in self.model.children:
            self.model.up(child)
        await self.clock.settle()
        self.compare("start")
        for _ in range(moves):
            move = self.chance.choices(MOVES, weights=WEIGHTS)[0]
            await move(self)
            await self.clock.settle()
            self.compare(move.__name__)
            if self.model.over:
                break
        await self.supervisor.stop()
        ended = await self.supervisor.wait()
        assert (ended.status == "failed") is isinstance(ended.error, RestartLimitReached) is self.model.over

    def compare(self, move: str) -> None:
        self.model.settle()
        found = [(child.name, str(child.status), child.restarts, child.circuit) for child in self.supervisor.workers()]
        assert found == list(map(as_shown, self.model.children)), move
        status = "failed" if self.model.over else "suspended" if self.model.suspended else "running"
        assert self.supervisor.status == status, move

    def some(self, *statuses: str) -> Child | None:
        children = [child for child in self.model.children if not statuses or child.status in statuses]
        return self.chance.choice(children) if children else None

    # -- operations ---------------------------------------------------------------------------------------------------

    async def crash(self) -> None:
        if child := self.some("running"):
            self.fuses[child.name].set_exception(ValueError(child.name))
            self.model.ended(child, failed=True)

    async def finish(self) -> None:
        if child := self.some("running"):
            self.fuses[child.name].set_result(None)
            self.model.ended(child, failed=False)

    async def wait(self) -> None:
        await self.clock.advance(self.chance.choice((0.25, 0.5, 1.0, 2.5)))
        self.model.now = self.clock.time()

    async def stop(self) -> None:
        if child := self.some():
            await self.supervisor.stop_child(child.name)
            self.model.stopped(child)

    async def restart(self) -> None:
        if child := self.some():
            await self.supervisor.restart(child.name)
            self.model.stopped(child)
            self.model.by_hand(child)

    async def add(self) -> None:
        child = self._child()
        await self.supervisor.add(self._spec(child))
        self.model.add(child)

    async def remove(self) -> None:
        if child := self.some():
            await self.supervisor.remove(child.name)
            self.model.removed(child)

    async def suspend(self) -> None:
        await self.supervisor.suspend()
        self.model.suspended = True

    async def resume(self) -> None:
        await self.supervisor.resume()
        self.model.resumed()


MOVES: tuple[Callable[[Game], Any], ...] = (
    *(Game.crash, Game.finish, Game.wait, Game.stop, Game.restart, Game.add, Game.remove, Game.suspend, Game.resume),
)
WEIGHTS = (10, 4, 8, 3, 3, 2, 2, 2, 4)


async def _storm(seconds: float, seed: int) -> Report:
    chance, report = random.Random(seed), Report()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        game = chance.randrange(2**32)
        report.lost += [f"game {game}: {wrong}" for wrong in await Game(Clock(), game).play(MOVES_PER_GAME)]
        report.operations += MOVES_PER_GAME
    return report


def storm(seconds: float, seed: int) -> Report:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_storm(seconds, seed))
