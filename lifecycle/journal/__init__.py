"""What must survive a crash: one SQLite file, one thread that writes it, and a durable queue.

`Journal` runs functions inside transactions and commits those of all who wait together. What the functions do is
theirs: a `Schema` makes tables, `Queue` is the one shape for work that is accepted now and done later.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "JournalError",
        ".clocks": "SteadyClock",
        ".locks": "FileLock",
        ".queues": "QUEUES Entry Queue",
        ".schemas": "Schema",
        ".tallies": "Tally",
        ".writing": "Journal",
    },
)
