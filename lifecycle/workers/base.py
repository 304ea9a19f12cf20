"""The life cycle of a worker: it starts once, ends once, and can be stopped at any time.

`Worker` is the interface that a supervisor requires, and `BaseWorker` is the usual way to implement it. A worker does
not restart itself, because restarts and backoff are its supervisor's job. This module also validates the settings
shared by all kinds of workers, and defines `Handover`, which passes information about the previous run to a restarted
child.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._owners import Part, own_worker
from lifecycle._util import reason_of
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.model import (
    AT_WORK,
    FAILURES,
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from types import TracebackType
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.workers.model import Exit

__all__ = [
    "ATTEMPT",
    "PREV_EXIT",
    "RESUME_ID",
    "BaseWorker",
    "Handover",
    "Worker",
    "check_env",
    "handover",
    "previous_exit",
    "set_handover",
    "stop_and_wait",
]

_log = logging.getLogger("lifecycle.workers")


@runtime_checkable
class Worker(Protocol):
    """The interface that an object must have so that a supervisor can start and stop it. `BaseWorker` implements it."""

    @property
    def status(self) -> Status:
        """The worker's status."""
        ...

    async def start(self) -> None:
        """Start the worker, and return once it is running. Raise an exception if it cannot start.

        If the worker is stopped while it is starting, this method MUST NOT keep waiting.
        """
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """Stop the worker, and return once it has ended.

        The method is idempotent and can be called in any state. If calls overlap, the shortest timeout applies.
        """
        ...

    async def wait(self) -> Exit:
        """Wait until the worker has ended. Any number of tasks may wait at any time."""
        ...

    def state(self) -> WorkerState:
        """Return a snapshot of the worker's state."""
        ...


class _Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...

    async def wait(self) -> Exit: ...


async def stop_and_wait(worker: _Stoppable, timeout: Duration | None = None) -> Exit:
    """Stop ``worker`` and return its `Exit`. ``timeout`` works as in `BaseWorker.stop`."""
    await worker.stop(in_seconds_or_none("timeout", timeout, least=-math.inf))
    return await worker.wait()


class BaseWorker:
    """Base class for workers. A worker starts once and ends once.

    A worker cannot be started again. Create a new one instead. Subclasses override `_launch` and `_terminate`, as well
    as `_until_ready` if the worker is not ready immediately. ``async with worker`` starts and stops the worker.

    Args:
        name: The worker's name, used in messages and states.
        stop_timeout: Seconds to wait after a stop request before killing the worker.

    Raises:
        TypeError: if the name is not a string, or the timeout is not a number.
        ValueError: if the name is empty, or the timeout is negative.
    """

    #: The value of `WorkerState.kind`.
    kind: ClassVar[str] = "worker"
    #: True if the worker is reported as part of another worker, like a supervisor's children.
    supervised: bool = False
    #: The signal that `_terminate` sends to ask the worker to stop, if any.
    _stop_signal: int | None = None
    #: Seconds to wait after a forced `_terminate` before abandoning the worker.
    _last_wait: ClassVar[float] = 1.0

    def __init__(self, name: str, *, stop_timeout: Duration = 10.0) -> None:
        _check_name(name)
        self.name = name
        #: Seconds to wait after a stop request before killing the worker.
        self.stop_timeout: float = in_seconds("stop_timeout", stop_timeout, least=0)
        self._machine = StatusMachine(name)
        self._env: dict[str, str] = {}
        self._pid: int | None = None
        self._created_at = time.time()
        self._started_at: float | None = None
        # When `start` was called, in loop time.
        self._start_called: float | None = None
        # The task that starts the worker.
        self._starting: asyncio.Task[WorkerFailed | None] | None = None
        # The future that completes once the worker has ended.
        self._life: asyncio.Future[End | None] | None = None
        self._exit: Exit | None = None
        # The worker's place in the lifetime that stops it.
        self._owned = Part()
        # How far the worker's shutdown has progressed.
        self._was_asked = self._grace_is_over = self._was_forced = self._was_abandoned = False
        # The timer for the end of the grace period, and a future that completes at that time.
        self._grace_timer: asyncio.TimerHandle | None = None
        # The time of that timer, in loop time.
        self._grace_end: float = math.inf
        self._grace_over: asyncio.Future[None] | None = None
        # The task that kills the worker or waits for an async `_terminate`. Stopping a worker rarely requires this
        # task.
        self._termination: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        pid = "" if self._live_pid is None else f", pid {self._live_pid}"
        return f"<{type(self).__name__} {self.name!r}: {self.status}{pid}>"

    @property
    def status(self) -> Status:
        """The worker's status."""
        return self._machine.state

    @property
    def _live_pid(self) -> int | None:
        """The pid, or None once the process has been reaped, because another process may get the same pid."""
        return self._pid if self._exit is None or self._was_abandoned else None

    @property
    def suspendable(self) -> bool:
        """True if the worker supports being suspended and resumed."""
        return callable(getattr(self, "suspend", None)) and callable(getattr(self, "resume", None))

    # -- for a subclass -----------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End | None]:
        """Start the worker. Return an awaitable that completes once the worker has ended.

        The awaitable returns an `End` or None, or raises. If this method itself raises, it MUST NOT leave anything
        running. This method is cancelled if the worker is stopped while it is starting.
        """
        raise NotImplementedError

    async def _until_ready(self) -> None:
        """Wait until the worker is ready. `start` calls this after `_launch`, and stopping the worker cancels it.

        This method MUST raise `WorkerFailed` if the worker cannot become ready, for example because it has ended.
        """

    def _terminate(self, *, force: bool) -> Awaitable[None] | None:
        """Ask the worker to end or, if ``force`` is true, kill it.

        This method MUST NOT wait until the worker has ended. Override it with a plain function, unless sending the
        request involves waiting.
        """
        raise NotImplementedError

    def _children(self) -> tuple[WorkerState, ...]:
        """Return the states of any workers nested in this one."""
        return ()

    def _stack_text(self) -> str:
        """Return where in the code the worker is stuck. This is logged if the worker has to be abandoned."""
        return repr(self._life)

    # -- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the worker, and return once it is ready. Cancelling the call stops the worker.

        Raises:
            InvalidTransition: if the worker has already been started or stopped. The message includes the status.
            WorkerFailed: if the worker could not start, or was stopped while starting. See ``__cause__`` for details.
        """
        self._machine.to(Status.STARTING)
        self._machine.loop = asyncio.get_running_loop()
        self._start_called = self._machine.now()
        if not self.supervised:
            self._owned = own_worker(self)
            hooks.component_opened.announce(self, component=self)
        starting = self._starting = start_task(self._start_up(), name=f"start of {self.name}")
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._starting = None
        if starting.cancelled():
            raise WorkerFailed(f"{self.name!r} was stopped while starting")
        if error := starting.result():
            raise error

    async def stop(self, timeout: Duration | None = None) -> None:
        """Stop the worker, and return once it has ended.

        You can call this method in any state, repeatedly and concurrently. Cancelling the call stops waiting, but the
        worker still stops.

        Args:
            timeout: Seconds until the worker is killed. The default is the worker's ``stop_timeout``. If calls overlap,
                the shortest timeout applies. A timeout of 0 or less kills the worker immediately.
        """
        self.ask_to_stop(timeout)
        await self.wait()

    def ask_to_stop(self, timeout: Duration | None = None) -> None:
        """Start stopping the worker, but don't wait until it has ended."""
        grace = self.stop_timeout if timeout is None else in_seconds("timeout", timeout, least=-math.inf)
        status = self._machine.state
        if status in FINAL:
            return
        if status in UNSTARTED:
            self._finish(End())
            return
        if status is not Status.STOPPING:
            self._machine.to(Status.STOPPING)
            if self._starting is not None:
                # Cancel the start right here rather than in the new task, so that it does not continue while the worker
                # is stopping.
                self._starting.cancel()
                self._begin_termination()
            elif (asking := self._call_terminate(force=False)) is not None:
                self._begin_termination(asking)
        self._shorten_grace(grace)

    async def wait(self) -> Exit:
        """Wait until the worker has ended, and return its `Exit`. Any number of tasks may wait."""
        if self._exit is None:
            await self._machine.reach(*FINAL)
        assert self._exit is not None, "set before the status becomes final"
        return self._exit

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- state and settings --------------------------------------------------------------------------------------------

    def state(self) -> WorkerState:
        """Return a snapshot of the worker's state."""
        return self._state_as(self.name)

    def _state_as(  # one parameter per field of the record
        self,
        name: str,
        *,
        status: Status | None = None,
        restarts: int = 0,
        circuit: str = "closed",
        health: ProbeResult | None = None,
        changed_at: float = 0.0,
    ) -> WorkerState:
        """Return the worker's state, including values from its supervisor that last changed at ``changed_at``."""
        ended = self._exit
        return WorkerState(
            name=name,
            kind=self.kind,
            status=status or self._machine.state,
            pid=self._live_pid,
            exit_code=ended.exit_code if ended else None,
            error=reason_of(ended.error) if ended and ended.error else None,
            restarts=restarts,
            circuit=circuit,
            health=health,
            created_at=self._created_at,
            started_at=self._started_at,
            updated_at=max(self._machine.moved_at or self._created_at, changed_at),
            abandoned=self._was_abandoned,
            children=self._children(),
        )

    def on_change(self, listener: StatusListener) -> None:
        """Call ``listener`` with the old and new status immediately after each change. The listener must not raise."""
        self._machine.listen(listener)

    async def probe(self) -> ProbeResult:
        """Return the worker's health.

        By default, a worker is healthy while it is running. Override this method to perform further checks.
        """
        return ProbeResult(self.status in AT_WORK, "" if self.status in AT_WORK else f"is {self.status}")

    def set_env(self, name: str, value: str) -> None:
        """Set the environment variable ``name`` for the worker, replacing any earlier value.

        Raises:
            InvalidTransition: if the worker has already been started.
            ValueError: if the name or the value is not valid in an environment.
        """
        if self.status not in UNSTARTED:
            raise InvalidTransition(
                f"{self.name!r} is {self.status}; set {name!r} in its environment before calling start()"
            )
        check_env(name, value)
        self._env[name] = value

    # -- from start to end --------------------------------------------------------------------------------

    async def _start_up(self) -> WorkerFailed | None:
        """Start the worker.

        This runs in its own task, so that cancelling the caller does not leave the worker half started.
        """
        try:
            self._life = asyncio.ensure_future(await self._launch())
            await self._until_ready()
        except Exception as error:  # noqa: BLE001  # returned to the caller of start()
            if self._life is not None:
                self._shorten_grace(self.stop_timeout)
                await self._end_life(self._life)
            failure = as_failure(self.name, error)
            self._finish(End.of(self._life), start_error=failure)
            return failure
        self._machine.to(Status.RUNNING)
        self._started_at = time.time()
        hooks.worker_started.announce(self, worker=self)
        self._life.add_done_callback(self._life_ended)
        return None

    def _life_ended(self, _: object) -> None:
        # If there is a termination task, it calls `_finish` itself.
        if self._termination is None and self._exit is None:
            self._finish(End.of(self._life))

    def _finish(self, end: End, *, start_error: WorkerFailed | None = None) -> None:
        before = self._machine.state
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        how = Circumstances(
            asked=before in UNSTARTED or before is Status.STOPPING,
            forced=self._was_forced,
            abandoned=self._was_abandoned,
            sent=self._stop_signal,
            start_error=start_error,
        )
        started = self._start_called
        age = 0.0 if started is None else self._machine.now() - started
        ended = self._exit = exit_of(self.name, end, how, duration=age)
        if not self._machine.can(ended.status):
            self._machine.to(Status.RUNNING, "resumed from outside")
        self._machine.to(ended.status)
        if ended.status in FAILURES:
            hook = hooks.worker_killed if ended.status is Status.KILLED else hooks.worker_failed
            hook.announce(self, worker=self, exit=ended)
        if started is not None and not self.supervised:
            self._owned.end(ended.error if ended.status in FAILURES else None)
            hooks.component_closed.announce(self, component=self)

    # -- stopping: ask, wait for the grace period, kill, wait a moment, and give up ----------------------------------

    def _call_terminate(self, *, force: bool) -> asyncio.Future[None] | None:
        """Call `_terminate`. If it is async, return a future for its completion."""
        try:
            asking = self._terminate(force=force)
        except Exception:  # noqa: BLE001  # logged; the worker must end anyway
            self._log_terminate_failed(force=force)
            asking = None
        if asking is not None:
            return asyncio.ensure_future(asking)
        self._was_asked = True
        return None

    async def _finish_asking(self, asking: asyncio.Future[None] | None, *, force: bool) -> None:
        """Wait for the future that `_call_terminate` returned."""
        try:
            if asking is not None:
                await asking
        except Exception:  # noqa: BLE001  # as above
            self._log_terminate_failed(force=force)
        self._was_asked = True

    def _log_terminate_failed(self, *, force: bool) -> None:
        _log.exception("%s %r failed", "killing" if force else "stopping", self.name)

    def _shorten_grace(self, seconds: float) -> None:
        """End the grace period in ``seconds``, unless it already ends sooner."""
        if seconds <= 0:
            self._end_grace()
        elif seconds < math.inf:
            loop = asyncio.get_running_loop()
            at = loop.time() + seconds
            if at < self._grace_end:
                self._grace_end = at
                if self._grace_timer is not None:
                    self._grace_timer.cancel()
                self._grace_timer = loop.call_at(at, self._end_grace)

    def _end_grace(self) -> None:
        self._grace_is_over = True
        if self._grace_over is not None and not self._grace_over.done():
            self._grace_over.set_result(None)
        if self._termination is None and self._machine.state is Status.STOPPING:
            self._begin_termination()

    async def _within_grace(self, future: asyncio.Future[Any]) -> bool:
        """Wait for ``future`` until the grace period ends. Return whether the future is done."""
        # The start and the stop may wait at the same time, so they share the future for the end of the grace period.
        if self._grace_over is None:
            self._grace_over = asyncio.get_running_loop().create_future()
            if self._grace_is_over:
                self._grace_over.set_result(None)
        waiting: set[asyncio.Future[Any]] = {future, self._grace_over}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return future.done()

    def _begin_termination(self, asking: asyncio.Future[None] | None = None) -> None:
        self._termination = start_task(self._terminate_all(asking), name=f"stop of {self.name}")

    async def _terminate_all(self, asking: asyncio.Future[None] | None) -> None:
        """Stop the worker, even while it is starting. This runs in its own task, because callers may stop waiting."""
        starting = self._starting
        try:
            if starting is not None and not starting.done():
                await self._within_grace(starting)
            if self._life is not None:
                await self._end_life(self._life, asking)
                if starting is not None and not starting.done():
                    # The start may have been waiting for the same end.
                    await asyncio.wait({starting}, timeout=self._last_wait)
            self._was_abandoned |= starting is not None and not starting.done()
        except asyncio.CancelledError:
            # The loop is closing and cancels all of its tasks. Even so, give the worker a moment to end, because
            # callers rely on it.
            if left := {each for each in (self._starting, self._life) if each is not None and not each.done()}:
                _, alive = await asyncio.wait(left, timeout=self._last_wait)
                self._was_abandoned = bool(alive)
            raise
        finally:
            if self._exit is None:
                self._finish(End.of(self._life))

    async def _end_life(self, life: asyncio.Future[End | None], asking: asyncio.Future[None] | None = None) -> None:
        """Ask the worker to end, kill it after the grace period, and abandon it if even that fails."""
        if asking is not None or not (self._was_asked or life.done()):
            await self._finish_asking(asking or self._call_terminate(force=False), force=False)
        if await self._within_grace(life):
            return
        self._was_forced = True
        await self._finish_asking(self._call_terminate(force=True), force=True)
        _, alive = await asyncio.wait({life}, timeout=self._last_wait)
        if alive:
            self._was_abandoned = True
            _log.error("%r could not be killed and was abandoned: %s", self.name, self._stack_text())


# -- settings ----------------------------------------------------------------------------------------------------


def _check_name(name: object) -> None:
    """Raise TypeError if ``name`` is not a string, or ValueError if it is empty."""
    if not isinstance(name, str):
        raise TypeError(f"a worker's name must be a string, got {name!r}")
    if not name:
        raise ValueError("a worker's name must not be empty")


def check_env(name: object, value: object) -> None:
    """Raise TypeError unless ``name`` and ``value`` are strings, or ValueError if they are invalid."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"environment variables must be strings, such as {{'PORT': '8000'}}, got {name!r}: {value!r}")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"an environment variable's name must not be empty or contain '=' or NUL, got {name!r}")
    if "\0" in value:
        raise ValueError(f"the value of the environment variable {name!r} must not contain NUL, got {value!r}")


# -- the handover from one run to the next ------------------------------------------------------------------------

RESUME_ID: Final = "LIFECYCLE_RESUME_ID"
PREV_EXIT: Final = "LIFECYCLE_PREV_EXIT"
ATTEMPT: Final = "LIFECYCLE_ATTEMPT"

# The handover variables of the current task or thread. A process reads them from its environment instead.
_variables: ContextVar[Mapping[str, str] | None] = ContextVar("lifecycle_handover", default=None)


class Handover(Mapping[str, str]):
    """A worker's ``LIFECYCLE_…`` variables, both as text and as parsed attributes.

    Without a supervisor, the mapping is empty and the attributes have their default values: ``""``, 0 and 1.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = {name: text for name, text in variables.items() if name in (RESUME_ID, PREV_EXIT, ATTEMPT)}

    def __repr__(self) -> str:
        return f"Handover({self._variables!r})"

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    @property
    def resume_id(self) -> str:
        """A UUID that stays the same across restarts of the worker."""
        return self.get(RESUME_ID, "")

    @property
    def prev_exit(self) -> int:
        """The previous run's exit code, or the negated signal number if a signal killed it.

        The value is -1 if the run failed without an exit code, and 0 if there was no previous run.
        """
        return int(self.get(PREV_EXIT, "0"))

    @property
    def attempt(self) -> int:
        """How many times the worker has been started, including this time."""
        return int(self.get(ATTEMPT, "1"))


def handover() -> Handover:
    """Return this worker's handover. Call it in the worker's task or thread, or anywhere in its process."""
    variables = _variables.get()
    return Handover(os.environ if variables is None else variables)


def set_handover(variables: Mapping[str, str]) -> None:
    """Set the variables that `handover` returns in the current task or thread."""
    _variables.set(variables)


def previous_exit(ended: Exit | None) -> str:
    """Return the value of ``LIFECYCLE_PREV_EXIT`` for the next run after ``ended``."""
    if ended is None:
        return "0"
    if ended.exit_code is not None:
        return str(ended.exit_code)
    return "0" if ended.error is None else "-1"
