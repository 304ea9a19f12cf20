"""A program's life: `run` it, work in its background, and end it in order.

``runs`` has `run` and the block `lifetime`, ``mains`` the things that `run` accepts, ``lifetimes`` the lifetime itself.
A signal enters in ``signals``. ``stopping`` has the shutdown in its order, and ``force`` the end of a process that does
not stop.
"""

from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.critical import do, do_detached
from lifecycle.runtime.lifetimes import Lifetime, current, go, on_shutdown, shutdown
from lifecycle.runtime.records import LifetimeState, Reason
from lifecycle.runtime.runs import lifetime, run
from lifecycle.runtime.tasks import Group
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
