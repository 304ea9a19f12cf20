"""Moving workers into their cgroups beside their starts, which do not wait for it: together, where they start so.

Once everybody who came of a worker is in its cgroup it stays so, and at its end there is nobody to look for.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lifecycle.workers._posix import Coalescer
from lifecycle.workers.containment.sweeps import Holders, carries

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from lifecycle.workers.containment.cgroups import Cgroup

__all__ = ["Move"]

#: Looks in a row that have to find nobody outside.
_LOOKS: Final = 2
#: Seconds after which who hops from process to process is left to the sweep at the end.
_PATIENCE: Final = 1.0


class Move:
    """Of the process ``pid``, our child, and of whoever has come of it, into ``cgroup``."""

    def __init__(self, cgroup: Cgroup, pid: int, cookie: str) -> None:
        self.cgroup = cgroup
        self.pid = pid
        self.cookie: bytes = cookie.encode()
        #: Why it was refused.
        self.error: OSError | None = None
        #: Whether all are inside for certain, as far as they can be known at all.
        self.complete = False

    def begin(self) -> asyncio.Future[None]:
        """Make it; until it is done, the process must not be reaped."""
        return _moves.submit(self)

    def make(self) -> None:
        """Move those who are seen to descend from the process."""
        try:
            self.cgroup.take(self.pid)
        except OSError as error:
            self.error = error

    def fetch(self, pid: int) -> bool:
        """Move the process ``pid`` in; False if it is there, or gone."""
        with suppress(OSError):
            return self.cgroup.fetch(pid)
        return False


def _make(moves: Sequence[Move]) -> None:
    for move in moves:
        move.make()
    made = {move.cookie: move for move in moves if move.error is None}
    if made and _gathered(made):
        for move in made.values():
            move.complete = True


def _gathered(moves: Mapping[bytes, Move]) -> bool:
    """Fetch those who hold one of these cookies and are elsewhere; whether there is nobody left in the end."""
    holders = Holders(moves.__contains__)
    until, empty = time.monotonic() + _PATIENCE, 0
    while empty < _LOOKS and time.monotonic() < until:
        # Most are inside by now. To look at each costs time, and once more at its end: the kernel keeps what was seen.
        inside = {pid for move in moves.values() for pid in move.cgroup.members()}
        found = [pid for pid, _ in holders(inside)]
        fetched = [pid for pid in found for cookie in moves if carries(pid, cookie) and moves[cookie].fetch(pid)]
        empty = 0 if fetched else empty + 1
    return empty >= _LOOKS


_moves: Coalescer[Move, None] = Coalescer(_make, thread="move into cgroups")
