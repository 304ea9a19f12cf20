"""`Recovery`: finding what is unfinished in the store and run by nobody, and going on with it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._util import reason_of
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.states import FlowState

if TYPE_CHECKING:
    from lifecycle.flows.definition import Item
    from lifecycle.flows.records import FlowRow
    from lifecycle.flows.repositories import Repository
    from lifecycle.flows.rosters import Roster
    from lifecycle.flows.runs import Run

__all__ = ["Recovery"]

_log = logging.getLogger("lifecycle.flows")

_UNFINISHED = (
    FlowState.PENDING,
    FlowState.RUNNING,
    FlowState.SUSPENDING,
    FlowState.SUSPENDED,
    FlowState.RESUMING,
)


class Recovery:
    """What is unfinished of the flows that are known here goes into ``roster``."""

    def __init__(self, repository: Repository, roster: Roster) -> None:
        self._repository, self._roster = repository, roster
        # What was started or recovered here, by name; and who looks for what of it is to begin anew.
        self._known: dict[str, Item] = {}
        self._looking: set[asyncio.Task[list[Run]]] = set()

    def know(self, flow: Item) -> None:
        """`look` for that one too."""
        self._known[flow.name] = flow

    async def recover(self, *flows: Item) -> list[Run]:
        """Go on with what is unfinished of ``flows``, unless it is that of a job, or its owner lives elsewhere.

        Raises:
            FlowError: for a flow that cannot be carried out.
        """
        store, owners = self._repository.store, self._repository.owners
        runs: list[Run] = []
        for plan in map(compile_flow, flows):
            self.know(plan.flow)
            rows = await store.flows(name=plan.name, states=_UNFINISHED)
            posted = await store.jobs(owners).unfinished([row.id for row in rows])
            rows = [row for row in rows if row.id not in posted]
            # All at once, since each may have to be waited for.
            await asyncio.gather(*[owners.is_gone(owner) for owner in {row.owner for row in rows} - {""}])
            runs += [self._roster.begin(plan, row) for row in rows if await self._is_left(row)]
        return runs

    async def _is_left(self, row: FlowRow) -> bool:
        if row.state == FlowState.PENDING and row.error:
            # Its job was discarded before it began.
            return False
        return row.id not in self._roster and not await self._repository.is_elsewhere(row)

    def look(self) -> None:
        """Recover, in the background, what is known: somebody else has made something of it unfinished again."""
        task = asyncio.create_task(self.recover(*self._known.values()), name="recover flows")
        self._looking.add(task)
        task.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[list[Run]]) -> None:
        self._looking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("what is to begin anew could not be recovered: %s", reason_of(error))

    async def settle(self) -> None:
        """Wait until nobody looks."""
        await asyncio.gather(*self._looking, return_exceptions=True)
