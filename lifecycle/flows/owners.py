"""`Owners`: the processes that have one store open; who dies is missed at once, and who has news rings.

Who they are is said by what they meet in: beside a file by ``peers``, at a server by ``postgres.owners``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError
from lifecycle.flows.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GONE", "Owners"]

#: What is rung when somebody has opened the store; nobody else needs to know.
_NEW = "new"
#: What everybody is told, who sees for himself that an owner is gone.
GONE = "gone"


class Owners:
    """One process among those that have a store open; without ``directory`` there are no others."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._peers = (
            None
            if directory is None
            else Peers(directory, hear=self._heard, miss=self._missed, reappeared=self._reappeared)
        )
        #: Who we are, anew each time the store is opened.
        self.name: str = _name()
        # By what they want to hear of.
        self._listeners: dict[str, list[Callable[[], object]]] = {}
        #: How many were found gone.
        self.losses: int = 0

    def __repr__(self) -> str:
        return f"<Owners: {self.name} among {1 + (0 if self._peers is None else len(self._peers))}>"

    @property
    def token(self) -> str:
        """What others can ask `alive` about; empty where no lock can tell them."""
        return self.name if self._peers is not None and self._peers.is_open else ""

    def open(self) -> None:
        """Be seen by the others, and see them.

        Raises:
            JournalError: where the directory or the file cannot be made.
        """
        self.name = _name()
        if self._peers is None:
            return
        try:
            self._peers.open(self.name)
        except OSError as error:
            self.close()
            raise JournalError(
                f"{self._peers.directory} is where processes say that they have the store open, and this one cannot "
                f"({error}); make it a directory that this process may write"
            ) from error
        self._ring(_NEW)

    def close(self) -> None:
        """Go; for the others it is as if we had died."""
        if self._peers is not None:
            self._peers.close()

    def alive(self, token: str) -> bool:
        """Whether the process that had the store open under ``token`` still has."""
        if token == self.token or self._peers is None:
            return token == self.token
        return self._peers.alive(token)

    async def lives(self, token: str) -> bool:
        """As `alive`, also where somebody else has to be asked."""
        return self.alive(token)

    async def is_gone(self, token: str) -> bool:
        """Whether the process that had the store open under ``token`` has ended, and was not cut off for a moment."""
        return not await self.lives(token)

    # -- news ---------------------------------------------------------------------------------------------------------

    def listen(self, news: str, listener: Callable[[], object]) -> Callable[[], None]:
        """Have ``listener`` called at those news, ours too, until what this returns is called; it must not wait."""
        listeners = self._listeners.setdefault(news, [])
        listeners.append(listener)

        def silence() -> None:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(news, None)

        return silence

    def ring(self, news: str) -> None:
        """Tell everybody; somebody may miss it who is busy for long."""
        self._ring(news)
        self._tell(news)

    def _ring(self, news: str) -> None:
        """Tell the others."""
        if self._peers is not None:
            self._peers.write(news)

    def _tell(self, news: str) -> None:
        """Tell those of us who listen."""
        for listener in list(self._listeners.get(news, ())):
            listener()

    def _heard(self, news: str) -> None:
        if news == _NEW and self._peers is not None:
            self._peers.look()
        self._tell(news)

    def _reappeared(self) -> None:
        self._ring(_NEW)

    def _missed(self) -> None:
        self.losses += 1
        self._tell(GONE)


def _name() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"
