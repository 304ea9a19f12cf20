"""What one member is asked for and answers: a request for each call ends with the one frame that answers it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.errors import RemoteError
from lifecycle.workers.pool.codecs import LARGE
from lifecycle.workers.pool.frames import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.codecs import Codec

__all__ = ["Cancelled", "Hello", "LinkClosed", "Pong", "Request", "fail"]


@dataclass(frozen=True, slots=True)
class Hello:
    """What a member says of itself."""

    pid: int
    #: What it is written in, such as ``python 3.13.1``.
    language: str


@dataclass(frozen=True, slots=True)
class Pong:
    """What a member is about."""

    #: The id of the oldest call that it has, and for how many seconds it has run; None and 0 when it is idle.
    busy_id: int | None
    busy_seconds: float
    #: Bytes of memory; 0 where it cannot tell.
    rss: int


class LinkClosed(Exception):
    """The member has closed its output, or the link was closed here; the cause is the `ProtocolError`, if one was."""


class Cancelled(Exception):
    """The member confirms that it runs the call no more: it is as sound as before."""


class Request:
    """A call that was sent.

    Args:
        number: its id.
        window: how many chunks may be on their way; 0 for a call that is answered by one value.
        send: sends a frame.
        codec: reads what was sealed in one.
        future: what gets its outcome; by default, one of its own.
        answered: called when nothing of it runs any more, right after the outcome is known.
    """

    __slots__ = (
        "_answered",
        "_chunks",
        "_codec",
        "_consumed",
        "_more",
        "_on_answer",
        "_send",
        "_settled",
        "_unread",
        "_window",
        "cancelled",
        "future",
        "number",
        "until",
    )

    def __init__(  # each is a field of it
        self,
        number: int,
        window: int,
        send: Callable[[list[Any]], None],
        codec: Codec,
        *,
        future: asyncio.Future[Any] | None = None,
        answered: Callable[[], object] | None = None,
    ) -> None:
        self.number: int = number
        #: Its deadline by the loop's clock, if it has one.
        self.until: float = math.inf
        #: What it comes to: the value (None for a stream), or `RemoteError`, `Cancelled` or `LinkClosed`.
        self.future: asyncio.Future[Any] = future or asyncio.get_running_loop().create_future()
        self._on_answer = answered
        #: Whether it was asked to be given up.
        self.cancelled: bool = False
        self._send = send
        self._codec = codec
        self._window = window
        self._chunks: deque[Any] = deque()
        # How many chunks were taken that the member has no credit for yet, and how many it may still send.
        self._consumed = 0
        self._unread = window
        self._more: asyncio.Future[None] | None = None
        # Whether its end has come, which `future` does not say once who awaits it was cancelled; done when it comes.
        self._answered = False
        self._settled: asyncio.Future[None] | None = None

    @property
    def streams(self) -> bool:
        """Whether it is answered chunk by chunk."""
        return self._window > 0

    def cancel(self, reason: str) -> asyncio.Future[None]:
        """Ask the member to give it up; what is returned is done when it has confirmed that, or it was too late."""
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
            if self._answered:
                self._settled.set_result(None)
            else:
                self.cancelled = True
                self._chunks.clear()
                self._send(["cancel", self.number, reason])
        return self._settled

    async def next_chunk(self) -> Any:
        """The next chunk; one at a time may wait.

        Raises:
            StopAsyncIteration: after the last one.
            RemoteError, Cancelled, LinkClosed: as `future` has it, after the chunks that came before.
            RemoteError: for a chunk that cannot be decoded here; the worker still runs the generator.
        """
        while not self._chunks:
            if self.future.done():
                self.future.result()
                raise StopAsyncIteration
            await self._wait()
        self._consumed += 1
        # Half a window at a time, so that credit is there before the member runs out of it, and is rarely sent.
        if self._consumed * 2 >= self._window and not self.future.done():
            self._send(["credit", self.number, self._consumed])
            self._unread += self._consumed
            self._consumed = 0
        chunk = self._chunks.popleft()
        return await self._read_in_thread(chunk) if is_large(chunk) else self._read(chunk)

    # -- by the link ----------------------------------------------------------------------------------------------

    def take_chunk(self, value: Any) -> None:
        """A chunk has come.

        Raises:
            ProtocolError: if it was not granted.
        """
        if not self._unread:
            raise ProtocolError(f"call {self.number} sent more chunks than it was granted")
        self._unread -= 1
        if not self.cancelled:
            self._chunks.append(value)
            self._wake()

    def take_result(self, value: Any) -> None:
        """The result has come."""
        if is_large(value):
            self._end()
            reading = asyncio.ensure_future(self._read_in_thread(value))
            reading.add_done_callback(self._take_read)
            return
        try:
            self.settle(self._read(value))
        except RemoteError as error:
            self.settle(None, error=error)

    def settle(self, outcome: Any, *, error: BaseException | None = None) -> None:
        """It has come to its end; whoever waits may have left."""
        if error is not None:
            fail(self.future, error)
        elif not self.future.done():
            self.future.set_result(outcome)
        self._end()

    def _end(self) -> None:
        """Nothing of it runs any more."""
        self._answered = True
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._wake()
        if self._on_answer is not None:
            self._on_answer()

    def _read(self, value: Any) -> Any:
        return _readable(self._codec.unseal, value)

    async def _read_in_thread(self, value: Any) -> Any:
        return await asyncio.to_thread(_readable, self._codec.unseal_in_thread, value)

    def _take_read(self, reading: asyncio.Future[Any]) -> None:
        if reading.cancelled():
            self.future.cancel()
        elif (error := reading.exception()) is not None:
            fail(self.future, error)
        elif not self.future.done():
            self.future.set_result(reading.result())

    async def _wait(self) -> None:
        self._more = asyncio.get_running_loop().create_future()
        try:
            await self._more
        finally:
            self._more = None

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)


def is_large(value: Any) -> bool:
    """Whether ``value`` was made bytes of its own, and so many that it is decoded in a thread."""
    return type(value) is bytes and len(value) >= LARGE


def _readable(unseal: Callable[[Any], Any], value: Any) -> Any:
    """What ``unseal`` makes of ``value``.

    Raises:
        RemoteError: if it fails, also by SystemExit: the code of a value may not end the program, nor keep the seat.
    """
    try:
        return unseal(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise RemoteError(type(error).__name__, f"what it sent cannot be read here: {error}") from error


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Have ``future`` end with ``error``, if it has not ended; nobody has to ask: who gave up does not want to know."""
    if not future.done():
        future.set_exception(error)
        future.exception()
