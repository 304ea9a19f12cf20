"""The webhook server, which handles requests from the first line to the response and shuts down in steps.

`Admission` turns a request into an event. This module puts the event into its lane, waits until its handler has
finished, or stores it in an inbox. It needs aiohttp, so it is imported only when a server starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from lifecycle import hooks
from lifecycle.errors import Dropped, JournalError, LaneFull, NotHandled, Refused
from lifecycle.sources._http.admission import Admission
from lifecycle.sources._http.server import Listener, json_response, problem, response

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Generator

    from aiohttp import web

    from lifecycle.control import Emit
    from lifecycle.control.deliveries import Delivery
    from lifecycle.events import WebhookEvent
    from lifecycle.sources._http.settings import Settings
    from lifecycle.sources.inbox import InboxDelivery

__all__ = ["WebhookServer"]

_log = logging.getLogger("lifecycle.sources")

_SUSPENDED = "the receiver is suspended"
_STOPPING = "the receiver is stopping"

#: The body of the response to a request without a result.
_ACCEPTED = '{"id": %s, "topic": %s}'

#: The status of a response that is sent while the handler is still running.
_STILL_RUNNING = 504

#: The maximum number of characters of a path that are logged.
_LONGEST_PATH = 200

#: The time limit, in seconds, for finishing requests in flight.
_GRACE = 3.0

#: A shorter limit, in seconds, that applies when the server closes. Requests still waiting for space are then refused.
_LAST_GRACE = 0.3

#: The maximum number of keys in the idempotency cache. If there are more, the oldest key is removed.
_MOST_KEYS = 65_536


#: The maximum number of bytes of results in the idempotency cache.
_MOST_BYTES = 64 * 1024 * 1024


class Answer(NamedTuple):
    """The response to an accepted request. If it has no content type, its body is the request's id and topic."""

    status: int
    body: bytes = b""
    content_type: str | None = None


_ACCEPTED_ANSWER: Final = Answer(202)
_HANDLED_ANSWER: Final = Answer(200)


def _answer_of(value: object) -> Answer:
    """Return the response with a handler's value as its body: bytes, text, or anything else as JSON.

    Raises:
        TypeError: if ``value`` cannot be converted to JSON. `ValueError` and `RecursionError` mean the same.
    """
    if value is None:
        return Answer(204, content_type="")
    if isinstance(value, bytes | bytearray):
        return Answer(200, bytes(value), "application/octet-stream")
    if isinstance(value, str):
        return Answer(200, value.encode(), "text/plain; charset=utf-8")
    return Answer(200, json.dumps(value, allow_nan=False).encode(), "application/json")


class WebhookServer:
    """Listens, and responds to a request once its event is in its lane, has been handled, or is stored in ``inbox``.

    ``source`` is the sender of `hooks.webhook_refused`.
    """

    def __init__(self, source: object, settings: Settings, inbox: InboxDelivery | None) -> None:
        self._source = source
        self._settings = settings
        self._admission = Admission(settings)
        self._listener = Listener(self._answer, header_timeout=settings.limits.header_timeout, refusal=self._refusal)
        self._in_flight = _InFlight()
        # An inbox has its own idempotency cache on disk.
        self._inbox = inbox
        self._cache = _IdempotencyCache(settings.dedupe)
        # The number of requests that are being written to the inbox. They are never cancelled, because a cancelled
        # request could be both refused and stored.
        self._storing = 0
        # The function that emits events. None until the router accepts them.
        self._emit: Emit | None = None
        self._opened = asyncio.Event()
        self._stopping = False
        #: If true, the response to every request is 503, and the socket stays open.
        self.suspended = False

    # -- start and stop ----------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Open the socket, or use the inherited socket for this address. Return the actual host and port.

        Raises:
            OSError: if the address cannot be used. The message names the address and the reason.
        """
        return await self._listener.listen(host, port, context)

    def open(self, emit: Emit) -> None:
        """Start emitting events with ``emit``, including the events of earlier requests."""
        self._emit = emit
        self._opened.set()

    def close(self) -> None:
        """Begin to shut down: refuse requests with 503, unless the socket must be handed over first."""
        if not self._listener.inherited:
            self._stopping = True

    async def drain(self) -> None:
        """Release an inherited socket for its next owner. Put requests in flight into their lanes, or refuse them."""
        await self._listener.hand_over()
        self._stopping = True
        await self._in_flight.wait_done(_GRACE)
        self._give_up()

    async def aclose(self, *, at_once: bool) -> None:
        """Finish requests in flight, then close every connection. If ``at_once`` is true, don't wait for handlers."""
        self._stopping = True
        try:
            await self._in_flight.wait_done(_LAST_GRACE)
            self._give_up()
            await self._in_flight.wait_done(0 if at_once else _GRACE, handled=True)
        finally:
            self._give_up(handled=True)
            await self._listener.aclose()

    def _give_up(self, *, handled: bool = False) -> None:
        """Refuse requests that are waiting for their body, for space or, if ``handled`` is true, for a handler."""
        self._admission.give_up(_STOPPING)
        self._in_flight.give_up(handled=handled)

    # -- handling a request ------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        """Refuse ``request``, or respond once its event has been queued, stored or, if configured, handled."""
        self._in_flight.begin()
        try:
            self._require_open()
            path = self._admission.admit(request)
            self._require_space()
            complete = request.content.is_eof()
            event, key = await self._admission.read(request, path)
            if not complete:
                # Other requests may have taken the space while the body arrived.
                self._require_space()
            answer = await (self._hand_over(event, key) if self._inbox is None else self._store(event, key))
        except Refused as refusal:
            return self._refuse(request, refusal)
        except ConnectionError:
            _log.debug("a client disconnected during a request")
            return problem(400, "the request is incomplete")
        else:
            if answer.content_type is not None:
                return response(answer.status, answer.body, answer.content_type)
            return json_response(answer.status, _ACCEPTED, event.id, event.topic)
        finally:
            self._in_flight.end()

    def _require_open(self) -> None:
        if self._stopping or self.suspended:
            raise Refused(503, _STOPPING if self._stopping else _SUSPENDED, retry_after=1)

    def _require_space(self) -> None:
        stored = 0 if self._inbox is None else self._inbox.waiting + self._storing
        if self._in_flight.pending + stored >= self._settings.limits.pending:
            raise Refused(429, "too many requests are waiting to be handled", retry_after=1)

    async def _store(self, event: WebhookEvent, key: str) -> Answer:
        """Store the event on disk."""
        assert self._inbox is not None, "the caller has checked it"
        self._storing += 1
        try:
            await self._inbox.accept(event, key)
        except JournalError:
            raise Refused(503, "the request cannot be stored at the moment", retry_after=1) from None
        finally:
            self._storing -= 1
        return _ACCEPTED_ANSWER

    async def _hand_over(self, event: WebhookEvent, key: str) -> Answer:
        """Wait until the event is in its lane or, if configured, has been handled."""
        in_flight, task = self._in_flight, _this_task()
        in_flight.begin_waiting(task)
        try:
            found = await self._cache.once(key, lambda: self._emitted(event))
            if isinstance(found, Answer):
                return found
            return await self._concluded(key, found)
        except asyncio.CancelledError:
            if in_flight.is_given_up(task):
                raise Refused(503, _STOPPING, retry_after=1) from None
            raise
        finally:
            in_flight.end_waiting(task)

    async def _concluded(self, key: str, delivery: Delivery) -> Answer:
        """Wait until ``delivery`` has been handled, and remember the answer. After an error, it can be repeated."""
        try:
            answer = await self._wait_handled(delivery)
        except Refused:
            if delivery.done:
                self._cache.conclude(key, delivery, None)
            raise
        self._cache.conclude(key, delivery, answer)
        return answer

    async def _emitted(self, event: WebhookEvent) -> Delivery | Answer:
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
        return _ACCEPTED_ANSWER if self._settings.answer == "accepted" else delivery

    async def _wait_handled(self, delivery: Delivery) -> Answer:
        """Wait for the handler to return. Refuse the request if the handler fails or exceeds ``answer_timeout``."""
        seconds = self._settings.limits.answer_timeout
        limit = asyncio.timeout(seconds)
        with self._in_flight.following():
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
        if self._settings.answer == "handled":
            return _HANDLED_ANSWER
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


def _refusal_of(error: NotHandled, topic: str) -> Refused:
    """Return the refusal for an event that no handler accepted."""
    if isinstance(error, Dropped):
        return Refused(503, "the event was dropped; its handler is busy", retry_after=1)
    return Refused(404, f"nothing handles {topic!r}")


# -- requests in flight ----------------------------------------------------------------------------------------


class _InFlight:
    """Requests that have no response yet.

    Each request is being read, waiting for space in a lane, or waiting for its handler.
    """

    def __init__(self) -> None:
        # The number of requests that are being read or waiting for space, and a future that is done when this number
        # decreases.
        self._busy = 0
        self._fewer: asyncio.Future[None] | None = None
        # The tasks of requests waiting for space, of requests waiting for a handler, and of requests that we cancelled
        # so that they get a response.
        self._waiting: set[asyncio.Task[object]] = set()
        self._following: set[asyncio.Task[object]] = set()
        self._given_up: set[asyncio.Task[object]] = set()

    @property
    def pending(self) -> int:
        """The number of requests that are waiting for space or for a handler."""
        return len(self._waiting) + len(self._following)

    def begin(self) -> None:
        """Start counting a request. Called when its request line arrives."""
        self._busy += 1

    def end(self) -> None:
        """Stop counting a request. Called when it has its response or is only waiting for its handler."""
        self._busy -= 1
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    def begin_waiting(self, task: asyncio.Task[object]) -> None:
        """Record that ``task`` is waiting for space."""
        self._waiting.add(task)

    def end_waiting(self, task: asyncio.Task[object]) -> None:
        """Record that ``task`` is no longer waiting."""
        self._waiting.discard(task)
        self._given_up.discard(task)

    @contextmanager
    def following(self) -> Generator[None]:
        """Run a block during which the current task is waiting for its handler rather than for space.

        Raises:
            Refused: with 504 if `give_up` cancelled the task. We don't use 503, because the sender would then repeat
                the request, and it could be handled twice.
        """
        task = _this_task()
        self._waiting.discard(task)
        self._following.add(task)
        self.end()
        try:
            yield
        except asyncio.CancelledError:
            if self.is_given_up(task):
                raise Refused(_STILL_RUNNING, f"{_STOPPING}, and the handler is still running") from None
            raise
        finally:
            self._following.discard(task)
            self.begin()

    def give_up(self, *, handled: bool = False) -> None:
        """Cancel requests waiting for space and, if ``handled`` is true, for a handler, so that they get a response."""
        for task in (self._waiting | self._following if handled else self._waiting) - self._given_up:
            self._given_up.add(task)
            task.cancel()

    async def wait_done(self, seconds: float, *, handled: bool = False) -> None:
        """Wait at most ``seconds`` until no requests are waiting for space or, if ``handled`` is true, for a handler.

        This also waits for requests that are being read.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy or (handled and self._following):
                    self._fewer = asyncio.get_running_loop().create_future()
                    await self._fewer

    def is_given_up(self, task: asyncio.Task[object]) -> bool:
        """Return whether ``task`` was cancelled by `give_up` and not by aiohttp, which cancels it on a disconnect."""
        return task in self._given_up and not task.uncancel()


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "a request is answered by a task"
    return task


# -- repeated requests -----------------------------------------------------------------------------------------


class _IdempotencyCache:
    """The answers to the requests of the last ``seconds``, in memory, by their keys. "" is not a key."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # The arrival time and outcome of each key, oldest first. The outcome is the answer, the delivery that will
        # determine it, or None if the request was not accepted.
        self._keys: dict[str, tuple[float, asyncio.Future[Answer | Delivery | None]]] = {}
        self._size = 0

    async def once(self, key: str, take: Callable[[], Awaitable[Answer | Delivery]]) -> Answer | Delivery:
        """Return the outcome of ``take``, or of a recent request with the same ``key``.

        If such a request is being accepted, wait for it. Errors raised by ``take`` propagate and are not stored.
        """
        if not key or not self._seconds:
            return await take()
        while (first := self._find(key)) is not None:
            await asyncio.wait([first])
            if (found := first.result()) is not None:
                return found
        outcome = self._begin(key)
        try:
            found = await take()
        except BaseException:
            self._keys.pop(key, None)
            outcome.set_result(None)
            raise
        outcome.set_result(found)
        return found

    def conclude(self, key: str, delivery: Delivery, answer: Answer | None) -> None:
        """Store the answer of ``delivery``, or None if the request can be repeated."""
        since, outcome = self._keys.get(key, (0.0, None))
        if outcome is None or not outcome.done() or outcome.result() is not delivery:
            # The answer has already been stored, or the key has been forgotten.
            return
        if answer is None:
            del self._keys[key]
            return
        # A delivery would keep its event in memory.
        self._keys[key] = since, _done(answer)
        self._size += len(answer.body)
        while self._size > _MOST_BYTES:
            self._forget_oldest()

    def _find(self, key: str) -> asyncio.Future[Answer | Delivery | None] | None:
        now = asyncio.get_running_loop().time()
        while self._keys:
            since, outcome = next(iter(self._keys.values()))
            if now < since + self._seconds or not outcome.done():
                break
            self._forget_oldest()
        found = self._keys.get(key)
        return None if found is None else found[1]

    def _begin(self, key: str) -> asyncio.Future[Answer | Delivery | None]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Answer | Delivery | None] = loop.create_future()
        self._keys[key] = loop.time(), outcome
        if len(self._keys) > _MOST_KEYS:
            self._forget_oldest()
        return outcome

    def _forget_oldest(self) -> None:
        _, outcome = self._keys.pop(next(iter(self._keys)))
        if outcome.done() and isinstance(found := outcome.result(), Answer):
            self._size -= len(found.body)


def _done(answer: Answer) -> asyncio.Future[Answer | Delivery | None]:
    outcome: asyncio.Future[Answer | Delivery | None] = asyncio.get_running_loop().create_future()
    outcome.set_result(answer)
    return outcome
