"""Masking of secrets in everything that leaves the process: the page, the control socket, diagrams, spans, lists.

There is one definition of a secret: a value whose name is that of a password, a token or the like. A name is compared
word by word, so that ``author``, ``keyboard`` and ``tokenizer`` are no secrets. In free text, a name is what stands
before ``=`` or ``:``, or an option such as ``--password``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from lifecycle._naming import words_of

__all__ = ["HIDDEN", "error_masked", "is_secret", "masked", "masked_values"]

#: Stands in place of a secret.
HIDDEN = "***"

#: Characters of a text that is remembered with its masked form: the state repeats its errors at each look.
_REMEMBERED = 1000

#: The words of a name, also of one in camel case: ``dbAuthToken`` is "db auth token".
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = re.compile(r"[\W_]+")
#: The keys that are secret, by the word before.
_KEYS = "api|private|access|signing|encryption|ssh|account|master|shared|service"
_SECRET = re.compile(
    rf"""passw(?:or)?d | passphrase | pass\ phrase | pwd | secret | tokens?\b | credential | apikey
      | \b(?: pass | pgpass | creds? | o?auth2? | authentication | authorization | cookies? | session
            | session\ ?id | signature | sig | bearer | [ht]?otp | jwt | psk )\b
      | \b(?:{_KEYS})\ ?keys?\b""",
    re.VERBOSE,
)
#: Last words of names that are about a secret: ``token_type``, ``session_timeout``, ``AuthError``.
_ABOUT = re.compile(
    r"""\b(?: error | exception | warning | lost | failed | failure | invalid | expired | expires | expiry | missing
            | denied | refused | required | mismatch | timeout | ttl | count | length | size | limit | type | method
            | url | uri )$""",
    re.VERBOSE,
)

#: A name, and what separates it from its value. A name begins where a word does, so that a text is read once.
_NAMED = re.compile(
    rf"""(?<![\w.-])(?<!//) (?P<name> (?: (?:{_KEYS})\  )? [\w.-]++ )
         (?P<between> \\?["']?\s* (?: => | [=:] )(?!//) \s* | ["']?\s+ )""",
    re.VERBOSE | re.IGNORECASE,
)
_VALUE = re.compile(
    r"""(?: (?:bearer|basic|digest|token) \s+ )?
        [\[({]* (?: "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | \\"(?:(?!\\").)*(?:\\")? | [^\s,;&"'()\[\]{}]+ )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_BEARER = re.compile(r"\b(bearer\s+)(?!token|auth|scheme)[\w.~+/=-]{6,}", re.IGNORECASE)
_COOKIES = re.compile(r"(\bcookie[\"']?\s*:\s*)[^\r\n]+", re.IGNORECASE)
#: The password in an address, also in one that is cut within it, or a token in place of the user; keys in a query.
_ADDRESS = re.compile(r"(://[^\s:/@]*:)[^\s/]+(?=@|…)|(://)[^\s:/@]{20,}(?=@)|([?&](?:key|sig)=)[^\s&]+", re.IGNORECASE)


@lru_cache(1024)
def is_secret(name: str) -> bool:
    """Whether a value of that name must not be shown."""
    words = _BETWEEN.sub(" ", _HUMP.sub(" ", name[:200])).strip().lower()
    return _SECRET.search(words) is not None and _ABOUT.search(words) is None


def masked(text: str) -> str:
    """``text`` with ``***`` in place of each secret in it."""
    return _masked(text) if len(text) > _REMEMBERED else _remembered(text)


def _masked(text: str) -> str:
    text = _ADDRESS.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", _COOKIES.sub(rf"\g<1>{HIDDEN}", text))
    return _assignments_masked(text)


_remembered = lru_cache(1024)(_masked)


def error_masked(error: BaseException) -> str:
    """The class of ``error`` and its message, masked."""
    words = masked(words_of(error))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def masked_values(value: Any, name: str = "") -> Any:
    """``value``, as JSON has it, with its secrets masked; ``name`` is the name that it stands under."""
    if value is None or isinstance(value, bool):
        return value
    if name and is_secret(name):
        return HIDDEN
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]  # of Any
        return {key: masked_values(each, key) for key, each in fields.items()}
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]  # of Any
        return [masked_values(each) for each in items]
    return value


def _assignments_masked(text: str) -> str:
    """``text`` with the value after each secret name masked."""
    parts: list[str] = []
    at = 0
    for found in _NAMED.finditer(text):
        if found.start() < at or not is_secret(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and _is_assigned(found, value[0]):
            parts += text[at : value.start()], HIDDEN
            at = value.end()
    return "".join(parts) + text[at:]


def _is_assigned(named: re.Match[str], value: str) -> bool:
    """Whether it is the value of that name, or the next word of a sentence such as "the token expired"."""
    if named["between"].strip("\\\"' \t\r\n") or named["name"].startswith("--"):
        return True
    return value[0] in "\"'" or any(each.isdigit() for each in value)
