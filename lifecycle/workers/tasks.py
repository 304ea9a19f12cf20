"""Workers that run an async function as a task or a plain function in a thread, and the `Gate` for suspending tasks."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import traceback
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lifecycle._async import is_async, start_task
from lifecycle._durations import in_seconds_or_none
from lifecycle._util import current_worker, name_of
from lifecycle.errors import InvalidTransition
from lifecycle.workers.base import BaseWorker, set_handover
from lifecycle.workers.model import End, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import FrameType

    from lifecycle._durations import Duration

    Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]] | Callable[["Gate"], Coroutine[Any, Any, object]]

__all__ = ["Gate", "TaskWorker", "ThreadWorker", "required_arguments"]


class TaskWorker(BaseWorker):
    """A worker that runs an async function as a task in this event loop.

    Stopping the worker cancels the task. A task cannot be killed. If it has not finished after ``stop_timeout``
    seconds, it is cancelled again and then abandoned, and its stack is logged. A function that takes a `Gate` can be
    suspended at ``await gate.checkpoint()``. If the function raises `SystemExit` or `KeyboardInterrupt`, the exception
    is stored in the `Exit`, and the worker's supervisor ends.

    Args:
        name: The worker's name, used in messages and states.
        fn: An async function that takes either no arguments or a `Gate`.
        stop_timeout: How many seconds the task may take to finish after it is cancelled.

    Raises:
        TypeError: if ``fn`` is not such a function.
        ValueError: if the name is empty or the timeout is negative.
    """

    kind: ClassVar[str] = "task"
    # A single loop iteration is enough to see whether the second cancellation ended the task.
    _last_wait: ClassVar[float] = 0.0

    def __init__(self, name: str, fn: Work, *, stop_timeout: Duration = 10.0) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        self._fn: Callable[..., Awaitable[object]] = fn
        self._gate = Gate() if _takes_gate(name, fn) else None
        self._task: asyncio.Task[End] | None = None

    @property
    def suspendable(self) -> bool:
        """True if the function takes a `Gate`."""
        return self._gate is not None

    async def suspend(self) -> None:
        """Suspend the task. Return once all of its loops are waiting at the gate. Idempotent.

        If the call is cancelled, the task keeps running.

        Raises:
            InvalidTransition: if the task is not running, finishes before it reaches the gate, or does not take a gate.
        """
        if self.status is Status.SUSPENDED:
            return
        gate = self._require_gate()
        if self.status is Status.RUNNING:
            await self._closed(gate)
        # A concurrent call may have suspended the task in the meantime.
        if self._machine.state is not Status.SUSPENDED:
            self._machine.to(Status.SUSPENDED)

    async def resume(self) -> None:
        """Open the gate to let the task continue. Idempotent.

        Raises:
            InvalidTransition: if the task is neither suspended nor running.
        """
        self._machine.resume()
        if self._gate is not None:
            self._gate.resume()

    # -- start and end -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        self._task = start_task(self._run(), name=self.name)
        return self._task

    async def _run(self) -> End:
        set_handover(dict(self._env))
        current_worker.set(self.name)
        try:
            await (self._fn() if self._gate is None else self._fn(self._gate))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # stored in its `End`; a SystemExit would stop the loop
            return End(error=error)
        return End()

    def _terminate(self, *, force: bool) -> None:
        assert self._task is not None, "the launch sets it"
        self._task.cancel("killed" if force else "stopped")

    def _stack_text(self) -> str:
        return repr(self._life) if self._task is None else _task_stack(self._task)

    async def _closed(self, gate: Gate) -> None:
        """Close the gate. Return once it is closed, or raise if the worker ends first."""
        assert self._life is not None, "the launch sets it"
        closing: asyncio.Future[None] = start_task(gate.suspend(), name=f"suspension of {self.name}")
        try:
            await asyncio.wait(_both(closing, self._life), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            await asyncio.wait({closing})
        if self._life.done():
            raise InvalidTransition(f"{self.name!r} finished before it reached its gate")
        closing.result()

    def _require_gate(self) -> Gate:
        if self._gate is None:
            raise InvalidTransition(
                f"{self.name!r} cannot be suspended, because {name_of(self._fn)} does not take a gate; "
                "add a Gate parameter, and await gate.checkpoint() in its loop"
            )
        return self._gate


class ThreadWorker(BaseWorker):
    """A worker that runs a blocking function in a thread.

    Stopping the worker sets the event that the function receives as its argument. The function should use
    ``stop.wait(seconds)`` to sleep, and check ``stop.is_set()`` wherever it can safely return. A thread cannot be
    killed. If it is still running after ``stop_timeout`` seconds, it is abandoned, and its stack is logged. An
    abandoned thread does not keep the program from exiting.

    Args:
        name: The worker's name, used in messages and states.
        fn: A plain function that takes one argument, a `threading.Event`.
        stop_timeout: How many seconds the thread may take to finish after the event is set.

    Raises:
        TypeError: if ``fn`` is not such a function.
        ValueError: if the name is empty or the timeout is negative.
    """

    kind: ClassVar[str] = "thread"
    # Waiting would be pointless, because a thread cannot be killed.
    _last_wait: ClassVar[float] = 0.0

    def __init__(self, name: str, fn: Callable[[threading.Event], object], *, stop_timeout: Duration = 10.0) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        _check(name, fn)
        self._fn = fn
        self._stop_asked = threading.Event()
        self._thread: threading.Thread | None = None

    async def _launch(self) -> Awaitable[End]:
        loop = asyncio.get_running_loop()
        life: asyncio.Future[End] = loop.create_future()
        context = copy_context()

        def run() -> None:
            end = context.run(self._work)
            # If the loop has been closed, there is no caller left to notify.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, life, end)

        self._thread = threading.Thread(target=run, name=self.name, daemon=True)
        self._thread.start()
        return life

    def _work(self) -> End:
        set_handover(dict(self._env))
        current_worker.set(self.name)
        try:
            self._fn(self._stop_asked)
        except BaseException as error:  # noqa: BLE001  # stored in its `End`
            return End(error=error)
        return End()

    def _terminate(self, *, force: bool) -> None:  # noqa: ARG002  # a thread cannot be forced to end
        self._stop_asked.set()

    def _stack_text(self) -> str:
        return repr(self._life) if self._thread is None else _thread_stack(self._thread)


class Gate:
    """Suspends loops at points that their own code chooses, without losing their state.

    A loop is attached to the gate from its first `checkpoint` until its task finishes. Several loops can share a gate::

        async def count(gate: Gate) -> None:
            while True:
                await gate.checkpoint()
                await do_one_step()
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        # All unfinished tasks that have ever reached the gate.
        self._loops: set[asyncio.Task[Any]] = set()
        # The tasks that are currently waiting at the gate.
        self._held: set[asyncio.Task[Any]] = set()
        # True once a loop has reached the gate. Before that, we cannot tell whether all loops are waiting.
        self._known = False
        # Setting this event makes callers check again whether all loops are waiting.
        self._moved = asyncio.Event()
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<Gate: {'suspended' if self.suspended else 'open' if self._open.is_set() else 'closing'}>"

    @property
    def suspended(self) -> bool:
        """True if every loop is waiting at the gate."""
        return not self._open.is_set() and self._known and self._loops <= self._held

    async def checkpoint(self) -> None:
        """Wait while the gate is closed. Cancelling the task interrupts the wait."""
        task = asyncio.current_task()
        assert task is not None, "every coroutine runs in a task"
        if task not in self._loops:
            self._enrol(task)
        if self._open.is_set():
            # Let other tasks run, so that they can close the gate even if the loop does not await anything else.
            await asyncio.sleep(0)
        while not self._open.is_set():
            await self._stay(task)

    async def suspend(self, timeout: Duration | None = None) -> None:
        """Close the gate, and return once every loop has either reached it or finished.

        If the call is cancelled or times out, the gate opens again, unless a concurrent call is also keeping it closed.

        Args:
            timeout: Seconds to wait for the loops. By default, wait indefinitely.

        Raises:
            TimeoutError: if a loop does not reach the gate in time.
            InvalidTransition: if the gate is resumed during the wait.
        """
        limit = in_seconds_or_none("timeout", timeout, least=0)
        self._open.clear()
        self._waiting += 1
        try:
            async with asyncio.timeout(limit):
                await self._all_held()
        except BaseException:
            if self._waiting == 1 and not self.suspended:
                self.resume()
            raise
        finally:
            self._waiting -= 1

    def resume(self) -> None:
        """Open the gate to let all loops continue. Idempotent."""
        # All waiting loops continue, so the next suspension must wait for them to reach the gate again.
        self._held.clear()
        self._open.set()
        self._moved.set()

    async def _all_held(self) -> None:
        while not self.suspended:
            self._moved.clear()
            await self._moved.wait()
            if self._open.is_set():
                raise InvalidTransition("the gate was resumed before all loops had reached it; call suspend() again")

    async def _stay(self, task: asyncio.Task[Any]) -> None:
        self._held.add(task)
        self._moved.set()
        try:
            await self._open.wait()
        finally:
            self._held.discard(task)

    def _enrol(self, task: asyncio.Task[Any]) -> None:
        self._known = True
        self._loops.add(task)
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._loops.discard(task)
        self._moved.set()


def _both(*futures: asyncio.Future[Any]) -> tuple[asyncio.Future[Any], ...]:
    return futures


def _takes_gate(name: str, fn: Any) -> bool:
    if not callable(fn) or not is_async(fn):
        raise TypeError(f"{name!r} requires an async function that takes either no arguments or a Gate, got {fn!r}")
    count = required_arguments(fn)
    if count not in (0, 1):
        raise TypeError(
            f"{name!r} cannot call {name_of(fn)}: it must take either no arguments or only a Gate "
            "(use functools.partial to bind other arguments)"
        )
    return count == 1


def _settle(life: asyncio.Future[End], end: End) -> None:
    if not life.done():
        life.set_result(end)


def _check(name: str, fn: Any) -> None:
    if not callable(fn) or is_async(fn):
        raise TypeError(
            f"{name!r} requires a plain function that takes a threading.Event, got {fn!r} "
            "(for an async function, use TaskWorker)"
        )
    if not _takes_one(fn):
        raise TypeError(
            f"{name!r} cannot call {name_of(fn)}: it must take one argument, a threading.Event that is set to stop it "
            "(use functools.partial to bind other arguments)"
        )


# -- function signatures ---------------------------------------------------------------------------------


def _takes_one(fn: Callable[..., Any]) -> bool:
    """Return whether ``fn`` accepts one positional argument, as far as we can tell from its signature."""
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        return False
    except ValueError:
        # Some C functions have no signature. Assume that they accept the argument.
        return True
    return True


def required_arguments(fn: Callable[..., Any]) -> int | None:
    """Return how many positional arguments ``fn`` requires.

    Return None if it requires keyword arguments or has no signature.
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
    if any(each.kind is each.KEYWORD_ONLY for each in required):
        return None
    return len(required)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# -- stacks of tasks and threads that do not finish ----------------------------------------------------------------


def _task_stack(task: asyncio.Task[Any]) -> str:
    """Return the stack of ``task``, outermost call first, including the awaitables it is waiting for."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = _either(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            lines += traceback.format_stack(frame, limit=1)
        awaited = _either(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return f"{task.get_name()}, at\n{''.join(lines)}".rstrip()


def _thread_stack(thread: threading.Thread) -> str:
    """Return the stack of ``thread``, outermost call first."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    lines = traceback.format_stack(frame) if frame is not None else []
    return f"{thread.name}, at\n{''.join(lines)}".rstrip()


def _either(thing: object, *names: str) -> Any:
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    return None
