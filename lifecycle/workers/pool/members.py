"""`Member`: one process of a pool, with what the pool knows of it.

Its phase is read off its status, its leases and its health, and kept nowhere; what is kept is how it went.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle import hooks
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.containment import Level
from lifecycle.workers.model import FINAL, ProbeResult, Status
from lifecycle.workers.pool.phases import Phase, PhaseLog, fitting, phase_of
from lifecycle.workers.pool.requests import LinkClosed
from lifecycle.workers.process import ProcessWorker

if TYPE_CHECKING:
    from lifecycle.workers.model import Exit, WorkerState
    from lifecycle.workers.pool.links import Link
    from lifecycle.workers.pool.phases import PhaseChange, Reason
    from lifecycle.workers.pool.plans import Plan
    from lifecycle.workers.pool.requests import Pong

__all__ = ["Health", "Member"]


class Health(StrEnum):
    """What is known of the health of a member."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Member(ProcessWorker):
    """One process of a pool: it answers calls, one at a time or as many as the pool's concurrency says.

    It belongs to its pool: read it, and leave its starting and stopping to the pool.

    Args:
        name: the name of the pool and a number; it is its id, too.
        plan: what its pool was told.
        link: what is said to it, and what it answers.
        pool: who sends what the hooks announce of it.
        generation: of the pool, when it was wished for.
    """

    idle_since: float
    most_calls: float
    most_rss: float

    kind: ClassVar[str] = "member"
    supervised = True

    def __init__(self, name: str, plan: Plan, link: Link, *, pool: object, generation: int) -> None:
        process = plan.process
        super().__init__(
            name,
            *plan.target.argv,
            env=process.environment,
            cwd=process.cwd,
            stop_timeout=process.stop_timeout,
            start_timeout=process.start_timeout,
            contain=process.contain,
            stdio=link.pipes,
        )
        link.pipes.omitted = process.omitted
        #: What tells it from all other members that its pool had and will have.
        self.id = name
        self.generation = generation
        self.link = link
        #: How many calls it has now.
        self.leases: int = 0
        #: How many calls it has been given.
        self.calls = 0
        #: Bytes of memory that it had when it last said so; None before.
        self.rss: int | None = None
        self.health: Health = Health.UNKNOWN
        #: How many bad answers it has given in a row.
        self.failures: int = 0
        #: Why it goes, if we have decided that it does: it gets no more calls.
        self.going: Reason | None = None
        #: Why it was lost, in words, where the exit code does not say it.
        self.trouble = ""
        #: How many members in its place have failed in a row before it.
        self.attempt = 0
        #: Whether it has ever answered a call.
        self.proven = False
        #: When it was ready, by the loop's clock.
        self.ready_at: float = math.inf
        #: When its last call ended, by the loop's clock.
        self.idle_since = 0.0
        #: How many calls, and how many bytes of memory, are enough.
        self.most_calls = self.most_rss = math.inf
        #: What is to happen to it at some time.
        self.timers: list[asyncio.TimerHandle] = []
        self._pool = pool
        # Seconds in which it has to answer for the first time once it is ready.
        self._first_probe = plan.heartbeat.timeout
        # Whether what runs there is this library, which knows our signals.
        self._knows_signals = plan.target.name is not None
        self._loop = asyncio.get_running_loop()
        self._log = PhaseLog(name, self._loop.time())
        # How an end of the start is called.
        self._start_failure: Reason = "init_failed"
        self.on_change(self._status_changed)

    @property
    def pid(self) -> int | None:
        """The number of its process; None before it has one."""
        return self._pid

    @property
    def end(self) -> Exit | None:
        """How it ended, once it has."""
        return self._exit

    @property
    def phase(self) -> Phase:
        """Where it is, in the words of pools."""
        return self._phase(self._machine.state)

    @property
    def history(self) -> tuple[PhaseChange, ...]:
        """Its last 32 moves from phase to phase, the newest first."""
        return self._log.changes

    @property
    def sound(self) -> bool:
        """Whether it is not known to be unhealthy."""
        return self.health is not Health.UNHEALTHY

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Its state, with what it last answered."""
        state = super()._state_as(name, **known)
        if state.health is None and self.health is not Health.UNKNOWN:
            return replace(state, health=ProbeResult(self.sound, str(self.phase)))
        return state

    async def suspend(self) -> None:
        """Not by itself; raises InvalidTransition."""
        raise InvalidTransition(f"{self.name!r} is not suspended alone, it would be taken for dead; suspend its pool")

    # -- leases -----------------------------------------------------------------------------------------------------

    def check_out(self, session: str | None) -> None:
        """It is given a call."""
        self.leases += 1
        if self.leases == 1:
            self._note(Phase.READY, Phase.BUSY, "checkout", **({} if session is None else {"session": session}))

    def check_in(self) -> None:
        """A call of it is over."""
        self.leases -= 1
        if self.leases == 0 and self._machine.state is Status.RUNNING:
            if self.sound:
                self._note(Phase.BUSY, Phase.READY, "checkin")
            else:
                self._note(Phase.BUSY, Phase.DEGRADED, "checkin_error")

    # -- health -----------------------------------------------------------------------------------------------------

    def felt_well(self, pong: Pong) -> None:
        """It answered."""
        before = self.phase
        self.rss = pong.rss
        self.failures, self.health = 0, Health.HEALTHY
        self._moved(before, "health_restored")

    def felt_unwell(self) -> None:
        """It did not answer in time, or not well."""
        before = self.phase
        self.failures, self.health = self.failures + 1, Health.UNHEALTHY
        self._moved(before, "health_check_failed")

    # -- the life ---------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """It is wished for, and waits for its start."""
        self._machine.to(Status.PENDING)

    def go(self, reason: Reason, timeout: float | None = None) -> None:
        """Ask it to end because of ``reason``; the first that it is asked for is the one that is remembered."""
        if self.phase.alive:
            self.going = reason
        self.ask_to_stop(timeout)

    def kill_orphaned(self) -> None:
        """Kill its group, where its loop is closed and nobody else can any more."""
        with suppress(OSError):
            # A child of ours that was not reaped, even one that has ended: the number is nobody else's.
            if self._pid is not None and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.killpg(self._pid, signal.SIGKILL)

    def tell_stacks(self) -> None:
        """Have it write to its stderr what it is doing, whatever holds its interpreter.

        Not where somebody would die of the signal who does not know it.
        """
        if self._knows_signals and self._bond.level is not Level.PIDNS:
            self.send_signal(signal.SIGUSR2)

    def cancel_timers(self) -> None:
        """Have nothing happen to it any more."""
        for timer in self.timers:
            timer.cancel()

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                await self.link.ready()
                await self._answer_first()
        except TimeoutError as error:
            self._start_failure = "init_timeout"
            raise WorkerFailed(f"{self.name!r} was not ready within {self._start_timeout:g} s") from error
        except LinkClosed as error:
            self._start_failure = "exited"
            raise WorkerFailed(f"{self.name!r} ended before it was ready") from error

    async def _answer_first(self) -> None:
        try:
            async with asyncio.timeout(self._first_probe):
                self.felt_well(await self.link.ping())
        except TimeoutError:
            self.felt_unwell()

    def _terminate(self, *, force: bool) -> None:
        if force or self.trouble:
            super()._terminate(force=True)
        elif self._started_at is None:
            super()._terminate(force=False)
        else:
            # It ends by itself, with what it has to do about that; a group that is stopped could not.
            self.link.bye(self.stop_timeout)

    # -- how it went ------------------------------------------------------------------------------------------------

    def _phase(self, status: Status) -> Phase:
        return phase_of(status, leased=self.leases > 0, sound=self.sound)

    def _status_changed(self, old: Status, new: Status) -> None:
        if new is Status.STOPPING and self.going is None:
            self.going = "shutdown"
        before, after = self._phase(old), self._phase(new)
        if before is not after:
            self._note(before, after, self._why(before, after))
        if new in FINAL:
            self.health = Health.UNKNOWN

    def _moved(self, before: Phase, reason: Reason) -> None:
        after = self.phase
        if before is not after:
            self._note(before, after, reason)

    def _note(self, before: Phase, after: Phase, reason: Reason, **meta: object) -> None:
        self._log.record(before, after, reason, now=self._loop.time(), **meta)
        if hooks.member_changed.receivers:
            hooks.member_changed.announce(self._pool, member=self.id, change=self._log.newest)

    def _why(self, before: Phase, after: Phase) -> Reason:
        """Why its status took it from ``before`` to ``after``."""
        if after is Phase.TERMINATED:
            if before is Phase.INITIALIZING:
                return self._start_failure
            return "killed" if self._machine.state is Status.KILLED else "exited"
        if after is Phase.TERMINATING:
            return fitting(self.going or "shutdown", before)
        return "init_complete" if self.sound else "init_degraded"
