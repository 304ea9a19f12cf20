"""`Roster`: the runs of one `Flows`, each kept as long as there is something to do with it, or somebody has it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from lifecycle.flows.runs import Run

if TYPE_CHECKING:
    from lifecycle.flows.plan import Plan
    from lifecycle.flows.records import FlowRow, Snapshot
    from lifecycle.flows.repositories import Repository
    from lifecycle.flows.requests import Requests

__all__ = ["Roster"]


class Roster:
    """Runs by the ids of their flows; others can ask things of those that are unfinished, by ``requests``."""

    def __init__(self, repository: Repository, requests: Requests) -> None:
        self._repository, self._requests = repository, requests
        # Those that are not at their end, in the order in which they were begun; and all that somebody has.
        self._unfinished: dict[str, Run] = {}
        self._runs: WeakValueDictionary[str, Run] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._unfinished)

    def __contains__(self, id: object) -> bool:  # noqa: A002  # what it is
        """Whether the flow of that id is unfinished here."""
        return id in self._unfinished

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """Those that have not come to an end, the first first."""
        return tuple(self._unfinished.values())

    def get(self, id: str) -> Run | None:  # noqa: A002  # what it is
        """The run of that id, if it is known here."""
        return self._runs.get(id)

    def begin(self, plan: Plan, row: FlowRow, *, same: bool = False) -> Run:
        """A run of a flow that is to be taken, under way; with ``same`` a stored one must have the same values."""
        self._runs[row.id] = run = Run(plan, row, self._repository, self._driven, same=same)
        run.drive()
        return run

    def adopt(self, plan: Plan, snapshot: Snapshot) -> Run:
        """A run of a flow that was taken for us, under way unless it is at its end."""
        run = Run(plan, snapshot.flow, self._repository, self._driven)
        run.adopt(snapshot)
        self._runs[run.id] = run
        if not run.ended:
            run.drive()
        return run

    def strike(self, run: Run) -> None:
        """Have nothing more to do with ``run``."""
        if self._runs.get(run.id) is run:
            del self._runs[run.id]
            self._drop(run)

    def _driven(self, run: Run) -> None:
        """It begins to be driven, or is no more."""
        if run.ended:
            self._drop(run)
        else:
            self._unfinished[run.id] = run
            self._requests.hear(run)

    def _drop(self, run: Run) -> None:
        if self._unfinished.get(run.id) is run:
            del self._unfinished[run.id]
        self._requests.forget(run)
