"""What `run` can run, by its shape: an async function, a router, a worker, or anything with ``async def run()``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from lifecycle import hooks
from lifecycle._cancelling import was_cancelled
from lifecycle._functions import is_async
from lifecycle._naming import name_of
from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.stopping import starter, stop_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle.runtime.stopping import Drainable

__all__ = ["AnyMain", "Main", "as_main"]

_log = logging.getLogger("lifecycle.runtime")


class _Runs(Protocol):
    async def run(self) -> object: ...


class _Works(Protocol):
    async def start(self) -> object: ...

    async def stop(self) -> object: ...

    async def wait(self) -> Any: ...


#: What `run` takes; it is looked at again when it is given, since not every program is checked.
AnyMain: TypeAlias = "Callable[[], Coroutine[Any, Any, object]] | _Runs | _Works"


class Main:
    """One thing to run: a coroutine function, cancelled to stop it."""

    #: Whether the program is complete when it returns.
    completes: ClassVar[bool] = False
    #: What can be asked to end by itself before the mains are stopped, such as a router.
    drainable: Drainable | None = None
    #: Whether the program does not go on for its sake alone.
    auxiliary = False

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self._work = work
        self._task: asyncio.Task[None] | None = None
        # Whether it was asked to stop: what a cancellation means depends on it.
        self._asked = False
        #: Set once the next main may start.
        self.started: Final = asyncio.Event()
        #: What it returned, and what it raised.
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def task(self) -> asyncio.Task[None]:
        """What runs it, once it was begun."""
        assert self._task is not None, "only what was begun has a task"
        return self._task

    def begin(self) -> asyncio.Task[None]:
        """Start it; the task never raises, `value` and `error` tell."""
        self._task = asyncio.create_task(self._observe(), name=self.name)
        return self._task

    async def stop(self, left: Callable[[], float]) -> None:
        """Ask it to end and wait until it has, but not longer than ``left()`` seconds; then it is named."""
        self._asked = True
        if self.task.done():
            return
        await self._ask(left)
        await asyncio.wait({self.task}, timeout=left())
        if not self.task.done():
            _log.warning("%s does not stop; the shutdown goes on without it", self.name)

    async def over(self) -> None:
        """Wait until it has ended, however long that takes."""
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
            _log.debug("%s was interrupted by the stop", self.name)
        except asyncio.CancelledError as error:
            if not self._asked:
                self.error = error
        # SystemExit and KeyboardInterrupt too: the shutdown is carried out first, then they come out of run().
        except BaseException as error:  # noqa: BLE001
            self.error = error


class FunctionMain(Main):
    """The program's own function: when it returns, the program is complete."""

    completes: ClassVar[bool] = True


class AnnouncedMain(Main):
    """One that tells when it has started, such as a router: the next main waits, so that it misses nothing."""

    def __init__(self, name: str, thing: Any) -> None:
        super().__init__(name, thing.run)
        self._thing = thing

    async def _live(self) -> Any:
        up = asyncio.create_task(self._wait_running(), name=f"start of {self.name}")
        up.add_done_callback(self._check_start)
        try:
            value = await self._work()
        except asyncio.CancelledError:
            if (error := _error_of(up)) is not None:
                raise error from None
            raise
        else:
            # It may return when it is cancelled, and its start has failed all the same.
            if was_cancelled() and not self._asked and (error := _error_of(up)) is not None:
                raise error
            return value
        finally:
            up.remove_done_callback(self._check_start)
            up.cancel()
            await asyncio.wait({up})
            _error_of(up)  # retrieved: if another error comes out, asyncio need not complain about this one

    def _check_start(self, _: asyncio.Task[None]) -> None:
        """End the main if nothing will announce its start, for which the next main would wait indefinitely."""
        if not self.started.is_set():
            self.task.cancel()

    async def _wait_running(self) -> None:
        await self._thing.wait_running()
        self.started.set()


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


class WorkerMain(Main):
    """A worker or supervisor: started, waited for, stopped; to end FAILED or KILLED is an error."""

    def __init__(self, name: str, worker: Any) -> None:
        super().__init__(name, worker.wait)
        self._worker = worker

    async def _ask(self, left: Callable[[], float]) -> None:
        await stop_worker(self._worker, left)
        if not self.started.is_set():
            self.task.cancel()

    async def _live(self) -> Any:
        # One that was written by somebody else need not tell of itself; see `BaseWorker.governed`.
        if hasattr(self._worker, "governed"):
            return await self._run()
        hooks.component_opened.announce(self._worker, component=self._worker)
        try:
            return await self._run()
        finally:
            hooks.component_closed.announce(self._worker, component=self._worker)

    async def _run(self) -> Any:
        try:
            await self._worker.start()
        except Exception as error:
            if not self._asked:
                raise
            _log.debug("%s was stopped while it started: %r", self.name, error)
            return
        self.started.set()
        ended = await self._worker.wait()
        if str(ended.status) in ("failed", "killed"):
            if isinstance(ended.error, (Exception, KeyboardInterrupt, SystemExit)):
                raise ended.error
            raise WorkerFailed(f"{self.name} ended {ended.status}") from ended.error


def as_main(thing: Any) -> Main:
    """How to run ``thing``.

    Raises:
        TypeError: naming what was given, and what can be run.
    """
    _refuse_mistakes(thing)
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
    raise TypeError(f"{thing!r} cannot be run; give {_ACCEPTED}")


_ACCEPTED = (
    "an async function without arguments, a Router, a worker (async start, stop and wait), "
    "or an object with `async def run()`"
)


def _refuse_mistakes(thing: Any) -> None:
    """What looks runnable and is not: say which step was forgotten."""
    if inspect.iscoroutine(thing):
        thing.close()
        raise TypeError(f"{thing!r} is a call already made; give the function itself, without parentheses")
    if inspect.isclass(thing):
        raise TypeError(f"{thing.__qualname__} is a class; give an instance of it: {thing.__qualname__}(…)")
    if inspect.isfunction(thing) and not inspect.iscoroutinefunction(thing):
        raise TypeError(f"{name_of(thing)} is a plain function; make it `async def`, or give {_ACCEPTED}")


def _refuse_arguments(fn: Callable[..., Any], given: object) -> None:
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise TypeError(
            f"{given!r} cannot be run: {error}; a main is called without arguments (functools.partial gives them)"
        ) from None
    except ValueError:  # no signature to be had: the call will tell
        return
