"""In a member: its life, from the greeting to the end, and what it is sent meanwhile.

A second thread reads that, so that pings are answered and cancellations are taken while a call runs; the main thread
may do so itself while none does, see `readers`. At the end of the input, the parent is gone: what runs is cancelled,
has a second, and then the whole process group is killed.
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
from _queue import SimpleQueue
from functools import partial

from lifecycle.workers.pool.child.calls import Call, described, send_outcome
from lifecycle.workers.pool.child.channel import Channel
from lifecycle.workers.pool.child.readers import SharedReader
from lifecycle.workers.pool.child.signals import ask_others, heed, write_stacks
from lifecycle.workers.pool.codecs import codec
from lifecycle.workers.pool.frames import CODEC, VERSION, ProtocolError

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, Protocol

    class Engine(Protocol):
        """Where calls run; one at a time (`main_engine`), in threads, or in a loop."""

        kind: type[Call]

        def run(self, start: Callable[[], None]) -> None: ...
        def submit(self, call: Call) -> None: ...
        def cancel(self, call: Call) -> None: ...
        def credit(self, call: Call, number: int) -> None: ...
        def close(self) -> None: ...


__all__ = ["Life", "live"]

#: Seconds that what was cancelled has, when the parent is gone.
_LAST_SECONDS = 1.0


def live() -> None:
    """Greet, set up, do what is asked for, and end."""
    # A Ctrl+C at the terminal is the parent's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(codec(os.environ[CODEC]))
    life = Life(channel)
    channel.send(["hello", VERSION, os.getpid(), f"python {sys.version.split()[0]}"])
    _thread.start_new_thread(life.read, ())
    # What a member prints is seen when it prints it, and what it was doing when it crashed, or is asked.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the one that Python made
    faulthandler.enable()
    write_stacks()
    # The first to be registered is the last to be called.
    atexit.register(life.end)
    sys.exit(life.run())


class Life:
    """One member: what it was asked for, and where that runs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._setups: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._engine: Engine | None = None
        self._reader = SharedReader(self._read, self._heard)
        # Those that are not answered yet, the oldest first.
        self._calls: dict[int, Call] = {}
        # The span of the call that comes next.
        self._traceparent = ""
        # Seconds that the parent leaves us when it says goodbye; None if it just went.
        self._grace: float | None = None
        self._orphaned = False
        # Whether nothing more is to be begun, and whether what runs was taken back here.
        self._finished = False
        self._ending = False
        # The signal that asked us to end, if one did.
        self._signal: int | None = None
        # Held until the main thread has no more to do.
        self._busy = _thread.allocate_lock()
        self._busy.acquire()
        self._takes: dict[str, Callable[..., None]] = {
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
        """Be set up, and do what comes: the exit status."""
        setup = self._setups.get()
        try:
            if setup is not None:
                self._serve(setup)
        except BaseException as error:  # noqa: BLE001  # the parent is told, and we end
            self._channel.send(described(0, error))
            return 1
        finally:
            self._busy.release()
        return 0

    def _serve(self, setup: dict[str, Any]) -> None:
        sys.path[:] = setup["path"]
        # From here on it is user code that runs.
        gc.enable()
        from lifecycle.workers.pool.child.targets import Target  # the greeting went first

        target = Target(setup["target"])
        engine = self._engine_for(target.is_async, setup["concurrency"])(target.find, self._channel, self._done)

        def start() -> None:
            target.make(self._channel.unseal(setup["init"]))
            self._engine = engine
            if self._finished:
                engine.close()
            signal.signal(signal.SIGTERM, self._terminated)
            heed()
            self._channel.send(["ready"])

        engine.run(start)

    def _done(self, call: Call, frame: list[Any]) -> None:
        del self._calls[call.number]
        if self._ending and frame[0] == "error" and frame[-1]:
            # Nobody there has taken it back; how this process ends is what there is to know.
            return
        send_outcome(self._channel, call, frame)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        """End as the signal would have it, after the functions that run have cleaned up."""
        self._signal = number
        self._finish()
        self._cancel_all()
        self._reader.interrupt()

    def end(self) -> None:
        """The last that is done: die of the signal that ended us; leave nothing behind if the parent is gone."""
        if self._signal is not None:
            signal.signal(self._signal, signal.SIG_DFL)
            os.kill(os.getpid(), self._signal)
        if self._orphaned:
            _kill_group()

    # -- the thread that reads ------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take what comes, to the end of it."""
        ask_others()
        try:
            self._reader.listen()
        finally:
            self._depart()

    def _read(self) -> bytes:
        try:
            return self._channel.read()
        except OSError as error:
            sys.stderr.write(f"lifecycle: {error}\n")
            return b""

    def _heard(self, data: bytes) -> bool:
        """Take what ``data`` completes: whether there may be more to come."""
        try:
            frames = self._channel.decode(data)
            self._take(frames)
        except ProtocolError as error:
            sys.stderr.write(f"lifecycle: {error}\n")
            return False
        if frames and frames[-1][0] == "call":
            self._reader.lend()
        return bool(data)

    def _take(self, frames: list[list[Any]]) -> None:
        for tag, *items in frames:
            if self._engine is None and tag not in {"setup", "bye"}:
                raise ProtocolError(f"a frame {tag!r} came before this member was ready")
            self._takes[tag](*items)

    def _call(
        self, number: int, function: str, args: list[Any], kwargs: dict[str, Any], _budget: float | None, window: int
    ) -> None:
        engine = self._engine
        assert engine is not None, "see _take"
        call = self._calls[number] = engine.kind(number, function, args, kwargs, window)
        call.traceparent, self._traceparent = self._traceparent, ""
        engine.submit(call)

    def _trace(self, _number: int, traceparent: str) -> None:
        self._traceparent = traceparent

    def _cancel(self, number: int, _reason: str) -> None:
        # It may have been answered meanwhile.
        if self._engine is not None and (call := self._calls.get(number)) is not None and not call.cancelled:
            self._engine.cancel(call)

    def _credit(self, number: int, chunks: int) -> None:
        if self._engine is not None and (call := self._calls.get(number)) is not None:
            self._engine.credit(call, chunks)

    def _ping(self, number: int) -> None:
        # In one step, since calls come and go in other threads.
        call = next(iter(list(self._calls.values())), None)
        busy, age = (None, 0.0) if call is None else (call.number, call.age)
        self._channel.send(["pong", number, busy, age, _memory()])

    def _bye(self, grace: float) -> None:
        self._grace = grace
        self._finish()

    def _depart(self) -> None:
        """See to it that this process ends, now that nobody asks for anything any more."""
        self._orphaned = self._grace is None
        self._finish()
        until = time.monotonic() + (self._grace or 0)
        if not self._busy.acquire(timeout=self._grace or 0):
            self._cancel_all()
            self._busy.acquire(timeout=_LAST_SECONDS)
        # For what was registered with atexit.
        time.sleep(max(_LAST_SECONDS, until - time.monotonic()))
        _kill_group()

    def _finish(self) -> None:
        self._finished = True
        if self._engine is None:
            self._setups.put(None)
        else:
            self._engine.close()

    def _cancel_all(self) -> None:
        self._ending = True
        for number in list(self._calls):
            self._cancel(number, "")

    def _engine_for(self, is_async: bool, concurrency: int) -> Callable[..., Engine]:
        """The kind of engine; each is imported where it is needed only."""
        if is_async:
            from lifecycle.workers.pool.child.loop_engine import LoopEngine

            return LoopEngine
        if concurrency > 1:
            from lifecycle.workers.pool.child.thread_engine import ThreadEngine

            return ThreadEngine
        from lifecycle.workers.pool.child.main_engine import MainEngine

        return partial(MainEngine, reader=self._reader)


def _memory() -> int:
    """Bytes of memory that this process holds; 0 where nobody tells."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  # pathlib would slow the start
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _kill_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
