"""`Owners`: the processes that have one store open; who dies is missed at once, and who has news rings.

Each has a small file in a directory beside the store: a FIFO that its owner holds locked. The lock says whether an
owner lives: the system lets go of it when the process dies, however it dies. The FIFO says when to look: the others
hold its writing end, which the system reports as broken when the last reader is gone, the lock with it; and what they
write into it is a ring. So nobody has to look again and again.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError
from lifecycle.journal import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["GONE", "Owners"]


#: What is rung when somebody has opened the store; nobody else needs to know.
_NEW = "new"
#: What everybody is told, who sees for himself that an owner is gone.
GONE = "gone"
#: The longest ring that is written in one piece, whatever others write.
_LINE = 512


class Owners:
    """One process among those that have a store open; without ``directory`` there are no others."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = None if directory is None else _path(directory)
        #: Who we are, anew each time the store is opened; what the file is called.
        self.name: str = _name()
        self._lock: FileLock | None = None
        self._bell: int | None = None
        # The writing ends of the others, by name.
        self._others: dict[str, int] = {}
        # By what they want to hear of; and the beginning of what was not read to its end.
        self._listeners: dict[str, list[Callable[[], object]]] = {}
        self._rest = b""
        #: How many were found gone.
        self.losses: int = 0

    def __repr__(self) -> str:
        return f"<Owners: {self.name} among {len(self._others) + 1}>"

    @property
    def token(self) -> str:
        """What others can ask `alive` about; empty where no lock can tell them."""
        return self.name if self._lock is not None else ""

    # -- from the first moment to the last ------------------------------------------------------------------------

    def open(self) -> None:
        """Be seen by the others, and see them.

        Raises:
            JournalError: where the directory or the file cannot be made.
        """
        self.name, self._rest = _name(), b""
        if self._directory is None or not _locks():
            return
        try:
            self._appear(self._directory)
        except OSError as error:
            self.close()
            raise JournalError(
                f"{self._directory} is where processes say that they have the store open, and this one cannot "
                f"({error}); make it a directory that this process may write"
            ) from error
        self._ring(_NEW)

    def _appear(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        # Nobody may find it before it is locked.
        hidden, path = directory / f".{self.name}", directory / self.name
        with suppress(OSError):
            os.mkfifo(hidden, 0o600)
        self._lock = FileLock(hidden)
        self._lock.take()
        hidden.rename(path)
        self._listen(path)
        self._look()

    def _listen(self, path: Path) -> None:
        bell = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not _is_fifo(bell):
            os.close(bell)
            return
        self._bell = bell
        asyncio.get_running_loop().add_reader(bell, self._rung)

    def close(self) -> None:
        """Go; for the others it is as if we had died."""
        for other in list(self._others):
            self._forget(other)
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._bell)
            os.close(self._bell)
            self._bell = None
        if self._lock is not None and self._directory is not None:
            (self._directory / self.name).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    # -- the others -------------------------------------------------------------------------------------------------

    def alive(self, token: str) -> bool:
        """Whether the process that had the store open under ``token`` still has; the file of one that died goes."""
        if token == self.token or self._directory is None:
            return token == self.token
        path = self._directory / token
        if FileLock(path).is_held():
            return True
        path.unlink(missing_ok=True)
        return False

    async def lives(self, token: str) -> bool:
        """As `alive`, also where somebody else has to be asked."""
        return self.alive(token)

    def _look(self) -> None:
        """Know everybody who is there."""
        assert self._directory is not None
        for name in [path.name for path in self._directory.iterdir()]:
            if name != self.name and name not in self._others and not name.startswith("."):
                self._meet(name)

    def _meet(self, name: str) -> None:
        assert self._directory is not None
        try:
            end = os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Nobody reads it: it is that of somebody dead, whom this sweeps away.
            self._miss(name)
            return
        if not _is_fifo(end):
            os.close(end)
            return
        self._others[name] = end
        # An end for writing is ready to be read when nobody is left to read what was written.
        asyncio.get_running_loop().add_reader(end, self._gone, name)

    def _gone(self, name: str) -> None:
        self._forget(name)
        self._miss(name)

    def _miss(self, name: str) -> None:
        if not self.alive(name):
            self.losses += 1
            self._tell(GONE)

    def _forget(self, name: str) -> None:
        end = self._others.pop(name)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)

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
        line = news.encode("unicode_escape") + b"\n"
        if len(line) > _LINE:
            return
        for end in self._others.values():
            # The bell of who is busy may be full, and of one that is gone we hear.
            with suppress(OSError):
                os.write(end, line)

    def _rung(self) -> None:
        assert self._bell is not None
        try:
            rung = os.read(self._bell, 65536)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + rung).split(b"\n")
        self._rest = rest[:_LINE]
        for line in dict.fromkeys(lines):
            news = line.decode("unicode_escape", "replace")
            if news == _NEW:
                self._look()
            self._tell(news)

    def _tell(self, news: str) -> None:
        for listener in list(self._listeners.get(news, ())):
            listener()


def _name() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


def _path(directory: str | os.PathLike[str]) -> Path:
    """Its module takes long to import, and flows in memory need none."""
    from pathlib import Path

    return Path(directory)


def _locks() -> bool:
    """Whether this system has the locks and the FIFOs; Windows has not."""
    return hasattr(os, "mkfifo")


def _is_fifo(file: int) -> bool:
    return stat.S_ISFIFO(os.fstat(file).st_mode)
