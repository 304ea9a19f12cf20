"""Conversion of topics to NATS subjects and back, and of patterns to the subjects to subscribe to.

Each segment becomes a token. Letters, digits, ``-`` and ``_`` are kept, and every other byte of the UTF-8 encoding
becomes ``=`` and two hexadecimal digits. An empty segment becomes ``=``. These tokens are valid both in subjects and in
bucket keys. Some patterns cannot be expressed as a subject, such as ``fo*``, or a ``**`` that is not at the end. They
are converted to the narrowest filter that includes them, and the subscriber then matches the topics itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from lifecycle.control.patterns import DEEP, Literal, Pattern
from lifecycle.errors import Unpublishable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.control.patterns import Segment

__all__ = ["LONGEST", "as_subject", "as_token", "as_topic", "covers", "filters", "widest"]

#: The maximum number of characters in a subject. A server disconnects clients that send subjects of 4,096 characters.
LONGEST = 1024

#: The maximum number of cached topics in each direction.
_KEPT = 4096

_PLAIN = re.compile(r"[A-Za-z0-9_-]+").fullmatch
_STRANGE = re.compile(r"[^A-Za-z0-9_-]+")
_ESCAPED = re.compile(r"(?:=[0-9A-Fa-f]{2})+")


def as_token(text: str) -> str:
    """Return ``text`` as a token for a subject or a key for a bucket.

    Raises:
        Unpublishable: if ``text`` contains half a surrogate pair, which cannot be encoded as UTF-8.
    """
    if _PLAIN(text):
        return text
    try:
        return _STRANGE.sub(_escape, text) or "="
    except UnicodeEncodeError:
        raise Unpublishable(f"{text[:80]!r} contains half a surrogate pair, which cannot be encoded as UTF-8") from None


@lru_cache(_KEPT)
def as_subject(topic: str, prefix: str) -> str:
    """Return the subject for ``topic`` under ``prefix``.

    Raises:
        Unpublishable: if the subject would be longer than 1,024 characters, or if the topic contains half a surrogate
            pair.
    """
    subject = f"{prefix}.{'.'.join(as_token(segment) for segment in topic.split('/'))}"
    if len(subject) > LONGEST:
        raise Unpublishable(
            f"the topic {topic[:40]!r}… becomes a subject of {len(subject):,} characters; the maximum is {LONGEST:,}; "
            "put long values into the event's data"
        )
    return subject


@lru_cache(_KEPT)
def as_topic(subject: str, prefix: str) -> str:
    """Return the topic for ``subject``. Subjects from other programs are decoded as far as possible."""
    words = subject.removeprefix(f"{prefix}.").split(".")
    return "/".join("" if word == "=" else _ESCAPED.sub(_unescape, word) for word in words)


def filters(patterns: Iterable[Pattern], prefix: str) -> list[str]:
    """Return sorted, non-overlapping subjects that include everything that ``patterns`` match."""
    return widest(subject for pattern in patterns for subject in _filters(pattern.segments, prefix))


def widest(subjects: Iterable[str]) -> list[str]:
    """Return the sorted subjects that no other subject covers. Servers reject overlapping filters."""
    wanted = set(subjects)
    return sorted(one for one in wanted if not any(covers(other, one) for other in wanted if other != one))


def _filters(segments: Sequence[Segment], prefix: str) -> list[str]:
    tokens = [prefix]
    for at, segment in enumerate(segments):
        if segment is DEEP:
            rest = any(each is not DEEP for each in segments[at:])
            here = [] if rest or at == 0 else [".".join(tokens)]
            return [*here, ".".join([*tokens, ">"])]
        tokens.append(as_token(segment.text) if isinstance(segment, Literal) else "*")
    return [".".join(tokens)]


def covers(wide: str, narrow: str) -> bool:
    """Return whether ``wide`` includes every subject that ``narrow`` includes."""
    theirs = narrow.split(".")
    for at, word in enumerate(wide.split(".")):
        if word == ">":
            return len(theirs) > at
        if at >= len(theirs) or theirs[at] == ">" or word not in ("*", theirs[at]):
            return False
    return len(wide.split(".")) == len(theirs)


def _escape(strange: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in strange[0].encode())


def _unescape(escaped: re.Match[str]) -> str:
    return bytes.fromhex(escaped[0].replace("=", "")).decode(errors="replace")
