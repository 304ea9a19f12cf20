"""`SteadyClock`: the time for leases and delays, which a step of the system's clock does not move."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SteadyClock"]

#: The number of the present boot.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLOCK = "CREATE TABLE IF NOT EXISTS lifecycle_clock (boot TEXT NOT NULL, ahead REAL NOT NULL, seen REAL NOT NULL)"
#: Seconds after which a write notes the time in the file.
_NOTE = 60.0


class SteadyClock:
    """Seconds since the epoch that do not jump when the system's clock is set.

    They are counted by the time since the boot, which goes on while the machine sleeps, and all that have a file open
    agree on them through the file. After a boot they begin with the system's clock, but not before a time that was
    noted in the file. On other systems than Linux they are the system's clock.
    """

    def __init__(self) -> None:
        self._boot = _boot()
        self._ahead = time.time() - _since_boot()
        self._noted = 0.0

    def time(self) -> float:
        """The time."""
        return _since_boot() + self._ahead if self._boot else time.time()

    def agree(self, db: sqlite3.Connection) -> None:
        """Go by the clock of the file, in a transaction that writes."""
        db.execute(_CLOCK)
        known = db.execute("SELECT boot, ahead, seen FROM lifecycle_clock").fetchone()
        if known is None:
            db.execute("INSERT INTO lifecycle_clock VALUES ('', 0, 0)")
        elif known[0] == self._boot:
            # Nothing has to be written.
            self._ahead, self._noted = known[1:]
            return
        else:
            self._ahead = max(time.time(), known[2]) - _since_boot()
        db.execute("UPDATE lifecycle_clock SET boot = ?, ahead = ?", (self._boot, self._ahead))
        self.note(db)

    def note(self, db: sqlite3.Connection) -> None:
        """Note the time in the file."""
        self._noted = self.time()
        db.execute("UPDATE lifecycle_clock SET seen = ?", (self._noted,))

    @property
    def is_to_be_noted(self) -> bool:
        """Whether the time was not noted for a while."""
        return not 0 <= self.time() - self._noted < _NOTE


def _boot() -> str:
    """The number of the present boot; empty where the time since it cannot be known."""
    if sys.platform != "linux":
        return ""
    try:
        with open(_BOOT_ID) as file:  # noqa: PTH123  # pathlib is not imported here
            return file.read().strip()
    except OSError:
        return ""


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else 0.0
