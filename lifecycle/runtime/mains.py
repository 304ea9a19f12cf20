"""Mains: the kinds of objects that `run` accepts, such as async functions, routers, workers and web servers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from lifecycle import hooks
from lifecycle._async import is_async, start_task, was_cancelled
from lifecycle._util import name_of
from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.signals import signal_registry
from lifecycle.runtime.stopping import starter, stop_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Self

    from lifecycle.runtime.stopping import Drainable

__all__ = ["AnyMain", "Auxiliary", "Main", "as_main"]

_log = logging.getLogger("lifecycle.runtime")


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


#: The types that `run` accepts. It checks them again at run time, because not every program uses a type checker.
AnyMain: TypeAlias = "Callable[[], Coroutine[Any, Any, object]] | _Runs | _Works | _Serves | _SetsUp"


class Main:
    """One component of a program. By default, it is a coroutine function and is stopped by cancelling its task."""

    #: True if the program is complete when this main returns.
    completes: ClassVar[bool] = False
    #: The object to drain before the mains are stopped, such as a router.
    drainable: Drainable | None = None
    #: True if this main does not keep the program running.
    auxiliary = False

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        #: The name of the main's component in `Lifetime.health`.
        self.component = name
        self._work = work
        self._task: asyncio.Task[None] | None = None
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
        """The task that runs the main. It exists once `begin` has been called."""
        assert self._task is not None, "a main has a task once it was begun"
        return self._task

    def begin(self) -> asyncio.Task[None]:
        """Start the main. Its task never raises an error. The outcome is stored in `value` and `error`."""
        self._task = start_task(self._observe(), name=self.name)
        return self._task

    async def stop(self, left: Callable[[], float]) -> None:
        """Ask the main to stop, and wait for up to ``left()`` seconds. If it is still running, log its name."""
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
        starter.set(self)
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

    async def _live(self) -> Any:
        # A worker that is not a `BaseWorker` might not announce its start. See `BaseWorker.supervised`.
        if hasattr(self.worker, "supervised"):
            return await self._run()
        hooks.component_opened.announce(self.worker, component=self.worker)
        try:
            return await self._run()
        finally:
            hooks.component_closed.announce(self.worker, component=self.worker)

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
    main.component = str(getattr(thing, "name", main.name))
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


class Auxiliary:
    """Base class for servers and observers that are open during ``async with`` or while they are a main of `run`.

    You do not have to use it: `run` accepts any object with a ``run()`` method, and waits for its ``wait_running()`` if
    it has one. The program ends when the only mains left are those whose ``auxiliary`` is true.
    """

    #: A program ends when only auxiliary mains are left.
    auxiliary: ClassVar[bool] = True

    #: The message of the error that is raised if the object is entered twice. The object's ``repr`` precedes it.
    _taken: ClassVar[str] = "is already open; create another"

    def __init__(self) -> None:
        self._up = asyncio.Event()
        # Closed when the block is exited.
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the object.

        Raises:
            RuntimeError: if the object is already open.
        """
        if self._up.is_set():
            raise RuntimeError(f"{self!r} {self._taken}")
        async with AsyncExitStack() as held:
            await self._open(held)
            self._held = held.pop_all()
        self._up.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the object."""
        self._up.clear()
        await self._leave()

    async def run(self) -> None:
        """Stay open until cancelled. `run` calls this."""
        async with self:
            await asyncio.Event().wait()

    async def wait_running(self) -> None:
        """Wait until the object is open."""
        await self._up.wait()

    async def _open(self, held: AsyncExitStack) -> None:
        """Acquire the resources. Register each release in ``held``, in case acquiring a later resource fails."""
        raise NotImplementedError

    async def _leave(self) -> None:
        await self._held.aclose()
