"""Mains: the kinds of objects that `run` accepts, such as async functions, routers, workers and web servers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from lifecycle._async import is_async, start_task, was_cancelled
from lifecycle._owners import current_owner
from lifecycle._util import name_of
from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.parts import OwnedPart, RouterPart, Stage, stop_worker
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Protocol

    from lifecycle._owners import Part
    from lifecycle.runtime.lifetimes import Lifetime

    class _Runs(Protocol):
        async def run(self) -> object: ...

    class _Works(Protocol):
        async def start(self) -> object: ...

        async def stop(self) -> object: ...

        async def wait(self) -> Any: ...

    class _Serves(Protocol):
        """A server with the interface of ``uvicorn.Server``."""

        started: bool
        should_exit: bool

        async def serve(self) -> object: ...

    class _SetsUp(Protocol):
        """A server with the interface of ``aiohttp.web.AppRunner``."""

        @property
        def sites(self) -> Any: ...

        async def setup(self) -> object: ...

        async def cleanup(self) -> object: ...


__all__ = ["AnyMain", "Main", "as_main"]

_log = logging.getLogger("lifecycle.runtime")


#: The types that `run` accepts. It checks them again at run time, because not every program uses a type checker.
AnyMain: TypeAlias = "Callable[[], Coroutine[Any, Any, object]] | _Runs | _Works | _Serves | _SetsUp"


class Main(OwnedPart):
    """One component of a program. By default, it is a coroutine function and is stopped by cancelling its task.

    It owns what its function starts, so the workers of a main are stopped right after it.
    """

    stage: ClassVar[Stage] = Stage.MAINS
    #: True if the program is complete when this main returns.
    completes: ClassVar[bool] = False
    #: The object to drain before the mains are stopped, such as a router.
    drainable: Any = None
    #: True if this main does not keep the program running.
    auxiliary = False

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        #: The name of the main in `Lifetime.health`.
        self.title = name
        self._work = work
        #: The lifetime of the program. It exists once `begin` has been called, and so does the task.
        self.lifetime: Lifetime
        self._task: asyncio.Task[None] | None = None
        # The part of `drainable`, and the last router that the main's own task has run.
        self._drained: RouterPart | None = None
        self._router: Part | None = None
        # True if the main has been asked to stop. A cancellation without such a request is an error.
        self._asked = False
        #: Set once the next main may start.
        self.started: Final = asyncio.Event()
        #: The value that the main returned.
        self.value: Any = None
        #: The error that the main raised.
        self.error: BaseException | None = None

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that runs the main. It never raises an error. The outcome is stored in `value` and `error`."""
        assert self._task is not None, "a main has a task once it was begun"
        return self._task

    # -- starting and stopping ------------------------------------------------------------------------------------

    def begin(self, lifetime: Lifetime) -> asyncio.Task[None]:
        """Start the main as a part of ``lifetime``."""
        self.home = self.lifetime = lifetime
        self._task = start_task(self._observe(), name=self.name)
        lifetime.own(self)
        if self.drainable is not None:
            drained = self._drained = lifetime.own(RouterPart(lifetime, self.drainable, self._task))
            self._task.add_done_callback(lambda _: drained.end())
        return self._task

    async def start(self) -> None:
        """Wait until the next main may start: this one has started or ended, or the shutdown has begun."""
        started = start_task(self.started.wait(), name=f"start of {self.name}")
        with self.lifetime.stop_awaited() as stopping:
            ends: set[asyncio.Future[Any]] = {self.task, started, stopping}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                started.cancel()
        await asyncio.wait({started})

    async def stop(self, left: Callable[[], float]) -> None:
        """Ask the main to stop, and wait for up to ``left()`` seconds. If it is still running, log its name."""
        if isinstance(self._router, RouterPart) and not self._router.ended_early:
            # Its router was drained, so its `async with` blocks end by themselves. A cancellation would cut short what
            # they wait for.
            await asyncio.wait({self.task}, timeout=left() / 2)
        self._asked = True
        if self.task.done():
            return
        await self._ask(left)
        await asyncio.wait({self.task}, timeout=left())
        if not self.task.done():
            _log.warning("%s is not stopping; the shutdown continues without it", self.name)

    async def over(self) -> None:
        """Wait until the main has ended, with no time limit."""
        await asyncio.wait({self.task})

    async def _ask(self, _left: Callable[[], float]) -> None:
        self.task.cancel()

    async def _live(self) -> Any:
        self.started.set()
        return await self._work()

    async def _observe(self) -> None:
        current_owner.set(self)
        try:
            self.value = await self._live()
        except Interrupted:
            _log.debug("%s was interrupted by the shutdown", self.name)
        except asyncio.CancelledError as error:
            if not self._asked:
                self.error = error
        # SystemExit and KeyboardInterrupt are also caught. `run` raises them after the shutdown.
        except BaseException as error:  # noqa: BLE001
            self.error = error

    # -- what the main starts -------------------------------------------------------------------------------------

    def own_component(self, component: object) -> Part:
        """See `lifecycle._owners.Owner`."""
        return self.lifetime.own_component(component)

    def own_router(self, router: Any) -> Part:
        """See `lifecycle._owners.Owner`. The main itself may be the router."""
        if self._drained is not None and router is self.drainable:
            self._drained.runs(router)
            return self._drained
        part = self.lifetime.own_router(router, self)
        if asyncio.current_task() is self._task:
            self._router = part
        return part

    def own_worker(self, worker: Any) -> Part:
        """See `lifecycle._owners.Owner`. The program is not healthy without a worker that the main starts itself."""
        return self.lifetime.own_worker(worker, self, matters=asyncio.current_task() is self._task)


class FunctionMain(Main):
    """The program's own function. When it returns, the program is complete."""

    completes: ClassVar[bool] = True


class AnnouncedMain(Main):
    """A main with ``wait_running()``, such as a router. The next main waits for it, so that no events are missed."""

    def __init__(self, name: str, thing: Any) -> None:
        super().__init__(name, thing.run)
        self._thing = thing

    async def _live(self) -> Any:
        up = start_task(self._wait_running(), name=f"start of {self.name}")
        up.add_done_callback(self._check_start)
        try:
            value = await self._work()
        except asyncio.CancelledError:
            if (error := _error_of(up)) is not None:
                raise error from None
            raise
        else:
            # The cancelled task may have returned normally even though starting failed.
            if was_cancelled() and not self._asked and (error := _error_of(up)) is not None:
                raise error
            return value
        finally:
            up.remove_done_callback(self._check_start)
            up.cancel()
            await asyncio.wait({up})
            _error_of(up)  # retrieve the error, so that asyncio does not report it if a different error is raised

    def _check_start(self, _: asyncio.Task[None]) -> None:
        """End the main if it can no longer announce that it has started.

        Otherwise, the next main would wait indefinitely.
        """
        if not self.started.is_set():
            self.task.cancel()

    async def _wait_running(self) -> None:
        await self._thing.wait_running()
        self.started.set()


#: How often, in seconds, to check whether a server has started.
_SERVER_POLL = 0.01

#: The time limit, in seconds, for a server to respond to the requests that it has begun to handle.
_SERVER_GRACE = 10.0


class ServerMain(AnnouncedMain):
    """A server like uvicorn's.

    It is stopped by setting its ``should_exit``. When it returns, the program is complete.
    """

    completes: ClassVar[bool] = True

    def __init__(self, name: str, server: Any) -> None:
        super().__init__(name, _Server(name, server))
        self._server = server

    async def _ask(self, left: Callable[[], float]) -> None:
        self._server.should_exit = True
        await asyncio.wait({self.task}, timeout=min(_SERVER_GRACE, left()))
        if not self.task.done():
            _log.warning("%s has not responded to all requests and is being cancelled", self.name)
            self.task.cancel()


class _Server:
    """A uvicorn server with the interface of a router."""

    def __init__(self, name: str, server: Any) -> None:
        self._name, self._server = name, server

    async def run(self) -> None:
        await self._server.serve()
        if not self._server.started and not self._server.should_exit:
            raise WorkerFailed(f"{self._name} could not start; see its log for the reason")

    async def wait_running(self) -> None:
        while not self._server.started:  # noqa: ASYNC110  # `started` is a plain attribute
            await asyncio.sleep(_SERVER_POLL)
        # The server has installed its own signal handlers.
        signal_registry().retake()


class RunnerMain(Main):
    """A server like ``aiohttp.web.AppRunner``.

    If its setup does not open any sites, it listens on aiohttp's default port.
    """

    def __init__(self, name: str, runner: Any) -> None:
        super().__init__(name, asyncio.Event().wait)
        self._runner = runner

    async def _live(self) -> Any:
        try:
            await self._runner.setup()
            if not self._runner.sites:
                from aiohttp import web  # slow to import

                await web.TCPSite(self._runner).start()
            signal_registry().retake()
            self.started.set()
            return await self._work()
        finally:
            await self._runner.cleanup()


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


class WorkerMain(Main):
    """A worker or supervisor, which is started, awaited and stopped.

    It is an error if the worker ends as FAILED or KILLED.
    """

    def __init__(self, name: str, worker: Any) -> None:
        super().__init__(name, worker.wait)
        self.worker = worker

    async def _ask(self, left: Callable[[], float]) -> None:
        await stop_worker(self.worker, left)
        if not self.started.is_set():
            self.task.cancel()

    def own_worker(self, worker: Any) -> Part:
        """See `lifecycle._owners.Owner`. The failure of the main's own worker is the failure of the main."""
        is_other = worker is not self.worker and asyncio.current_task() is self._task
        return self.lifetime.own_worker(worker, self, matters=is_other)

    async def _live(self) -> Any:
        # A worker of another library does not add itself.
        listed = self.lifetime.own_component(self.worker)
        try:
            return await self._run()
        finally:
            listed.end()

    async def _run(self) -> Any:
        try:
            await self.worker.start()
        except Exception as error:
            if not self._asked:
                raise
            _log.debug("%s was stopped while starting: %r", self.name, error)
            return
        self.started.set()
        ended = await self.worker.wait()
        if str(ended.status) in ("failed", "killed"):
            if isinstance(ended.error, (Exception, KeyboardInterrupt, SystemExit)):
                raise ended.error
            raise WorkerFailed(f"{self.name} ended {ended.status}") from ended.error


def as_main(thing: Any) -> Main:
    """Return the main that runs ``thing``.

    Raises:
        TypeError: if it cannot be run. The message contains the value and lists what is accepted.
    """
    _refuse_mistakes(thing)
    main = _as_main(thing)
    main.title = str(getattr(thing, "name", main.name))
    return main


def _owner_of_serve(thing: Any) -> Any:
    """If ``thing`` is a server's ``serve`` method, return the server."""
    return thing.__self__ if inspect.ismethod(thing) and thing.__name__ == "serve" else thing


def _as_main(thing: Any) -> Main:
    server = _owner_of_serve(thing)
    if is_async(getattr(server, "serve", None)) and all(hasattr(server, each) for each in ("started", "should_exit")):
        return ServerMain(type(server).__name__, server)
    if all(is_async(getattr(thing, each, None)) for each in ("setup", "cleanup")) and hasattr(thing, "sites"):
        return RunnerMain(type(thing).__name__, thing)
    if all(is_async(getattr(thing, name, None)) for name in ("start", "stop", "wait")):
        return WorkerMain(f"worker {getattr(thing, 'name', thing)!s}", thing)
    run: Any = getattr(thing, "run", None)
    if is_async(run):
        _refuse_arguments(run, thing)
        label = f"{type(thing).__name__} {getattr(thing, 'name', '')!s}".strip()
        main = AnnouncedMain(label, thing) if is_async(getattr(thing, "wait_running", None)) else Main(label, run)
        main.auxiliary = getattr(thing, "auxiliary", False) is True
        if callable(getattr(thing, "stop", None)) and not is_async(thing.stop):
            main.drainable = thing
        return main
    if is_async(thing):
        _refuse_arguments(thing, thing)
        return FunctionMain(name_of(thing), thing)
    raise TypeError(f"{thing!r} cannot be run; pass {_ACCEPTED}")


_ACCEPTED = (
    "an async function without arguments, a Router, a worker (async start, stop and wait), "
    "an object with `async def run()`, a uvicorn.Server, or an aiohttp.web.AppRunner"
)


def _refuse_mistakes(thing: Any) -> None:
    """Reject values that look runnable but are not. The message explains how to fix the call."""
    if inspect.iscoroutine(thing):
        thing.close()
        raise TypeError(f"{thing!r} is a coroutine; pass the function itself, without calling it")
    if inspect.isclass(thing):
        raise TypeError(f"{thing.__qualname__} is a class; pass an instance: {thing.__qualname__}(…)")
    if inspect.isfunction(thing) and not inspect.iscoroutinefunction(thing):
        raise TypeError(f"{name_of(thing)} is a plain function; make it `async def`, or pass {_ACCEPTED}")


def _refuse_arguments(fn: Callable[..., Any], given: object) -> None:
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise TypeError(
            f"{given!r} cannot be run: {error}; a main is called without arguments (use functools.partial to bind them)"
        ) from None
    except ValueError:  # it has no signature to check, so a wrong call fails only at run time
        return
