"""State machines with legal and ignored transitions, a history, and one announcement per change.

Workers, pool workers, flows and jobs share this module. Machines attach no meaning to their states, so add behaviour to
a machine's owner instead.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lifecycle import hooks
from lifecycle._async import Condition
from lifecycle.errors import InvalidTransition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["InvalidTransition", "Machine", "Transition"]

S = TypeVar("S", bound=str)


@dataclass(frozen=True, slots=True)
class Transition(Generic[S]):
    """A change of state."""

    old: S
    new: S
    #: The reason in a word or two. Empty if the state is self-explanatory.
    reason: str
    #: When the state changed, in seconds since the epoch.
    at: float
    #: The number of seconds spent in ``old``.
    duration: float


class Machine(Generic[S]):
    """A state that changes only as its table allows.

    ``table`` maps each state to its possible next states. A state without next states is final. ``ignored`` contains
    pairs ``(from, to)`` that can be requested but have no effect, such as stopping twice. The last ``history`` changes
    are stored.

    Raises:
        ValueError: if the table mentions a state that has no row.
    """

    def __init__(  # a table, its initial state, and its name
        self,
        name: str,
        table: Mapping[S, Collection[S]],
        initial: S,
        *,
        ignored: Collection[tuple[S, S]] = (),
        history: int = 32,
        error: type[InvalidTransition] = InvalidTransition,
    ) -> None:
        strangers = ({state for row in table.values() for state in row} | {initial}) - table.keys()
        if strangers:
            raise ValueError(f"the table of {name!r} has no row for {_names(strangers)}; add one (it may be empty)")
        self.name = name
        self._table = table
        self._ignored = ignored
        self._error = error
        self._state = initial
        self._since = self.now()
        # Plain tuples, oldest first. There may be thousands of machines, and few of their histories are ever read.
        self._history: list[tuple[S, S, str, float, float]] = []
        self._kept = history
        # Notified after each change. None until a task waits for a change for the first time.
        self._changed: Condition | None = None

    def __repr__(self) -> str:
        return f"<Machine {self.name!r}: {self._state}>"

    @property
    def state(self) -> S:
        """The current state."""
        return self._state

    @property
    def is_final(self) -> bool:
        """True if the current state has no next states."""
        return not self._table[self._state]

    @property
    def history(self) -> tuple[Transition[S], ...]:
        """The last changes, oldest first."""
        return tuple(Transition(*each) for each in self._history)

    def now(self) -> float:
        """Return the running loop's time, so that tests can control it. Without a loop, return the process's time."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def can(self, target: S) -> bool:
        """Return whether the transition to ``target`` is allowed or ignored. Otherwise, `to` raises an error."""
        return target in self._table[self._state] or (self._state, target) in self._ignored

    def to(self, target: S, reason: str = "") -> bool:
        """Change to ``target``. Return False if the transition is ignored.

        Raises:
            InvalidTransition: if the transition is not allowed. The error lists both states and the legal next states.
        """
        old = self._state
        row = self._table[old]
        if target not in row:
            if (old, target) in self._ignored:
                return False
            legal = _names(row) or f"nothing, {old} is final"
            raise self._error(f"{self.name!r} cannot go from {old} to {target}; legal: {legal}")
        now = self.now()
        moved = (old, target, reason, time.time(), now - self._since)
        self._state, self._since = target, now
        self._history.append(moved)
        if len(self._history) > self._kept:
            del self._history[0]
        if self._changed is not None:
            self._changed.notify_all()
        if hooks.state_changed.receivers:
            hooks.state_changed.announce(self, machine=self, transition=Transition(*moved))
        return True

    async def reach(self, *states: S) -> S:
        """Wait until the machine is in, or has passed through, one of ``states``, and return that state.

        Raises:
            InvalidTransition: if the machine reaches a different final state.
        """
        while self._state not in states:
            if self.is_final:
                raise self._error(f"{self.name!r} is permanently {self._state} and cannot reach {_names(states)}")
            last = self._history[-1] if self._history else None
            if self._changed is None:
                self._changed = Condition()
            await self._changed.wait()
            for passed in self._after(last):
                if passed in states:
                    return passed
        return self._state

    def _after(self, last: tuple[S, S, str, float, float] | None) -> list[S]:
        """Return the states entered since the change ``last``, as far back as the history reaches."""
        entered: list[S] = []
        for moved in reversed(self._history):
            if moved is last:
                break
            entered.append(moved[1])
        return entered[::-1]


def _names(states: Collection[str]) -> str:
    return ", ".join(sorted(str(state) for state in states))
