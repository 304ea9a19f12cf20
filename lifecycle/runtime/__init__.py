"""A program's life: `run` it, work in its background, and end it in order.

``ownership`` has the signal handlers, ``signaling`` and ``escalation`` decide what a signal means, ``lives`` holds
what a lifetime consists of, ``endings`` has the shutdown in its order. `Lifetime` is what a program sees of it all.
"""

from lifecycle.errors import Interrupted, WorkerFailed
from lifecycle.runtime.blocks import lifetime
from lifecycle.runtime.critical import do, do_detached
from lifecycle.runtime.groups import Group
from lifecycle.runtime.lifetimes import Lifetime, current, go, on_shutdown, shutdown
from lifecycle.runtime.records import LifetimeState, Reason
from lifecycle.runtime.runs import run
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
