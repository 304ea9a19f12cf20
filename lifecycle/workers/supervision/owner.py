"""The one task that decides about the children of a supervisor.

Whatever happens (a child ended, a start came to its end, a backoff is over, somebody asks for something) is a message
in its mailbox, and one message is dealt with after the other. What comes from a worker carries the generation of its
slot, and is stale once another worker fills that. The owner never waits for a start, so one that hangs holds up
nobody; it does wait for stops, which are bounded. What a message means is the matter of `starts`, `ends` and
`restarts`; what is asked for by hand is in `admin` and `suspension`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle.errors import InvalidTransition
from lifecycle.workers.model import End, Status, as_failure, stopped_early
from lifecycle.workers.supervision.closing import Closer
from lifecycle.workers.supervision.ends import Ends
from lifecycle.workers.supervision.mailbox import Mailbox
from lifecycle.workers.supervision.restarts import Restarts
from lifecycle.workers.supervision.start_queue import StartQueue
from lifecycle.workers.supervision.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.errors import WorkerFailed
    from lifecycle.workers.base import BaseWorker
    from lifecycle.workers.supervision.policy import Rules
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["Owner"]


class Owner:
    """Keeps the children of ``supervisor``.

    ``note`` is called when a child may have changed, ``failing`` when the supervisor begins to end with an error.
    """

    def __init__(
        self, supervisor: BaseWorker, rules: Rules, note: Callable[[Slot], None], failing: Callable[[], None]
    ) -> None:
        self.supervisor = supervisor
        self.name: str = supervisor.name
        self.note = note
        self._failing = failing
        #: The children by name, in the order of their starts.
        self.slots: dict[str, Slot] = {}
        self.mailbox: Final = Mailbox()
        self.closer: Final = Closer(rules.stop_order, note, self.fail)
        self.starts: Final = Starts(self)
        self.ends: Final = Ends(self, rules.auto_shutdown)
        self.restarts: Final = Restarts(self, rules)
        #: Those that are to be started in order.
        self.queue: Final = StartQueue(self.mailbox, self.starts.open_in_turn)
        #: Set when the supervisor was asked to stop; what may take long gives up then.
        self.halted: Final = asyncio.Event()
        #: Whether it is about to end, for whatever reason.
        self.ending: bool = False
        self._started: asyncio.Future[WorkerFailed | None] | None = None
        self._end = End()

    def begin(self) -> asyncio.Task[End]:
        """Start the children in order; the task ends with the supervisor."""
        self._started = asyncio.get_running_loop().create_future()
        return asyncio.create_task(self._run(self._started), name=f"supervisor {self.name}")

    async def started(self) -> None:
        """Return when all children have started.

        Raises:
            WorkerFailed: if one could not; by then the others are stopped.
        """
        assert self._started is not None, "begin() comes first"
        if error := await asyncio.shield(self._started):
            raise error

    def forget(self, slot: Slot) -> None:
        """Have ``slot``, which is empty, as a child no more."""
        del self.slots[slot.spec.name]
        hooks.component_changed.announce(self.supervisor, component=self.supervisor)

    def halt(self) -> None:
        """Have all children stopped, and end."""
        self.halted.set()
        self.mailbox.post(self._halt)

    async def _run(self, started: asyncio.Future[WorkerFailed | None]) -> End:
        # A child that was stopped before the start stays down.
        self.queue.fill([slot for slot in self.slots.values() if slot.rest is Status.CREATED])
        try:
            while not self.ending:
                message = await self.mailbox.take()
                await message()
                self._advance()
        finally:
            self.ending = True
            self.queue.clear()
            await self.closer.close_all(list(self.slots.values()))
            await self.closer.settle()
            await self.starts.close()
            self._dismiss(started)
        return self._end

    async def _halt(self) -> None:
        self.ending = True

    def fail(self, error: BaseException | None) -> None:
        """End by itself, because of ``error`` or because there is nothing left to do; what came first counts."""
        if not self.ending:
            self.ending, self._end = True, End(error=error)
            if error is not None:
                self._failing()

    @property
    def error(self) -> BaseException | None:
        """The error with which the supervisor ends, or has ended."""
        return self._end.error

    def _advance(self) -> None:
        self.queue.advance()
        if self.queue.empty and self.starting_up and not self.ending:
            assert self._started is not None, "it is starting up"
            self._started.set_result(None)

    @property
    def starting_up(self) -> bool:
        """Whether its first start goes on."""
        return self._started is not None and not self._started.done()

    def _dismiss(self, started: asyncio.Future[WorkerFailed | None]) -> None:
        """Nobody is left waiting."""
        for slot in self.slots.values():
            if slot.asked:
                slot.answer(stopped_early(slot.spec.name))
        self.mailbox.dismiss(InvalidTransition(f"the supervisor {self.name!r} has ended; nothing was done"))
        if not started.done():
            error = self._end.error
            started.set_result(None if error is None else as_failure(self.name, error))
