"""The steps of the shutdown: drain routers, stop workers and run hooks.

The steps run in this order and share one deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import math
from collections.abc import Callable
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakSet

from lifecycle import hooks
from lifecycle._async import shield, start_task
from lifecycle._util import name_of, reason_of
from lifecycle.runtime.force import Alarm, dump_stacks, force_exit
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lifecycle.events import Topical
    from lifecycle.runtime.lifetimes import Life

__all__ = [
    "Deadline",
    "Drainable",
    "Draining",
    "Hook",
    "MainLike",
    "RouterLike",
    "ShutdownHooks",
    "StartedWorkers",
    "as_router",
    "conclude",
    "has_route_for",
    "starter",
    "stop_worker",
]

_log = logging.getLogger("lifecycle.runtime")


class MainLike(Protocol):
    """The part of a main that the shutdown uses."""

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that runs the main."""
        ...

    async def stop(self, left: Callable[[], float]) -> None:
        """Ask the main to stop, and wait for up to ``left()`` seconds."""
        ...

    async def over(self) -> None:
        """Wait until the main has ended."""
        ...


async def conclude(life: Life, mains: Sequence[MainLike] = ()) -> None:
    """Run the shutdown, even if the caller is cancelled. In that case, raise CancelledError at the end.

    First, routers are drained. Then mains are stopped, the last one first, each followed by the workers that it
    started. Background tasks are cancelled and awaited. Finally, the shutdown hooks run, and metrics are sent. If a
    part does not end in time, its name is logged and the shutdown continues, so the hooks always run. At the end, the
    shutdown waits for such parts until the process is forced to exit.
    """
    work = _conclude(life, mains)
    # A framework may enter and exit a block in different contexts.
    await shield(start_task(work, name="lifecycle shutdown", context=life.context))


async def _conclude(life: Life, mains: Sequence[MainLike]) -> None:
    # Code waiting for the shutdown is woken before any task is cancelled. It takes one iteration of the loop to wake
    # up.
    await life.wait_stopping()
    await asyncio.sleep(0)
    await life.draining.drain(life.deadline.left_for_work)
    for main in reversed(mains):
        if main in life.draining.leaving:
            # Its `async with` blocks end by themselves. A cancellation would cut short what they wait for.
            await asyncio.wait({main.task}, timeout=life.deadline.left_for_work() / 2)
        await main.stop(life.deadline.left_for_work)
        await life.workers.stop(main, life.deadline.left_for_work)
    await life.workers.stop(None, life.deadline.left_for_work)
    in_time = life.deadline.expect_end()
    await life.background.cancel(life.deadline.left_for_work())
    await life.shutdown_hooks.run(life.deadline.left)
    life.close()
    await life.flush_hooks.run(life.deadline.left)
    for main in mains:
        await main.over()
    await life.background.cancel()
    in_time()


# -- deadline ---------------------------------------------------------------------------------------------------------


class Deadline:
    """The deadline for the whole shutdown. It works even if the loop is blocked, and limits every other timeout."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # When to force an exit, in loop time.
        self._at = math.inf
        self._alarms: list[Alarm] = []
        # Ensures that the stacks are dumped only once, either by the loop or, if the loop is blocked, by the alarm.
        self._dumps = itertools.count()

    def set(self) -> None:
        """Start the clock. It is safe to call this from any thread and in signal handlers."""
        self._at = self._life.loop.time() + self._life.settings.exit_timeout
        self._alarms.append(Alarm(self._life.settings.exit_timeout, self._force))

    def left(self) -> float:
        """Return the number of seconds until the process is forced to exit."""
        return max(0.0, self._at - self._life.loop.time())

    def left_for_work(self) -> float:
        """Return the number of seconds left for routers, mains, workers and tasks.

        A fifth of the total is reserved for hooks.
        """
        whole = self._life.settings.exit_timeout
        return math.inf if math.isinf(whole) else max(0.0, self.left() - whole / 5)

    def expect_end(self) -> Callable[[], None]:
        """Dump stacks if the rest of the shutdown exceeds ``shutdown_timeout``.

        The returned function cancels the timer in the loop. The alarm stays set until `close` is called.
        """
        seconds = self._life.settings.shutdown_timeout
        timer = self._life.loop.call_later(seconds, self._dump)
        # An alarm works even while the loop is blocked, and after the loop has ended while its threads are still
        # running.
        self._alarms.append(Alarm(seconds, self._dump))
        return timer.cancel

    def close(self) -> None:
        """Cancel all alarms. Called when the lifetime has ended."""
        while self._alarms:
            self._alarms.pop().cancel()

    def _dump(self) -> None:
        if next(self._dumps) == 0:
            seconds = self._life.settings.shutdown_timeout
            dump_stacks(self._life.loop, f"not stopped after {seconds:g} s; still running:")

    def _force(self) -> None:
        reason = f"not stopped within {self._life.settings.exit_timeout:g} s"
        force_exit(signal_registry(), self._life.lifetime, reason)


# -- routers, and other components that drain -------------------------------------------------------------------------


class Drainable(Protocol):
    """A component that can be stopped: ``run`` returns after `stop` has been called."""

    async def run(self) -> object:
        """Run until `stop` is called."""
        ...

    def stop(self) -> None:
        """Ask `run` to drain and return."""
        ...


class RouterLike(Drainable, Protocol):
    """The part of a router that the runtime uses."""

    def explain(self, topic: str) -> Sequence[Any]:
        """Return the routes for ``topic``. Each has a ``pattern``, and ``also`` is true if it takes no events."""
        ...

    def emit_nowait(self, event: Topical) -> object:
        """Send ``event``."""
        ...

    def state(self) -> Any:
        """The router's state, which is ``running`` once all sources have started."""
        ...


def has_route_for(router: RouterLike, topic: str) -> bool:
    """Return whether ``router`` has a specific route that takes events with this ``topic``.

    Routes such as ``**`` and observers (`Router.also`) are ignored, because a logger must not block Ctrl+C.
    """
    kind = f"{topic.partition('/')[0]}/"
    try:
        return any(not info.also and str(info.pattern).startswith(kind) for info in router.explain(topic))
    except Exception:  # noqa: BLE001  # this runs in a signal handler, so an error must not stop Ctrl+C
        return False


def as_router(thing: Any) -> RouterLike | None:
    """Return ``thing`` if it has the methods of a router."""
    shaped = all(callable(getattr(thing, name, None)) for name in ("explain", "emit_nowait", "run", "state", "stop"))
    return thing if shaped and not inspect.isclass(thing) else None


class Draining:
    """Drains mains that support it, and every router that `hooks.router_started` has announced."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # The components that are running. Each future is done once its component has ended.
        self._running: dict[asyncio.Future[Any], Drainable] = {}
        #: The mains that run a router in their own task. When it is drained, they continue to their end.
        self.leaving: set[object] = set()
        #: Whether a router has ever run.
        self.had_router: bool = False
        # The requested delays in seconds.
        self._delays: list[float] = []
        # When the delay ends, in loop time. None before the shutdown begins.
        self._until: float | None = None

    def connect(self) -> Callable[[], None]:
        """Track routers as they start. Return a function that stops the tracking."""
        hooks.router_started.connect(self._router_started)
        return lambda: hooks.router_started.disconnect(self._router_started)

    def add(self, drainable: Drainable, ended: asyncio.Future[Any]) -> None:
        """Drain the component at the start of a shutdown. A router also receives signals until ``ended`` is done."""
        self._running[ended] = drainable
        self.had_router |= as_router(drainable) is not None
        ended.add_done_callback(self._running.pop)

    @property
    def routers(self) -> tuple[RouterLike, ...]:
        """The running routers."""
        return tuple(router for each in tuple(self._running.values()) if (router := as_router(each)))

    @contextmanager
    def delayed(self, seconds: float) -> Generator[None]:
        """During the block, delay any shutdown by ``seconds``, for example until a load balancer has noticed it."""
        self._delays.append(seconds)
        try:
            yield
        finally:
            self._delays.remove(seconds)

    def delay(self, left: Callable[[], float]) -> float:
        """Return how many seconds the program continues unchanged after the shutdown begins, at most ``left()``."""
        # A program that has never been ready needs no delay.
        if not self._delays or not self._life.is_up:
            return 0.0
        now = self._life.loop.time()
        if self._until is None:
            self._until = now + max(self._delays)
        return min(max(0.0, self._until - now), left())

    async def drain(self, left: Callable[[], float]) -> None:
        """Drain all components after the longest delay: stop sources, flush debounced events, and empty lanes."""
        if (delay := self.delay(left)) > 0:
            await asyncio.sleep(delay)
        running = dict(reversed(tuple(self._running.items())))
        for drainable in running.values():
            drainable.stop()
        if not running:
            return
        _, stuck = await asyncio.wait(running, timeout=left())
        for ended in stuck:
            _log.warning("%r has not drained in time and is being cancelled", running[ended])
            ended.cancel()

    def _router_started(self, _sender: object, *, router: Any, **_: object) -> None:
        if not self._life.is_here() or any(each is router for each in self._running.values()):
            return
        # We don't use the task that runs the router, because it may have more to do afterwards.
        ended: asyncio.Future[Any] = self._life.loop.create_future()
        self.add(router, ended)
        main = starter.get()
        if getattr(main, "task", None) is asyncio.current_task():
            self.leaving.add(main)

        def stopped(_sender: object, **_: object) -> None:
            hooks.router_stopped.disconnect(stopped)
            if not self._life.stopping:
                self.leaving.discard(main)
            if not ended.done():
                ended.set_result(None)

        hooks.router_stopped.connect(stopped, sender=router)


# -- workers ----------------------------------------------------------------------------------------------------------

_FINAL = frozenset({"stopped", "finished", "failed", "killed"})

#: The time limit, in seconds, for a killed worker to exit.
_KILL_GRACE = 2.0

#: The current main. The workers that a main starts are stopped right after that main.
starter: ContextVar[object] = ContextVar("lifecycle_starter", default=None)


class _Stoppable(Protocol):
    """The part of a worker that the shutdown uses."""

    @property
    def name(self) -> str:
        """The name for messages."""
        ...

    @property
    def status(self) -> str:
        """One of the ten worker states."""
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """Stop the worker, and wait until it has ended. If calls overlap, the shortest timeout applies."""
        ...


class StartedWorkers:
    """The workers started under a lifetime, in the order in which `hooks.worker_started` announced them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._workers: list[tuple[_Stoppable, object]] = []
        # Once there are this many workers, those that have ended are removed. This is twice the number that remained
        # after the last removal.
        self._crowded = 16
        # The workers started by a main or by the block itself, rather than by a handler or a background task. If
        # one of them fails, the program is not healthy.
        self._own: WeakSet[Any] = WeakSet()

    def connect(self) -> Callable[[], None]:
        """Track workers as they start. Return a function that stops the tracking."""
        receivers: dict[hooks.Hook, Callable[..., None]] = {
            hooks.worker_started: self._adopt,
            hooks.component_opened: self._opened,
            hooks.worker_failed: self._failed,
            hooks.worker_killed: self._failed,
        }
        for hook, receive in receivers.items():
            hook.connect(receive)

        def disconnect() -> None:
            for hook, receive in receivers.items():
                hook.disconnect(receive)

        return disconnect

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the workers that have not ended."""
        return tuple(worker.name for worker, _ in self._workers if not _is_over(worker))

    async def stop(self, started_by: object, left: Callable[[], float]) -> None:
        """Stop the workers started by this main, the last one first.

        If ``started_by`` is None, stop all remaining workers.
        """
        mine = [worker for worker, by in self._workers if started_by is None or by is started_by]
        supervised = self._supervised()
        for worker in reversed(mine):
            # A supervisor stops its own children, and would restart a child that something else stopped.
            if not _is_over(worker) and worker not in supervised:
                await stop_worker(worker, left)

    def _adopt(self, _sender: object, *, worker: Any, **_: object) -> None:
        if not self._life.is_current():
            return
        if worker in self._own:
            self._life.failures.pop(worker.name, None)
        if len(self._workers) >= self._crowded:
            self._workers = [each for each in self._workers if not _is_over(each[0])]
            self._crowded = max(16, 2 * len(self._workers))
        if all(each is not worker for each, _ in self._workers):
            self._workers.append((worker, starter.get()))

    def _opened(self, sender: Any, **_: object) -> None:
        if getattr(starter.get(), "worker", None) is sender or not hasattr(sender, "wait"):
            return  # the sender is not a worker, or its failure is handled by `run` or `lifetime`
        if self._life.is_here() and asyncio.current_task() in self._life.own_tasks:
            self._own.add(sender)

    def _failed(self, _sender: object, *, worker: Any, exit: Any, **_: object) -> None:  # noqa: A002  # of the hook
        if worker not in self._own or self._life.stopping:
            return
        self._life.failures[worker.name] = exit.error
        if self._life.is_embedded:
            _log.error("worker %r %s: %s", worker.name, exit.status, reason_of(exit.error))
            if callable(getattr(worker, "workers", None)):
                self._life.supervisor_failed(exit.error)

    def _supervised(self) -> list[object]:
        children: list[object] = []
        for worker, _ in self._workers:
            supervisor: Any = worker
            if callable(getattr(supervisor, "workers", None)) and not _is_over(worker):
                for state in supervisor.workers():
                    # A child that is about to be restarted has no worker yet.
                    with suppress(KeyError):
                        children.append(supervisor[state.name])
        return children


def _is_over(worker: _Stoppable) -> bool:
    return str(worker.status) in _FINAL


async def stop_worker(worker: _Stoppable, left: Callable[[], float]) -> None:
    """Stop the worker within its own grace period, limited to the time left for the shutdown. Log errors."""
    calls = [start_task(worker.stop())]
    await asyncio.wait(calls, timeout=left())
    if not calls[0].done():
        _log.warning("there is no time left for worker %r to stop by itself, so it is being killed", worker.name)
        calls.append(start_task(worker.stop(0)))
        _, stuck = await asyncio.wait(calls, timeout=_KILL_GRACE)
        for call in stuck:
            call.cancel()
    try:
        await asyncio.gather(*calls)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the other workers must stop in any case
        _log.error("worker %r could not be stopped: %r", worker.name, error, exc_info=error)


# -- hooks ------------------------------------------------------------------------------------------------------------


class _Runnable(Protocol):
    """An object with an async or plain ``run`` method that cleans up."""

    def run(self) -> object:
        """Clean up."""
        ...


#: A shutdown hook: an async or plain function without arguments, or an object whose ``run`` method is such a function.
Hook: TypeAlias = Callable[[], object] | _Runnable


class ShutdownHooks:
    """The hooks of one lifetime.

    Each runs once, in reverse order. If one raises an error, the others are not affected.
    """

    def __init__(self, sender: object, patience: float, *, cut: bool = False) -> None:
        self._sender = sender
        # If a hook is still running after this many seconds, its name is logged. If ``cut`` is true, it is cancelled.
        self._patience, self._cut = patience, cut
        self._hooks: list[tuple[str, Callable[[], object]]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: Hook) -> None:
        """Run ``hook`` before the hooks that were added earlier.

        Raises:
            RuntimeError: if the hooks have already run.
            TypeError: if the hook cannot be called.
        """
        if self._closed:
            raise RuntimeError(f"the shutdown hooks have run; it is too late to add {hook!r}")
        given: Any = hook
        call = given if callable(given) else getattr(given, "run", None)
        if not callable(call):
            raise TypeError(f"a shutdown hook must be a function without arguments, async or plain, got {hook!r}")
        self._hooks.append((name_of(call), call))

    def discard(self, hook: Callable[[], object]) -> None:
        """Remove ``hook`` if it has not run yet."""
        self._hooks = [each for each in self._hooks if each[1] != hook]

    def close(self) -> None:
        """From now on, refuse new hooks, because they would never run."""
        self._closed = True

    async def run(self, left: Callable[[], float]) -> None:
        """Run all hooks, including any added in the meantime.

        ``left`` returns the number of seconds left for the shutdown.
        """
        while self._hooks:
            name, call = self._hooks.pop()
            await self._run_one(name, call, min(self._patience, left()))

    async def _run_one(self, name: str, call: Callable[[], object], patience: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure: BaseException | None = None
        slow = _SlowHook(name, patience)
        timer = loop.call_later(patience, slow.warn)
        try:
            async with asyncio.timeout(patience if self._cut else None):
                result = call()
                if inspect.isawaitable(result):
                    await result
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the error is logged and announced
            failure = error
            _log.error("the shutdown hook %s failed: %r", name, error, exc_info=error)
        duration = loop.time() - began
        timer.cancel()
        if duration > patience:  # the hook blocked the loop, so the timer could not fire
            slow.warn()
        hooks.hook_finished.announce(self._sender, hook=name, duration=duration, error=failure)


class _SlowHook:
    """Warns once about a slow hook."""

    def __init__(self, name: str, patience: float) -> None:
        self._name, self._patience, self._warned = name, patience, False

    def warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the shutdown hook %s is taking more than %.1f s", self._name, self._patience)
