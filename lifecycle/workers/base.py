"""What all workers have in common: one start, one end, and a stop that is legal at any time.

A kind of worker says how it comes up (`BaseWorker._launch`) and how it is asked to end (`BaseWorker._terminate`);
the states and the life are kept here. Do not add policy (restarts, backoff): a supervisor has it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar

from lifecycle import hooks
from lifecycle._util import reason_of
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.endings import Ending, announce, ask, sooner
from lifecycle.workers.model import (
    AT_WORK,
    FINAL,
    UNSTARTED,
    Circumstances,
    End,
    ProbeResult,
    Status,
    StatusListener,
    StatusMachine,
    WorkerState,
    as_failure,
    exit_of,
)
from lifecycle.workers.settings import check_env, check_name, check_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType
    from typing import Self

    from lifecycle.workers.model import Exit

__all__ = ["BaseWorker"]


class BaseWorker:
    """Something with a start and an end, honest about both.

    A worker lives once: to run it again, make another. A subclass overrides `_launch` and `_terminate`, and
    `_until_ready` if it is not ready at once. ``async with worker`` starts it and stops it.

    Raises:
        TypeError, ValueError: for a name that is no string or empty, for a time-out that is no number or negative.
    """

    #: What `WorkerState.kind` says.
    kind: ClassVar[str] = "worker"
    #: Whether another worker answers for it, as a supervisor does for a child: then it is seen there.
    governed: bool = False
    #: The signal that `_terminate` sends first, where it sends one.
    _stop_signal: int | None = None
    #: Seconds that it has to end once `_terminate` was told to force it; then it is abandoned.
    _last_wait: ClassVar[float] = 1.0

    def __init__(self, name: str, *, stop_timeout: float = 10.0) -> None:
        check_name(name)
        check_seconds("stop_timeout", stop_timeout)
        self.name = name
        #: Seconds that it has to end once it was asked.
        self.stop_timeout = stop_timeout
        self._machine = StatusMachine(name)
        self._env: dict[str, str] = {}
        self._pid: int | None = None
        self._created_at = time.time()
        self._started_at: float | None = None
        self._began: float | None = None  # by the loop's clock: when start() was called
        # The start, while it goes on; the life; the timer while one that was asked to end may obey; for one that does
        # not, or cannot be asked without waiting, what is done about it, and the task that does. None before its need.
        self._starting: asyncio.Task[WorkerFailed | None] | None = None
        self._life: asyncio.Future[End | None] | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._ending: Ending | None = None
        self._termination: asyncio.Task[None] | None = None
        self._exit: Exit | None = None

    def __repr__(self) -> str:
        pid = "" if self._pid is None else f", pid {self._pid}"
        return f"<{type(self).__name__} {self.name!r}: {self.status}{pid}>"

    @property
    def status(self) -> Status:
        """Where it is in its life."""
        return self._machine.state

    @property
    def suspendable(self) -> bool:
        """Whether it can be suspended and resumed, when it runs."""
        return callable(getattr(self, "suspend", None)) and callable(getattr(self, "resume", None))

    # -- for a subclass -----------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End | None]:
        """Start it, and return what completes when it has ended: with an `End`, with None, or by raising.

        MUST leave nothing behind when it raises; a stop while it is at work cancels it.
        """
        raise NotImplementedError

    async def _until_ready(self) -> None:
        """Return when it is fit for work; called after `_launch`, and cancelled by a stop.

        MUST raise `WorkerFailed` when it will not become ready, for instance because it has ended.
        """

    async def _terminate(self, *, force: bool) -> None:
        """Ask it to end, or with ``force`` make it end; MUST NOT wait for the end, which shows in its life."""
        self._ask(force=force)

    def _ask(self, *, force: bool) -> None:
        """Override this in place of `_terminate` where asking takes no waiting at all: the stop needs no task then."""
        raise NotImplementedError

    def _children(self) -> tuple[WorkerState, ...]:
        """The states of workers within it."""
        return ()

    def _whereabouts(self) -> str:
        """Where it hangs, for the log entry that reports it abandoned."""
        return repr(self._life)

    # -- the life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it; returns when it is running and ready. Whoever is cancelled here has it stopped first.

        Raises:
            InvalidTransition: if it was started or stopped before; the message names its state.
            WorkerFailed: if it could not start, or was stopped meanwhile; the cause says more.
        """
        self._machine.to(Status.STARTING)
        self._began = asyncio.get_running_loop().time()
        if not self.governed:
            hooks.component_opened.announce(self, component=self)
        starting = self._starting = asyncio.create_task(self._come_up(), name=f"start of {self.name}")
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._starting = None
        if starting.cancelled():
            raise WorkerFailed(f"{self.name!r} was stopped while it started")
        if error := starting.result():
            raise error

    async def stop(self, timeout: float | None = None) -> None:
        """Ask it to end and return when it has; legal in every state, any number of times, also all at once.

        All calls share one end. Cancelling a call gives up waiting, not the termination.

        Args:
            timeout: how many seconds it gets before it is killed; by default the worker's own ``stop_timeout``.
                The shortest of several calls counts; 0 or less kills it at once.
        """
        self.ask_to_stop(timeout)
        await self.wait()

    def ask_to_stop(self, timeout: float | None = None) -> None:
        """Begin what `stop` waits for."""
        status = self._machine.state
        if status in FINAL:
            return
        if status in UNSTARTED:
            self._finish(End())
            return
        grace = self.stop_timeout if timeout is None else timeout
        if status is not Status.STOPPING:
            self._machine.to(Status.STOPPING)
            if self._starting is not None:
                # Here and now: a start that is about to go on must not find itself in a worker that stops.
                self._starting.cancel()
            if self._starting is not None or grace <= 0 or type(self)._terminate is not BaseWorker._terminate:  # noqa: SLF001  # our own
                self._bring_to_end(grace)
                return
            ask(self.name, self._ask)
        self._overdue = sooner(self._overdue, grace, self._bring_to_end)

    async def wait(self) -> Exit:
        """Wait until it has ended, however long that takes; for any number of waiters, at any time."""
        if self._exit is None:
            await self._machine.reach(*FINAL)
        assert self._exit is not None, "it is there before the status is final"
        return self._exit

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- around it ----------------------------------------------------------------------------------------------

    def state(self) -> WorkerState:
        """What there is to know about it now."""
        return self.state_as(self.name)

    def state_as(  # each is a field of the record
        self,
        name: str,
        *,
        status: Status | None = None,
        restarts: int = 0,
        circuit: str = "closed",
        health: ProbeResult | None = None,
        changed_at: float = 0.0,
    ) -> WorkerState:
        """Its state with what only its supervisor knows, which changed at ``changed_at``."""
        ended = self._exit
        return WorkerState(
            name=name,
            kind=self.kind,
            status=status or self._machine.state,
            pid=self._pid,
            exit_code=ended.exit_code if ended else None,
            error=reason_of(ended.error) if ended and ended.error else None,
            restarts=restarts,
            circuit=circuit,
            health=health,
            created_at=self._created_at,
            started_at=self._started_at,
            updated_at=max(self._machine.moved_at or self._created_at, changed_at),
            abandoned=self._ending is not None and self._ending.abandoned,
            children=self._children(),
        )

    def on_change(self, listener: StatusListener) -> None:
        """Have ``listener`` called with the old and the new status at every change, at once; it MUST NOT raise."""
        self._machine.listen(listener)

    async def probe(self) -> ProbeResult:
        """How it feels: well, as long as it runs. Override this where more can be known."""
        return ProbeResult(self.status in AT_WORK, "" if self.status in AT_WORK else f"is {self.status}")

    def set_env(self, name: str, value: str) -> None:
        """Have ``name`` in its environment, over what it would have there.

        Raises:
            InvalidTransition: once it was started.
            ValueError: for what no environment can hold.
        """
        if self.status not in UNSTARTED:
            raise InvalidTransition(f"{self.name!r} is {self.status}; set {name!r} in its environment before start()")
        check_env(name, value)
        self._env[name] = value

    # -- the parts of the life ------------------------------------------------------------------------------------

    async def _come_up(self) -> WorkerFailed | None:
        """The start, in a task of its own: cancelling who waits for it leaves nothing half started."""
        try:
            self._life = asyncio.ensure_future(await self._launch())
            await self._until_ready()
        except Exception as error:  # noqa: BLE001  # handed to who called start()
            return await self._fail_to_start(error)
        self._machine.to(Status.RUNNING)
        self._started_at = time.time()
        hooks.worker_started.announce(self, worker=self)
        self._life.add_done_callback(self._ended_by_itself)
        return None

    async def _fail_to_start(self, error: Exception) -> WorkerFailed:
        if self._life is not None:
            await self._demand_end(self.stop_timeout).of_life(self._life)
        failed = as_failure(self.name, error)
        self._finish(End.of(self._life), because=failed)
        return failed

    def _ended_by_itself(self, _: object) -> None:
        # Where there is a termination at work, the end belongs to that.
        if self._termination is None and self._exit is None:
            self._finish(End.of(self._life))

    def _demand_end(self, grace: float) -> Ending:
        if self._ending is None:
            asked = self._overdue is not None
            self._ending = Ending(self.name, self._terminate, self._whereabouts, last_wait=self._last_wait, asked=asked)
        self._ending.shorten(grace)
        return self._ending

    def _bring_to_end(self, grace: float = 0.0) -> None:
        """In a task of its own: it goes on whoever gives up waiting for it."""
        ending = self._demand_end(grace)
        if self._termination is None:
            self._termination = asyncio.create_task(self._see_to_end(ending), name=f"stop of {self.name}")

    async def _see_to_end(self, ending: Ending) -> None:
        try:
            await ending.of_all(self._starting, lambda: self._life)
        finally:
            if self._exit is None:
                self._finish(End.of(self._life))

    def _finish(self, end: End, *, because: WorkerFailed | None = None) -> None:
        before, ending = self._machine.state, self._ending
        how = Circumstances(
            asked=before in UNSTARTED or before is Status.STOPPING,
            forced=ending is not None and ending.forced,
            abandoned=ending is not None and ending.abandoned,
            sent=self._stop_signal,
            start_error=because,
        )
        if self._overdue is not None:
            self._overdue.cancel()
        age = 0.0 if self._began is None else asyncio.get_running_loop().time() - self._began
        ended = self._exit = exit_of(self.name, end, how, duration=age)
        if not self._machine.can(ended.status):
            self._machine.to(Status.RUNNING, "somebody else resumed it")
        self._machine.to(ended.status)
        announce(self, ended)
        if self._began is not None and not self.governed:
            hooks.component_closed.announce(self, component=self)
