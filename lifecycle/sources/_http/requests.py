"""A webhook server: the way of a request from its first line to its answer, and the steps of its shutdown.

`Admission` makes an event of a request. Here it is put into its lane, awaited until its handler ends, or stored in an
inbox. Imports aiohttp, so this module is imported when a server starts.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lifecycle._net import share_of_descriptors
from lifecycle.errors import Dropped, JournalError, LaneFull, NotHandled
from lifecycle.sources._http.admission import Admission
from lifecycle.sources._http.server import Listener, Refused, json_response, problem

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

#: The status of an answer that does not know the result: the event is still being handled.
_STILL_RUNNING = 504

#: Characters of a path that are logged.
_LONGEST_PATH = 200

#: Seconds that requests in flight have to come to their end.
_GRACE = 3.0

#: The same at the very end, before those that wait for space are refused.
_LAST_GRACE = 0.3

#: Keys in the idempotency cache; the oldest is forgotten to make space for one more.
_MOST_KEYS = 65_536


class WebhookServer:
    """Listens, and answers each request once its event is in its lane, handled, or stored in ``inbox``."""

    def __init__(self, settings: Settings, inbox: InboxDelivery | None) -> None:
        self._settings = settings
        # As many clients may send a body as may wait to send a request.
        self._admission = Admission(settings, share_of_descriptors(4, least=16, most=10_000))
        self._listener = Listener(self._answer, header_timeout=settings.limits.header_timeout)
        self._in_flight = _InFlight()
        # An inbox has an idempotency cache of its own, on disk.
        self._inbox = inbox
        self._cache = _IdempotencyCache(settings.dedupe) if inbox is None and settings.dedupe else None
        # How many are being written into the inbox; these are never cancelled, or a request could be refused and kept.
        self._storing = 0
        # Where events go; None before the router takes them.
        self._emit: Emit | None = None
        self._opened = asyncio.Event()
        self._stopping = False
        #: Whether requests are answered with 503 until this is False again; the socket stays open.
        self.suspended = False

    # -- its life ----------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Open the socket, or take the one that was inherited for this address; return the host and port in use.

        Raises:
            OSError: with the address that cannot be used, and why.
        """
        return await self._listener.listen(host, port, context)

    def open(self, emit: Emit) -> None:
        """Send events to ``emit`` from now on, also those that came before."""
        self._emit = emit
        self._opened.set()

    def close(self) -> None:
        """Begin the end: refuse with 503, unless the socket is to be handed over first."""
        if not self._listener.inherited:
            self._stopping = True

    async def drain(self) -> None:
        """Leave an inherited socket to its next owner, and put requests in flight into their lanes, or refuse them."""
        await self._listener.hand_over()
        self._stopping = True
        await self._in_flight.wait_done(_GRACE)
        self._give_up()

    async def aclose(self, *, at_once: bool) -> None:
        """Answer requests in flight, then close every connection; ``at_once``: handlers are not waited for."""
        self._stopping = True
        try:
            await self._in_flight.wait_done(_LAST_GRACE)
            self._give_up()
            await self._in_flight.wait_done(0 if at_once else _GRACE, handled=True)
        finally:
            self._give_up(handled=True)
            await self._listener.aclose()

    def _give_up(self, *, handled: bool = False) -> None:
        """Refuse requests that wait for a body or for space; with ``handled``, also those that wait for a handler."""
        self._admission.give_up(_STOPPING)
        self._in_flight.give_up(handled=handled)

    # -- a request ---------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        """Answer ``request`` once its event is in its lane or inbox, or handled if that is waited for; or refuse it."""
        self._in_flight.begin()
        try:
            self._require_open()
            path = self._admission.admit(request)
            self._require_space()
            event, key = await self._admission.read(request, path)
            self._require_space()
            await (self._hand_over(event, key) if self._inbox is None else self._store(self._inbox, event, key))
        except Refused as refusal:
            return self._refuse(request, refusal)
        except ConnectionError:
            _log.debug("a client disconnected in the middle of a request")
            return problem(400, "the request is incomplete")
        else:
            return json_response(200 if self._settings.handled else 202, {"id": event.id, "topic": event.topic})
        finally:
            self._in_flight.end()

    def _require_open(self) -> None:
        if self._stopping or self.suspended:
            raise Refused.for_now(503, _STOPPING if self._stopping else _SUSPENDED)

    def _require_space(self) -> None:
        stored = 0 if self._inbox is None else self._inbox.waiting + self._storing
        if self._in_flight.pending + stored >= self._settings.limits.pending:
            raise Refused.for_now(429, "too many requests are waiting to be handled")

    async def _store(self, inbox: InboxDelivery, event: WebhookEvent, key: str) -> None:
        """Return when the event is on disk."""
        self._storing += 1
        try:
            await inbox.accept(event, key)
        except JournalError:
            raise Refused.for_now(503, "the request cannot be stored now") from None
        finally:
            self._storing -= 1

    async def _hand_over(self, event: WebhookEvent, key: str) -> None:
        """Return when the event is in its lane, or handled if that is waited for."""
        in_flight, task = self._in_flight, _this_task()
        in_flight.begin_waiting(task)
        try:
            if key and self._cache is not None:
                await self._deliver_once(self._cache, event, key)
            else:
                delivery = await self._emitted(event)
                if self._settings.handled:
                    await self._wait_handled(delivery)
        except asyncio.CancelledError:
            if in_flight.is_given_up(task):
                raise Refused.for_now(503, _STOPPING) from None
            raise
        finally:
            in_flight.end_waiting(task)

    async def _deliver_once(self, cache: _IdempotencyCache, event: WebhookEvent, key: str) -> None:
        async def take() -> Delivery | None:
            delivery = await self._emitted(event)
            return delivery if self._settings.handled else None

        delivery = await cache.once(key, take)
        if delivery is None:
            return
        try:
            await self._wait_handled(delivery)
        except Refused as refusal:
            if refusal.status != _STILL_RUNNING:
                cache.conclude(key, delivery, accepted=False)
            raise
        cache.conclude(key, delivery, accepted=True)

    async def _emitted(self, event: WebhookEvent) -> Delivery:
        """Put ``event`` into its lane, and return its delivery."""
        if self._emit is None:
            await self._opened.wait()
        assert self._emit is not None, "it is set before `_opened`"
        try:
            delivery = await self._emit(event)
        except LaneFull:
            raise Refused.for_now(503, "too many events are waiting to be handled") from None
        if delivery.done and isinstance(delivery.error, NotHandled):
            raise _refusal_of(delivery.error, event.topic)
        return delivery

    async def _wait_handled(self, delivery: Delivery) -> None:
        """Return when the handler has returned; refuse if it fails, or runs for longer than the answer may take."""
        seconds = self._settings.limits.answer_timeout
        limit = asyncio.timeout(seconds)
        with self._in_flight.following():
            try:
                async with limit:
                    await delivery
            except NotHandled as error:
                raise _refusal_of(error, delivery.event.topic) from None
            except Exception:  # noqa: BLE001  # the router has logged it, and its text is not for clients
                # A handler may raise TimeoutError, too.
                if limit.expired():
                    raise Refused(_STILL_RUNNING, f"its handler still runs after {seconds:g} s") from None
                raise Refused(500, "its handler failed") from None

    def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.Response:
        # Without the query, which often holds a token.
        path = request.raw_path.partition("?")[0][:_LONGEST_PATH]
        _log.info("refused %s %r from %s: %d, %s", request.method, path, request.remote, refusal.status, refusal.reason)
        answer = problem(refusal.status, refusal.reason, refusal.headers)
        if self._stopping or not request.content.is_eof():
            # The body stays unread, so no further request can follow on this connection.
            answer.force_close()
        return answer


def _refusal_of(error: NotHandled, topic: str) -> Refused:
    """Return the answer for an event that no handler took."""
    if isinstance(error, Dropped):
        return Refused.for_now(503, "the event was dropped; its handler is busy")
    return Refused(404, f"nothing handles {topic!r}")


# -- requests in flight ----------------------------------------------------------------------------------------


class _InFlight:
    """The requests without an answer: being read, waiting for space in a lane, or waiting for their handler."""

    def __init__(self) -> None:
        # How many are read or wait for space, and the future that resolves when there are fewer.
        self._busy = 0
        self._fewer: asyncio.Future[None] | None = None
        # The tasks of those that wait for space; of those that wait for a handler; and those cancelled to be answered.
        self._waiting: set[asyncio.Task[object]] = set()
        self._following: set[asyncio.Task[object]] = set()
        self._given_up: set[asyncio.Task[object]] = set()

    @property
    def pending(self) -> int:
        """How many wait for space or for a handler."""
        return len(self._waiting) + len(self._following)

    def begin(self) -> None:
        """Count one, from its first line on."""
        self._busy += 1

    def end(self) -> None:
        """Count it no more: it is answered, or waits for nothing but its handler."""
        self._busy -= 1
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    def begin_waiting(self, task: asyncio.Task[object]) -> None:
        """``task`` waits for space from here on."""
        self._waiting.add(task)

    def end_waiting(self, task: asyncio.Task[object]) -> None:
        """``task`` does not wait any more."""
        self._waiting.discard(task)
        self._given_up.discard(task)

    @contextmanager
    def following(self) -> Generator[None]:
        """Run a block in which the current task waits for its handler, and no longer for space.

        Raises:
            Refused: 504 when it is given up: not 503, since a sender that repeats it may have it handled twice.
        """
        task = _this_task()
        self._waiting.discard(task)
        self._following.add(task)
        self.end()
        try:
            yield
        except asyncio.CancelledError:
            if self.is_given_up(task):
                raise Refused(_STILL_RUNNING, f"{_STOPPING}, and its handler still runs") from None
            raise
        finally:
            self._following.discard(task)
            self.begin()

    def give_up(self, *, handled: bool = False) -> None:
        """Have those answered that wait for space; with ``handled`` also those that wait for a handler."""
        for task in (self._waiting | self._following if handled else self._waiting) - self._given_up:
            self._given_up.add(task)
            task.cancel()

    async def wait_done(self, seconds: float, *, handled: bool = False) -> None:
        """Wait until none is read or waits for space, at most ``seconds``; with ``handled``, nor for a handler."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy or (handled and self._following):
                    self._fewer = asyncio.get_running_loop().create_future()
                    await self._fewer

    def is_given_up(self, task: asyncio.Task[object]) -> bool:
        """Return whether `give_up` cancelled it, to be answered, and not aiohttp, which ends the connection."""
        return task in self._given_up and not task.uncancel()


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "a request is answered by a task"
    return task


# -- repeated requests -----------------------------------------------------------------------------------------


class _IdempotencyCache:
    """The keys of the requests that were accepted in the last ``seconds``, in memory."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # When each came, the oldest first; and whether it was accepted, once that is known, or the delivery that
        # decides it.
        self._keys: dict[str, tuple[float, asyncio.Future[bool | Delivery]]] = {}

    async def once(self, key: str, take: Callable[[], Awaitable[Delivery | None]]) -> Delivery | None:
        """Call ``take``, unless a request with the same ``key`` was accepted lately; while one is, wait for it.

        An error of ``take`` is raised, and not remembered. A delivery that it returns is returned to all requests with
        the key, until `conclude` sets its result.
        """
        while (first := self._find(key)) is not None:
            await asyncio.wait([first])
            if came := first.result():
                return None if came is True else came
        outcome = self._begin(key)
        try:
            delivery = await take()
        except BaseException:
            self._keys.pop(key, None)
            outcome.set_result(False)
            raise
        outcome.set_result(delivery or True)
        return delivery

    def conclude(self, key: str, delivery: Delivery, *, accepted: bool) -> None:
        """Set how ``delivery`` ended; a request that was not accepted may come again."""
        since, outcome = self._keys.get(key, (0.0, None))
        if outcome is None or not outcome.done() or outcome.result() is not delivery:
            # It was set before, or forgotten.
            return
        if accepted:
            self._keys[key] = since, _accepted()
        else:
            del self._keys[key]

    def _find(self, key: str) -> asyncio.Future[bool | Delivery] | None:
        now = asyncio.get_running_loop().time()
        while self._keys:
            oldest, (since, outcome) = next(iter(self._keys.items()))
            if now < since + self._seconds or not outcome.done():
                break
            del self._keys[oldest]
        came = self._keys.get(key)
        return None if came is None else came[1]

    def _begin(self, key: str) -> asyncio.Future[bool | Delivery]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[bool | Delivery] = loop.create_future()
        self._keys[key] = loop.time(), outcome
        if len(self._keys) > _MOST_KEYS:
            del self._keys[next(iter(self._keys))]
        return outcome


def _accepted() -> asyncio.Future[bool | Delivery]:
    """Return a result without the delivery, which would keep its event in memory."""
    outcome: asyncio.Future[bool | Delivery] = asyncio.get_running_loop().create_future()
    outcome.set_result(True)
    return outcome
