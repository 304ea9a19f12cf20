"""What is asked of the process that runs flows by another that has the store open: to suspend one, go on, begin anew.

Nothing of this is stored: who runs the flow hears it at once, and where nobody does there is nobody to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows.owners import Owners
    from lifecycle.flows.run import Run

__all__ = ["AT_REST", "FOLLOW", "RECOVER", "RESUME", "RESUMED", "SUSPEND", "Requests"]

#: Of a flow, by its id: to suspend it, to go on, and to ring `AT_REST` when it comes to rest.
SUSPEND, RESUME, FOLLOW = "suspend", "resume", "follow"
#: Rung for a flow that is followed.
AT_REST = "at rest"
#: Of an owner, by its token: to look for what is unfinished.
RECOVER = "recover"
#: Rung by flows that were suspended and go on.
RESUMED = "resumed"


class Requests:
    """The flows that we run, and what others ask for them."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        # The runs by their ids, each with what ends our listening for it; and the same for ourselves.
        self._heard: dict[str, tuple[Run, list[Callable[[], None]]]] = {}
        self._own: Callable[[], None] | None = None

    def open(self, recover: Callable[[], object]) -> None:
        """Call ``recover`` when we are asked to look for what is unfinished, until `close`."""
        self._own = self._owners.listen(f"{RECOVER} {self._owners.token}", recover)

    def close(self) -> None:
        """Hear nothing more."""
        if self._own is not None:
            self._own()
            self._own = None
        for run, _ in list(self._heard.values()):
            self.forget(run)

    def ask(self, what: str, whom: str) -> None:
        """Ask whoever runs the flow ``whom``, us too, to `SUSPEND` or to `RESUME` it, or the owner to `RECOVER`."""
        self._owners.ring(f"{what} {whom}")

    def hear(self, run: Run) -> None:
        """Do from now on what is asked for ``run``, and no more for another run of the same flow."""
        if run.id in self._heard:
            known = self._heard[run.id][0]
            if known is run:
                return
            self.forget(known)

        def resume() -> None:
            if not run.running and not run.ended:
                run.proceed()

        silences = [
            self._owners.listen(f"{FOLLOW} {run.id}", run.be_followed),
            self._owners.listen(f"{SUSPEND} {run.id}", run.suspend),
            self._owners.listen(f"{RESUME} {run.id}", resume),
        ]
        self._heard[run.id] = (run, silences)

    def forget(self, run: Run) -> None:
        """Nothing more can be asked for it."""
        known, silences = self._heard.get(run.id, (None, ()))
        if known is run:
            del self._heard[run.id]
            for silence in silences:
                silence()
