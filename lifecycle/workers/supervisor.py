"""`Supervisor`: keeps workers running, in the discipline of Erlang/OTP.

This is what is asked of it from outside; how it decides is in `lifecycle.workers.supervision`. Do not add policy here.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lifecycle import hooks
from lifecycle.errors import InvalidTransition
from lifecycle.events import StatusEvent
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import FINAL, UNSTARTED, Status
from lifecycle.workers.specs import AutoShutdown, OnLimit, StopOrder, Strategy, chosen
from lifecycle.workers.supervision import admin, probes, suspension
from lifecycle.workers.supervision.owner import Owner
from lifecycle.workers.supervision.policy import Rules
from lifecycle.workers.supervision.slots import Slot
from lifecycle.workers.supervision.watches import Board

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.backoff import Intensity
    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import End, ProbeResult, WorkerState
    from lifecycle.workers.specs import Spec
    from lifecycle.workers.supervision.watches import Watch

__all__ = ["Supervisor"]


class Supervisor(BaseWorker):
    """A worker that keeps others running: its children, each described by a `Spec`.

    `start` starts them in order, each when the one before it is running; if one cannot start, those before it are
    stopped and the start fails. A child that ends is started again as its spec says, after its backoff, together with
    those that ``strategy`` names. `stop` stops them, the last first.

    If it fails inside an ``async with`` block, for instance because its ``intensity`` is exceeded, the body of the
    block is cancelled, and the block raises the error, as a task group does. Leave it in the task that entered it.

    A child that raises `DoNotRestart` stays down; one that raises `StopTree`, `SystemExit` or `KeyboardInterrupt` is
    the end of this supervisor and of those above it: they end FAILED with that error.

    Args:
        name: what it is called in messages and states.
        specs: its children; more can be added at any time.
        strategy: who is started again with a child.
        intensity: how many restarts of all children are allowed in which time; by default there is no limit.
        on_limit: what to do when that is spent: ``"escalate"`` stops the children and ends FAILED with
            `RestartLimitReached`; ``"pause"`` waits with the restart until it is allowed again.
        auto_shutdown: whether it ends (FINISHED) when significant children have ended and are not started again.
        stop_order: ``"parallel"`` stops children at once, also before the restart of a group.

    Raises:
        ValueError, TypeError: for settings that cannot work, before anything is started.
    """

    kind: ClassVar[str] = "supervisor"
    # Children that are killed have a second each, all at once; those below them, too.
    _last_wait: ClassVar[float] = 5.0

    def __init__(  # the names are promised; each has a default
        self,
        name: str,
        *specs: Spec,
        strategy: Strategy | Literal["one_for_one", "one_for_all", "rest_for_one"] = Strategy.ONE_FOR_ONE,
        intensity: Intensity | None = None,
        on_limit: OnLimit | Literal["escalate", "pause"] = OnLimit.ESCALATE,
        auto_shutdown: AutoShutdown | Literal["never", "any_significant", "all_significant"] = AutoShutdown.NEVER,
        stop_order: StopOrder | Literal["reverse", "parallel"] = StopOrder.REVERSE,
    ) -> None:
        # Its children have grace periods of their own, which add up.
        super().__init__(name, stop_timeout=math.inf)
        self._rules = Rules(
            strategy=chosen(Strategy, strategy, "strategy"),
            intensity=intensity,
            on_limit=chosen(OnLimit, on_limit, "on_limit"),
            auto_shutdown=chosen(AutoShutdown, auto_shutdown, "auto_shutdown"),
            stop_order=chosen(StopOrder, stop_order, "stop_order"),
        )
        if self._rules.on_limit is OnLimit.PAUSE and intensity is not None and intensity.limit == 0:
            raise ValueError(f"{name!r} would pause for ever: its intensity allows no restart; give a limit above 0")
        self._board = Board()
        self._owner = Owner(self, self._rules, self._note, self._interrupt_block)
        # The task in the block of `async with`, how many cancellations it had when it came in, and whether one is ours.
        self._block: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._interrupted = False
        for spec in specs:
            self._register(spec)
        self.on_change(self._changed)

    def __getitem__(self, name: str) -> Worker:
        """The worker that stands for the child ``name`` now, or did so last.

        Raises:
            KeyError: if there is no such child, or it has not been started yet.
        """
        worker = admin.slot_of(self._owner, name).worker
        if worker is None:
            raise KeyError(f"{name!r} has no worker yet; it is {self._owner.slots[name].status}")
        return worker

    def __contains__(self, name: object) -> bool:
        return name in self._owner.slots

    # -- by hand ----------------------------------------------------------------------------------------------------

    async def add(self, spec: Spec) -> None:
        """Take on a further child, the last in order, and return when it has started.

        Before the start of the supervisor it is only taken on; while suspended it starts with the resume.

        Raises:
            ValueError: if a child has that name, or the spec cannot work here.
            InvalidTransition: if the supervisor is stopping or has ended.
            WorkerFailed: if the child could not start; then it is not taken on.
        """
        if self.status in UNSTARTED:
            self._register(spec)
        else:
            await self._by_hand(partial(admin.add, auto_shutdown=self._rules.auto_shutdown), spec)

    async def remove(self, name: str) -> None:
        """Stop the child ``name``, wherever it is, and forget it.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor is stopping.
        """
        slot = admin.slot_of(self._owner, name)
        if self._idle:
            self._owner.forget(slot)
        else:
            await self._by_hand(admin.remove, name)

    async def restart(self, name: str) -> None:
        """Stop the child ``name`` if it is at work, start it, and return when it runs.

        It counts in no budget, and closes its circuit. While suspended it starts with the resume. Who is cancelled
        here gives up waiting: the start goes on, and what follows if it fails is up to the policy of the child.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor does not run.
            WorkerFailed: if it could not start, or was stopped meanwhile; it is not tried again.
        """
        admin.slot_of(self._owner, name)
        if self._idle:
            raise InvalidTransition(f"{self.name!r} is {self.status}; start it before a child of it is restarted")
        await self._by_hand(admin.restart, name)

    async def stop_child(self, name: str) -> None:
        """Stop the child ``name``, which stays; only `restart`, or the restart of its group, starts it again.

        Before the start of the supervisor, this keeps the child from starting with it. A child whose `add` still waits
        for the first start does not stay: that `add` fails.

        Raises:
            KeyError: if there is no such child.
            InvalidTransition: if the supervisor is stopping.
        """
        slot = admin.slot_of(self._owner, name)
        if self._idle:
            await self._owner.closer.close(slot)
        else:
            await self._by_hand(admin.stop_child, name)

    # -- all of them --------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Suspend the children that can be, the last first; if one fails, those before it go on again.

        Until the resume, what ends or is added stays down. Nothing happens if it is suspended.

        Raises:
            InvalidTransition: if it does not run, or begins to stop meanwhile.
            WorkerFailed: if a child that can be suspended could not be.
        """
        if self.status is not Status.SUSPENDED:
            await self._change(Status.SUSPENDED, suspension.suspend)

    async def resume(self) -> None:
        """Let the children go on, the first first, then start what had to wait. Nothing happens if it runs.

        Raises:
            InvalidTransition: if it is neither suspended nor running, or begins to stop meanwhile.
            WorkerFailed: if a child could not go on; those before it are suspended again.
        """
        if self.status is not Status.RUNNING:
            self._machine.require_suspended()
            await self._change(Status.RUNNING, suspension.resume)

    async def probe(self, name: str | None = None) -> ProbeResult:
        """Ask the child ``name``, or all, after their health; all are as healthy as the one that feels worst.

        Of all, those that have finished or were stopped do not count.

        Raises:
            KeyError: if there is no such child.
        """
        slots = [*self._owner.slots.values()] if name is None else [admin.slot_of(self._owner, name)]
        answer = await (probes.ask_all(slots) if name is None else probes.ask(slots[0]))
        for slot in slots:
            self._note(slot)
        return answer

    def workers(self) -> tuple[WorkerState, ...]:
        """The state of each child, in the order of their starts."""
        # Without a frame of its own: supervisors may be nested as deep as the stack is.
        return tuple(map(Slot.state, self._owner.slots.values()))

    def watch(self) -> Watch:
        """What changes from now on, here and in the supervisors below: an async iterator of `StatusEvent`.

        ``router.add_source(supervisor.watch)`` makes events of it: ``status/<name>``, and for a child of a child,
        ``status/<name>/<name>``. It ends with the supervisor.
        """
        watch = self._board.watch()
        self._take_note()
        return watch

    _children = workers

    # -- the life -----------------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End]:
        return self._owner.begin()

    async def _until_ready(self) -> None:
        await self._owner.started()

    def _terminate(self, *, force: bool) -> None:
        if force:
            self._owner.closer.kill(self._owner.slots.values())
        else:
            self._owner.halt()

    # -- the block of `async with` ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if (task := asyncio.current_task()) is not None:
            self._block, self._cancelled_before = task, task.cancelling()
        if self._owner.error is not None:
            # It failed before the block could begin.
            await self.__aexit__(None, None, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the children. Raise the error with which the supervisor failed, unless the body raised its own."""
        block, self._block = self._block, None
        # In another task, the cancellation is not for us to take back.
        ours = self._interrupted and block is asyncio.current_task()
        late: asyncio.CancelledError | None = None
        left = 0
        try:
            await self.stop()
        except asyncio.CancelledError as cancelled:
            # Since the first was ours, this is the first from outside, and the children are stopped all the same. Or it
            # is ours again: a task group in the body passes it on.
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
        if (failure := self._owner.error) is None:
            return
        if error is None or (ours and isinstance(error, asyncio.CancelledError)):
            raise failure

    def _interrupt_block(self) -> None:
        """It fails: the body of its block must not go on as if the children ran."""
        if self._block is not None and not self._interrupted:
            self._interrupted = True
            self._block.cancel(f"the supervisor {self.name!r} failed")

    # -- the way to the owner ---------------------------------------------------------------------------------------

    @property
    def _idle(self) -> bool:
        """Whether there is no owner at work."""
        return self.status in UNSTARTED or self.status in FINAL

    async def _by_hand(
        self, operation: Callable[[Owner, Any], Awaitable[asyncio.Future[None] | None]], on: Any
    ) -> None:
        """Have ``operation`` carried out in its turn, and wait for the start that it began, if it did.

        Who gives up waiting leaves that start to the policy of the child.
        """
        if self.status is Status.STOPPING or self.status in FINAL:
            raise InvalidTransition(
                f"the supervisor {self.name!r} is {self.status}; nothing can be done with it any more"
            )

        started: asyncio.Future[None] | None = None

        async def in_turn(caller: asyncio.Future[Any]) -> None:
            nonlocal started
            started = await operation(self._owner, on)
            if started is not None and caller.done():
                started.cancel()

        try:
            await self._owner.mailbox.call(in_turn)
            if started is not None:
                await started
        finally:
            if started is not None:
                started.cancel()

    def _register(self, spec: Spec) -> None:
        admin.check_new(self._owner, spec, self._rules.auto_shutdown)
        self._owner.slots[spec.name] = Slot(spec)

    async def _change(self, to: Status, operation: Callable[..., Awaitable[None]]) -> None:
        if not self._machine.can(to):
            self._machine.to(to)

        async def in_turn(caller: asyncio.Future[Any]) -> None:
            # Another request may have been carried out meanwhile.
            if self._machine.state != to:
                await operation(self._owner, partial(self._machine.to, to), caller)

        await self._owner.mailbox.call(in_turn)

    # -- what is told of it ---------------------------------------------------------------------------------------

    def _note(self, slot: Slot) -> None:
        """Announce and publish the change of a child, if there is one."""
        if isinstance(slot.worker, Supervisor):
            slot.worker._board.above = self._board  # noqa: SLF001  # one of us
            slot.worker._board.name_above = slot.spec.name  # noqa: SLF001  # as above
        watched = self._board.watched
        if not (watched or hooks.component_changed.receivers):
            return
        before, now = slot.tell()
        if now == before:
            return
        hooks.component_changed.announce(self, component=self)
        if watched and now.seen != before.seen:
            self._board.publish(StatusEvent(slot.spec.name, before.status, now.status, slot.state()))

    def _take_note(self) -> None:
        """A watch begins: what changed while there was none is no news to it."""
        for slot in self._owner.slots.values():
            slot.tell()
            if isinstance(slot.worker, Supervisor):
                slot.worker._take_note()  # noqa: SLF001  # one of us

    def _changed(self, old: Status, new: Status) -> None:
        if self._board.watched:
            # A supervisor above tells of it itself.
            self._board.publish(StatusEvent(self.name, old, new, self.state()), up=False)
        if new in FINAL:
            self._board.close()
