"""Words for those who read them: what things are called, and texts of any origin within bounds.

Plain values only: what a record of ours says in words stands beside the record.
"""

from __future__ import annotations

from typing import Any

__all__ = ["called", "printable", "seconds", "sendable", "shortened"]


def called(thing: Any) -> str:
    """What it calls itself, or else what it is; it may be of any class, and raise at that."""
    try:
        name = thing.name
    except Exception:  # noqa: BLE001  # of others
        name = None
    return name if isinstance(name, str) and name else type(thing).__name__


def shortened(text: str, length: int) -> str:
    """``text``, cut to ``length`` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def printable(text: str) -> str:
    """``text`` as one line that does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def sendable(text: object) -> str:
    """``text`` as UTF-8 can say it: names of files may hold bytes that are no characters."""
    return str(text).encode("utf-8", "replace").decode()


def seconds(value: float) -> str:
    """A duration for people."""
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"
