"""What watched files hold, so that one that was touched, or saved as it was, is told from one that changed.

A file is remembered by a digest of its bytes and its permissions. At the start small files are read, up to a number of
bytes in all, and the others are known by size and time. A file that is not known counts as changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.sources import DEFAULT_IGNORES
from lifecycle.sources._files.tree import STAMP_NS, Rules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping

    from lifecycle.events import Change

__all__ = ["Contents"]

#: Files that are remembered; of more, those that were looked at last.
_MOST: Final = 20_000
#: Bytes of a file that is read; a larger one is compared by its size and its time.
_LARGEST: Final = 1024 * 1024
#: Bytes that are read at the start, of all files.
_READ: Final = 64 * 1024 * 1024
#: Files looked at in one go.
_BATCH: Final = 200
#: Whose names nobody watches.
_RULES: Final = Rules((), DEFAULT_IGNORES)


@dataclass(frozen=True, slots=True)
class _Print:
    """A file at one moment."""

    mode: int
    size: int
    #: Of its last change, in nanoseconds.
    time: int
    #: None for a file that was not read.
    digest: bytes | None

    def same(self, other: _Print) -> bool:
        """Whether the file has not changed between the two moments."""
        if (self.mode, self.size) != (other.mode, other.size):
            return False
        if self.digest is None or other.digest is None:
            return self.time == other.time
        return self.digest == other.digest


class Contents:
    """Remembers what files hold, as far as it was learned or has changed since it was made."""

    def __init__(self) -> None:
        self._since = time.time_ns() - STAMP_NS
        self._known: dict[Path, _Print] = {}

    async def learn(self, roots: Iterable[Path], counts: Callable[[Path], bool]) -> AsyncGenerator[int]:
        """Look at the files at and below ``roots`` that count and have not changed since this was made.

        How many are known is yielded again and again.
        """
        walk, left = _files(roots), _READ
        while found := await asyncio.to_thread(lambda: list(islice(walk, _BATCH))):
            prints = await asyncio.to_thread(_prints, [path for path in found if counts(path)], self._since, left)
            left -= sum(each.size for each in prints.values() if each.digest is not None)
            if len(self._known) + len(prints) > _MOST:
                return
            # A change that was seen meanwhile is newer.
            self._known = prints | self._known
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Those of ``changes`` that are more than a touch; what came or went always is."""
        prints = await asyncio.to_thread(_prints, [path for path, change in changes.items() if change != "deleted"])
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(path))}

    def _differs(self, path: Path, change: Change, now: _Print | None) -> bool:
        before = self._known.pop(path, None)
        if now is not None:
            self._known[path] = now
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or before is None or not now.same(before)


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    """The files at and below ``roots``, without what nobody watches."""
    for root in roots:
        if not root.is_dir():
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _RULES.skips(name, name)]
            yield from (Path(folder, name) for name in files if not _RULES.skips(name, name))


def _prints(paths: Collection[Path], until: int | None = None, most: float = inf) -> dict[Path, _Print]:
    """The prints of those that can be opened, and were last changed before ``until`` by the system's clock.

    Of all together at most ``most`` bytes are read.
    """
    found: dict[Path, _Print] = {}
    for path in paths:
        if (one := _print(path, until, min(most, _LARGEST))) is not None:
            found[path] = one
            most -= one.size if one.digest is not None else 0
    return found


def _print(path: Path, until: int | None, most: float) -> _Print | None:
    try:
        # What has become a pipe meanwhile is not waited for.
        with open(path, "rb", opener=_open_at_once) as stream:  # Path.open() has no opener
            status = os.fstat(stream.fileno())
            digest = None if status.st_size > most else hashlib.file_digest(stream, _digest).digest()
            if until is not None and os.fstat(stream.fileno()).st_ctime_ns >= until:
                return None
    except OSError:
        return None
    return _Print(status.st_mode, status.st_size, status.st_mtime_ns, digest)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
