"""`run`: a whole program in an event loop of its own, from the start of its mains to their end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle.runtime.lifetimes import Lifetime
from lifecycle.runtime.mains import as_main
from lifecycle.runtime.receiving import receiving_signals
from lifecycle.runtime.settings import Reason, Settings
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lifecycle._durations import Duration
    from lifecycle.runtime.mains import AnyMain, Main

__all__ = ["Program", "run"]

_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.runtime")


def run(  # keyword settings of a program
    *mains: AnyMain,
    force_exit: int = 1,
    cancel_on_interrupt: bool | None = None,
    reset_after: Duration = 5.0,
    hook_timeout: Duration = 5.0,
    shutdown_timeout: Duration = 2.0,
    exit_timeout: Duration = 25.0,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Any:
    """Run a program until it is complete, shut it down, and return the result of its async function.

    Mains are started from left to right and stopped from right to left. The program is complete when one of its async
    functions returns, when a main fails, or when all mains have ended. SIGTERM, Ctrl+C and `shutdown` stop it earlier.

    When the program ends, `run` restores the signal handlers and terminal modes. Outside the main thread, it does not
    handle signals. If the process is PID 1, `run` reaps orphans. If systemd has set NOTIFY_SOCKET, `run` sends watchdog
    pings, and notifies systemd when all mains have started, when the program reloads, and when the shutdown begins.

    Args:
        mains: Async functions without arguments, routers, workers, supervisors, objects with ``async def run()``, or a
            ``uvicorn.Server`` or ``aiohttp.web.AppRunner``.
        force_exit: The number of signals that force the process to exit with ``os._exit(1)``:
            ``max(force_exit, 2)`` or, if ``cancel_on_interrupt=False`` or a router captures Ctrl+C, ``force_exit + 2``.
            0 means never.
        cancel_on_interrupt: Whether Ctrl+C begins the shutdown. By default it does, unless a running router has a route
            for ``signal/interrupt`` or, if ``force_exit`` is 2 or more, for `InterruptEvent` or `ClearLineEvent`.
        reset_after: After this many seconds without a signal, signals are counted from zero again. During the shutdown,
            the count is never reset.
        hook_timeout: If a shutdown hook is still running after this many seconds, its name is logged.
        shutdown_timeout: If any code is still running this many seconds after the mains have ended, its stacks are
            printed to stderr.
        exit_timeout: If the shutdown takes more than this many seconds, the process is forced to exit with status 1.
        loop_factory: Creates the event loop, as for `asyncio.Runner`.

    Returns:
        The return value of the async function, or None.

    Raises:
        BaseException: the error of the main that ended the program.
        WorkerFailed: if a worker ended as FAILED or KILLED without an error of its own.
        TypeError: if an argument cannot be run.
        ValueError: if a setting is negative.
        RuntimeError: if called inside a running event loop.
    """
    if not mains:
        raise TypeError("run() has nothing to run; pass an async function, a Router, or a worker")
    program = [as_main(main) for main in mains]
    settings = Settings(
        force_exit=force_exit,
        cancel_on_interrupt=cancel_on_interrupt,
        reset_after=reset_after,
        hook_timeout=hook_timeout,
        shutdown_timeout=shutdown_timeout,
        exit_timeout=exit_timeout,
    )
    _refuse_running_loop()
    _open_standard_descriptors()
    with ExitStack() as held:
        held.enter_context(signal_registry().terminal.kept())
        runner = asyncio.Runner(loop_factory=loop_factory)
        held.callback(runner.close)  # closes the runner if the code below fails; closing it twice is harmless
        life = Lifetime(settings, runner.get_loop())
        # These are closed in reverse order. While the loop's threads are being joined, Ctrl+C can still force an exit,
        # and the deadline still applies.
        held.callback(life.deadline.close)
        held.enter_context(receiving_signals(life))
        if os.getpid() == 1:
            from lifecycle.runtime.orphans import reaping_orphans  # few programs run as PID 1

            held.enter_context(reaping_orphans(runner.get_loop()))
        if any(name.startswith(("NOTIFY_SOCKET", "WATCHDOG_")) for name in os.environ):
            from lifecycle.runtime.systemd import notifying  # few programs have a service manager

            held.enter_context(notifying(life))
        held.enter_context(runner)
        return _drive(life, Program(life, program).live())


def _drive(life: Lifetime, work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` to completion, even if the loop stops earlier, for example because of a SystemExit in a task."""
    task = life.loop.create_task(work, name="lifecycle run")
    escaped: list[BaseException] = []
    while not task.done():
        try:
            life.loop.run_until_complete(task)
        except BaseException as error:
            if not task.done():
                escaped.append(error)  # this error is raised below, after the shutdown
                life.begin(Reason.STOP)
            elif not escaped and not task.cancelled() and error is task.exception():
                raise  # the traceback is complete only the first time a task raises its error
    if escaped:
        raise escaped[0] from None if task.cancelled() else task.exception()
    return task.result()


def _open_standard_descriptors() -> None:
    """Open /dev/null for a missing stdin, stdout or stderr, because the loop's descriptors must not take their numbers.

    Output could reach such a descriptor by mistake, and libuv aborts the process when it closes one.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run() starts an event loop, but one is already running; use `async with lifetime()` instead")


# -- the mains ---------------------------------------------------------------------------------------------------------


class Program:
    """The mains of one `run`, or of a block."""

    def __init__(
        self, life: Lifetime, mains: Sequence[Main], on_failure: Callable[[Main], object] | None = None
    ) -> None:
        self._life = life
        self._mains = mains
        # For a block: called when a main has failed. A block continues when an async function returns.
        self._on_failure = on_failure
        self._begun: list[Main] = []
        # The mains that have ended, in the order in which they ended.
        self._ended: list[Main] = []

    async def live(self) -> Any:
        """Start all mains, wait until a stop is requested, and then stop them."""
        with self._life.as_current():
            try:
                await self.start()
                self._report_started()
                await self._until_complete()
            finally:
                await self.end()
        failure = self.failure()
        if failure is not None:
            raise failure
        values = [main.value for main in self._ended if main.completes and main.value is not None]
        return values[0] if values else None

    async def start(self) -> None:
        """Start the mains in order, until all have started or the program is already ending."""
        for main in self._mains:
            self._check_complete()
            if self._life.stopping:
                return
            main.begin(self._life).add_done_callback(functools.partial(self._end_of, main))
            self._begun.append(main)
            await main.start()

    async def end(self, reason: Reason = Reason.STOP) -> None:
        """Run the shutdown, and record ``reason`` unless the shutdown has already begun."""
        self._life.begin(reason)
        await self._life.conclude()

    def _end_of(self, main: Main, _: object) -> None:
        self._ended.append(main)
        if main.error is not None:
            self._life.failures[main.title] = main.error
            if self._on_failure is not None:
                self._on_failure(main)

    def failure(self) -> BaseException | None:
        """Return the first error raised by a main. Later errors are logged."""
        failed = [main for main in self._ended if main.error is not None]
        for main in failed[1:]:
            _log.error("%s also failed: %r", main.name, main.error, exc_info=main.error)
        return failed[0].error if failed else None

    def _report_started(self) -> None:
        """Report that all mains have started, even if the program is already complete."""
        if not self._life.stopping and all(main.error is None for main in self._begun):
            self._life.up()

    async def _until_complete(self) -> None:
        self._check_complete()
        with self._life.stop_awaited() as stopping:
            while not self._life.stopping and not self._is_idle():
                # A main's task may be done before its callback has run, so we wait for the task rather than the
                # callback.
                unseen: list[asyncio.Future[None]] = [main.task for main in self._begun if main not in self._ended]
                await asyncio.wait({*unseen, stopping}, return_when=asyncio.FIRST_COMPLETED)
                # Give the callbacks of other mains that ended at the same time a chance to run.
                await asyncio.sleep(0)
                self._check_complete()

    def _is_idle(self) -> bool:
        """Return True if all mains that keep the program running have ended."""
        needed = [main for main in self._begun if not main.auxiliary] or self._begun
        return all(main in self._ended for main in needed)

    def _check_complete(self) -> None:
        """Begin the shutdown if one of the mains that have ended completes the program."""
        for main in self._ended:
            if main.error is not None or (main.completes and self._on_failure is None):
                timed_out = isinstance(main.error, TimeoutError)
                self._life.begin(Reason.TIMEOUT if timed_out else Reason.STOP)
