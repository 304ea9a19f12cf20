"""Lists that a person reads: columns, times ago, and nothing that a terminal might obey."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ago", "columns", "harmless", "moment", "several", "short"]

#: Characters of an error or a value in a list.
_SHORT = 80


def columns(rows: Sequence[Sequence[str]]) -> str:
    """``rows``, one below the other, each cell as wide as the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)


def harmless(text: str, kept: str = "") -> str:
    """``text`` with whatever a terminal might obey written out, but for the characters ``kept``."""
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


def short(text: str, longest: int = _SHORT) -> str:
    """``text``, or its beginning and an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def several(count: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ago(since: float) -> str:
    """How long ago that was."""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def moment(at: float) -> str:
    """When that was, as the clock on the wall has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
