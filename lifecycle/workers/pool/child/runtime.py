"""The runtime of a worker process: frames in and out, signals, and the death of the parent.

A second thread reads frames, so that pings and cancellations are handled while a call runs. While no call runs, the
main thread reads (see `SharedReader`). The end of the input means that the parent is gone. Running calls are then
cancelled and have one second to end. After that, the whole process group is killed.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import gc
import os
import signal
import sys
import time
from _queue import Empty, SimpleQueue
from contextlib import suppress
from functools import partial

from lifecycle.workers.pool.child.executors import (
    STACK_DUMP,
    Call,
    MainExecutor,
    Target,
    ThreadExecutor,
    block_stack_dumps,
    error_frame,
    send_outcome,
)
from lifecycle.workers.pool.protocol import CODEC, FROM_PARENT, VERSION, Decoder, ProtocolError, codec, encode

# Type checkers recognize this name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, Protocol

    from lifecycle.workers.pool.protocol import Codec

    class Executor(Protocol):
        """Runs calls in the main thread, in threads, or in an event loop."""

        kind: type[Call]

        def run(self, start: Callable[[], None]) -> None: ...
        def submit(self, call: Call) -> None: ...
        def cancel(self, call: Call) -> None: ...
        def credit(self, call: Call, number: int) -> None: ...
        def close(self) -> None: ...


__all__ = ["Channel", "Runtime", "SharedReader", "serve"]

#: Seconds that cancelled calls have to end when the parent is gone.
_LAST_SECONDS = 1.0
#: Bytes per read.
_CHUNK = 64 * 1024
#: Seconds between the checks of the second thread whether the main thread still accepts calls.
_CHECK_INTERVAL = 0.002
#: The signal that wakes the main thread. Its handler does nothing else.
_WAKE = signal.SIGURG
#: Seconds between two attempts to wake the main thread.
_WAKE_AGAIN = 0.02


def serve() -> None:
    """Greet the parent, import the target, answer calls, and exit."""
    # The parent handles Ctrl+C at the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(codec(os.environ[CODEC]))
    runtime = Runtime(channel)
    channel.send(["hello", VERSION, os.getpid(), f"python {sys.version.split()[0]}"])
    _thread.start_new_thread(runtime.read, ())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # Python created it
    faulthandler.enable()
    # Each thread dumps only its own stack, because walking the stack of another running thread may crash the process.
    # Threads that run no calls block the signal.
    faulthandler.register(STACK_DUMP, all_threads=False)
    # Register this first, because the first registered function is called last.
    atexit.register(runtime.end)
    sys.exit(runtime.run())


class Runtime:
    """One worker process: its pending calls and the executor that runs them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._setups: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._executor: Executor | None = None
        self._reader = SharedReader(self._read, self._received)
        # Pending calls, oldest first.
        self._calls: dict[int, Call] = {}
        # The span of the next call.
        self._traceparent = ""
        # The grace period in seconds from ``bye``; None if the input ended without ``bye``.
        self._grace: float | None = None
        self._orphaned = False
        # True if no more calls are accepted, and True if this process has cancelled running calls.
        self._closing = False
        self._cancelling = False
        # The signal that ended this process, or None.
        self._signal: int | None = None
        # Held until the main thread is done.
        self._busy = _thread.allocate_lock()
        self._busy.acquire()
        self._handlers: dict[str, Callable[..., None]] = {
            "call": self._call,
            "cancel": self._cancel,
            "credit": self._credit,
            "ping": self._ping,
            "setup": self._setups.put,
            "trace": self._trace,
            "bye": self._bye,
        }

    # -- the main thread ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Wait for the setup, answer calls, and return the exit status."""
        setup = self._setups.get()
        try:
            if setup is not None:
                self._serve(setup)
        except BaseException as error:  # noqa: BLE001  # reported to the parent
            self._channel.send(error_frame(0, error))
            return 1
        finally:
            self._busy.release()
        return 0

    def _serve(self, setup: dict[str, Any]) -> None:
        sys.path[:] = setup["path"]
        # User code runs from here on.
        gc.enable()
        target = Target(setup["target"])
        executor = self._executor_type(target.is_async, setup["concurrency"])(target.find, self._channel, self._done)

        def start() -> None:
            target.make(self._channel.decode_payload(setup["init"]))
            self._executor = executor
            if self._closing:
                executor.close()
            signal.signal(signal.SIGTERM, self._terminated)
            _SignalRelay().start()
            self._channel.send(["ready"])

        executor.run(start)

    def _executor_type(self, is_async: bool, concurrency: int) -> Callable[..., Executor]:
        if is_async:
            from lifecycle.workers.pool.child.loop_executor import LoopExecutor  # asyncio would slow other starts

            return LoopExecutor
        return ThreadExecutor if concurrency > 1 else partial(MainExecutor, reader=self._reader)

    def _done(self, call: Call, frame: list[Any]) -> None:
        del self._calls[call.number]
        if self._cancelling and frame[0] == "error" and frame[-1]:
            # The parent did not cancel the call. It notices the end when this process exits.
            return
        send_outcome(self._channel, call, frame)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        """End the process with the signal, after the running functions have cleaned up."""
        self._signal = number
        self._close()
        self._cancel_all()
        self._reader.interrupt()

    def end(self) -> None:
        """End the process with the signal that was received. If the parent is gone, kill the process group."""
        if self._signal is not None:
            signal.signal(self._signal, signal.SIG_DFL)
            os.kill(os.getpid(), self._signal)
        if self._orphaned:
            _kill_group()

    # -- the second thread ----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read frames until the input ends, then end the process."""
        block_stack_dumps()
        try:
            self._reader.run()
        finally:
            self._input_ended()

    def _read(self) -> bytes:
        try:
            return self._channel.read()
        except OSError as error:
            sys.stderr.write(f"lifecycle: {error}\n")
            return b""

    def _received(self, data: bytes) -> bool:
        """Handle the frames that ``data`` completes. Return False at the end of the input."""
        try:
            frames = self._channel.decode(data)
            for tag, *items in frames:
                if self._executor is None and tag not in {"setup", "bye"}:
                    raise ProtocolError(f"a frame {tag!r} arrived before this worker was ready")  # noqa: TRY301  # as the decoder does
                self._handlers[tag](*items)
        except ProtocolError as error:
            sys.stderr.write(f"lifecycle: {error}\n")
            return False
        if frames and frames[-1][0] == "call":
            self._reader.hand_over()
        return bool(data)

    def _call(
        self, number: int, function: str, args: list[Any], kwargs: dict[str, Any], _budget: float | None, window: int
    ) -> None:
        assert self._executor is not None, "no call is accepted before that"
        call = self._calls[number] = self._executor.kind(number, function, args, kwargs, window)
        call.traceparent, self._traceparent = self._traceparent, ""
        self._executor.submit(call)

    def _trace(self, _number: int, traceparent: str) -> None:
        self._traceparent = traceparent

    def _cancel(self, number: int, _reason: str) -> None:
        # The call may have been answered in the meantime.
        if self._executor is not None and (call := self._calls.get(number)) is not None and not call.cancelled:
            self._executor.cancel(call)

    def _credit(self, number: int, chunks: int) -> None:
        if self._executor is not None and (call := self._calls.get(number)) is not None:
            self._executor.credit(call, chunks)

    def _ping(self, number: int) -> None:
        # Copy the values in one atomic step, because other threads add and remove calls.
        call = next(iter(list(self._calls.values())), None)
        busy, age = (None, 0.0) if call is None else (call.number, call.age)
        self._channel.send(["pong", number, busy, age, _resident_memory()])

    def _bye(self, grace: float) -> None:
        self._grace = grace
        self._close()

    def _input_ended(self) -> None:
        """End the process, from this thread if the main thread does not end it."""
        self._orphaned = self._grace is None
        self._close()
        until = time.monotonic() + (self._grace or 0)
        if not self._busy.acquire(timeout=self._grace or 0):
            self._cancel_all()
            self._busy.acquire(timeout=_LAST_SECONDS)
        # Leave time for functions registered with atexit.
        time.sleep(max(_LAST_SECONDS, until - time.monotonic()))
        _kill_group()

    def _close(self) -> None:
        self._closing = True
        if self._executor is None:
            self._setups.put(None)
        else:
            self._executor.close()

    def _cancel_all(self) -> None:
        self._cancelling = True
        for number in list(self._calls):
            self._cancel(number, "")


def _resident_memory() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # pathlib would slow the start
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _kill_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


# -- frames ----------------------------------------------------------------------------------------------------------


class Channel:
    """Frames over private copies of descriptors 0 and 1. User code that prints or reads cannot corrupt them.

    From then on, standard input is empty, and standard output is redirected to standard error. A process forked by user
    code has neither copy, so it cannot answer for this one.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.encode_payload: Callable[[Any], Any] = codec.encode_payload
        self.decode_payload: Callable[[Any], Any] = codec.decode_payload
        self._decoder = Decoder(codec, FROM_PARENT)
        self._in, self._out = os.dup(0), os.dup(1)
        # One writer at a time, so that frames are not mixed.
        self._writing = _thread.allocate_lock()
        self._redirect(os.O_RDONLY, 0)
        os.dup2(2, 1)
        os.register_at_fork(after_in_child=self._forked)

    def read(self) -> bytes:
        """Wait for bytes and return them, or b"" at the end of the input."""
        return os.read(self._in, _CHUNK)

    def decode(self, data: bytes) -> list[list[Any]]:
        """Return the frames that ``data`` completes. Raises ProtocolError for invalid data."""
        return self._decoder.feed(data)

    def send(self, frame: list[Any]) -> None:
        """Write one whole frame, unless the parent is gone.

        Raises:
            TypeError, ValueError: if a value cannot be sent. Nothing was written then.
        """
        data: bytes | memoryview = encode(self._codec, frame)
        with self._writing:
            try:
                # Only a signal can cut a write short.
                while (written := os.write(self._out, data)) < len(data):
                    data = memoryview(data)[written:]
            except OSError:
                return  # the parent is gone; the reader notices this

    def _forked(self) -> None:
        self._redirect(os.O_RDWR, self._in, self._out)

    def _redirect(self, flags: int, *fds: int) -> None:
        null = os.open(os.devnull, flags)
        for fd in fds:
            os.dup2(null, fd, inheritable=fd == 0)
        os.close(null)


class _Interrupted(BaseException):
    """Raised in the main thread to stop it from reading."""


class SharedReader:
    """A reader that two threads share. Only one of them reads at a time.

    The main thread reads while it is idle, so a call that arrives runs immediately. Passing the call from one thread to
    another would take longer than the rest of the call. If a call runs for more than a moment, the second thread reads,
    so that pings and cancellations are handled. It passes the next call and the reading back to the main thread.

    Args:
        read: waits for bytes and returns them, or b"" at the end of the input.
        receive: handles the bytes. Returns False at the end of the input.
    """

    def __init__(self, read: Callable[[], bytes], receive: Callable[[bytes], bool]) -> None:
        self._read = read
        self._receive = receive
        # True if the main thread reads when it is idle, and True if it is its turn now.
        self._shared = False
        self._main_turn = False
        # True if the main thread is reading, the number of its reads, and True if it is waiting for bytes now.
        self._reading = False
        self._reads = 0
        self._waiting = False
        self._interrupted = False
        self._over = False
        # Guards the turn and `_reading`. Signal handlers never take it, because the main thread might hold it.
        self._lock = _thread.allocate_lock()
        # True if the second thread sleeps until it is woken.
        self._parked = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    # -- the second thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read whenever the main thread does not, until the input ends."""
        while not self._over:
            if self._main_turn:
                self._wait_for_turn()
            elif not self._receive(self._read()):
                return

    def hand_over(self) -> None:
        """Give the turn to the main thread, which is about to get a call, if the main thread reads at all."""
        self._main_turn = self._shared

    def _wait_for_turn(self) -> None:
        while self._main_turn:
            before = self._reading, self._reads
            self._sleep(_CHECK_INTERVAL)
            with self._lock:
                if before != (self._reading, self._reads):
                    continue
                # During the whole interval, the main thread was either waiting for bytes or busy with a call.
                self._parked = self._reading
                if not self._reading:
                    self._main_turn = False
            if self._parked:
                self._sleep(None)

    def _sleep(self, seconds: float | None) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=seconds)

    # -- the main thread ------------------------------------------------------------------------------------------

    def share(self) -> None:
        """Let the main thread read when it is idle."""
        self._shared = True

    def read_once(self) -> bool:
        """Read once. Return False if it is the other thread's turn."""
        with self._lock:
            if not self._main_turn:
                return False
            self._reading = True
            self._reads += 1
        try:
            self._over = not self._receive(self._wait_for_bytes())
        except _Interrupted:
            return True
        finally:
            with self._lock:
                self._reading = False
        if self._over:
            self.release()
        return not self._over

    def _wait_for_bytes(self) -> bytes:
        self._waiting = True
        try:
            if self._interrupted:
                raise _Interrupted
            return self._read()
        finally:
            self._waiting = False

    def unpark(self) -> None:
        """Wake the second thread, so that it takes over if this one does not read again soon."""
        if self._parked:
            self._parked = False
            self._wakes.put(None)

    def release(self) -> None:
        """Give the turn to the second thread."""
        with self._lock:
            self._main_turn = False
            self._parked = False
        self._wakes.put(None)

    def interrupt(self) -> None:
        """Stop the main thread from waiting for bytes, now and later. Called by a signal handler."""
        self._interrupted = True
        if self._waiting:
            self._waiting = False
            raise _Interrupted


# -- signals ---------------------------------------------------------------------------------------------------------


class _SignalRelay:
    """Wakes the main thread for each signal, even if another thread received it.

    Python runs signal handlers in the main thread. However, it does not wake that thread if another one received the
    signal, or if the signal arrived just before the main thread began to wait. Create the relay in the main thread.
    """

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        # Released when the main thread is awake.
        self._awake = _thread.allocate_lock()

    def start(self) -> None:
        """Start the relay in this process, but not in processes that user code forks."""
        receive, send = os.pipe()
        os.set_blocking(send, False)
        signal.signal(_WAKE, self._woken)
        signal.set_wakeup_fd(send, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_signals)
        _thread.start_new_thread(self._relay, (receive,))

    def _relay(self, receive: int) -> None:
        block_stack_dumps()
        # User code may close descriptors that it does not own.
        with suppress(OSError):
            while numbers := os.read(receive, 4096):
                if set(numbers) != {_WAKE}:
                    self._wake()

    def _woken(self, *_: object) -> None:
        """Record that the main thread is awake. Runs after the handlers of all earlier signals."""
        if self._awake.locked():
            self._awake.release()

    def _wake(self) -> None:
        self._awake.acquire(blocking=False)
        while True:
            signal.pthread_kill(self._main, _WAKE)
            if self._awake.acquire(timeout=_WAKE_AGAIN):
                return


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (_WAKE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
