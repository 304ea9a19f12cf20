"""Directories that may not be read, which `awatch` stumbles over.

It gives up a whole tree for one such directory below it; told to ignore them, it passes over every directory that
comes after the first, and over every other error too. So they are looked for, and watched around.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["may_read", "unreadable_below"]


def may_read(directory: str) -> bool:
    """Whether this process may list ``directory``, which is what a watch on it takes."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def unreadable_below(directories: Iterable[str]) -> set[str]:
    """All directories at or below ``directories`` that may not be read, links followed as `awatch` does."""
    found: set[str] = set()
    entered: set[tuple[int, int]] = set()
    pending = list(directories)
    while pending:
        directory = pending.pop()
        try:
            identity = os.stat(directory)  # noqa: PTH116  # text, as above
            if (identity.st_dev, identity.st_ino) not in entered:
                entered.add((identity.st_dev, identity.st_ino))
                pending.extend(_inner(directory))
        except PermissionError:
            found.add(directory)
        except OSError:
            # It vanished; nobody will stumble over it.
            continue
    return found


def _inner(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield entry.path
