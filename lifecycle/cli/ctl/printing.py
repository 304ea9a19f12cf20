"""How answers look: tables in colours at a terminal where rich is installed, else plain columns for scripts.

Everything that a program says of itself is made harmless first: a name may hold whatever its author liked.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import duration, printable, shorten, time_of_day
from lifecycle.cli.output import CliError, columns, has_colour, is_terminal, paint, print_result, write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = [
    "Table",
    "colour_state",
    "entry_line",
    "live",
    "rich_console",
    "show",
    "show_json",
    "show_output",
    "show_text",
    "width",
]

_GREEN, _RED, _YELLOW, _DIM = "32", "31", "33", "2"

#: What words of state mean to a person.
_COLOURS: Final = {
    **dict.fromkeys(("running", "handled", "ready", "healthy", "idle", "success", "busy"), _GREEN),
    **dict.fromkeys(("failed", "killed", "dropped", "unrouted", "failure", "dead", "no answer"), _RED),
    **dict.fromkeys(("starting", "stopping", "suspending", "suspended", "resuming", "restarting", "queued"), _YELLOW),
    **dict.fromkeys(("draining", "waiting", "held", "backoff", "shutting down"), _YELLOW),
    **dict.fromkeys(("stopped", "finished", "merged", "superseded", "closed"), _DIM),
}
_COLOUR: Final = re.compile("(\x1b\\[[0-9;]{0,40}m)")
_STYLES: Final = {_GREEN: "green", _RED: "red", _YELLOW: "yellow", _DIM: "dim"}


#: Characters of the longest word for what became of one.
_WIDTH: Final = 10
_TOPIC: Final = 24

#: A column of so many characters is not cut before others are: a word of state, a number.
_KEPT: Final = 10


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading."""

    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def plain(self) -> str:
        """One row a line, in columns."""
        return columns([self.heading, *(tuple(map(printable, row)) for row in self.rows)])

    def rich(self) -> RichTable:
        """The same for rich; what is too long for the window is cut."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for at, name in enumerate(self.heading):
            width = max((len(row[at]) for row in self.rows), default=0)
            # rich takes room from those that may wrap, first; none of the cells does. It would take all of it: what
            # a window has no room for then is beyond its right edge.
            table.add_column(name, no_wrap=width <= _KEPT, min_width=min(max(width, len(name)), _KEPT))
        for row in self.rows:
            table.add_row(*(Text(printable(cell), _style(cell), no_wrap=True, overflow="ellipsis") for cell in row))
        return table


def _style(cell: str) -> str:
    return _STYLES.get(_COLOURS.get(cell, ""), "")


def show(state_table: Table) -> bool:
    """Print it; False if nobody reads any more."""
    screen = rich_console()
    if screen is None:
        return print_result(sys.stdout, state_table.plain())
    with screen.capture() as drawn:
        screen.print(state_table.rich())
    return print_result(sys.stdout, drawn.get())


def show_json(value: Any, *, line: bool = False) -> bool:
    """Print it for programs, in one line if it is one of many; False if nobody reads any more."""
    try:
        text = json.dumps(value, indent=None if line else 2)
    except RecursionError:
        raise CliError("the answer of the program is nested too deeply") from None
    return print_result(sys.stdout, f"{text}\n")


def show_text(text: str) -> bool:
    """Print what the program has written; False if nobody reads any more."""
    return print_result(sys.stdout, printable(text.rstrip("\n"), "\n\t") + "\n" if text else "")


def show_output(messages: Iterable[Any]) -> None:
    """Print what a program prints itself: its colours are kept, whatever else a terminal might obey is not."""
    for message in messages:
        text = message.get("text") or f"\n({message.get('dropped')} characters are not shown)\n"
        text = text.replace("\r\n", "\n")  # of a process at a terminal of its own
        pieces = _COLOUR.split(text) if has_colour(sys.stdout) else [text]
        # Those between colours, and the colours themselves.
        kept = (piece if _COLOUR.fullmatch(piece) else printable(piece, "\n\t") for piece in pieces)
        write(sys.stdout, "".join(kept))


def colour_state(text: str, word: str) -> str:
    """``text`` in the colour of a word of state."""
    colour = _COLOURS.get(word)
    return paint(text, colour) if colour is not None and has_colour(sys.stdout) else text


def width() -> int | None:
    """How many characters a line may have; None where nobody sits before a terminal."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def rich_console(*, errors: bool = False) -> Console | None:
    """A terminal that rich can draw on; None where there is none, or no rich."""
    stream = sys.stderr if errors else sys.stdout
    # What rich would do without colours, columns do as well.
    if not has_colour(stream):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False, markup=False, emoji=False)


@contextmanager
def live(screen: Console) -> Generator[Callable[[Table], None]]:
    """A table that is drawn anew in its place for each call."""
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as drawing:
        yield lambda state_table: drawing.update(state_table.rich(), refresh=True)


# -- events ------------------------------------------------------------------------------------------------------


def entry_line(entry: dict[str, Any], *, depth: int = 0, whole: bool = False, width: int | None = None) -> str:
    """One event, in one line; ``depth`` indents the topic.

    A long text is cut unless the ``whole`` is wanted; what is wider than ``width`` characters is cut as well.
    """
    what = str(entry["what"])
    topic = "  " * depth + printable(entry["topic"])
    begun = f"{time_of_day(entry['time'], milliseconds=True)} #{entry['id']:<5} "
    rest = " ".join([f"{topic:<{_TOPIC}}", *_details(entry, whole=whole)]).rstrip()
    if width is not None:
        rest = shorten(rest, max(1, width - len(begun) - _WIDTH - 1))
    return f"{begun}{colour_state(f'{what:<{_WIDTH}}', what)} {rest}"


def _details(entry: dict[str, Any], *, whole: bool) -> list[str]:
    """What else there is to say: who had it, how long that took, what went wrong."""
    parts: list[str] = []
    if entry.get("into") is not None:
        parts.append(f"into #{entry['into']}")
    if entry.get("handler"):
        parts.append(printable(entry["handler"]))
    if entry.get("merged"):
        parts.append(f"with {entry['merged']} merged")
    if entry.get("attempt", 1) > 1:
        parts.append(f"attempt {entry['attempt']}")
    if entry.get("duration") is not None:
        parts.append(duration(entry["duration"]))
    if text := printable(entry.get("error") or entry.get("summary") or ""):
        parts.append(text if whole else shorten(text))
    return parts
