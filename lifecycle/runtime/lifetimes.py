"""`Lifetime`: what a program sees of its own life, and the free functions that find it from anywhere below."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lifecycle.runtime.records import LifetimeState, Reason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from lifecycle.runtime.lives import Life
    from lifecycle.runtime.stopping import Hook

__all__ = ["Lifetime", "current", "current_life", "go", "on_shutdown", "shutdown"]

_H = TypeVar("_H", bound="Hook")
_T = TypeVar("_T")

#: The machinery behind the current lifetime.
current_life: ContextVar[Life] = ContextVar("lifecycle_current_life")


class Lifetime:
    """The life of a program: why it stops, what runs in its background, what is to be done at its end.

    Made by `run` and `lifetime`; `current` finds it.
    """

    __slots__ = ("__weakref__", "_life")

    def __init__(self, life: Life) -> None:
        self._life = life

    def __repr__(self) -> str:
        return f"<Lifetime: {f'stopping, {self.reason}' if self.stopping else 'running'}>"

    @property
    def reason(self) -> Reason:
        """The first cause of the stop; `Reason.NONE` while there is none."""
        return self._life.reason

    @property
    def signum(self) -> int | None:
        """The signal that was the first cause, if one was."""
        return self._life.signum

    @property
    def started_at(self) -> float:
        """When it began, in seconds since the epoch."""
        return self._life.started_at

    @property
    def stopping(self) -> bool:
        """Whether the shutdown has begun."""
        return self._life.reason is not Reason.NONE

    @property
    def ready(self) -> bool:
        """Whether every main and every router below it has started, and the shutdown has not begun."""
        return self._life.ready

    def shutdown(self, reason: Reason | str = Reason.CANCEL) -> None:
        """Begin the shutdown; callable from any thread, and without effect when it has begun.

        Raises:
            ValueError: for what is no reason.
        """
        cause = Reason(reason)
        if cause is Reason.NONE:
            raise ValueError("Reason.NONE is no reason to stop; give Reason.CANCEL or another")
        self._life.begin(cause)

    async def wait_stopping(self) -> Reason:
        """Wait until the shutdown begins; returns why."""
        await self._life.wait_stopping()
        return self.reason

    def on_shutdown(self, hook: _H) -> _H:
        """Run ``hook`` at the end, before those that were registered earlier; usable as a decorator.

        A hook is a function without arguments, async or plain (it runs in the loop's thread), or an object with such
        a method ``run``. Hooks run when all mains, workers and background tasks have ended; what one raises is
        logged and stops no other.

        Raises:
            RuntimeError: when the hooks have run already.
        """
        self._life.shutdown_hooks.add(hook)
        return hook

    def on_flush(self, hook: _H) -> _H:
        """Run ``hook`` after the shutdown hooks, to send what was measured and recorded; usable as a decorator.

        As with `on_shutdown`; but one that takes longer than ``hook_timeout``, or than the shutdown has left, is
        cancelled: what is sent late is worth less than an end in time.

        Raises:
            RuntimeError: when the shutdown hooks have run already.
        """
        self._life.flush_hooks.add(hook)
        return hook

    @overload
    def go(
        self,
        fn: Callable[..., Awaitable[_T]],
        *args: Any,
        on_error: Callable[[BaseException], object] | None = None,
        name: str | None = None,
    ) -> asyncio.Task[_T]: ...

    @overload
    def go(
        self,
        fn: Callable[..., _T],
        *args: Any,
        on_error: Callable[[BaseException], object] | None = None,
        name: str | None = None,
    ) -> asyncio.Task[_T]: ...

    def go(
        self,
        fn: Callable[..., Any],
        *args: Any,
        on_error: Callable[[BaseException], object] | None = None,
        name: str | None = None,
    ) -> asyncio.Task[Any]:
        """Run ``fn(*args)`` in the background; the shutdown cancels and awaits it.

        ``fn`` may be async or plain. A plain one runs in a thread, which cannot be cancelled: the shutdown waits until
        it has returned. When ``fn`` raises, that is logged, announced on
        `hooks.task_crashed` and counted, ``on_error`` (async or plain) is called with the error, and nothing else
        happens; who awaits the task gets the error too. A router that runs in it is drained
        first when the program stops.

        Raises:
            TypeError: for what is no function.
            RuntimeError: in another thread than the loop's, or when the lifetime is over.
        """
        return self._life.background.start(fn, args, on_error, name)

    def reset_signals(self) -> None:
        """Count signals from the beginning, for instance when the user has resumed."""
        self._life.escalation.reset()

    def components(self) -> tuple[object, ...]:
        """What lives under it, and under lifetimes inside it, and can be asked for its ``state()``.

        Routers that run, workers (without those that a supervisor or a pool answers for) and whatever said so on
        `hooks.component_opened`, in the order in which they came.
        """
        return self._life.all_components()

    def state(self) -> LifetimeState:
        """What there is to know about it now."""
        return self._life.state()


def current() -> Lifetime:
    """The running lifetime, from anywhere below `run` or `lifetime`, also in threads of `asyncio.to_thread`.

    Raises:
        LookupError: outside one.
    """
    life = current_life.get(None)
    if life is None:
        raise LookupError("there is no lifetime here; call this below run(…) or inside `async with lifetime()`")
    return life.lifetime


def shutdown(reason: Reason | str = Reason.CANCEL) -> None:
    """Begin the shutdown of the current lifetime; callable from any thread, without effect when it has begun.

    Raises:
        LookupError: outside one.
    """
    current().shutdown(reason)


def on_shutdown(hook: _H) -> _H:
    """Run ``hook`` at the end of the current lifetime, before earlier ones; see `Lifetime.on_shutdown`.

    Raises:
        LookupError: outside a lifetime.
    """
    return current().on_shutdown(hook)


@overload
def go(
    fn: Callable[..., Awaitable[_T]],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[_T]: ...


@overload
def go(
    fn: Callable[..., _T],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[_T]: ...


def go(
    fn: Callable[..., Any],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[Any]:
    """Run ``fn(*args)`` in the background of the current lifetime, which cancels and awaits it; see `Lifetime.go`.

    Raises:
        LookupError: outside a lifetime.
    """
    return current().go(fn, *args, on_error=on_error, name=name)
