"""How processes are watched, signalled and reaped: the one place that knows which system this is.

Linux tells of an end through a pidfd. Where there is none (macOS, an old kernel, a sandbox that forbids it) a thread
for each process waits instead, and members of a group that outlive their leader get no grace, since they cannot be
watched. Both have been run on Linux; macOS has not been tried. Windows has no process groups to kill: a start is
refused there with a clear error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lifecycle.workers.rushes import Rush

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "exit_code",
    "group_end",
    "group_gone",
    "process_end",
    "readable",
    "reap",
    "require_groups",
    "signal_group",
    "signal_name",
    "stopped",
]


#: Seconds for members of a group that were killed to be gone.
_LAST_WAIT: Final = 1.0
#: Seconds for a signal that stops to take effect, and between two looks whether it has.
_STOPS: Final = 5.0
_LOOK: Final = 0.001


def require_groups() -> None:
    """Raise OSError where processes cannot be held in groups."""
    if sys.platform == "win32":
        raise OSError("process workers need POSIX process groups, which Windows does not have")


async def process_end(pid: int) -> None:
    """Wait until the child ``pid`` has ended; it is not reaped, so its number is not anybody else's yet."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        await _thread_end(pid)
        return
    try:
        await readable(fd)
    finally:
        os.close(fd)


async def group_end(pgid: int) -> None:
    """Wait until the group ``pgid`` has no member but its leader; returns at once where members cannot be watched.

    The leader must not have been reaped, or others must be in the group: its number must not be used again meanwhile.
    """
    seen: set[int] = {pgid}
    while new := [pid for pid in (await _looks.ask(pgid))[pgid] if pid not in seen]:
        seen.update(new)
        watched = [fd for pid in new if (fd := _open_member(pid, pgid)) is not None]
        try:
            if watched:
                await asyncio.gather(*(readable(fd) for fd in watched))
        finally:
            for fd in watched:
                os.close(fd)


async def group_gone(pgid: int) -> None:
    """Wait a moment for the members of a group that were killed; its leader may have been reaped."""
    if _group_exists(pgid):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WAIT):
                await group_end(pgid)


def _group_exists(pgid: int) -> bool:
    """Whether the group has members, the dead that nobody has reaped among them."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def signal_group(pgid: int, signum: int) -> None:
    """Send ``signum`` to every member of the group; a group that is gone is nobody's mistake."""
    # macOS says EPERM for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


async def stopped(pid: int | None, wanted: Callable[[], bool]) -> None:
    """Wait until the child ``pid``, which was sent SIGSTOP, shows it or has ended, while that is ``wanted``.

    Nobody tells of it, so it is looked for; and not for ever, since one that waits for a disk stops after that.
    """
    until = asyncio.get_running_loop().time() + _STOPS
    while pid is not None and wanted() and asyncio.get_running_loop().time() < until:
        if _shows_stop(pid):
            return
        await asyncio.sleep(_LOOK)


def _shows_stop(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # Somebody else reaped it.
        return True


def exit_code(pid: int) -> int | None:
    """The exit code of the child ``pid``, which has ended, minus the signal it died of; None if nobody can know.

    That is so when somebody else reaped it, or the program ignores SIGCHLD. It stays to be reaped.
    """
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def reap(pid: int) -> None:
    """Let go of the child ``pid``, which has ended."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _look(wanted: Sequence[int]) -> dict[int, list[int]]:
    """The members of the groups ``wanted``, where /proc lists processes."""
    groups: dict[int, list[int]] = {pgid: [] for pgid in wanted}
    with suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):  # noqa: PTH208  # a thousand Path objects for nothing
            if entry.isdigit() and (group := _group_of(int(entry))) in groups:
                groups[group].append(int(entry))
    return groups


# Who asks at the same time shares one look at /proc: a hundred workers that end at once stay linear.
_looks: Rush[int, dict[int, list[int]]] = Rush(_look)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _open_member(pid: int, pgid: int) -> int | None:
    """A pidfd of a member; the group is looked at again once the number cannot pass to another process."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
    if _group_of(pid) == pgid:
        return fd
    os.close(fd)
    return None


async def readable(fd: int) -> None:
    """Wait until ``fd`` is readable."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(fd, _resolve, future)
    try:
        await future
    finally:
        loop.remove_reader(fd)


async def _thread_end(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # The loop may be closed by now; then nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, ended)

    threading.Thread(target=wait, name=f"end of process {pid}", daemon=True).start()
    await ended


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def signal_name(signum: int) -> str:
    """SIGTERM for 15; the bare number for a signal that has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return str(signum)
