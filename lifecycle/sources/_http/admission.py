"""Checks a request's path, method, rate, size and signature, in this order. A request that passes becomes an event.

Requests are rejected as early as possible, so that unverified clients use few resources. The body is read only if the
request line and the headers are valid. This module needs aiohttp, so it is imported only when a server starts.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from aiohttp import web

from lifecycle.errors import Refused, VerificationError
from lifecycle.events import WebhookEvent
from lifecycle.sources._http.settings import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.sources._http.settings import Limits, Settings

__all__ = ["Admission", "RateLimiter"]

_MALFORMED = "the body is malformed"

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

#: The maximum number of clients whose rate is tracked. If there are more, the client that has been idle longest is
#: forgotten.
_CLIENTS = 10_000


class Admission:
    """Turns requests into events, or rejects them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bodies = _Bodies(settings.limits)
        self._rates = None if settings.limits.rate is None else RateLimiter(*settings.limits.rate)
        # A prefix that makes ids unique across restarts and cheap to create.
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def admit(self, request: web.BaseRequest) -> str:
        """Check the path, method and rate of a request, and return its path.

        Raises:
            Refused: with status 404, 405 or 429.
        """
        settings = self._settings
        path = decoded(request.raw_path.partition("?")[0])
        if path is None or (settings.paths is not None and path not in settings.paths):
            raise Refused(404, "nothing exists at this path")
        if request.method not in settings.methods:
            allowed = ", ".join(settings.methods)
            raise Refused(405, f"this method is not allowed; use {allowed}", headers={"Allow": allowed})
        if self._rates is not None:
            wait = self._rates.wait(request.remote or "", asyncio.get_running_loop().time())
            if wait > 0:
                raise Refused(429, "too many requests", retry_after=wait)
        return path

    def give_up(self, reason: str) -> None:
        """Respond with 503 and ``reason`` to all requests whose bodies have not arrived yet."""
        self._bodies.give_up(reason)

    async def read(self, request: web.BaseRequest, path: str) -> tuple[WebhookEvent, str]:
        """Return the event and its idempotency key, which is ``""`` if the request has none.

        Raises:
            Refused: if the body cannot be read, or the request fails verification.
            ConnectionError: if the client disconnects.
        """
        headers = _headers(request)
        _require_plain(headers)
        body = self._bodies.at_hand(request)
        if body is None:
            self._require_credential(headers)
            body = await self._bodies.wait(request)
        identity = self._verify(headers, body)
        event = WebhookEvent(request.method, path, headers, _query(request), body, identity or self._new_id())
        if not identity and self._settings.replay_key is not None:
            identity = self._settings.replay_key(headers, body)
        # Include the path in the key, because GitHub uses the same id for all hooks that receive an event.
        return event, f"{path} {identity}" if identity else ""

    def _require_credential(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without credentials before waiting for its body."""
        needed = self._settings.credential_header
        if self._settings.verify is None or (needed and needed not in headers):
            self._verify(headers, b"")

    def _verify(self, headers: Mapping[str, str], body: bytes) -> str:
        verify = self._settings.verify
        if verify is None:
            if _is_from_a_page(headers):
                raise Refused(401, "requests from web pages are refused; set a verifier")
            names = self._settings.names
            if names is not None and not names.include(headers.get("host", "")):
                # A web page whose name has been rebound to this machine sends GET requests without `Origin`.
                raise Refused(403, "this host is not served here; use 127.0.0.1, or set a verifier")
            return ""
        try:
            return _text(verify(headers, body, now=time.time()))
        except VerificationError as error:
            raise Refused(401, str(error)) from None

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


def _headers(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers with lower-case names.

    Repeated headers are joined, so that one signature cannot hide another.
    """
    given = request.headers
    headers = {name.lower(): value for name, value in given.items()}
    if len(headers) != len(given):
        headers = {name: ", ".join(given.getall(name)) for name in headers}
    return headers


def _query(request: web.BaseRequest) -> dict[str, str]:
    """Return the query parameters. If a name is repeated, its last value is used."""
    query = request.raw_path.partition("?")[2]
    return dict(parse_qsl(query, keep_blank_values=True)) if query else {}


def _require_plain(headers: Mapping[str, str]) -> None:
    """Refuse a body that would have to be decompressed before it could be verified."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused(415, "the body is compressed; send it uncompressed", headers={"Accept-Encoding": "identity"})
    if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise Refused(501, "the only supported transfer coding is chunked; use chunked or no transfer coding")


def _is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Return whether a web page made a browser send the request. Web pages can reach loopback addresses."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def _text(identity: object) -> str:
    """Check and return the id that a verifier returned.

    A custom verifier that returns None has not verified anything.
    """
    if not isinstance(identity, str):
        raise VerificationError("the request was not verified")
    return identity


# -- request bodies --------------------------------------------------------------------------------------------


class _Bodies:
    """Reads the request bodies of one server.

    Each body is limited in size and time. Slow clients share enough memory for ``limits.pending`` full bodies. If they
    exceed it, the client that has been sending for the longest time is refused. As a result, slow clients affect each
    other but not fast clients. `HttpServer` limits their number.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.body
        self._timeout = limits.body_timeout
        self._memory = limits.body * limits.pending
        # The number of bytes that each slow reader has buffered, oldest reader first.
        self._slow: dict[asyncio.Timeout, int] = {}
        self._held = 0
        # The reason why incomplete bodies are refused. Empty while they are accepted.
        self._given_up = ""

    def at_hand(self, request: web.BaseRequest) -> bytes | None:
        """Return the body if it arrived together with the headers, as most bodies do. Otherwise, return None.

        Raises:
            Refused: with 413 if it is larger than the limit, or with 400 if it is malformed.
        """
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        if not request.content.is_eof():
            return None
        try:
            body = request.content.read_nowait()
        except web.RequestPayloadError:
            raise Refused(400, _MALFORMED) from None
        if len(body) > self._limit:
            raise self._too_large()
        return body

    async def wait(self, request: web.BaseRequest) -> bytes:
        """Wait for a body that did not arrive together with the headers, and return it.

        Raises:
            Refused: with 413 if it is larger than the limit, with 408 if it takes too long, or with 400 if it is
                malformed.
            ConnectionError: if the client disconnects.
        """
        try:
            async with asyncio.timeout(self._timeout) as clock:
                self._slow[clock] = 0
                try:
                    await _invite(request)
                    return await self._gather(request, clock)
                finally:
                    self._held -= self._slow.pop(clock, 0)
        except web.RequestPayloadError:
            raise Refused(400, _MALFORMED) from None
        except TimeoutError:
            if self._given_up:
                raise Refused(503, self._given_up, retry_after=1) from None
            raise Refused(408, "the body took too long to arrive") from None

    def give_up(self, reason: str) -> None:
        """Refuse incomplete bodies with 503 and ``reason``."""
        self._given_up = reason
        for clock in list(self._slow):
            self._end(clock)

    def _end(self, clock: asyncio.Timeout) -> None:
        """Make a reader's time limit expire now."""
        self._held -= self._slow.pop(clock)
        if not clock.expired():
            clock.reschedule(0)

    async def _gather(self, request: web.BaseRequest, clock: asyncio.Timeout) -> bytes:
        body = bytearray()
        while chunk := await _next_chunk(request):
            body += chunk
            if len(body) > self._limit:
                raise self._too_large()
            if clock in self._slow:
                self._slow[clock] += len(chunk)
                self._held += len(chunk)
                while self._held > self._memory:
                    self._end(next(iter(self._slow)))
        return bytes(body)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self._limit} bytes")


async def _next_chunk(request: web.BaseRequest) -> bytes:
    """Return the next part of the body, or ``b""`` at its end.

    Raises:
        ConnectionError: if the client has disconnected.
    """
    if request.transport is None:
        # Without this check, aiohttp would raise a RuntimeError.
        raise ConnectionResetError("the client disconnected")
    return await request.content.readany()


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


# -- rate limits -----------------------------------------------------------------------------------------------


class RateLimiter:
    """Limits each client to ``count`` requests per ``seconds``. They can arrive in a burst or evenly spaced.

    It uses the generic cell rate algorithm: for each client, it stores the time when the full allowance is available
    again.
    """

    def __init__(self, count: int, seconds: float, *, clients: int = _CLIENTS) -> None:
        self._seconds = seconds
        self._each = seconds / count
        self._clients = clients
        # The time when each client's full allowance is available again. The client with the longest idle time is first.
        self._booked: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._booked)

    def wait(self, client: str, now: float) -> float:
        """If ``client`` may send a request now, count it and return 0.

        Otherwise, return the number of seconds to wait.
        """
        booked = max(self._booked.pop(client, now), now)
        wait = booked + self._each - self._seconds - now
        # Without this tolerance, a rounding error could cause the last of `count` requests to be refused.
        refused = wait > self._each * 1e-6
        self._booked[client] = booked if refused else booked + self._each
        if len(self._booked) > self._clients:
            del self._booked[next(iter(self._booked))]
        return wait if refused else 0.0
