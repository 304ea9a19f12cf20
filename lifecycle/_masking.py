"""Masking of secrets in everything that leaves the process: dashboard, control socket, diagrams, spans and lists.

A value is secret if its name describes a password, a token or similar. Names are compared word by word, so ``author``,
``keyboard`` and ``tokenizer`` are not secret. In free text, a name is the word before ``=`` or ``:``, or an option such
as ``--password``.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from lifecycle._text import shorten, text_of
from lifecycle._util import message_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HIDDEN", "Limits", "error_masked", "is_number", "is_secret", "masked", "masked_values"]

#: The text that replaces a secret.
HIDDEN = "***"

#: The maximum length of a text whose masked form is cached. Caching helps because the same errors often appear several
#: times in a state.
_REMEMBERED = 1000

#: The boundaries between words in camel case. For example, ``dbAuthToken`` is split into "db auth token".
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = re.compile(r"[\W_]+")
#: If one of these words precedes "key", the value is secret.
_KEYS = "api|private|access|signing|encryption|ssh|account|master|shared|service"
_SECRET = re.compile(
    rf"""passw(?:or)?d | passphrase | pass\ phrase | passcode | pwd | secret(?!ar) | tokens?\b | credential | apikey
      | \b(?: pass | pgpass | pw | creds? | o?auth2? | authentication | authorization | cookies? | session
            | session\ ?id | signature | sig | bearer | [ht]?otp | jwt | psk )\b
      | \b(?:{_KEYS})\ ?keys?\b""",
    re.VERBOSE,
)
#: If a name ends in one of these words, its value is not secret, but only related to a secret: ``token_type``,
#: ``session_timeout``, ``AuthError``.
_ABOUT = re.compile(
    r"""\b(?: error | exception | warning | lost | failed | failure | invalid | expired | expires | expiry | missing
            | denied | refused | required | mismatch | timeout | ttl | count | length | size | limit | type | method
            | url | uri
            | (?: max | min | prompt | completion | input | output | total | cached ) .* tokens | tokens\ used )$""",
    re.VERBOSE,
)

#: A quoted text. The quotes may be escaped, as in a repr within a repr. A truncated text has no closing quote.
_QUOTED = (
    r"""(?: b?(?P<quote>\\*+(?:"{3}|'{3}|["'])) (?: (?!(?P=quote)) (?: \\\\\\. | \\. | . ) )*+ (?:(?P=quote))? )"""
)

#: A name and the separator before its value. A name starts at a word boundary, so that each text is scanned only once.
#: After a command-line option, or the first item of a pair, the separator is a comma.
_NAMED = re.compile(
    rf"""(?<![\w.-])(?<!//)(?<!/etc/) (?P<name> (?: (?:{_KEYS})\  )? [\w.-]++ )
         (?P<between> \\*+["']?\]?\s* (?: => | [=:] )(?!//) \s* | \\*+["'],\s* | ["']?\s+ )""",
    re.VERBOSE | re.IGNORECASE,
)
_VALUE = re.compile(
    rf"""(?: (?:bearer|basic|digest|token) \s+ )? (?: {_QUOTED} | [^\s,;&"'()\[\]{{}}]+ | (?=[\[({{]) )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_BRACKET = re.compile(rf"{_QUOTED} | (?P<opens> [\[({{] ) | [\])}}]", re.VERBOSE | re.DOTALL)
_BEARER = re.compile(r"\b(bearer\s+)(?!token|auth|scheme)[\w.~+/=-]{6,}", re.IGNORECASE)
#: Headers whose value extends to the end of the line.
_HEADER = re.compile(
    rf"""(\b(?:cookie|authorization)\\*+["']?\s*:\s*) (?: {_QUOTED} | [^\r\n]+ )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
#: A private key in PEM form.
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
#: In a URL: the password (even if the URL was cut within it), a token used as the user name, and keys in the query.
_ADDRESS = re.compile(r"(://[^\s:/@]*:)[^\s/]+(?=@|…)|(://)[^\s:/@]{20,}(?=@)|([?&](?:key|sig)=)[^\s&]+", re.IGNORECASE)

#: The collections that `masked_values` traverses.
_COLLECTIONS = (Mapping, list, tuple, AbstractSet)
#: In a long text, each sequence of this many characters is counted as one value.
_LINE = 100
#: The number of characters to check at the end of a name.
_NAME = 200
#: The maximum length of numbers that are not treated as secret in sentences such as "session 7 ended".
_NUMBER = 4


def is_secret(name: str) -> bool:
    """Return whether a value with this name must not be shown."""
    return _is_secret(name[-_NAME:])


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    words = _BETWEEN.sub(" ", _HUMP.sub(" ", name)).strip().lower()
    return _SECRET.search(words) is not None and _ABOUT.search(words) is None


def masked(text: str) -> str:
    """Return ``text`` with each secret replaced by ``***``."""
    return _masked(text) if len(text) > _REMEMBERED else _remembered(text)


def _masked(text: str) -> str:
    text = _ADDRESS.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", text)
    text = _PEM.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", _HEADER.sub(rf"\g<1>{HIDDEN}", text))
    return _assignments_masked(text)


_remembered = lru_cache(1024)(_masked)


def error_masked(error: BaseException, length: int = sys.maxsize) -> str:
    """Return the class and message of ``error``, cut to ``length`` characters and masked."""
    message = masked(shorten(message_of(error), length))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the value that `masked_values` returns."""

    #: The maximum depth of nested lists and objects.
    depth: int = 100
    #: The maximum number of characters in each text.
    text: int = sys.maxsize
    #: The maximum number of items in each list or object.
    items: int = sys.maxsize
    #: The maximum number of values in total. Long texts are counted as several values.
    values: int = sys.maxsize


def masked_values(value: Any, name: str = "", *, limits: Limits = Limits()) -> Any:  # the default is frozen
    """Return ``value`` as JSON data, with its secrets masked. ``name`` is the value's key.

    Records and mappings become dictionaries, other collections become lists, and any other object becomes text.
    """
    return _Walker(limits).walk(value, limits.depth, name)


class _Walker:
    """Masks a value and the values nested in it, up to a limit, because a value may refer to itself many times."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.values

    def walk(self, value: Any, depth: int, name: str) -> Any:  # noqa: PLR0911  # one branch per type
        self._left -= 1
        if isinstance(value, Enum):
            return self.walk(value.value, depth, name)
        if value is None or isinstance(value, bool):
            return value
        if name and is_secret(name):
            return HIDDEN
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, int) and is_number(value):
            return value
        record = _fields(value)
        if record is None and not isinstance(value, _COLLECTIONS):
            return masked(self._text(value))
        if not depth:
            return "…"
        if record is not None:
            return {name: self.walk(each, depth - 1, name) for name, each in record.items()}
        if isinstance(value, Mapping):
            return {(key := self._text(each)): self.walk(of, depth - 1, key) for each, of in self._some(value.items())}
        items = list(self._some(value))
        return [self.walk(each, depth - 1, option) for each, option in zip(items, _option_names(items), strict=True)]

    def _text(self, value: Any) -> str:
        text = text_of(value, self._limits.text)
        self._left -= len(text) // _LINE
        return text

    def _some(self, values: Any) -> Iterator[Any]:
        for each in islice(values, self._limits.items):
            if self._left <= 0:
                return
            yield each


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record, or None for other objects."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def is_number(value: Any) -> bool:
    """Return whether JSON can contain the number. NaN and integers with thousands of digits are not allowed."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _option_names(items: Sequence[Any]) -> list[str]:
    """For each of ``items``, return the preceding item if it is a command-line option, or else an empty string."""
    before = ["", *items][: len(items)]
    return [each if isinstance(each, str) and each.startswith("-") else "" for each in before]


def _assignments_masked(text: str) -> str:
    """Return ``text`` with the value after each secret name masked."""
    parts: list[str] = []
    at = 0
    for found in _NAMED.finditer(text):
        if found.start() < at or not is_secret(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and _is_assigned(found, value[0]):
            parts += text[at : found.end()], HIDDEN
            at = _end_of(text, value.end())
    return "".join(parts) + text[at:]


def _is_assigned(named: re.Match[str], value: str) -> bool:
    """Return whether ``value`` belongs to the name, and is not just the next word, as in "the token expired"."""
    between = named["between"].strip("\\\"' \t\r\n")
    if between == ",":
        return named["name"].startswith("-") or named.string[: named.start()].rstrip("b\\\"'").endswith("(")
    if between or named["name"].startswith("--"):
        return True
    if value[:1] in ("'", '"'):
        return any(each.isalnum() for each in value)
    return any(each.isdigit() for each in value) and not (len(value) <= _NUMBER and value.isdecimal())


def _end_of(text: str, at: int) -> int:
    """Return the end of the value that was read up to ``at``, including the closing brackets of a list or call."""
    if text[at : at + 1] not in ("(", "[", "{"):
        return at
    depth = 0
    for found in _BRACKET.finditer(text, at):
        if found["quote"] is None:
            depth += 1 if found["opens"] else -1
        if depth == 0:
            return found.end()
    return len(text)
