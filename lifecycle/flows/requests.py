"""What is asked of the process that runs a flow by another that has the store open: to suspend it, or to go on.

Nothing of this is stored: who runs the flow hears it at once, and where nobody does there is nobody to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows.owners import Owners
    from lifecycle.flows.runs import Run

__all__ = ["RESUME", "SUSPEND", "Requests"]

SUSPEND, RESUME = "suspend", "resume"


class Requests:
    """The flows that we run, and what others ask for them."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._silences: dict[str, list[Callable[[], None]]] = {}

    def ask(self, what: str, id: str) -> None:  # noqa: A002  # what it is
        """Ask whoever runs the flow ``id``, us too, to `SUSPEND` it or to `RESUME` it."""
        self._owners.ring(f"{what} {id}")

    def hear(self, run: Run) -> None:
        """Do from now on what is asked for ``run``."""
        if run.id in self._silences:
            return

        def resume() -> None:
            if not run.running and not run.ended:
                run.drive()

        self._silences[run.id] = [
            self._owners.listen(f"{SUSPEND} {run.id}", run.suspend),
            self._owners.listen(f"{RESUME} {run.id}", resume),
        ]

    def forget(self, run: Run) -> None:
        """Nothing more can be asked for it."""
        for silence in self._silences.pop(run.id, ()):
            silence()
