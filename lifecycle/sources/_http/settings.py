"""Settings of a webhook server, checked when its source is made; nothing here needs aiohttp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, unquote, urlsplit

from lifecycle import _net
from lifecycle.control.patterns import MAX_SEGMENTS
from lifecycle.control.routing import MAX_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lifecycle.sources.signatures.schemes import Verifier, Verify

__all__ = [
    "Limits",
    "Settings",
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the cost of a single sender, and of all senders together.

    Raises:
        ValueError: if a limit would let no request through.
    """

    #: Maximum bytes of a request body; more is answered with 413.
    body: int = 1_048_576
    #: Maximum requests that wait for space in their lane or inbox, or with ``answer="handled"`` for their handler; more
    #: are answered with 429. This also limits the memory for bodies.
    pending: int = 100
    #: ``(n, seconds)``: at most n requests from one address in this time; more are answered with 429. All clients of a
    #: Unix socket count as one address.
    rate: tuple[int, float] | None = None
    #: Seconds for the headers of a request, from the connection or the last answer. The connection is then closed.
    header_timeout: float = 10.0
    #: Seconds for the body; then 408.
    body_timeout: float = 30.0
    #: Seconds that ``answer="handled"`` waits for the handler; then 504, and the handler continues.
    answer_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name in ("body", "pending", "header_timeout", "body_timeout", "answer_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}={value!r} would let nothing through; give a number above 0")
        if self.rate is not None:
            count, seconds = self.rate
            if count < 1 or not seconds > 0:
                raise ValueError(f"rate={self.rate!r} would let nothing through; give (requests, seconds)")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one webhook server."""

    verify: Verify | None
    paths: frozenset[str] | None
    methods: tuple[str, ...]
    limits: Limits
    dedupe: float
    #: Whether the answer is sent when the handler has ended, with its result.
    handled: bool
    #: The header without which ``verify`` rejects any body, if that is known.
    credential_header: str
    #: The idempotency key of a verified request without an id, if it has one.
    replay_key: Callable[[Mapping[str, str], bytes], str] | None


def checked_verify(verify: Verifier | Verify | None) -> Verify | None:
    """Return the function that verifies, of a verifier or given as such.

    Raises:
        TypeError: for an object that cannot be called, and for an async function.
    """
    if verify is None:
        return None
    function: object = getattr(verify, "verify", verify)
    if not callable(function) or iscoroutinefunction(function):
        raise TypeError(f"{verify!r} cannot verify; give GitHub(secret) or a plain function of (headers, body, *, now)")
    return cast("Verify", function)


def checked_methods(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods in upper case.

    Raises:
        TypeError: for one string.
        ValueError: for no method, or a name that is none.
    """
    if isinstance(methods, str):
        raise TypeError(f"methods={methods!r} is one text; give a tuple: methods=({methods!r},)")
    names = tuple(method.upper() for method in methods)
    if not names or not all(method.isalpha() for method in names):
        raise ValueError(f"methods={methods!r} would let nothing through; give names such as POST")
    return names


# -- paths -----------------------------------------------------------------------------------------------------


def checked_paths(paths: Iterable[str] | None) -> frozenset[str] | None:
    """Return the paths in the form that `decoded` returns; None for any path.

    Raises:
        TypeError: for one string.
        ValueError: for a path that no request can have.
    """
    if isinstance(paths, str):
        raise TypeError(f"paths={paths!r} is one text; give a tuple: paths=({paths!r},)")
    return None if paths is None else frozenset(_checked_path(path) for path in paths)


def _checked_path(path: str) -> str:
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass what they like
        raise TypeError(f"{path!r} is not a path; give text such as '/deploy'")
    full = path if path.startswith("/") or not path else f"/{path}"
    parts = full.split("/")[1:]
    if full != "/" and not (parts and all(map(_fits, parts))):
        raise ValueError(
            f"{path!r} cannot be served: segments must be neither empty nor '.' nor '..', and without wildcards; "
            "give exact paths such as '/deploy'"
        )
    return full


@lru_cache(maxsize=256)
def decoded(target: str) -> str | None:
    """Return the decoded path of ``target``, the target of a request without its query; None if it cannot be a topic.

    Rejected are empty segments, ``.`` and ``..``, wildcards, quoted slashes, unprintable characters, and paths that
    are too long or too deep for a topic.
    """
    raw = target if target.startswith("/") else _path_of_absolute(target)
    if raw == "/":
        return raw
    # The topic begins with a segment of its own: "webhook".
    if raw.count("/") >= MAX_SEGMENTS:
        return None
    segments = [_segment(part) for part in raw.split("/")[1:]]
    path = "/" + "/".join(segment for segment in segments if segment is not None)
    return path if raw and None not in segments and len("webhook") + len(path) <= MAX_TOPIC else None


def _path_of_absolute(target: str) -> str:
    """Return the path of ``http://host/path``, which a client may send as well; ``""`` for anything else."""
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
    """Return the path in ``unix:/run/app.sock``; None for any other host.

    Raises:
        ValueError: for a path that is not absolute.
    """
    if not host.startswith(_UNIX):
        return None
    path = host.removeprefix(_UNIX)
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"host={host!r} has no path from the root; give one such as unix:/run/app.sock")
    return path


def is_local(host: str) -> bool:
    """Return whether no other machine can reach ``host``."""
    return unix_path(host) is not None or _net.is_loopback(host)


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the URL of an address, without a slash at the end."""
    if (path := unix_path(host)) is not None:
        return f"{scheme}+unix://{quote(path, safe='')}"
    return _net.url_of(scheme, host, port)
