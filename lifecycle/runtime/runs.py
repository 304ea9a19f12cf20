"""`run`: a whole program, from its mains to its end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle.runtime.lives import Life
from lifecycle.runtime.mains import as_main
from lifecycle.runtime.orphans import reaping_orphans
from lifecycle.runtime.programs import Program
from lifecycle.runtime.records import Reason, Settings
from lifecycle.runtime.signals import receiving_signals, signal_registry
from lifecycle.runtime.systemd import notifying

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle.runtime.mains import AnyMain

__all__ = ["run"]

_T = TypeVar("_T")


def run(  # the settings of a program, each by its name
    *mains: AnyMain,
    force_exit: int = 1,
    cancel_on_interrupt: bool | None = None,
    reset_after: float = 5.0,
    hook_timeout: float = 5.0,
    shutdown_timeout: float = 2.0,
    exit_timeout: float = 25.0,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Any:
    """Run a program until it is complete, stop it in order, and return what its async function returned.

    A main is an async function without arguments, a `Router`, a worker or supervisor, or anything with ``async def
    run()``. They start left to right and stop right to left. The program is complete when its async function returns
    (of several, when the first does), when one of the others fails, or when all have ended; and it stops on SIGTERM,
    on Ctrl+C and on `shutdown`. What it took (signal handlers, the modes of the terminal) is given back. In another
    thread than the main one it works without signals; as PID 1 it reaps orphans; where systemd set NOTIFY_SOCKET, it
    is told when all mains have started, about reloads, that the loop turns, and when the shutdown begins.

    Args:
        mains: what to run.
        force_exit: ``os._exit(1)`` on signal number ``max(force_exit, 2)``, or ``force_exit + 2`` where Ctrl+C is
            captured by ``cancel_on_interrupt=False`` or by a router; 0: never.
        cancel_on_interrupt: whether Ctrl+C begins the shutdown. None: unless a running router has a route for
            ``signal/interrupt``, or, with ``force_exit`` of 2 or more, one for `InterruptEvent` or `ClearLineEvent`.
        reset_after: seconds without a signal after which they are counted anew, but never once stopping.
        hook_timeout: seconds after which a shutdown hook that still runs is named in the log.
        shutdown_timeout: seconds after the mains have stopped until the stacks of what still runs go to stderr.
        exit_timeout: seconds from the first cause until the process is ended with status 1, whatever it does.
        loop_factory: makes the event loop, as for `asyncio.Runner`.

    Returns:
        What the async function returned, or None.

    Raises:
        BaseException: what the main raised that ended the program.
        WorkerFailed: for a worker that ended FAILED or KILLED without an error of its own.
        TypeError: for what cannot be run.
        ValueError: for a negative setting.
        RuntimeError: inside a running event loop.
    """
    if not mains:
        raise TypeError("run() has nothing to run; give it an async function, a Router, or a worker")
    program = [as_main(main) for main in mains]
    settings = Settings(force_exit, cancel_on_interrupt, reset_after, hook_timeout, shutdown_timeout, exit_timeout)
    _refuse_running_loop()
    with ExitStack() as held:
        held.enter_context(signal_registry().terminal.kept())
        runner = asyncio.Runner(loop_factory=loop_factory)
        held.callback(runner.close)  # also when what follows fails; closing twice does nothing
        life = Life(settings, runner.get_loop())
        # Left last first: Ctrl+C still forces, and the deadline still holds, while the loop's threads are joined.
        held.callback(life.deadline.close)
        held.enter_context(receiving_signals(life))
        held.enter_context(reaping_orphans(runner.get_loop()))
        held.enter_context(notifying(life))
        held.enter_context(runner)
        return _drive(life, Program(life, program).live())


def _drive(life: Life, work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` to its end, also past what stops the loop from anywhere, such as a SystemExit in a task."""
    task = life.loop.create_task(work, name="lifecycle run")
    escaped: list[BaseException] = []
    while not task.done():
        try:
            life.loop.run_until_complete(task)
        except BaseException as error:
            if not task.done():
                escaped.append(error)  # raised below, once the shutdown is carried out
                life.begin(Reason.STOP)
            elif not escaped and not task.cancelled() and error is task.exception():
                raise  # asked a second time, a task has forgotten where its error came from
    if escaped:
        raise escaped[0] from None if task.cancelled() else task.exception()
    return task.result()


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run() starts an event loop, and one is running here; use `async with lifetime()` inside it")
