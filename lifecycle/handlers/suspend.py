"""`SuspendHandler`: suspends and resumes. Each transition either succeeds as a whole or changes nothing."""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lifecycle._durations import in_seconds_or_none
from lifecycle._util import name_of
from lifecycle.errors import LifecycleError, NotHandled
from lifecycle.handlers._calls import adapted
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle._durations import Duration
    from lifecycle.events import Topical
    from lifecycle.handlers._calls import Call

__all__ = ["SuspendHandler", "Suspendable"]

_log = logging.getLogger("lifecycle.handlers")

_F = TypeVar("_F", bound="Callable[..., Any]")


class Suspendable(Protocol):
    """An object that can suspend and resume its work. Both methods may be async or synchronous."""

    def suspend(self) -> Any:
        """Stop accepting work and save state. Return once both are done."""
        ...

    def resume(self) -> Any:
        """Resume work. Return once it is running again."""
        ...


class _State(StrEnum):
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"


_TABLE = {
    _State.RUNNING: (_State.SUSPENDING,),
    _State.SUSPENDING: (_State.SUSPENDED, _State.RUNNING),
    _State.SUSPENDED: (_State.RESUMING,),
    _State.RESUMING: (_State.RUNNING, _State.SUSPENDED),
}

#: Maps each stable state to the transitional state that precedes it.
_VIA = {_State.SUSPENDED: _State.SUSPENDING, _State.RUNNING: _State.RESUMING}

_TARGETS = {
    "lifecycle/suspend": _State.SUSPENDED,
    "command/suspend": _State.SUSPENDED,
    "lifecycle/resume": _State.RUNNING,
    "command/resume": _State.RUNNING,
}

_INTERRUPTS = ("signal/interrupt", "lifecycle/interrupt")


class SuspendHandler:
    """Runs suspend and resume hooks when the events ``lifecycle/suspend`` and ``lifecycle/resume`` arrive.

    Hooks may be async or synchronous. They run one after another in the order of registration, both when suspending and
    when resuming. Register hooks that stop work first, and hooks that show messages to the user last. A transition's
    hooks may take ``timeout`` seconds in total. None means no limit. A hook that blocks the loop cannot be timed out.

    If a hook fails, times out or is cancelled, the earlier hooks are rolled back in reverse order, the state does not
    change, and the error is raised. To roll back an object added with `manage`, its other method is called. To roll
    back the n-th hook added with `on_suspend`, the n-th hook added with `on_resume` is called, and vice versa.

    Events that request the current state or a transition already in progress are ignored. If the opposite transition is
    requested while hooks are running, it starts once they have finished.

    Ctrl+C (``signal/interrupt``, ``lifecycle/interrupt``) also suspends. If the handler is already suspended or
    suspending, it raises `NotHandled` instead, so that an `Escalator` can take the next step. It also raises
    `NotHandled` for all other events.

    Raises:
        ValueError: if ``timeout`` is neither None nor a positive number of seconds.
    """

    def __init__(self, *, timeout: Duration | None = None) -> None:
        self._timeout = in_seconds_or_none("timeout", timeout)
        # The steps on the way to each state, in the order of registration.
        self._steps: dict[_State, list[_Step]] = {_State.SUSPENDED: [], _State.RUNNING: []}
        self._machine = Machine("suspend handler", _TABLE, _State.RUNNING)
        # Held during a transition. The requests get it in the order in which they were made.
        self._lock = asyncio.Lock()
        # The unfinished requests, oldest first, and the task that carries out the oldest.
        self._requests: list[_Request] = []
        self._running: asyncio.Task[Any] | None = None
        self._when_resumed: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<SuspendHandler: {self._machine.state}>"

    # -- registration ------------------------------------------------------------------------------------------

    def on_suspend(self, fn: _F) -> _F:
        """Call ``fn()`` when suspending. You can use this as a decorator."""
        self._add(_State.SUSPENDED, fn, "a hook of on_suspend")
        return fn

    def on_resume(self, fn: _F) -> _F:
        """Call ``fn()`` when resuming. You can use this as a decorator."""
        self._add(_State.RUNNING, fn, "a hook of on_resume")
        return fn

    def manage(self, *suspendables: Suspendable) -> None:
        """Suspend and resume each of ``suspendables``.

        Raises:
            TypeError: if an object lacks ``suspend()`` or ``resume()``.
        """
        for each in suspendables:
            if not (callable(getattr(each, "suspend", None)) and callable(getattr(each, "resume", None))):
                raise TypeError(
                    f"{each!r} cannot be managed: it needs the methods suspend() and resume(), async or synchronous"
                )
        for each in suspendables:
            pair = _Step(each.suspend, "suspend()"), _Step(each.resume, "resume()")
            pair[0].undo, pair[1].undo = pair[1], pair[0]
            self._steps[_State.SUSPENDED].append(pair[0])
            self._steps[_State.RUNNING].append(pair[1])

    def when_resumed(self, call: Callable[[], object]) -> None:
        """Call the synchronous function ``call`` after each successful resume, outside the transition."""
        self._when_resumed.append(call)

    def _add(self, target: _State, fn: Callable[..., Any], role: str) -> None:
        """Add a step on the way to ``target``. It is paired with the first unpaired step of the opposite way.

        Raises:
            TypeError: if ``fn`` cannot be called without arguments.
        """
        step = _Step(fn, role)
        self._steps[target].append(step)
        opposite = _State.RUNNING if target is _State.SUSPENDED else _State.SUSPENDED
        for other in self._steps[opposite]:
            if other.undo is None:
                step.undo, other.undo = other, step
                return

    # -- state --------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """True if the last successful transition was a suspension. This stays true while resuming."""
        return self._machine.state in (_State.SUSPENDED, _State.RESUMING)

    @property
    def transitioning(self) -> bool:
        """True while hooks are running."""
        return self._machine.state in _VIA.values()

    def state(self) -> str:
        """Return ``running``, ``suspending``, ``suspended`` or ``resuming``."""
        return str(self._machine.state)

    # -- transitions -------------------------------------------------------------------------------------------

    async def __call__(self, event: Topical) -> None:
        """Run the transition that ``event`` requests. Duplicates are ignored.

        Raises:
            NotHandled: if ``event`` does not request a transition, or if it is Ctrl+C when suspended or suspending.
        """
        target = _TARGETS.get(event.topic)
        if event.topic in _INTERRUPTS:
            target = _State.SUSPENDED
            if self._planned() is target:
                raise NotHandled(f"the program is already {self._machine.state}")
        if target is None:
            raise NotHandled(f"a SuspendHandler does not handle {event.topic!r}")
        if self._planned() is not target:
            await self._reach(target)

    async def suspend(self) -> None:
        """Suspend, or join a suspension in progress. Return once suspended.

        Raises:
            LifecycleError: if one of this handler's hooks calls this, because the hook would wait for itself.
            TimeoutError: if the hooks took too long.
        """
        await self._reach(_State.SUSPENDED)

    async def resume(self) -> None:
        """Resume, or join a resume in progress. Return once running. Raises the same errors as `suspend`."""
        await self._reach(_State.RUNNING)

    def _planned(self) -> _State:
        """Return the state after all requested transitions have finished."""
        if self._requests:
            return self._requests[-1].target
        return _State.SUSPENDED if self.suspended else _State.RUNNING

    async def _reach(self, target: _State) -> None:
        """Run the transition, or join the caller that is running it and take over if that caller is cancelled."""
        if self._running is not None and self._running is asyncio.current_task():
            raise LifecycleError(
                f"suspend() or resume() was called from one of this handler's hooks while {self._machine.state}: "
                "it would wait for itself; emit an event instead"
            )
        if not self._requests:
            if self._planned() is target:
                return
            self._lock = asyncio.Lock()  # the last one may belong to another event loop
        if self._planned() is not target:
            self._requests.append(_Request(target))
        request = self._requests[-1]
        request.callers += 1
        try:
            async with self._lock:
                # If this caller has joined, the state is the target, or the transition has failed.
                if self._machine.state is not target and request.error is None:
                    await self._transition(request)
        finally:
            # A request that has failed is over. If only one of its callers was cancelled, another one takes over.
            request.callers -= 1
            if (request.error is not None or not request.callers) and request in self._requests:
                self._requests.remove(request)
        if request.error is not None:
            raise request.error

    async def _transition(self, request: _Request) -> None:
        """Run all steps or none. An error is stored in the request, because all its callers raise it."""
        old, target = self._machine.state, request.target
        self._machine.to(_VIA[target])
        self._running = asyncio.current_task()
        try:
            await _run(self._steps[target], self._timeout)
        except BaseException as error:
            self._machine.to(old, f"rolled back: {type(error).__name__}")
            if not isinstance(error, Exception):
                raise
            request.error = error
            return
        finally:
            self._running = None
        self._machine.to(target)
        if target is _State.RUNNING:
            for call in self._when_resumed:
                call()


class _Request:
    """A requested transition, the callers that wait for it, and the error with which it failed."""

    def __init__(self, target: _State) -> None:
        self.target = target
        self.callers = 0
        self.error: Exception | None = None


class _Step:
    """A function to call during a transition, and the step that undoes it."""

    def __init__(self, fn: Callable[..., Any], role: str) -> None:
        self.name = name_of(fn)
        self.call: Call = adapted(fn, role)
        self.undo: _Step | None = None


async def _run(steps: list[_Step], timeout: float | None) -> None:
    """Carry out all steps within ``timeout`` seconds. If one fails, undo the earlier steps."""
    done: list[_Step] = []
    try:
        async with asyncio.timeout(timeout):
            for step in list(steps):
                await step.call()
                done.append(step)
    except BaseException as error:
        for step in reversed(done):
            if step.undo is not None:
                await _undo(step, step.undo, error, timeout)
        raise


async def _undo(step: _Step, undo: _Step, error: BaseException, timeout: float | None) -> None:
    """Undo ``step``. If that fails, log the second error, and add it to ``error`` as a note."""
    try:
        async with asyncio.timeout(timeout):
            await undo.call()
    except Exception as second:  # noqa: BLE001  # the first error is raised
        _log.exception("rolling back %s with %s failed", step.name, undo.name)
        error.add_note(f"and {undo.name}, which should have undone {step.name}, failed: {second!r}")
