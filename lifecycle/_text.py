"""Helpers for human-readable text: shortening, escaping for terminals, and formatting counts, durations and times."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from lifecycle._util import error_text

__all__ = [
    "component_name",
    "duration",
    "listed",
    "plain_line",
    "plural",
    "printable",
    "shorten",
    "text_of",
    "time_of_day",
    "utf8",
]

#: The maximum number of names in an error message.
_SHOWN = 20
#: The control sequences of terminals (ECMA-48): colours, other CSI sequences, strings such as titles, and the rest.
_SEQUENCE: Final = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,64}m)"
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{1,8}[0-~]"
    r"|\x1b[0-OQ-WYZ\\`-~]"
)
#: Control characters, other than tabs and the start of a colour.
_CONTROL: Final = re.compile(r"\x1b(?!\[[0-9;:]{0,64}m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029]")


def shorten(text: str, length: int = 80) -> str:
    """Return ``text``, cut to ``length`` characters with an ellipsis at the end."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def printable(text: str, keep: str = "") -> str:
    """Escape the characters in ``text`` that a terminal could interpret, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def plain_line(line: str) -> str:
    """Return a line of output without control sequences, other than those that set colours.

    Cursor movement, titles and other sequences could change lines that other processes have written. Complete sequences
    are removed, and other control characters are escaped. Tabs are kept.
    """
    if line.isprintable():
        return line
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), _SEQUENCE.sub(_colour_only, line))


def _colour_only(found: re.Match[str]) -> str:
    return found[0] if found["colour"] else ""


def utf8(value: object) -> str:
    """Return ``value`` as text that UTF-8 can encode. File names may contain surrogates."""
    return str(value).encode("utf-8", "replace").decode()


def text_of(value: object, length: int = 10_000) -> str:
    """Return ``value`` as text, cut to ``length``: the message of an error, or the repr of any other object."""
    if isinstance(value, str):
        return shorten(str.__str__(value), length)
    if isinstance(value, BaseException):
        return shorten(error_text(value), length)
    try:
        return shorten(repr(value), length)
    except Exception:  # noqa: BLE001  # the program's own class may raise anything
        return f"<{type(value).__qualname__} that cannot be shown>"


def listed(names: list[str]) -> str:
    """Return the first 20 ``names``, separated by commas, and the number of names left out.

    A name that may contain terminal control characters is quoted.
    """
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(each if each.isprintable() else repr(each) for each in names[:_SHOWN]) + more


def plural(count: int, noun: str) -> str:
    """Return ``1 task`` or ``2 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return ``12.5 ms`` or ``3.0 s``."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def time_of_day(at: float, *, milliseconds: bool = False) -> str:
    """Return the local time of a timestamp as ``HH:MM:SS``."""
    text = time.strftime("%H:%M:%S", time.localtime(at))
    return f"{text}.{int(at % 1 * 1000):03}" if milliseconds else text


def component_name(component: Any) -> str:
    """Return the ``name`` of ``component``, or the name of its class if it has no usable name."""
    try:
        name = component.name
    except Exception:  # noqa: BLE001  # a property of the program's own class may raise anything
        name = None
    return name if isinstance(name, str) and name else type(component).__name__
