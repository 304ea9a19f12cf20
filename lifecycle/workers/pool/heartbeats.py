"""Asks members after their health, each in its own time, and draws the conclusions."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle.workers.model import ProbeResult, Status
from lifecycle.workers.pool.requests import Pong

if TYPE_CHECKING:
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.recoveries import Recovery
    from lifecycle.workers.pool.retirements import Retirements
    from lifecycle.workers.pool.seats import Seats
    from lifecycle.workers.pool.settings import Heartbeat

__all__ = ["Heartbeats"]

#: How much longer than usual it is until one that gave a bad answer is asked again: 5 s where that is 2.
_LONGER: Final = 2.5


class Heartbeats:
    """The questions of a pool after the health of its members.

    Args:
        pool: who sends what the hooks announce.
        heartbeat: when to ask, and what is a bad answer.
        seats: where one that feels well again can be had.
        retirements: hears how much memory members have.
        recovery: sees to those that are not well.
    """

    def __init__(
        self, pool: Any, heartbeat: Heartbeat, *, seats: Seats, retirements: Retirements, recovery: Recovery
    ) -> None:
        self._pool = pool
        self._heartbeat = heartbeat
        self._seats = seats
        self._retirements = retirements
        self._recovery = recovery

    async def watch(self, member: Member) -> None:
        """Ask ``member`` again and again; cancelled when it ends."""
        while not member.link.closed:
            often = self._heartbeat.every * (1 if member.sound else _LONGER)
            await asyncio.sleep(often * random.uniform(0.9, 1.1))  # noqa: S311  # no secret
            await self.check(member)

    async def check(self, member: Member) -> ProbeResult:
        """Ask ``member`` once."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pong = await self._asked(member)
        healthy = isinstance(pong, Pong)
        late = f"no answer within {self._heartbeat.timeout:g} s"
        result = ProbeResult(healthy, "" if healthy else "the link is closed" if member.link.closed else late)
        hooks.health_checked.announce(self._pool, member=member.id, result=result, duration=loop.time() - began)
        if member.status is not Status.RUNNING or member.link.closed:
            # What is to be done about that is seen to elsewhere.
            return result
        if isinstance(pong, Pong):
            self._well(member, pong)
        elif not self._excused(member, loop.time()):
            self._unwell(member, TimeoutError(f"{member.id!r} gave {late}"))
        return result

    async def _asked(self, member: Member) -> Pong | None:
        pong = member.link.ping()
        # One that came while this loop was busy elsewhere came in time.
        await asyncio.wait({pong}, timeout=self._heartbeat.timeout)
        return pong.result() if pong.done() and pong.exception() is None else None

    def _well(self, member: Member, pong: Pong) -> None:
        member.felt_well(pong)
        self._retirements.worn(member)
        if member.going is None:
            self._seats.book.offer(member)

    def _unwell(self, member: Member, error: Exception) -> None:
        member.felt_unwell()
        member.tell_stacks()
        if member.failures >= self._heartbeat.misses:
            times = f"{member.failures} time{'s'[: member.failures != 1]} in a row"
            trouble = f"it did not answer within {self._heartbeat.timeout:g} s, {times}"
            self._recovery.kill(member, "health_limit", trouble, counted=True)
        else:
            self._recovery.degraded(member, error)

    def _excused(self, member: Member, now: float) -> bool:
        """Whether a call that has time left may hold its interpreter: only its own deadline ends such a call."""
        return now < member.link.busy_until
