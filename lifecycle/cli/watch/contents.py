"""Recognition of files that were only touched, or saved with the same content."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.sources import DEFAULT_IGNORES
from lifecycle.sources._file_rules import Rules
from lifecycle.sources._file_tree import STAMP_NS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping

    from lifecycle.events import Change

__all__ = ["Contents", "fingerprint"]

#: The maximum number of files to remember. The most recently changed files are kept.
MAX_FILES: Final = 20_000
#: The maximum size, in bytes, of a file to read. Larger files are compared by size and time.
MAX_SIZE: Final = 1024 * 1024
#: The maximum total number of bytes to read at startup.
MAX_READ: Final = 64 * 1024 * 1024
#: The number of files handled per call to a thread.
BATCH: Final = 400
_IGNORED: Final = Rules((), DEFAULT_IGNORES)


class Contents:
    """Recognises files that were only touched, or saved with the same content.

    Files are compared by their permissions and contents. Small files are read, up to a maximum total size. The first
    batch is read before the command starts, and later batches while it runs. Other files are compared by size and
    time. An unknown file is treated as changed.

    Args:
        until: a time in ns. In later batches, files that changed at or after this time are not read [default: the end
            of the first batch].
    """

    def __init__(self, *, until: int | None = None) -> None:
        # A system clock time, in nanoseconds.
        self._until = until
        self._known: dict[str, bytes] = {}

    async def learn(
        self, roots: Iterable[Path], select: Callable[[Iterable[Path]], Iterable[Path]]
    ) -> AsyncGenerator[int]:
        """Read the files below ``roots`` that ``select`` accepts. Yield the number of files read after each batch."""
        walk, left, until = _files(roots), float(MAX_READ), None
        while found := await asyncio.to_thread(lambda: list(map(Path, islice(walk, BATCH)))):
            prints, left = await asyncio.to_thread(_fingerprints, select(found), until, left)
            if len(self._known) + len(prints) > MAX_FILES:
                return
            # Fingerprints from changes received in the meantime are newer.
            self._known = prints | self._known
            if until is None:
                until = time.time_ns() - STAMP_NS if self._until is None else self._until
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Return the changes, omitting files that were only touched. Added and deleted files are always included."""
        present = [path for path, change in changes.items() if change != "deleted"]
        prints, _ = await asyncio.to_thread(_fingerprints, present)
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(str(path)))}

    def _differs(self, path: Path, change: Change, now: bytes | None) -> bool:
        before = self._known.pop(str(path), None)
        if now is not None:
            self._known[str(path)] = now
            if len(self._known) > MAX_FILES:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or before != now


def _files(roots: Iterable[Path]) -> Iterator[str]:
    """Yield the files at and below ``roots``, except those in caches, virtual environments and similar directories."""
    for root in map(str, roots):
        if not os.path.isdir(root):  # noqa: PTH112  # never raises
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _IGNORED.skips(name, name)]
            yield from (f"{folder.rstrip('/')}/{name}" for name in files if not _IGNORED.skips(name, name))


def _fingerprints(paths: Iterable[Path], until: int | None = None, left: float = inf) -> tuple[dict[str, bytes], float]:
    """Return the fingerprints of readable files unchanged since ``until``, and how many bytes may still be read.

    At most ``left`` bytes are read. Files that would exceed this limit are compared by size and time.
    """
    found: dict[str, bytes] = {}
    for path in map(str, paths):
        if (one := fingerprint(path, until, left)) is not None:
            found[path], size = one
            left -= size
    return found, left


def fingerprint(path: str, until: int | None = None, left: float = inf) -> tuple[bytes, int] | None:
    """Return a digest of a file's permissions and contents, and how many bytes were read.

    If the file is too large to be read, the digest covers its size and time instead of its contents.
    """
    try:
        # O_NONBLOCK, because the path may now be a named pipe.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(file)
            read = status.st_size <= min(left, MAX_SIZE)
            data = os.read(file, status.st_size + 1) if read else f"{status.st_size} {status.st_mtime_ns}".encode()
            if until is not None and os.fstat(file).st_ctime_ns >= until:
                return None
        finally:
            os.close(file)
    except OSError:
        return None
    mode = status.st_mode.to_bytes(4, "big")
    return hashlib.blake2b(data, digest_size=16, salt=mode).digest(), len(data) if read else 0
