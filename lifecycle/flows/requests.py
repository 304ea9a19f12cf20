"""What is asked of the process that runs flows by another that has the store open: to suspend one, go on, begin anew.

Nothing of this is stored: who runs the flow hears it at once, and where nobody does there is nobody to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows.owners import Owners
    from lifecycle.flows.runs import Run

__all__ = ["RECOVER", "RESUME", "RESUMED", "SUSPEND", "Requests"]

#: Of a flow, by its id.
SUSPEND, RESUME = "suspend", "resume"
#: Of an owner, by its token: to look for what is unfinished.
RECOVER = "recover"
#: Rung by flows that were suspended and go on.
RESUMED = "resumed"


class Requests:
    """The flows that we run, and what others ask for them."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        # What ends our listening: for each flow by its id, and for ourselves.
        self._silences: dict[str, list[Callable[[], None]]] = {}
        self._own: Callable[[], None] | None = None

    def open(self, recover: Callable[[], object]) -> None:
        """Call ``recover`` when we are asked to look for what is unfinished, until `close`."""
        self._own = self._owners.listen(f"{RECOVER} {self._owners.token}", recover)

    def close(self) -> None:
        """Hear nothing more."""
        if self._own is not None:
            self._own()
            self._own = None
        for silences in self._silences.values():
            for silence in silences:
                silence()
        self._silences.clear()

    def ask(self, what: str, whom: str) -> None:
        """Ask whoever runs the flow ``whom``, us too, to `SUSPEND` or to `RESUME` it, or the owner to `RECOVER`."""
        self._owners.ring(f"{what} {whom}")

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
