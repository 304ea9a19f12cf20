"""An event loop in virtual time. When it is idle, its clock jumps to the next timer.

Use it to test code that waits for the clock. Code that waits for real processes, sockets or signals needs real time.
While a thread (`asyncio.to_thread`) is working, the clock does not jump.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from lifecycle._durations import in_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from lifecycle._durations import Duration

__all__ = ["Clock", "VirtualLoop"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


#: Times that differ by fewer seconds than this are treated as equal.
_HAIR = 1e-6

#: The resolution that asyncio assumes for its clock.
_RESOLUTION = time.get_clock_info("monotonic").resolution


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, for ``asyncio.Runner(loop_factory=VirtualLoop)``. It starts at 0 seconds."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        #: The Unix time that corresponds to virtual time 0.
        self.epoch: float = time.time()
        # The number of jobs running in threads that will call back. While there are any, the clock stops.
        self._jobs = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the number of virtual seconds since the loop was created."""
        return self._virtual_now

    def wall_time(self) -> float:
        """Return the virtual date and time, in seconds since the epoch."""
        return self.epoch + self._virtual_now

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Run a job like asyncio does, but stop the clock while it runs."""
        self._jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._job_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002  # asyncio's signature
        """Shut down like asyncio does, but wait for threads in real time, without a limit."""
        self._jobs += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._jobs -= 1

    def jump(self, seconds: float) -> bool:
        """Advance the clock, unless a thread is working. The selector calls this when nothing is ready."""
        if self._jobs:
            return False
        then = self._virtual_now + seconds
        # Use the timer's own time if it is close. Our sum may be slightly off, and a task that woke slightly too early
        # and slept again would find that no time has passed.
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009  # asyncio has no public name for it
        if timers and abs(timers[0].when() - then) < _HAIR:
            then = timers[0].when()
            # If the clock's value is so large that a nanosecond makes no difference, timers are due only after their
            # scheduled time.
            if then + _RESOLUTION == then:
                then = math.nextafter(then, math.inf)
        self._virtual_now = then
        return True

    def catch_up(self) -> None:
        """Advance the clock to a timer that asyncio runs now, although its time is up to a nanosecond away.

        Otherwise, code that waits until a time would find again and again that the time has not come.
        """
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009  # asyncio has no public name for it
        if timers and timers[0].when() < self._virtual_now + _RESOLUTION:
            self._virtual_now = max(self._virtual_now, timers[0].when())

    @property
    def busy(self) -> bool:
        """Return whether callbacks other than the running one are ready."""
        return bool(self._ready)  # type: ignore[attr-defined]  # asyncio has no public name for it

    def _job_done(self, _: object) -> None:
        self._jobs -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Checks real descriptors. If none are ready, it advances the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.catch_up()
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready and not self._loop.jump(timeout):
            return super().select(0.01)
        return ready


class Clock:
    """The clock for a test in virtual time. If the loop is not a `VirtualLoop`, its methods raise RuntimeError."""

    def time(self) -> float:
        """Return the number of virtual seconds since the test's loop was created."""
        return _virtual_loop().time()

    def set_date(self, date: datetime) -> None:
        """Set the current date, for schedules and ticks. Initially, it is the date when the loop was created."""
        loop = _virtual_loop()
        loop.epoch = date.timestamp() - loop.time()

    async def advance(self, seconds: Duration) -> None:
        """Advance by ``seconds``. Returns once everything that was due by then has run, in order."""
        _virtual_loop()
        await asyncio.sleep(in_seconds("seconds", seconds, least=0, finite=True))
        await self.settle()

    async def settle(self) -> None:
        """Run everything that is ready, and everything that becomes ready as a result. The clock does not advance."""
        loop = _virtual_loop()
        for _ in range(10_000):
            if not loop.busy:
                return
            await asyncio.sleep(0)
        raise RuntimeError("the program never becomes idle: a callback keeps scheduling itself")


def _virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(  # noqa: TRY004  # the caller has passed no wrong value
            f"a Clock needs a VirtualLoop, but this code runs in {loop!r}; use the fixture `clock` in a test "
            "run by pytest-asyncio 1.4 or newer or by anyio's plugin, or pass loop_factory=VirtualLoop"
        )
    return loop
