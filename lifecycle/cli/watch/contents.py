"""What watched files hold, so that one that was touched, or saved as it was, is told from one that changed.

A file is remembered by a digest of its bytes and its permissions. What it held before its first change is known where
that could be read in time; where it is not known, a change counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.sources import DEFAULT_IGNORES
from lifecycle.sources._files.marks import STAMP_NS
from lifecycle.sources._files.rules import Rules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping

    from lifecycle.events import Change

__all__ = ["Contents"]

#: Files that are remembered; of more, those that were looked at last.
_MOST: Final = 20_000
#: Bytes of a file that is read; of a larger one size and time of change have to do.
_LARGEST: Final = 16 * 1024 * 1024
#: Files looked at in one go.
_BATCH: Final = 200
#: Whose names nobody watches.
_RULES: Final = Rules((), DEFAULT_IGNORES)


class Contents:
    """Remembers what files hold, as far as it was learned or has changed since it was made."""

    def __init__(self) -> None:
        self._since = time.time_ns() - STAMP_NS
        self._known: dict[Path, bytes] = {}

    async def learn(self, roots: Iterable[Path], counts: Callable[[Path], bool]) -> AsyncGenerator[int]:
        """Read the files at and below ``roots`` that count and have not changed since this was made.

        How many are known is yielded again and again.
        """
        walk = _files(roots)
        while found := await asyncio.to_thread(lambda: list(islice(walk, _BATCH))):
            prints = await asyncio.to_thread(_prints, [path for path in found if counts(path)], self._since)
            if len(self._known) + len(prints) > _MOST:
                return
            # A change that was seen meanwhile is newer.
            self._known = prints | self._known
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Those of ``changes`` that are more than a touch; what came or went always is."""
        prints = await asyncio.to_thread(_prints, [path for path, change in changes.items() if change != "deleted"])
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(path))}

    def _differs(self, path: Path, change: Change, now: bytes | None) -> bool:
        before = self._known.pop(path, None)
        if now is not None:
            self._known[path] = now
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or now != before


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    """The files at and below ``roots``, without what nobody watches."""
    for root in roots:
        if not root.is_dir():
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _RULES.skips(name, name)]
            yield from (Path(folder, name) for name in files if not _RULES.skips(name, name))


def _prints(paths: Collection[Path], until: int | None = None) -> dict[Path, bytes]:
    """The prints of those that can be read, and were last changed before ``until`` by the system's clock."""
    return {path: found for path in paths if (found := _print(path, until)) is not None}


def _print(path: Path, until: int | None) -> bytes | None:
    try:
        # What has become a pipe meanwhile is not waited for.
        with open(path, "rb", opener=_open_at_once) as stream:  # Path.open() has no opener
            status = os.fstat(stream.fileno())
            if status.st_size > _LARGEST:
                digest = f"{status.st_size} {status.st_mtime_ns}".encode()
            else:
                digest = hashlib.file_digest(stream, _digest).digest()
            if until is not None and os.fstat(stream.fileno()).st_ctime_ns >= until:
                return None
    except OSError:
        return None
    return status.st_mode.to_bytes(4) + digest


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
