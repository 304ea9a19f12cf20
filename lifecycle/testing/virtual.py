"""An event loop in virtual time: when it is idle, its clock jumps to the next timer.

Use it for code that waits for the clock. Code that waits for real processes, sockets or signals needs real time. The
clock does not jump while a thread (`asyncio.to_thread`) is working.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock", "VirtualLoop"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


#: Seconds below which two times are the same.
_HAIR = 1e-6

#: The resolution that asyncio assumes for its clock.
_RESOLUTION = time.get_clock_info("monotonic").resolution


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, for ``asyncio.Runner(loop_factory=VirtualLoop)``; it starts at 0 seconds."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        # Jobs in threads that will call back: the clock stands while there are any.
        self._jobs = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """As asyncio's, but the clock does not jump while the job runs."""
        self._jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._job_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002  # asyncio's signature
        """As asyncio's, but it waits for threads in real time, as long as they need."""
        self._jobs += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._jobs -= 1

    def jump(self, seconds: float) -> bool:
        """Set the clock forward, unless a thread is at work; the selector calls this when all is quiet."""
        if self._jobs:
            return False
        then = self._virtual_now + seconds
        # The timer's own time, if that is meant: a sum may be slightly off, and a task that is woken slightly too early
        # and sleeps again would find that no time passes.
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009  # asyncio has no public name for it
        if timers and abs(timers[0].when() - then) < _HAIR:
            then = timers[0].when()
            # Once the clock is too large to tell a nanosecond, a timer is due only past its time.
            if then + _RESOLUTION == then:
                then = math.nextafter(then, math.inf)
        self._virtual_now = then
        return True

    @property
    def busy(self) -> bool:
        """Whether callbacks other than the running one are ready."""
        return bool(self._ready)  # type: ignore[attr-defined]  # asyncio has no public name for it

    def _job_done(self, _: object) -> None:
        self._jobs -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Looks whether anything real is ready; if not, jumps instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready and not self._loop.jump(timeout):
            return super().select(0.01)
        return ready


class Clock:
    """The clock of a test in virtual time."""

    def time(self) -> float:
        """Seconds since the test's loop was made."""
        return asyncio.get_running_loop().time()

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass: everything due by then has run, in order, when this returns."""
        await asyncio.sleep(seconds)
        await self.settle()

    async def settle(self) -> None:
        """Let everything run that is ready now, and what follows from it, without time passing."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "this test does not run in virtual time; request the fixture `clock`"
        for _ in range(10_000):
            if not loop.busy:
                return
            await asyncio.sleep(0)
        raise RuntimeError("the program never comes to rest: something schedules itself again and again")
