"""A pid namespace for a worker: when its first process ends, the system ends all of it.

`unshare` makes it and stays outside as the leader of the group; a shell inside is the first process, since signals
mean nothing to that one; the command is the second, and sees itself so. What is sent to the group reaches all three:
`unshare` is made deaf to all but what ends it for certain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from lifecycle.workers import _platform
from lifecycle.workers.commands import check_program
from lifecycle.workers.containment.sweeps import family, look
from lifecycle.workers.stdio import Command, pipe, popen

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
#: Seconds for the try whether there can be one.
_TRY: Final = 10.0
#: Seconds between two looks for the command.
_PAUSE: Final = 0.001


class Refused(OSError):
    """There can be no pid namespace."""


#: How `unshare` makes one, by the effective user that found it out; that holds as long as the program runs.
_found: dict[int, tuple[str, ...]] = {}


async def flags() -> tuple[str, ...]:
    """How `unshare` makes one here; tried once, unless it is refused.

    Raises:
        Refused: if it cannot.
    """
    user = os.geteuid()
    if user in _found:
        return _found[user]
    # Root needs no user namespace, in which it would lose what it may do outside.
    candidates = (_PLAIN, _AS_USER) if user == 0 else (_AS_USER,)
    reason = ""
    for candidate in candidates:
        reason = await _try(candidate)
        if not reason:
            _found[user] = candidate
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


async def _try(how: tuple[str, ...]) -> str:
    """Why not; empty if it works."""
    with ExitStack() as ours, ExitStack() as theirs:
        errors, written = pipe(ours, theirs)
        command = Command(("unshare", *how, "true"), os.environ)
        try:
            pid = popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=written)
        except OSError as error:
            return str(error)
        theirs.close()
        try:
            async with asyncio.timeout(_TRY):
                await _platform.process_end(pid)
        except BaseException as error:
            _kill(pid)
            if isinstance(error, TimeoutError):
                return f"`unshare` did not end within {_TRY:g} s"
            raise
        code = _platform.exit_code(pid)
        _platform.reap(pid)
        if not code:
            return ""
        os.set_blocking(errors, False)
        with suppress(BlockingIOError):
            if told := os.read(errors, 1 << 12).decode(errors="replace").strip():
                return told
        return f"`unshare` ended with status {code}"


def _kill(pid: int) -> None:
    """Kill a child of ours, and wait for the moment that it takes to end."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED)
