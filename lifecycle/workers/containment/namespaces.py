"""A pid namespace for a worker: when its first process ends, the system ends all of it.

`unshare` makes it and stays outside as the leader of the group; a shell inside is the first process, since signals
mean nothing to that one; the command is the second, and sees itself so. What is sent to the group reaches all three:
`unshare` is made deaf to all but what ends it for certain.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

from lifecycle.workers import _posix
from lifecycle.workers.stdio import Command, check_program, pipe, popen

__all__ = ["Arrival", "Refused", "flags", "inside"]

_PLAIN: Final = ("--pid", "--fork", "--kill-child")
_AS_USER: Final = ("--user", "--map-current-user", *_PLAIN)
#: Those that would end `unshare`. It takes care of INT and TERM; of CHLD it must hear.
_DEAF: Final = "HUP,QUIT,USR1,USR2,PIPE,ALRM,STKFLT,XCPU,XFSZ,VTALRM,PROF,IO,PWR"
#: The command is not the last one, or the shell would become it.
_FIRST: Final = '"$@"; exit $?'
_SHELL: Final = ("sh", "-c", _FIRST, "sh")
#: What the command is before it is itself: what makes it hear again, and what tells of that.
_LAST: Final = ("env", "--default-signal", "sh", "-c", '{ [ -p "$0" ] && echo >"$0"; } 2>/dev/null; exec "$@"')
#: Seconds for the try whether there can be one.
_TRY: Final = 10.0
#: Seconds after which the command is taken to be there, should it be unable to open the pipe.
_ARRIVES: Final = 10.0


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


def inside(command: Command, how: tuple[str, ...], arrival: Arrival) -> Command:
    """``command`` in a new pid namespace, which ``arrival`` hears of.

    Raises:
        OSError: for a program that is not there, or may not be executed: once it is inside that could not be told.
    """
    check_program(command)
    outside = ("env", f"--ignore-signal={_DEAF}", "unshare", *how)
    return replace(command, argv=[*outside, *_SHELL, *_LAST, arrival.path, *command.argv])


class Arrival:
    """The arrival of a command in its namespace: the last program before it writes to a named pipe of ours.

    So the command inherits nothing; and in a user namespace, our descriptors cannot be opened through /proc.
    """

    def __init__(self) -> None:
        import tempfile

        self.path: str = os.path.join(tempfile.gettempdir(), f"lifecycle-{secrets.token_hex(16)}")  # noqa: PTH118  # a word of a command
        with ExitStack() as stack:
            os.mkfifo(self.path, 0o600)
            unlinked = stack.enter_context(ExitStack())
            unlinked.callback(os.unlink, self.path)
            self._reads = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, self._reads)
            # Unlinked first: a command that opens it without a reader would wait for ever.
            stack.callback(unlinked.close)
            self._held = stack.pop_all()

    async def wait(self, pid: int) -> None:
        """Wait until the command is there, inside what our child ``pid`` makes, or all is over.

        Before that a signal is lost on its way in.
        """
        over = asyncio.ensure_future(_posix.process_end(pid))
        there = asyncio.ensure_future(_posix.readable(self._reads))
        try:
            await asyncio.wait({over, there}, timeout=_ARRIVES, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (over, there):
                each.cancel()
            await asyncio.wait({over, there})
            self.close()

    def close(self) -> None:
        """Close the pipe; any number of times."""
        self._held.close()


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
                await _posix.process_end(pid)
        except BaseException as error:
            _kill(pid)
            if isinstance(error, TimeoutError):
                return f"`unshare` did not end within {_TRY:g} s"
            raise
        code = _posix.exit_code(pid)
        _posix.reap(pid)
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
