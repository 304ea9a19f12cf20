"""`MemoryStore`: flows that last as long as the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lifecycle.flows.memory.jobs import MemoryJobs
from lifecycle.flows.memory.outboxes import MemoryOutbox
from lifecycle.flows.owners import Owners
from lifecycle.flows.records import Snapshot
from lifecycle.flows.states import ENDS, FlowState
from lifecycle.flows.stores import lost, unknown
from lifecycle.journal.database import SteadyClock

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.records import Batch, Change, FlowRow, StepRow

__all__ = ["MemoryStore"]


class MemoryStore:
    """A `Store` of dictionaries; what it holds stays when it is left, and goes with the object."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowRow] = {}
        self._steps: dict[str, dict[str, StepRow]] = {}
        self._changes: dict[str, list[Change]] = {}
        self._jobs = MemoryJobs(self)
        self._outbox = MemoryOutbox()
        self._clock = SteadyClock()

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self._flows)} flows>"

    async def __aenter__(self) -> Self:
        """Nothing has to be opened."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing has to be closed."""

    async def create(self, flow: FlowRow) -> bool:
        """Keep a flow that is new; False where its id is taken, and then nothing is written."""
        if flow.id in self._flows:
            return False
        self._flows[flow.id] = flow
        self._steps[flow.id] = {}
        self._changes[flow.id] = []
        return True

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # what it is
        """What is kept of a flow.

        Raises:
            FlowError: where there is none of that id.
        """
        if id not in self._flows:
            raise unknown(id)
        return Snapshot(self._flows[id], dict(self._steps[id]))

    async def take(self, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
        """Take a flow whose epoch is ``seen``: it is one more from now on.

        Raises:
            ClaimLost: where its epoch is another; somebody else was quicker.
            FlowError: where there is none of that id.
        """
        flow = (await self.load(id)).flow
        if flow.epoch != seen:
            raise lost(id, seen)
        self._flows[id] = flow._replace(epoch=seen + 1, owner=owner)
        return await self.load(id)

    async def commit(self, batch: Batch) -> None:
        """Write what one phase of the engine changed, all of it or nothing.

        Raises:
            ClaimLost: where the flow was taken by somebody else since.
        """
        flow = self._flows.get(batch.flow)
        if flow is None or flow.epoch != batch.epoch:
            raise lost(batch.flow, batch.epoch)
        store = flow.store if batch.store is None else batch.store
        self._flows[flow.id] = flow._replace(
            state=batch.state, seq=batch.seq, at=batch.at, store=store, error=batch.error
        )
        steps = self._steps[flow.id]
        for row in batch.steps:
            steps[row.name] = row
        if batch.taken_back:
            kept = [change for change in self._changes[flow.id] if change.seq < batch.taken_back]
            self._changes[flow.id] = kept
        self._changes[flow.id] += batch.changes
        self._outbox.add(batch.sent)

    async def flows(self, *, name: str | None = None, states: Collection[str] = ()) -> list[FlowRow]:
        """The flows of that name and in one of those states, the first first; without them, all."""
        return [
            flow
            for flow in self._flows.values()
            if (name is None or flow.name == name) and (not states or flow.state in states)
        ]

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number; the results are only text."""
        changes = self._changes.get(id, [])
        # Numbers are in order, and one is missing only where a commit failed.
        start = next((place for place in range(min(after, len(changes)), 0, -1) if changes[place - 1].seq <= after), 0)
        return [change._replace(result=None) for change in changes[start : start + limit]]

    async def delete(self, id: str) -> bool:  # noqa: A002  # what it is
        """Forget a flow; False where there is none."""
        self._steps.pop(id, None)
        self._changes.pop(id, None)
        return self._flows.pop(id, None) is not None

    def owners(self) -> Owners:
        """Nobody but this process."""
        return Owners()

    def time(self) -> float:
        """Seconds since the epoch; setting the system's clock does not move them."""
        return self._clock.time()

    def outbox(self) -> MemoryOutbox:
        """What tasks have sent and nobody has delivered yet."""
        return self._outbox

    def jobs(self, owners: Owners) -> MemoryJobs:  # noqa: ARG002  # nobody else has this store
        """The jobs that are kept beside the flows."""
        return self._jobs

    def fence(self, id: str, owner: str, *, name: str) -> str:  # noqa: A002  # what it is
        """Give the flow of that id and name to ``owner``, so that its owner before cannot write.

        Returns:
            The state of the flow, or nothing if there is no such flow.
        """
        flow = self._flows.get(id)
        if flow is None or flow.name != name:
            return ""
        self._flows[id] = flow._replace(epoch=flow.epoch + 1, owner=owner)
        return flow.state

    def discard(self, id: str, error: str, *, name: str) -> None:  # noqa: A002  # what it is
        """End the flow of that id and name as FAILURE, or leave it PENDING with an error; not if it is at its end."""
        flow = self._flows.get(id)
        if flow is not None and flow.name == name and flow.state not in ENDS:
            state = flow.state if flow.state == FlowState.PENDING else FlowState.FAILURE
            ended = flow._replace(state=state, error=error, at=time.time(), epoch=flow.epoch + 1, owner="")
            self._flows[id] = ended
