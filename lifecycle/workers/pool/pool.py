"""`Pool`: what is asked of a pool from outside; how it does that is in the modules around this one.

`core` puts its parts together: `seats` gives calls their members, `calls` carries them out, `keepers` has members come,
`retirements` has them go, `heartbeats` asks how they feel, and `recoveries` sees to those that are lost. What runs at
the other end is in `child`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.backoff import Intensity
from lifecycle.errors import PoolClosed
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import AT_WORK, FINAL, ProbeResult, Status
from lifecycle.workers.pool.core import Core
from lifecycle.workers.pool.leases import Lease
from lifecycle.workers.pool.losses import warn_unstopped
from lifecycle.workers.pool.plans import Plan
from lifecycle.workers.pool.rosters import check_size
from lifecycle.workers.pool.settings import Heartbeat, Process, Recycle, Sessions
from lifecycle.workers.pool.streams import Stream
from lifecycle.workers.pool.targets import function_name

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from lifecycle.workers.model import End, WorkerState
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.stats import PoolStats

__all__ = ["Pool"]

_RECYCLE, _SESSIONS, _HEARTBEAT, _PROCESS = Recycle(), Sessions(), Heartbeat(), Process()
_INTENSITY = Intensity(5, 30.0)


class Pool(BaseWorker):
    """Processes that answer calls, and keep what they have loaded between them.

    Each member imports ``target`` once; if that is a class, it also constructs it once, with ``init``. A call goes to a
    member that is free, or waits for one; further members are started while calls wait. A call can be cancelled while
    it runs; a member that does not break off in time is killed and replaced, and one that dies fails the one call that
    it had. Calls to another pool, and to another loop, know nothing of each other.

    It is a worker: ``async with pool`` starts the least number of members and stops all, and a `Supervisor` may have
    it. To stop it lets calls that run finish for ``process.stop_timeout`` seconds, and refuses all others. Suspended,
    it lets them finish, too, and holds all others back, in every mode of `Sessions`.

    Args:
        name: what it is called in messages and states; members have its name and a number.
        target: ``"module:function"``, ``"module:Class"``, or the command of a program that speaks the protocol, as a
            list of words.
        size: the least and the most members.
        init: what the class is constructed with, or the first message of the program.
        queue: how many calls may wait for a member that has other work; one more gets `PoolBusy`.
        deadline: seconds that a call has where it does not say, from the moment it is awaited to its result.
        concurrency: how many calls a member has at a time; more than one runs them in threads, or, of async functions,
            in one loop.
        codec: how values are sent. ``"pickle"``, the default for a module, carries what Python can pickle, and trusts
            the workers, which run your code. ``"msgpack"``, the default for a command, and ``"json"`` carry numbers,
            text, lists and dicts (msgpack: bytes too), and refuse what they would alter, such as a tuple.
        recycle: when a member has worked enough.
        sessions: how calls of one session find the member that has its state.
        heartbeat: how it is noticed that a member is no longer itself.
        process: how members are started and ended.
        intensity: how many members may be lost in which time, before the pool gives up and is FAILED.

    Raises:
        ValueError, TypeError: for settings that cannot work, before anything is started.
        ModuleNotFoundError: if the codec is not installed.
    """

    kind: ClassVar[str] = "pool"
    # Members that are killed have a second each, all at once.
    _last_wait: ClassVar[float] = 5.0

    def __init__(  # noqa: PLR0913  # the names are promised; each has a default
        self,
        name: str,
        target: str | Sequence[str | os.PathLike[str]],
        *,
        size: tuple[int, int] = (1, 4),
        init: Sequence[Any] = (),
        queue: int = 100,
        deadline: float = 60.0,
        concurrency: int = 1,
        codec: str | None = None,
        recycle: Recycle = _RECYCLE,
        sessions: Sessions = _SESSIONS,
        heartbeat: Heartbeat = _HEARTBEAT,
        process: Process = _PROCESS,
        intensity: Intensity = _INTENSITY,
    ) -> None:
        super().__init__(name)
        self._plan = Plan.read(
            name,
            target,
            size=size,
            init=init,
            queue=queue,
            deadline=deadline,
            concurrency=concurrency,
            codec_name=codec,
            recycle=recycle,
            sessions=sessions,
            heartbeat=heartbeat,
            process=process,
            intensity=intensity,
        )
        self.stop_timeout: float = process.stop_timeout
        # From the start on.
        self._core: Core | None = None

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and self.status not in FINAL:
            warn_unstopped(self)
            for member in core.roster:
                member.kill_orphaned()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        session: str | None = None,
        deadline: float | None = None,
        idempotent: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` in a member, and return what it returns.

        Whoever is cancelled here has the call broken off, and waits until it is: for ``process.grace`` seconds, then
        the member is killed.

        Args:
            function: the name of a method of the target, or of the target itself; ``"module:function"`` or a function
                of a module, for any other.
            args: what it is given.
            session: whose member is wanted; see `Sessions`.
            deadline: seconds that it has in all; `math.inf` for no limit: only a cancellation ends a call that hangs.
            idempotent: whether it does no harm to call it twice: it is tried once more if its member is lost.
            kwargs: what it is given by name.

        Raises:
            RemoteError: if it raised.
            WorkerLost: if its member ended meanwhile.
            TimeoutError: if its time was up; the message says where it was.
            PoolBusy: if too many calls wait.
            SessionLost: if the session's member is gone, or, with ``Sessions(mode="fail")``, busy.
            PoolClosed: if the pool does not run.
            PoolFailed: if it has given up; the cause says why.
            TypeError, ValueError: for what cannot be sent; nothing has been, then.
        """
        order = self._plan.order(function, args, kwargs, session=session, deadline=deadline)
        return await self._running().caller.call(order, idempotent=idempotent)

    def stream(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        session: str | None = None,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> Stream:
        """Call the generator ``function`` in a member; an async iterator of what it yields.

        Arguments and errors are those of `call`; the errors are raised by the iterator.
        """
        order = self._plan.order(function, args, kwargs, session=session, deadline=deadline)
        return Stream(self._running().caller, order)

    def lease(self, session: str | None = None, *, deadline: float | None = None) -> Lease:
        """A member for several calls: ``async with pool.lease() as worker``, then ``await worker.call(…)``.

        Args:
            session: whose member is wanted.
            deadline: seconds to wait for it. Calls have their own.
        """
        order = self._plan.order("lease", (), {}, session=session, deadline=deadline)
        return Lease(self._running().caller, order, self._plan.deadline)

    def map(
        self,
        function: str | Callable[..., Any],
        rows: Iterable[Any],
        *,
        ordered: bool = True,
        deadline: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call ``function`` with each of ``rows``; an async iterator of the results.

        Rows are read as members come free, and calls of a map wait for them however long the queue is. The first error
        is raised, and ends it; use `contextlib.aclosing` to end it early.

        Args:
            function: as for `call`.
            rows: one argument each.
            ordered: whether results come in the order of the rows, or as they are ready.
            deadline: seconds that each call has.
        """
        return self._running().map(function_name(function), rows, ordered=ordered, deadline=deadline)

    # -- the pool -----------------------------------------------------------------------------------------------------

    def members(self) -> tuple[Member, ...]:
        """The members, the oldest first, with those that come, and without those that end."""
        return () if self._core is None else tuple(member for member in self._core.roster if member.phase.alive)

    def stats(self) -> PoolStats:
        """How much there is to do, and how long that takes."""
        return self._running().stats()

    async def refresh(self) -> None:
        """Replace all members, as their successors are ready; returns when the last of them has ended.

        No call suffers from it.

        Raises:
            PoolClosed, PoolFailed: if the pool ends before that.
        """
        await self._running().refresh()

    async def resize(self, low: int, high: int) -> None:
        """Have at least ``low`` and at most ``high`` members; returns when the least are there.

        Those that are too many finish their calls first.

        Raises:
            TypeError, ValueError: for numbers that cannot work.
            PoolClosed, PoolFailed: if the pool ends before that.
        """
        await self._running().resize(*check_size(self.name, low, high))

    def unbind(self, session: str) -> None:
        """Forget which member ``session`` has, or that it was lost; nothing happens if there is nothing to forget."""
        self._running().seats.sessions.unbind(session)

    async def suspend(self) -> None:
        """Give members no calls until `resume`; those that run finish. Nothing happens if it is suspended.

        Raises:
            InvalidTransition: if it does not run.
        """
        if self.status is not Status.SUSPENDED:
            self._machine.to(Status.SUSPENDED)
            self._running().seats.book.pause()

    async def resume(self) -> None:
        """Give members calls again, first those that have waited. Nothing happens if it runs.

        Raises:
            InvalidTransition: if it is neither suspended nor running.
        """
        if self._machine.resume():
            self._running().seats.resume()

    async def probe(self) -> ProbeResult:
        """Whether it is of use: it runs, and not all of its members are unwell."""
        if self.status not in AT_WORK:
            return ProbeResult(healthy=False, message=f"is {self.status}")
        return self.stats().verdict

    # -- the life -----------------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End | None]:
        self._core = Core(self, self._plan.with_env(self._env))
        return self._core.run()

    async def _until_ready(self) -> None:
        await self._running().filled()

    def _terminate(self, *, force: bool) -> None:
        keeper = self._running().keeper
        keeper.close(partial(_closed, self.name))
        if force:
            keeper.kill_all()

    def _children(self) -> tuple[WorkerState, ...]:
        return () if self._core is None else tuple(member.state() for member in self._core.roster)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _running(self) -> Core:
        if self._core is not None:
            return self._core
        if self.status in FINAL:
            raise _closed(self.name)
        raise PoolClosed(f"the pool {self.name!r} is {self.status}; start it first, with 'async with pool'")


def _closed(name: str) -> PoolClosed:
    return PoolClosed(f"the pool {name!r} is closed, or about to be; calls go to one that runs")
