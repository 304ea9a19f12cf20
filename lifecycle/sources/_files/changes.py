"""What changed since it was last asked: from the system's reports, or from looking at everything now and then.

This is where the hints of `watches` meet the look-up of `tree`, and where what `awatch` loses is
repaired: directories that turn up are read again, everything is compared after a flood, and the watches are opened
anew when what they stand on is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from lifecycle.sources._files.watches import NameNotText, Watch, WatchBroken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.events import Change
    from lifecycle.sources._files.tree import Tree

__all__ = ["Changes", "Polled", "Watched"]

_log = logging.getLogger("lifecycle.sources")

# When a directory that was just found is read again: its own watch may have come after what was written into it.
_AGAIN = (0.02, 0.1, 0.5, 2.0)
# The kernel's queue overflows, unsaid, at 16,384 reports: after so many hints, and so many seconds, all is compared.
_MANY = 2048
_MOMENT = 1.0
# The time between two looks, in multiples of what one takes.
_SHARE = 5
# How often watches are opened in a row when what they are for keeps changing.
_ATTEMPTS = 5


class Changes(Protocol):
    """Net changes of the files of a tree, batch by batch."""

    async def open(self) -> None:
        """Begin: from here on nothing is missed."""
        ...

    async def next(self) -> Mapping[str, Change]:
        """Wait, and give what changed since the last call, which may be nothing."""
        ...

    async def close(self) -> None:
        """End."""
        ...


class Polled:
    """Looks at everything each ``interval`` seconds."""

    def __init__(self, tree: Tree, interval: float) -> None:
        self._tree = tree
        self._interval = interval

    async def open(self) -> None:
        """Compare."""
        await asyncio.to_thread(self._tree.compare)

    async def next(self) -> Mapping[str, Change]:
        """Wait, then compare."""
        await asyncio.sleep(self._interval)
        await asyncio.to_thread(self._tree.compare)
        return self._tree.take_changes()

    async def close(self) -> None:
        """Nothing is held."""


class Watched:
    """Looks at what the system reports, gathered over ``step`` seconds."""

    def __init__(self, tree: Tree, step: float) -> None:
        self._tree = tree
        self._step = step
        self._watch: Watch | None = None
        # When to read which directories again, by their real paths; in no order.
        self._due: list[tuple[float, set[str]]] = []
        # Since everything was last compared, or is going to be.
        self._hints = 0
        # Whether the watches were opened anew and nothing has come from them yet.
        self._unproven = False
        # Not before then are they opened again for a name that is not UTF-8.
        self._next_open = 0.0

    async def open(self) -> None:
        """Open the watches, then compare: from here on nothing is missed.

        Raises:
            OSError: when they cannot be opened; the message names the limit that was reached.
        """
        for last in (*[False] * _ATTEMPTS, True):
            if await self._open_once(last=last) or last:
                return
            await self.close()

    async def next(self) -> Mapping[str, Change]:
        """Wait for reports, or for the time to look again, and look.

        Raises:
            OSError: when the watches broke and cannot be opened anew.
        """
        assert self._watch is not None, "it is open"
        now = asyncio.get_running_loop().time
        try:
            reports = await self._watch.next(self._patience(now()))
        except NameNotText:
            await self._reopen()
            return self._tree.take_changes()
        except WatchBroken as error:
            await self._mend(error)
            return self._tree.take_changes()
        self._unproven = False
        hints = [(path, change.name == "modified") for change, path in reports]
        await asyncio.to_thread(self._tree.update, hints, self._take_due(now()))
        born = self._plan(len(hints), now())
        unsure = self._tree.shifted or (born and self._watch.cover.whole)
        if self._watch.outdated_by(reports) or (unsure and await asyncio.to_thread(self._misses_something)):
            await self.close()
            await self.open()
        return self._tree.take_changes()

    async def close(self) -> None:
        """Take the watches away."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    async def _open_once(self, *, last: bool) -> bool:
        """Open the watches for what is there now, and compare; whether they are right for what was found."""
        cover = await asyncio.to_thread(self._tree.cover)
        self._watch = Watch(cover, step=self._step)
        try:
            await self._watch.open()
        except PermissionError:
            if last:
                raise
            await asyncio.to_thread(self._tree.look_for_unwatchable)
            return False
        except WatchBroken:
            # Something vanished between the look and the watch.
            if last:
                raise
            await asyncio.to_thread(self._tree.compare)
            return False
        await asyncio.to_thread(self._tree.compare)
        return cover == await asyncio.to_thread(self._tree.cover)

    async def _mend(self, error: WatchBroken) -> None:
        if self._unproven:
            raise error
        _log.warning("the watches on %s are opened anew: %s", ", ".join(sorted(self._tree.real_roots())), error)
        await self.close()
        self._unproven = True
        await self.open()

    async def _reopen(self) -> None:
        """Open the watches again after a name that is not UTF-8, and compare.

        If such names keep coming, this looks every second, or less often where a look takes long.
        """
        now = asyncio.get_running_loop().time
        await self.close()
        await asyncio.sleep(self._next_open - now())
        began = now()
        # If it is the name of a directory, watches on all above it would report it again and again.
        await asyncio.to_thread(self._tree.look_for_unwatchable)
        await self.open()
        self._next_open = now() + max(_MOMENT, _SHARE * (now() - began))

    def _misses_something(self) -> bool:
        return self._watch is None or self._watch.cover != self._tree.cover()

    def _patience(self, now: float) -> float | None:
        return max(0.0, min(at for at, _ in self._due) - now) if self._due else None

    def _take_due(self, now: float) -> set[str]:
        """The directories to read again by now."""
        due = [each for at, each in self._due if at <= now]
        self._due = [(at, each) for at, each in self._due if at > now]
        return set[str]().union(*due)

    def _plan(self, hints: int, now: float) -> bool:
        """Decide what to read again, and when; whether there are directories that were not known."""
        self._hints += hints
        if self._hints >= _MANY:
            self._hints = 0
            self._due.append((now + _MOMENT, self._tree.real_roots()))
        if born := self._tree.take_born():
            self._due.extend((now + pause, born) for pause in _AGAIN)
        return bool(born)
