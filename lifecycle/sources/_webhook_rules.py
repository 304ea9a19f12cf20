"""The rules for webhooks, which decide whether a request becomes an event. This module does not need aiohttp."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from lifecycle._durations import duration, in_seconds, store_seconds
from lifecycle._net import OwnNames, is_local, unix_path
from lifecycle.control.patterns import MAX_SEGMENTS
from lifecycle.control.routes import MAX_TOPIC
from lifecycle.errors import Refused, VerificationError
from lifecycle.events import WebhookEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiohttp import web

    from lifecycle._durations import Converted, Duration, DurationField
    from lifecycle.sources.signatures import Verifier

__all__ = ["Admission", "Limits", "RateLimiter", "Verify", "decoded"]

_WILDCARDS = frozenset("*?[]\\")

#: The maximum number of clients whose rate is tracked. If there are more, the client that has been idle longest is
#: forgotten.
_CLIENTS = 10_000


class Verify(Protocol):
    """A `Verifier` as a plain function."""

    def __call__(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """See `Verifier.verify`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the requests from one sender, and from all senders together.

    Raises:
        ValueError: if a limit would reject every request.
    """

    #: The maximum size of a request body in bytes. The response to a larger body is 413.
    body: int = 1_048_576
    #: The maximum number of requests waiting for space in their lane or inbox. With ``answer="handled"`` or
    #: ``"result"``, this includes requests that are waiting for their handler. The response to further requests is 429.
    #: This also limits the memory used for bodies.
    pending: int = 100
    #: ``(n, seconds)``: the maximum number of requests from one address, and the period in seconds. The response to
    #: further requests is 429. All clients of a Unix socket are treated as one address.
    rate: Converted[tuple[int, float] | None, tuple[int, Duration] | None] = duration(None)
    #: The time limit, in seconds, for receiving a request's headers. It starts when the client connects or the previous
    #: response is sent. If the limit is exceeded, the connection is closed.
    header_timeout: DurationField = duration(10.0)
    #: The time limit, in seconds, for receiving the body. If it is exceeded, the response is 408.
    body_timeout: DurationField = duration(30.0)
    #: How long, in seconds, a request with ``answer="handled"`` or ``"result"`` waits for its handler. After that, the
    #: response is 504, and the handler keeps running.
    answer_timeout: DurationField = duration(10.0)

    def __post_init__(self) -> None:
        for name in ("body", "pending"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}={value!r} would reject every request; use a number greater than 0")
        store_seconds(self, "header_timeout", "body_timeout", "answer_timeout")
        if self.rate is not None:
            count, period = self.rate
            if count < 1:
                raise ValueError(f"rate={self.rate!r} would reject every request; use (requests, seconds)")
            object.__setattr__(self, "rate", (count, in_seconds("the period of Limits.rate", period)))


class Admission:
    """Checks a request's path, method, rate and signature, in this order, and turns it into an event.

    Requests are rejected as early as possible, so that unverified clients use few resources. The body is needed only if
    the request line and the headers are valid.

    Raises:
        ValueError: if ``host`` can be reached from other machines and there is no verifier, or if a path or method can
            never occur in a request.
        TypeError: if ``verify`` is not callable or is an async function, or if ``paths`` or ``methods`` is a string.
    """

    def __init__(
        self,
        host: str,
        verify: Verifier | Verify | None,
        *,
        paths: Iterable[str] | None,
        methods: Iterable[str],
        rate: tuple[int, float] | None,
    ) -> None:
        if verify is None and not is_local(host):
            raise ValueError(
                f"{host!r} can be reached from other machines, so requests must be verified; "
                "pass verify=GitHub(secret), or listen on 127.0.0.1"
            )
        function: object = getattr(verify, "verify", verify)
        if verify is not None and (not callable(function) or iscoroutinefunction(function)):
            raise TypeError(
                f"{verify!r} is not a verifier; pass GitHub(secret) or a plain function of (headers, body, *, now)"
            )
        self._verify = cast("Verify | None", function)
        # The name of a header that `verify` requires, or "" if none is known.
        self._credential_header: str = getattr(verify, "credential_header", "")
        self._replay_key: Callable[[Mapping[str, str], bytes], str] | None = getattr(verify, "replay_key", None)
        # The names by which requests must address the server. Browsers cannot open Unix sockets.
        self._names = OwnNames(host) if verify is None and unix_path(host) is None else None
        if isinstance(paths, str):
            raise TypeError(f"paths={paths!r} is a single string; pass a tuple: paths=({paths!r},)")
        self._paths = None if paths is None else frozenset(map(_checked_path, paths))
        if isinstance(methods, str):
            raise TypeError(f"methods={methods!r} is a single string; pass a tuple: methods=({methods!r},)")
        self._methods = tuple(method.upper() for method in methods)
        if not self._methods or not all(method.isalpha() for method in self._methods):
            raise ValueError(f"methods={self._methods!r} are not valid HTTP methods; use names such as POST")
        self._rates = None if rate is None else RateLimiter(*rate)
        # A prefix that makes ids unique across restarts and cheap to create.
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def path(self, request: web.BaseRequest) -> str:
        """Return the path of a request whose path, method and rate are accepted.

        Raises:
            Refused: with status 404, 405 or 429.
        """
        path = decoded(request.raw_path.partition("?")[0])
        if path is None or (self._paths is not None and path not in self._paths):
            raise Refused(404, "nothing exists at this path")
        if request.method not in self._methods:
            allowed = ", ".join(self._methods)
            raise Refused(405, f"this method is not allowed; use {allowed}", headers={"Allow": allowed})
        if self._rates is not None:
            wait = self._rates.wait(request.remote or "", asyncio.get_running_loop().time())
            if wait > 0:
                raise Refused(429, "too many requests", retry_after=wait)
        return path

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Return the headers with lower-case names. Repeated headers are joined, so that none can hide another.

        Raises:
            Refused: if the body would have to be decompressed before it could be verified.
        """
        given = request.headers
        headers = {name.lower(): value for name, value in given.items()}
        if len(headers) != len(given):
            headers = {name: ", ".join(given.getall(name)) for name in headers}
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise Refused(415, "the body is compressed; send it uncompressed", headers={"Accept-Encoding": "identity"})
        if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            raise Refused(501, "the only supported transfer coding is chunked; use chunked or no transfer coding")
        return headers

    def require_credential(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that cannot be valid, whatever its body is.

        Raises:
            Refused: with status 401 or 403.
        """
        if self._verify is None or (self._credential_header and self._credential_header not in headers):
            self._verified(headers, b"")

    def event(
        self, request: web.BaseRequest, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[WebhookEvent, str]:
        """Return the event and its idempotency key, which is ``""`` if the request has none.

        Raises:
            Refused: if the request fails verification.
        """
        identity = self._verified(headers, body)
        query = request.raw_path.partition("?")[2]
        # If a name is repeated, its last value is used.
        parameters = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        number = identity or f"{self._prefix}-{next(self._numbers)}"
        event = WebhookEvent(request.method, path, headers, parameters, body, number)
        if not identity and self._replay_key is not None:
            identity = self._replay_key(headers, body)
        # Include the path in the key, because GitHub uses the same id for all hooks that receive an event.
        return event, f"{path} {identity}" if identity else ""

    def _verified(self, headers: Mapping[str, str], body: bytes) -> str:
        if self._verify is None:
            # Web pages can make a browser send requests to loopback addresses.
            if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
                raise Refused(401, "requests from web pages are refused; set a verifier")
            if self._names is not None and not self._names.include(headers.get("host", "")):
                # A web page whose name has been rebound to this machine sends GET requests without `Origin`.
                raise Refused(403, "this host is not served here; use 127.0.0.1, or set a verifier")
            return ""
        try:
            identity: object = self._verify(headers, body, now=time.time())
        except VerificationError as error:
            raise Refused(401, str(error)) from None
        if not isinstance(identity, str):
            # A custom verifier that returns None has not verified anything.
            raise Refused(401, "the request was not verified")
        return identity


# -- paths -----------------------------------------------------------------------------------------------------


def _checked_path(path: str) -> str:
    """Return the path in the form that `decoded` returns."""
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass any object
        raise TypeError(f"{path!r} is not a path; use text such as '/deploy'")
    full = path if path.startswith("/") or not path else f"/{path}"
    parts = full.split("/")[1:]
    if full != "/" and not (parts and all(map(_fits, parts))):
        raise ValueError(
            f"{path!r} cannot be served: segments must not be empty, '.' or '..', and must not contain wildcards; "
            "use exact paths such as '/deploy'"
        )
    return full


@lru_cache(maxsize=256)
def decoded(target: str) -> str | None:
    """Return the decoded path in a request's ``target``, without the query, or None if it cannot be a topic.

    This rejects empty segments, ``.`` and ``..``, wildcards, quoted slashes, unprintable characters, and paths that are
    too long or have too many segments for a topic.
    """
    try:
        if not target.startswith("/"):
            # A target of the form ``http://host/path``.
            parts = urlsplit(target)
            target = (parts.path or "/") if parts.netloc else ""
        segments = [unquote(part, errors="strict") for part in target.split("/")[1:]]
    except ValueError:
        return None
    if target == "/":
        return target
    path = "/" + "/".join(segments)
    # The topic has an additional first segment, "webhook".
    fits = 0 < len(segments) < MAX_SEGMENTS and len("webhook") + len(path) <= MAX_TOPIC and all(map(_fits, segments))
    return path if fits else None


def _fits(segment: str) -> bool:
    plain = segment not in ("", ".", "..") and segment.isprintable()
    return plain and "/" not in segment and _WILDCARDS.isdisjoint(segment)


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
