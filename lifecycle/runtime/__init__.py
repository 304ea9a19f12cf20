"""The lifetime of a program: running it, starting background tasks, and stopping everything in order.

``runs`` contains `run` and the context manager `lifetime`. ``mains`` adapts the objects that `run` accepts.
``lifetimes`` contains the lifetime itself, and ``tasks`` contains functions that run code under it. ``signals`` handles
signals. ``stopping`` runs the steps of the shutdown in order, and ``force`` terminates a process that does not stop in
time.
"""

from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.health import ComponentHealth, Health
from lifecycle.runtime.lifetimes import Lifetime, LifetimeState, Reason, current, on_shutdown, shutdown
from lifecycle.runtime.runs import lifetime, run
from lifecycle.runtime.tasks import Group, do, do_detached, go
from lifecycle.runtime.waiting import read_line, sleep

__all__ = [
    "ComponentHealth",
    "Group",
    "Health",
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
