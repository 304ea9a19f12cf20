"""The parent's connection to a worker process. Calls and results are exchanged as frames over pipes.

``docs/reference/pool-protocol.md`` defines the frames.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lifecycle._async import start_task
from lifecycle.errors import RemoteError
from lifecycle.workers.pool.protocol import (
    CODEC,
    FROM_WORKER,
    LARGE,
    VERSION,
    Decoder,
    ProtocolError,
    encode,
    setup_frame,
)
from lifecycle.workers.stdio import Pipes, Reader, pipe, popen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.workers.pool.protocol import Codec
    from lifecycle.workers.pool.records import CallSpec
    from lifecycle.workers.pool.settings import PoolSettings
    from lifecycle.workers.stdio import Command

__all__ = ["CallCancelled", "Connection", "ConnectionClosed", "Pong", "WireCall"]

#: Bytes per read, which is the capacity of a pipe.
_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pong:
    """A worker's response to a ping."""

    #: The ID of the oldest running call, or None if no call is running.
    busy_id: int | None
    #: How long the oldest running call has been running, in seconds. 0 if no call is running.
    busy_seconds: float
    #: The resident memory in bytes, or 0 if unknown.
    rss: int


class ConnectionClosed(Exception):
    """Raised when the worker closed its output or violated the protocol.

    After a violation, ``__cause__`` is the `ProtocolError`.
    """


class CallCancelled(Exception):
    """Raised when the worker confirms that a cancelled call has stopped. The worker can accept calls again."""


# -- calls -----------------------------------------------------------------------------------------------------------


class WireCall:
    """A call that has been sent to a worker. The call is over when the response frame arrives.

    Args:
        number: The ID of the call.
        until: The deadline in loop time.
        window: The maximum number of unacknowledged chunks, or 0 if the call has a single result.
        send: A function that sends a frame.
        codec: The codec for payloads.
        future: The future that receives the outcome. By default, a new future is created.
        on_end: A function to call right after the outcome has been set.
    """

    __slots__ = (
        "_chunks",
        "_codec",
        "_consumed",
        "_ended",
        "_granted",
        "_more",
        "_on_end",
        "_send",
        "_stopped",
        "_window",
        "cancelled",
        "future",
        "number",
        "until",
    )

    def __init__(
        self,
        number: int,
        until: float,
        window: int,
        send: Callable[[list[Any]], None],
        codec: Codec,
        *,
        future: asyncio.Future[Any] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self.number: int = number
        self.until: float = until
        #: A future for the result (None for a stream). Its errors are `RemoteError`, `CallCancelled` and
        #: `ConnectionClosed`.
        self.future: asyncio.Future[Any] = future or asyncio.get_running_loop().create_future()
        #: True once cancellation has been requested.
        self.cancelled: bool = False
        self._on_end = on_end
        self._send = send
        self._codec = codec
        self._window = window
        self._chunks: deque[Any] = deque()
        # How many chunks have been consumed since credits were last sent.
        self._consumed = 0
        # How many more chunks the worker may send.
        self._granted = window
        self._more: asyncio.Future[None] | None = None
        # True once the response has arrived. The future does not show this, because it is cancelled along with
        # its waiter.
        self._ended = False
        # Completes once a cancelled call is no longer running.
        self._stopped: asyncio.Future[None] | None = None

    @property
    def streams(self) -> bool:
        """True if the result arrives in chunks."""
        return self._window > 0

    def cancel(self, reason: str) -> asyncio.Future[None]:
        """Request cancellation, and return a future.

        The future completes once the worker has confirmed the cancellation or sent a result.
        """
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
            if self._ended:
                self._stopped.set_result(None)
            else:
                self.cancelled = True
                self._chunks.clear()
                self._send(["cancel", self.number, reason])
        return self._stopped

    async def next_chunk(self) -> Any:
        """Return the next chunk. Only one caller may wait at a time.

        Raises:
            StopAsyncIteration: after the last chunk.
            RemoteError, CallCancelled, ConnectionClosed: if the call failed with this error. All earlier chunks are
                returned first.
            RemoteError: if a chunk cannot be decoded. In this case, the generator keeps running.
        """
        while not self._chunks:
            if self.future.done():
                self.future.result()
                raise StopAsyncIteration
            self._more = asyncio.get_running_loop().create_future()
            try:
                await self._more
            finally:
                self._more = None
        self._consumed += 1
        # Grant half a window at a time. This way, we send few frames, yet credits arrive before the worker runs out of
        # them.
        if self._consumed * 2 >= self._window and not self.future.done():
            self._send(["credit", self.number, self._consumed])
            self._granted += self._consumed
            self._consumed = 0
        chunk = self._chunks.popleft()
        return await self._decode_in_thread(chunk) if _is_large(chunk) else self._decode(chunk)

    # -- called by the connection ---------------------------------------------------------------------------------

    def add_chunk(self, value: Any) -> None:
        """Add a newly arrived chunk.

        Raises:
            ProtocolError: if the worker sent more chunks than it was allowed to.
        """
        if not self._granted:
            raise ProtocolError(f"call {self.number} sent more chunks than it was granted")
        self._granted -= 1
        if not self.cancelled:
            self._chunks.append(value)
            self._wake()

    def set_result(self, value: Any) -> None:
        """Decode the result and set it on the future."""
        if _is_large(value):
            self._end()
            start_task(self._decode_in_thread(value)).add_done_callback(self._set_decoded)
            return
        try:
            result = self._decode(value)
        except RemoteError as error:
            self.finish(error=error)
        else:
            self.finish(result)

    def finish(self, result: Any = None, *, error: BaseException | None = None) -> None:
        """Set the outcome, unless the waiter was cancelled."""
        if error is not None:
            fail(self.future, error)
        elif not self.future.done():
            self.future.set_result(result)
        self._end()

    def _set_decoded(self, decoding: asyncio.Future[Any]) -> None:
        if decoding.cancelled():
            self.future.cancel()
        elif (error := decoding.exception()) is not None:
            fail(self.future, error)
        elif not self.future.done():
            self.future.set_result(decoding.result())

    def _end(self) -> None:
        self._ended = True
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        self._wake()
        if self._on_end is not None:
            self._on_end()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _decode(self, value: Any) -> Any:
        return _decoded(self._codec.decode_payload, value)

    async def _decode_in_thread(self, value: Any) -> Any:
        return await asyncio.to_thread(_decoded, self._codec.decode_payload_in_thread, value)


def _is_large(value: Any) -> bool:
    """Return True if ``value`` is an encoded payload large enough to be decoded in a thread."""
    return type(value) is bytes and len(value) >= LARGE


def _decoded(decode: Callable[[Any], Any], value: Any) -> Any:
    """Return ``decode(value)``.

    Raises:
        RemoteError: for any exception, including SystemExit, because decoding a value must not end this program.
    """
    try:
        return decode(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RemoteError(type(error).__name__, f"the value cannot be decoded here: {error}") from error


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set ``error`` on ``future`` unless it is done. Prevent Python's warning about unretrieved errors."""
    if not future.done():
        future.set_exception(error)
        future.exception()


# -- the connection --------------------------------------------------------------------------------------------------


class Connection:
    """Exchanges frames with a worker process.

    Args:
        name: The worker's name.
        settings: The pool's settings.
        on_protocol_error: A function to call once if the worker violates the protocol.
        on_close: A function to call once, before ``on_protocol_error``, when the connection stops accepting calls.

    Raises:
        TypeError, ValueError: if the codec cannot encode the arguments for the target.
    """

    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        *,
        on_protocol_error: Callable[[ProtocolError], object],
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        codec = self._codec = settings.codec
        #: The worker's pipes, as passed to `ProcessWorker`.
        self.pipes: Final = WorkerPipes(
            settings.name, name, codec.name, self._receive, removed=settings.removed_variables()
        )
        self._setup = setup_frame(codec, settings.setup())
        self._on_protocol_error = on_protocol_error
        self._on_close = on_close
        self._decoder = Decoder(codec, FROM_WORKER)
        # Unfinished calls by ID, starting with 1.
        self._calls: dict[int, WireCall] = {}
        self._call_count = 0
        self._pings: dict[int, asyncio.Future[Pong]] = {}
        self._ping_count = 0
        self._greeted = False
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Why the connection no longer accepts calls, or None if it still does.
        self._closed: ConnectionClosed | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "hello": self._on_hello,
            "ready": self._on_ready,
            "result": self._on_result,
            "error": self._on_error,
            "chunk": self._on_chunk,
            "end": self._on_stream_end,
            "pong": self._on_pong,
        }

    @property
    def closed(self) -> bool:
        """True if the connection no longer accepts calls."""
        return self._closed is not None

    @property
    def busy_until(self) -> float:
        """The latest deadline of the running calls, in loop time, or 0 if no call is running."""
        return max((call.until for call in self._calls.values()), default=0.0)

    async def ready(self) -> None:
        """Wait until the worker accepts calls.

        Raises:
            RemoteError: if the worker could not import or construct the target.
            ProtocolError: if the worker violates the protocol, or uses a different version of it.
            ConnectionClosed: if the worker exited.
        """
        await asyncio.shield(self._ready)

    def call(
        self,
        spec: CallSpec,
        *,
        window: int = 0,
        traceparent: str = "",
        future: asyncio.Future[Any] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> WireCall:
        """Send a call without waiting. If the connection is closed, the call fails with `ConnectionClosed`.

        Args:
            spec: The requested call.
            window: The maximum number of unacknowledged chunks of a stream.
            traceparent: The caller's span, or an empty string.
            future: The future that receives the outcome. By default, a new future is created.
            on_end: A function to call once the call is no longer running, possibly before this method returns.

        Raises:
            TypeError, ValueError: if the codec cannot encode the arguments. In that case, nothing has been sent.
        """
        number, encode_payload = self._call_count + 1, self._codec.encode_payload
        args, kwargs = spec.payload or (encode_payload(spec.args), encode_payload(spec.kwargs))
        trace = encode(self._codec, ["trace", number, traceparent]) if traceparent else b""
        budget = None if spec.until == math.inf else max(0.0, spec.until - asyncio.get_running_loop().time())
        data = trace + encode(self._codec, ["call", number, spec.function, args, kwargs, budget, window])
        self._call_count = number
        call = WireCall(number, spec.until, window, self.send, self._codec, future=future, on_end=on_end)
        if self._closed is not None:
            call.finish(error=self._closed)
        else:
            self._calls[number] = call
            self.pipes.write(data)
        return call

    def ping(self) -> asyncio.Future[Pong]:
        """Send a ping, and return a future for the `Pong`.

        The worker responds even during a call, unless the call blocks the interpreter. The future fails with
        `ConnectionClosed` if the worker exits.
        """
        future: asyncio.Future[Pong] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            fail(future, self._closed)
        else:
            self._ping_count += 1
            self._pings[self._ping_count] = future
            self.send(["ping", self._ping_count])
        return future

    def bye(self, grace: float) -> None:
        """Ask the worker to finish its running calls and exit within ``grace`` seconds. Idempotent."""
        self.send(["bye", grace])
        self.pipes.end()

    def send(self, frame: list[Any]) -> None:
        """Send a frame."""
        self.pipes.write(encode(self._codec, frame))

    # -- reading --------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        """Process ``data`` from the worker's stdout. Empty data means end of file.

        If another process keeps the pipe open after the worker has exited, `ProcessWorker` closes the pipe, which also
        reports the end of file. This ensures that every call gets an outcome.
        """
        if self._closed is not None:
            return
        if not data:
            midway = " within a frame" if self._decoder.midway else ""
            self._close(ConnectionClosed(f"the worker closed its output{midway}"))
            return
        try:
            for frame in self._decoder.feed(data):
                self._handlers[frame[0]](*frame[1:])
        except ProtocolError as error:
            fail(self._ready, error)
            closed = ConnectionClosed(f"the worker violated the protocol: {error}")
            closed.__cause__ = error
            self._close(closed)
            self._on_protocol_error(error)

    def _close(self, closed: ConnectionClosed) -> None:
        if self._closed is not None:
            return
        self._closed = closed
        self._on_close()
        fail(self._ready, closed)
        for call in list(self._calls.values()):
            call.finish(error=closed)
        self._calls.clear()
        for ping in self._pings.values():
            fail(ping, closed)
        self._pings.clear()

    def _on_hello(self, version: int, _pid: int, language: str) -> None:
        if self._greeted:
            raise ProtocolError("it sent hello twice")
        if version != VERSION:
            raise ProtocolError(f"it uses version {version} of the protocol ({language}) instead of version {VERSION}")
        self._greeted = True
        self.pipes.write(self._setup)

    def _on_ready(self) -> None:
        if not self._greeted or self._ready.done():
            raise ProtocolError("it sent ready unexpectedly")
        self._ready.set_result(None)

    def _on_result(self, number: int, value: Any) -> None:
        self._remove(number, stream=False).set_result(value)

    def _on_stream_end(self, number: int) -> None:
        self._remove(number, stream=True).finish()

    def _on_chunk(self, number: int, value: Any) -> None:
        self._find(number).add_chunk(value)

    def _on_error(self, number: int, kind: str, message: str, traceback: str, cancelled: bool) -> None:
        if number == 0 and not self._ready.done():
            fail(self._ready, RemoteError(kind, message, traceback))
            return
        call = self._find(number)
        del self._calls[number]
        # When asked to exit, a worker cancels its running calls even though the parent has not cancelled them.
        confirmed = cancelled and call.cancelled
        call.finish(error=CallCancelled() if confirmed else RemoteError(kind, message, traceback))

    def _on_pong(self, number: int, busy_id: int | None, busy_seconds: float, rss: int) -> None:
        if not 0 < number <= self._ping_count:
            raise ProtocolError(f"it answered ping {number}, which was not sent")
        # The future may already be done, because its waiter was cancelled.
        if (future := self._pings.pop(number, None)) is not None and not future.done():
            future.set_result(Pong(busy_id, busy_seconds, rss))

    def _remove(self, number: int, *, stream: bool) -> WireCall:
        """Remove the call ``number``, whose outcome is about to be set, and return it."""
        call = self._find(number)
        if call.streams is not stream:
            what = "ended as a stream, but is not one" if stream else "returned a result, but is a stream"
            raise ProtocolError(f"call {number} {what}")
        del self._calls[number]
        return call

    def _find(self, number: int) -> WireCall:
        try:
            return self._calls[number]
        except KeyError:
            raise ProtocolError(f"it answered call {number}, which is not running") from None


# -- the standard streams --------------------------------------------------------------------------------------------


class WorkerPipes(Pipes):
    """The stdin, stdout and stderr pipes of a worker that runs in its own session.

    Writing never blocks. Data that does not fit into the pipe is buffered. The number of calls limits the size of the
    buffer. Reading never pauses. Streams need credits to send chunks, so chunks cannot hold up a pong.

    Args:
        pool: The pool's name. Stderr is logged to ``lifecycle.workers.<pool>``.
        name: The worker's name, which its log records contain as ``worker``.
        codec: The codec's name, which is passed to the worker in its environment.
        receive: A function to call with data from stdout, and with b"" at the end of stdout.
        removed: Environment variables that the worker does not inherit.
    """

    def __init__(
        self, pool: str, name: str, codec: str, receive: Callable[[bytes], None], *, removed: frozenset[str]
    ) -> None:
        super().__init__(None, pool, {"worker": name})
        self._codec = codec
        self._receive = receive
        self._removed = removed
        # None until `spawn` is called.
        self._writer: _PipeWriter | None = None

    def spawn(self, command: Command) -> int:
        """Start the process in a new session."""
        env: Mapping[str, str] = {name: value for name, value in command.env.items() if name not in self._removed}
        command = replace(command, env={**env, CODEC: self._codec})
        with ExitStack() as ours, ExitStack() as theirs:
            stdin, stdin_end = pipe(theirs, ours)
            stdout, stdout_end = pipe(ours, theirs)
            stderr, stderr_end = pipe(ours, theirs)
            pid = popen(command, stdin=stdin, stdout=stdout_end, stderr=stderr_end, start_new_session=True)
            ours.pop_all()
        self._writer = _PipeWriter(stdin_end)
        self._readers = [Reader(stdout, self._receive, chunk=_CHUNK), self._reader(stderr, "stderr")]
        return pid

    def close(self) -> None:
        """Stop reading and writing."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def write(self, data: bytes) -> None:
        """Write ``data``. Before the process has started and after `end`, data is dropped."""
        if self._writer is not None:
            self._writer.write(data)

    def end(self) -> None:
        """Close the worker's stdin once all data has been written."""
        if self._writer is not None:
            self._writer.end()


class _PipeWriter:
    """A non-blocking writer that owns its descriptor. If the reader is gone, data is dropped."""

    def __init__(self, fd: int) -> None:
        # None once the descriptor has been closed.
        self._fd: int | None = fd
        self._loop = asyncio.get_running_loop()
        # Data that has not been written yet, oldest first. The loop watches the pipe until this is empty.
        self._buffer: deque[bytes | memoryview] = deque()
        self._ending = False
        os.set_blocking(fd, False)

    def write(self, data: bytes | memoryview) -> None:
        """Write ``data``. After `end` or `close`, data is dropped."""
        if self._fd is None or self._ending:
            return
        if not self._buffer:
            written = self._try_write(self._fd, data)
            if written == len(data):
                return
            data = memoryview(data)[written:]
            self._loop.add_writer(self._fd, self._flush)
        self._buffer.append(data)

    def end(self) -> None:
        """Close the descriptor once all data has been written."""
        self._ending = True
        if not self._buffer:
            self.close()

    def close(self) -> None:
        """Close the descriptor immediately. Idempotent."""
        if self._fd is None:
            return
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = None
        self._buffer.clear()

    def _flush(self) -> None:
        fd = self._fd
        assert fd is not None, "close() stops the loop from watching it"
        while self._buffer:
            data = self._buffer[0]
            if (written := self._try_write(fd, data)) < len(data):
                self._buffer[0] = memoryview(data)[written:]
                return
            self._buffer.popleft()
        self._loop.remove_writer(fd)
        if self._ending:
            self.close()

    @staticmethod
    def _try_write(fd: int, data: bytes | memoryview) -> int:
        """Write as many bytes as the pipe accepts, and return their number."""
        try:
            return os.write(fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # Although the worker no longer reads its input, we must keep reading its output.
            return len(data)
