"""The runtime of a worker process, which handles frames and signals, and shuts down when the parent exits.

A second thread reads frames, so that pings and cancellations are handled while a call is running. While no call is
running, the main thread reads them instead (see `SharedReader`). If the input ends, the parent has exited. In that
case, the worker cancels its running calls, gives them one second to finish, and kills its whole process group.
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
        """The interface of an executor, which runs calls in the main thread, in threads, or in an event loop."""

        kind: type[Call]

        def run(self, start: Callable[[], None]) -> None: ...
        def submit(self, call: Call) -> None: ...
        def cancel(self, call: Call) -> None: ...
        def credit(self, call: Call, number: int) -> None: ...
        def close(self) -> None: ...
        def wake(self) -> None: ...


__all__ = ["Channel", "Runtime", "SharedReader", "serve"]

#: How many seconds cancelled calls are given to finish after the parent has exited.
_LAST_SECONDS = 1.0
#: Bytes per read.
_CHUNK = 64 * 1024
#: Seconds between the second thread's checks of whether the main thread is busy.
_CHECK_INTERVAL = 0.002
#: The signal that wakes the main thread. Its handler only records that the main thread is awake.
_WAKE = signal.SIGURG
#: Seconds between attempts to wake the main thread.
_WAKE_AGAIN = 0.02


def serve() -> None:
    """Send the greeting to the parent, import the target, serve calls, and exit."""
    # Ignore Ctrl+C, because the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(codec(os.environ[CODEC]))
    runtime = Runtime(channel)
    channel.send(["hello", VERSION, os.getpid(), f"python {sys.version.split()[0]}"])
    _thread.start_new_thread(runtime.read, ())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # Python created it
    faulthandler.enable()
    # Each thread dumps only its own stack, because walking another running thread's stack can crash the process.
    # Threads that don't run calls block the signal.
    faulthandler.register(STACK_DUMP, all_threads=False)
    # Register this function first, because atexit calls functions in reverse order.
    atexit.register(runtime.end)
    sys.exit(runtime.run())


class Runtime:
    """A worker process, with its pending calls and the executor that runs them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._setups: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._executor: Executor | None = None
        self._reader = SharedReader(self._read, self._received)
        # Pending calls, oldest first.
        self._calls: dict[int, Call] = {}
        # The traceparent for the next call.
        self._traceparent = ""
        # The grace period from the ``bye`` frame in seconds, or None if there has been no ``bye``.
        self._grace: float | None = None
        self._orphaned = False
        # True once no more calls are accepted.
        self._closing = False
        # True once this process has cancelled its running calls by itself.
        self._cancelling = False
        # The signal that asked this process to exit, or None.
        self._signal: int | None = None
        # Held until the main thread has finished.
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
        """Wait for the setup, serve calls, and return the exit status."""
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
        # From here on, user code may run.
        gc.enable()
        target = Target(setup["target"])
        executor = self._executor_type(target.is_async, setup["concurrency"])(target.find, self._channel, self._done)

        def start() -> None:
            target.make(self._channel.decode_payload(setup["init"]))
            self._executor = executor
            if self._closing:
                executor.close()
            signal.signal(signal.SIGTERM, self._terminated)
            _SignalRelay(executor.wake).start()
            self._channel.send(["ready"])

        executor.run(start)

    def _executor_type(self, is_async: bool, concurrency: int) -> Callable[..., Executor]:
        if is_async:
            # imported here because asyncio would slow down the start of other workers
            from lifecycle.workers.pool.child.loop_executor import LoopExecutor

            return LoopExecutor
        return ThreadExecutor if concurrency > 1 else partial(MainExecutor, reader=self._reader)

    def _done(self, call: Call, frame: list[Any]) -> None:
        del self._calls[call.number]
        if self._cancelling and frame[0] == "error" and frame[-1]:
            # Send no response, because the parent did not cancel the call. The parent sees the failure when this
            # process exits.
            return
        send_outcome(self._channel, call, frame)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        """Cancel all calls and, once they have cleaned up, end the process with the received signal."""
        self._signal = number
        self._close()
        self._cancel_all()
        self._reader.interrupt()

    def end(self) -> None:
        """End the process with the signal it received, if any. If the parent has exited, kill the process group."""
        if self._signal is not None:
            signal.signal(self._signal, signal.SIG_DFL)
            os.kill(os.getpid(), self._signal)
        if self._orphaned:
            _kill_group()

    # -- the second thread ----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read frames until the input ends, and then make sure that the process exits."""
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
                    raise ProtocolError(f"a {tag!r} frame arrived before this worker was ready")  # noqa: TRY301  # as the decoder does
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
        assert self._executor is not None, "calls are only accepted after the setup"
        call = self._calls[number] = self._executor.kind(number, function, args, kwargs, window)
        call.traceparent, self._traceparent = self._traceparent, ""
        self._executor.submit(call)

    def _trace(self, _number: int, traceparent: str) -> None:
        self._traceparent = traceparent

    def _cancel(self, number: int, _reason: str) -> None:
        # The call may have finished before the frame arrived.
        if self._executor is not None and (call := self._calls.get(number)) is not None and not call.cancelled:
            self._executor.cancel(call)

    def _credit(self, number: int, chunks: int) -> None:
        if self._executor is not None and (call := self._calls.get(number)) is not None:
            self._executor.credit(call, chunks)

    def _ping(self, number: int) -> None:
        # Other threads add and remove calls, so copy the values first. Calling list() does this atomically.
        call = next(iter(list(self._calls.values())), None)
        busy, age = (None, 0.0) if call is None else (call.number, call.age)
        self._channel.send(["pong", number, busy, age, _resident_memory()])

    def _bye(self, grace: float) -> None:
        self._grace = grace
        self._close()

    def _input_ended(self) -> None:
        """Wait for the main thread to end the process. If it does not do so in time, kill the process."""
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
    """Sends and receives frames over private copies of the standard streams' descriptors.

    Standard input is replaced with an empty one, and standard output is redirected to standard error, so user code
    cannot corrupt frames by printing or reading. If user code forks a process, that process loses both copies, so it
    cannot send responses.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.encode_payload: Callable[[Any], Any] = codec.encode_payload
        self.decode_payload: Callable[[Any], Any] = codec.decode_payload
        self._decoder = Decoder(codec, FROM_PARENT)
        self._in, self._out = os.dup(0), os.dup(1)
        # Allows only one thread to write at a time, so that frames are not mixed up.
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
        """Write a complete frame. If the parent has exited, do nothing.

        Raises:
            TypeError, ValueError: if a value cannot be sent. In that case, nothing has been written.
        """
        data: bytes | memoryview = encode(self._codec, frame)
        with self._writing:
            try:
                # If a signal interrupts the write, continue with the rest.
                while (written := os.write(self._out, data)) < len(data):
                    data = memoryview(data)[written:]
            except OSError:
                return  # the parent has exited, which the reader detects

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
    """A reader shared by two threads, only one of which reads at a time.

    The main thread reads while it is idle, so that it can run the next call immediately. Passing a call from one thread
    to the other would take longer than all other steps of the call. If a call runs for more than a moment, the second
    thread takes over, so that pings and cancellations are handled. When the next call arrives, the main thread takes
    over again.

    Args:
        read: A function that waits for bytes and returns them, or b"" at the end of the input.
        receive: A function that handles the bytes, and returns False at the end of the input.
    """

    def __init__(self, read: Callable[[], bytes], receive: Callable[[bytes], bool]) -> None:
        self._read = read
        self._receive = receive
        # True if the main thread should read when it is idle.
        self._shared = False
        # True while only the main thread may read.
        self._main_turn = False
        # True while the main thread is in a read.
        self._reading = False
        # How many times the main thread has read.
        self._reads = 0
        # True while the main thread is blocked waiting for bytes.
        self._waiting = False
        self._interrupted = False
        self._over = False
        # Guards `_main_turn` and `_reading`. Signal handlers must not acquire this lock, because the main thread might
        # already hold it.
        self._lock = _thread.allocate_lock()
        # True while the second thread is sleeping and must be woken explicitly.
        self._parked = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    # -- the second thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read whenever the main thread is not reading, until the input ends."""
        while not self._over:
            if self._main_turn:
                self._wait_for_turn()
            elif not self._receive(self._read()):
                return

    def hand_over(self) -> None:
        """If the main thread may read, let it take over after the call that it is about to receive."""
        self._main_turn = self._shared

    def _wait_for_turn(self) -> None:
        while self._main_turn:
            before = self._reading, self._reads
            self._sleep(_CHECK_INTERVAL)
            with self._lock:
                if before != (self._reading, self._reads):
                    continue
                # The main thread has spent the whole interval either waiting for bytes or running one call.
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
        """Allow the main thread to read when it is idle."""
        self._shared = True

    def read_once(self) -> bool:
        """Read once. Return False if the second thread must read instead, or the input has ended."""
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
        """Wake the second thread, which takes over if the main thread does not read again soon."""
        if self._parked:
            self._parked = False
            self._wakes.put(None)

    def release(self) -> None:
        """Let the second thread take over."""
        with self._lock:
            self._main_turn = False
            self._parked = False
        self._wakes.put(None)

    def interrupt(self) -> None:
        """Stop the main thread from waiting for bytes, now and in the future. Called by a signal handler."""
        self._interrupted = True
        if self._waiting:
            self._waiting = False
            raise _Interrupted


# -- signals ---------------------------------------------------------------------------------------------------------


class _SignalRelay:
    """A thread that wakes the main thread whenever a signal arrives, even if a different thread received it.

    Python runs signal handlers in the main thread. However, it does not wake the main thread if a different thread
    received the signal, or if the signal arrived just before the main thread began to wait. The relay must be created
    in the main thread. ``wake`` wakes the executor, for an event loop that an interruption alone does not wake.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake_executor = wake
        self._main = _thread.get_ident()
        # Released once the main thread is awake.
        self._awake = _thread.allocate_lock()

    def start(self) -> None:
        """Start the relay in this process. Processes forked by user code have no relay."""
        receive, send = os.pipe()
        os.set_blocking(send, False)
        signal.signal(_WAKE, self._woken)
        signal.set_wakeup_fd(send, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_signals)
        _thread.start_new_thread(self._relay, (receive,))

    def _relay(self, receive: int) -> None:
        block_stack_dumps()
        # User code may have closed the descriptor by mistake.
        with suppress(OSError):
            while numbers := os.read(receive, 4096):
                if set(numbers) != {_WAKE}:
                    self._wake()

    def _woken(self, *_: object) -> None:
        """Record that the main thread is awake. The handlers for all earlier signals have already run."""
        if self._awake.locked():
            self._awake.release()

    def _wake(self) -> None:
        self._awake.acquire(blocking=False)
        while True:
            signal.pthread_kill(self._main, _WAKE)
            self._wake_executor()
            if self._awake.acquire(timeout=_WAKE_AGAIN):
                return


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (_WAKE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
