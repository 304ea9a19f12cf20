"""The lifetime of a program: running it, starting background tasks, and stopping everything in order.

``programs`` contains `run`, and ``blocks`` the context manager `lifetime`. ``lifetimes`` contains the list of what
belongs to a program, and stops it. ``parts`` and ``mains`` are what is in the list, and ``tasks`` and ``waiting`` run
code below it. ``signals`` contains the process's signal handlers, ``presses`` chooses the effect of a signal, and
``receiving`` carries it out. ``force`` ends a process that does not stop in time.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "Interrupted WorkerFailed",
        ".blocks": "lifetime",
        ".health": "ComponentHealth Health",
        ".lifetimes": "Lifetime Part current on_shutdown shutdown",
        ".programs": "run",
        ".records": "LifetimeState",
        ".settings": "Reason",
        ".tasks": "Group do do_detached go",
        ".waiting": "read_line sleep",
    },
)
