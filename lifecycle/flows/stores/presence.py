"""`Presence`: the processes that have one store open. A process that dies is missed at once, and news reach all.

Next to a file, each process has a small file in a directory: a FIFO that it holds locked. The lock tells whether the
process lives: the system releases it when the process dies, however it dies. The FIFO tells when to look: the others
hold its writing end, which the system reports as broken when the last reader is gone, and the lock with it; and what
they write into it is news. So no process has to poll.

On a server, processes meet as `postgres.ServerPresence` says. In memory there are no others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import JournalError
from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "AT_REST",
    "FOLLOW",
    "GONE",
    "RECOVER",
    "RESUME",
    "RESUMED",
    "SUSPEND",
    "ControlChannel",
    "FilePresence",
    "Presence",
]

_log = logging.getLogger("lifecycle.flows")

#: News that a process has opened the store.
_NEW = "new"
#: News in a process that has found another one gone.
GONE = "gone"

#: Seconds after which a process looks whether its file is still there.
_LOOK = 5.0
#: Bytes of the longest line that is written in one piece, whatever others write.
_LINE = 512


class Presence:
    """This process alone, and what the presence of several has in common."""

    def __init__(self) -> None:
        #: The name of this process, another one each time that the store is opened.
        self.name: str = _name()
        #: How many processes were found gone.
        self.losses: int = 0
        # By the news that they listen for.
        self._listeners: dict[str, list[Callable[[], object]]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @property
    def token(self) -> str:
        """The text that others can ask `alive` about; empty if no lock can tell them."""
        return ""

    def open(self) -> None:
        """Appear to the others, and see them.

        Raises:
            JournalError: if the directory or the file of this process cannot be made.
        """
        self.name = _name()

    def close(self) -> None:
        """Leave; for the others it is as if this process had died."""

    def alive(self, token: str) -> bool:
        """Return whether the process that had the store open under ``token`` still has."""
        return token == self.token

    async def lives(self, token: str) -> bool:
        """Do `alive`, also if a server has to be asked."""
        return self.alive(token)

    async def is_gone(self, token: str) -> bool:
        """Return whether the process that had the store open under ``token`` has ended, and was not cut off briefly."""
        return not await self.lives(token)

    def listen(self, news: str, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` at those news, also our own, until the returned function is called; it must not wait."""
        listeners = self._listeners.setdefault(news, [])
        listeners.append(listener)

        def silence() -> None:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(news, None)

        return silence

    def notify(self, news: str) -> None:
        """Notify all processes of ``news``; one that is busy for long may miss it."""
        self._send(news)
        self._notify_here(news)

    def _send(self, news: str) -> None:
        """Notify the other processes."""

    def _notify_here(self, news: str) -> None:
        """Notify the listeners of this process."""
        for listener in list(self._listeners.get(news, ())):
            listener()

    def _count_loss(self) -> None:
        """Note that another process was found gone."""
        self.losses += 1
        self._notify_here(GONE)


def _name() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


class FilePresence(Presence):
    """Processes that meet in ``directory``."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self._directory = _path(directory)
        # The lock on our file, and its end for reading.
        self._lock: FileLock | None = None
        self._reader: int | None = None
        self._looking: asyncio.TimerHandle | None = None
        # The writing ends of the others, by name.
        self._others: dict[str, int] = {}
        # The beginning of a line that was not read to its end.
        self._rest = b""

    def __repr__(self) -> str:
        return f"<FilePresence: {self.name} among {1 + len(self._others)}>"

    @property
    def token(self) -> str:
        """The text that others can ask `alive` about; empty if no lock can tell them, as on Windows."""
        return self.name if self._lock is not None else ""

    def open(self) -> None:
        """Appear to the others, and see them.

        Raises:
            JournalError: if the directory or the file of this process cannot be made.
        """
        super().open()
        self._rest = b""
        try:
            if hasattr(os, "mkfifo"):
                self._appear()
                self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)
        except OSError as error:
            self.close()
            raise JournalError(
                f"{self._directory} is where processes say that they have the store open, and this one cannot "
                f"({error}); make it a directory that this process may write"
            ) from error
        self._send(_NEW)

    def _appear(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        # Others must not find it before it is locked.
        hidden, path = self._directory / f".{self.name}", self._directory / self.name
        with suppress(OSError):
            os.mkfifo(hidden, 0o600)
        lock = FileLock(hidden)
        lock.take()
        hidden.rename(path)
        lock.path = str(path)
        self._lock = lock
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if _is_fifo(reader):
            self._reader = reader
            asyncio.get_running_loop().add_reader(reader, self._read)
        else:
            os.close(reader)
        self._look()

    def _look_for_our_file(self) -> None:
        """Make our file again if it was deleted: without it the others take us for dead."""
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)
        if self._lock is None or self._lock.is_there():
            return
        _log.error(
            "%s was deleted while this process had it; others take the process for dead and its flows and jobs over, "
            "until the file is there again; keep what is in that directory",
            self._directory / self.name,
        )
        old = self._lock
        self._stop_reading()
        try:
            self._appear()
        except OSError as error:
            _log.error("it cannot be made again: %s", error)  # a traceback says no more
            return
        old.release()
        self._send(_NEW)

    def _stop_reading(self) -> None:
        if self._reader is not None:
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._reader = None

    def close(self) -> None:
        """Leave; for the others it is as if this process had died."""
        if self._looking is not None:
            self._looking.cancel()
        for other in list(self._others):
            self._forget(other)
        self._stop_reading()
        if self._lock is not None:
            (self._directory / self.name).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    # -- the others ----------------------------------------------------------------------------------------------------

    def alive(self, token: str) -> bool:
        """Return whether the process that had the store open under ``token`` still has; the file of a dead one goes."""
        if not token or token == self.token:
            return token == self.token
        path = self._directory / token
        if FileLock(path).is_held():
            return True
        path.unlink(missing_ok=True)
        return False

    def _look(self) -> None:
        """Connect to the processes that are new."""
        for name in [path.name for path in self._directory.iterdir()]:
            if name != self.name and name not in self._others and not name.startswith("."):
                self._meet(name)

    def _meet(self, name: str) -> None:
        try:
            end = os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # No process reads it: it is that of a dead one, and is deleted by this.
            self._check(name)
            return
        if not _is_fifo(end):
            os.close(end)
            return
        self._others[name] = end
        # A writing end is ready to be read when no reader is left.
        asyncio.get_running_loop().add_reader(end, self._broken, name)

    def _broken(self, name: str) -> None:
        self._forget(name)
        self._check(name)

    def _check(self, name: str) -> None:
        if not self.alive(name):
            self._count_loss()

    def _forget(self, name: str) -> None:
        end = self._others.pop(name)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)

    # -- news ----------------------------------------------------------------------------------------------------------

    def _send(self, news: str) -> None:
        line = news.encode("unicode_escape") + b"\n"
        if len(line) > _LINE:
            return
        for end in self._others.values():
            # The FIFO of a busy process may be full, and a process that is gone is missed otherwise.
            with suppress(OSError):
                os.write(end, line)

    def _read(self) -> None:
        assert self._reader is not None
        try:
            read = os.read(self._reader, 65536)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + read).split(b"\n")
        self._rest = rest[:_LINE]
        for line in dict.fromkeys(lines):
            news = line.decode("unicode_escape", "replace")
            if news == _NEW:
                self._look()
            self._notify_here(news)


def _path(directory: str | os.PathLike[str]) -> Path:
    """Return a path; its module takes long to import, and flows in memory need none."""
    from pathlib import Path

    return Path(directory)


def _is_fifo(file: int) -> bool:
    return stat.S_ISFIFO(os.fstat(file).st_mode)


# -- requests of one process to another --------------------------------------------------------------------------------

#: Of a flow, by its id: to suspend it, to resume it, and to send `AT_REST` when it comes to rest.
SUSPEND, RESUME, FOLLOW = "suspend", "resume", "follow"
#: News of a flow that is followed.
AT_REST = "at rest"
#: Of a process, by its token: to look for unfinished flows.
RECOVER = "recover"
#: News of flows that were suspended and are resumed.
RESUMED = "resumed"


class Controllable(Protocol):
    """The part of a `Run` that other processes control."""

    id: str

    @property
    def running(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def suspend(self) -> object: ...

    def proceed(self) -> None: ...

    def be_followed(self) -> None: ...


class ControlChannel:
    """Requests of other processes about the flows of this one: to suspend or resume one, or to recover them.

    Nothing of this is stored: the process that runs the flow hears it at once, and without one there is none to ask.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        # The runs by their ids, each with what ends our listening for it; and the same for this process.
        self._listening: dict[str, tuple[Controllable, list[Callable[[], None]]]] = {}
        self._own: Callable[[], None] | None = None

    def open(self, recover: Callable[[], object]) -> None:
        """Call ``recover`` when this process is asked to look for unfinished flows, until `close`."""
        self._own = self._presence.listen(f"{RECOVER} {self._presence.token}", recover)

    def close(self) -> None:
        """Stop listening."""
        if self._own is not None:
            self._own()
            self._own = None
        for run, _ in list(self._listening.values()):
            self.forget(run)

    def ask(self, what: str, whom: str) -> None:
        """Ask the process with the flow ``whom`` to `SUSPEND` or `RESUME` it, or the process ``whom`` to `RECOVER`."""
        self._presence.notify(f"{what} {whom}")

    def hear(self, run: Controllable) -> None:
        """Carry out requests for ``run``, and no longer those for another run of the same flow."""
        if run.id in self._listening:
            known = self._listening[run.id][0]
            if known is run:
                return
            self.forget(known)

        def resume() -> None:
            if not run.running and not run.ended:
                run.proceed()

        silences = [
            self._presence.listen(f"{FOLLOW} {run.id}", run.be_followed),
            self._presence.listen(f"{SUSPEND} {run.id}", run.suspend),
            self._presence.listen(f"{RESUME} {run.id}", resume),
        ]
        self._listening[run.id] = (run, silences)

    def forget(self, run: Controllable) -> None:
        """Carry out no more requests for ``run``."""
        known, silences = self._listening.get(run.id, (None, ()))
        if known is run:
            del self._listening[run.id]
            for silence in silences:
                silence()
