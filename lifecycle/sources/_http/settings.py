"""The settings of a webhook server, which are checked when its source is created. This module does not need aiohttp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Literal, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from lifecycle import _net
from lifecycle._durations import duration, in_seconds, store_seconds
from lifecycle.control.patterns import MAX_SEGMENTS
from lifecycle.control.routing import MAX_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lifecycle._durations import Converted, Duration, DurationField
    from lifecycle.sources.signatures import Verifier

__all__ = [
    "Limits",
    "Settings",
    "Verify",
    "checked_methods",
    "checked_paths",
    "checked_verify",
    "decoded",
    "is_local",
    "unix_path",
    "url_of",
]

_UNIX = "unix:"

_WILDCARDS = frozenset("*?[]\\")


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


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one webhook server."""

    verify: Verify | None
    #: The names by which requests must address the server. None if any name is accepted.
    names: _net.OwnNames | None
    paths: frozenset[str] | None
    methods: tuple[str, ...]
    limits: Limits
    dedupe: float
    #: When the response is sent, and whether it contains the handler's value.
    answer: Literal["accepted", "handled", "result"]
    #: The name of a header that ``verify`` requires in every request, or "" if none is known.
    credential_header: str
    #: A function that returns the idempotency key of a verified request without an id.
    replay_key: Callable[[Mapping[str, str], bytes], str] | None


def checked_verify(verify: Verifier | Verify | None) -> Verify | None:
    """Return the verification function: ``verify`` itself, or its method ``verify``.

    Raises:
        TypeError: if it is not callable, or is an async function.
    """
    if verify is None:
        return None
    function: object = getattr(verify, "verify", verify)
    if not callable(function) or iscoroutinefunction(function):
        raise TypeError(
            f"{verify!r} is not a verifier; pass GitHub(secret) or a plain function of (headers, body, *, now)"
        )
    return cast("Verify", function)


def checked_methods(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods in upper case.

    Raises:
        TypeError: if ``methods`` is a single string.
        ValueError: if it is empty or contains an invalid name.
    """
    if isinstance(methods, str):
        raise TypeError(f"methods={methods!r} is a single string; pass a tuple: methods=({methods!r},)")
    names = tuple(method.upper() for method in methods)
    if not names or not all(method.isalpha() for method in names):
        raise ValueError(f"methods={methods!r} are not valid HTTP methods; use names such as POST")
    return names


# -- paths -----------------------------------------------------------------------------------------------------


def checked_paths(paths: Iterable[str] | None) -> frozenset[str] | None:
    """Return the paths in the form that `decoded` returns, or None for any path.

    Raises:
        TypeError: if ``paths`` is a single string.
        ValueError: if a path can never occur in a request.
    """
    if isinstance(paths, str):
        raise TypeError(f"paths={paths!r} is a single string; pass a tuple: paths=({paths!r},)")
    return None if paths is None else frozenset(_checked_path(path) for path in paths)


def _checked_path(path: str) -> str:
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
    raw = target if target.startswith("/") else _path_of_absolute(target)
    if raw == "/":
        return raw
    # The topic has an additional first segment, "webhook".
    if raw.count("/") >= MAX_SEGMENTS:
        return None
    segments = [_segment(part) for part in raw.split("/")[1:]]
    path = "/" + "/".join(segment for segment in segments if segment is not None)
    return path if raw and None not in segments and len("webhook") + len(path) <= MAX_TOPIC else None


def _path_of_absolute(target: str) -> str:
    """Return the path in a target of the form ``http://host/path``, or ``""`` for any other target."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return ""
    return (parts.path or "/") if parts.netloc else ""


def _segment(part: str) -> str | None:
    try:
        segment = unquote(part, errors="strict")
    except UnicodeDecodeError:
        return None
    return segment if _fits(segment) else None


def _fits(segment: str) -> bool:
    plain = segment not in ("", ".", "..") and segment.isprintable()
    return plain and "/" not in segment and _WILDCARDS.isdisjoint(segment)


# -- hosts -----------------------------------------------------------------------------------------------------


def unix_path(host: str) -> str | None:
    """Return the path in ``unix:/run/app.sock``, or None for any other host.

    Raises:
        ValueError: if the path is not absolute.
    """
    if not host.startswith(_UNIX):
        return None
    path = host.removeprefix(_UNIX)
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"host={host!r} must contain an absolute path, such as unix:/run/app.sock")
    return path


def is_local(host: str) -> bool:
    """Return whether ``host`` is unreachable from other machines."""
    return unix_path(host) is not None or _net.is_loopback(host)


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the URL of an address, without a trailing slash."""
    if (path := unix_path(host)) is not None:
        return f"{scheme}+unix://{quote(path, safe='')}"
    return _net.url_of(scheme, host, port)
