"""Events and what became of them, as lines; for `tail` and `trace`."""

from __future__ import annotations

import time
from typing import Any, Final

from lifecycle.cli.ctl.printing import coloured
from lifecycle.cli.listing import harmless, short

__all__ = ["UNDER_WAY", "clock", "entry_line"]

#: What becomes of an event is not known yet.
UNDER_WAY: Final = frozenset({"queued", "held", "running"})
#: Characters of the longest word for what became of one.
_WIDTH: Final = 10
_TOPIC: Final = 24


def entry_line(entry: dict[str, Any], *, depth: int = 0, whole: bool = False, width: int | None = None) -> str:
    """One event, in one line; ``depth`` indents the topic.

    A long text is cut unless the ``whole`` is wanted; what is wider than ``width`` characters is cut as well.
    """
    what = str(entry["what"])
    topic = "  " * depth + harmless(entry["topic"])
    begun = f"{clock(entry['time'])} #{entry['id']:<5} "
    rest = " ".join([f"{topic:<{_TOPIC}}", *_details(entry, whole=whole)]).rstrip()
    if width is not None:
        rest = short(rest, max(1, width - len(begun) - _WIDTH - 1))
    return f"{begun}{coloured(f'{what:<{_WIDTH}}', what)} {rest}"


def clock(at: float) -> str:
    """The time of day, with thousandths."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03}"


def _details(entry: dict[str, Any], *, whole: bool) -> list[str]:
    """What else there is to say: who had it, how long that took, what went wrong."""
    parts: list[str] = []
    if entry.get("into") is not None:
        parts.append(f"into #{entry['into']}")
    if entry.get("handler"):
        parts.append(harmless(entry["handler"]))
    if entry.get("merged"):
        parts.append(f"with {entry['merged']} merged")
    if entry.get("attempt", 1) > 1:
        parts.append(f"attempt {entry['attempt']}")
    if entry.get("duration") is not None:
        parts.append(_seconds(entry["duration"]))
    if text := harmless(entry.get("error") or entry.get("summary") or ""):
        parts.append(text if whole else short(text))
    return parts


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"
