"""`WorkflowLog`: the recorded operations of one workflow, and the rows that the next transaction writes.

Each operation has a number, which is also the beginning of its row's name: ``3.1.2 reserve`` is the second operation in
the first branch of the `gather` with number 3. This module does not await, and does not use a store.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lifecycle.errors import FlowError, InvalidState, WorkflowChanged
from lifecycle.flows.records import FAILURE, Batch, Change, Failure, StepRow
from lifecycle.flows.states import ENDS, WORKFLOWS, FlowState, StepState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lifecycle.flows.records import FlowRow, OutboxRow, Snapshot

__all__ = ["WorkflowLog", "order"]


def order(name: str) -> tuple[int, ...]:
    """Return the number of an operation as a sort key, or () if the row has no number."""
    number = name.partition(" ")[0]
    return tuple(map(int, number.split("."))) if number[:1].isdigit() else ()


class WorkflowLog:
    """The recorded operations of a workflow, and the rows that the next transaction writes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.flow: FlowRow = snapshot.flow
        self.state: FlowState = FlowState(snapshot.flow.state)
        #: The operations that have started, by number.
        self.rows: dict[str, StepRow] = {}
        #: Why the workflow has failed or is being undone. From then on, it starts nothing else.
        self.failure: Failure | None = None
        #: The number of the last change that has been written.
        self.written: int = snapshot.flow.seq
        #: True if rows must be written without waiting for others.
        self.urgent: bool = False
        #: The encoded return value, which the last transaction writes.
        self.result: str | None = snapshot.flow.result
        # The operations that were reset, by name.
        self._cleared: dict[str, StepRow] = {}
        # The recorded answers of `patch`, and those given in this process.
        self._patches: dict[str, bool] = {}
        # The last recorded number in each scope.
        self._last: dict[str, int] = {}
        self._seq = snapshot.flow.seq
        self._dirty: dict[str, StepRow] = {}
        self._changes: list[Change] = []
        # Tuples, because they are usually empty, and the garbage collector visits each empty list.
        self._sent: tuple[OutboxRow, ...] = ()
        self._taken: tuple[int, ...] = ()
        self._children: tuple[FlowRow, ...] = ()
        for row in snapshot.steps.values():
            self._load(row)
        #: The recorded operations that the function has not called yet.
        self.unvisited: set[str] = set(self.rows)

    def _load(self, row: StepRow) -> None:
        number, _, text = row.name.partition(" ")
        if row.state == StepState.PENDING:
            self._cleared[row.name] = row
        elif row.kind == "patch":
            self._patches[text] = True
        elif row.name == FAILURE:
            self.failure = Failure.decode(row.failure or "")
        else:
            self.rows[number] = row
            for prefix, place in _places(number):
                self._last[prefix] = max(place, self._last.get(prefix, 0))

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, name: str, kind: str) -> StepRow:
        """Return the row of an operation that the function calls now.

        Raises:
            WorkflowChanged: if a different operation is recorded under its number.
        """
        number = name.partition(" ")[0]
        row = self.rows.get(number)
        if row is None:
            return self._cleared.get(name) or StepRow(name, kind)
        self.unvisited.discard(number)
        if row.name != name or row.kind != kind:
            raise self.changed(f"it calls {kind} {name!r} where {row.kind} {row.name!r} is recorded")
        return row

    def changed(self, what: str) -> WorkflowChanged:
        """Return the error for a function that does not match its records."""
        return WorkflowChanged(
            f"workflow {self.flow.name!r} no longer matches the records of {self.flow.id!r}: {what}; restore the "
            "order and the names of its operations, or put the new code after: if patch(…)"
        )

    def check_visited(self) -> None:
        """Check that the function has called all recorded operations.

        Raises:
            WorkflowChanged: if it has not.
        """
        if self.unvisited:
            row = self.rows[min(self.unvisited, key=order)]
            raise self.changed(f"it ended without calling {row.kind} {row.name!r}, which is recorded")

    def patch(self, name: str, prefix: str, count: int) -> bool:
        """Return the answer of `patch` after operation ``count`` of a scope, and record it if it is True."""
        if (known := self._patches.get(name)) is not None:
            return known
        answer = self._patches[name] = self._last.get(prefix, 0) <= count
        if answer:
            row = StepRow(f"patch {name}", "patch", StepState.SUCCESS)
            self._dirty[row.name] = row
        return answer

    def gather(self, number: str, count: int) -> None:
        """Record that a `gather` has ``count`` branches, or compare that with its record.

        Raises:
            WorkflowChanged: if another operation, a different number or an operation of another branch is recorded.
        """
        row = self.find(f"{number} gather", "gather")
        if row.state == StepState.PENDING:
            # The previous version did not record the number.
            gone = any(_branch_in(each, number) > count for each in self.unvisited)
            self.rows[number] = self._dirty[row.name] = row._replace(state=StepState.SUCCESS, result=str(count))
        else:
            gone = row.result != str(count)
        if gone:
            recorded = row.result or "more"
            raise self.changed(f"{row.name!r} has {count} branches, but {recorded} are recorded")

    def is_last(self, number: str) -> bool:
        """Return True if no operation is recorded after this one, in its scope or in an enclosing one."""
        return all(self._last[prefix] == place for prefix, place in _places(number))

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(  # the parts of a change
        self,
        row: StepRow,
        *,
        value: Any = None,
        text: str | None = None,
        reason: str = "",
        urgent: bool = True,
    ) -> None:
        """Record the new state of an operation. If it is not urgent, the next other transaction writes it."""
        number = row.name.partition(" ")[0]
        old = self.rows.get(number)
        state = StepState.PENDING if old is None or old.name != row.name else old.state
        self.rows[number] = row
        self._add(row, state, value, text, reason)
        self.urgent = self.urgent or urgent

    def _add(self, row: StepRow, old: str, value: Any, text: str | None, reason: str) -> None:
        self._dirty[row.name] = row
        self._changes.append(
            Change(row.kind, row.name, old, row.state, value, reason, row.attempt, *self._next(), text)
        )

    def _next(self) -> tuple[str, int, float]:
        """Return the flow's id, and the number and time of the next change."""
        self._seq += 1
        return self.flow.id, self._seq, time.time()

    def move(self, state: FlowState, reason: str = "") -> bool:
        """Change the workflow's state. Return False if that has no effect.

        Raises:
            InvalidState: if the table does not allow it.
        """
        if not WORKFLOWS.check(self.flow.id, self.state, state, reason):
            return False
        old, self.state = self.state, state
        self._changes.append(Change("flow", self.flow.name, old, state, None, reason, 0, *self._next()))
        return True

    def fail(self, failure: Failure) -> None:
        """Record why the workflow has failed or is being undone."""
        self.failure = failure
        row = StepRow(FAILURE, "undo", StepState.FAILURE, failure=failure.encode())
        self._add(row, StepState.PENDING, failure, row.failure, "")
        self.urgent = True

    def clear(self, row: StepRow, reason: str) -> None:
        """Make an operation run again. After a reset, it gets a new idempotency key."""
        number = row.name.partition(" ")[0]
        self.rows.pop(number, None)
        self.unvisited.discard(number)
        undone = max(row.undone, row.round) if reason == "reset" else row.undone
        cleared = StepRow(row.name, row.kind, attempt=row.attempt, round=row.round, undone=undone)
        self._cleared[row.name] = self._dirty[row.name] = cleared
        if row.kind == "gather":
            # Its changes are not announced.
            return
        self._add(cleared, row.state, None, None, reason)

    def clear_failed(self) -> None:
        """Make the operations run again that have made the workflow fail, or that have failed to undo it."""
        failed = [row for row in self.rows.values() if row.state == StepState.FAILURE]
        undos = [row for row in failed if row.kind == "undo"]
        for row in undos or failed:
            if undos or self.is_last(row.name.partition(" ")[0]):
                self.clear(row, "again")
        if not undos and self.failure is not None:
            self._clear_failure("again")

    def _clear_failure(self, reason: str) -> None:
        self.failure = None
        self._add(StepRow(FAILURE, "undo"), StepState.FAILURE, None, None, reason)

    def restart(self, step: str = "") -> None:
        """Make the workflow PENDING: after a failure from the operation ``step`` on, and otherwise from its start.

        Raises:
            FlowError: if there is no such operation.
            InvalidState: if the workflow has not failed, so that all of it must run again.
        """
        if step and self.state is not FlowState.FAILURE:
            raise InvalidState(f"workflow {self.flow.id!r} is {self.state}, so it starts over; omit the operation")
        if step:
            self._clear_from(step)
        elif self.state is FlowState.FAILURE:
            self.clear_failed()
        else:
            self.reset()
        self.move(FlowState.PENDING, "reset")

    def _clear_from(self, step: str) -> None:
        if step not in self.rows:
            known = ", ".join(sorted(self.rows, key=order)) or "none"
            raise FlowError(f"workflow {self.flow.id!r} has no operation {step!r}; its operations: {known}")
        for row in [row for row in self.rows.values() if order(row.name) >= order(step)]:
            self.clear(row, "reset")
        if self.failure is not None:
            self._clear_failure("again")

    def reset(self) -> None:
        """Make all operations run again."""
        names = [f"patch {name}" for name, answer in self._patches.items() if answer]
        rows = [*self.rows.values(), *(StepRow(name, "patch", StepState.SUCCESS) for name in names)]
        for row in rows:
            self.clear(row, "reset")
        if self.failure is not None:
            self._clear_failure("reset")
        self.result = None
        self._patches.clear()
        self._last.clear()

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Write these sent events along with the next rows."""
        self._sent += tuple(rows)

    def take(self, number: int) -> None:
        """Record that a signal was received, along with the next rows."""
        self._taken += (number,)

    def create(self, child: FlowRow) -> None:
        """Create a child along with the next rows."""
        self._children += (child,)

    def restore(self, batch: Batch) -> None:
        """Take back a batch that ends the workflow and was not written. The workflow continues."""
        end = batch.changes[-1]
        self.state, self.result = FlowState(end.old), None
        self._dirty = {row.name: row for row in batch.steps}
        self._changes = batch.changes[:-1]
        self._sent, self._taken, self._children = tuple(batch.sent), tuple(batch.taken), tuple(batch.children)

    @property
    def seq(self) -> int:
        """The number of the last change."""
        return self._seq

    def drain(self, **ends: Any) -> Batch:
        """Return everything that has not been written yet, for one transaction. ``ends`` are more fields of it."""
        rows, self._dirty = list(self._dirty.values()), {}
        changes, self._changes = self._changes, []
        sent, self._sent = self._sent, ()
        taken, self._taken = self._taken, ()
        children, self._children = self._children, ()
        self.urgent = False
        flow = self.flow
        return Batch(
            *(flow.id, flow.epoch, self.state.value, self._seq, time.time(), rows, changes),
            sent=sent,
            taken=taken,
            children=children,
            kind="workflow",
            parent=flow.parent,
            result=self.result if self.state in ENDS else None,
            **ends,
        )


def _branch_in(number: str, gather: str) -> int:
    """Return the branch of ``gather`` that contains an operation, or 0."""
    inner = number.removeprefix(f"{gather}.")
    return 0 if inner == number else int(inner.partition(".")[0])


def _places(number: str) -> Iterator[tuple[str, int]]:
    """Yield the prefix and the place of an operation in each of its scopes: ``3.1.2`` is 2 in ``3.1.``, and 3 in all.

    The middle number is a branch, which is not an operation.
    """
    parts = number.split(".")
    for place in range(0, len(parts), 2):
        yield "".join(f"{part}." for part in parts[:place]), int(parts[place])
