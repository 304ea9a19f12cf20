"""`lifetime`: the start and the shutdown of a program around a block of code, in a running event loop.

A lifetime is embedded if another program, its host, runs the event loop and receives the signals. Such a lifetime does
not end by itself: it asks the host to stop, and the host then exits the block.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from lifecycle._async import is_async, start_task
from lifecycle._util import reason_of
from lifecycle.errors import Interrupted
from lifecycle.runtime.lifetimes import Host, Lifetime, current_lifetime
from lifecycle.runtime.mains import as_main
from lifecycle.runtime.programs import Program
from lifecycle.runtime.receiving import receiving_signals
from lifecycle.runtime.settings import Reason, Settings
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from lifecycle.runtime.mains import AnyMain, Main

__all__ = ["lifetime"]

_log = logging.getLogger("lifecycle.runtime")

#: The time limit, in seconds, for a host to exit by itself after a supervisor in the block has failed and cancelled
#: the block.
_HOST_GRACE = 0.5


def lifetime(
    *mains: AnyMain, signals: bool = True, on_stop: Callable[[], object] | None = None
) -> AbstractAsyncContextManager[Lifetime]:
    """Return an async context manager that provides a `Lifetime`. The shutdown runs when its block is exited.

    Use it if an event loop is already running. The block begins once all ``mains`` have started. The shutdown has the
    same order and time limits as in `run`. If one lifetime is inside another, the outer lifetime receives the signals.
    When it begins to shut down, so does the inner lifetime.

    The lifetime begins to stop when a signal arrives, `shutdown` is called, a main fails, or the block ends. If the
    lifetime receives signals, stopping it cancels the block, as a timeout would. The ``async with`` statement then ends
    without an error, or raises the main's error.

    With ``signals=False``, the lifetime is embedded in another program, such as a web server, which must not continue
    without it. Stopping the lifetime therefore does not cancel the block. Instead, the reason is logged, and SIGTERM is
    sent to this process, so that the server stops as usual and exits the block. If that takes more than 25 seconds, the
    process is forced to exit with status 1. If nothing handles SIGTERM, as in most tests, the block is cancelled
    instead. A worker process started by `multiprocessing` then exits with SIGTERM.

    Args:
        mains: Async functions without arguments, routers, workers, supervisors, or objects with ``async def run()``.
            They are started from left to right and stopped from right to left. The block continues when one of them
            returns.
        signals: Whether to handle SIGINT, SIGTERM and SIGHUP. This has no effect outside the main thread.
        on_stop: A function that is called without arguments to stop the surrounding program, instead of sending
            SIGTERM. It must not block.

    Raises:
        TypeError: if an argument cannot be run, or ``on_stop`` is not a plain function.
        BaseException: on entry, the error of a main that failed to start; on exit, the error of a main that failed.
    """
    if on_stop is not None and (is_async(on_stop) or not callable(on_stop)):
        raise TypeError(f"on_stop must be a plain function without arguments, got {on_stop!r}")
    return _Block([as_main(main) for main in mains], signals=signals, on_stop=on_stop)


class _Block:
    """The context manager. `Program` starts and stops the mains, and `_Surroundings` ends the block."""

    def __init__(self, mains: Sequence[Main], *, signals: bool, on_stop: Callable[[], object] | None) -> None:
        self._mains = mains
        self._signals = signals
        self._on_stop = on_stop
        self._held = ExitStack()
        self._life: Lifetime | None = None

    async def __aenter__(self) -> Lifetime:
        if self._life is not None:
            raise RuntimeError("a lifetime runs only once; call lifetime() again for a new one")
        outer = current_lifetime()
        self._around = around = _Surroundings(self._on_stop, self._shut_down)
        self._life = life = Lifetime(Settings(), asyncio.get_running_loop(), outer, around)
        self._program = Program(life, self._mains, self._main_failed)
        self._held.callback(life.deadline.close)
        if self._signals and not life.is_governed:
            self._held.enter_context(receiving_signals(life))
        around.life, around.is_embedding = life, life.is_governed or not self._signals
        life.task = asyncio.current_task()
        self._held.enter_context(life.as_current())
        await self._start()
        around.body = _Body()
        if life.stopping:
            # The shutdown began while a main was starting. It must still interrupt the body.
            life.loop.call_soon(around.interrupt)
        else:
            life.up()
        return life

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        body = self._around.body
        assert body is not None, "a block is left after it was entered"
        with self._held:
            # If the shutdown interrupts a sleep, the block has not failed.
            clean = await body.leave(error) or isinstance(error, Interrupted)
            await self._program.end(Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.STOP)
        self._around.error = error
        if (clean or error is None) and (failure := self._program.failure()) is not None:
            raise failure
        return clean

    async def _start(self) -> None:
        """Start the mains. If one fails to start, stop the others and raise its error."""
        failure: BaseException | None
        try:
            await self._program.start()
            failure = self._program.failure()
        except BaseException as error:  # noqa: BLE001  # raised below, after the shutdown
            failure = error
        if failure is not None:
            await self._shut_down()
            raise failure

    async def _shut_down(self) -> None:
        """Run the shutdown without the body."""
        with self._held:
            await self._program.end()

    def _main_failed(self, main: Main) -> None:
        # If a main fails to start, `_start` ends the others.
        if self._around.body is not None and self._life is not None:
            self._life.begin(Reason.TIMEOUT if isinstance(main.error, TimeoutError) else Reason.STOP)


class _Surroundings(Host):
    """The code around a lifetime: the body of its block, and the host, if there is one."""

    def __init__(
        self, on_stop: Callable[[], object] | None, shut_down: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._on_stop = on_stop
        self._shut_down = shut_down
        self.life: Lifetime
        #: The body of the block, once it has begun.
        self.body: _Body | None = None
        #: The error that ended the block.
        self.error: BaseException | None = None
        self._interrupted = False
        # The task that runs the shutdown if the host has abandoned the block.
        self._ending: asyncio.Task[None] | None = None

    @property
    def _is_host(self) -> bool:
        """Return True if this is the outermost block, and the surrounding program receives the signals."""
        return self.is_embedding and self.life.outer is None

    def stops(self) -> bool:
        """Return whether the host can be asked to stop."""
        return self._is_host and (self._on_stop is not None or signal_registry().handles_sigterm())

    def interrupt(self) -> None:
        """Ask the host to exit the block, or cancel the block. Called once the shutdown has begun."""
        if self._interrupted or self.body is None or self.body.left:
            return
        self._interrupted = True
        failed = [f"{name} failed: {reason_of(error)}" for name, error in self.life.failures.items()]
        why = failed[0] if failed else f"the lifetime is stopping ({self.life.reason})"
        if not (self._is_host and self._end_host(why)):
            self.body.cancel()

    def supervisor_failed(self, error: BaseException) -> None:
        """After a supervisor failed and cancelled the body, wait a moment, then check whether the host has ended."""
        if self._is_host:
            asyncio.get_running_loop().call_later(_HOST_GRACE, self._check_host, error)

    def _check_host(self, error: BaseException) -> None:
        # Some hosts suspend the body in an async generator, which is not closed when the task ends.
        lost = self.body is not None and not self.body.left and self.body.is_over
        if lost or self.error is error:
            self._end_host(error, shutdown=lost)

    def _end_host(self, why: object, *, shutdown: bool = False) -> bool:
        """End the surrounding program, after a shutdown if ``shutdown`` is true. Return False if that is impossible."""
        if _is_worker_process() and not self.stops():
            _log.error("%s; exiting, because this process's server does not handle SIGTERM", why)
            self._ending = start_task(self._shut_down_and(signal_registry().send_sigterm))
        elif not self.stops():
            _log.error(
                "%s, but the program that runs this event loop does not handle SIGTERM and continues without the "
                "lifetime's workers, routers and tasks; pass on_stop= to lifetime()",
                why,
            )
            return False
        elif shutdown:
            self._ending = start_task(self._shut_down_and(partial(self._ask_host, why)))
        else:
            self._ask_host(why)
        return True

    async def _shut_down_and(self, then: Callable[[], object]) -> None:
        self._interrupted = True
        await self._shut_down()
        then()

    def _ask_host(self, why: object) -> None:
        level = logging.ERROR if self.life.failures else logging.WARNING
        if self._on_stop is not None:
            _log.log(level, "%s; calling on_stop to stop the surrounding program", why)
            try:
                self._on_stop()
            except Exception:  # noqa: BLE001  # user code; the program must stop in any case
                _log.exception("on_stop failed; sending SIGTERM instead")
            else:
                return
        else:
            _log.log(level, "%s; sending SIGTERM to this process to stop the surrounding program", why)
        signal_registry().send_sigterm()


def _is_worker_process() -> bool:
    """Return True if `multiprocessing` started this process, as with Hypercorn's workers.

    The parent process detects when such a process exits.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


class _Body:
    """The task that runs a block, and whether the lifetime has cancelled it."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._requests = self._task.cancelling() if self._task else 0
        self._cancelled = False
        #: True if the block has been exited.
        self.left = False

    @property
    def is_over(self) -> bool:
        """Return True if the task that entered the block has ended."""
        return self._task is not None and self._task.done()

    def cancel(self) -> None:
        """Cancel the block, unless it has ended."""
        if self._task is not None and not self.left:
            self._cancelled = True
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """Stop cancelling the block. Return whether ``error`` is merely this lifetime's cancellation."""
        self.left = True
        if not self._cancelled or self._task is None:
            return False
        if not isinstance(error, asyncio.CancelledError):
            # The cancellation may not have been delivered yet. Make sure that it does not cancel the code after the
            # block.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                error = error or asyncio.CancelledError()
        others = self._task.uncancel() > self._requests
        if others and not isinstance(error, asyncio.CancelledError):
            self._task.cancel()
        return not others and isinstance(error, asyncio.CancelledError)
