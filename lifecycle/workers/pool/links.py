"""The parent's side of the protocol with one member: what is asked of it, and which answer belongs to what.

``docs/reference/pool-protocol.md`` says what each frame means. How bytes go and come is the matter of `pipes`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

from lifecycle.errors import RemoteError
from lifecycle.workers.pool.frames import FROM_MEMBER, VERSION, Decoder, ProtocolError, encode
from lifecycle.workers.pool.pipes import MemberPipes
from lifecycle.workers.pool.requests import Cancelled, Hello, LinkClosed, Pong, Request, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.workers.pool.codecs import Codec
    from lifecycle.workers.pool.orders import Order

__all__ = ["Link", "setup_frame"]


class Link:
    """What is said to one member, and what it answers, in the one life that it has.

    Args:
        name: the member's.
        codec: what frames are encoded with.
        setup: what it is sent when it has greeted; see `lifecycle.workers.pool.targets.Target.setup`.
        broken: called once, if it does not keep to the protocol; what it was asked for fails with `LinkClosed`.
        ended: called once, before that, when nothing more can be asked for.

    Raises:
        TypeError, ValueError: for a ``setup`` that the codec cannot carry.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        setup: Mapping[str, Any],
        *,
        broken: Callable[[ProtocolError], object],
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._codec = codec
        #: The streams that this goes over: a `Stdio` for its `ProcessWorker`.
        self.pipes: Final = MemberPipes(name, codec.name, self._take)
        self._setup = setup_frame(codec, setup)
        self._broken = broken
        self._ended = ended
        self._decoder = Decoder(codec, FROM_MEMBER)
        # Those that are not answered yet, each by its id; ids count from 1.
        self._requests: dict[int, Request] = {}
        self._count = 0
        self._pings: dict[int, asyncio.Future[Pong]] = {}
        self._pinged = 0
        # The greeting, once the member is ready.
        self._ready: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._hello: Hello | None = None
        # Why nothing more can be asked for; None as long as it can.
        self._closed: LinkClosed | None = None
        self._takes: dict[str, Callable[..., None]] = {
            "hello": self._take_hello,
            "ready": self._take_ready,
            "result": self._take_result,
            "error": self._take_error,
            "chunk": self._take_chunk,
            "end": self._take_end,
            "pong": self._take_pong,
        }

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked for any more."""
        return self._closed is not None

    @property
    def busy(self) -> int:
        """How many calls are not answered yet."""
        return len(self._requests)

    @property
    def busy_until(self) -> float:
        """The latest deadline of the calls that are not answered yet, by the loop's clock; 0 if there are none."""
        return max((request.until for request in self._requests.values()), default=0.0)

    async def ready(self) -> Hello:
        """Wait until the member can be called.

        Raises:
            RemoteError: if its target could not be imported or made.
            ProtocolError: if it does not keep to the protocol, or to another version of it.
            LinkClosed: if it ended.
        """
        return await asyncio.shield(self._ready)

    def call(
        self,
        order: Order,
        *,
        window: int = 0,
        traceparent: str = "",
        future: asyncio.Future[Any] | None = None,
        answered: Callable[[], object] | None = None,
    ) -> Request:
        """Send a call, and wait for nothing; where the link is closed, it fails with `LinkClosed` like the others.

        Args:
            order: what is called, with what, and how long it may take; a member may or may not look at that.
            window: for a stream, how many chunks may be on their way.
            traceparent: the span that it is done under, if there is one.
            future: what gets the outcome; by default, one of the request's own.
            answered: called when nothing of it runs any more, right after its outcome is known; perhaps at once.

        Raises:
            TypeError, ValueError: for what the codec cannot carry; nothing was sent.
        """
        number, seal = self._count + 1, self._codec.seal
        args, kwargs = order.sealed or (seal(order.args), seal(order.kwargs))
        trace = encode(self._codec, ["trace", number, traceparent]) if traceparent else b""
        budget = None if order.until == math.inf else max(0.0, order.until - asyncio.get_running_loop().time())
        call = ["call", number, order.function, args, kwargs, budget, window]
        data = trace + encode(self._codec, call)
        self._count = number
        request = Request(number, window, self._send, self._codec, future=future, answered=answered)
        request.until = order.until
        if self._closed is not None:
            request.settle(None, error=self._closed)
        else:
            self._requests[number] = request
            self.pipes.write(data)
        return request

    def ping(self) -> asyncio.Future[Pong]:
        """Ask what it is about; it answers while a call runs, unless that holds the interpreter.

        What is returned fails with `LinkClosed` if it ended.
        """
        future: asyncio.Future[Pong] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            fail(future, self._closed)
        else:
            self._pinged += 1
            self._pings[self._pinged] = future
            self._send(["ping", self._pinged])
        return future

    def bye(self, grace: float) -> None:
        """Ask it to end when it has finished what it does, for which it has ``grace`` seconds; any number of times."""
        self._send(["bye", grace])
        self.pipes.end()

    def _send(self, frame: list[Any]) -> None:
        self.pipes.write(encode(self._codec, frame))

    # -- reading --------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if self._closed is not None:
            return
        if not data:
            midway = " in the middle of a frame" if self._decoder.midway else ""
            self._fail(LinkClosed(f"the member closed its output{midway}"))
            return
        try:
            for frame in self._decoder.feed(data):
                self._takes[frame[0]](*frame[1:])
        except ProtocolError as error:
            self._break(error)

    def _break(self, error: ProtocolError) -> None:
        fail(self._ready, error)
        closed = LinkClosed(f"the member broke the protocol: {error}")
        closed.__cause__ = error
        self._fail(closed)
        self._broken(error)

    def _fail(self, closed: LinkClosed) -> None:
        if self._closed is not None:
            return
        self._closed = closed
        self._ended()
        fail(self._ready, closed)
        for request in list(self._requests.values()):
            request.settle(None, error=closed)
        self._requests.clear()
        for ping in self._pings.values():
            fail(ping, closed)
        self._pings.clear()

    def _take_hello(self, version: int, pid: int, language: str) -> None:
        if self._hello is not None:
            raise ProtocolError("it greeted twice")
        if version != VERSION:
            raise ProtocolError(f"it speaks version {version} of the protocol ({language}); this is version {VERSION}")
        self._hello = Hello(pid, language)
        self.pipes.write(self._setup)

    def _take_ready(self) -> None:
        if self._hello is None or self._ready.done():
            raise ProtocolError("it is ready at a time when that was not asked")
        self._ready.set_result(self._hello)

    def _take_result(self, number: int, value: Any) -> None:
        self._answered(number, stream=False).take_result(value)

    def _take_end(self, number: int) -> None:
        self._answered(number, stream=True).settle(None)

    def _take_chunk(self, number: int, value: Any) -> None:
        self._request(number).take_chunk(value)

    def _take_error(self, number: int, kind: str, message: str, traceback: str, cancelled: bool) -> None:
        if number == 0 and not self._ready.done():
            fail(self._ready, RemoteError(kind, message, traceback))
            return
        request = self._request(number)
        del self._requests[number]
        # A member that was asked to end takes back what it runs without being asked for that.
        taken_back = cancelled and request.cancelled
        request.settle(None, error=Cancelled() if taken_back else RemoteError(kind, message, traceback))

    def _take_pong(self, number: int, busy_id: int | None, busy_seconds: float, rss: int) -> None:
        if not 0 < number <= self._pinged:
            raise ProtocolError(f"it answered ping {number}, which was not sent")
        # It may have been given up.
        if (future := self._pings.pop(number, None)) is not None and not future.done():
            future.set_result(Pong(busy_id, busy_seconds, rss))

    def _answered(self, number: int, *, stream: bool) -> Request:
        """The request that this is the end of; from here on it is none of ours, whatever its end causes."""
        request = self._request(number)
        if request.streams is not stream:
            what = "ended a stream that it is not" if stream else "has a result, but was asked for a stream"
            raise ProtocolError(f"call {number} {what}")
        del self._requests[number]
        return request

    def _request(self, number: int) -> Request:
        try:
            return self._requests[number]
        except KeyError:
            raise ProtocolError(f"it answered call {number}, which it does not have") from None


def setup_frame(codec: Codec, setup: Mapping[str, Any]) -> bytes:
    """What a member is sent when it has greeted. Raises TypeError or ValueError for what the codec cannot carry."""
    return encode(codec, ["setup", {**setup, "init": codec.seal(setup["init"])}])
