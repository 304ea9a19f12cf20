"""`Lifetime`: what belongs to a program, why it stops, and the order in which its parts stop.

``parts`` and ``mains`` contain what can be in its list, and ``receiving`` lets it receive signals. The functions here
use the current lifetime.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from lifecycle import hooks
from lifecycle._async import check_callable, shield, start_task
from lifecycle._owners import Part, current_owner, outermost_lifetimes
from lifecycle._util import name_of, reason_of
from lifecycle.events.base import ClearLineEvent, InterruptEvent
from lifecycle.runtime.force import Deadline, force_exit, tell_terminal
from lifecycle.runtime.parts import (
    ComponentPart,
    Delay,
    FlushHook,
    OwnedPart,
    RouterPart,
    ShutdownHook,
    Stage,
    TaskPart,
    WorkerPart,
    has_route_for,
)
from lifecycle.runtime.presses import Captor, Presses
from lifecycle.runtime.settings import Reason
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol

    from lifecycle.runtime.health import Health
    from lifecycle.runtime.parts import AnyHook, RouterLike
    from lifecycle.runtime.records import LifetimeState
    from lifecycle.runtime.settings import Settings

    class _Notifier(Protocol):
        """The part of a service manager's notifier that a lifetime uses."""

        def ready(self) -> None: ...

        def reloading(self) -> AbstractContextManager[None]: ...

        def stopping(self, reason: Reason) -> None: ...


__all__ = [
    "Host",
    "Lifetime",
    "Part",
    "current",
    "current_lifetime",
    "on_shutdown",
    "shutdown",
]

_H = TypeVar("_H", bound="AnyHook")
_T = TypeVar("_T")
_P = TypeVar("_P", bound=OwnedPart)

_log = logging.getLogger("lifecycle.runtime")

#: The topics whose routes determine the effect of a signal.
_SIGNALS: Final = ("signal/interrupt", "signal/hangup", InterruptEvent.topic, ClearLineEvent.topic)


class Host:
    """The code around a lifetime. By default, there is nothing else in the event loop."""

    #: True if another program runs the event loop and receives the signals.
    is_embedding: bool = False

    def interrupt(self) -> None:
        """Called in the loop once the shutdown has begun and the program need not continue."""

    def stops(self) -> bool:
        """Return whether the shutdown of the lifetime also stops the host."""
        return False

    def supervisor_failed(self, error: BaseException) -> None:
        """Called when a supervisor has failed in the block itself."""


class Lifetime:
    """A program's lifetime: the reason for its shutdown, its background tasks, and its shutdown hooks.

    `run` and `lifetime` create it, and `current` returns it.
    """

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        outer: Lifetime | None = None,
        host: Host | None = None,
    ) -> None:
        self.settings: Final = settings
        self.loop: Final = loop
        self.outer: Final = outer
        self.host: Final = host or Host()
        #: Lifetimes inside this one. They begin to shut down together with it.
        self.inner: list[Lifetime] = []
        #: True if signals reach this lifetime through the outer lifetime, which counts them for both.
        self.is_governed: bool = outer is not None and outer.hears_signals
        #: True if signals reach this lifetime, directly or through an outer one.
        self.hears_signals: bool = self.is_governed
        own = Presses(settings.force_exit, settings.cancel_on_interrupt, settings.reset_after)
        self.presses: Presses = outer.presses if outer and self.is_governed else own
        self.deadline: Final = Deadline(loop, settings.exit_timeout, settings.shutdown_timeout, self._force)
        # The parts of the program, oldest first. The shutdown stops them in the reverse order, stage by stage.
        self._parts: dict[Stage, dict[OwnedPart, None]] = {stage: {} for stage in Stage}
        self._numbers = itertools.count()
        #: The errors of failed components by name: mains, routers, and workers started by the mains or the block.
        self.failures: Final[dict[str, BaseException]] = {}
        #: The topics of signals and key presses that a running router takes.
        self.captured: frozenset[str] = frozenset()
        # The callback that finds them again, because routes have changed.
        self._recount: asyncio.Handle | None = None
        #: True if a router has run under this lifetime or one inside it.
        self.had_router: bool = False
        #: The task of the block, if this lifetime belongs to one.
        self.task: asyncio.Task[Any] | None = None
        #: Notifies systemd, if systemd runs the program.
        self.notifier: _Notifier | None = None
        #: True once all mains have started.
        self.is_up: bool = False
        #: The first cause of the shutdown, or `Reason.NONE`.
        self.reason: Reason = Reason.NONE
        #: The signal that caused the shutdown, or None.
        self.signum: int | None = None
        #: When the lifetime started, in seconds since the epoch.
        self.started_at: float = time.time()
        # One future for each caller that is waiting for the shutdown, oldest first.
        self._stop_waits: dict[asyncio.Future[None], None] = {}
        self._has_begun = False
        # Each cause takes the next number, and the cause that gets 0 is the first cause. Taking a number is atomic and
        # needs no lock.
        self._causes = itertools.count()
        # When the delay before the shutdown ends, in loop time. None before the shutdown begins.
        self._delayed_until: float | None = None
        self._tasks_started = self._tasks_crashed = 0
        #: True once it is too late to add tasks and hooks.
        self.over: bool = False
        #: The context in which the lifetime calls functions.
        self.context: contextvars.Context = contextvars.copy_context()

    def __repr__(self) -> str:
        return f"<Lifetime: {f'stopping, {self.reason}' if self.stopping else 'running'}>"

    @property
    def lifetime(self) -> Lifetime:
        """This lifetime, which is an owner like its mains."""
        return self

    # -- the public part ------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """True if the shutdown has begun."""
        return self.reason is not Reason.NONE

    @property
    def ready(self) -> bool:
        """True if every main and every router under this lifetime has started, and the shutdown has not begun."""
        if not self.is_up or self.stopping or (self.outer is not None and not self.outer.ready):
            return False
        return all(router.state().running for router in self._own_routers())

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
        self.begin(Reason(reason))

    async def wait_stopping(self) -> Reason:
        """Wait until the shutdown begins, and return the reason."""
        with self.stop_awaited() as wait:
            await wait
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
        self._refuse_late_hook(hook)
        self.own(ShutdownHook(self, hook, self.settings.hook_timeout))
        return hook

    def on_flush(self, hook: _H) -> _H:
        """Run ``hook`` after the shutdown hooks, to send metrics and records. This can be used as a decorator.

        Unlike a hook registered with `on_shutdown`, this hook is cancelled if it exceeds ``hook_timeout`` or the time
        left for the shutdown. Exiting on time is more important than sending metrics.

        Raises:
            RuntimeError: if the shutdown hooks have already run.
        """
        self.own_flush(hook)
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
        check_callable(fn)
        if not self.in_loop():
            raise RuntimeError("go() starts a task, so it must be called from the thread of the lifetime's event loop")
        if self.over:
            raise RuntimeError("the lifetime is over; start background tasks before it ends")
        part = TaskPart(self, fn, on_error, name or name_of(fn))
        part.task = start_task(part.run(args), name=part.name, context=self._context_below())
        part.task.add_done_callback(lambda task: self._task_ended(part, task))
        self._tasks_started += 1
        self.own(part)
        return part.task

    def reset_signals(self) -> None:
        """Start counting signals from zero again, for example because the user has resumed the program."""
        self.presses.reset()

    def components(self) -> tuple[object, ...]:
        """Return the components that have a ``state()`` method under this lifetime and the lifetimes inside it.

        These are the running routers, the workers that are not run by a supervisor or pool, stores, and what `add` was
        called with. They are listed in the order in which they started.
        """
        parts = sorted((part for each in Stage for part in tuple(self._parts[each])), key=lambda part: part.number)
        found = {id(part.component): part.component for part in parts if part.component is not None}
        return (*found.values(), *(each for inner in self.inner for each in inner.components()))

    def add(self, component: object) -> Part:
        """Add ``component`` to `components`, until `Part.end` of the returned part is called.

        If ``component`` is a `Part`, the shutdown stops it, together with the workers that no main has started.

        Raises:
            RuntimeError: if called from a thread other than the loop's.
        """
        if not self.in_loop():
            raise RuntimeError("add() must be called from the thread of the lifetime's event loop")
        return self.own(_Added(self, component))

    def state(self) -> LifetimeState:
        """Return the current state."""
        from lifecycle.runtime.records import LifetimeState  # loaded only when the state is read

        captor = Captor.NONE if self.stopping else self._captor(self._find_captured())
        return LifetimeState(
            reason=self.reason,
            signum=self.signum,
            stopping=self.stopping,
            signals=self.presses.count,
            force_exit_at=self.presses.limit(captor) if self.hears_signals else 0,
            tasks=tuple(sorted(each.name for each in self._of(TaskPart))),
            tasks_started=self._tasks_started,
            tasks_crashed=self._tasks_crashed,
            hooks=len(self._parts[Stage.HOOKS]),
            workers=tuple(name for each in self._of(WorkerPart) for name in each.names()),
            embedded=self.host.is_embedding and not self.host.stops(),
        )

    def health(self) -> Health:
        """Return the program's health, for use in an endpoint of any web framework.

        It covers mains, routers, supervisors with their children, and workers that the mains or the block started
        themselves. A worker that has failed makes the program unhealthy until a worker with the same name is started.
        """
        from lifecycle.runtime.health import health_of  # loaded only when the health is read

        return health_of(self)

    # -- the list -------------------------------------------------------------------------------------------------

    def own(self, part: _P) -> _P:
        """Add ``part`` to the list. This is where everything that a program has to stop is noted."""
        part.number = next(self._numbers)
        self._parts[part.stage][part] = None
        return part

    def remove(self, part: OwnedPart) -> None:
        """Remove ``part`` from the list, because it has ended."""
        self._parts[part.stage].pop(part, None)

    def own_flush(self, hook: AnyHook) -> Part:
        """See `on_flush`. The part can be removed from the list."""
        self._refuse_late_hook(hook)
        return self.own(FlushHook(self, hook, self.settings.hook_timeout))

    def own_delay(self, seconds: float) -> Part:
        """Delay any shutdown by ``seconds``, for example until a load balancer has noticed it."""
        return self.own(Delay(self, seconds))

    def own_component(self, component: object) -> Part:
        """See `lifecycle._owners.Owner`. A component of another thread is not listed."""
        return self.own(ComponentPart(self, component)) if self.in_loop() else Part()

    def own_router(self, router: Any, started_by: OwnedPart | None = None) -> Part:
        """See `lifecycle._owners.Owner`."""
        if not self.in_loop():
            return Part()
        part = self.own(RouterPart(self, router, self.loop.create_future()))
        part.started_by = started_by
        part.runs(router)
        for each in self._of(TaskPart):
            if each.task is asyncio.current_task():
                each.router = str(router.name)
        return part

    def own_worker(self, worker: Any, started_by: OwnedPart | None = None, *, matters: bool | None = None) -> Part:
        """See `lifecycle._owners.Owner`. By default, the worker matters to the health if the block has started it."""
        if not self.in_loop():
            return Part()
        if matters is None:
            matters = self.task is not None and asyncio.current_task() is self.task
        if matters:
            self.failures.pop(worker.name, None)
        return self.own(WorkerPart(self, worker, started_by, matters=matters))

    def worker_failed(self, worker: Any, error: BaseException) -> None:
        """Record the failure of a worker without which the program is not healthy."""
        self.failures[worker.name] = error
        if self.host.is_embedding:
            _log.error("worker %r %s: %s", worker.name, worker.status, reason_of(error))
            if worker.kind == "supervisor":
                self.host.supervisor_failed(error)

    def all_failures(self) -> tuple[tuple[str, BaseException], ...]:
        """The failures under this lifetime and the lifetimes inside it."""
        return (*self.failures.items(), *(each for inner in self.inner for each in inner.all_failures()))

    def task_starts(self) -> dict[asyncio.Task[Any], float]:
        """Return the tasks started by `go` here and in the lifetimes inside, with their start times in loop time."""
        own = {each.task: each.began for each in self._of(TaskPart)}
        return own | {task: at for inner in self.inner for task, at in inner.task_starts().items()}

    def _of(self, kind: type[_P]) -> list[_P]:
        return [part for part in tuple(self._parts[kind.stage]) if isinstance(part, kind)]

    def _backwards(self, stage: Stage, started_by: OwnedPart | None = None) -> Iterator[OwnedPart]:
        """Yield the parts of ``stage``, the newest first, including those that are added meanwhile."""
        seen: set[OwnedPart] = set()
        while True:
            found = (part for part in reversed(self._parts[stage]) if part not in seen)
            part = next((each for each in found if started_by is None or each.started_by is started_by), None)
            if part is None:
                return
            seen.add(part)
            yield part

    def _refuse_late_hook(self, hook: object) -> None:
        if self.over:
            raise RuntimeError(f"the shutdown hooks have run; it is too late to add {hook!r}")

    def _task_ended(self, part: TaskPart, task: asyncio.Task[Any]) -> None:
        part.end()
        if not task.cancelled():
            task.exception()  # it has been reported, so asyncio must not log it
        if part.error is not None:
            self._tasks_crashed += 1
            if part.router is not None:
                self.failures[part.router] = part.error

    # -- signals --------------------------------------------------------------------------------------------------

    def all_routers(self) -> tuple[RouterLike, ...]:
        """The routers running under this lifetime and the lifetimes inside it."""
        return (*self._own_routers(), *(router for inner in self.inner for router in inner.all_routers()))

    def _own_routers(self) -> list[RouterLike]:
        return [part.router for part in self._of(RouterPart) if part.router is not None]

    def routers_for(self, topic: str) -> tuple[RouterLike, ...]:
        """Return the routers among `all_routers` that have a specific route for ``topic``."""
        return tuple(router for router in self.all_routers() if has_route_for(router, topic))

    def captor(self) -> Captor:
        """Return the route that would receive a Ctrl+C. This is quick enough for a signal handler."""
        return self._captor(self.captured)

    def routes_changed(self) -> None:
        """Find out in the loop which signals the routers take, because no routes are matched in a signal handler."""
        if self._recount is None:
            with suppress(RuntimeError):  # the loop is closed
                self._recount = self.loop.call_soon_threadsafe(self._count_routes)

    def _count_routes(self) -> None:
        self._recount = None
        self.captured = self._find_captured()
        self.had_router |= bool(self.all_routers())
        if self.outer is not None:
            self.outer.routes_changed()

    def _find_captured(self) -> frozenset[str]:
        routers = self.all_routers()
        return frozenset(topic for topic in _SIGNALS if any(has_route_for(each, topic) for each in routers))

    @staticmethod
    def _captor(captured: frozenset[str]) -> Captor:
        if "signal/interrupt" in captured:
            return Captor.SIGNAL
        return Captor.EVENT if captured & {InterruptEvent.topic, ClearLineEvent.topic} else Captor.NONE

    def next_step(self) -> str:
        """Return the part of a message that explains how to force an exit, or "" if that is impossible."""
        left = self.presses.limit() - self.presses.count
        if not self.presses.limit():
            return ""
        return f"; press Ctrl+C {'again' if left <= 1 else f'{left} more times'} to force"

    def _force(self, reason: str) -> None:
        force_exit(signal_registry(), self, reason)

    # -- the shutdown ---------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Record that all mains have started."""
        self.is_up = True
        if self.notifier is not None:
            self.notifier.ready()

    def begin(self, reason: Reason, signum: int | None = None) -> None:
        """Begin the shutdown, unless it has already begun. You can call this from any thread and in signal handlers."""
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

    def _begun(self) -> None:
        self._has_begun = True
        # Iterate over a copy, because a thread with a different loop may start or stop waiting at any time.
        for wait in tuple(self._stop_waits):
            if not wait.done():
                wait.set_result(None)
        if self.notifier is not None:
            self.notifier.stopping(self.reason)
        # If the outer lifetime is also stopping, it ends this one as part of its own shutdown.
        if self.outer is None or not self.outer.stopping:
            # We do this after waking the code that waits for the shutdown, so that a `sleep` in the block is
            # interrupted rather than cancelled.
            self.loop.call_soon(self.loop.call_later, self._delay(), self.host.interrupt)

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

    async def conclude(self) -> None:
        """Run the shutdown, even if the caller is cancelled. In that case, raise CancelledError at the end.

        If a part does not end in time, its name is logged and the shutdown continues, so the hooks always run. At the
        end, the shutdown waits for such parts until the process is forced to exit.
        """
        # A framework may enter and exit a block in different contexts.
        await shield(start_task(self._conclude(), name="lifecycle shutdown", context=self.context))

    async def _conclude(self) -> None:
        # Code waiting for the shutdown is woken before any task is cancelled. It takes one iteration of the loop to
        # wake up.
        await self.wait_stopping()
        await asyncio.sleep(0)
        left = self.deadline.left_for_work
        await self._drain(left)
        for main in self._backwards(Stage.MAINS):
            await main.stop(left)
            for worker in self._backwards(Stage.WORKERS, started_by=main):
                await worker.stop(left)
        await self._stop(Stage.WORKERS, left)
        in_time = self.deadline.expect_end()
        await self._cancel_tasks(left())
        await self._stop(Stage.HOOKS, self.deadline.left)
        self.over = True
        await self._stop(Stage.FLUSH, self.deadline.left)
        for main in self._backwards(Stage.MAINS):
            await main.over()
        await self._cancel_tasks()
        # Whatever was started during the shutdown, for example by a hook, must not outlive it.
        await self._stop(Stage.WORKERS, self.deadline.left)
        in_time()

    async def _stop(self, stage: Stage, left: Callable[[], float]) -> None:
        for part in self._backwards(stage):
            await part.stop(left)

    def _delay(self) -> float:
        """Return for how many seconds the program continues unchanged after the shutdown has begun."""
        seconds = max((each.seconds for each in self._of(Delay)), default=0.0)
        # A program that has never been ready needs no delay.
        if not seconds or not self.is_up:
            return 0.0
        now = self.loop.time()
        if self._delayed_until is None:
            self._delayed_until = now + seconds
        return min(max(0.0, self._delayed_until - now), self.deadline.left_for_work())

    async def _drain(self, left: Callable[[], float]) -> None:
        """Drain all routers after the delay: stop sources, flush debounced events, and empty lanes."""
        if (delay := self._delay()) > 0:
            await asyncio.sleep(delay)
        draining = {part.ended: part for part in reversed(self._of(RouterPart))}
        for part in draining.values():
            part.ask()
        if draining:
            _, stuck = await asyncio.wait(draining, timeout=left())
            for ended in stuck:
                _log.warning("%r has not drained in time and is being cancelled", draining[ended])
                ended.cancel()

    async def _cancel_tasks(self, timeout: float | None = None) -> None:
        """Cancel all background tasks, including new ones, and wait for them.

        After ``timeout``, log the names of the tasks that are still running.
        """
        deadline = None if timeout is None else self.loop.time() + timeout
        asked: set[asyncio.Task[Any]] = set()
        while running := {each.task: each.name for each in reversed(self._of(TaskPart))}:
            for task in running.keys() - asked:
                task.cancel()
            asked |= running.keys()
            left = None if deadline is None else max(0.0, deadline - self.loop.time())
            done, _ = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                names = ", ".join(sorted(running.values()))
                _log.warning("these background tasks did not end when they were cancelled: %s", names)
                return

    # -- the running code -----------------------------------------------------------------------------------------

    @contextmanager
    def as_current(self) -> Generator[None]:
        """Make this the current lifetime of the running task."""
        token = current_owner.set(self)
        self.context = contextvars.copy_context()
        if self.outer is None:
            outermost_lifetimes.add(self)
        else:
            self.outer.inner.append(self)
        try:
            yield
        finally:
            self.over = True
            self.task = None
            for parts in self._parts.values():
                parts.clear()
            outermost_lifetimes.discard(self)
            if self.outer is not None:
                self.outer.inner.remove(self)
                self.outer.routes_changed()
            # A framework may enter and exit the block in different contexts.
            with suppress(ValueError):
                current_owner.reset(token)

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a function in the loop, from any thread. This does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args, context=self.context)

    def in_loop(self) -> bool:
        """Return True if the calling thread is running the lifetime's loop."""
        return _running_loop() is self.loop

    def _context_below(self) -> contextvars.Context:
        """Return a copy of the current context in which this lifetime is the current one.

        This is needed because `Lifetime.go` may be called outside the lifetime.
        """
        context = contextvars.copy_context()
        owner = context.get(current_owner)
        if owner is None or owner.lifetime is not self:
            context.run(current_owner.set, self)
        return context


class _Added(ComponentPart):
    """A component that the program has added, and announces."""

    stage = Stage.WORKERS

    def __init__(self, home: Lifetime, component: object) -> None:
        super().__init__(home, component)
        hooks.component_opened.announce(component, component=component)

    async def stop(self, left: Callable[[], float]) -> None:
        self.end()
        if not isinstance(self.component, Part):
            return
        try:
            async with asyncio.timeout(left()):
                await self.component.stop(left)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the other parts must stop in any case
            _log.error("%r could not be stopped: %r", self.component, error, exc_info=error)

    def end(self, error: BaseException | None = None) -> None:
        super().end(error)
        hooks.component_closed.announce(self.component, component=self.component)


# -- the current lifetime ---------------------------------------------------------------------------------------------


def current_lifetime() -> Lifetime | None:
    """Return the lifetime to which the running code belongs, or None if it is outside a lifetime."""
    owner = current_owner.get(None)
    return None if owner is None else owner.lifetime


def current() -> Lifetime:
    """Return the current lifetime.

    This works in all code called inside `run` or `lifetime`, including `asyncio.to_thread` threads.

    A web server handles requests in tasks outside the lifetime that its application has entered. In such a task, this
    function returns the only lifetime running in the event loop. In a thread without a loop, it returns the only
    lifetime in the process.

    Raises:
        LookupError: if called outside a lifetime, unless exactly one lifetime is running.
    """
    return current_lifetime() or _only_lifetime()


def _only_lifetime() -> Lifetime:
    """Return the only running lifetime, for a task that has not inherited one."""
    loop = _running_loop()
    lives: list[Lifetime] = [life for life in tuple(outermost_lifetimes) if loop is None or life.loop is loop]
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
