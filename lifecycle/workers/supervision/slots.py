"""A child's place in its supervisor: it stays while the workers that fill it come and go.

A slot knows and counts; what is done about it is the owner's business (`owner`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from lifecycle._async import was_cancelled
from lifecycle._util import reason_of
from lifecycle.backoff import Intensity
from lifecycle.workers.base import ATTEMPT, PREV_EXIT, RESUME_ID, BaseWorker, previous_exit
from lifecycle.workers.model import Status, WorkerState, as_failure, failed
from lifecycle.workers.specs import Restart

if TYPE_CHECKING:
    from collections import deque

    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit, ProbeResult
    from lifecycle.workers.specs import Spec

__all__ = ["Slot", "end_of", "suspendable"]

_log = logging.getLogger("lifecycle.workers")


class Told(NamedTuple):
    """The facts about a child that are announced when they change."""

    status: Status
    health: ProbeResult | None
    tripped: bool

    @property
    def seen(self) -> tuple[Status, bool, bool]:
        """What a `StatusEvent` tells of: not each message of a probe."""
        return self.status, self.health is None or self.health.healthy, self.tripped


class Slot:
    """One child of a supervisor."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        # Constant for the life of the spec, unlike the workers.
        self._resume_id = str(uuid4())
        self._created_at = time.time()
        #: Which worker fills it: whatever reports an earlier number is stale. Grows with every start and every stop.
        self.generation: int = 0
        #: The worker that fills it, or did so last; None before the first, and while a new one is made.
        self.worker: Worker | None = None
        #: Whether a worker is at work in it: from the end of its start to its end.
        self.live: bool = False
        #: The start, while it goes on.
        self.opening: asyncio.Task[BaseException | None] | None = None
        self._rest = Status.CREATED
        # When that changed, or its health did, in seconds since the epoch.
        self._changed_at = 0.0
        #: Whether it was added, has not run yet, and the outcome of `add` is open: if it cannot start, it is no child.
        self.provisional: bool = False
        self._told = Told(Status.CREATED, None, False)
        #: How the last worker ended.
        self.exit: Exit | None = None
        self._health: ProbeResult | None = None
        #: Given up until it is restarted by hand.
        self.tripped: bool = False
        #: What is due later: the end of its backoff; and who asks after its health.
        self.timer: asyncio.TimerHandle | None = None
        self.probing: asyncio.Task[None] | None = None
        #: Who waits for the end of a worker that cannot tell by itself.
        self.watching: asyncio.Task[None] | None = None
        # Who asked for the start by hand and waits for its outcome.
        self._askers: list[asyncio.Future[None]] = []
        # Starts so far; waits in a row; when it was up; the restarts that its circuit counts, newest first.
        self._attempt = 0
        self._retry = 0
        self._up_since: float | None = None
        self._restarts: deque[float] | tuple[()] = ()

    def __repr__(self) -> str:
        return f"<Slot {self.spec.name!r}: {self.status}, generation {self.generation}>"

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Where the child is, with or without a worker."""
        if self.live or self.opening is not None:
            worker = self.worker
            return Status.STARTING if worker is None or worker.status == Status.CREATED else worker.status
        return self.rest

    @property
    def rest(self) -> Status:
        """What it is while no worker is in it."""
        return self._rest

    @rest.setter
    def rest(self, status: Status) -> None:
        if status is not self._rest:
            self._rest, self._changed_at = status, time.time()

    @property
    def health(self) -> ProbeResult | None:
        """The last answer of its probe; None before the first."""
        return self._health

    @health.setter
    def health(self, answer: ProbeResult) -> None:
        if answer != self._health:
            self._health, self._changed_at = answer, time.time()

    @property
    def restarts(self) -> int:
        """How often it was started after the first time."""
        return max(0, self._attempt - 1)

    @property
    def active(self) -> bool:
        """Whether it is at work, or will be without anybody's help."""
        return self.live or self.opening is not None or self.rest == Status.PENDING

    @property
    def joins(self) -> bool:
        """Whether it is started again together with a sibling."""
        return self.spec.restart != Restart.NEVER and not self.tripped

    def state(self) -> WorkerState:
        """Its worker's record, with what only a supervisor knows."""
        known: dict[str, Any] = {
            "status": self.status,
            "restarts": self.restarts,
            "circuit": "open" if self.tripped else "closed",
            "health": self.health,
        }
        name = self.spec.name
        if isinstance(self.worker, BaseWorker):
            return self.worker._state_as(name, changed_at=self._changed_at, **known)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # same package
        error = None if self.exit is None or self.exit.error is None else reason_of(self.exit.error)
        if self.worker is not None:
            try:
                state = self.worker.state()
                return replace(state, name=name, updated_at=max(state.updated_at, self._changed_at), **known)
            except Exception as failure:  # noqa: BLE001  # of others: one that cannot tell does not hide its siblings
                error = f"state() failed: {reason_of(failure)}"
        at = self._created_at
        updated_at = max(at, self._changed_at)
        return WorkerState(name, self.spec.kind, error=error, created_at=at, updated_at=updated_at, **known)

    def tell(self) -> tuple[Told, Told]:
        """Return what was announced last, and what it is now, which counts as announced from here on."""
        told, self._told = self._told, Told(self.status, self.health, self.tripped)
        return told, self._told

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """A start begins: its generation."""
        self.generation += 1
        self._attempt += 1
        self.worker, self._health = None, None
        return self.generation

    def environment(self) -> dict[str, str]:
        """What the worker that is about to start is handed over."""
        return {RESUME_ID: self._resume_id, PREV_EXIT: previous_exit(self.exit), ATTEMPT: str(self._attempt)}

    def came_up(self, now: float) -> None:
        """The start has succeeded."""
        self.live, self._up_since, self.provisional = True, now, False

    def came_down(self, ended: Exit) -> None:
        """The worker has ended, or could not start."""
        # The worker has the time of its end itself.
        self.live, self.exit, self._rest = False, ended, ended.status
        self.quiet()

    def quiet(self) -> None:
        """Nothing is due for it any more."""
        if self.timer is None and self.probing is None and self.watching is None:
            # Most often; and there are children by the thousand.
            return
        for due in (self.timer, self.probing, self.watching):
            if due is not None:
                due.cancel()
        self.timer = self.probing = self.watching = None

    # -- what is counted --------------------------------------------------------------------------------------------

    def trips(self, now: float) -> bool:
        """Count a restart; whether it is one too many for the circuit."""
        backoff = self.spec.backoff
        if backoff.max_restarts and backoff.within:
            circuit = Intensity(backoff.max_restarts, backoff.within)
            self._restarts = circuit.add(self._restarts, now)
            self.tripped = circuit.exceeded(self._restarts)
        return self.tripped

    def next_delay(self, now: float) -> float:
        """How long to wait before the next start; longer each time, until it was up for a while."""
        if self._up_since is not None and now - self._up_since >= self.spec.backoff.reset_after:
            self._retry = 0
        self._up_since = None
        self._retry += 1
        return self.spec.backoff.delay(self._retry - 1)

    def forgive(self) -> None:
        """Forget what went wrong: it is started by hand."""
        self.tripped, self._restarts, self._retry = False, (), 0

    # -- who waits ----------------------------------------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether somebody waits for the outcome of its start."""
        return any(not asker.done() for asker in self._askers)

    def ask(self) -> asyncio.Future[None]:
        """What completes with the outcome of its start."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._askers.append(future)
        return future

    def answer(self, error: BaseException | None = None) -> None:
        """Report the outcome of its start to the callers that wait for it; without an error, it is a child."""
        self.provisional &= error is not None
        askers, self._askers = self._askers, []
        for future in askers:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(as_failure(self.spec.name, error))


async def end_of(worker: Worker) -> Exit:
    """Wait for the end of ``worker``; an error of its `wait` is logged, and counts as its failure."""
    try:
        return await worker.wait()
    except BaseException as error:  # judged by the loop, SystemExit too
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            raise
        _log.exception("%r cannot tell of its end, which counts as its failure", worker)
        return failed(error)


def suspendable(worker: Any) -> bool:
    """Return whether ``worker`` can be suspended and resumed."""
    has = all(callable(getattr(worker, name, None)) for name in ("suspend", "resume"))
    return has and bool(cast("Any", getattr(worker, "suspendable", True)))
