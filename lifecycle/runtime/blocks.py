"""`lifetime`: a lifetime inside a loop that somebody else runs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lifecycle.errors import Interrupted
from lifecycle.runtime.lifetimes import Lifetime, current_life
from lifecycle.runtime.lives import Life
from lifecycle.runtime.records import Reason, Settings
from lifecycle.runtime.signals import receiving_signals
from lifecycle.runtime.stopping import conclude

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

__all__ = ["lifetime"]


_log = logging.getLogger("lifecycle.runtime")


def lifetime(*, signals: bool = True) -> AbstractAsyncContextManager[Lifetime]:
    """Give the block a `Lifetime`; leaving the block carries the shutdown out, in the order and time that `run` has.

    A cause to stop from elsewhere (a signal, `shutdown`) cancels the block, as a time-out would, and leaves it
    without an error. Inside another lifetime, signals are that one's business, and its end begins this one's.

    Args:
        signals: whether to take SIGINT, SIGTERM and SIGHUP; without effect outside the main thread. With False the
            lifetime is embedded: a stop of it does not reach the program around it, which is logged as an error.
    """
    return _Block(signals=signals)


class _Block:
    def __init__(self, *, signals: bool) -> None:
        self._signals = signals
        self._held = ExitStack()
        self._life: Life | None = None

    async def __aenter__(self) -> Lifetime:
        if self._life is not None:
            raise RuntimeError("a lifetime has one life; call lifetime() again for another")
        outer = current_life.get(None)
        self._life = life = Life(Settings(), asyncio.get_running_loop(), outer)
        self._body = _Body()
        life.interrupt = self._interrupt
        self._held.callback(life.deadline.close)
        if self._signals and not life.is_governed:
            self._held.enter_context(receiving_signals(life))
        life.is_embedded = life.is_governed or not self._signals
        self._held.enter_context(life.as_current())
        life.up()
        return life.lifetime

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._life is not None, "a block is left after it was entered"
        with self._held:
            # A sleep that was interrupted by the stop is no error of the block either.
            clean = await self._body.leave(error) or isinstance(error, Interrupted)
            self._life.begin(Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.STOP)
            await conclude(self._life)
        return clean

    def _interrupt(self) -> None:
        """Cancel the block for a cause from elsewhere."""
        life = self._life
        assert life is not None, "only a block that was entered is interrupted"
        if self._body.cancel() and life.is_embedded and life.outer is None:
            _log.error(
                "the lifetime stops (%s), but not the program that runs this event loop: that program continues "
                "without the workers, routers and tasks of the lifetime; stop it too",
                life.reason,
            )


class _Body:
    """The task that runs a block, and whether its cancellation was our doing."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._requests = self._task.cancelling() if self._task else 0
        self._cancelled = False
        self._left = False

    def cancel(self) -> bool:
        """Cancel the block, unless it has been left; whether it was cancelled."""
        if self._task is None or self._left:
            return False
        self._cancelled = True
        return self._task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """Nothing is cancelled from now on; whether ``error`` is our cancellation and nobody else's."""
        self._left = True
        if not self._cancelled or self._task is None:
            return False
        if not isinstance(error, asyncio.CancelledError):
            # It may not have arrived yet, and must not hit what comes after the block.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                error = error or asyncio.CancelledError()
        others = self._task.uncancel() > self._requests
        if others and not isinstance(error, asyncio.CancelledError):
            self._task.cancel()
        return not others and isinstance(error, asyncio.CancelledError)
