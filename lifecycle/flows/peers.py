"""`Peers`: processes of one machine that meet in a directory; each is seen to live, misses who dies, and hears news.

Each has a small file there: a FIFO that its owner holds locked. The lock says whether an owner lives: the system lets
go of it when the process dies, however it dies. The FIFO says when to look: the others hold its writing end, which the
system reports as broken when the last reader is gone, the lock with it; and what they write into it is a ring. So
nobody has to look again and again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Peers"]

_log = logging.getLogger("lifecycle.flows")

#: Seconds after which it is looked whether our file is still there.
_LOOK = 5.0

#: The longest ring that is written in one piece, whatever others write.
_LINE = 512


class Peers:
    """Those in ``directory``.

    ``hear`` is called with what they write, ``miss`` when one of them is found gone, and ``reappeared`` when our own
    file was deleted and made again.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        hear: Callable[[str], None],
        miss: Callable[[], None],
        reappeared: Callable[[], None],
    ) -> None:
        self.directory: Path = _path(directory)
        self._hear, self._miss, self._reappeared = hear, miss, reappeared
        # What our file is called, its lock, and its end for reading.
        self._name = ""
        self._lock: FileLock | None = None
        self._changed: int | None = None
        self._looking: asyncio.TimerHandle | None = None
        # The writing ends of the others, by name.
        self._others: dict[str, int] = {}
        # The beginning of what was not read to its end.
        self._rest = b""

    def __len__(self) -> int:
        return len(self._others)

    @property
    def is_open(self) -> bool:
        """Whether the others can see us; nobody can where there are no locks or FIFOs, as on Windows."""
        return self._lock is not None

    def open(self, name: str) -> None:
        """Be seen as ``name``, and see who is there.

        Raises:
            OSError: where the directory or the file cannot be made.
        """
        self._name, self._rest = name, b""
        if not hasattr(os, "mkfifo"):
            return
        self._appear()
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)

    def _appear(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        # Nobody may find it before it is locked.
        hidden, path = self.directory / f".{self._name}", self.directory / self._name
        with suppress(OSError):
            os.mkfifo(hidden, 0o600)
        lock = FileLock(hidden)
        lock.take()
        hidden.rename(path)
        lock.path = str(path)
        self._lock = lock
        self._listen(path)
        self.look()

    def _look_for_our_file(self) -> None:
        """Make our file again if it was deleted: without it the others take us for dead."""
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)
        if self._lock is None or self._lock.is_there():
            return
        _log.error(
            "%s was deleted while this process had it; others take the process for dead and its flows and jobs over, "
            "until the file is there again; keep what is in that directory",
            self.directory / self._name,
        )
        old = self._lock
        self._hang_up()
        try:
            self._appear()
        except OSError as error:
            _log.error("it cannot be made again: %s", error)  # a traceback says no more
            return
        old.release()
        self._reappeared()

    def _hang_up(self) -> None:
        """Hear nothing more."""
        if self._changed is not None:
            asyncio.get_running_loop().remove_reader(self._changed)
            os.close(self._changed)
            self._changed = None

    def _listen(self, path: Path) -> None:
        bell = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not _is_fifo(bell):
            os.close(bell)
            return
        self._changed = bell
        asyncio.get_running_loop().add_reader(bell, self._rung)

    def close(self) -> None:
        """Go; for the others it is as if we had died."""
        if self._looking is not None:
            self._looking.cancel()
        for other in list(self._others):
            self._forget(other)
        self._hang_up()
        if self._lock is not None:
            (self.directory / self._name).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    # -- the others -------------------------------------------------------------------------------------------------

    def alive(self, name: str) -> bool:
        """Whether that one is still there; the file of one that died goes."""
        path = self.directory / name
        if FileLock(path).is_held():
            return True
        path.unlink(missing_ok=True)
        return False

    def look(self) -> None:
        """Know everybody who is there."""
        for name in [path.name for path in self.directory.iterdir()]:
            if name != self._name and name not in self._others and not name.startswith("."):
                self._meet(name)

    def _meet(self, name: str) -> None:
        try:
            end = os.open(self.directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Nobody reads it: it is that of somebody dead, whom this sweeps away.
            self._check(name)
            return
        if not _is_fifo(end):
            os.close(end)
            return
        self._others[name] = end
        # An end for writing is ready to be read when nobody is left to read what was written.
        asyncio.get_running_loop().add_reader(end, self._hung_up, name)

    def _hung_up(self, name: str) -> None:
        self._forget(name)
        self._check(name)

    def _check(self, name: str) -> None:
        if not self.alive(name):
            self._miss()

    def _forget(self, name: str) -> None:
        end = self._others.pop(name)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)

    # -- news ---------------------------------------------------------------------------------------------------------

    def write(self, news: str) -> None:
        """Have the others hear it; somebody may miss it who is busy for long."""
        line = news.encode("unicode_escape") + b"\n"
        if len(line) > _LINE:
            return
        for end in self._others.values():
            # The bell of who is busy may be full, and of one that is gone we hear.
            with suppress(OSError):
                os.write(end, line)

    def _rung(self) -> None:
        assert self._changed is not None
        try:
            rung = os.read(self._changed, 65536)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + rung).split(b"\n")
        self._rest = rest[:_LINE]
        for line in dict.fromkeys(lines):
            self._hear(line.decode("unicode_escape", "replace"))


def _path(directory: str | os.PathLike[str]) -> Path:
    """Its module takes long to import, and flows in memory need none."""
    from pathlib import Path

    return Path(directory)


def _is_fifo(file: int) -> bool:
    return stat.S_ISFIFO(os.fstat(file).st_mode)
