"""The runs of a command as children of a supervisor: the one that counts, and at times one beside it.

A `Supervisor` stops the old run before it starts the new one, and its policy decides what follows when one ends by
itself. When to start is not decided here, nor is anything said.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lifecycle.backoff import Backoff
from lifecycle.cli.watch.words import how
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers.model import FINAL, Status
from lifecycle.workers.specs import Spec
from lifecycle.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.cli.watch.settings import Settings
    from lifecycle.workers.model import WorkerState
    from lifecycle.workers.protocols import Worker

__all__ = ["Runs"]

#: It waits from 0.1 to 13 seconds, half a minute in all; then it is a matter of the next change.
_BACKOFF: Final = Backoff(max_restarts=8, within=60.0)


class Runs:
    """Starts and ends runs, whose workers ``make`` makes."""

    def __init__(self, settings: Settings, make: Callable[[], Worker]) -> None:
        self._settings = settings
        self._make = make
        self._number = 0
        self._current = self._new_spec()
        # One that starts beside it and shall take its place.
        self._beside: Spec | None = None
        # The name of the one that did so last, until the old has ended.
        self._successor: str | None = None
        self.supervisor: Final = Supervisor("lifecycle watch")

    @property
    def state(self) -> WorkerState | None:
        """Of the one that counts; None before the first."""
        return self._state_of(self._current)

    @property
    def status(self) -> Status:
        """Of the one that counts."""
        state = self.state
        return Status.CREATED if state is None else state.status

    @property
    def has_beside(self) -> bool:
        """Whether one starts beside it."""
        return self._beside is not None

    def is_current(self, name: str) -> bool:
        """Whether that is the one that counts."""
        return name == self._current.name

    def is_successor(self, name: str) -> bool:
        """Whether it takes, or has taken, the place of one that has not ended."""
        return name == self._successor

    async def renew(self) -> None:
        """Return when the old run has ended, and the new one has begun or has to wait for the resume."""
        # What becomes of it is told of the child; and where all ends, so does this.
        with suppress(WorkerFailed, InvalidTransition):
            if self._current.name in self.supervisor:
                await self.supervisor.restart(self._current.name)
            else:
                await self.supervisor.add(self._current)

    async def replace(self) -> bool:
        """Start one beside the old, which is asked to end when it is ready; False if another has overtaken it.

        Raises:
            WorkerFailed: when it will not be; the old goes on.
        """
        spec = self._beside = self._new_spec()
        self._successor = spec.name
        try:
            await self.supervisor.add(spec)
        except WorkerFailed:
            if self._beside is not spec:
                return False
            self._beside = None
            raise
        if self._beside is spec:
            await self._switch(spec)
            return True
        return False

    async def give_up_beside(self) -> None:
        """One that is about to take the place of the old is overtaken."""
        overtaken, self._beside = self._beside, None
        if overtaken is not None:
            with suppress(KeyError, InvalidTransition):
                await self.supervisor.remove(overtaken.name)

    async def _switch(self, spec: Spec) -> None:
        """Now it is ``spec`` that counts, if it has not ended as soon as it had begun."""
        self._beside = None
        state = self._state_of(spec)
        if state is not None and state.status in FINAL:
            await self.supervisor.remove(spec.name)
            raise WorkerFailed(how(state))
        old, self._current = self._current, spec
        await self.supervisor.remove(old.name)
        if self._successor == spec.name:
            self._successor = None

    def _state_of(self, spec: Spec) -> WorkerState | None:
        return next((each for each in self.supervisor.workers() if each.name == spec.name), None)

    def _new_spec(self) -> Spec:
        self._number += 1
        name = self._settings.command[0] + (f" #{self._number}" if self._number > 1 else "")
        return Spec(name, self._make, restart=self._settings.restart, backoff=_BACKOFF)
