"""What all workers have in common: one start, one end, and a stop that is legal at any time.

A kind of worker says how it comes up (`BaseWorker._launch`) and how it is asked to end (`BaseWorker._terminate`);
the states, the grace period and the verdict are kept here. Do not add policy (restarts, backoff): a supervisor has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, ClassVar

from lifecycle import hooks
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.environment import check_env
from lifecycle.workers.graces import Grace
from lifecycle.workers.machines import StatusMachine
from lifecycle.workers.records import End, WorkerState
from lifecycle.workers.status import Status
from lifecycle.workers.verdicts import Circumstances, cannot_start, exit_of, told

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType
    from typing import Self

    from lifecycle.workers.machines import Listener
    from lifecycle.workers.records import Exit, ProbeResult

__all__ = ["BaseWorker"]

_log = logging.getLogger("lifecycle.workers")


class BaseWorker:
    """Something with a start and an end, honest about both.

    A worker lives once: to run it again, make another. A subclass overrides `_launch` and `_terminate`, and
    `_until_ready` if it is not ready at once. ``async with worker`` starts it and stops it.

    Raises:
        ValueError: for an empty name or a negative time-out.
    """

    #: What `WorkerState.kind` says.
    kind: ClassVar[str] = "worker"
    #: The signal that `_terminate` sends first, where it sends one.
    _stop_signal: int | None = None
    #: Seconds that it has to end once `_terminate` was told to force it; then it is abandoned.
    _last_wait: ClassVar[float] = 1.0

    def __init__(self, name: str, *, stop_timeout: float = 10.0) -> None:
        if not name:
            raise ValueError("a worker needs a name that people recognise; '' is none")
        if not stop_timeout >= 0:
            raise ValueError(f"stop_timeout={stop_timeout!r} is no number of seconds; give 0 or more")
        self.name = name
        self._stop_timeout = stop_timeout
        self._machine = StatusMachine(name)
        self._env: dict[str, str] = {}
        self._pid: int | None = None
        self._created_at = time.time()
        self._started_at: float | None = None
        # By the loop's clock: when start() was called.
        self._began: float | None = None
        self._grace = Grace()
        # The start, the life and the termination: each is there from its beginning on, and at most once.
        self._starting: asyncio.Task[WorkerFailed | None] | None = None
        self._life: asyncio.Future[End | None] | None = None
        self._termination: asyncio.Task[None] | None = None
        self._forced = False
        self._abandoned = False
        self._exit: Exit | None = None
        self._over = asyncio.Event()

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
        self._starting = asyncio.create_task(self._come_up(), name=f"start of {self.name}")
        try:
            await asyncio.wait({self._starting})
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._starting.cancelled():
            raise WorkerFailed(f"{self.name!r} was stopped while it started")
        if error := self._starting.result():
            raise error

    async def stop(self, timeout: float | None = None) -> None:
        """Ask it to end and return when it has; legal in every state, any number of times, also all at once.

        All calls share one end. Cancelling a call gives up waiting, not the termination.

        Args:
            timeout: how many seconds it gets before it is killed; by default the worker's own ``stop_timeout``.
                The shortest of several calls counts; 0 or less kills it at once.
        """
        if self._machine.is_final:
            return
        if self.status in (Status.CREATED, Status.PENDING):
            self._finish(End())
            return
        self._grace.shorten(self._stop_timeout if timeout is None else timeout)
        if self._termination is None:
            assert self._starting is not None, "only what was started is still to be ended"
            self._machine.to(Status.STOPPING)
            # Here and now: a start that is about to go on must not find itself in a worker that stops.
            self._starting.cancel()
            self._termination = asyncio.create_task(self._end(), name=f"stop of {self.name}")
        await asyncio.wait({self._termination})

    async def wait(self) -> Exit:
        """Wait until it has ended, however long that takes; for any number of waiters, at any time."""
        await self._over.wait()
        assert self._exit is not None, "the event is set where the exit is"
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
    ) -> WorkerState:
        """Its state with what only its supervisor knows."""
        ended, changed = self._exit, self._machine.last
        return WorkerState(
            name=name,
            kind=self.kind,
            status=status or self._machine.state,
            pid=self._pid,
            exit_code=ended.exit_code if ended else None,
            error=told(ended.error) if ended and ended.error else None,
            restarts=restarts,
            circuit=circuit,
            health=health,
            created_at=self._created_at,
            started_at=self._started_at,
            updated_at=changed.at if changed else self._created_at,
            abandoned=self._abandoned,
            children=self._children(),
        )

    def on_change(self, listener: Listener) -> None:
        """Have ``listener`` called with the old and the new status at every change, at once; it MUST NOT raise."""
        self._machine.listen(listener)

    def set_env(self, name: str, value: str) -> None:
        """Have ``name`` in its environment, over what it would have there.

        Raises:
            InvalidTransition: once it was started.
            ValueError: for what no environment can hold.
        """
        if self.status not in (Status.CREATED, Status.PENDING):
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
        self._life.add_done_callback(self._ended)
        return None

    async def _fail_to_start(self, error: Exception) -> WorkerFailed:
        if self._life is not None:
            self._grace.shorten(self._stop_timeout)
            await self._wind_down(self._life)
        failed = error if isinstance(error, WorkerFailed) else cannot_start(self.name, error)
        self._finish(End.of(self._life), because=failed)
        return failed

    def _ended(self, _: object) -> None:
        # While it is being stopped the end belongs to the termination.
        if self.status in (Status.RUNNING, Status.SUSPENDED):
            self._finish(End.of(self._life))

    async def _end(self) -> None:
        """The termination, in a task of its own: it goes on whoever gives up waiting for it."""
        if self._starting is not None and not self._starting.done():
            self._abandoned = not await self._grace.wait(self._starting)
        if self._life is not None:
            await self._wind_down(self._life)
        self._finish(End.of(self._life))

    async def _wind_down(self, life: asyncio.Future[End | None]) -> None:
        """Ask, wait, kill, wait a little; what is still alive then is abandoned."""
        if not life.done():
            await self._try_terminate(force=False)
        if await self._grace.wait(life):
            return
        self._forced = True
        await self._try_terminate(force=True)
        _, alive = await asyncio.wait({life}, timeout=self._last_wait)
        if alive:
            self._abandoned = True
            _log.error("%r cannot be ended and is left to itself: %s", self.name, self._whereabouts())

    async def _try_terminate(self, *, force: bool) -> None:
        try:
            await self._terminate(force=force)
        except Exception:  # noqa: BLE001  # logged; the end must come all the same
            _log.exception("%r could not be %s", self.name, "killed" if force else "asked to stop")

    # -- the verdict ----------------------------------------------------------------------------------------------

    def _finish(self, end: End, *, because: WorkerFailed | None = None) -> None:
        asked = self.status in (Status.CREATED, Status.PENDING, Status.STOPPING)
        how = Circumstances(asked, self._forced, self._abandoned, self._stop_signal, because)
        age = 0.0 if self._began is None else asyncio.get_running_loop().time() - self._began
        ended = self._exit = exit_of(self.name, end, how, duration=age)
        if self.status is Status.SUSPENDED and ended.status is not Status.FAILED:
            self._machine.to(Status.RUNNING, "somebody else resumed it")
        self._machine.to(ended.status)
        self._over.set()
        self._tell(ended)

    def _tell(self, ended: Exit) -> None:
        if ended.status is Status.FAILED:
            hooks.worker_failed.announce(self, worker=self, exit=ended)
        elif ended.status is Status.KILLED:
            hooks.worker_killed.announce(self, worker=self, exit=ended)
