"""The way of a webhook request: path, method, rate, size, signature, lane; and the answer.

What is refused is refused as early as it can be, so that strangers cost little: a body is read only if everything
before it was in order. Needs aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError, LaneFull, NotHandled, VerificationError
from lifecycle.events import WebhookEvent
from lifecycle.sources._http.answers import accepted, handled, problem
from lifecycle.sources._http.bodies import Bodies
from lifecycle.sources._http.heads import headers_of, is_from_a_page, loggable, query_of, require_plain
from lifecycle.sources._http.outcomes import STILL_RUNNING, refusal_of
from lifecycle.sources._http.outcomes import handled as until_handled
from lifecycle.sources._http.paths import decoded
from lifecycle.sources._http.rates import Rates
from lifecycle.sources._http.refusals import Refused
from lifecycle.sources._http.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.types import Emit
    from lifecycle.sources._http.rules import Rules
    from lifecycle.sources._inbox.deliverer import Deliverer

__all__ = ["Requests"]

_log = logging.getLogger("lifecycle.sources")

_STOPPING = "the receiver is stopping"
_SUSPENDED = "the receiver is suspended"


class Requests:
    """Turns the requests of one server into events."""

    def __init__(self, rules: Rules, most: int, inbox: Deliverer | None) -> None:
        self._rules = rules
        # Where requests are kept, and which were here before; without an inbox that is known in memory only.
        self._inbox = inbox
        self._repeats = Repeats(rules.dedupe) if inbox is None and rules.dedupe else None
        self._bodies = Bodies(rules.limits, most)
        self._rates = None if rules.limits.rate is None else Rates(*rules.limits.rate)
        # Where events go; none before the router takes them and none while stopping.
        self._emit: Emit | None = None
        self._opened = asyncio.Event()
        self._stopping = False
        #: Whether to refuse what comes, until this is False again.
        self.suspended = False
        # How many requests are being read or wait for room, and who wants to know when there are fewer.
        self._busy = 0
        self._rested: asyncio.Future[None] | None = None
        # The tasks of verified requests on their way into a lane; of those that wait for its handler; and which of them
        # we have cancelled, to be answered.
        self._waiting: set[asyncio.Task[object]] = set()
        self._following: set[asyncio.Task[object]] = set()
        self._given_up: set[asyncio.Task[object]] = set()
        # How many are being written into the inbox; nobody cancels those, or a request could be refused and kept.
        self._keeping = 0
        # Names that are unique across restarts, and cheap.
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def open(self, emit: Emit) -> None:
        """Hand events to ``emit`` from now on, also those that came before."""
        self._emit = emit
        self._opened.set()

    def stop(self) -> None:
        """Refuse what comes from now on; what is under way goes on."""
        self._stopping = True

    def give_up(self) -> None:
        """Refuse also what waits for room."""
        self.stop()
        self._cancel(self._waiting)

    def part(self) -> None:
        """Answer also those whose events are being handled."""
        self.give_up()
        self._cancel(self._following)

    def _cancel(self, tasks: set[asyncio.Task[object]]) -> None:
        for task in tasks - self._given_up:
            self._given_up.add(task)
            task.cancel()

    async def wait_rest(self, seconds: float, *, handled: bool) -> None:
        """Wait until nothing is under way, but not longer than ``seconds``; with ``handled``, in the handlers too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy or (handled and self._following):
                    self._rested = asyncio.get_running_loop().create_future()
                    await self._rested

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to ``request``, once its event is in its lane, or handled if that is waited for; or refused."""
        self._busy += 1
        try:
            event, key = await self._read(request)
            if self._inbox is None:
                await self._hand_over(event, key)
            else:
                await self._keep(self._inbox, event, key)
        except Refused as refusal:
            return self._refuse(request, refusal)
        except ConnectionError:
            _log.debug("a client went away in the middle of a request")
            return problem(400, "the request is incomplete")
        else:
            return handled(event) if self._rules.handled else accepted(event)
        finally:
            self._rest()

    async def _read(self, request: web.BaseRequest) -> tuple[WebhookEvent, str]:
        """The event, and by what a repetition of it is known (``""``: by nothing)."""
        path = self._admit(request)
        headers = headers_of(request)
        require_plain(headers)
        body = self._bodies.at_hand(request)
        if body is None:
            self._require_credential(headers)
            body = await self._bodies.wait(request)
        identity = self._verify(headers, body)
        event = WebhookEvent(request.method, path, headers, query_of(request), body, identity or self._new_id())
        if not identity and self._rules.replay_key is not None:
            identity = self._rules.replay_key(headers, body)
        # With the path: GitHub gives one id to all the hooks that an event goes to.
        return event, f"{path} {identity}" if identity else ""

    def _admit(self, request: web.BaseRequest) -> str:
        """The path, if nothing speaks against the request so far."""
        rules = self._rules
        if self._stopping or self.suspended:
            raise Refused.for_now(503, _STOPPING if self._stopping else _SUSPENDED)
        path = decoded(request.raw_path.partition("?")[0])
        if path is None or (rules.paths is not None and path not in rules.paths):
            raise Refused(404, "there is nothing under this path")
        if request.method not in rules.methods:
            allowed = ", ".join(rules.methods)
            raise Refused(405, f"this method is not allowed; use {allowed}", headers={"Allow": allowed})
        if self._rates is not None:
            self._hold_to_rate(self._rates, request)
        self._check_room()
        return path

    def _hold_to_rate(self, rates: Rates, request: web.BaseRequest) -> None:
        wait = rates.wait(request.remote or "", asyncio.get_running_loop().time())
        if wait > 0:
            raise Refused.for_now(429, "too many requests", after=wait)

    def _check_room(self) -> None:
        kept = 0 if self._inbox is None else self._inbox.waiting + self._keeping
        if len(self._waiting) + len(self._following) + kept >= self._rules.limits.pending:
            raise Refused.for_now(429, "too many requests are waiting to be handled")

    def _require_credential(self, headers: Mapping[str, str]) -> None:
        """Before a body is waited for: who shows nothing that could prove anything is refused without it."""
        needed = self._rules.credential_header
        if self._rules.verify is None or (needed and needed not in headers):
            self._verify(headers, b"")

    def _verify(self, headers: Mapping[str, str], body: bytes) -> str:
        verify = self._rules.verify
        if verify is None:
            if is_from_a_page(headers):
                raise Refused(401, "a web page cannot send this; set a verifier")
            return ""
        try:
            return _text(verify(headers, body, now=time.time()))
        except VerificationError as error:
            raise Refused(401, str(error)) from None

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    async def _keep(self, inbox: Deliverer, event: WebhookEvent, key: str) -> None:
        """Return when the event is on disk."""
        self._check_room()
        self._keeping += 1
        try:
            await inbox.accept(event, key)
        except JournalError:
            raise Refused.for_now(503, "the request cannot be stored now") from None
        finally:
            self._keeping -= 1

    async def _hand_over(self, event: WebhookEvent, key: str) -> None:
        """Return when the event is in its lane, or, if that is waited for, handled."""
        self._check_room()
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            if key and self._repeats is not None:
                await self._deliver_once(self._repeats, event, key)
            else:
                delivery = await self._emit_to_router(event)
                if self._rules.handled:
                    await self._wait_end(delivery)
        except asyncio.CancelledError:
            if self._is_ours(task):
                raise Refused.for_now(503, _STOPPING) from None
            raise
        finally:
            self._waiting.discard(task)
            self._given_up.discard(task)

    async def _deliver_once(self, repeats: Repeats, event: WebhookEvent, key: str) -> None:
        async def take() -> Delivery | None:
            delivery = await self._emit_to_router(event)
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

    async def _wait_end(self, delivery: Delivery) -> None:
        """Return when its handler has."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.discard(task)
        self._following.add(task)
        self._rest()
        try:
            await until_handled(delivery, self._rules.limits.answer_timeout)
        except asyncio.CancelledError:
            if self._is_ours(task):
                # Not 503: it was taken, and who sends it again may have it handled twice.
                raise Refused(STILL_RUNNING, "the receiver is stopping, and its handler still runs") from None
            raise
        finally:
            self._following.discard(task)
            self._busy += 1

    def _is_ours(self, task: asyncio.Task[object]) -> bool:
        """Whether we cancelled it, to be answered, and not aiohttp, which ends the connection."""
        return task in self._given_up and not task.uncancel()

    async def _emit_to_router(self, event: WebhookEvent) -> Delivery:
        if self._emit is None:
            await self._opened.wait()
        assert self._emit is not None
        try:
            delivery = await self._emit(event)
        except LaneFull:
            raise Refused.for_now(503, "too many events are waiting to be handled") from None
        if delivery.done and isinstance(delivery.error, NotHandled):
            raise refusal_of(delivery.error, event.topic)
        return delivery

    def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.Response:
        _log.info(
            "refused %s %r from %s: %d, %s",
            request.method,
            loggable(request),
            request.remote,
            refusal.status,
            refusal.reason,
        )
        answer = problem(refusal.status, refusal.reason, refusal.headers)
        if self._stopping or not request.content.is_eof():
            # The body stays unread, so no further request can follow on this connection.
            answer.force_close()
        return answer

    def _rest(self) -> None:
        self._busy -= 1
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)


def _text(identity: object) -> str:
    """A verifier of one's own that forgets to raise lets nobody in."""
    if not isinstance(identity, str):
        raise VerificationError("the request was not verified")
    return identity
