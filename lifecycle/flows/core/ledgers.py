"""`Ledger`: every move of a flow and its steps goes through here, checked by its table, and is written in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.flows.records import Batch, Change
from lifecycle.flows.states import FLOWS, FlowState, Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.core.readiness import Readiness
    from lifecycle.flows.records import FlowRow, OutboxRow
    from lifecycle.flows.serializers import Codec

__all__ = ["Ledger"]


class Ledger:
    """The state of one flow, and what of it is not stored yet."""

    def __init__(self, flow: FlowRow, codec: Codec, readiness: Readiness) -> None:
        self._flow, self._codec, self._readiness = flow, codec, readiness
        self.state: FlowState = FlowState(flow.state)
        #: Seconds since the epoch; set by who has a clock.
        self.now: float = 0.0
        # What is to be written, by the number of the node; and told, in order.
        self._dirty: dict[int, Cell] = {}
        self._changes: list[Change] = []
        self._sent: list[OutboxRow] = []
        self._seq = flow.seq
        # The number of the first change that was written and is to be forgotten.
        self._taken_back = 0

    def go(self, state: FlowState, reason: str = "") -> bool:
        """Move the flow; False where the table says to ignore it.

        Raises:
            InvalidState: where the table has no such move.
        """
        if not FLOWS.check(self._flow.id, self.state, state, reason):
            return False
        old, self.state = self.state, state
        self._changes.append(Change("flow", self._flow.name, old, state, None, reason, 0, *self._next()))
        return True

    def move(  # what a change consists of
        self,
        cell: Cell,
        state: StepState,
        *,
        intention: Intention | None = None,
        reason: str = "",
        result: Any = None,
        text: str | None = None,
    ) -> None:
        """Move a step.

        Raises:
            InvalidState: where its table has no such move.
        """
        old = cell.state
        cell.table.check(cell.name, old, state, reason)
        cell.state = state
        if intention is not None:
            cell.intention = intention
        kind, attempt = cell.node.kind, cell.attempt
        self._changes.append(Change(kind, cell.name, old, state, result, reason, attempt, *self._next(), text))
        self.touch(cell)

    def intend(self, cell: Cell, intention: Intention) -> None:
        """Say what is to be done with a step next."""
        if cell.intention is not intention:
            cell.intention = intention
            self.touch(cell)

    def renew(self, cell: Cell, reason: str = "") -> None:
        """Back to PENDING, with nothing in it."""
        cell.clear()
        if reason and cell.undone != cell.round:
            cell.undone = cell.round
            self._dirty[cell.number] = cell
        if cell.state is StepState.PENDING:
            self.intend(cell, Intention.EXECUTE)
        else:
            self.move(cell, StepState.PENDING, intention=Intention.EXECUTE, reason=reason)

    def restarted(self, cell: Cell) -> None:
        """Note that it is begun again where a crash interrupted it."""
        self._dirty[cell.number] = cell
        kind, state = cell.node.kind, cell.state
        self._changes.append(Change(kind, cell.name, state, state, None, "restarted", cell.attempt, *self._next()))

    def touch(self, cell: Cell) -> None:
        """It is to be written, and others may have to wait for it, or need not any more."""
        self._dirty[cell.number] = cell
        self._readiness.changed(cell)

    def add(self, cell: Cell) -> None:
        """It is new, and is to be written."""
        self._dirty[cell.number] = cell

    def _next(self) -> tuple[str, int, float]:
        """The flow of the next change, its number in it, and when it is."""
        self._seq += 1
        return self._flow.id, self._seq, self.now

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Have them go out with what has changed."""
        self._sent += rows

    @property
    def changed(self) -> bool:
        """Whether there is a change to be told, and not only rows to be written."""
        return bool(self._changes)

    @property
    def is_open(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._dirty or self._changes)

    @property
    def pending(self) -> int:
        """How many changes are not written yet."""
        return len(self._changes)

    def take_back(self, seq: int) -> None:
        """Have the changes from that number on, which were written, forgotten with the next batch."""
        self._taken_back = seq

    def drain(self) -> Batch | None:
        """What has changed since the last time, for one transaction; None if nothing has."""
        if not self.is_open:
            return None
        cells, self._dirty = self._dirty.values(), {}
        changes, self._changes = self._changes, []
        sent, self._sent = self._sent, []
        taken_back, self._taken_back = self._taken_back, 0
        rows = [cell.row(self._codec) for cell in cells]
        return Batch(
            self._flow.id,
            self._flow.epoch,
            self.state.value,
            self._seq,
            self.now,
            rows,
            changes,
            sent=sent,
            taken_back=taken_back,
        )
