"""The containment of a worker, which keeps its processes together and kills all of them when the worker ends.

Containment has layers. The weakest layer is the process group, which every worker has. The next layer is the guard, a
small process that kills all remaining processes when this program ends for any reason. If the system supports it, we
add a cgroup or a pid namespace, which processes cannot leave by forking. A `Level` names the layers that a worker
requests, and a table lists what each level requires.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from lifecycle._async import start_task
from lifecycle.errors import WorkerFailed
from lifecycle.workers import _posix
from lifecycle.workers._posix import Coalescer
from lifecycle.workers.containment.cgroup import Cgroup
from lifecycle.workers.containment.guard import (
    guard_manager,
    new_cookie,
    why_no_guard,
    with_cookie,
    without_cookies,
)
from lifecycle.workers.containment.process_scan import CookieScan, descendants_of, has_cookie, kill_found
from lifecycle.workers.stdio import check_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.workers.containment.process_scan import Identity
    from lifecycle.workers.stdio import Command

    #: A cookie, along with processes known to belong to its worker.
    _Wanted: TypeAlias = tuple[bytes, set[Identity]]

__all__ = ["Containment", "Level", "PidnsCheck", "pidns_check"]

_log = logging.getLogger("lifecycle.workers")


class Level(StrEnum):
    """The containment level that a worker requests or has."""

    #: A request for the strongest available level: a cgroup, a guard, or only the group.
    AUTO = "auto"
    #: Only the process group. Processes that leave the group are not killed. If this program is killed, nothing is
    #: cleaned up.
    GROUP = "group"
    #: The group and a guard. Once this program is gone, the guard kills the group, descendants, and processes with the
    #: cookie.
    GUARD = "guard"
    #: A guard and a cgroup (version 2). A process running as our user or as root can leave it by moving to the parent
    #: cgroup.
    CGROUP = "cgroup"
    #: A guard and a pid namespace, which no process can leave.
    PIDNS = "pidns"
    #: No containment. The worker may outlive this program.
    DETACHED = "detached"

    @classmethod
    def wanted(cls, contain: str, *, detached: bool) -> Level:
        """Return the level requested by these two settings of a worker.

        Raises:
            ValueError: if the settings conflict.
        """
        known = [str(level) for level in cls if level is not cls.DETACHED]
        if contain not in known:
            raise ValueError(f"contain must be one of {', '.join(map(repr, known))}, got {contain!r}")
        if not detached:
            return cls(contain)
        if contain != cls.AUTO:
            raise ValueError(f"contain={contain!r} and detached=True contradict each other; use only one of them")
        return cls.DETACHED


class _Needs(NamedTuple):
    """The mechanisms that a level needs."""

    #: The guard process, and a cookie in the environment.
    guard: bool = False
    #: Whether the process enters a cgroup before it runs the command, or is moved into one afterwards.
    cgroup: Literal["", "before", "after"] = ""
    pidns: bool = False
    #: True if the worker cannot start without these mechanisms.
    required: bool = True


#: The requirements of each level. The comments describe which processes are killed, in addition to those of the
#: previous level.
_NEEDS: Final = {
    # No processes are killed.
    Level.DETACHED: _Needs(),
    # The process group is killed, but only while this program is running.
    Level.GROUP: _Needs(),
    # Descendants and processes with the cookie are also killed, even after this program has been killed.
    Level.GUARD: _Needs(guard=True),
    # All descendants are killed, except for those that move themselves to the parent cgroup.
    Level.CGROUP: _Needs(guard=True, cgroup="before"),
    # All descendants are killed.
    Level.PIDNS: _Needs(guard=True, pidns=True),
    # AUTO uses the strongest available level: cgroup, guard or group.
    Level.AUTO: _Needs(guard=True, cgroup="after", required=False),
}


class Containment:
    """The containment of the worker ``name`` at the level ``wanted``.

    Call `prepare` before the start, `attach` right after it, and `reap` once the leader has exited. Finally, call
    `clear`, even if the start failed.
    """

    def __init__(self, name: str, wanted: Level) -> None:
        self._name = name
        self._wanted = wanted
        self._needs = _NEEDS[wanted]
        #: The level in use, or None if the worker has not started yet.
        self.level: Level | None = None
        self._has_guard = False
        self._cookie: str | None = None
        self._cgroup: Cgroup | None = None
        self._moving: asyncio.Future[dict[Cgroup, OSError]] | None = None
        self._arrival: _Arrival | None = None
        # Descendants that were found while their parents were still alive.
        self._seen: set[Identity] = set()

    async def prepare(self, command: Command) -> Command:
        """Prepare to start ``command``, and return the command to start instead.

        Raises:
            WorkerFailed: if the level is not available.
            OSError: if the command cannot be executed, or this program is not allowed to start another process.
        """
        if self._wanted is Level.DETACHED:
            self.level = Level.DETACHED
            return replace(command, env=without_cookies(command.env))
        if not (self._needs.guard and self._can_have_guard()):
            self.level = Level.GROUP
            return command
        await guard_manager.wait_for_backoff()
        guard_manager.acquire()
        self._has_guard = True
        self._cookie = new_cookie()
        self.level = Level.GUARD
        command = replace(command, env=with_cookie(command.env, self._cookie))
        if self._needs.pidns:
            command = await self._in_pid_namespace(command)
        if self._needs.cgroup:
            self._make_cgroup()
        guard_manager.add_start(self._cookie)
        return self._cgroup.inside(command) if self._cgroup and self._needs.cgroup == "before" else command

    async def attach(self, pid: int) -> None:
        """Contain our child process ``pid``, the leader of a group. Return once signals can reach the command.

        Raises:
            WorkerFailed: if containment fails. The caller must kill the process.
        """
        try:
            if self._cookie is not None:
                guard_manager.add_group(pid)
                guard_manager.remove_start(self._cookie)
        except OSError as error:
            raise self._refusal(str(error)) from error
        if self._cgroup is not None and self._cookie is not None and self._needs.cgroup == "after":
            # Moving the process can take longer than starting it. Anything it forks before the move is found by its
            # cookie.
            self._moving = self._cgroup.move_later(pid, self._cookie)
            self._moving.add_done_callback(partial(self._moved, self._cgroup))
        if self._arrival is not None:
            await self._arrival.wait(pid)

    def remember_descendants(self, pid: int) -> None:
        """Remember the descendants of ``pid``, because they can no longer be found once it has exited."""
        if self._cookie is not None and not self._is_enclosed:
            with suppress(OSError):
                self._seen.update(process.identity for process in descendants_of(pid))

    def owns(self, pid: int, leader: int) -> bool:
        """Return whether the process ``pid`` exists and belongs to the worker with this leader."""
        with suppress(OSError):
            if leader in (os.getpgid(pid), os.getsid(pid)):
                return True
            if any(process.pid == pid for process in descendants_of(leader)):
                return True
        return self._cookie is not None and has_cookie(pid, self._cookie.encode())

    def is_empty(self) -> bool:
        """Return True if only the leader, which has exited, is left. If this is not known immediately, return False."""
        return self._cgroup is not None and self._is_enclosed and self._cgroup.remove_if_empty()

    def kill(self) -> None:
        """Kill the processes outside the group that can be killed without waiting."""
        if self._cgroup is not None:
            self._cgroup.kill()

    async def reap(self, pid: int) -> None:
        """Reap ``pid``. The guard must forget the pid first, because another process may get it after that."""
        if self._moving is not None and not self._moving.done():
            await asyncio.wait({self._moving})
        reaping = _reapings.submit(pid)
        try:
            await reaping
        except asyncio.CancelledError:
            # The loop is closing, so reap the process right here, unless it has already been reaped.
            if reaping.cancelled():
                _reap([pid])
            raise

    async def clear(self, *, started: bool = True, leave: bool = False) -> None:
        """Kill all remaining processes, including those that have left the group. With ``leave``, let them run."""
        if self._arrival is not None:
            self._arrival.close()
        try:
            if leave:
                self._leave()
            else:
                await self._kill_all(started=started)
        finally:
            if self._cookie is not None:
                guard_manager.remove_start(self._cookie)
            self._cgroup = self._cookie = None
            if self._has_guard:
                self._has_guard = False
                await guard_manager.release()

    def _leave(self) -> None:
        if self._cgroup is not None:
            self._cgroup.leave()

    async def _kill_all(self, *, started: bool) -> None:
        enclosed = self._is_enclosed
        removed = self._cgroup is not None and await self._cgroup.remove()
        if self._cookie is not None and started and not (enclosed and removed):
            await _sweep_for(self._cookie, self._seen)

    @property
    def _is_enclosed(self) -> bool:
        """True if the cgroup is certain to contain all descendants, so that no scan is needed.

        This is always False for ``"cgroup"``, the level for untrusted workers, because a process running as our user
        can move itself to the parent cgroup.
        """
        return self._cgroup is not None and self._cgroup.complete

    def _moved(self, cgroup: Cgroup, moving: asyncio.Future[dict[Cgroup, OSError]]) -> None:
        if not moving.cancelled() and (error := moving.exception() or moving.result().get(cgroup)):
            _log.warning("%r cannot be moved into a cgroup, so only the guard contains it: %s", self._name, error)
            self.level = Level.GUARD

    def _can_have_guard(self) -> bool:
        reason = why_no_guard()
        if reason is not None and self._needs.required:
            raise self._refusal(reason)
        return reason is None

    def _make_cgroup(self) -> None:
        try:
            self._cgroup = Cgroup()
        except OSError as error:
            if self._needs.required:
                raise self._refusal(str(error)) from error
            return
        self.level = Level.CGROUP

    async def _in_pid_namespace(self, command: Command) -> Command:
        try:
            flags = await pidns_check.flags()
        except OSError as error:
            raise self._refusal(str(error)) from error
        # Check this now, because a missing program cannot be reported from inside the namespace.
        check_program(command)
        self._arrival = _Arrival()
        self.level = Level.PIDNS
        return replace(
            command,
            argv=[*_WITH_US, str(os.getpid()), *_OUTSIDE, *flags, *_SHELL, *_LAST, self._arrival.path, *command.argv],
        )

    def _refusal(self, reason: str) -> WorkerFailed:
        return WorkerFailed(
            f"contain={str(self._wanted)!r} of {self._name!r} is not available: {reason}; "
            "contain='auto' uses the strongest available level"
        )


def _reap(pids: Sequence[int]) -> None:
    """Make the guard forget processes that have exited, and then reap them."""
    guard_manager.remove_groups(pids)
    for pid in pids:
        _posix.reap(pid)


# Log exits in batches, because logging them one by one would take longer than the exits themselves.
_reapings: Coalescer[int, None] = Coalescer(_reap)


async def _sweep_for(cookie: str, known: Iterable[Identity]) -> None:
    """Kill processes with ``cookie`` and those in ``known`` until none are left. If cancelled, finish by blocking."""
    wanted = (cookie.encode(), set(known))
    sweeping = _sweeps.submit(wanted)
    try:
        await asyncio.wait({sweeping})
    except asyncio.CancelledError:
        # The loop is closing and does not wait for threads, so sweep right here.
        _sweep([wanted])
        raise
    if error := sweeping.exception():
        _log.error("the search for remaining processes failed; some may still be running", exc_info=error)


def _sweep(wanted: Sequence[_Wanted]) -> None:
    scan = CookieScan({cookie for cookie, _ in wanted}.__contains__)
    known = {each for _, some in wanted for each in some}

    def find() -> Iterator[Identity]:
        # Only the first scan yields the known processes.
        yield from known
        known.clear()
        yield from scan()

    kill_found(find)


# Concurrent sweeps share one scan.
_sweeps: Coalescer[_Wanted, None] = Coalescer(_sweep, thread="sweep for processes left")


# -- pid namespaces --------------------------------------------------------------------------------------------------
# When the first process in a pid namespace exits, the kernel kills all others in it. `unshare` creates the namespace,
# but stays outside as the leader of the group. The first process inside is a shell, and the command is the second,
# because the kernel shields the first one from most signals. A signal to the group reaches all three processes, so
# `unshare` ignores every signal that it can.

_PLAIN: Final = ("--pid", "--fork", "--kill-child")
_AS_USER: Final = ("--user", "--map-current-user", *_PLAIN)
#: All signals other than those that `unshare` handles (INT and TERM) or needs (CHLD).
_IGNORED: Final = "HUP,QUIT,USR1,USR2,PIPE,ALRM,STKFLT,XCPU,XFSZ,VTALRM,PROF,IO,PWR"
_OUTSIDE: Final = ("env", f"--ignore-signal={_IGNORED}", "unshare")
#: Makes the kernel kill `unshare`, and with it the namespace, when our thread ends, even if the guard is dead too. If
#: our process has ended before, the kernel does nothing, so the shell compares its parent.
_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
#: Without the `exit`, the shell would replace itself with the command.
_SHELL: Final = ("sh", "-c", '"$@"; exit $?', "sh")
#: The last steps before the command runs: restore the default signal handlers, and report that it has arrived.
_LAST: Final = ("env", "--default-signal", "sh", "-c", '{ [ -p "$0" ] && echo >"$0"; } 2>/dev/null; exec "$@"')
#: The time limit for checking whether namespaces work, in seconds.
_CHECK: Final = 10.0
#: Seconds to wait before assuming that a command has arrived, in case it cannot open the pipe.
_ARRIVES: Final = 10.0


class PidnsCheck:
    """Determines whether and how `unshare` can create pid namespaces here. Results are cached per effective user."""

    def __init__(self) -> None:
        # For each user, the arguments to pass to `unshare`, or the reason why `unshare` does not work.
        self._found: dict[int, tuple[str, ...] | str] = {}
        self._checks: Coalescer[int, None] = Coalescer(self._check, thread="check for pid namespaces")

    async def flags(self) -> tuple[str, ...]:
        """Return the arguments that make `unshare` create a namespace.

        Raises:
            OSError: if `unshare` cannot create a namespace. The message contains the reason.
        """
        if (user := os.geteuid()) not in self._found:
            await self._checks.submit(user)
        found = self._found[user]
        if isinstance(found, str):
            raise OSError(f"`unshare` is not permitted here ({found})")  # a string is a cached reason
        return found

    def _check(self, users: Sequence[int]) -> None:
        user = users[-1]
        # Root does not need a user namespace, and would lose its outside privileges in one.
        for flags in (_PLAIN, _AS_USER) if user == 0 else (_AS_USER,):
            self._found[user] = refusal = _why_refused(flags)
            if not refusal:
                self._found[user] = flags
                return


def _why_refused(flags: tuple[str, ...]) -> str:
    """Try `unshare` with ``flags``, started through `setpriv`, and return the error, or an empty string if it works.

    Raises OSError if the outcome is unknown.
    """
    command = ("setpriv", "--pdeathsig", "KILL", "unshare", *flags, "true")
    try:
        done = subprocess.run(  # noqa: S603  # our own arguments
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHECK, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"`unshare` did not exit within {_CHECK:g} s") from None
    if done.returncode == 0:
        return ""
    return done.stderr.decode(errors="replace").strip() or f"`unshare` exited with status {done.returncode}"


#: The only instance in this program.
pidns_check: Final = PidnsCheck()


class _Arrival:
    """Waits for a command to arrive in its namespace. A shell reports the arrival by writing to our named pipe.

    A named pipe is used so that the command does not inherit a descriptor. Opening our descriptors through /proc would
    not work in a user namespace.
    """

    def __init__(self) -> None:
        import tempfile

        self.path: str = os.path.join(tempfile.gettempdir(), f"lifecycle-{secrets.token_hex(16)}")  # noqa: PTH118  # an argument of a command
        with ExitStack() as stack:
            os.mkfifo(self.path, 0o600)
            unlinked = stack.enter_context(ExitStack())
            unlinked.callback(os.unlink, self.path)
            self._reads = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, self._reads)
            # Unlink the pipe first, because a command that opens it when there is no reader would wait indefinitely.
            stack.callback(unlinked.close)
            self._held = stack.pop_all()

    async def wait(self, pid: int) -> None:
        """Wait until the command has arrived in the namespace of our child ``pid``, or the child has exited.

        Signals that are sent earlier do not reach the command.
        """
        ended = start_task(_posix.process_end(pid))
        arrived = start_task(_posix.readable(self._reads))
        try:
            await asyncio.wait({ended, arrived}, timeout=_ARRIVES, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ended, arrived):
                each.cancel()
            await asyncio.wait({ended, arrived})
            self.close()

    def close(self) -> None:
        """Close the pipe. Further calls do nothing."""
        self._held.close()
