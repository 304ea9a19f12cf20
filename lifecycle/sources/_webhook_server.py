"""The webhook server, which handles requests from the first line to the response and shuts down in steps.

`Admission` turns a request into an event. This module reads the body, puts the event into its lane, waits until its
handler has finished, or stores it in an inbox. It needs aiohttp, so it is imported only when a server starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from aiohttp import web
from multidict import CIMultiDict

from lifecycle import hooks
from lifecycle._http import SERVER, HttpServer, problem
from lifecycle.errors import Dropped, JournalError, LaneFull, NotHandled, Refused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from lifecycle._listening import Listening
    from lifecycle.control import Emit
    from lifecycle.control.deliveries import Delivery
    from lifecycle.events import WebhookEvent
    from lifecycle.sources._webhook_rules import Admission, Limits
    from lifecycle.sources.inbox import InboxDelivery

__all__ = ["WebhookServer"]

_log = logging.getLogger("lifecycle.sources")

_SUSPENDED = "the receiver is suspended"
_STOPPING = "the receiver is stopping"
_SLOW_BODY = "the body took too long to arrive"
_MALFORMED = "the body is malformed"

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

#: The status of a response that is sent while the handler is still running.
_STILL_RUNNING = 504

#: The maximum number of characters of a path that are logged.
_LONGEST_PATH = 200

#: The time limit, in seconds, for finishing requests in flight.
_GRACE = 3.0

#: A shorter limit, in seconds, that applies when the server closes. Requests still waiting for space are then refused.
_LAST_GRACE = 0.3

#: The maximum number of keys in the idempotency cache, and of bytes of results. Above it, the oldest key is removed.
_MOST_KEYS = 65_536
_MOST_BYTES = 64 * 1024 * 1024

_JSON = CIMultiDict({"Content-Type": "application/json", **SERVER})


class _Answer(NamedTuple):
    """The response to an accepted request. Without a content type, its body is the request's id and topic."""

    status: int
    body: bytes = b""
    content_type: str | None = None


_ACCEPTED: Final = _Answer(202)
_HANDLED: Final = _Answer(200)


def _answer_of(value: object) -> _Answer:
    """Return the response with a handler's value as its body: bytes, text, or anything else as JSON.

    Raises:
        TypeError: if ``value`` cannot be converted to JSON. `ValueError` and `RecursionError` mean the same.
    """
    if value is None:
        return _Answer(204, content_type="")
    if isinstance(value, bytes | bytearray):
        return _Answer(200, bytes(value), "application/octet-stream")
    if isinstance(value, str):
        return _Answer(200, value.encode(), "text/plain; charset=utf-8")
    return _Answer(200, json.dumps(value, allow_nan=False).encode(), "application/json")


#: The steps of a request: it is being checked or stored, waits for its body, for space in its lane, or for its handler.
_BUSY, _BODY, _SPACE, _HANDLER = range(4)


class _InFlight:
    """A request that has no response yet."""

    __slots__ = ("held", "refusal", "step", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a request is answered by a task"
        self.task = task
        self.step = _BUSY
        #: The number of bytes of its body in memory while the rest is awaited.
        self.held = 0
        #: Why its task was cancelled. aiohttp also cancels tasks, when their clients disconnect.
        self.refusal: Refused | None = None

    def give_up(self, refusal: Refused) -> None:
        """Cancel the request's task, so that the response is ``refusal``."""
        self.refusal = refusal
        self.task.cancel()


class WebhookServer:
    """Listens, and responds to a request once its event is in its lane, has been handled, or is stored in ``inbox``.

    ``source`` is the sender of `hooks.webhook_refused`.
    """

    def __init__(
        self,
        source: object,
        listening: Listening,
        admission: Admission,
        limits: Limits,
        inbox: InboxDelivery | None,
        *,
        context: ssl.SSLContext | None,
        dedupe: float,
        answer: Literal["accepted", "handled", "result"],
    ) -> None:
        self._source = source
        self._admission = admission
        self._limits = limits
        self._inbox = inbox
        self._waits_for = answer
        self._is_inherited = listening.inherited
        self.http: HttpServer = HttpServer(
            listening,
            self._answer,
            timeout=limits.header_timeout,
            refusal=self._refusal,
            log=_log,
            context=context,
        )
        # An inbox has its own idempotency cache on disk.
        self._cache = _IdempotencyCache(dedupe)
        # Requests without a response, oldest first.
        self._in_flight: dict[_InFlight, None] = {}
        # The number of requests that wait for space, for their handler, or to be written to the inbox, and of bytes of
        # bodies that have not arrived completely.
        self._pending = self._held = 0
        # A future that is done when a request has reached its next step.
        self._progress: asyncio.Future[None] | None = None
        # The function that emits events. None until the router accepts them.
        self._emit: Emit | None = None
        self._opened = asyncio.Event()
        self._stopping = False
        #: If true, the response to every request is 503, and the socket stays open.
        self.suspended = False

    # -- start and stop ----------------------------------------------------------------------------------------

    def open(self, emit: Emit) -> None:
        """Start emitting events with ``emit``, including the events of earlier requests."""
        self._emit = emit
        self._opened.set()

    def close(self) -> None:
        """Begin to shut down: refuse requests with 503, unless the socket must be handed over first."""
        if not self._is_inherited:
            self._stopping = True

    async def drain(self) -> None:
        """Release an inherited socket for its next owner. Put requests in flight into their lanes, or refuse them."""
        await self.http.hand_over()
        self._stopping = True
        await self._wait_done(_GRACE)
        self._give_up()

    async def aclose(self, *, at_once: bool) -> None:
        """Finish requests in flight, then close every connection. If ``at_once`` is true, don't wait for handlers."""
        self._stopping = True
        try:
            await self._wait_done(_LAST_GRACE)
            self._give_up()
            await self._wait_done(0 if at_once else _GRACE, handled=True)
        finally:
            self._give_up(handled=True)
            await self.http.aclose()

    async def _wait_done(self, seconds: float, *, handled: bool = False) -> None:
        """Wait at most ``seconds`` for all responses, except those that wait for a handler unless ``handled`` is true.

        Each request has reached its next step when the future is done.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(handled or each.step != _HANDLER for each in self._in_flight):
                    self._progress = asyncio.get_running_loop().create_future()
                    await self._progress

    def _give_up(self, *, handled: bool = False) -> None:
        """Refuse requests that are waiting for their body, for space or, if ``handled`` is true, for a handler."""
        for each in self._in_flight:
            if each.refusal is not None:
                continue
            if each.step in (_BODY, _SPACE):
                each.give_up(Refused(503, _STOPPING, retry_after=1))
            elif each.step == _HANDLER and handled:
                # After a 503, the sender would repeat the request, and it could be handled twice.
                each.give_up(Refused(_STILL_RUNNING, f"{_STOPPING}, and the handler is still running"))

    def _move(self, this: _InFlight, step: int) -> None:
        self._pending += (step >= _SPACE) - (this.step >= _SPACE)
        self._held -= this.held
        this.step, this.held = step, 0
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # -- handling a request ------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        """Refuse ``request``, or respond once its event has been queued, stored or, if configured, handled."""
        this = _InFlight()
        self._in_flight[this] = None
        try:
            event, key = await self._admitted(this, request)
            answer = await (self._hand_over(this, event, key) if self._inbox is None else self._store(event, key))
        except Refused as refusal:
            return self._refuse(request, refusal)
        except asyncio.CancelledError:
            if this.refusal is None or this.task.uncancel():
                raise
            return self._refuse(request, this.refusal)
        except ConnectionError:
            _log.debug("a client disconnected during a request")
            return problem(400, "the request is incomplete")
        finally:
            del self._in_flight[this]
            self._move(this, _BUSY)
        if answer.content_type is None:
            body = f'{{"id": {_quoted(event.id)}, "topic": {_quoted(event.topic)}}}'
            return web.Response(status=answer.status, body=body.encode(), headers=_JSON)
        headers = {**SERVER, **({"Content-Type": answer.content_type} if answer.content_type else {})}
        return web.Response(status=answer.status, body=answer.body or None, headers=headers)

    async def _admitted(self, this: _InFlight, request: web.BaseRequest) -> tuple[WebhookEvent, str]:
        """Return the event and its idempotency key."""
        if self._stopping or self.suspended:
            raise Refused(503, _STOPPING if self._stopping else _SUSPENDED, retry_after=1)
        admission = self._admission
        path = admission.path(request)
        self._require_space()
        headers = admission.headers(request)
        if (request.content_length or 0) > self._limits.body:
            raise self._too_large()
        try:
            if request.content.is_eof():
                # The body has arrived together with the headers, as most bodies do.
                body = request.content.read_nowait()
                if len(body) > self._limits.body:
                    raise self._too_large()
            else:
                admission.require_credential(headers)
                body = await self._read(this, request)
                # Other requests may have taken the space while the body arrived.
                self._require_space()
        except web.RequestPayloadError:
            raise Refused(400, _MALFORMED) from None
        return admission.event(request, path, headers, body)

    def _require_space(self) -> None:
        stored = 0 if self._inbox is None else self._inbox.waiting
        if self._pending + stored >= self._limits.pending:
            raise Refused(429, "too many requests are waiting to be handled", retry_after=1)

    async def _store(self, event: WebhookEvent, key: str) -> _Answer:
        """Store the event on disk. We never cancel this, because the request could be both refused and stored."""
        assert self._inbox is not None, "the caller has checked it"
        self._pending += 1
        try:
            await self._inbox.accept(event, key)
        except JournalError:
            raise Refused(503, "the request cannot be stored at the moment", retry_after=1) from None
        finally:
            self._pending -= 1
        return _ACCEPTED

    async def _hand_over(self, this: _InFlight, event: WebhookEvent, key: str) -> _Answer:
        """Wait until the event is in its lane or, if configured, has been handled."""
        self._move(this, _SPACE)
        first = await self._cache.once(key, lambda: self._emitted(event)) if key else None
        found = await self._emitted(event) if first is None else first.found
        if isinstance(found, _Answer):
            return found
        self._move(this, _HANDLER)
        try:
            answer = await self._handled(found)
        except Refused:
            # After an error, the request can be repeated.
            if first is not None and found.done:
                self._cache.forget(first)
            raise
        if first is not None:
            self._cache.keep(first, answer)
        return answer

    async def _emitted(self, event: WebhookEvent) -> Delivery | _Answer:
        """Put ``event`` into its lane. Return the answer, or the delivery if the sender waits for its handler."""
        if self._emit is None:
            await self._opened.wait()
        assert self._emit is not None, "it is set before `_opened`"
        try:
            delivery = await self._emit(event)
        except LaneFull:
            raise Refused(503, "too many events are waiting to be handled", retry_after=1) from None
        if delivery.done and isinstance(delivery.error, NotHandled):
            raise _refusal_of(delivery.error, event.topic)
        return _ACCEPTED if self._waits_for == "accepted" else delivery

    async def _handled(self, delivery: Delivery) -> _Answer:
        """Wait for the handler to return. Refuse the request if the handler fails or exceeds ``answer_timeout``."""
        seconds = self._limits.answer_timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                value = await delivery
        except Refused:
            raise
        except NotHandled as error:
            raise _refusal_of(error, delivery.event.topic) from None
        except Exception:  # noqa: BLE001  # the router has logged the error, whose text is not meant for clients
            # Otherwise, the handler itself raised TimeoutError.
            if limit.expired():
                raise Refused(_STILL_RUNNING, f"the handler is still running after {seconds:g} s") from None
            raise Refused(500, "the handler failed") from None
        if self._waits_for == "handled":
            return _HANDLED
        try:
            return _answer_of(value)
        except (TypeError, ValueError, RecursionError) as error:
            _log.error(  # the traceback does not contain the handler
                "the handler of %s returned a %s, which cannot be sent: %s; return bytes, text or a JSON value",
                delivery.event.topic,
                type(value).__qualname__,
                error,
            )
            raise Refused(500, "the handler's result cannot be sent") from None

    def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.Response:
        # Leave out the query, because it often contains a token.
        path = request.raw_path.partition("?")[0][:_LONGEST_PATH]
        _log.info("refused %s %r from %s: %d, %s", request.method, path, request.remote, refusal.status, refusal.reason)
        answer = self._refusal(refusal.status, refusal.reason, refusal.headers)
        if self._stopping or not request.content.is_eof():
            # The body has not been read, so the connection cannot be used for another request.
            answer.force_close()
        return answer

    def _refusal(self, status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
        hooks.webhook_refused.announce(self._source, status=status, reason=reason)
        return problem(status, reason, headers)

    # -- request bodies ----------------------------------------------------------------------------------------

    async def _read(self, this: _InFlight, request: web.BaseRequest) -> bytes:
        """Wait for a body that did not arrive together with the headers.

        Slow clients share enough memory for ``limits.pending`` full bodies. If they exceed it, the client that has been
        sending for the longest time is refused. As a result, slow clients affect each other but not fast clients.
        `HttpServer` limits their number.

        Raises:
            Refused: with 413 if it is larger than the limit, or with 408 if it takes too long.
            ConnectionError: if the client disconnects.
        """
        body = bytearray()
        self._move(this, _BODY)
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                await _invite(request)
                while True:
                    if request.transport is None:
                        # Without this check, aiohttp would raise a RuntimeError.
                        raise ConnectionResetError("the client disconnected")
                    chunk = await request.content.readany()
                    if not chunk:
                        return bytes(body)
                    body += chunk
                    if len(body) > self._limits.body:
                        raise self._too_large()
                    this.held += len(chunk)
                    self._held += len(chunk)
                    while self._held > self._limits.body * self._limits.pending:
                        self._refuse_slowest(this)
        except TimeoutError:
            raise Refused(408, _SLOW_BODY) from None
        finally:
            self._move(this, _BUSY)

    def _refuse_slowest(self, this: _InFlight) -> None:
        slowest = next(each for each in self._in_flight if each.step == _BODY)
        if slowest is this:
            raise Refused(408, _SLOW_BODY)
        self._move(slowest, _BUSY)
        slowest.give_up(Refused(408, _SLOW_BODY))

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self._limits.body} bytes")


async def _invite(request: web.BaseRequest) -> None:
    """Ask for the body if the client is waiting for permission to send it. The headers have already been checked."""
    expected = request.headers.get("Expect")
    if expected is None:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, "the only supported expectation is 100-continue")
    await request.writer.write(_CONTINUE)
    # This line is not part of the response, which has not started yet.
    request.writer.output_size = 0


def _refusal_of(error: NotHandled, topic: str) -> Refused:
    """Return the refusal for an event that no handler accepted."""
    if isinstance(error, Dropped):
        return Refused(503, "the event was dropped; its handler is busy", retry_after=1)
    return Refused(404, f"nothing handles {topic!r}")


# -- repeated requests -----------------------------------------------------------------------------------------


class _First:
    """The first request with its key."""

    __slots__ = ("accepted", "found", "key", "since")

    def __init__(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        self.key = key
        self.since = loop.time()
        #: Done when the request has been accepted, or False if it has been refused. Repetitions wait for it.
        self.accepted: asyncio.Future[bool] = loop.create_future()
        #: The answer, or the delivery that will determine it.
        self.found: _Answer | Delivery = _ACCEPTED


class _IdempotencyCache:
    """The answers to the requests of the last ``seconds``, in memory, by their keys."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Oldest first.
        self._firsts: dict[str, _First] = {}
        self._size = 0

    async def once(self, key: str, take: Callable[[], Awaitable[_Answer | Delivery]]) -> _First:
        """Return a recent request with the same ``key`` that was accepted, or a new one with the outcome of ``take``.

        Errors raised by ``take`` propagate and are not stored.
        """
        while (first := self._find(key)) is not None:
            await asyncio.wait([first.accepted])
            if first.accepted.result():
                return first
        first = _First(key)
        if self._seconds:
            self._firsts[key] = first
            if len(self._firsts) > _MOST_KEYS:
                self._forget_oldest()
        try:
            first.found = await take()
        except BaseException:
            self.forget(first)
            first.accepted.set_result(False)
            raise
        first.accepted.set_result(True)
        return first

    def keep(self, first: _First, answer: _Answer) -> None:
        """Store the answer, unless it is already stored or forgotten. A delivery would keep its event in memory."""
        if self._firsts.get(first.key) is first and not isinstance(first.found, _Answer):
            first.found = answer
            self._size += len(answer.body)
            while self._size > _MOST_BYTES:
                self._forget_oldest()

    def forget(self, first: _First) -> None:
        """Forget a request, so that it can be repeated."""
        if self._firsts.get(first.key) is first:
            del self._firsts[first.key]
            if isinstance(first.found, _Answer):
                self._size -= len(first.found.body)

    def _find(self, key: str) -> _First | None:
        now = asyncio.get_running_loop().time()
        while self._firsts:
            oldest = next(iter(self._firsts.values()))
            if now < oldest.since + self._seconds or not oldest.accepted.done():
                break
            self.forget(oldest)
        return self._firsts.get(key)

    def _forget_oldest(self) -> None:
        self.forget(next(iter(self._firsts.values())))
