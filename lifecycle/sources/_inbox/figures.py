"""What can be seen of an inbox that is open: how many letters wait in its file, without waiting for the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.journal import Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Figures", "InboxState"]


@dataclass(frozen=True, slots=True)
class InboxState:
    """What can be seen of an inbox that is open."""

    #: Its file.
    name: str
    #: Letters in the file that wait or are ``under_way``, and dead ones; empty before the first count.
    depths: dict[str, int]
    #: Whether it is this process that delivers from it.
    delivers: bool
    suspended: bool
    kind: str = "inbox"


class Figures:
    """The letters that ``count`` counts, as long as ``inbox`` is open, which is announced."""

    def __init__(self, inbox: object, count: Callable[[], Awaitable[dict[str, int]]]) -> None:
        self._inbox = inbox
        self._tally = Tally(count, lambda: hooks.component_changed.announce(inbox, component=inbox))
        self._is_open = False

    def open(self) -> None:
        """Count from now on; nothing happens if it does."""
        if not self._is_open:
            self._is_open = True
            self._tally.open()
            hooks.component_opened.announce(self._inbox, component=self._inbox)

    async def close(self) -> None:
        """Count no more; nothing happens if it does not."""
        if self._is_open:
            self._is_open = False
            hooks.component_closed.announce(self._inbox, component=self._inbox)
            await self._tally.close()

    def renew(self) -> None:
        """Something has happened in the file."""
        self._tally.renew()

    def depths(self, under_way: int) -> dict[str, int]:
        """How many letters wait, are under way, and are dead; empty before the first count."""
        self._tally.renew()
        counted = self._tally.figures
        if not counted:
            return {}
        return {"waiting": max(0, counted["waiting"] - under_way), "under_way": under_way, "dead": counted["dead"]}
