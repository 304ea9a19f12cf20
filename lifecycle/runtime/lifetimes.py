"""`Lifetime` holds a program's tasks, workers and reason for stopping. Functions here return the current lifetime.

`Lifetime` is the public class. `Life` is its internal part. It tracks the first cause of the shutdown, the code waiting
for the shutdown, and everything that must end before the lifetime does. ``signals`` delivers signals, and ``stopping``
runs the shutdown.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload
from weakref import WeakSet

from lifecycle import hooks
from lifecycle._async import shield, start_task, was_cancelled
from lifecycle._durations import duration, store_seconds
from lifecycle._util import current_life as _current_life
from lifecycle._util import name_of
from lifecycle._util import outermost_lives as _outermost_lives
from lifecycle.errors import Interrupted
from lifecycle.events.base import ClearLineEvent, InterruptEvent
from lifecycle.runtime.force import tell_terminal
from lifecycle.runtime.presses import Captor, Presses
from lifecycle.runtime.stopping import Deadline, Draining, ShutdownHooks, StartedWorkers, as_router, has_route_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from contextlib import AbstractContextManager
    from contextvars import ContextVar

    from lifecycle._durations import DurationField
    from lifecycle.runtime.health import Health
    from lifecycle.runtime.stopping import Hook, RouterLike

__all__ = [
    "Life",
    "Lifetime",
    "LifetimeState",
    "Reason",
    "Settings",
    "call_anywhere",
    "check_callable",
    "current",
    "current_life",
    "on_shutdown",
    "shutdown",
    "task_starts",
]

_H = TypeVar("_H", bound="Hook")
_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.runtime")

#: The internal part of the current lifetime.
current_life: ContextVar[Life] = _current_life


# -- records ----------------------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a program is stopping. If there are several causes, this is the first one."""

    #: The program is not stopping.
    NONE = "none"
    #: The user pressed Ctrl+C.
    INTERRUPT = "interrupt"
    #: SIGTERM was received, or the terminal was closed.
    TERMINATE = "terminate"
    #: `shutdown` was called.
    CANCEL = "cancel"
    #: The main finished, or the ``async with`` block was exited.
    STOP = "stop"
    #: A deadline passed: the main raised `TimeoutError`.
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to handle signals, and the time limits of the shutdown. `run` documents each setting.

    Raises:
        ValueError: if a number is negative.
        TypeError: if a value has the wrong type.
    """

    force_exit: int = 1
    cancel_on_interrupt: bool | None = None
    reset_after: DurationField = duration(5.0)
    hook_timeout: DurationField = duration(5.0)
    shutdown_timeout: DurationField = duration(2.0)
    exit_timeout: DurationField = duration(25.0)

    def __post_init__(self) -> None:
        if type(self.force_exit) is not int:
            raise TypeError(f"force_exit must be a number of signals (0: never), got {self.force_exit!r}")
        if self.force_exit < 0:
            raise ValueError(f"force_exit must be 0 or more, got {self.force_exit!r}")
        if self.cancel_on_interrupt not in (None, True, False):
            raise TypeError(f"cancel_on_interrupt must be True, False or None, got {self.cancel_on_interrupt!r}")
        store_seconds(self, "reset_after", "hook_timeout", "shutdown_timeout", "exit_timeout", least=0)


@dataclass(frozen=True, slots=True)
class LifetimeState:
    """The state of a lifetime."""

    reason: Reason
    #: The signal that caused the shutdown, or None.
    signum: int | None
    stopping: bool
    #: The number of signals counted so far in the current series.
    signals: int
    #: The number of signals after which the process is forced to exit. 0 means never, or that the lifetime receives no
    #: signals.
    force_exit_at: int
    #: The names of the running background tasks.
    tasks: tuple[str, ...]
    #: The number of background tasks started so far.
    tasks_started: int
    #: The number of background tasks that raised an error.
    tasks_crashed: int
    #: The number of shutdown hooks that have not run yet.
    hooks: int
    #: The names of the workers that were started under this lifetime and have not ended.
    workers: tuple[str, ...]
    #: True if another program runs the event loop and is not stopped when this lifetime shuts down.
    embedded: bool = False


# -- the public part --------------------------------------------------------------------------------------------------


class Lifetime:
    """A program's lifetime: the reason for its shutdown, its background tasks, and its shutdown hooks.

    `run` and `lifetime` create it, and `current` returns it.
    """

    __slots__ = ("__weakref__", "_life")

    def __init__(self, life: Life) -> None:
        self._life = life

    def __repr__(self) -> str:
        return f"<Lifetime: {f'stopping, {self.reason}' if self.stopping else 'running'}>"

    @property
    def reason(self) -> Reason:
        """The first cause of the shutdown, or `Reason.NONE`."""
        return self._life.reason

    @property
    def signum(self) -> int | None:
        """The signal that caused the shutdown, or None."""
        return self._life.signum

    @property
    def started_at(self) -> float:
        """When the lifetime started, in seconds since the epoch."""
        return self._life.started_at

    @property
    def stopping(self) -> bool:
        """True if the shutdown has begun."""
        return self._life.reason is not Reason.NONE

    @property
    def ready(self) -> bool:
        """True if every main and every router under this lifetime has started, and the shutdown has not begun."""
        return self._life.ready

    def shutdown(self, reason: Reason | str = Reason.CANCEL) -> None:
        """Begin the shutdown. You can call this from any thread. It has no effect if the shutdown has already begun.

        Args:
            reason: The reason to record.

        Raises:
            ValueError: if the reason is unknown, or `Reason.NONE`.
        """
        accepted = [str(each) for each in Reason if each is not Reason.NONE]
        if reason not in accepted:
            raise ValueError(f"the reason for a shutdown must be one of {', '.join(accepted)}, got {reason!r}")
        self._life.begin(Reason(reason))

    async def wait_stopping(self) -> Reason:
        """Wait until the shutdown begins, and return the reason."""
        await self._life.wait_stopping()
        return self.reason

    def on_shutdown(self, hook: _H) -> _H:
        """Run ``hook`` during the shutdown, before hooks registered earlier. This can be used as a decorator.

        Hooks run once all mains, workers and background tasks have ended. If a hook raises an error, the error is
        logged, and the other hooks still run.

        Args:
            hook: An async or plain function without arguments, or an object whose ``run`` method is such a function. A
                plain function runs in the thread of the loop.

        Returns:
            The hook.

        Raises:
            RuntimeError: if the hooks have already run.
        """
        self._life.shutdown_hooks.add(hook)
        return hook

    def on_flush(self, hook: _H) -> _H:
        """Run ``hook`` after the shutdown hooks, to send metrics and records. This can be used as a decorator.

        Unlike a hook registered with `on_shutdown`, this hook is cancelled if it exceeds ``hook_timeout`` or the time
        left for the shutdown. Exiting on time is more important than sending metrics.

        Raises:
            RuntimeError: if the shutdown hooks have already run.
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
        """Run ``fn(*args)`` in the background. The shutdown cancels and awaits it.

        If ``fn`` raises an error, the error is logged, counted and announced through `hooks.task_crashed`, and the
        program continues. If a router is running in the task, it is drained before the task is cancelled.

        Args:
            fn: An async or plain function. A plain function runs in a thread, which cannot be cancelled, so the
                shutdown waits until it has returned.
            args: The arguments of ``fn``.
            on_error: An async or plain function to call with the error if ``fn`` raises one.
            name: The task's name in messages and states. By default, the function's name.

        Returns:
            The task. If ``fn`` raises an error, awaiting the task raises it.

        Raises:
            TypeError: if ``fn`` is not a function.
            RuntimeError: if called from a thread other than the loop's, or if the lifetime is over.
        """
        return self._life.background.start(fn, args, on_error, name)

    def reset_signals(self) -> None:
        """Start counting signals from zero again, for example because the user has resumed the program."""
        self._life.presses.reset()

    def components(self) -> tuple[object, ...]:
        """Return the components that have a ``state()`` method under this lifetime and the lifetimes inside it.

        These are the running routers, the workers that are not run by a supervisor or pool, and every component
        announced through `hooks.component_opened`. They are listed in the order in which they started.
        """
        return self._life.all_components()

    def state(self) -> LifetimeState:
        """Return the current state."""
        return self._life.state()

    def health(self) -> Health:
        """Return the program's health, for use in an endpoint of any web framework.

        It covers mains, routers, supervisors with their children, and workers that the mains or the block started
        themselves. A worker that has failed makes the program unhealthy until a worker with the same name is started.
        """
        from lifecycle.runtime.health import health_of  # loaded only when the health is read

        return health_of(self._life)


def current() -> Lifetime:
    """Return the current lifetime.

    This works in all code called inside `run` or `lifetime`, including `asyncio.to_thread` threads.

    A web server handles requests in tasks outside the lifetime that its application has entered. In such a task, this
    function returns the only lifetime running in the event loop. In a thread without a loop, it returns the only
    lifetime in the process.

    Raises:
        LookupError: if called outside a lifetime, unless exactly one lifetime is running.
    """
    life = current_life.get(None)
    return _only_life().lifetime if life is None else life.lifetime


def task_starts(lifetime: Lifetime) -> dict[asyncio.Task[Any], float]:
    """Return the tasks started by `Lifetime.go` in ``lifetime`` and the lifetimes inside it.

    Each task is mapped to its start time in loop time.
    """
    lives, starts = [lifetime._life], dict[asyncio.Task[Any], float]()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of the same module
    while lives:
        life = lives.pop()
        starts |= life.background.running
        lives += life.inner
    return starts


#: The running lifetimes that are not inside another one.
_outermost: Final[WeakSet[Life]] = _outermost_lives


def _only_life() -> Life:
    """Return the only running lifetime, for a task that has not inherited one."""
    loop = _running_loop()
    lives = [life for life in tuple(_outermost) if loop is None or life.loop is loop]
    if len(lives) > 1:
        raise LookupError(
            f"{len(lives)} lifetimes are running, and this task is outside all of them; use "
            "`async with lifetime(…) as life`, and call a method of life, such as life.go(…)"
        )
    if not lives:
        raise LookupError("there is no lifetime here; call this inside run(…) or `async with lifetime()`")
    return lives[0]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def shutdown(reason: Reason | str = Reason.CANCEL) -> None:
    """Begin the shutdown of the current lifetime, from any thread. This has no effect if it has already begun.

    Args:
        reason: The reason to record.

    Raises:
        LookupError: if called outside a lifetime.
    """
    current().shutdown(reason)


def on_shutdown(hook: _H) -> _H:
    """Run ``hook`` during the shutdown of the current lifetime, before hooks registered earlier.

    See `Lifetime.on_shutdown`.

    Raises:
        LookupError: if called outside a lifetime.
    """
    return current().on_shutdown(hook)


# -- the internal part ------------------------------------------------------------------------------------------------


class _Notifier(Protocol):
    """The part of a service manager's notifier that a lifetime uses."""

    def ready(self) -> None: ...

    def reloading(self) -> AbstractContextManager[None]: ...

    def stopping(self, reason: Reason) -> None: ...


class Life:
    """The internal part of a lifetime. It is safe to call `begin` from any thread and in signal handlers."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, outer: Life | None = None) -> None:
        self.settings = settings
        self.loop = loop
        self.lifetime: Final = Lifetime(self)
        #: True if signals reach this lifetime through the outer lifetime, which counts them for both.
        self.is_governed: bool = outer is not None and outer.hears_signals
        own = Presses(settings.force_exit, settings.cancel_on_interrupt, settings.reset_after)
        self.presses: Presses = outer.presses if outer and self.is_governed else own
        self.background: Final = _BackgroundTasks(self)
        self.shutdown_hooks: Final = ShutdownHooks(self.lifetime, settings.hook_timeout)
        #: Hooks that run after the shutdown hooks, to send metrics.
        self.flush_hooks: Final = ShutdownHooks(self.lifetime, settings.hook_timeout, cut=True)
        self.deadline: Final = Deadline(self)
        self.workers: Final = StartedWorkers(self)
        #: Components with a state.
        self.components: Final = _Components(self)
        self.outer = outer
        #: Lifetimes inside this one. They begin to shut down together with it.
        self.inner: list[Life] = []
        #: True if signals reach this lifetime, directly or through an outer one.
        self.hears_signals: bool = self.is_governed
        #: True if another program, the host, runs the event loop and receives the signals.
        self.is_embedded = False
        #: Returns whether shutting down this lifetime also stops the host.
        self.stops_host: Callable[[], bool] = _no
        #: The tasks of the mains, or the task of the block.
        self.own_tasks: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
        #: The errors of failed components by name: mains, routers, and workers started by the mains or the block.
        self.failures: Final[dict[str, BaseException]] = {}
        #: Called with the error of a supervisor that failed in the block itself.
        self.supervisor_failed: Callable[[BaseException], None] = _nothing
        #: Routers and other components that can be drained.
        self.draining: Final = Draining(self)
        #: Called in the loop once the shutdown has begun.
        self.interrupt: Callable[[], None] = _nothing
        #: Notifies systemd, if systemd runs the program.
        self.notifier: _Notifier | None = None
        #: True once all main functions have started.
        self.is_up: bool = False
        self.reason: Reason = Reason.NONE
        self.signum: int | None = None
        # One future for each caller that is waiting for the shutdown, oldest first.
        self._stop_waits: dict[asyncio.Future[None], None] = {}
        self._has_begun = False
        # Each cause takes the next number, and the cause that gets 0 is the first cause. Taking a number is atomic and
        # needs no lock.
        self._causes = itertools.count()
        #: True once it is too late to add tasks and hooks.
        self.over: bool = False
        #: When the lifetime started, in seconds since the epoch.
        self.started_at: float = time.time()
        #: The context in which the lifetime calls functions.
        self.context: contextvars.Context = contextvars.copy_context()

    # -- readiness ------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Record that all mains have started."""
        self.is_up = True
        if self.notifier is not None:
            self.notifier.ready()

    @property
    def ready(self) -> bool:
        """See `Lifetime.ready`."""
        if not self.is_up or self.reason is not Reason.NONE or (self.outer is not None and not self.outer.ready):
            return False
        return all(router.state().running for router in self.draining.routers)

    @property
    def stopping(self) -> bool:
        """True if the shutdown has begun."""
        return self.reason is not Reason.NONE

    # -- the first cause ------------------------------------------------------------------------------------------

    def begin(self, reason: Reason, signum: int | None = None) -> None:
        """Begin the shutdown, unless it has already begun."""
        if next(self._causes):
            return
        self.deadline.set()
        self.signum = signum
        self.reason = reason
        for inner in tuple(self.inner):
            inner.begin(reason, signum)
        self.call_soon(self._begun)
        if reason is not Reason.STOP and not self.is_governed and self.presses.count and self.presses.limit():
            tell_terminal(f"stopping{self.next_step()}")

    def begin_for_signal(self, signum: int) -> None:
        """Begin the shutdown because of a signal."""
        self.begin(Reason.INTERRUPT if signum == signal.SIGINT else Reason.TERMINATE, signum)

    def next_step(self) -> str:
        """Return the part of a message that explains how to force an exit, or "" if that is impossible."""
        left = self.presses.limit() - self.presses.count
        if not self.presses.limit():
            return ""
        return f"; press Ctrl+C {'again' if left <= 1 else f'{left} more times'} to force"

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a function in the loop, from any thread. This does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args, context=self.context)

    def _begun(self) -> None:
        self._has_begun = True
        # Iterate over a copy, because a thread with a different loop may start or stop waiting at any time.
        for wait in tuple(self._stop_waits):
            if not wait.done():
                wait.set_result(None)
        if self.notifier is not None:
            self.notifier.stopping(self.reason)
        # If the outer lifetime is also stopping, it ends this one as part of its own shutdown.
        if self.outer is None or self.outer.reason is Reason.NONE:
            # We do this after waking the code that waits for the shutdown, so that a `sleep` in the block is
            # interrupted rather than cancelled.
            self.loop.call_soon(self.loop.call_later, self.draining.delay(self.deadline.left_for_work), self.interrupt)

    @contextmanager
    def stop_awaited(self) -> Generator[asyncio.Future[None]]:
        """Provide a future that is done once the shutdown has begun."""
        wait: asyncio.Future[None] = self.loop.create_future()
        if self._has_begun:
            wait.set_result(None)
        self._stop_waits[wait] = None
        try:
            yield wait
        finally:
            del self._stop_waits[wait]

    async def wait_stopping(self) -> None:
        """Wait until the shutdown has begun."""
        with self.stop_awaited() as wait:
            await wait

    # -- running code ---------------------------------------------------------------------------------------

    @contextmanager
    def as_current(self) -> Generator[None]:
        """Make this the current lifetime of the running task."""
        token = current_life.set(self)
        self.context = contextvars.copy_context()
        disconnect = self.workers.connect(), self.draining.connect(), self.components.connect()
        if self.outer is None:
            _outermost.add(self)
        else:
            self.outer.inner.append(self)
        try:
            yield
        finally:
            self.close()
            _outermost.discard(self)
            for each in disconnect:
                each()
            if self.outer is not None:
                self.outer.inner.remove(self)
            # A framework may enter and exit the block in different contexts.
            with suppress(ValueError):
                current_life.reset(token)

    def is_here(self) -> bool:
        """Return True if the calling code is running under this lifetime, in its loop."""
        return self.is_current() and self.in_loop()

    def is_current(self) -> bool:
        """Return True if the calling code is running under this lifetime, in any thread."""
        return current_life.get(None) is self

    def in_loop(self) -> bool:
        """Return True if the calling thread is running the lifetime's loop."""
        return _running_loop() is self.loop

    def context_below(self) -> contextvars.Context:
        """Return a copy of the current context in which this lifetime is the current one.

        This is needed because `Lifetime.go` may be called outside the lifetime.
        """
        context = contextvars.copy_context()
        if context.get(current_life) is not self:
            context.run(current_life.set, self)
        return context

    def all_routers(self) -> tuple[RouterLike, ...]:
        """The routers running under this lifetime and the lifetimes inside it."""
        return (*self.draining.routers, *(router for inner in self.inner for router in inner.all_routers()))

    def routers_for(self, topic: str) -> tuple[RouterLike, ...]:
        """Return the routers among `all_routers` that have a specific route for ``topic``."""
        return tuple(router for router in self.all_routers() if has_route_for(router, topic))

    def captor(self) -> Captor:
        """Return the route that would receive a Ctrl+C."""
        if self.routers_for("signal/interrupt"):
            return Captor.SIGNAL
        handled = any(self.routers_for(event.topic) for event in (InterruptEvent, ClearLineEvent))
        return Captor.EVENT if handled else Captor.NONE

    @property
    def had_router(self) -> bool:
        """True if a router has run under this lifetime or is running under a lifetime inside it."""
        return self.draining.had_router or any(inner.had_router for inner in self.inner)

    def all_components(self) -> tuple[object, ...]:
        """See `Lifetime.components`."""
        return (*self.components(), *(each for inner in self.inner for each in inner.all_components()))

    def all_failures(self) -> tuple[tuple[str, BaseException], ...]:
        """The failures under this lifetime and the lifetimes inside it."""
        return (*self.failures.items(), *(each for inner in self.inner for each in inner.all_failures()))

    def close(self) -> None:
        """From now on, refuse new tasks and hooks, because they would never run."""
        self.over = True
        self.shutdown_hooks.close()
        self.flush_hooks.close()

    def state(self) -> LifetimeState:
        """See `Lifetime.state`."""
        captor = Captor.NONE if self.stopping else self.captor()
        return LifetimeState(
            reason=self.reason,
            signum=self.signum,
            stopping=self.reason is not Reason.NONE,
            signals=self.presses.count,
            force_exit_at=self.presses.limit(captor) if self.hears_signals else 0,
            tasks=self.background.names,
            tasks_started=self.background.started,
            tasks_crashed=self.background.crashed,
            hooks=len(self.shutdown_hooks),
            workers=self.workers.names,
            embedded=self.is_embedded and not self.stops_host(),
        )


def _nothing(_: object = None) -> None:
    return None


def _no() -> bool:
    return False


class _Components:
    """The open components that have a ``state()`` method, in the order in which hooks announced them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # The components by identity. A component may be opened several times, for different kinds of work, so we count
        # how often it is open.
        self._open: dict[int, tuple[object, int]] = {}

    def connect(self) -> Callable[[], None]:
        """Start collecting components, and return a function that stops the collection."""
        opening, closing = (
            (hooks.component_opened, hooks.router_started),
            (hooks.component_closed, hooks.router_stopped),
        )
        for hook in opening:
            hook.connect(self._opened)
        for hook in closing:
            hook.connect(self._closed)

        def disconnect() -> None:
            for hook in opening:
                hook.disconnect(self._opened)
            for hook in closing:
                hook.disconnect(self._closed)

        return disconnect

    def __call__(self) -> tuple[object, ...]:
        """The open components."""
        return tuple(component for component, _ in self._open.values())

    def _opened(self, sender: object, **_: object) -> None:
        """Add the sender, which is the opened component. A router is also the sender of its own hooks."""
        if self._life.is_here():
            times = self._open[id(sender)][1] if id(sender) in self._open else 0
            self._open[id(sender)] = sender, times + 1

    def _closed(self, sender: object, **_: object) -> None:
        """Remove the sender. A component opened under this lifetime may be closed by code outside it."""
        times = self._open.pop(id(sender))[1] if id(sender) in self._open else 1
        if times > 1:
            self._open[id(sender)] = sender, times - 1


# -- background tasks -------------------------------------------------------------------------------------------------


class _BackgroundTasks:
    """The tasks started by `go`. If one crashes, the error is reported, and everything else continues."""

    def __init__(self, life: Life) -> None:
        self._life = life
        #: The running tasks, with their start times in loop time.
        self.running: dict[asyncio.Task[Any], float] = {}
        self.started: int = 0
        self.crashed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the running tasks."""
        return tuple(sorted(task.get_name() for task in self.running))

    def start(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        on_error: Callable[[BaseException], object] | None,
        name: str | None,
    ) -> asyncio.Task[Any]:
        """Run ``fn(*args)`` in a new task. See `Lifetime.go`."""
        check_callable(fn)
        life, label = self._life, name or name_of(fn)
        if not life.in_loop():
            raise RuntimeError("go() starts a task, so it must be called from the thread of the lifetime's event loop")
        if life.over:
            raise RuntimeError("the lifetime is over; start background tasks before it ends")
        work = self._watch(label, fn, args, on_error)
        task = start_task(work, name=label, context=life.context_below())
        self.started += 1
        self.running[task] = life.loop.time()
        task.add_done_callback(self.running.pop)
        task.add_done_callback(_retrieve)
        return task

    async def cancel(self, timeout: float | None = None) -> None:
        """Cancel all tasks, including new ones, and wait for them.

        After ``timeout``, log the names of the tasks that are still running.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        asked: set[asyncio.Task[Any]] = set()
        while self.running:
            for task in self.running.keys() - asked:
                task.cancel()
            asked |= self.running.keys()
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(self.running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _log.warning("these background tasks did not end when they were cancelled: %s", ", ".join(self.names))
                return

    async def _watch(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        on_error: Callable[[BaseException], object] | None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        hooks.task_started.announce(self._life.lifetime, name=name)
        try:
            return await call_anywhere(fn, *args)
        except asyncio.CancelledError as error:
            if not was_cancelled():
                await self._report(name, error, on_error)
            raise
        except Interrupted:
            raise  # treat this like a cancellation, because the lifetime is stopping
        except Exception as error:
            if (router := as_router(getattr(fn, "__self__", None))) is not None:
                self._life.failures[getattr(router, "name", name)] = error
            await self._report(name, error, on_error)
            raise
        finally:
            hooks.task_finished.announce(self._life.lifetime, name=name, duration=loop.time() - began)

    async def _report(
        self, name: str, error: BaseException, on_error: Callable[[BaseException], object] | None
    ) -> None:
        self.crashed += 1
        _log.error("the background task %r failed: %r", name, error, exc_info=error)
        hooks.task_crashed.announce(self._life.lifetime, name=name, error=error)
        if on_error is None:
            return
        try:
            result = on_error(error)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001  # whatever user code raises here is logged
            _log.exception("on_error of the background task %r failed", name)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Prevent asyncio from logging an error that has already been reported."""
    if not task.cancelled():
        task.exception()


async def call_anywhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Call ``fn`` and return its result. A plain function runs in a thread, so that it does not block the loop.

    A thread cannot be cancelled. If the caller is cancelled, this waits until ``fn`` has returned, and then raises
    CancelledError, or the error that ``fn`` raised. If the thread has not started running ``fn`` yet, ``fn`` is not
    called.
    """
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    given_up = False

    def call() -> Any:
        try:
            return None if given_up else fn(*args)
        except StopIteration as error:
            # A future does not accept StopIteration, so we would wait forever. Coroutines also convert it to
            # RuntimeError.
            raise RuntimeError(f"{name_of(fn)} raised StopIteration") from error

    context = contextvars.copy_context()
    thread = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(call))
    try:
        await asyncio.wait({thread})
    except asyncio.CancelledError:
        given_up = True
        result = await shield(thread)
        if inspect.iscoroutine(result):
            result.close()
        raise
    result = thread.result()
    return await result if inspect.isawaitable(result) else result


def check_callable(fn: object) -> None:
    """Reject anything that is not a function. The message points out the likely mistake.

    Raises:
        TypeError: if ``fn`` is not a function. The message lists what is accepted.
    """
    if inspect.iscoroutine(fn):
        fn.close()
        raise TypeError(f"{fn!r} is a coroutine; pass the function, followed by its arguments")
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be called; pass an async or plain function, followed by its arguments")
