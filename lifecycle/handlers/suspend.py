"""`SuspendHandler`: pausing and going on, each as one step that succeeds as a whole or leaves things as they were."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lifecycle.errors import LifecycleError, NotHandled
from lifecycle.handlers._hooks import Hooks
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.events import Topical

__all__ = ["SuspendHandler", "Suspendable"]

_F = TypeVar("_F", bound="Callable[..., Any]")


class Suspendable(Protocol):
    """What can pause and go on; both methods async or plain."""

    def suspend(self) -> Any:
        """Keep state, stop taking on work; return once that is so."""
        ...

    def resume(self) -> Any:
        """Go on; return once that is so."""
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

#: On the way to each settled state.
_VIA = {_State.SUSPENDED: _State.SUSPENDING, _State.RUNNING: _State.RESUMING}

_TARGETS = {
    "lifecycle/suspend": _State.SUSPENDED,
    "command/suspend": _State.SUSPENDED,
    "lifecycle/resume": _State.RUNNING,
    "command/resume": _State.RUNNING,
}

_INTERRUPTS = ("signal/interrupt", "lifecycle/interrupt")


class _Request:
    """A transition that was asked for; it begins when those before it have ended."""

    def __init__(self, target: _State, before: _Request | None) -> None:
        self.target = target
        self.before = before
        self.task = asyncio.current_task()
        self.ended = asyncio.Event()
        #: How it failed; a cancellation is the caller's own and not handed to those who joined.
        self.error: Exception | None = None
        self.succeeded = False

    async def wait_turn(self) -> None:
        """Wait for those before; one that was cancelled while it waited has left its predecessor to us."""
        while self.before is not None:
            await self.before.ended.wait()
            self.before = self.before.before


class SuspendHandler:
    """Suspends and resumes what it was given, on events of ``lifecycle/suspend`` and ``lifecycle/resume``.

    Hooks, async or plain, run one after the other in the order of registration, both ways: register what does the
    work first and what tells the user last. They have ``timeout`` seconds for a transition (None: as long as they
    need; one that blocks the loop cannot be timed out). A hook that fails, or is timed out or cancelled, rolls the
    ones before it back, the latest first; the state stays what it was and the error comes out. What `manage` added
    knows its way back; of the others, the n-th of `on_suspend` is taken back by the n-th of `on_resume`, and the
    other way round.

    Events that ask for what is so already, or is under way, are ignored. The opposite, asked for while hooks run, is
    carried out afterwards.

    Ctrl+C (``signal/interrupt``, ``lifecycle/interrupt``) suspends too, but is `NotHandled` once suspended or
    suspending, so that an `Escalator` can go further. So is every other event.

    Raises:
        ValueError: unless ``timeout`` is None or above 0.
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        if timeout is not None and timeout <= 0:
            raise ValueError(f"SuspendHandler(timeout={timeout!r}) leaves hooks no time; give seconds above 0, or None")
        self._timeout = timeout
        self._hooks = Hooks("suspend", "resume")
        self._machine = Machine("suspend handler", _TABLE, _State.RUNNING)
        # The latest transition that was asked for; done or not.
        self._last: _Request | None = None
        self._when_resumed: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<SuspendHandler: {self._machine.state}>"

    # -- registration ------------------------------------------------------------------------------------------

    def on_suspend(self, fn: _F) -> _F:
        """Call ``fn()`` when suspending; usable as a decorator."""
        self._hooks.add("suspend", fn)
        return fn

    def on_resume(self, fn: _F) -> _F:
        """Call ``fn()`` when resuming; usable as a decorator."""
        self._hooks.add("resume", fn)
        return fn

    def manage(self, *suspendables: Suspendable) -> None:
        """Suspend and resume each of ``suspendables``.

        Raises:
            TypeError: for what has no ``suspend()`` and ``resume()``.
        """
        for each in suspendables:
            if not (callable(getattr(each, "suspend", None)) and callable(getattr(each, "resume", None))):
                raise TypeError(f"{each!r} cannot be managed: give it methods suspend() and resume(), async or plain")
        for each in suspendables:
            self._hooks.add_pair(each.suspend, each.resume)

    def when_resumed(self, call: Callable[[], object]) -> None:
        """Call the plain function ``call`` after each resume that succeeded; it takes no part in the transition."""
        self._when_resumed.append(call)

    # -- what can be seen --------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether the last transition that succeeded was to suspend; while resuming still true."""
        return self._machine.state in (_State.SUSPENDED, _State.RESUMING)

    @property
    def transitioning(self) -> bool:
        """Whether hooks are running."""
        return self._machine.state in _VIA.values()

    def state(self) -> str:
        """``running``, ``suspending``, ``suspended`` or ``resuming``."""
        return str(self._machine.state)

    # -- transitions -------------------------------------------------------------------------------------------

    async def __call__(self, event: Topical) -> None:
        """Carry out what ``event`` asks for, or ignore a duplicate.

        Raises:
            NotHandled: for an event that asks for neither; for Ctrl+C when suspended or suspending.
        """
        target = _TARGETS.get(event.topic)
        if event.topic in _INTERRUPTS:
            target = _State.SUSPENDED
            if self._planned() is target:
                raise NotHandled(f"{event.topic!r} finds the program {self._machine.state} already")
        if target is None:
            raise NotHandled(f"a SuspendHandler does nothing on {event.topic!r}")
        if self._planned() is not target:
            await self._carry_out(target)

    async def suspend(self) -> None:
        """Suspend; returns once suspended, also where that was under way.

        Raises:
            LifecycleError: from inside one of this handler's own hooks, which would wait for itself.
            TimeoutError: when the hooks took too long.
        """
        await self._reach(_State.SUSPENDED)

    async def resume(self) -> None:
        """Resume; returns once running, also where that was under way. Raises as `suspend` does."""
        await self._reach(_State.RUNNING)

    def _pending(self) -> _Request | None:
        """The latest transition asked for that has not ended; one given up while waiting leads to the one before."""
        last = self._last
        while last is not None and last.ended.is_set():
            last = last.before
        return last

    def _planned(self) -> _State:
        """The state once everything that was asked for has been done."""
        pending = self._pending()
        return pending.target if pending else _State.SUSPENDED if self.suspended else _State.RUNNING

    async def _reach(self, target: _State) -> None:
        """Carry it out, or join whoever does; takes over from one who was cancelled."""
        while self._planned() is target:
            pending = self._pending()
            if pending is None:
                return
            self._refuse_own(pending)
            await pending.ended.wait()
            if pending.error is not None:
                raise pending.error
            if pending.succeeded:  # what was asked for since then is another matter
                return
        await self._carry_out(target)

    async def _carry_out(self, target: _State) -> None:
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
        """A hook that waits for the transition it is part of would wait for ever."""
        here = asyncio.current_task()
        while pending is not None:
            if pending.task is here:
                raise LifecycleError(
                    f"suspend() or resume() was called from a hook of this handler while {self._machine.state}: "
                    "it would wait for itself; emit an event instead"
                )
            pending = pending.before

    async def _transition(self, target: _State) -> None:
        """Run the hooks, all or none; a transition before this one that failed may have left nothing to do."""
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
