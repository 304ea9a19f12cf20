"""Functions that print responses. Tables are coloured at a terminal if rich is installed, and plain otherwise.

Control characters received from a program are escaped, because names can contain any character.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import printable
from lifecycle.cli.output import (
    DIM,
    GREEN,
    RED,
    YELLOW,
    CliError,
    columns,
    has_colour,
    is_terminal,
    paint,
    print_result,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = [
    "Table",
    "colour_state",
    "live",
    "rich_console",
    "show",
    "show_json",
    "show_output",
    "show_text",
    "width",
]

#: The colours of states.
_COLOURS: Final = {
    **dict.fromkeys(("running", "handled", "ready", "healthy", "idle", "success", "busy"), GREEN),
    **dict.fromkeys(("failed", "killed", "dropped", "unrouted", "failure", "dead", "no answer"), RED),
    **dict.fromkeys(("starting", "stopping", "suspending", "suspended", "resuming", "restarting", "queued"), YELLOW),
    **dict.fromkeys(("draining", "waiting", "held", "backoff", "shutting down"), YELLOW),
    **dict.fromkeys(("stopped", "finished", "merged", "superseded", "closed"), DIM),
}
_COLOUR: Final = re.compile("(\x1b\\[[0-9;]{0,40}m)")
_STYLES: Final = {GREEN: "green", RED: "red", YELLOW: "yellow", DIM: "dim"}

#: The maximum width of narrow columns, such as states and numbers. These columns are truncated last.
_NARROW: Final = 10


@dataclass(frozen=True, slots=True)
class Table:
    """A heading and the rows below it."""

    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def plain(self) -> str:
        """Return the rows as lines with aligned columns."""
        return columns([self.heading, *(tuple(map(printable, row)) for row in self.rows)])

    def rich(self) -> RichTable:
        """Return the table for rich, which truncates text that is too long for the window."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for at, name in enumerate(self.heading):
            width = max((len(row[at]) for row in self.rows), default=0)
            # rich first narrows columns that can wrap, even to zero width. In this table, no cell wraps,
            # and each column has a minimum width. Text that still does not fit extends past the right edge.
            table.add_column(name, no_wrap=width <= _NARROW, min_width=min(max(width, len(name)), _NARROW))
        for row in self.rows:
            table.add_row(*(Text(printable(cell), _style(cell), no_wrap=True, overflow="ellipsis") for cell in row))
        return table


def _style(cell: str) -> str:
    return _STYLES.get(_COLOURS.get(cell, ""), "")


def show(table: Table) -> bool:
    """Print a table. Returns False if the reader has closed the output."""
    screen = rich_console()
    if screen is None:
        return print_result(sys.stdout, table.plain())
    with screen.capture() as drawn:
        screen.print(table.rich())
    return print_result(sys.stdout, drawn.get())


def show_json(value: Any, *, line: bool = False) -> bool:
    """Print JSON, on a single line if ``line`` is true. Returns False if the reader has closed the output."""
    try:
        text = json.dumps(value, indent=None if line else 2)
    except RecursionError:
        raise CliError("the program's response is nested too deeply") from None
    return print_result(sys.stdout, f"{text}\n")


def show_text(text: str) -> bool:
    """Print text from the program. Returns False if the reader has closed the output."""
    return print_result(sys.stdout, printable(text.rstrip("\n"), "\n\t") + "\n" if text else "")


def show_output(messages: Iterable[Any]) -> None:
    """Print a program's output. Colours are kept, and other control sequences are escaped."""
    for message in messages:
        text = message.get("text") or f"\n({message.get('dropped')} characters are not shown)\n"
        text = text.replace("\r\n", "\n")  # line endings from a process with its own terminal
        pieces = _COLOUR.split(text) if has_colour(sys.stdout) else [text]
        kept = (piece if _COLOUR.fullmatch(piece) else printable(piece, "\n\t") for piece in pieces)
        write(sys.stdout, "".join(kept))


def colour_state(text: str, state: str) -> str:
    """Return ``text`` in the colour used for ``state``."""
    colour = _COLOURS.get(state)
    return paint(text, colour) if colour is not None and has_colour(sys.stdout) else text


def width() -> int | None:
    """Return the terminal's width in characters, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def rich_console(*, errors: bool = False) -> Console | None:
    """Return a rich console, or None if the terminal has no colours or rich is not installed."""
    stream = sys.stderr if errors else sys.stdout
    if not has_colour(stream):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False, markup=False, emoji=False)


@contextmanager
def live(screen: Console) -> Generator[Callable[[Table], None]]:
    """Return a function that draws each table over the previous table."""
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as drawing:
        yield lambda table: drawing.update(table.rich(), refresh=True)
