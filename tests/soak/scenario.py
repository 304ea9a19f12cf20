"""One run of the program: its start, phases with and without attacks, and its end."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.soak.attacks import Attacks
from tests.soak.lives import LIMIT, Broken
from tests.soak.quiet_checks import QuietCheck
from tests.soak.samples import Series, measured, on_disk
from tests.soak.steering import Console

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Self

    from tests.soak.lives import Life
    from tests.soak.shared import SharedState

__all__ = ["ENDS", "UNCLEAN", "Scenario"]

#: The ways to end a run. Successive runs cycle through them.
ENDS = ("kill", "terminate", "kill", "interrupt", "kill", "hammer", "kill", "stop", "kill", "close_input")
#: The ways to end a run without a final note from the program.
UNCLEAN = ("kill", "hammer")

#: The maximum duration of attacks between two quiet periods, and the time between two checks, in seconds.
_ROUND = 45.0
_PAUSE = 0.5


class Scenario:
    """A context manager that starts the program and stops it on exit."""

    def __init__(self, life: Life, shared: SharedState) -> None:
        self._life, self._shared = life, shared
        #: The measurements.
        self.series = Series()
        self._console: Console
        self._calm: QuietCheck
        self._held = AsyncExitStack()
        self._beside: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Wait until the program is up. Attacks and measurements begin when the switch is turned on."""
        life, shared = self._life, self._shared
        await life.wait_up()
        shared.senders.listens(life.up["webhooks"])
        self._held.callback(shared.senders.listens, "")
        self._console = await self._held.enter_async_context(Console(life.up))
        attacks = Attacks(life, self._console, shared)
        self._calm = QuietCheck(life, self._console, attacks, shared.history)
        self._start_task(attacks.run())
        self._start_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._life.ending = True
        for task in self._beside:
            task.cancel()
        await asyncio.wait(self._beside)
        await self._held.aclose()

    async def storm(self, seconds: float) -> None:
        """Attack for ``seconds`` seconds, or until a violation occurs."""
        self._shared.attack_switch.enable()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait(self._beside, timeout=min(left, _PAUSE), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # If a task has finished, it has failed.
                task.result()
            if not self._life.alive:
                raise Broken(f"the program exited by itself, with {self._life.process.returncode}")
            self._shared.history.read()
            if self._shared.history.wrong:
                raise Broken("a violation, described below")

    async def storm_and_calm(self, seconds: float) -> None:
        """Alternate between attacks and checks for ``seconds`` seconds, and end with checks."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await self.storm(min(left, _ROUND))
            await self.calm_down()

    async def calm_down(self) -> None:
        """Turn attacks off, and check the idle program."""
        await self._wait_answered()
        await self._calm.check()
        self._shared.quiet_phases += 1

    async def _wait_answered(self) -> None:
        falling = asyncio.create_task(self._shared.attack_switch.disable())
        try:
            async with asyncio.timeout(LIMIT):
                while not falling.done():
                    await self._calm.go_on()
                    await asyncio.wait({falling}, timeout=_PAUSE)
                # The last attack may have left a source held.
                await self._calm.go_on()
        except TimeoutError:
            raise Broken(f"some requests were not answered within {LIMIT:g} s") from None
        finally:
            falling.cancel()
            await asyncio.wait({falling})

    async def end(self, how: str) -> None:
        """End the run, in most cases during attacks."""
        life = self._life
        match how:
            case "kill":
                await life.kill()
            case "terminate":
                await life.terminate()
            case "hammer":
                await life.hammer(self._shared.chance.choice((0.02, 0.1, 0.5)))
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
        """Press Ctrl+C twice. The first press suspends the program, and the second press quits it."""
        self._life.send(signal.SIGINT)
        async with asyncio.timeout(LIMIT):
            while not _is_suspended(await self._console.state()):
                await asyncio.sleep(0.05)
        self._life.end_well()
        self._life.send(signal.SIGINT)
        await self._life.over()

    # -- background tasks --------------------------------------------------------------------------------------------

    def _start_task(self, work: Coroutine[object, object, None]) -> None:
        self._beside.append(asyncio.create_task(work))

    async def _measure(self) -> None:
        shared, began = self._shared, time.monotonic()
        while not self._life.ending:
            shared.history.read()
            self.series.add(time.monotonic() - began, measured(self._life, shared.history))
            shared.files.add(shared.elapsed, on_disk(shared.directory))
            await asyncio.sleep(_PAUSE)


def _is_suspended(state: object) -> bool:
    assert isinstance(state, dict)
    return any(worker["name"] == "tree" and worker["status"] == "suspended" for worker in state["workers"])
