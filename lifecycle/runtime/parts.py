"""The parts of a lifetime, and how each of them stops: routers, workers, background tasks and shutdown hooks.

``mains`` contains the parts that a program starts itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lifecycle import hooks
from lifecycle._async import call_anywhere, start_task, was_cancelled
from lifecycle._owners import Part
from lifecycle._util import name_of
from lifecycle.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from lifecycle.events import Topical

    class _Home(Protocol):
        """The lifetime, as far as its parts need to know it."""

        @property
        def stopping(self) -> bool: ...

        def remove(self, part: OwnedPart) -> None: ...

        def routes_changed(self) -> None: ...

        def worker_failed(self, worker: Any, error: BaseException) -> None: ...

    class RouterLike(Protocol):
        """The part of a router that the runtime uses."""

        def stop(self) -> None:
            """Ask the router to drain, and then to stop."""
            ...

        def explain(self, topic: str) -> Sequence[Any]:
            """Return the routes for ``topic``. Each has a ``pattern``, and ``also`` is true if it takes no events."""
            ...

        def emit_nowait(self, event: Topical) -> object:
            """Send ``event``."""
            ...

        def state(self) -> Any:
            """The router's state, which is ``running`` once all sources have started."""
            ...

    class Stoppable(Protocol):
        """The part of a worker that the shutdown uses."""

        @property
        def name(self) -> str:
            """The name for messages."""
            ...

        async def stop(self, timeout: float | None = None) -> None:
            """Stop the worker, and wait until it has ended. If calls overlap, the shortest timeout applies."""
            ...

    class _Runnable(Protocol):
        """An object with an async or plain ``run`` method that cleans up."""

        def run(self) -> object:
            """Clean up."""
            ...


__all__ = [
    "AnyHook",
    "ComponentPart",
    "Delay",
    "FlushHook",
    "OwnedPart",
    "RouterPart",
    "ShutdownHook",
    "Stage",
    "TaskPart",
    "WorkerPart",
    "has_route_for",
    "stop_worker",
]

_log = logging.getLogger("lifecycle.runtime")


class Stage(Enum):
    """When the shutdown stops a part. The stages run in this order, and within a stage, the newest part stops first."""

    #: Routers drain, all of them at the same time.
    DRAIN = auto()
    #: Mains stop, each followed by the workers that it has started.
    MAINS = auto()
    #: All other workers stop.
    WORKERS = auto()
    #: Background tasks are cancelled, all of them at the same time.
    TASKS = auto()
    #: Shutdown hooks run.
    HOOKS = auto()
    #: Metrics and records are sent.
    FLUSH = auto()
    #: There is nothing to stop.
    NEVER = auto()


class OwnedPart(Part):
    """A part in the list of a lifetime, until it ends."""

    stage: ClassVar[Stage] = Stage.NEVER
    #: Counts the parts of a lifetime in the order in which they were added.
    number: int = 0
    #: The main that has started this part, if any.
    started_by: OwnedPart | None = None
    #: The object with a ``state()`` method, if any.
    component: object = None

    def __init__(self, home: _Home, component: object = None) -> None:
        self.home = home
        self.shows(component)

    def shows(self, component: object) -> None:
        """List ``component`` among the components of the lifetime."""
        self.component = component

    def end(self, error: BaseException | None = None) -> None:  # noqa: ARG002  # the signature of the base class
        """Remove the part from the list."""
        self.home.remove(self)

    async def over(self) -> None:
        """Wait until the part has ended, with no time limit."""


class ComponentPart(OwnedPart):
    """An object with a ``state()`` method, which is listed but not stopped."""


class Delay(OwnedPart):
    """Keeps the program working for a time after the shutdown has begun, until a load balancer has noticed it."""

    def __init__(self, home: _Home, seconds: float) -> None:
        super().__init__(home)
        self.seconds = seconds


# -- routers ----------------------------------------------------------------------------------------------------------


def has_route_for(router: RouterLike, topic: str) -> bool:
    """Return whether ``router`` has a specific route that takes events with this ``topic``.

    Routes such as ``**`` and observers (`Router.observe`) are ignored, because a logger must not block Ctrl+C.
    """
    kind = f"{topic.partition('/')[0]}/"
    return any(not info.also and str(info.pattern).startswith(kind) for info in router.explain(topic))


class RouterPart(OwnedPart):
    """A running router, or a main that is drained like one: ``stop()`` asks it to drain and then to end."""

    stage: ClassVar[Stage] = Stage.DRAIN

    def __init__(self, home: _Home, drained: Any, ended: asyncio.Future[Any]) -> None:
        super().__init__(home)
        self._drained = drained
        #: Done once the router has ended.
        self.ended = ended
        #: The router, if this is one and it is running.
        self.router: RouterLike | None = None
        #: True if the router has ended before the shutdown.
        self.ended_early: bool = False

    def __repr__(self) -> str:
        return repr(self._drained)

    def runs(self, router: RouterLike) -> None:
        """Record that ``router`` is running, so it receives signals."""
        self.router = router
        self.shows(router)
        self.home.routes_changed()

    def changed(self) -> None:
        """Note that the router has other routes."""
        self.home.routes_changed()

    def ask(self) -> None:
        """Ask the router to drain, and then to end."""
        self._drained.stop()

    def end(self, error: BaseException | None = None) -> None:
        """Record that the router has stopped. It receives no more signals."""
        super().end(error)
        self.router = None
        self.ended_early = not self.home.stopping
        self.home.routes_changed()
        if not self.ended.done() and not isinstance(self.ended, asyncio.Task):
            self.ended.set_result(None)


# -- workers ----------------------------------------------------------------------------------------------------------

_FINAL = frozenset({"stopped", "finished", "failed", "killed"})

#: The time limit, in seconds, for a killed worker to exit.
_KILL_GRACE = 2.0


class WorkerPart(OwnedPart):
    """A worker that has been started, until it ends."""

    stage: ClassVar[Stage] = Stage.WORKERS

    def __init__(self, home: _Home, worker: Any, started_by: OwnedPart | None, *, matters: bool) -> None:
        super().__init__(home, worker)
        self.worker: Any = worker
        self.started_by = started_by
        # True if the program is not healthy without this worker, because a main or the block has started it itself.
        self._matters = matters

    async def stop(self, left: Callable[[], float]) -> None:
        """Stop the worker, unless it is still starting. In that case, it ends together with the code that starts it."""
        if str(self.worker.status) not in ("starting", *_FINAL):
            await stop_worker(self.worker, left)
            self.home.remove(self)

    def names(self) -> list[str]:
        """Return the names of the worker's running children, and its own."""
        return _running(self.worker.state())

    def end(self, error: BaseException | None = None) -> None:
        """Record that the worker has ended."""
        super().end(error)
        if error is not None and self._matters and not self.home.stopping:
            self.home.worker_failed(self.worker, error)


def _running(state: Any) -> list[str]:
    below = [name for child in state.children for name in _running(child)]
    is_running = str(state.status) not in ("created", "pending", "starting", *_FINAL)
    return [*below, state.name] if is_running else below


async def stop_worker(worker: Stoppable, left: Callable[[], float]) -> None:
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


# -- background tasks -------------------------------------------------------------------------------------------------


class TaskPart(OwnedPart):
    """A background task. If its function fails, the error is reported, and everything else continues."""

    stage: ClassVar[Stage] = Stage.TASKS

    def __init__(
        self, home: _Home, fn: Callable[..., Any], on_error: Callable[[BaseException], object] | None, name: str
    ) -> None:
        super().__init__(home)
        self._fn, self._on_error = fn, on_error
        self.name = name
        #: When the task was started, in loop time.
        self.began: float = asyncio.get_running_loop().time()
        #: The error that the function raised.
        self.error: BaseException | None = None
        #: The name of the router that the task itself runs, if any.
        self.router: str | None = None
        self.task: asyncio.Task[Any]

    async def run(self, args: tuple[Any, ...]) -> Any:
        """Call the function, and report its error."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        hooks.task_started.announce(self.home, name=self.name)
        try:
            return await call_anywhere(self._fn, *args)
        except asyncio.CancelledError as error:
            if not was_cancelled():
                await self._report(error)
            raise
        except Interrupted:
            raise  # treat this like a cancellation, because the lifetime is stopping
        except Exception as error:
            await self._report(error)
            raise
        finally:
            hooks.task_finished.announce(self.home, name=self.name, duration=loop.time() - began)

    async def _report(self, error: BaseException) -> None:
        self.error = error
        _log.error("the background task %r failed: %r", self.name, error, exc_info=error)
        hooks.task_crashed.announce(self.home, name=self.name, error=error)
        if self._on_error is None:
            return
        try:
            result = self._on_error(error)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001  # whatever user code raises here is logged
            _log.exception("on_error of the background task %r failed", self.name)


# -- shutdown hooks ---------------------------------------------------------------------------------------------------


#: A shutdown hook: an async or plain function without arguments, or an object whose ``run`` method is such a function.
AnyHook: TypeAlias = "Callable[[], object] | _Runnable"


class ShutdownHook(OwnedPart):
    """A function that the shutdown calls once. If it raises an error, other hooks are not affected.

    ``patience`` is the number of seconds after which the name of a slow hook is logged.

    Raises:
        TypeError: if the hook cannot be called.
    """

    stage: ClassVar[Stage] = Stage.HOOKS
    #: True if the hook is cancelled when its time is over.
    is_cut: ClassVar[bool] = False

    def __init__(self, home: _Home, hook: AnyHook, patience: float) -> None:
        super().__init__(home)
        given: Any = hook
        call = given if callable(given) else getattr(given, "run", None)
        if not callable(call):
            raise TypeError(f"a shutdown hook must be a function without arguments, async or plain, got {hook!r}")
        self._call, self._patience = call, patience

    async def stop(self, left: Callable[[], float]) -> None:
        """Call the hook."""
        self.end()
        loop, patience, name = asyncio.get_running_loop(), min(self._patience, left()), name_of(self._call)
        failure: BaseException | None = None
        warned: list[str] = []

        def warn() -> None:
            if not warned:
                warned.append(name)
                _log.warning("the shutdown hook %s is taking more than %.1f s", name, patience)

        began, timer = loop.time(), loop.call_later(patience, warn)
        try:
            async with asyncio.timeout(patience if self.is_cut else None):
                result = self._call()
                if inspect.isawaitable(result):
                    await result
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the error is logged and announced
            failure = error
            _log.error("the shutdown hook %s failed: %r", name, error, exc_info=error)
        duration = loop.time() - began
        timer.cancel()
        if duration > patience:  # the hook blocked the loop, so the timer could not fire
            warn()
        hooks.hook_finished.announce(self.home, hook=name, duration=duration, error=failure)


class FlushHook(ShutdownHook):
    """A hook that sends metrics and records, and is cancelled if it is slow."""

    stage: ClassVar[Stage] = Stage.FLUSH
    is_cut: ClassVar[bool] = True
