"""`Repository`: where the flows of one `Flows` are found, begun and taken, and what an engine gets for one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lifecycle.errors import FlowError
from lifecycle.flows.engine import Engine
from lifecycle.flows.outboxes import SENT
from lifecycle.flows.plan import Plan, compile_flow
from lifecycle.flows.records import Failure, Snapshot
from lifecycle.flows.states import ENDS, StepState

if TYPE_CHECKING:
    from lifecycle.flows.decisions import Options
    from lifecycle.flows.definition import Item
    from lifecycle.flows.owners import Owners
    from lifecycle.flows.records import Change, FlowRow
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.stores import Store
    from lifecycle.journal.threads import LoopThreads

__all__ = ["Repository"]

_FAILED = (StepState.FAILURE, StepState.REVERT_FAILURE)


@dataclass(frozen=True, slots=True)
class Repository:
    """A store, and all that is needed to run what is kept in it."""

    store: Store
    codec: Codec
    options: Options
    #: Who has the store open: we, who take flows by our token, and others, whose we leave to them.
    owners: Owners
    #: Where plain functions are called.
    threads: LoopThreads

    def plan(self, flow: Item | Plan, name: str) -> Plan:
        """The plan of ``flow``, which must be called ``name``.

        Raises:
            FlowError: where it is called otherwise, or cannot be carried out.
        """
        plan = flow if isinstance(flow, Plan) else compile_flow(flow)
        if plan.name != name:
            raise FlowError(f"{plan.flow!r} was given for the flow {name!r}; a flow is known by its name: keep it")
        return plan

    async def open(self, row: FlowRow, *, same: bool = False) -> tuple[Snapshot, bool]:
        """What is kept of the flow ``row``, and whether it is new, and so ours.

        Raises:
            FlowError: if the id is that of another flow, or with ``same`` if the flow was given other values.
        """
        mine = row._replace(epoch=1, owner=self.owners.token)
        if not row.epoch and await self.store.create(mine):
            return Snapshot(mine, {}), True
        snapshot = await self.store.load(row.id)
        if snapshot.flow.name != row.name:
            raise FlowError(
                f"the id {row.id!r} is that of a flow {snapshot.flow.name!r}, not {row.name!r}; give another id"
            )
        if same:
            self.check_values(row.id, row.store, snapshot.flow.store)
        return snapshot, False

    def check_values(self, id: str, given: str, kept: str) -> None:  # noqa: A002  # what it is
        """Refuse values other than those that the flow ``id`` has; both are encoded.

        Raises:
            FlowError: if they differ.
        """
        if given != kept and self.codec.decode(given) != self.codec.decode(kept):
            raise FlowError(f"flow {id!r} was started with other values: {kept}, not {given}; give another id")

    async def take(self, snapshot: Snapshot) -> Snapshot:
        """Take what was looked at.

        Raises:
            ClaimLost: if another process was quicker.
        """
        flow = snapshot.flow
        return await self.store.take(flow.id, self.owners.token, seen=flow.epoch)

    async def is_elsewhere(self, flow: FlowRow) -> bool:
        """Whether it is unfinished, and in the hands of another owner that lives."""
        mine = flow.owner in ("", self.owners.token)
        return not mine and flow.state not in ENDS and not await self.owners.is_gone(flow.owner)

    async def is_posted(self, id: str) -> bool:  # noqa: A002  # what it is
        """Whether it is the flow of a job that is not complete."""
        return bool(await self.store.jobs(self.owners).unfinished([id]))

    def engine(self, plan: Plan, snapshot: Snapshot, sender: object) -> Engine:
        """An engine for what is ours.

        Raises:
            FlowError: where what is kept does not go with ``plan``, or is damaged.
        """
        try:
            engine = Engine(
                plan,
                snapshot,
                store=self.store,
                codec=self.codec,
                options=self.options,
                sender=sender,
                threads=self.threads,
            )
        except (ValueError, TypeError) as error:
            raise FlowError(
                f"what is kept of flow {snapshot.flow.id!r} is damaged, or of another version ({error}); "
                "restore a copy, or start it under another id"
            ) from error
        engine.on_sent = partial(self.owners.ring, SENT)
        return engine

    async def changes(self, id: str, *, after: int) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number."""
        return [self._read(change) for change in await self.store.changes(id, after=after)]

    def _read(self, change: Change) -> Change:
        if change.text is None:
            return change
        result = Failure.decode(change.text) if change.new in _FAILED else self.codec.decode(change.text)
        return change._replace(result=result)
