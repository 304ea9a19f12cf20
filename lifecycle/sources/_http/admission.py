"""From a request to a verified event: path, method, rate, size, signature.

What is refused is refused as early as it can be, so that strangers cost little: a body is read only if everything
before it was in order. Imports aiohttp, so it is itself imported when a server starts.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from lifecycle.errors import VerificationError
from lifecycle.events import WebhookEvent
from lifecycle.sources._http.answers import Refused
from lifecycle.sources._http.bodies import Bodies
from lifecycle.sources._http.paths import decoded
from lifecycle.sources._http.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from lifecycle.sources._http.rules import Rules

__all__ = ["Admission"]


class Admission:
    """Makes events of the requests of one server that ``rules`` let through; ``most`` may send a body at a time."""

    def __init__(self, rules: Rules, most: int) -> None:
        self._rules = rules
        self._bodies = Bodies(rules.limits, most)
        self._rates = None if rules.limits.rate is None else Rates(*rules.limits.rate)
        # Names that are unique across restarts, and cheap.
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def admit(self, request: web.BaseRequest) -> str:
        """The path, if nothing in the first line speaks against the request, nor how many came before it.

        Raises:
            Refused: 404, 405 or 429.
        """
        rules = self._rules
        path = decoded(request.raw_path.partition("?")[0])
        if path is None or (rules.paths is not None and path not in rules.paths):
            raise Refused(404, "there is nothing under this path")
        if request.method not in rules.methods:
            allowed = ", ".join(rules.methods)
            raise Refused(405, f"this method is not allowed; use {allowed}", headers={"Allow": allowed})
        if self._rates is not None:
            wait = self._rates.wait(request.remote or "", asyncio.get_running_loop().time())
            if wait > 0:
                raise Refused.for_now(429, "too many requests", after=wait)
        return path

    def give_up(self, reason: str) -> None:
        """Refuse the requests whose bodies are not there yet, for ``reason``."""
        self._bodies.give_up(reason)

    async def read(self, request: web.BaseRequest, path: str) -> tuple[WebhookEvent, str]:
        """The event, and by what a repetition of it is known (``""``: by nothing).

        Raises:
            Refused: for a body that cannot be had, and for who is not verified.
            ConnectionError: when the client goes away.
        """
        headers = _headers(request)
        _require_plain(headers)
        body = self._bodies.at_hand(request)
        if body is None:
            self._require_credential(headers)
            body = await self._bodies.wait(request)
        identity = self._verify(headers, body)
        event = WebhookEvent(request.method, path, headers, _query(request), body, identity or self._new_id())
        if not identity and self._rules.replay_key is not None:
            identity = self._rules.replay_key(headers, body)
        # With the path: GitHub gives one id to all the hooks that an event goes to.
        return event, f"{path} {identity}" if identity else ""

    def _require_credential(self, headers: Mapping[str, str]) -> None:
        """Before a body is waited for: who shows nothing that could prove anything is refused without it."""
        needed = self._rules.credential_header
        if self._rules.verify is None or (needed and needed not in headers):
            self._verify(headers, b"")

    def _verify(self, headers: Mapping[str, str], body: bytes) -> str:
        verify = self._rules.verify
        if verify is None:
            if _is_from_a_page(headers):
                raise Refused(401, "a web page cannot send this; set a verifier")
            return ""
        try:
            return _text(verify(headers, body, now=time.time()))
        except VerificationError as error:
            raise Refused(401, str(error)) from None

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


def _headers(request: web.BaseRequest) -> dict[str, str]:
    """Names in lower case; what was sent several times is joined, so that no copy of a signature hides another."""
    given = request.headers
    headers = {name.lower(): value for name, value in given.items()}
    if len(headers) != len(given):
        headers = {name: ", ".join(given.getall(name)) for name in headers}
    return headers


def _query(request: web.BaseRequest) -> dict[str, str]:
    """The last of each name."""
    query = request.raw_path.partition("?")[2]
    return dict(parse_qsl(query, keep_blank_values=True)) if query else {}


def _require_plain(headers: Mapping[str, str]) -> None:
    """Refuse a body that must be unpacked to be what was meant: that is done for no stranger."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused(415, "the body is compressed; send it as it is", headers={"Accept-Encoding": "identity"})
    if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise Refused(501, "of transfer codings, only chunked is decoded; send the body as it is")


def _is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent it because of a page that it shows, which may ask for what it likes, of loopback too."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def _text(identity: object) -> str:
    """A verifier of one's own that forgets to raise lets nobody in."""
    if not isinstance(identity, str):
        raise VerificationError("the request was not verified")
    return identity
