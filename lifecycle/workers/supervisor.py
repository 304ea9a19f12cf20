"""`Supervisor`: a worker that keeps other workers running, following the rules of Erlang/OTP.

This module contains the public API, including the ``async with`` block. Decisions about children are made in
`lifecycle.workers.supervision.loop`.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lifecycle.backoff import Intensity
from lifecycle.errors import InvalidTransition
from lifecycle.events import StatusEvent
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import FINAL, UNSTARTED, Status
from lifecycle.workers.specs import AutoShutdown, OnLimit, StopOrder, Strategy, chosen
from lifecycle.workers.supervision.child import Child, probe_all
from lifecycle.workers.supervision.loop import SupervisorLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import End, ProbeResult, WorkerState
    from lifecycle.workers.specs import Spec
    from lifecycle.workers.supervision.watch import Watch

__all__ = ["Supervisor"]


class Supervisor(BaseWorker):
    """A worker that starts, restarts and stops other workers, its children. Each child is described by a `Spec`.

    `start` starts the children one after another, waiting until each is running. If a child cannot start, the children
    already started are stopped, and `start` raises. When a child ends, its spec determines whether it is restarted. If
    so, it is restarted after its backoff, along with the siblings selected by ``strategy``. `stop` stops the children
    in reverse order.

    If the supervisor fails inside an ``async with`` block, for example because its ``intensity`` was exceeded, it
    behaves like a task group: the body of the block is cancelled, and the block raises the error. The block must be
    exited in the task that entered it.

    A child that raises `DoNotRestart` is not restarted. If a child raises `StopTree`, `SystemExit` or
    `KeyboardInterrupt`, its supervisor and all supervisors above it end as FAILED with that error.

    Args:
        name: The supervisor's name, used in messages and states.
        specs: The children. You can `add` more at any time.
        strategy: Which siblings to restart along with a child: ``"one_for_one"``, ``"one_for_all"`` or
            ``"rest_for_one"``; see `Strategy`.
        intensity: The maximum number of restarts within a period, across all children. By default, restarts are
            unlimited.
        on_limit: How to react when ``intensity`` is exceeded. ``"escalate"`` stops the children and ends the supervisor
            as FAILED with `RestartLimitReached`. ``"pause"`` delays the restart until it is allowed again.
        auto_shutdown: When to end (as FINISHED) because significant children have ended and will not be restarted; see
            `AutoShutdown`.
        stop_order: ``"reverse"`` stops the children one at a time, in reverse start order. ``"parallel"`` stops them
            all at the same time. This also applies when children are stopped in order to be restarted together.

    Raises:
        ValueError, TypeError: if a setting is invalid.
    """

    kind: ClassVar[str] = "supervisor"
    # All children are killed at the same time and have one second to end, including those of nested supervisors.
    _last_wait: ClassVar[float] = 5.0

    def __init__(  # public API; each option has a default
        self,
        name: str,
        *specs: Spec,
        strategy: Strategy | Literal["one_for_one", "one_for_all", "rest_for_one"] = Strategy.ONE_FOR_ONE,
        intensity: Intensity | None = None,
        on_limit: OnLimit | Literal["escalate", "pause"] = OnLimit.ESCALATE,
        auto_shutdown: AutoShutdown | Literal["never", "any_significant", "all_significant"] = AutoShutdown.NEVER,
        stop_order: StopOrder | Literal["reverse", "parallel"] = StopOrder.REVERSE,
    ) -> None:
        # The supervisor itself has no time limit, because the grace periods of its children add up.
        super().__init__(name, stop_timeout=math.inf)
        if not isinstance(intensity, Intensity | None):
            raise TypeError(f"intensity must be an Intensity, such as Intensity(5, within=30), got {intensity!r}")
        limit_action = chosen(OnLimit, on_limit, "on_limit")
        if limit_action is OnLimit.PAUSE and intensity is not None and intensity.limit == 0:
            raise ValueError(
                f"{name!r} would pause forever, because its intensity does not allow any restarts; set a limit above 0"
            )
        self._loop = SupervisorLoop(
            self,
            self._interrupt_block,
            strategy=chosen(Strategy, strategy, "strategy"),
            intensity=intensity,
            on_limit=limit_action,
            auto_shutdown=chosen(AutoShutdown, auto_shutdown, "auto_shutdown"),
            stop_order=chosen(StopOrder, stop_order, "stop_order"),
        )
        # The watches, which a parent supervisor's loop links to its own.
        self._watches = self._loop.watches
        # The task that entered the `async with` block, and how often it had been cancelled at that time.
        self._block: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        # True once we have cancelled that task.
        self._interrupted = False
        for spec in specs:
            self._loop.register(spec)
        self.on_change(self._publish)

    def __getitem__(self, name: str) -> Worker:
        """Return the current or last worker of the child ``name``.

        Raises:
            KeyError: if there is no child of this name, or it has not been started yet.
        """
        child = self._loop.child(name)
        if child.worker is None:
            raise KeyError(f"{name!r} has no worker yet; it is {child.status}")
        return child.worker

    @property
    def ended_by(self) -> tuple[str, ...]:
        """The significant children whose end ended the supervisor: one of them, or all, depending on `AutoShutdown`.

        Empty while the supervisor is running, and if it ended for another reason.
        """
        return self._loop.ended_by

    def __contains__(self, name: object) -> bool:
        return name in self._loop.children

    # -- changes to children -------------------------------------------------------------------------------------------

    async def add(self, spec: Spec) -> None:
        """Add a child after the existing ones, and return once it has started.

        If the supervisor has not been started yet, the child is added but not started. If the supervisor is suspended,
        the child starts when the supervisor is resumed. A child that has ended and will not be restarted is replaced by
        a new child of the same name.

        Raises:
            ValueError: if the name is already in use, or the spec cannot work in this supervisor.
            InvalidTransition: if the supervisor is stopping or has ended.
            WorkerFailed: if the child could not start, in which case it is not added.
        """
        if self.status in UNSTARTED:
            self._loop.register(spec)
        else:
            await self._by_hand(self._loop.add, spec)

    async def remove(self, name: str) -> None:
        """Stop the child ``name`` and remove it.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor is stopping.
        """
        child = self._loop.child(name)
        if self._idle:
            self._loop.forget(child)
        else:
            await self._by_hand(self._loop.remove, name)

    async def restart(self, name: str) -> None:
        """Stop the child ``name`` if it is running, start it, and return once it is running again.

        This restart does not count towards any limit, and a child that the supervisor had given up on is supervised
        again. If the supervisor is suspended, the child starts when the supervisor is resumed. Cancelling the call only
        stops the wait. If the child then fails to start, its restart policy applies.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor is not running.
            WorkerFailed: if the child could not start, or was stopped while starting. The start is not retried.
        """
        self._loop.child(name)
        if self._idle:
            raise InvalidTransition(f"{self.name!r} is {self.status}; start it before restarting a child")
        await self._by_hand(self._loop.restart, name)

    async def stop_child(self, name: str) -> None:
        """Stop the child ``name`` without removing it. Only `restart`, or a restart of its group, starts it again.

        If the supervisor has not been started yet, it starts without the child. If an `add` call is still waiting for
        the child to start for the first time, the child is removed and that call raises.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor is stopping.
        """
        self._loop.child(name)
        if self._idle:
            await self._loop.stop_now(name)
        else:
            await self._by_hand(self._loop.stop_child, name)

    @property
    def _idle(self) -> bool:
        """True if the supervisor's loop is not running."""
        return self.status in UNSTARTED or self.status in FINAL

    async def _by_hand(self, operation: Callable[[Any], Awaitable[asyncio.Future[None] | None]], on: Any) -> None:
        if self.status is Status.STOPPING or self.status in FINAL:
            raise InvalidTransition(f"the supervisor {self.name!r} is {self.status} and accepts no more changes")
        await self._loop.by_hand(operation, on)

    # -- all children --------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Suspend all children that can be suspended, in reverse order. Idempotent.

        If a child cannot be suspended, the others are resumed. While the supervisor is suspended, no child is started
        or restarted.

        Raises:
            InvalidTransition: if the supervisor is not running, or starts to stop during the call.
            WorkerFailed: if a child could not be suspended.
        """
        if self.status is not Status.SUSPENDED:
            if not self._machine.can(Status.SUSPENDED):
                self._machine.to(Status.SUSPENDED)
            await self._loop.suspend(partial(self._machine.to, Status.SUSPENDED))

    async def resume(self) -> None:
        """Resume the children in order, and then start those whose start was delayed by the suspension. Idempotent.

        Raises:
            InvalidTransition: if the supervisor is neither suspended nor running, or begins to stop during the call.
            WorkerFailed: if a child could not be resumed. The others are suspended again.
        """
        if self.status is not Status.RUNNING:
            self._machine.require_suspended()
            await self._loop.resume(partial(self._machine.to, Status.RUNNING))

    async def probe(self, name: str | None = None) -> ProbeResult:
        """Probe one child, or all children.

        Args:
            name: The child's name. By default, all children are probed, and the least healthy result is returned.
                Children that have finished or been stopped are ignored.

        Raises:
            KeyError: if there is no such child.
        """
        children = [*self._loop.children.values()] if name is None else [self._loop.child(name)]
        answer = await (probe_all(children) if name is None else children[0].probe())
        for child in children:
            self._loop.note(child)
        return answer

    def workers(self) -> tuple[WorkerState, ...]:
        """Return the state of each child, in start order."""
        # We use `map` because it does not add a stack frame. Nested supervisors call each other, so the recursion limit
        # restricts how deeply they can be nested.
        return tuple(map(Child.state, self._loop.children.values()))

    def watch(self) -> Watch:
        """Return an async iterator that yields a `StatusEvent` for each change in this and all nested supervisors.

        Only changes after this call are included. ``router.add_source(supervisor.watch)`` sends the events to a router.
        The events' topics are ``status/<name>``, or ``status/<name>/<name>`` for a child of a nested supervisor. The
        iterator stops when the supervisor ends.
        """
        watch = self._watches.add()
        self._begin_watch()
        return watch

    def _begin_watch(self) -> None:
        """Mark all earlier changes in this and all nested supervisors as announced."""
        self._watches.used = True
        for child in self._loop.children.values():
            child.announce()
            if isinstance(child.worker, Supervisor):
                child.worker._begin_watch()  # noqa: SLF001  # the same class

    def _publish(self, old: Status, new: Status) -> None:
        if self._watches.used:
            # If there is a parent supervisor, it publishes the change.
            self._watches.publish(StatusEvent(self.name, old, new, self.state()), up=False)
        if new in FINAL:
            self._watches.close()

    _children = workers

    # -- start and end -------------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        return self._loop.begin()

    async def _until_ready(self) -> None:
        await self._loop.wait_started()

    def _terminate(self, *, force: bool) -> None:
        if force:
            self._loop.kill()
        else:
            self._loop.halt()

    # -- the `async with` block ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if (task := asyncio.current_task()) is not None:
            self._block, self._cancelled_before = task, task.cancelling()
        if self._loop.error is not None:
            # The supervisor failed before the block could begin.
            await self.__aexit__(None, None, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the children. If the supervisor failed, raise its error, unless the body raised one of its own."""
        block, self._block = self._block, None
        # Don't undo the cancellation if we are in a different task.
        ours = self._interrupted and block is asyncio.current_task()
        late: asyncio.CancelledError | None = None
        left = 0
        try:
            await self.stop()
        except asyncio.CancelledError as cancelled:
            # We cancelled the task first. A task group in the body may have passed our cancellation on, or other code
            # may have cancelled the task again. Either way, the children still need to be stopped.
            if block is None or not ours or block.cancelling() > self._cancelled_before + 2:
                raise
            late = cancelled
            await self.stop()
        finally:
            if block is not None and ours:
                left = block.uncancel() - self._cancelled_before
        if left > 0:
            if late is not None:
                raise late
            return
        if (failure := self._loop.error) is None:
            return
        if error is None or (ours and isinstance(error, asyncio.CancelledError)):
            raise failure

    def _interrupt_block(self) -> None:
        """Cancel the body of the block, because it must not continue without its children."""
        if self._block is not None and not self._interrupted:
            self._interrupted = True
            self._block.cancel(f"the supervisor {self.name!r} failed")
