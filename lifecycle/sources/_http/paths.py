"""From the target of an HTTP request to a path that is fit to be a topic."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote, urlsplit

from lifecycle.control.patterns import MAX_SEGMENTS
from lifecycle.control.routing import MAX_TOPIC

__all__ = ["check_path", "decoded"]

_WILDCARDS = frozenset("*?[]\\")


@lru_cache(maxsize=256)
def decoded(target: str) -> str | None:
    """The decoded path of ``target`` (without its query), or None where it cannot be a topic.

    Refused are empty segments, ``.`` and ``..``, wildcards, slashes that were quoted, what cannot be printed, and paths
    that are too long or too deep for a topic.
    """
    raw = target if target.startswith("/") else _of_absolute(target)
    if raw == "/":
        return raw
    # The topic begins with a segment of its own: "webhook".
    if raw.count("/") >= MAX_SEGMENTS:
        return None
    segments = [_segment(part) for part in raw.split("/")[1:]]
    path = "/" + "/".join(segment for segment in segments if segment is not None)
    return path if raw and None not in segments and len("webhook") + len(path) <= MAX_TOPIC else None


def check_path(path: str) -> str:
    """A path as the user wrote it, with or without its first slash, in the form that `decoded` gives.

    Raises:
        ValueError: for a path that no request can have.
        TypeError: for what is no text.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass what they like
        raise TypeError(f"{path!r} is no path; give text such as '/deploy'")
    full = path if path.startswith("/") or not path else f"/{path}"
    parts = full.split("/")[1:]
    if full != "/" and not (parts and all(map(_fits, parts))):
        raise ValueError(
            f"{path!r} cannot be served: segments must be neither empty nor '.' nor '..', and without wildcards; "
            "give exact paths such as '/deploy'"
        )
    return full


def _of_absolute(target: str) -> str:
    """The path of ``http://host/path``, which a client may send as well; ``""`` for what is no such thing."""
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
