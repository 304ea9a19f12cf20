"""`Presence`: the processes that have the same store open, and messages between them.

Processes that share a database file find each other through a directory next to it. Each process has a FIFO there that
it keeps locked. The lock shows whether the process is alive, because the system releases it when the process exits for
any reason. The other processes keep the FIFO open for writing, and write their messages to it. When the process exits,
the FIFO loses its only reader. The system reports this to the writers immediately, so no polling is needed.

For stores on a server, `postgres.ServerPresence` serves the same purpose. An in-memory store is only used by one
process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import JournalError
from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

__all__ = [
    "AT_REST",
    "FOLLOW",
    "GONE",
    "RECOVER",
    "RESUME",
    "RESUMED",
    "SUSPEND",
    "WAKE",
    "ControlChannel",
    "FilePresence",
    "Presence",
    "end_of_job",
]

_log = logging.getLogger("lifecycle.flows")

#: Message: a process has opened the store.
_NEW = "new"
#: Message: another process has exited, or earlier messages may have been lost.
GONE = "gone"

#: Seconds between checks that this process's file still exists.
_LOOK = 5.0
#: The maximum number of bytes per line. The system never interleaves writes of up to this size from several processes.
_LINE = 512


class Presence:
    """The presence for a store that only one process uses, and the base class of all others."""

    def __init__(self) -> None:
        #: The name of this process. It changes each time the store is opened.
        self.name: str = _name()
        #: The maximum number of seconds between two looks for processes that have exited without a message.
        self.look_every: float = 30.0
        #: The number of other processes that are known to have exited.
        self.losses: int = 0
        # The listeners, by message.
        self._listeners: dict[str, list[Callable[[], object]]] = {}
        #: Called with each message from any process, including this one. It must not block.
        self.on_message: Callable[[str], object] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @property
    def token(self) -> str:
        """The string that identifies this process in `alive`. Empty if this process has no lock."""
        return ""

    def open(self) -> None:
        """Become visible to the other processes, and connect to them.

        Raises:
            JournalError: if the directory or the file of this process cannot be created.
        """
        self.name = _name()

    def close(self) -> None:
        """Become invisible. To other processes, this process then appears to have exited."""

    def alive(self, token: str) -> bool:
        """Return True if the process with ``token`` still has the store open."""
        return token == self.token

    async def lives(self, token: str) -> bool:
        """Return True if the process with ``token`` still has the store open.

        On a database server, this costs one query.
        """
        return self.alive(token)

    async def is_gone(self, token: str) -> bool:
        """Return True if the process with ``token`` has exited, and has not just lost its connection temporarily."""
        return not await self.lives(token)

    async def find_gone(self, tokens: Collection[str]) -> tuple[set[str], bool]:
        """Return the processes among ``tokens`` that have exited, and whether more of them might have.

        Unlike `is_gone`, this does not wait until it is certain. Ask again soon.
        """
        return {token for token in tokens if not self.alive(token)}, False

    def listen(self, news: str, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` for each message ``news`` from any process, including this one.

        The listener must not block.

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
        """Send the message ``news`` to all processes. A process that is busy for a long time may miss the message."""
        self._send(news)
        self._notify_here(news)

    def _send(self, news: str) -> None:
        """Send the message to the other processes."""

    def _notify_here(self, news: str) -> None:
        """Call the listeners in this process."""
        if self.on_message is not None:
            self.on_message(news)
        for listener in list(self._listeners.get(news, ())):
            listener()

    def _count_loss(self) -> None:
        """Count a process that has exited, and call the listeners for `GONE`."""
        self.losses += 1
        self._notify_here(GONE)


def _name() -> str:
    return f"{os.getpid()}-{os.urandom(6).hex()}"


#: Matches exactly the names that `_name` makes.
_NAME = re.compile(r"[1-9][0-9]{0,19}-[0-9a-f]{12}")


def _is_name(text: str) -> bool:
    """Return True if ``text`` can be the name of a process, and thus of a file in the directory of processes.

    Any program can write an owner to a store, so text from a store must pass this check before it is used as a name.
    """
    return _NAME.fullmatch(text) is not None


class FilePresence(Presence):
    """Processes that find each other through ``directory``."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self._directory = _path(directory)
        # The lock on our file.
        self._lock: FileLock | None = None
        # The descriptor from which our FIFO is read.
        self._reader: int | None = None
        # The timer that checks that our file exists.
        self._looking: asyncio.TimerHandle | None = None
        # Descriptors for writing to the other processes' FIFOs, by process name.
        self._others: dict[str, int] = {}
        # The start of a line that has not been read completely.
        self._rest = b""

    def __repr__(self) -> str:
        return f"<FilePresence: {self.name} among {1 + len(self._others)}>"

    @property
    def token(self) -> str:
        """The string that identifies this process in `alive`. Empty if there is no lock, for example on Windows."""
        return self.name if self._lock is not None else ""

    def open(self) -> None:
        """Become visible to the other processes, and connect to them.

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
                f"cannot create a file in {self._directory}, which all processes using this store need "
                f"({error}); make it a directory that this process can write to"
            ) from error
        self._send(_NEW)

    def _appear(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        # Other processes ignore names with a leading dot, so they see the file only once it is locked.
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
        """Recreate our file if it was deleted. Otherwise, other processes would assume that this process has exited."""
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look_for_our_file)
        if self._lock is None or self._lock.is_there():
            return
        _log.error(
            "%s was deleted while this process used it; other processes may take over its flows and jobs until the "
            "file is recreated; do not delete files in that directory",
            self._directory / self.name,
        )
        old = self._lock
        self._stop_reading()
        try:
            self._appear()
        except OSError as error:
            _log.error("cannot recreate the file: %s", error)  # a traceback would add nothing
            return
        old.release()
        self._send(_NEW)

    def _stop_reading(self) -> None:
        if self._reader is not None:
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._reader = None

    def close(self) -> None:
        """Become invisible. To other processes, this process then appears to have exited."""
        if self._looking is not None:
            self._looking.cancel()
        for other in list(self._others):
            self._forget(other)
        self._stop_reading()
        if self._lock is not None:
            (self._directory / self.name).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    # -- other processes ----------------------------------------------------------------------------------------------

    def alive(self, token: str) -> bool:
        """Return True if the process with ``token`` still has the store open. Otherwise, delete the process's file."""
        if token == self.token:
            return True
        if not _is_name(token):
            return False
        path = self._directory / token
        if not _is_process_file(path):
            return False
        if FileLock(path).is_held():
            return True
        path.unlink(missing_ok=True)
        return False

    def _look(self) -> None:
        """Connect to all processes that are not connected yet."""
        for path in list(self._directory.iterdir()):
            name = path.name
            if name != self.name and name not in self._others and _is_name(name) and _is_process_file(path):
                self._meet(name)

    def _meet(self, name: str) -> None:
        try:
            end = os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # The FIFO has no reader, so its process has probably exited. If so, `_check` deletes the file.
            self._check(name)
            return
        if not _is_fifo(end):
            os.close(end)
            return
        self._others[name] = end
        # The system reports this descriptor as readable when the FIFO has no readers left.
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

    # -- messages ------------------------------------------------------------------------------------------------------

    def _send(self, news: str) -> None:
        line = news.encode("unicode_escape") + b"\n"
        if len(line) > _LINE:
            return
        for end in self._others.values():
            # The FIFO of a busy process may be full. If the process has exited, `_broken` cleans up.
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
    """Convert ``directory`` to a path. We import `pathlib` here because it is slow to load."""
    from pathlib import Path

    return Path(directory)


def _is_process_file(path: Path) -> bool:
    """Return True if ``path`` is a FIFO, or a file where FIFOs are not supported. Links are not followed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _is_fifo(file: int) -> bool:
    return stat.S_ISFIFO(os.fstat(file).st_mode)


def end_of_job(id: str) -> str:  # noqa: A002  # the natural name
    """Return the message announcing that a job is complete."""
    return f"end of {id}"


# -- requests to other processes ---------------------------------------------------------------------------------------

#: Request, followed by a flow's id: suspend the flow.
SUSPEND = "suspend"
#: Request, followed by a flow's id: resume the flow.
RESUME = "resume"
#: Request, followed by a flow's id: send `AT_REST` once the flow has ended or is suspended.
FOLLOW = "follow"
#: Message: a flow that another process is waiting for has ended or is suspended.
AT_REST = "at rest"
#: Message: a workflow that waits may be due. Followed by a flow's id: the flow has a new signal, or a child has ended.
WAKE = "wake"
#: Request, followed by a process's token: recover unfinished flows.
RECOVER = "recover"
#: Message: suspended flows that belong to jobs may run again.
RESUMED = "resumed"


class Controllable(Protocol):
    """The part of a `Run` that other processes can control."""

    @property
    def running(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def suspend(self) -> object: ...

    def proceed(self) -> None: ...

    def be_followed(self) -> None: ...

    def wake(self) -> None: ...


class ControlChannel:
    """Requests from other processes: suspend or resume a flow in this process, or recover unfinished flows.

    Requests are not stored. The process running the flow receives them immediately. If no process is running the flow,
    a request has no effect.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def open(self, find: Callable[[str], Controllable | None], recover: Callable[[], object]) -> None:
        """Apply each request to the run that ``find`` returns for its id, or call ``recover``, until `close`."""

        def hear(news: str) -> None:
            request, _, id = news.partition(" ")  # noqa: A001  # the natural name
            if (apply := _REQUESTS.get(request)) is not None and (run := find(id)) is not None:
                apply(run)
            elif request == RECOVER and id == self._presence.token:
                recover()

        self._presence.on_message = hear

    def close(self) -> None:
        """Stop listening."""
        self._presence.on_message = None

    def ask(self, what: str, whom: str) -> None:
        """Send a request: `SUSPEND` or `RESUME` with a flow's id, or `RECOVER` with a process's token."""
        self._presence.notify(f"{what} {whom}")


def _resume(run: Controllable) -> None:
    if not run.running and not run.ended:
        run.proceed()


_REQUESTS: dict[str, Callable[[Controllable], object]] = {
    FOLLOW: lambda run: run.be_followed(),
    SUSPEND: lambda run: run.suspend(),
    RESUME: _resume,
    WAKE: lambda run: run.wake(),
}
