"""The steps that verifiers are made of; each takes whatever arrived, and raises nothing but `VerificationError`.

A message says what is wrong, never what would be right. Signatures are compared in a time that does not tell how
much of them was right, nor which of several secrets it was.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from lifecycle.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["any_matches", "check_matches", "check_time", "credential", "encoded", "header", "identity", "unchanged"]

#: An id that is longer is no id.
_LONGEST_ID = 255

#: Seconds since the epoch. More digits would be ages away, and Python refuses to read thousands of them.
_SECONDS = re.compile(r"[0-9]{1,15}")


def credential(headers: Mapping[str, str], name: str, kind: str = "signature") -> str:
    """The header that proves who sent the request; without it, nobody said that they would sign."""
    if not isinstance(headers.get(name.lower()), str):
        raise VerificationError(f"the request has no {kind}; set the same secret at the sender ({name})")
    return header(headers, name)


def header(headers: Mapping[str, str], name: str) -> str:
    """The header called ``name``, which has to be there."""
    value = headers.get(name.lower())
    if not isinstance(value, str):
        raise VerificationError(f"the request has no {name}")
    return value


def unchanged(body: bytes) -> bytes:
    """The body, which must be what was sent and nothing that was made of it."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise VerificationError(f"the body is no bytes but {type(body).__name__}; verify it as it was sent")
    return bytes(body)


def check_time(stamp: str, name: str, *, now: float, tolerance: float) -> None:
    """Refuse what was signed too long ago, or will be; ``name`` is the header that says when."""
    if not _SECONDS.fullmatch(stamp):
        raise VerificationError(f"the timestamp in {name} is no number of seconds since 1970")
    age = now - int(stamp)
    # Written so that an age that is no number is too much as well.
    if not abs(age) <= tolerance:
        when = "ahead" if age < 0 else "old"
        raise VerificationError(
            f"the timestamp in {name} is {abs(age):.0f} s {when}, and {tolerance:g} s are tolerated; "
            "a repeated request, or a clock that is wrong"
        )


def check_matches(expected: Iterable[bytes], given: Iterable[bytes], name: str) -> None:
    """Refuse a request none of whose signatures, from the header ``name``, is expected."""
    if not any_matches(expected, given):
        raise VerificationError(f"the signature in {name} is wrong: another secret, or another body")


def any_matches(expected: Iterable[bytes], given: Iterable[bytes]) -> bool:
    """Whether one of ``given`` is expected; takes as long whichever it is."""
    candidates = tuple(given)
    matches = False
    for each in expected:
        for candidate in candidates:
            matches |= hmac.compare_digest(each, candidate)
    return matches


def encoded(text: str) -> bytes:
    """Header text as the bytes that came, so that it can be compared; without an error whatever it is."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def identity(text: object) -> str:
    """An id that can be logged and stored, or ``""``."""
    fits = isinstance(text, str) and len(text) <= _LONGEST_ID and text.isascii() and text.isprintable()
    return str(text) if fits else ""
