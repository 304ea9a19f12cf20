"""An async function run as a worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lifecycle._async import is_async
from lifecycle._util import current_worker, name_of
from lifecycle.errors import InvalidTransition
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.functions import needed
from lifecycle.workers.gates import Gate
from lifecycle.workers.handovers import given
from lifecycle.workers.model import End, Status
from lifecycle.workers.stacks import task_stack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]] | Callable[[Gate], Coroutine[Any, Any, object]]

__all__ = ["TaskWorker"]


class TaskWorker(BaseWorker):
    """A task of this loop that runs ``fn``.

    It is stopped by cancelling it; what it does about that has ``stop_timeout`` seconds. A task cannot be killed: one
    that goes on after its grace period is cancelled once more and then abandoned, which is logged with its stack.
    A function that takes a `Gate` can be suspended where it awaits ``gate.checkpoint()``. A `SystemExit` or
    `KeyboardInterrupt` that it raises is the error of its `Exit`; a supervisor takes that for the end of the tree.

    Args:
        name: what it is called in messages and states.
        fn: async, of no argument or of a `Gate`.
        stop_timeout: seconds that it has to end.

    Raises:
        TypeError: for anything but such a function.
        ValueError: for an empty name or a negative time-out.
    """

    kind: ClassVar[str] = "task"
    # It had a grace period; one more turn of the loop shows whether the second cancellation ended it.
    _last_wait: ClassVar[float] = 0.0

    def __init__(self, name: str, fn: Work, *, stop_timeout: float = 10.0) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        self._fn: Callable[..., Awaitable[object]] = fn
        self._gate = Gate() if _takes_gate(name, fn) else None
        self._task: asyncio.Task[End] | None = None

    @property
    def suspendable(self) -> bool:
        """Whether its function takes a `Gate`."""
        return self._gate is not None

    async def suspend(self) -> None:
        """Return when every loop of it is held at the gate. Nothing happens if it is suspended.

        Whoever gives up waiting, leaves it running.

        Raises:
            InvalidTransition: if it does not run, ends meanwhile, or its function takes no gate.
        """
        if self.status is Status.SUSPENDED:
            return
        gate = self._require_gate()
        if self.status is Status.RUNNING:
            await self._closed(gate)
        # Meanwhile somebody else may have suspended it, too.
        if self._machine.state is not Status.SUSPENDED:
            self._machine.to(Status.SUSPENDED)

    async def resume(self) -> None:
        """Let it go on. Nothing happens if it runs.

        Raises:
            InvalidTransition: if it is neither suspended nor running.
        """
        self._machine.resume()
        if self._gate is not None:
            self._gate.resume()

    # -- the life -----------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        self._task = asyncio.create_task(self._run(), name=self.name)
        return self._task

    async def _run(self) -> End:
        given.set(dict(self._env))
        current_worker.set(self.name)
        try:
            await (self._fn() if self._gate is None else self._fn(self._gate))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # as its end; SystemExit would tear the loop down from here
            return End(error=error)
        return End()

    def _ask(self, *, force: bool) -> None:
        assert self._task is not None, "what was launched has a task"
        self._task.cancel("killed" if force else "stopped")

    def _whereabouts(self) -> str:
        return repr(self._life) if self._task is None else task_stack(self._task)

    async def _closed(self, gate: Gate) -> None:
        """Wait until the gate is closed or the worker is over, whichever comes first."""
        assert self._life is not None, "what runs has a life"
        closing: asyncio.Future[None] = asyncio.create_task(gate.suspend(), name=f"suspension of {self.name}")
        try:
            await asyncio.wait(_both(closing, self._life), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Of no effect on one that is done.
            closing.cancel()
            await asyncio.wait({closing})
        if self._life.done():
            raise InvalidTransition(f"{self.name!r} ended before it reached its gate")
        closing.result()

    def _require_gate(self) -> Gate:
        if self._gate is None:
            raise InvalidTransition(
                f"{self.name!r} cannot be suspended: {name_of(self._fn)} takes no gate; "
                "give it one argument, and await its checkpoint() in the loop"
            )
        return self._gate


def _both(*futures: asyncio.Future[Any]) -> tuple[asyncio.Future[Any], ...]:
    return futures


def _takes_gate(name: str, fn: Any) -> bool:
    if not callable(fn) or not is_async(fn):
        raise TypeError(f"{fn!r} is no async function; {name!r} needs one, of no argument or of a Gate")
    count = needed(fn)
    if count not in (0, 1):
        raise TypeError(
            f"{name_of(fn)} cannot be called by {name!r}: it has to take no argument, or one: a Gate "
            "(functools.partial gives it others)"
        )
    return count == 1
