"""`LifetimeState`, the record of a lifetime's state."""

from __future__ import annotations

from dataclasses import dataclass

from lifecycle.runtime.settings import Reason  # noqa: TC001  # snapshots read the types

__all__ = ["LifetimeState"]


@dataclass(frozen=True, slots=True)
class LifetimeState:
    """The state of a lifetime."""

    reason: Reason
    #: The signal that caused the shutdown, or None.
    signum: int | None
    stopping: bool
    #: The number of signals counted so far in the current series.
    signals: int
    #: The number of signals after which the process is forced to exit. 0 means never, or that the lifetime receives no
    #: signals.
    force_exit_at: int
    #: The names of the running background tasks.
    tasks: tuple[str, ...]
    #: The number of background tasks started so far.
    tasks_started: int
    #: The number of background tasks that raised an error.
    tasks_crashed: int
    #: The number of shutdown hooks that have not run yet.
    hooks: int
    #: The names of the workers that were started under this lifetime and have not ended.
    workers: tuple[str, ...]
    #: True if another program runs the event loop and is not stopped when this lifetime shuts down.
    embedded: bool = False
