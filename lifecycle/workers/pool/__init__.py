"""A pool of processes that answer calls.

What they load stays loaded, a call can be cancelled, streamed and killed, and a process that dies fails the one call
that it had. `Pool` is a worker, and each of its members is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.workers.pool.phases import Phase, PhaseChange
    from lifecycle.workers.pool.settings import Heartbeat, Process, Recycle, SessionMode, Sessions

__all__ = [
    "Heartbeat",
    "Phase",
    "PhaseChange",
    "Process",
    "Recycle",
    "SessionMode",
    "Sessions",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Heartbeat": "lifecycle.workers.pool.settings",
        "Phase": "lifecycle.workers.pool.phases",
        "PhaseChange": "lifecycle.workers.pool.phases",
        "Process": "lifecycle.workers.pool.settings",
        "Recycle": "lifecycle.workers.pool.settings",
        "SessionMode": "lifecycle.workers.pool.settings",
        "Sessions": "lifecycle.workers.pool.settings",
    },
)
