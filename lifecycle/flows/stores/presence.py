"""`Presence`: the processes that have one store open. It detects ended processes immediately, and carries messages.

Next to a database file, each process has a small file in a directory: a FIFO that it keeps locked. The lock shows
whether the process is alive, because the system releases the lock when the process ends for any reason. The FIFO shows
when to check. The other processes hold its writing end, which the system reports as broken when the only reader has
gone. They also write their messages into it. So no process has to poll.

On a server, `postgres.ServerPresence` does this. A store in memory has only one process.
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

#: Message: a process has opened the store.
_NEW = "new"
#: Message within a process: it has found that another process ended.
GONE = "gone"

#: Seconds between two checks that this process's file still exists.
_LOOK = 5.0
#: Maximum bytes of a line, so that the system writes it without mixing it with the lines of other processes.
_LINE = 512


class Presence:
    """This process alone, and the base class for the presence of several processes."""

    def __init__(self) -> None:
        #: The name of this process, which changes each time the store is opened.
        self.name: str = _name()
        #: Number of processes that were found to have ended.
        self.losses: int = 0
        # The listeners for each message.
        self._listeners: dict[str, list[Callable[[], object]]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @property
    def token(self) -> str:
        """The string by which other processes identify this one in `alive`; empty without a lock."""
        return ""

    def open(self) -> None:
        """Become visible to the other processes, and find them.

        Raises:
            JournalError: if the directory or the file of this process cannot be created.
        """
        self.name = _name()

    def close(self) -> None:
        """Disappear; to the other processes, this one has ended."""

    def alive(self, token: str) -> bool:
        """Return whether the process with ``token`` still has the store open."""
        return token == self.token

    async def lives(self, token: str) -> bool:
        """Return the same as `alive`, after a query if there is a server."""
        return self.alive(token)

    async def is_gone(self, token: str) -> bool:
        """Return whether the process with ``token`` has ended, rather than lost its connection briefly."""
        return not await self.lives(token)

    def listen(self, news: str, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` at each message ``news`` from any process, this one included; it must not block.

        Returns:
            A function that removes the listener.
        """
        listeners = self._listeners.setdefault(news, [])
        listeners.append(listener)

        def silence() -> None:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(news, None)

        return silence

    def notify(self, news: str) -> None:
        """Send the message ``news`` to all processes; a process that is busy for long may miss it."""
        self._send(news)
        self._notify_here(news)

    def _send(self, news: str) -> None:
        """Send the message to the other processes."""

    def _notify_here(self, news: str) -> None:
        """Call the listeners of this process."""
        for listener in list(self._listeners.get(news, ())):
            listener()

    def _count_loss(self) -> None:
        """Count another process that was found to have ended."""
        self.losses += 1
        self._notify_here(GONE)


def _name() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


class FilePresence(Presence):
    """Processes that find each other in ``directory``."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self._directory = _path(directory)
        # The lock on our file, and the reading end of the FIFO.
        self._lock: FileLock | None = None
        self._reader: int | None = None
        self._looking: asyncio.TimerHandle | None = None
        # The writing ends of the other processes' FIFOs, by name.
        self._others: dict[str, int] = {}
        # The beginning of a line whose end was not read yet.
        self._rest = b""

    def __repr__(self) -> str:
        return f"<FilePresence: {self.name} among {1 + len(self._others)}>"

    @property
    def token(self) -> str:
        """The string by which other processes identify this one in `alive`; empty without a lock, as on Windows."""
        return self.name if self._lock is not None else ""

    def open(self) -> None:
        """Become visible to the other processes, and find them.

        Raises:
            JournalError: if the directory or the file of this process cannot be created.
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
                f"this process cannot create its file in {self._directory}, where processes with this store meet "
                f"({error}); make it a directory in which this process can write"
            ) from error
        self._send(_NEW)

    def _appear(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        # The file is hidden from other processes until it is locked.
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
        """Create our file again if it was deleted: without it, other processes conclude that this one has ended."""
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)
        if self._lock is None or self._lock.is_there():
            return
        _log.error(
            "%s was deleted while this process used it; other processes may take over its flows and jobs until the "
            "file is created again; do not delete files in that directory",
            self._directory / self.name,
        )
        old = self._lock
        self._stop_reading()
        try:
            self._appear()
        except OSError as error:
            _log.error("the file cannot be created again: %s", error)  # a traceback would add nothing
            return
        old.release()
        self._send(_NEW)

    def _stop_reading(self) -> None:
        if self._reader is not None:
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._reader = None

    def close(self) -> None:
        """Disappear; to the other processes, this one has ended."""
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
        """Return whether the process with ``token`` still has the store open, and delete the file of an ended one."""
        if not token or token == self.token:
            return token == self.token
        path = self._directory / token
        if FileLock(path).is_held():
            return True
        path.unlink(missing_ok=True)
        return False

    def _look(self) -> None:
        """Connect to processes that are not connected yet."""
        for name in [path.name for path in self._directory.iterdir()]:
            if name != self.name and name not in self._others and not name.startswith("."):
                self._meet(name)

    def _meet(self, name: str) -> None:
        try:
            end = os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # The FIFO has no reader, so its process has ended; this deletes the file.
            self._check(name)
            return
        if not _is_fifo(end):
            os.close(end)
            return
        self._others[name] = end
        # The system reports a writing end as readable when the FIFO has no reader left.
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
            # The FIFO of a busy process may be full, and the end of a process is detected in another way.
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
    """Return a path; `pathlib` takes long to import, and flows in memory do not need it."""
    from pathlib import Path

    return Path(directory)


def _is_fifo(file: int) -> bool:
    return stat.S_ISFIFO(os.fstat(file).st_mode)


# -- requests of one process to another --------------------------------------------------------------------------------

#: Requests about a flow, by its id: suspend it, resume it, or send `AT_REST` when it has ended or is suspended.
SUSPEND, RESUME, FOLLOW = "suspend", "resume", "follow"
#: Message about a followed flow: it has ended or is suspended.
AT_REST = "at rest"
#: Request to a process, by its token: look for unfinished flows.
RECOVER = "recover"
#: Message: suspended flows are resumed.
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
    """Requests of other processes to this one: suspend or resume a flow that it runs, or recover unfinished flows.

    Requests are not stored: the process that runs the flow receives them immediately. If no process runs the flow, they
    have no effect.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        # The runs by id, each with the functions that remove its listeners; and the same function for `recover`.
        self._listening: dict[str, tuple[Controllable, list[Callable[[], None]]]] = {}
        self._own: Callable[[], None] | None = None

    def open(self, recover: Callable[[], object]) -> None:
        """Call ``recover`` at each request to look for unfinished flows, until `close`."""
        self._own = self._presence.listen(f"{RECOVER} {self._presence.token}", recover)

    def close(self) -> None:
        """Stop listening."""
        if self._own is not None:
            self._own()
            self._own = None
        for run, _ in list(self._listening.values()):
            self.forget(run)

    def ask(self, what: str, whom: str) -> None:
        """Send the request `SUSPEND` or `RESUME` for the flow ``whom``, or `RECOVER` for the process ``whom``."""
        self._presence.notify(f"{what} {whom}")

    def hear(self, run: Controllable) -> None:
        """Carry out requests for ``run`` instead of an earlier run of the same flow."""
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
        """Stop carrying out requests for ``run``."""
        known, silences = self._listening.get(run.id, (None, ()))
        if known is run:
            del self._listening[run.id]
            for silence in silences:
                silence()
