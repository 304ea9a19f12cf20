"""Which directory entries decide what a path leads to, when links are on its way."""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH115, PTH118, PTH120

from __future__ import annotations

import os
from collections import deque

__all__ = ["entries_on_the_way"]

# The kernel follows as many before it gives up.
_MOST_LINKS = 40


def entries_on_the_way(path: str) -> set[str]:
    """The entries whose replacement makes the absolute ``path`` another file: its links, and what it ends at.

    Each is named by its directory's real path, so that directory is where to watch for it. Where the way breaks off,
    the first entry that is missing ends it.
    """
    found: set[str] = set()
    here, rest = "/", deque(_parts(path))
    links = 0
    while rest:
        name = rest.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, name)
        target = _target(entry)
        if target is not None and links < _MOST_LINKS:
            links += 1
            found.add(entry)
            rest.extendleft(reversed(_parts(target)))
            here = "/" if target.startswith("/") else here
        elif target is None and rest and os.path.lexists(entry):
            here = entry
        else:
            found.add(entry)
            break
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _target(entry: str) -> str | None:
    try:
        return os.readlink(entry)
    except OSError:
        return None
