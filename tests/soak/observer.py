"""A component in the program that checks state transitions and counts resources."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lifecycle import hooks
from lifecycle.workers import Status
from tests.conformance.pool import REASONS

if TYPE_CHECKING:
    from lifecycle.events import StatusEvent
    from lifecycle.states import Machine, Transition
    from lifecycle.workers.pool import PhaseChange
    from tests.soak.notes import Notes
    from tests.soak.tree import Tree

__all__ = ["Observer"]

_MOVES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "data" / "worker_transitions.json").read_text())[
    "table"
]

#: The seconds between two resource counts. One resource count in ``_OBJECTS`` also includes all Python objects.
_PAUSE, _OBJECTS = 0.25, 12


class Observer:
    """A component that runs as a main of the program. It counts resources and checks status events."""

    def __init__(self, notes: Notes, tree: Tree) -> None:
        self._notes, self._tree = notes, tree
        self._last: WeakKeyDictionary[Machine[Any], str] = WeakKeyDictionary()
        self._phases: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    async def run(self) -> None:
        """Count resources until cancelled."""
        with ExitStack() as held:
            held.enter_context(hooks.state_changed.connected_to(self._moved))
            held.enter_context(hooks.member_changed.connected_to(self._changed))
            for number in count():
                self._count(all_of_it=number % _OBJECTS == 0)
                await asyncio.sleep(_PAUSE)

    def on_status(self, event: StatusEvent) -> None:
        """Check a child's status event. Events before the child's first start are not checked."""
        if event.new != event.old and event.new not in _MOVES:
            self._notes.wrong(f"{event.component} became {event.new!r}")

    def _count(self, *, all_of_it: bool) -> None:
        objects = None
        if all_of_it:
            gc.collect()
            objects = len(gc.get_objects())
        self._notes.note("sample", len(asyncio.all_tasks()), threading.active_count(), objects)
        self._notes.note("rounds", dict(self._tree.rounds))

    def _moved(self, _: object, *, machine: Machine[Any], transition: Transition[Any]) -> None:
        old, new = str(transition.old), str(transition.new)
        before = self._last.get(machine, old)
        self._last[machine] = new
        if before != old:
            self._notes.wrong(f"{machine.name!r} was {before} and went from {old} to {new}")
        if isinstance(transition.old, Status) and new not in _MOVES[old]:
            self._notes.wrong(f"{machine.name!r} went from {old} to {new}")

    def _changed(self, _: object, *, member: Any, change: PhaseChange) -> None:
        del member
        if change.reason not in REASONS.get((change.source, change.target), ()):
            self._notes.wrong(f"a member of the pool went {change}")
