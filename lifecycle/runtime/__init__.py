"""The lifetime of a program: running it, starting background tasks, and stopping everything in order.

``runs`` contains `run` and the context manager `lifetime`. ``mains`` adapts the objects that `run` accepts.
``lifetimes`` contains the lifetime itself, and ``tasks`` contains functions that run code under it. ``signals`` handles
signals. ``stopping`` runs the steps of the shutdown in order, and ``force`` terminates a process that does not stop in
time.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "Interrupted WorkerFailed",
        ".health": "ComponentHealth Health",
        ".lifetimes": "Lifetime LifetimeState Reason current on_shutdown shutdown",
        ".runs": "lifetime run",
        ".tasks": "Group do do_detached go",
        ".waiting": "read_line sleep",
    },
)
