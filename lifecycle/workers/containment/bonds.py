"""What ties one worker's processes together, through its life; `ProcessWorker` needs to know no more of containment."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.errors import WorkerFailed
from lifecycle.workers import _posix
from lifecycle.workers._posix import Coalescer
from lifecycle.workers.containment import cookies, namespaces
from lifecycle.workers.containment.cgroups import Cgroup
from lifecycle.workers.containment.guards import guards, why_no_guard
from lifecycle.workers.containment.levels import Level
from lifecycle.workers.containment.moves import Move
from lifecycle.workers.containment.sweeps import Holders, carries, family, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.workers.containment.sweeps import Known
    from lifecycle.workers.stdio import Command

    #: Who is to be found: the holders of a cookie, and some who are known already.
    _Wanted: TypeAlias = tuple[bytes, set[Known]]

__all__ = ["Bond"]

_log = logging.getLogger("lifecycle.workers")


class Bond:
    """The bond of the worker ``name``, as strong as ``wanted``.

    It is used in this order: `tie` before the start, `take` right after it, `let_go` when the leader has ended, and
    `clear` at the end, however far it came.
    """

    def __init__(self, name: str, wanted: Level) -> None:
        self._name = name
        self._wanted = wanted
        #: What was got; None before.
        self.level: Level | None = None
        self._holds_guard = False
        self._cookie: str | None = None
        self._cgroup: Cgroup | None = None
        self._move: Move | None = None
        self._moving: asyncio.Future[None] | None = None
        self._arrival: namespaces.Arrival | None = None
        # Descendants that were seen while their descent could be.
        self._seen: set[Known] = set()

    async def tie(self, command: Command) -> Command:
        """Prepare for the start; what is to be started.

        Raises:
            WorkerFailed: if what was wanted cannot be had.
            OSError: if there is something wrong with the command, or this program may not start another process.
        """
        if self._wanted is Level.DETACHED:
            self.level = Level.DETACHED
            return replace(command, env=cookies.without_cookies(command.env))
        if not self._guarded():
            self.level = Level.GROUP
            return command
        await guards.may_start()
        guards.hold()
        self._holds_guard = True
        self._cookie = cookies.new()
        self.level = Level.GUARD
        return await self._strengthened(replace(command, env=cookies.with_cookie(command.env, self._cookie)))

    async def take(self, pid: int) -> None:
        """Tie the process ``pid``, our child and the leader of a group; returns when signals reach the command.

        Raises:
            WorkerFailed: if that is refused; what has been started is to be ended.
        """
        try:
            self._take(pid)
        except OSError as error:
            raise self._refusal(str(error)) from error
        if self._arrival is not None:
            await self._arrival.wait(pid)

    def _take(self, pid: int) -> None:
        if self._holds_guard:
            guards.add(pid)
        if self._cgroup is not None and self._cookie is not None and self._wanted is Level.AUTO:
            # It may take longer than the start itself. Who is quick enough to fork before is known by his cookie.
            self._move = Move(self._cgroup, pid, self._cookie)
            self._moving = self._move.begin()
            self._moving.add_done_callback(self._moved)

    def _moved(self, _: object) -> None:
        if self._move is not None and self._move.error is not None:
            _log.warning(
                "%r cannot be moved into a cgroup of its own; it has a guard: %s", self._name, self._move.error
            )
            self.level = Level.GUARD

    @property
    def _enclosed(self) -> bool:
        """Whether its cgroup is trusted to hold all that comes of it, so that there is no need to look elsewhere.

        Not for ``"cgroup"``, which is asked for where workers are not trusted: a process of our user can move itself
        into the cgroup above.
        """
        return self._cgroup is not None and self._move is not None and self._move.complete

    def look(self, pid: int) -> None:
        """Remember who descends from ``pid``: when that has ended, nobody can tell any more."""
        if self._cookie is not None and not self._enclosed:
            with suppress(OSError):
                self._seen.update(process.known for process in family(pid))

    def has(self, pid: int, leader: int) -> bool:
        """Whether the process ``pid`` is one of those that came of ``leader``; not once it is gone."""
        with suppress(OSError):
            if leader in (os.getpgid(pid), os.getsid(pid)):
                return True
            if any(process.pid == pid for process in family(leader)):
                return True
        return self._cookie is not None and carries(pid, self._cookie.encode())

    def is_empty(self) -> bool:
        """Whether nobody is left but the leader, who has ended; False where that cannot be told at once."""
        return self._cgroup is not None and self._enclosed and self._cgroup.vanish()

    def kill(self) -> None:
        """Kill what can be killed at once, beside the group."""
        if self._cgroup is not None:
            self._cgroup.kill()

    async def let_go(self, pid: int) -> None:
        """Reap ``pid``, and before that have the number forgotten: others may have it from then on."""
        if self._moving is not None and not self._moving.done():
            await asyncio.wait({self._moving})
        parting = _partings.submit(pid)
        try:
            await parting
        except asyncio.CancelledError:
            # Of a loop that is being closed; unless it was done just now.
            if parting.cancelled():
                _part([pid])
            raise

    async def clear(self, *, started: bool = True) -> None:
        """Kill everything that is left, wherever it went."""
        if self._arrival is not None:
            self._arrival.close()
        try:
            enclosed = self._enclosed
            removed = self._cgroup is not None and await self._cgroup.remove()
            if self._cookie is not None and started and not (enclosed and removed):
                await _swept(self._cookie, self._seen)
        finally:
            self._cgroup = self._cookie = None
            if self._holds_guard:
                self._holds_guard = False
                await guards.release()

    def _guarded(self) -> bool:
        """Whether there is to be a guard."""
        if self._wanted is Level.GROUP:
            return False
        reason = why_no_guard()
        if reason is not None and self._wanted is not Level.AUTO:
            raise self._refusal(reason)
        return reason is None

    async def _strengthened(self, command: Command) -> Command:
        if self._wanted is Level.PIDNS:
            return await self._in_namespace(command)
        if self._wanted in (Level.CGROUP, Level.AUTO):
            self._make_cgroup()
        if self._cgroup is not None and self._wanted is Level.CGROUP:
            return self._cgroup.inside(command)
        return command

    async def _in_namespace(self, command: Command) -> Command:
        try:
            how = await namespaces.flags()
            self._arrival = namespaces.Arrival()
            command = namespaces.inside(command, how, self._arrival)
        except namespaces.Refused as error:
            raise self._refusal(str(error)) from error
        self.level = Level.PIDNS
        return command

    def _make_cgroup(self) -> None:
        try:
            self._cgroup = Cgroup()
        except OSError as error:
            if self._wanted is Level.CGROUP:
                raise self._refusal(str(error)) from error
            return
        self.level = Level.CGROUP

    def _refusal(self, reason: str) -> WorkerFailed:
        return WorkerFailed(
            f"{self._name!r} cannot have contain={str(self._wanted)!r}: {reason}; "
            "give contain='auto' for the best that there is"
        )


def _part(pids: Sequence[int]) -> None:
    """Reap those that have ended, which no guard must know any more then."""
    guards.remove(pids)
    for pid in pids:
        _posix.reap(pid)


# To tell the guard of each end by itself costs more than the end does.
_partings: Coalescer[int, None] = Coalescer(_part)


async def _swept(cookie: str, known: Iterable[Known]) -> None:
    """Return when nobody holds ``cookie`` any more, and ``known`` are gone. If cancelled, it blocks until then."""
    wanted = (cookie.encode(), set(known))
    try:
        await asyncio.wait({_sweeps.submit(wanted)})
    except asyncio.CancelledError:
        # The loop is being closed; nobody will wait for a thread any more.
        _sweep([wanted])
        raise


def _sweep(wanted: Sequence[_Wanted]) -> None:
    holders = Holders({cookie for cookie, _ in wanted}.__contains__)
    known = {each for _, some in wanted for each in some}

    def find() -> Iterator[Known]:
        # The known ones once.
        yield from known
        known.clear()
        yield from holders()

    sweep(find)


# Sweeps that are wanted at the same time are one.
_sweeps: Coalescer[_Wanted, None] = Coalescer(_sweep, thread="sweep for processes left")
