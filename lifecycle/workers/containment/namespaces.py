"""A pid namespace for a worker: when its first process ends, the system ends all of it.

`unshare` makes it and stays outside as the leader of the group; a shell inside is the first process, since signals
mean nothing to that one; the command is the second, and sees itself so. What is sent to the group reaches all three:
`unshare` is made deaf to all but what ends it for certain.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.workers.commands import check_program
from lifecycle.workers.containment.sweeps import family, look

if TYPE_CHECKING:
    from lifecycle.workers.stdio import Command

__all__ = ["Refused", "entered", "flags", "inside"]

_PLAIN: Final = ("--pid", "--fork", "--kill-child")
_AS_USER: Final = ("--user", "--map-current-user", *_PLAIN)
#: Those that would end `unshare`. It takes care of INT and TERM; of CHLD it must hear.
_DEAF: Final = "HUP,QUIT,USR1,USR2,PIPE,ALRM,STKFLT,XCPU,XFSZ,VTALRM,PROF,IO,PWR"
#: The command is not the last one, or the shell would become it.
_FIRST: Final = '"$@"; exit $?'
_SHELL: Final = ("sh", "-c", _FIRST, "sh")
#: What the command is before it is itself: the shell's fork, and what makes it hear again.
_LAST: Final = ("env", "--default-signal")
#: Seconds between two looks for the command.
_PAUSE: Final = 0.001


class Refused(OSError):
    """There can be no pid namespace."""


async def flags() -> tuple[str, ...]:
    """How `unshare` makes one here.

    Raises:
        Refused: if it cannot.
    """
    # Root needs no user namespace, in which it would lose what it may do outside.
    candidates = (_PLAIN, _AS_USER) if os.geteuid() == 0 else (_AS_USER,)
    reason = ""
    for candidate in candidates:
        reason = await asyncio.to_thread(_try, candidate)
        if not reason:
            return candidate
    raise Refused(f"it is refused here ({reason})")


def inside(command: Command, how: tuple[str, ...]) -> Command:
    """``command`` in a new pid namespace.

    Raises:
        OSError: for a program that is not there, or may not be executed: once it is inside that could not be told.
    """
    check_program(command)
    outside = ("env", f"--ignore-signal={_DEAF}", "unshare", *how)
    return replace(command, argv=[*outside, *_SHELL, *_LAST, *command.argv])


async def entered(pid: int) -> None:
    """Wait until the command is there, inside what our child ``pid`` makes, or all is over.

    Before that a signal is lost on its way in. Nobody tells of it, so it is looked for; it takes milliseconds.
    """
    while not _is_inside(pid):  # noqa: ASYNC110  # nobody could set an event
        await asyncio.sleep(_PAUSE)


def _is_inside(pid: int) -> bool:
    outside = look(pid)
    if outside is None or outside.dead:
        return True
    return any(process.parent != pid and not _on_its_way(process.pid) for process in family(pid))


def _on_its_way(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        return any(tuple(words[: len(before)]) == before for before in (_SHELL, _LAST))
    return False


def _try(how: tuple[str, ...]) -> str:
    """Why not; empty if it works."""
    try:
        tried = subprocess.run(["unshare", *how, "true"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S603, S607
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""
