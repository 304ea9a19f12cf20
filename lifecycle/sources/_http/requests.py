"""The way of a webhook request, from its first line to its answer.

`Admission` makes an event of it; here that is brought into its lane, to the end of its handler, or into an inbox.
Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle.errors import Dropped, JournalError, LaneFull, NotHandled
from lifecycle.sources._http.admission import Admission
from lifecycle.sources._http.answers import STILL_RUNNING, Refused, accepted, handled, problem
from lifecycle.sources._http.repeats import Repeats
from lifecycle.sources._http.under_way import STOPPING, UnderWay

if TYPE_CHECKING:
    from aiohttp import web

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.types import Emit
    from lifecycle.events import WebhookEvent
    from lifecycle.sources._http.rules import Rules
    from lifecycle.sources._inbox.deliverer import Deliverer

__all__ = ["Requests"]

_log = logging.getLogger("lifecycle.sources")

_SUSPENDED = "the receiver is suspended"

#: Characters of a path that are logged.
_LONGEST_PATH = 200


class Requests:
    """Answers the requests of one server; ``most`` may send a body at a time."""

    def __init__(self, rules: Rules, most: int, inbox: Deliverer | None) -> None:
        self._rules = rules
        self._admission = Admission(rules, most)
        self._under_way = UnderWay()
        # Where requests are kept, and which were here before; without an inbox that is known in memory only.
        self._inbox = inbox
        self._repeats = Repeats(rules.dedupe) if inbox is None and rules.dedupe else None
        # How many are being written into the inbox; nobody cancels those, or a request could be refused and kept.
        self._keeping = 0
        # Where events go; none before the router takes them.
        self._emit: Emit | None = None
        self._opened = asyncio.Event()
        self._stopping = False
        #: Whether to refuse what comes, until this is False again.
        self.suspended = False

    def open(self, emit: Emit) -> None:
        """Hand events to ``emit`` from now on, also those that came before."""
        self._emit = emit
        self._opened.set()

    def stop(self) -> None:
        """Refuse what comes from now on; what is under way goes on."""
        self._stopping = True

    def give_up(self, *, handled: bool = False) -> None:
        """Refuse also what waits for a body or for room; with ``handled``, answer also who waits for a handler."""
        self.stop()
        self._admission.give_up(STOPPING)
        self._under_way.give_up(handled=handled)

    async def wait_rest(self, seconds: float, *, handled: bool = False) -> None:
        """Wait until nothing is under way, at most ``seconds``; with ``handled``, nor its event in a handler."""
        await self._under_way.wait_rest(seconds, handled=handled)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to ``request``, once its event is in its lane, or handled if that is waited for; or refused."""
        self._under_way.begin()
        try:
            self._require_open()
            path = self._admission.admit(request)
            self._require_room()
            event, key = await self._admission.read(request, path)
            self._require_room()
            await (self._hand_over(event, key) if self._inbox is None else self._keep(self._inbox, event, key))
        except Refused as refusal:
            return self._refuse(request, refusal)
        except ConnectionError:
            _log.debug("a client went away in the middle of a request")
            return problem(400, "the request is incomplete")
        else:
            return handled(event) if self._rules.handled else accepted(event)
        finally:
            self._under_way.end()

    def _require_open(self) -> None:
        if self._stopping or self.suspended:
            raise Refused.for_now(503, STOPPING if self._stopping else _SUSPENDED)

    def _require_room(self) -> None:
        kept = 0 if self._inbox is None else self._inbox.waiting + self._keeping
        if self._under_way.pending + kept >= self._rules.limits.pending:
            raise Refused.for_now(429, "too many requests are waiting to be handled")

    async def _keep(self, inbox: Deliverer, event: WebhookEvent, key: str) -> None:
        """Return when the event is on disk."""
        self._keeping += 1
        try:
            await inbox.accept(event, key)
        except JournalError:
            raise Refused.for_now(503, "the request cannot be stored now") from None
        finally:
            self._keeping -= 1

    async def _hand_over(self, event: WebhookEvent, key: str) -> None:
        """Return when the event is in its lane, or, if that is waited for, handled."""
        with self._under_way.waiting():
            if key and self._repeats is not None:
                await self._deliver_once(self._repeats, event, key)
            else:
                delivery = await self._emitted(event)
                if self._rules.handled:
                    await self._wait_end(delivery)

    async def _deliver_once(self, repeats: Repeats, event: WebhookEvent, key: str) -> None:
        async def take() -> Delivery | None:
            delivery = await self._emitted(event)
            return delivery if self._rules.handled else None

        delivery = await repeats.once(key, take)
        if delivery is None:
            return
        try:
            await self._wait_end(delivery)
        except Refused as refusal:
            if refusal.status != STILL_RUNNING:
                repeats.conclude(key, delivery, accepted=False)
            raise
        repeats.conclude(key, delivery, accepted=True)

    async def _emitted(self, event: WebhookEvent) -> Delivery:
        """The delivery of ``event`` in its lane."""
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

    async def _wait_end(self, delivery: Delivery) -> None:
        """Return when its handler has."""
        with self._under_way.following():
            await _handled(delivery, self._rules.limits.answer_timeout)

    def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.Response:
        # Without the query, where many put a token.
        path = request.raw_path.partition("?")[0][:_LONGEST_PATH]
        _log.info("refused %s %r from %s: %d, %s", request.method, path, request.remote, refusal.status, refusal.reason)
        answer = problem(refusal.status, refusal.reason, refusal.headers)
        if self._stopping or not request.content.is_eof():
            # The body stays unread, so no further request can follow on this connection.
            answer.force_close()
        return answer


async def _handled(delivery: Delivery, seconds: float) -> None:
    """Return when the handler has, but wait no longer than ``seconds``; refuse where that is no success."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await delivery
    except NotHandled as error:
        raise _refusal_of(error, delivery.event.topic) from None
    except Exception:  # noqa: BLE001  # whatever it raised was logged by the router, and is nobody's business
        # A handler may raise TimeoutError, too.
        if limit.expired():
            raise Refused(STILL_RUNNING, f"its handler still runs after {seconds:g} s, and goes on") from None
        raise Refused(500, "its handler failed") from None


def _refusal_of(error: NotHandled, topic: str) -> Refused:
    """What to answer for an event that nobody took."""
    if isinstance(error, Dropped):
        return Refused.for_now(503, "the event was dropped; its handler is busy")
    return Refused(404, f"nothing handles {topic!r}")
