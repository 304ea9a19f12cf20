"""`run`, which runs a whole program, and `lifetime`, which does the same for a block of code in a running event loop.

A lifetime is embedded if another program, its host, runs the event loop and receives the signals. Such a lifetime does
not end by itself: `_Block` asks the host to stop, and the host then exits the block.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle._async import is_async, start_task
from lifecycle._util import reason_of
from lifecycle.errors import Interrupted
from lifecycle.runtime.lifetimes import Life, Lifetime, Reason, Settings, current_life
from lifecycle.runtime.mains import as_main
from lifecycle.runtime.signals import receiving_signals, signal_registry
from lifecycle.runtime.stopping import conclude
from lifecycle.runtime.systemd import notifying

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from lifecycle._durations import Duration
    from lifecycle.runtime.mains import AnyMain, Main

__all__ = ["lifetime", "run"]

_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.runtime")

#: Seconds between checks for orphans. Code that started a child has at least this much time to wait for it.
_ORPHAN_GRACE = 1.0


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
    settings = Settings(force_exit, cancel_on_interrupt, reset_after, hook_timeout, shutdown_timeout, exit_timeout)
    _refuse_running_loop()
    _open_standard_descriptors()
    with ExitStack() as held:
        held.enter_context(signal_registry().terminal.kept())
        runner = asyncio.Runner(loop_factory=loop_factory)
        held.callback(runner.close)  # closes the runner if the code below fails; closing it twice is harmless
        life = Life(settings, runner.get_loop())
        # These are closed in reverse order. While the loop's threads are being joined, Ctrl+C can still force an exit,
        # and the deadline still applies.
        held.callback(life.deadline.close)
        held.enter_context(receiving_signals(life))
        held.enter_context(_reaping_orphans(runner.get_loop()))
        held.enter_context(notifying(life))
        held.enter_context(runner)
        return _drive(life, _Program(life, program).live())


def _drive(life: Life, work: Coroutine[Any, Any, _T]) -> _T:
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


# -- a program --------------------------------------------------------------------------------------------------------


class _Program:
    """The mains of one `run`, or of a block."""

    def __init__(self, life: Life, mains: Sequence[Main], on_failure: Callable[[Main], object] | None = None) -> None:
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
        with self._life.stop_awaited() as stopping:
            for main in self._mains:
                await self._start(main, stopping)

    async def end(self, reason: Reason = Reason.STOP) -> None:
        """Run the shutdown, and record ``reason`` unless the shutdown has already begun."""
        self._life.begin(reason)
        await conclude(self._life, self._begun)

    def _end_of(self, main: Main) -> None:
        self._ended.append(main)
        if main.error is not None:
            self._life.failures[main.component] = main.error
            if self._on_failure is not None:
                self._on_failure(main)

    def failure(self) -> BaseException | None:
        """Return the first error raised by a main. Later errors are logged."""
        failed = [main for main in self._ended if main.error is not None]
        for main in failed[1:]:
            _log.error("%s also failed: %r", main.name, main.error, exc_info=main.error)
        return failed[0].error if failed else None

    async def _start(self, main: Main, stopping: asyncio.Future[None]) -> None:
        """Unless the program is already ending, start ``main`` and wait until the next main may start."""
        self._check_complete()
        if self._life.reason is not Reason.NONE:
            return
        task = main.begin()
        self._begun.append(main)
        self._life.own_tasks.add(task)
        task.add_done_callback(lambda _: self._end_of(main))
        if main.drainable is not None:
            self._life.draining.add(main.drainable, task)
        started = start_task(main.started.wait(), name=f"start of {main.name}")
        ends: set[asyncio.Future[Any]] = {task, started, stopping}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        await asyncio.wait({started})

    def _report_started(self) -> None:
        """Report that all mains have started, even if the program is already complete."""
        if self._life.reason is Reason.NONE and all(main.error is None for main in self._begun):
            self._life.up()

    async def _until_complete(self) -> None:
        self._check_complete()
        with self._life.stop_awaited() as stopping:
            while self._life.reason is Reason.NONE and not self._is_idle():
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


# -- a block ----------------------------------------------------------------------------------------------------------

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
    def __init__(self, mains: Sequence[Main], *, signals: bool, on_stop: Callable[[], object] | None) -> None:
        self._mains = mains
        self._signals = signals
        self._on_stop = on_stop
        self._held = ExitStack()
        self._life: Life | None = None
        # Whether the body has begun, and whether the lifetime's shutdown has interrupted it.
        self._entered = self._interrupted = False
        # The error that ended the block.
        self._error: BaseException | None = None
        # The task that runs the shutdown if the host has abandoned the block.
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Lifetime:
        if self._life is not None:
            raise RuntimeError("a lifetime runs only once; call lifetime() again for a new one")
        outer = current_life.get(None)
        self._life = life = Life(Settings(), asyncio.get_running_loop(), outer)
        self._program = _Program(life, self._mains, self._main_failed)
        self._body = _Body()
        life.interrupt = self._interrupt
        self._held.callback(life.deadline.close)
        if self._signals and not life.is_governed:
            self._held.enter_context(receiving_signals(life))
        life.is_embedded = life.is_governed or not self._signals
        life.stops_host = self._stops_host
        life.supervisor_failed = self._supervisor_failed
        if (task := asyncio.current_task()) is not None:
            life.own_tasks.add(task)
        self._held.enter_context(life.as_current())
        await self._start()
        self._entered = True
        if life.stopping:
            # The shutdown began while a main was starting. It must still interrupt the body.
            life.loop.call_soon(self._interrupt)
        else:
            life.up()
        return life.lifetime

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._life is not None, "a block is left after it was entered"
        with self._held:
            # If the shutdown interrupts a sleep, the block has not failed.
            clean = await self._body.leave(error) or isinstance(error, Interrupted)
            await self._program.end(Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.STOP)
        self._error = error
        if (clean or error is None) and (failure := self._program.failure()) is not None:
            raise failure
        return clean

    async def _start(self) -> None:
        """Start the mains. If one fails to start, stop the others and raise its error."""
        if not self._mains:
            return
        failure: BaseException | None
        try:
            await self._program.start()
            failure = self._program.failure()
        except BaseException as error:  # noqa: BLE001  # raised below, after the shutdown
            failure = error
        if failure is not None:
            with self._held:
                await self._program.end()
            raise failure

    def _main_failed(self, main: Main) -> None:
        assert self._life is not None, "only a block that was entered has mains"
        if self._entered and not self._life.stopping:
            self._life.begin(Reason.TIMEOUT if isinstance(main.error, TimeoutError) else Reason.STOP)

    def _interrupt(self) -> None:
        """Ask the host to exit the block, or cancel the block. Called once the shutdown has begun."""
        if self._interrupted or not self._entered or self._body.left:
            return
        self._interrupted = True
        life = self._life
        assert life is not None, "only a block that was entered is interrupted"
        failed = [f"{name} failed: {reason_of(error)}" for name, error in life.failures.items()]
        if not (
            self._faces_host and self._end_host(failed[0] if failed else f"the lifetime is stopping ({life.reason})")
        ):
            self._body.cancel()

    # -- the host -------------------------------------------------------------------------------------------------

    @property
    def _faces_host(self) -> bool:
        """Return True if this is the outermost block, and the surrounding program receives the signals."""
        return self._life is not None and self._life.is_embedded and self._life.outer is None

    def _stops_host(self) -> bool:
        return self._faces_host and (self._on_stop is not None or signal_registry().handles_sigterm())

    def _supervisor_failed(self, error: BaseException) -> None:
        """After a supervisor failed and cancelled the body, wait a moment, then check whether the host has ended."""
        if self._faces_host:
            asyncio.get_running_loop().call_later(_HOST_GRACE, self._check_host, error)

    def _check_host(self, error: BaseException) -> None:
        # Some hosts suspend the body in an async generator, which is not closed when the task ends.
        lost = not self._body.left and self._body.is_over
        if lost or self._error is error:
            self._end_host(error, shutdown=lost)

    def _end_host(self, why: object, *, shutdown: bool = False) -> bool:
        """End the surrounding program, after a shutdown if ``shutdown`` is true. Return False if that is impossible."""
        if _is_worker_process() and not self._stops_host():
            _log.error("%s; exiting, because this process's server does not handle SIGTERM", why)
            self._ending = start_task(self._shut_down_and(signal_registry().send_sigterm))
        elif not self._stops_host():
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
        with self._held:
            await self._program.end()
        then()

    def _ask_host(self, why: object) -> None:
        assert self._life is not None, "only a block that was entered has a host"
        level = logging.ERROR if self._life.failures else logging.WARNING
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


@contextmanager
def _reaping_orphans(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """If this process is PID 1, reap orphans during the block.

    A process whose parent has exited becomes a child of PID 1. When it exits, it stays a zombie until it is reaped.
    """
    if os.getpid() != 1:
        yield
        return
    reaper = _Reaper(loop)
    release = signal_registry().take([signal.SIGCHLD], reaper.wake)
    reaper.schedule()
    try:
        yield
    finally:
        release()
        reaper.cancel()


class _Reaper:
    """Reaps zombies that nothing waits for.

    It does not reap a child before the code that started the child has had a chance to. It never reaps a child before
    its `subprocess.Popen` object (or the `multiprocessing` equivalent) has noticed the exit. It waits at least a second
    before reaping any other child.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Zombies found by the last check that may be orphans. If they are still zombies at the next check, they are
        # reaped.
        self._suspects: set[int] = set()

    def wake(self, _signum: int) -> None:
        """Schedule a check. Called when a child has exited."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.schedule)

    def schedule(self) -> None:
        """Schedule a check in a second, unless one is already scheduled."""
        if self._timer is None:
            self._timer = self._loop.call_later(_ORPHAN_GRACE, self._look)

    def cancel(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        zombies = set(_zombies())
        if zombies:
            zombies -= _asked_for()
        for pid in zombies & self._suspects:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                _log.debug("reaped the orphan %d", pid)
        self._suspects = zombies - self._suspects
        if self._suspects:
            self.schedule()


def _zombies() -> Iterator[int]:
    """Return the children of this process that have exited but have not been waited for."""
    from pathlib import Path  # slow to import, and few programs run as PID 1

    me = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The format is "pid (name) state parent …". The name may contain any character.
            state, parent = entry.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            if state == "Z" and parent == me:
                yield int(entry.parent.name)


def _asked_for() -> set[int]:
    """Return the children that a Popen object in this program waits for."""
    from multiprocessing import popen_fork

    kinds = (subprocess.Popen, popen_fork.Popen)
    mine: list[Any] = [each for each in gc.get_objects() if isinstance(each, kinds)]
    return {each.pid for each in mine if each.returncode is None}
