"""How far something has come that takes long: a bar at a terminal, else lines; always beside the answer, on stderr.

What became of it is said by others: the bar is gone when its block ends.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lifecycle.cli.ctl.printing import console
from lifecycle.cli.messages import voice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.console import Console

__all__ = ["bar"]


@contextmanager
def bar(doing: str) -> Generator[Callable[[int, int, str], None]]:
    """What is called with how much is done, of how much, and what is left in words."""
    screen = console(errors=True)
    with _lines(doing) if screen is None else _drawn(doing, screen) as tell:
        yield tell


@contextmanager
def _lines(doing: str) -> Generator[Callable[[int, int, str], None]]:
    said, farthest = "", 0

    def tell(done: int, _whole: int, left: str) -> None:
        nonlocal said, farthest
        # A worker that is started again and again has ended, and has not.
        if left and left != said and done >= farthest:
            said, farthest = left, done
            voice().say(f"{doing}: {left}")

    yield tell


@contextmanager
def _drawn(doing: str, screen: Console) -> Generator[Callable[[int, int, str], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as progress:
        # Where there is nothing to be done, none is drawn.
        task = progress.add_task(doing, visible=False, left="")

        def tell(done: int, whole: int, left: str) -> None:
            progress.update(task, completed=done, total=whole, left=left, visible=bool(whole), refresh=True)

        yield tell
