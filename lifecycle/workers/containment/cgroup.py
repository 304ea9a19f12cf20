"""A cgroup (version 2) for each worker.

The worker's processes stay in its cgroup unless they move out, and are killed together. We create the cgroups below our
own. This is allowed as root, under systemd's ``Delegate=yes``, or in a scope started with `systemd-run --user --scope`.
A process either enters its cgroup before it runs the command or, to avoid delaying the start, is moved afterwards. In
the latter case, processes that it has already forked are found by their ancestry or cookie, and are also moved. Once
all of a worker's processes are in its cgroup, any new children start there, so no scan is needed when the worker ends.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.workers._posix import Coalescer
from lifecycle.workers.containment.guard import guard_manager
from lifecycle.workers.containment.process_scan import (
    CookieScan,
    descendants_of,
    has_cookie,
    kill_cgroup,
    remove_cgroup,
)
from lifecycle.workers.stdio import check_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lifecycle.workers.stdio import Command

__all__ = ["Cgroup", "own_cgroup"]

#: Seconds to wait for killed processes to leave the cgroup, which can take a while on a busy machine.
_LAST_WAIT: Final = 10.0
#: How many times to move processes that fork meanwhile.
_TRIES: Final = 10
_ENTER: Final = 'echo 0 >"$0" && exec "$@"'
_SET_BY_SHELLS: Final = ("PWD", "OLDPWD", "SHLVL", "_")


class Cgroup:
    """A new, empty cgroup, which is listed in the guard's log. Raises OSError if it cannot be created."""

    def __init__(self) -> None:
        own = own_cgroup()
        if own is None:
            raise OSError("this system has no version 2 cgroups")
        self._own = own
        self._path = own / f"lifecycle-{os.getpid()}-{secrets.token_hex(4)}"
        self._name = str(self._path)
        self._gone = False
        #: True if all of the worker's processes that can be found are in the cgroup.
        self.complete: bool = False
        # Log the cgroup before creating it, because this program may be killed right afterwards.
        guard_manager.add_cgroup(self._name)
        try:
            self._make()
        except BaseException:
            with suppress(OSError):
                self._path.rmdir()
            guard_manager.remove_cgroup(self._name)
            raise

    def _make(self) -> None:
        try:
            self._path.mkdir()
        except OSError as error:
            raise OSError(
                f"cannot create a cgroup in {self._own} ({error.strerror}); run it as root, or with Delegate=yes"
            ) from error
        if not os.path.exists(f"{self._name}/cgroup.kill"):  # noqa: PTH110  # at each start
            raise OSError("killing a cgroup requires Linux 5.14 or later")
        # Moving a process also requires write access to the cgroup that it leaves.
        if not os.access(f"{self._own}/cgroup.procs", os.W_OK):
            raise OSError(f"processes cannot be moved out of {self._own}")

    def inside(self, command: Command) -> Command:
        """Return a shell command that enters the cgroup and then runs ``command``.

        If the shell cannot enter the cgroup, it exits.

        Raises:
            OSError: if the program does not exist or cannot be executed.
        """
        check_program(command)
        # Restore these variables, because the shell overwrites them.
        kept = [f"{name}={command.env[name]}" for name in _SET_BY_SHELLS if name in command.env]
        unset = [word for name in _SET_BY_SHELLS if name not in command.env for word in ("-u", name)]
        return replace(
            command, argv=["sh", "-c", _ENTER, str(self._path / "cgroup.procs"), "env", *unset, *kept, *command.argv]
        )

    def move(self, pid: int) -> None:
        """Move our child ``pid`` and its descendants into the cgroup. The child must not be reaped during the move.

        This blocks for a few milliseconds. Raises OSError if the move is refused.
        """
        self._move(pid)
        moved = {pid}
        # Children of processes in the cgroup start there, so it remains complete once all processes are inside.
        while new := [process.pid for process in descendants_of(pid) if process.pid not in moved]:
            for each in new:
                self._move(each)
            moved.update(new)

    def members(self) -> list[int]:
        """Return the processes in the cgroup, excluding nested cgroups. Return an empty list if the cgroup is gone."""
        with suppress(OSError), open(f"{self._name}/cgroup.procs") as listed:  # noqa: PTH123  # for each of many
            return [int(line) for line in listed]
        return []

    def move_if_outside(self, pid: int) -> bool:
        """Move the process ``pid`` into the cgroup. Return False if it is already inside or cannot be moved."""
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if not any(self._path.name in line.split("/") for line in lines if line.startswith("0::")):
                self._move(pid)
                return True
        return False

    def move_later(self, pid: int, cookie: str) -> asyncio.Future[dict[Cgroup, OSError]]:
        """Move ``pid`` and its descendants in a thread. ``pid`` must not be reaped until the move is complete.

        The future's result lists the moves that were refused.
        """
        return _moves.submit((self, pid, cookie.encode()))

    def kill(self) -> None:
        """Kill all processes in the cgroup."""
        kill_cgroup(self._name)

    def remove_if_empty(self) -> bool:
        """Remove the cgroup if it is empty. Return whether it is gone."""
        if not self._gone and remove_cgroup(self._name):
            self._gone = True
            guard_manager.remove_cgroup(self._name)
        return self._gone

    async def remove(self) -> bool:
        """Kill the remaining processes and remove the cgroup.

        Return False if a process cannot be killed. In that case, the cgroup stays in the guard's log.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _LAST_WAIT, 0.0005
        # Usually, the cgroup is already empty.
        if not self.remove_if_empty():
            self.kill()
        while not self.remove_if_empty() and loop.time() < until:
            # We have to poll, because an event loop cannot watch cgroup.events, the file that reports changes.
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 2)
        return self._gone

    def leave(self) -> None:
        """Move the remaining processes to this program's own cgroup, and remove the cgroup. Nothing is killed.

        This blocks for a few milliseconds if there are processes.
        """
        for _ in range(_TRIES):
            if self.remove_if_empty():
                return
            for pid in self.members():
                with suppress(OSError):
                    (self._own / "cgroup.procs").write_text(str(pid))
        # A process that keeps forking, or that has made a cgroup of its own below this one, stays here.
        guard_manager.remove_cgroup(self._name)

    def _move(self, pid: int) -> None:
        # A process that has exited does not need to be moved.
        with suppress(ProcessLookupError):
            (self._path / "cgroup.procs").write_text(str(pid))


def own_cgroup() -> Path | None:
    """Return the path of this program's own cgroup (version 2)."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return _at(line.removeprefix("0::"))
    return None


@lru_cache(1)
def _at(path: str) -> Path | None:
    """Return a cgroup's directory. The result is cached, because this program's mounts do not change."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, system = line.partition(" - ")
        root, mounted = fields.split()[3:5]
        if system.startswith("cgroup2 ") and Path(path).is_relative_to(root):
            return Path(mounted, Path(path).relative_to(root))
    return None


# -- moves after the start --------------------------------------------------------------------------------------------

#: The number of consecutive scans that must find no process outside the cgroup.
_SCANS: Final = 2
#: Seconds after which we stop trying to move a process that evades the move by forking. When the worker ends, the final
#: scan still finds this process.
_MOVE_LIMIT: Final = 1.0


def _move_all(moves: Sequence[tuple[Cgroup, int, bytes]]) -> dict[Cgroup, OSError]:
    """Move each process into its cgroup, along with its descendants and processes with its cookie.

    Return any moves that were refused.
    """
    refused: dict[Cgroup, OSError] = {}
    moved: dict[bytes, Cgroup] = {}
    for cgroup, pid, cookie in moves:
        try:
            cgroup.move(pid)
            moved[cookie] = cgroup
        except OSError as error:
            refused[cgroup] = error
    if moved and _moved_by_cookie(moved):
        for cgroup in moved.values():
            cgroup.complete = True
    return refused


def _moved_by_cookie(cgroups: Mapping[bytes, Cgroup]) -> bool:
    """Move processes with one of these cookies into their cgroup. Return True if none are left outside."""
    scan = CookieScan(cgroups.__contains__)
    until, empty = time.monotonic() + _MOVE_LIMIT, 0
    while empty < _SCANS and time.monotonic() < until:
        # Most processes are already inside, so skip them.
        inside = {pid for cgroup in cgroups.values() for pid in cgroup.members()}
        pairs = [(pid, each) for pid, _ in scan(inside) for cookie, each in cgroups.items() if has_cookie(pid, cookie)]
        moved = [pid for pid, cgroup in pairs if cgroup.move_if_outside(pid)]
        empty = 0 if moved else empty + 1
    return empty >= _SCANS


_moves: Coalescer[tuple[Cgroup, int, bytes], dict[Cgroup, OSError]] = Coalescer(_move_all, thread="move into cgroups")
