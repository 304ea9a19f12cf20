"""Runs calls in a worker process: finds the function, calls it, interrupts it if requested, and sends the response.

A call is *open* while `Cancelled` may be raised in it. It is closed while this package's own code runs, so that an
interrupt never leaves a frame half written. Executors differ in where they run calls and how they interrupt them. A
call in the main thread is interrupted by a signal, and a call in any other thread by an asynchronous exception. For
async functions, see `loop_executor`.
"""

from __future__ import annotations

import _thread
import signal
import sys
from _queue import SimpleQueue
from importlib import import_module
from time import monotonic

from lifecycle._util import current_span, message_of

# Type checkers recognize this name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from types import FrameType
    from typing import Any

    from lifecycle.workers.pool.child.runtime import Channel, SharedReader

__all__ = [
    "STACK_DUMP",
    "Call",
    "Cancelled",
    "MainExecutor",
    "Target",
    "ThreadCall",
    "ThreadExecutor",
    "block_stack_dumps",
    "error_frame",
    "is_async",
    "refuse_generator",
    "send_outcome",
    "under_span",
]

#: The signal that the parent sends to request a stack dump from the threads that run calls.
STACK_DUMP = signal.SIGUSR2
#: Frames of modules with this prefix are left out of tracebacks.
_OURS = "lifecycle.workers.pool.child."
#: CO_COROUTINE and CO_ASYNC_GENERATOR. We copy these constants because importing inspect would slow down the start.
_ASYNC = 0x0080 | 0x0200


# -- functions -------------------------------------------------------------------------------------------------------


class Target:
    """The pool's target: either a function and its module, or a class and its only instance.

    Args:
        name: ``module:qualname``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._given = _resolve(name)
        self._object: Any = None
        # Functions that have been called by ``module:qualname``.
        self._found: dict[str, Callable[..., Any]] = {}

    @property
    def is_async(self) -> bool:
        """True if the target is an async function or a class with a public async method."""
        if not isinstance(self._given, type):
            return is_async(self._given)
        return any(is_async(getattr(self._given, name, None)) for name in dir(self._given) if name[0] != "_")

    def make(self, init: list[Any]) -> None:
        """Create the instance if the target is a class.

        Raises:
            TypeError: if the target is not callable, or is a function but ``init`` is not empty.
        """
        if isinstance(self._given, type):
            self._object = self._given(*init)
        elif not callable(self._given):
            raise TypeError(f"target={self._name!r} is {self._given!r:.200}, which cannot be called")
        elif init:
            raise TypeError(f"init={init!r:.200} was given, but {self._name!r} is a function; init is only for classes")

    def find(self, function: str) -> Callable[..., Any]:
        """Return the function or method called ``function``, importing it if the name has the form ``module:qualname``.

        Raises:
            AttributeError: if the function or method does not exist.
            ImportError: if the module does not exist.
        """
        if ":" in function:
            if function not in self._found:
                self._found[function] = _resolve(function)
            return self._found[function]
        if self._object is not None:
            found: Callable[..., Any] = getattr(self._object, function)
            return found
        module, _, qualname = self._name.partition(":")
        if function == qualname.rpartition(".")[2]:
            return self._given  # type: ignore[no-any-return]  # checked by make()
        return getattr(sys.modules[module], function)  # type: ignore[no-any-return]  # checked by the call


def is_async(function: object) -> bool:
    """Return True if ``function`` is an ``async def``, with or without ``yield``."""
    return bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & _ASYNC)


def _resolve(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


# -- calls -----------------------------------------------------------------------------------------------------------


class Cancelled(BaseException):
    """Raised in a function when its call is cancelled. ``except Exception`` does not catch it."""


class Call:
    """A pending call.

    Args:
        number: The ID of the call.
        function: The name of the function.
        args: The encoded positional arguments.
        kwargs: The encoded keyword arguments.
        window: The maximum number of unacknowledged chunks, or 0 if the call has a single result.
    """

    __slots__ = (
        "args",
        "began",
        "cancelled",
        "credits",
        "function",
        "kwargs",
        "number",
        "open",
        "traceparent",
        "window",
    )

    def __init__(
        self, number: int, function: str, args: list[Any], kwargs: dict[str, Any], window: int
    ) -> None:  # the parameters are in the same order as the frame's items
        self.number: int = number
        self.function: str = function
        self.args: list[Any] = args
        self.kwargs: dict[str, Any] = kwargs
        self.window: int = window
        self.began: float | None = None
        self.cancelled: bool = False
        self.open: bool = False
        # The W3C traceparent for the caller's span.
        self.traceparent: str = ""
        #: Credits for chunks beyond the first window. We use a SimpleQueue because a signal can interrupt a thread that
        #: is waiting on it.
        self.credits: SimpleQueue[int] = SimpleQueue()

    @property
    def age(self) -> float:
        """Seconds since the start of the call, or 0 before the start."""
        return 0.0 if self.began is None else monotonic() - self.began

    def enter(self) -> None:
        """Allow the call to be interrupted."""
        self.open = True
        if self.cancelled:
            raise Cancelled

    def leave(self) -> None:
        """Prevent the call from being interrupted. Idempotent."""
        self.open = False


def _perform(call: Call, find: Callable[[str], Any], channel: Channel) -> list[Any]:
    """Run ``call``, send its chunks, and return the response frame."""
    if not call.traceparent:
        return _outcome(call, find, channel)
    with under_span(call.traceparent):
        return _outcome(call, find, channel)


def _outcome(call: Call, find: Callable[[str], Any], channel: Channel) -> list[Any]:
    call.began = monotonic()
    try:
        try:
            call.enter()
            function = find(call.function)
            if is_async(function):
                raise TypeError(
                    f"{function!r} is async, but this pool's target is not, so its workers have no event loop"
                )
            value = function(*channel.decode_payload(call.args), **channel.decode_payload(call.kwargs))
            if call.window:
                _stream(call, value, channel)
                value = None
            else:
                refuse_generator(call, value)
        finally:
            call.leave()
    except Cancelled:
        # The exception may have been raised just before the call was closed.
        call.leave()
        return ["error", call.number, "Cancelled", "the call was cancelled", "", True]
    except BaseException as error:  # noqa: BLE001  # reported to the caller
        return error_frame(call.number, error)
    return ["end", call.number] if call.window else ["result", call.number, value]


def refuse_generator(call: Call, value: object) -> None:
    """Raise TypeError if ``call`` returned a generator but was not requested as a stream."""
    if hasattr(value, "gi_frame") or hasattr(value, "ag_frame"):
        raise TypeError(f"{call.function!r} is a generator; use stream() for its values")


def _stream(call: Call, items: Iterable[Any], channel: Channel) -> None:
    granted = call.window
    iterator = iter(items)
    try:
        for item in iterator:
            while not granted:
                granted += call.credits.get()
                call.enter()
            granted -= 1
            call.leave()
            channel.send(["chunk", call.number, channel.encode_payload(item)])
            call.enter()
    finally:
        if (close := getattr(iterator, "close", None)) is not None:
            close()


def send_outcome(channel: Channel, call: Call, frame: list[Any]) -> None:
    """Send ``frame``. If the result cannot be sent, send an error instead."""
    try:
        if frame[0] == "result":
            frame[2] = channel.encode_payload(frame[2])
        channel.send(frame)
    except (TypeError, ValueError) as error:
        message = f"{call.function!r} returned a value that cannot be sent: {error}"
        channel.send(["error", call.number, type(error).__name__, _encodable(message[:10_000]), "", False])


def error_frame(number: int, error: BaseException) -> list[Any]:
    """Return the frame that reports ``error`` for the call ``number``."""
    import traceback  # imported here because many workers never need it

    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, error, trace))
    return ["error", number, name, _encodable(message_of(error)), _encodable(text), False]


def _encodable(text: str) -> str:
    """Replace lone surrogates in ``text``, which some codecs cannot encode."""
    return text.encode(errors="replace").decode()


def under_span(traceparent: str) -> ExitStack:
    """Make the caller's span current, including in OpenTelemetry if it is installed.

    Closing the returned stack makes the previous span current again.
    """
    from contextlib import ExitStack  # imported here because few calls are traced

    held = ExitStack()
    held.callback(current_span.reset, current_span.set(traceparent))
    try:
        from opentelemetry.context import attach, detach
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return held
    held.callback(detach, attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent})))
    return held


# -- one call at a time, in the main thread --------------------------------------------------------------------------


class MainExecutor:
    """An executor that runs one call at a time in the main thread, where a signal can interrupt even a sleep.

    Args:
        find: A function that looks up a function by its name.
        channel: The channel for sending chunks.
        done: A function to call with each finished call and its response frame.
        reader: Reads frames while no call is running.
    """

    kind: type[Call] = Call

    def __init__(
        self,
        find: Callable[[str], Any],
        channel: Channel,
        done: Callable[[Call, list[Any]], None],
        *,
        reader: SharedReader,
    ) -> None:
        self._find = find
        self._channel = channel
        self._done = done
        self._reader = reader
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        self._current: Call | None = None
        self._thread = _thread.get_ident()

    def run(self, start: Callable[[], None]) -> None:
        """Call ``start``, then run submitted calls until `close` is called."""
        signal.signal(signal.SIGUSR1, self._interrupt)
        start()
        self._reader.share()
        try:
            while self._run_next():
                pass
        finally:
            self._reader.release()

    def submit(self, call: Call) -> None:
        """Run ``call`` after all earlier calls."""
        self._waiting.put(call)

    def cancel(self, call: Call) -> None:
        """Interrupt ``call`` if it is open. Its response then confirms the cancellation."""
        call.cancelled = True
        call.credits.put(0)
        # When the signal arrives, its handler checks that this call is still running.
        signal.pthread_kill(self._thread, signal.SIGUSR1)

    def credit(self, call: Call, number: int) -> None:
        """Allow ``call`` to send ``number`` more chunks."""
        call.credits.put(number)

    def close(self) -> None:
        """Accept no more calls. `run` returns when all submitted calls have finished."""
        self._waiting.put(None)

    def wake(self) -> None:
        """Do nothing, because a signal wakes the main thread."""

    def _run_next(self) -> bool:
        while self._waiting.empty() and self._reader.read_once():
            pass
        call = self._waiting.get()
        if call is None:
            return False
        if call.window:
            # The stream needs credits while it runs, so let the second thread read them.
            self._reader.release()
        else:
            self._reader.unpark()
        self._current = call
        frame = _perform(call, self._find, self._channel)
        self._current = None
        self._done(call, frame)
        return True

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        call = self._current
        if call is not None and call.open and call.cancelled:
            # Interrupt a call only once. A second interrupt would disrupt its cleanup.
            call.open = False
            raise Cancelled


# -- several calls at a time, in threads -----------------------------------------------------------------------------


class ThreadCall(Call):
    """A call that runs in its own thread.

    There is a delay between requesting an asynchronous exception and Python raising it, so closing the call withdraws
    any pending request. A lock protects both operations.
    """

    __slots__ = ("_lock", "_thread")

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        # Reentrant, because from Python 3.14 Cancelled may be raised after `with` acquires the lock and before it
        # promises to release it. Only this thread uses the lock after that.
        self._lock = _thread.RLock()
        self._thread: int | None = None

    def enter(self) -> None:
        """Allow the call to be interrupted."""
        with self._lock:
            self._thread = _thread.get_ident()
        super().enter()

    def leave(self) -> None:
        """Prevent interrupts, and withdraw an exception that has been requested but not raised yet."""
        super().leave()
        with self._lock:
            if self._thread is not None and self.cancelled:
                _raise_in(self._thread, None)
            self._thread = None

    def interrupt(self) -> None:
        """Request that Python raise `Cancelled` in the call, if it is open."""
        if self.cancelled:
            return
        with self._lock:
            self.cancelled = True
            if self._thread is not None:
                _raise_in(self._thread, Cancelled)
        self.credits.put(0)


class ThreadExecutor:
    """An executor that runs each call in its own thread. For the arguments, see `MainExecutor`."""

    kind: type[Call] = ThreadCall

    def __init__(self, find: Callable[[str], Any], channel: Channel, done: Callable[[Call, list[Any]], None]) -> None:
        # Workers that run one call at a time don't need threading, so it is imported here. This must happen in the main
        # thread. Before Python 3.13, threading mistakes the thread that imports it for the main thread, and the process
        # would hang at exit.
        import threading

        self._threading = threading
        self._find = find
        self._channel = channel
        self._done = done
        self._closed: SimpleQueue[None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()

    def run(self, start: Callable[[], None]) -> None:
        """Call ``start``, then wait for `close` and for running calls."""
        start()
        block_stack_dumps()
        self._closed.get()
        self.join()

    def join(self) -> None:
        """Wait for running calls."""
        for thread in list(self._threads):
            thread.join()

    def submit(self, call: Call) -> None:
        """Run ``call`` immediately."""
        thread = self._threading.Thread(target=self._work, args=(call,), name=f"call {call.number}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def cancel(self, call: Call) -> None:
        """Interrupt ``call`` if it is open. Its response then confirms the cancellation."""
        assert isinstance(call, ThreadCall)
        call.interrupt()

    def credit(self, call: Call, number: int) -> None:
        """Allow ``call`` to send ``number`` more chunks."""
        call.credits.put(number)

    def close(self) -> None:
        """Accept no more calls. `run` returns when all submitted calls have finished."""
        self._closed.put(None)

    def wake(self) -> None:
        """Do nothing, because a signal wakes the main thread."""

    def _work(self, call: Call) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_DUMP})
        self._done(call, _perform(call, self._find, self._channel))
        self._threads.discard(self._threading.current_thread())


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    # imported here because workers that run one call at a time don't need it
    from ctypes import c_ulong, py_object, pythonapi

    pythonapi.PyThreadState_SetAsyncExc(c_ulong(thread), error and py_object(error))


def block_stack_dumps() -> None:
    """Exclude the current thread, which does not run calls, from stack dumps."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_DUMP})
