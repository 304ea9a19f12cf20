"""Events and what became of them, as lines; for `tail` and `trace`."""

from __future__ import annotations

import time
from typing import Any, Final

from lifecycle.cli.ctl.looks import coloured
from lifecycle.cli.listing import harmless, short

__all__ = ["UNDER_WAY", "clock", "entry_line"]

#: What becomes of an event is not known yet.
UNDER_WAY: Final = frozenset({"queued", "held", "running"})
#: Characters of the longest word for what became of one.
_WIDTH: Final = 10
_TOPIC: Final = 24


def entry_line(entry: dict[str, Any], *, depth: int = 0) -> str:
    """One event, in one line; ``depth`` indents the topic."""
    what = str(entry["what"])
    topic = "  " * depth + harmless(entry["topic"])
    parts = [clock(entry["time"]), f"#{entry['id']:<5}", coloured(f"{what:<{_WIDTH}}", what), f"{topic:<{_TOPIC}}"]
    return " ".join([*parts, *_details(entry)]).rstrip()


def clock(at: float) -> str:
    """The time of day, with thousandths."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03}"


def _details(entry: dict[str, Any]) -> list[str]:
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
    if entry.get("error"):
        parts.append(short(harmless(entry["error"])))
    elif entry.get("summary"):
        parts.append(short(harmless(entry["summary"])))
    return parts


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"
