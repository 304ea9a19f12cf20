"""How much memory processes have: from /proc, and where that is not, from psutil if it is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Memory"]

#: Seconds for which what was read is good enough.
_GOOD = 2.0
_PROC = Path("/proc")


class Memory:
    """Reads the resident bytes of processes, at most every 2 seconds; one that is gone, or new since, has none."""

    def __init__(self) -> None:
        self._read = _reader()
        self._known: dict[int, int] = {}
        self._until = 0.0

    def of(self, pids: Iterable[int]) -> dict[int, int]:
        """Bytes by process id, as they were lately, for those that could be read."""
        now = time.monotonic()
        if now >= self._until:
            self._known = {pid: size for pid in pids if (size := self._read(pid))}
            self._until = now + _GOOD
        return self._known


def _reader() -> Callable[[int], int]:
    if (_PROC / "self/statm").exists():
        return _from_proc
    try:
        import psutil
    except ImportError:
        return lambda _: 0

    def from_psutil(pid: int) -> int:
        with suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0

    return from_psutil


def _from_proc(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
