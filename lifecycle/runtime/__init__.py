"""A program's life: `run` it, work in its background, and end it in order.

``runs`` has `run` and the block `lifetime`, ``mains`` the things that `run` accepts, ``lifetimes`` the lifetime itself,
and ``tasks`` the functions that run under it. A signal enters in ``signals``. ``stopping`` has the shutdown in its
order, and ``force`` the end of a process that does not stop.
"""

from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.lifetimes import Lifetime, LifetimeState, Reason, current, on_shutdown, shutdown
from lifecycle.runtime.runs import lifetime, run
from lifecycle.runtime.tasks import Group, do, do_detached, go
from lifecycle.runtime.waiting import read_line, sleep

__all__ = [
    "Group",
    "Interrupted",
    "Lifetime",
    "LifetimeState",
    "Reason",
    "WorkerFailed",
    "current",
    "do",
    "do_detached",
    "go",
    "lifetime",
    "on_shutdown",
    "read_line",
    "run",
    "shutdown",
    "sleep",
]
