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


class _Request:
    """A requested transition, which begins once all earlier transitions have finished."""

    def __init__(self, target: _State, before: _Request | None) -> None:
        self.target = target
        self.before = before
        self.task = asyncio.current_task()
        self.ended = asyncio.Event()
        #: The error that the transition raised. A cancellation is not stored here, so it does not affect the callers
        #: that joined.
        self.error: Exception | None = None
        self.succeeded = False

    async def wait_turn(self) -> None:
        """Wait for all earlier requests.

        If the previous request was cancelled while waiting, wait for the request before it.
        """
        while self.before is not None:
            await self.before.ended.wait()
            self.before = self.before.before


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
        self._hooks = _Hooks("suspend", "resume")
        self._machine = Machine("suspend handler", _TABLE, _State.RUNNING)
        # The latest requested transition, finished or not.
        self._last: _Request | None = None
        self._when_resumed: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<SuspendHandler: {self._machine.state}>"

    # -- registration ------------------------------------------------------------------------------------------

    def on_suspend(self, fn: _F) -> _F:
        """Call ``fn()`` when suspending. You can use this as a decorator."""
        self._hooks.add("suspend", fn)
        return fn

    def on_resume(self, fn: _F) -> _F:
        """Call ``fn()`` when resuming. You can use this as a decorator."""
        self._hooks.add("resume", fn)
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
            self._hooks.add_pair(each.suspend, each.resume)

    def when_resumed(self, call: Callable[[], object]) -> None:
        """Call the synchronous function ``call`` after each successful resume, outside the transition."""
        self._when_resumed.append(call)

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
            await self._run(target)

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

    def _pending(self) -> _Request | None:
        """Return the latest unfinished request, ignoring those that were cancelled while waiting."""
        last = self._last
        while last is not None and last.ended.is_set():
            last = last.before
        return last

    def _planned(self) -> _State:
        """Return the state after all requested transitions have finished."""
        pending = self._pending()
        return pending.target if pending else _State.SUSPENDED if self.suspended else _State.RUNNING

    async def _reach(self, target: _State) -> None:
        """Run the transition, or join the caller that is running it and take over if that caller is cancelled."""
        while self._planned() is target:
            pending = self._pending()
            if pending is None:
                return
            self._refuse_own(pending)
            await pending.ended.wait()
            if pending.error is not None:
                raise pending.error
            if pending.succeeded:  # later requests are irrelevant here
                return
        await self._run(target)

    async def _run(self, target: _State) -> None:
        pending = self._pending()
        if pending is not None:
            self._refuse_own(pending)
        request = self._last = _Request(target, pending)
        try:
            await request.wait_turn()
            await self._transition(target)
            request.succeeded = True
        except Exception as error:
            request.error = error
            raise
        finally:
            request.task = None
            request.ended.set()

    def _refuse_own(self, pending: _Request | None) -> None:
        """Raise an error if a hook is about to wait for its own transition, because the wait would never end."""
        here = asyncio.current_task()
        while pending is not None:
            if pending.task is here:
                raise LifecycleError(
                    f"suspend() or resume() was called from one of this handler's hooks while {self._machine.state}: "
                    "it would wait for itself; emit an event instead"
                )
            pending = pending.before

    async def _transition(self, target: _State) -> None:
        """Run all hooks or none.

        If an earlier transition failed, the state may already be ``target``. In that case, do nothing.
        """
        old = self._machine.state
        if old is target:
            return
        self._machine.to(_VIA[target])
        way = "suspend" if target is _State.SUSPENDED else "resume"
        try:
            await self._hooks.run(way, timeout=self._timeout)
        except BaseException as error:
            self._machine.to(old, f"rolled back: {type(error).__name__}")
            raise
        self._machine.to(target)
        if target is _State.RUNNING:
            for call in self._when_resumed:
                call()


class _Hook:
    """A function to call during a transition, and the hook that undoes it."""

    def __init__(self, fn: Callable[..., Any], role: str) -> None:
        self.name = name_of(fn)
        self.call: Call = adapted(fn, role)
        self.undo: _Hook | None = None


class _Hooks:
    """The hooks for the transitions ``there`` and ``back``, each in the order of registration."""

    def __init__(self, there: str, back: str) -> None:
        self._opposite = {there: back, back: there}
        self._hooks: dict[str, list[_Hook]] = {there: [], back: []}

    def add(self, way: str, fn: Callable[..., Any]) -> None:
        """Add ``fn`` to the hooks for ``way``. It is paired with the first unpaired hook for the opposite transition.

        Raises:
            TypeError: if ``fn`` cannot be called without arguments.
        """
        hook = _Hook(fn, f"a hook of on_{way}")
        self._hooks[way].append(hook)
        for other in self._hooks[self._opposite[way]]:
            if other.undo is None:
                hook.undo, other.undo = other, hook
                return

    def add_pair(self, there: Callable[..., Any], back: Callable[..., Any]) -> None:
        """Add a pair of hooks, one for each transition. Each undoes the other."""
        pair = [_Hook(fn, f"{way}()") for way, fn in zip(self._hooks, (there, back), strict=True)]
        pair[0].undo, pair[1].undo = pair[1], pair[0]
        for hooks, hook in zip(self._hooks.values(), pair, strict=True):
            hooks.append(hook)

    async def run(self, way: str, *, timeout: float | None) -> None:
        """Call all hooks for ``way`` within ``timeout`` seconds. If one fails, undo the earlier hooks."""
        done: list[_Hook] = []
        try:
            async with asyncio.timeout(timeout):
                for hook in list(self._hooks[way]):
                    await hook.call()
                    done.append(hook)
        except BaseException as error:
            await _roll_back(done, error, timeout)
            raise


async def _roll_back(done: list[_Hook], error: BaseException, timeout: float | None) -> None:
    """Undo ``done`` in reverse order. Log any further errors, and add them to ``error`` as notes."""
    for hook in reversed(done):
        if hook.undo is None:
            continue
        try:
            async with asyncio.timeout(timeout):
                await hook.undo.call()
        except Exception as second:  # noqa: BLE001  # the first error is raised
            _log.exception("rolling back %s with %s failed", hook.name, hook.undo.name)
            error.add_note(f"and {hook.undo.name}, which should have undone {hook.name}, failed: {second!r}")
