"""A cgroup (version 2) for each worker: its processes stay in it unless they move themselves, and are killed at once.

They are made below our own cgroup, where that is allowed: as root, under systemd's ``Delegate=yes``, or in a scope of
`systemd-run --user --scope`. A process goes in before it becomes the command, or, which costs its start nothing, is
moved beside it; then what it has forked meanwhile is moved as well, by its descent or by its cookie (see `moves`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.workers.containment.cgroupfs import kill_cgroup, remove_cgroup
from lifecycle.workers.containment.guards import guards
from lifecycle.workers.containment.sweeps import family
from lifecycle.workers.stdio import check_program

if TYPE_CHECKING:
    from lifecycle.workers.stdio import Command

__all__ = ["Cgroup"]

#: Seconds for those that were killed to be gone from it; on a busy machine it takes them long.
_LAST_WAIT: Final = 10.0
_GO_IN: Final = 'echo 0 >"$0" && exec "$@"'
_SHELLS_OWN: Final = ("PWD", "OLDPWD", "SHLVL", "_")


class Cgroup:
    """One, empty at first, which the guard knows. Raises OSError, which says why, if it cannot be had."""

    def __init__(self) -> None:
        own = _own()
        if own is None:
            raise OSError("there is no cgroup of version 2 here")
        self._own = own
        self._path = own / f"lifecycle-{os.getpid()}-{secrets.token_hex(4)}"
        self._name = str(self._path)
        self._gone = False
        # Told before it is there: we may be killed as soon as it is.
        guards.add_place(self._name)
        try:
            self._make()
        except BaseException:
            with suppress(OSError):
                self._path.rmdir()
            guards.remove_place(self._name)
            raise

    def _make(self) -> None:
        try:
            self._path.mkdir()
        except OSError as error:
            raise OSError(
                f"none can be made in {self._own} ({error.strerror}); run under systemd with Delegate=yes, or as root"
            ) from error
        if not os.path.exists(f"{self._name}/cgroup.kill"):  # noqa: PTH110  # at each start
            raise OSError("those of this kernel cannot be killed; it takes Linux 5.14")
        # To be moved, a process has to be let go by the cgroup that it is in.
        if not os.access(f"{self._own}/cgroup.procs", os.W_OK):
            raise OSError(f"no process may be moved out of {self._own}")

    def inside(self, command: Command) -> Command:
        """``command``, to be started by a shell that goes in first; where it may not, the command does not run.

        Raises:
            OSError: for a program that is not there, or may not be executed.
        """
        check_program(command)
        # A shell sets these as it likes.
        kept = [f"{name}={command.env[name]}" for name in _SHELLS_OWN if name in command.env]
        unset = [word for name in _SHELLS_OWN if name not in command.env for word in ("-u", name)]
        return replace(
            command, argv=["sh", "-c", _GO_IN, str(self._path / "cgroup.procs"), "env", *unset, *kept, *command.argv]
        )

    def take(self, pid: int) -> None:
        """Move the process ``pid``, our child, and what it has forked by now; it must not be reaped meanwhile.

        It blocks, after a while without any move for milliseconds. Raises OSError if it is refused.
        """
        self._move(pid)
        moved = {pid}
        # Whoever is in here forks into here: when all are, it stays so.
        while new := [process.pid for process in family(pid) if process.pid not in moved]:
            for each in new:
                self._move(each)
            moved.update(new)

    def members(self) -> list[int]:
        """Who is in it, not below; nobody, if it is gone."""
        with suppress(OSError), open(f"{self._name}/cgroup.procs") as listed:  # noqa: PTH123  # for each of many
            return [int(line) for line in listed]
        return []

    def fetch(self, pid: int) -> bool:
        """Move the process ``pid`` in, unless it is there; whether it had to be. Raises OSError if it is refused."""
        places = Path(f"/proc/{pid}/cgroup").read_text()
        if any(self._path.name in line.split("/") for line in places.splitlines() if line.startswith("0::")):
            return False
        self._move(pid)
        return True

    def kill(self) -> None:
        """Kill all in it."""
        kill_cgroup(self._name)

    def vanish(self) -> bool:
        """Remove it, if nobody is in it; whether it is gone."""
        if not self._gone and remove_cgroup(self._name):
            self._gone = True
            guards.remove_place(self._name)
        return self._gone

    async def remove(self) -> bool:
        """Kill what is left, and remove it once that is gone; False if it cannot be killed.

        In that case the guard keeps it in mind.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _LAST_WAIT, 0.0005
        # Most often nobody is left, and there is no need to kill.
        if not self.vanish():
            self.kill()
        while not self.vanish() and loop.time() < until:
            # Its emptiness is told by a file that no loop can watch.
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 2)
        return self._gone

    def _move(self, pid: int) -> None:
        # One that has ended meanwhile needs no place.
        with suppress(ProcessLookupError):
            (self._path / "cgroup.procs").write_text(str(pid))


def _own() -> Path | None:
    """Our own cgroup of version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return _at(line.removeprefix("0::"))
    return None


@lru_cache(1)
def _at(path: str) -> Path | None:
    """Where a cgroup is found among the files; what is mounted where does not change while we run."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, system = line.partition(" - ")
        root, mounted = fields.split()[3:5]
        if system.startswith("cgroup2 ") and Path(path).is_relative_to(root):
            return Path(mounted, Path(path).relative_to(root))
    return None
