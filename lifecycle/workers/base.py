"""The life of a worker: one start, one end, and a stop that is legal at any time.

`Worker` is what a supervisor needs of any worker, and `BaseWorker` the usual way to write one. Restarts and backoff are
policy, and belong to supervisors. At the end of the module: the settings that all kinds check, and the handover from
one life of a child to the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from lifecycle import hooks
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

    from lifecycle.workers.model import Exit

__all__ = [
    "ATTEMPT",
    "PREV_EXIT",
    "RESUME_ID",
    "BaseWorker",
    "Handover",
    "Worker",
    "check_env",
    "check_number",
    "handover",
    "previous_exit",
    "set_handover",
    "stop_and_wait",
]

_log = logging.getLogger("lifecycle.workers")


@runtime_checkable
class Worker(Protocol):
    """Anything that starts, stops and ends like a worker; `BaseWorker` is one way to write it."""

    @property
    def status(self) -> Status:
        """Its state."""
        ...

    async def start(self) -> None:
        """Return when it runs; raise if it cannot. A stop meanwhile MUST end it."""
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """Return when it has ended; legal and idempotent in every state, the shortest time-out counts."""
        ...

    async def wait(self) -> Exit:
        """Wait for its end; for any number of waiters, at any time."""
        ...

    def state(self) -> WorkerState:
        """Return what is known about it now."""
        ...


class _Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...

    async def wait(self) -> Exit: ...


async def stop_and_wait(worker: _Stoppable, timeout: float | None = None) -> Exit:
    """Stop ``worker`` and return its `Exit`; ``timeout`` as in `BaseWorker.stop`."""
    await worker.stop(timeout)
    return await worker.wait()


class BaseWorker:
    """Base class of workers: something with one start and one end.

    A worker cannot be started again; create another one instead. A subclass overrides `_launch` and `_terminate`, and
    `_until_ready` if it is not ready immediately. ``async with worker`` starts and stops the worker.

    Args:
        name: Name in messages and states.
        stop_timeout: Seconds that the worker has to end after a stop, before it is killed.

    Raises:
        TypeError: if the name is not a string, or the timeout is not a number.
        ValueError: if the name is empty, or the timeout is negative.
    """

    #: The value of `WorkerState.kind`.
    kind: ClassVar[str] = "worker"
    #: Whether it is shown as part of another worker, as a child is by its supervisor.
    supervised: bool = False
    #: The signal that `_terminate` sends first, if it sends one.
    _stop_signal: int | None = None
    #: Seconds that it has to end once `_terminate` was called to force it; then it is abandoned.
    _last_wait: ClassVar[float] = 1.0

    def __init__(self, name: str, *, stop_timeout: float = 10.0) -> None:
        _check_name(name)
        _check_seconds("stop_timeout", stop_timeout)
        self.name = name
        #: Seconds that it has to end after a stop, before it is killed.
        self.stop_timeout = stop_timeout
        self._machine = StatusMachine(name)
        self._env: dict[str, str] = {}
        self._pid: int | None = None
        self._created_at = time.time()
        self._started_at: float | None = None
        self._start_called: float | None = None  # by the loop's clock
        # The task of the start; the future that completes with the end; the record of the end.
        self._starting: asyncio.Task[WorkerFailed | None] | None = None
        self._life: asyncio.Future[End | None] | None = None
        self._exit: Exit | None = None
        # How far a stop has come, and the timer and the future for the end of the grace period.
        self._was_asked = self._grace_is_over = self._was_forced = self._was_abandoned = False
        self._grace_timer: asyncio.TimerHandle | None = None
        self._grace_over: asyncio.Future[None] | None = None
        # The task that forces the end, or waits for a `_terminate` that is async. Most stops need none.
        self._termination: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        pid = "" if self._pid is None else f", pid {self._pid}"
        return f"<{type(self).__name__} {self.name!r}: {self.status}{pid}>"

    @property
    def status(self) -> Status:
        """Its state."""
        return self._machine.state

    @property
    def suspendable(self) -> bool:
        """True if the worker can be suspended and resumed while it runs."""
        return callable(getattr(self, "suspend", None)) and callable(getattr(self, "resume", None))

    # -- for a subclass -----------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End | None]:
        """Start it, and return what completes when it has ended: with an `End`, with None, or by raising.

        MUST leave nothing behind when it raises. A stop during the launch cancels it.
        """
        raise NotImplementedError

    async def _until_ready(self) -> None:
        """Return when it is ready for work; called after `_launch`, and cancelled by a stop.

        MUST raise `WorkerFailed` when it will not become ready, for instance because it has ended.
        """

    def _terminate(self, *, force: bool) -> Awaitable[None] | None:
        """Ask it to end, or with ``force`` make it end; MUST NOT wait for the end, which completes its life.

        A plain method if that needs no waiting, and an async one otherwise.
        """
        raise NotImplementedError

    def _children(self) -> tuple[WorkerState, ...]:
        """Return the states of workers within it."""
        return ()

    def _stack_text(self) -> str:
        """Return where it hangs, for the log entry that reports it as abandoned."""
        return repr(self._life)

    # -- the life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the worker, and return when it is running and ready. Cancelling the call stops the worker.

        Raises:
            InvalidTransition: if the worker was started or stopped before. The message names its state.
            WorkerFailed: if the worker could not start, or was stopped meanwhile. The cause has the details.
        """
        self._machine.to(Status.STARTING)
        self._start_called = asyncio.get_running_loop().time()
        if not self.supervised:
            hooks.component_opened.announce(self, component=self)
        starting = self._starting = asyncio.create_task(self._start_up(), name=f"start of {self.name}")
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
        """Stop the worker, and return when it has ended. Callable in every state, repeatedly and concurrently.

        Cancelling a call ends the wait, but not the stop.

        Args:
            timeout: Seconds until the worker is killed. By default, its ``stop_timeout``. The shortest timeout of
                concurrent calls counts. 0 or less kills the worker immediately.
        """
        self.ask_to_stop(timeout)
        await self.wait()

    def ask_to_stop(self, timeout: float | None = None) -> None:
        """Begin a `stop`, without waiting for its end."""
        status = self._machine.state
        if status in FINAL:
            return
        if status in UNSTARTED:
            self._finish(End())
            return
        if status is not Status.STOPPING:
            self._machine.to(Status.STOPPING)
            if self._starting is not None:
                # In this turn of the loop, so that the start cannot continue in a worker that stops.
                self._starting.cancel()
                self._begin_termination()
            elif (asking := self._call_terminate(force=False)) is not None:
                self._begin_termination(asking)
        self._shorten_grace(self.stop_timeout if timeout is None else timeout)

    async def wait(self) -> Exit:
        """Wait until the worker has ended, and return its `Exit`. Any number of tasks may wait."""
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
        """Return what is known about it now."""
        return self._state_as(self.name)

    def _state_as(  # each is a field of the record
        self,
        name: str,
        *,
        status: Status | None = None,
        restarts: int = 0,
        circuit: str = "closed",
        health: ProbeResult | None = None,
        changed_at: float = 0.0,
    ) -> WorkerState:
        """Return its state with the facts of its supervisor, which changed at ``changed_at``."""
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
            abandoned=self._was_abandoned,
            children=self._children(),
        )

    def on_change(self, listener: StatusListener) -> None:
        """Call ``listener`` with the old and the new status at every change, immediately. It must not raise."""
        self._machine.listen(listener)

    async def probe(self) -> ProbeResult:
        """Return the health of the worker: good while it runs. Override this method to check more."""
        return ProbeResult(self.status in AT_WORK, "" if self.status in AT_WORK else f"is {self.status}")

    def set_env(self, name: str, value: str) -> None:
        """Set the environment variable ``name``, over any other value for it.

        Raises:
            InvalidTransition: if the worker was started.
            ValueError: if an environment cannot contain the name or the value.
        """
        if self.status not in UNSTARTED:
            raise InvalidTransition(f"{self.name!r} is {self.status}; set {name!r} in its environment before start()")
        check_env(name, value)
        self._env[name] = value

    # -- from the start to the end --------------------------------------------------------------------------------

    async def _start_up(self) -> WorkerFailed | None:
        """Start it, in a task of its own: cancelling the caller leaves nothing half started."""
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
        # A termination that is at work finishes by itself.
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
        age = 0.0 if started is None else asyncio.get_running_loop().time() - started
        ended = self._exit = exit_of(self.name, end, how, duration=age)
        if not self._machine.can(ended.status):
            self._machine.to(Status.RUNNING, "resumed from outside")
        self._machine.to(ended.status)
        if ended.status in FAILURES:
            hook = hooks.worker_killed if ended.status is Status.KILLED else hooks.worker_failed
            hook.announce(self, worker=self, exit=ended)
        if started is not None and not self.supervised:
            hooks.component_closed.announce(self, component=self)

    # -- a stop: ask, wait for the grace period, force, wait a little, and give up ----------------------------------

    def _call_terminate(self, *, force: bool) -> asyncio.Future[None] | None:
        """Call `_terminate`; if that is async, return a future for its completion."""
        try:
            asking = self._terminate(force=force)
        except Exception:  # noqa: BLE001  # logged; the end must come all the same
            self._log_terminate_failed(force=force)
            asking = None
        if asking is not None:
            return asyncio.ensure_future(asking)
        self._was_asked = True
        return None

    async def _finish_asking(self, asking: asyncio.Future[None] | None, *, force: bool) -> None:
        """Wait for what `_call_terminate` returned."""
        try:
            if asking is not None:
                await asking
        except Exception:  # noqa: BLE001  # as above
            self._log_terminate_failed(force=force)
        self._was_asked = True

    def _log_terminate_failed(self, *, force: bool) -> None:
        _log.exception("%r could not be %s", self.name, "killed" if force else "asked to stop")

    def _shorten_grace(self, seconds: float) -> None:
        """End the grace period ``seconds`` from now, unless it ends earlier."""
        if seconds <= 0:
            self._end_grace()
        elif seconds < math.inf:
            loop = asyncio.get_running_loop()
            at = loop.time() + seconds
            if self._grace_timer is None or at < self._grace_timer.when():
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
        """Wait for ``future`` until the grace period is over; return whether it is done."""
        over = self._grace_over = asyncio.get_running_loop().create_future()
        if self._grace_is_over:
            over.set_result(None)
        waiting: set[asyncio.Future[Any]] = {future, over}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return future.done()

    def _begin_termination(self, asking: asyncio.Future[None] | None = None) -> None:
        self._termination = asyncio.create_task(self._terminate_all(asking), name=f"stop of {self.name}")

    async def _terminate_all(self, asking: asyncio.Future[None] | None) -> None:
        """End the start, if there is one, and the life, in a task of its own: callers may give up waiting."""
        try:
            if self._starting is not None and not self._starting.done():
                self._was_abandoned = not await self._within_grace(self._starting)
            if self._life is not None:
                await self._end_life(self._life, asking)
        except asyncio.CancelledError:
            # The loop is being closed, and cancels all of its tasks: wait a moment, since callers wait for the end.
            if left := {each for each in (self._starting, self._life) if each is not None and not each.done()}:
                _, alive = await asyncio.wait(left, timeout=self._last_wait)
                self._was_abandoned = bool(alive)
            raise
        finally:
            if self._exit is None:
                self._finish(End.of(self._life))

    async def _end_life(self, life: asyncio.Future[End | None], asking: asyncio.Future[None] | None = None) -> None:
        """Ask for the end of ``life``, and force it after the grace period; if it is still alive then, abandon it."""
        if asking is not None or not (self._was_asked or life.done()):
            await self._finish_asking(asking or self._call_terminate(force=False), force=False)
        if await self._within_grace(life):
            return
        self._was_forced = True
        await self._finish_asking(self._call_terminate(force=True), force=True)
        _, alive = await asyncio.wait({life}, timeout=self._last_wait)
        if alive:
            self._was_abandoned = True
            _log.error("%r cannot be ended and is abandoned: %s", self.name, self._stack_text())


# -- settings ----------------------------------------------------------------------------------------------------


def _check_name(name: object) -> None:
    """Raise TypeError for a name that is not a string, ValueError for an empty one."""
    if not isinstance(name, str):
        raise TypeError(f"a worker's name must be a string, got {name!r}")
    if not name:
        raise ValueError("a worker's name must not be empty")


def check_number(setting: str, value: object, *, of: str = "") -> None:
    """Raise TypeError if ``value`` is not a number; the message names its owner ``of``, if that is known."""
    if not isinstance(value, Real):
        raise TypeError(f"{setting}={value!r}{of and f' of {of!r}'} is not a number; give seconds, such as 5.0")


def _check_seconds(setting: str, value: float) -> None:
    """Raise TypeError if ``value`` is not a number, ValueError if it is NaN or below 0."""
    check_number(setting, value)
    if not value >= 0:
        raise ValueError(f"{setting}={value!r} is not a number of seconds; give 0 or more")


def check_env(name: object, value: object) -> None:
    """Raise ValueError for what no environment can hold, TypeError for what is not a string."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"{name!r}: {value!r} in the environment is not text; give strings, such as {{'PORT': '8000'}}")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot name an environment variable; it must not be empty or have '=' or NUL")
    if "\0" in value:
        raise ValueError(f"the value {value!r} of {name!r} has a NUL; no environment can hold that")


# -- the handover from one life to the next ------------------------------------------------------------------------

RESUME_ID: Final = "LIFECYCLE_RESUME_ID"
PREV_EXIT: Final = "LIFECYCLE_PREV_EXIT"
ATTEMPT: Final = "LIFECYCLE_ATTEMPT"

# The handover of the running task or thread; a process has its environment instead.
_variables: ContextVar[Mapping[str, str] | None] = ContextVar("lifecycle_handover", default=None)


class Handover(Mapping[str, str]):
    """The variables ``LIFECYCLE_…`` of a worker, as text, and as attributes that are parsed.

    Without a supervisor there are none, and the attributes are ``""``, 0 and 1.
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
        """A UUID that stays the same however often the worker is restarted."""
        return self.get(RESUME_ID, "")

    @property
    def prev_exit(self) -> int:
        """How the previous life ended: its exit code, minus a signal's number, -1 for an error without a code."""
        return int(self.get(PREV_EXIT, "0"))

    @property
    def attempt(self) -> int:
        """The number of this start; the first is 1."""
        return int(self.get(ATTEMPT, "1"))


def handover() -> Handover:
    """Return the handover of this worker; call it in its task, in its thread, or anywhere in its process."""
    variables = _variables.get()
    return Handover(os.environ if variables is None else variables)


def set_handover(variables: Mapping[str, str]) -> None:
    """Set what `handover` returns in the running task or thread."""
    _variables.set(variables)


def previous_exit(ended: Exit | None) -> str:
    """Return the text of ``LIFECYCLE_PREV_EXIT`` for the life after ``ended``."""
    if ended is None:
        return "0"
    if ended.exit_code is not None:
        return str(ended.exit_code)
    return "0" if ended.error is None else "-1"
