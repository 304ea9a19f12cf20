"""The course of one life of the program: it stands up, has storm and calm for so long, and is ended."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.soak.blows import Blows
from tests.soak.calm import Calm
from tests.soak.lives import LIMIT, Broken
from tests.soak.samples import Series, measured, on_disk
from tests.soak.steering import Console

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Self

    from tests.soak.lives import Life
    from tests.soak.worlds import World

__all__ = ["ENDS", "UNCLEAN", "Course"]

#: The ways in which a life ends; all of them come by turns.
ENDS = ("kill", "terminate", "kill", "interrupt", "kill", "hammer", "kill", "stop", "kill", "close_input")
#: Those after which nobody could ask whether it came to its end.
UNCLEAN = ("kill", "hammer")

#: Seconds of storm between two calms, at most; and between two looks.
_ROUND = 45.0
_PAUSE = 0.5


class Course:
    """From when the program is up to when it has ended; to be entered."""

    def __init__(self, life: Life, world: World) -> None:
        self._life, self._world = life, world
        #: What it held.
        self.series = Series()
        self._console: Console
        self._calm: Calm
        self._held = AsyncExitStack()
        self._beside: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Wait until it is up; then it is thrown at and measured, as soon as the wind rises."""
        life, world = self._life, self._world
        await life.wait_up()
        world.senders.listens(life.up["webhooks"])
        self._held.callback(world.senders.listens, "")
        self._console = await self._held.enter_async_context(Console(life.up))
        blows = Blows(life, self._console, world)
        self._calm = Calm(life, self._console, blows, world.ledger)
        self._let_go_on(blows.run())
        self._let_go_on(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._life.ending = True
        for task in self._beside:
            task.cancel()
        await asyncio.wait(self._beside)
        await self._held.aclose()

    async def storm(self, seconds: float) -> None:
        """For so long, or until something is wrong."""
        self._world.wind.rise()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait(self._beside, timeout=min(left, _PAUSE), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # Neither ends by itself, unless it fails.
                task.result()
            if not self._life.alive:
                raise Broken(f"it has ended by itself, with {self._life.process.returncode}")
            self._world.ledger.read()
            if self._world.ledger.wrong:
                raise Broken("something is wrong that is told below")

    async def storm_and_calm(self, seconds: float) -> None:
        """By turns, for so long; calm in the end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await self.storm(min(left, _ROUND))
            await self.calm_down()

    async def calm_down(self) -> None:
        """Let the wind fall, and see whether all is as it has to be."""
        await self._wait_answered()
        await self._calm.check()
        self._world.calms += 1

    async def _wait_answered(self) -> None:
        falling = asyncio.create_task(self._world.wind.fall())
        try:
            async with asyncio.timeout(LIMIT):
                while not falling.done():
                    await self._calm.go_on()
                    await asyncio.wait({falling}, timeout=_PAUSE)
                # Who asked last may have held something.
                await self._calm.go_on()
        except TimeoutError:
            raise Broken(f"what was asked of it is not answered after {LIMIT:g} s") from None
        finally:
            falling.cancel()
            await asyncio.wait({falling})

    async def end(self, how: str) -> None:
        """End it; most ends come in the middle of the storm."""
        life = self._life
        match how:
            case "kill":
                await life.kill()
            case "terminate":
                await life.terminate()
            case "hammer":
                await life.hammer(self._world.chance.choice((0.02, 0.1, 0.5)))
            case "stop":
                life.end_well()
                await self._console.command("stop")
                await life.over()
            case "close_input":
                life.type("status")
                await life.close_input()
            case "interrupt":
                await self.calm_down()
                await self._interrupt()

    async def _interrupt(self) -> None:
        """The first Ctrl+C suspends, the second quits."""
        self._life.send(signal.SIGINT)
        async with asyncio.timeout(LIMIT):
            while not _is_suspended(await self._console.state()):
                await asyncio.sleep(0.05)
        self._life.end_well()
        self._life.send(signal.SIGINT)
        await self._life.over()

    # -- beside it ---------------------------------------------------------------------------------------------------

    def _let_go_on(self, work: Coroutine[object, object, None]) -> None:
        self._beside.append(asyncio.create_task(work))

    async def _measure(self) -> None:
        world, began = self._world, time.monotonic()
        while not self._life.ending:
            world.ledger.read()
            self.series.add(time.monotonic() - began, measured(self._life, world.ledger))
            world.files.add(world.elapsed, on_disk(world.directory))
            await asyncio.sleep(_PAUSE)


def _is_suspended(state: object) -> bool:
    assert isinstance(state, dict)
    return any(worker["name"] == "tree" and worker["status"] == "suspended" for worker in state["workers"])
