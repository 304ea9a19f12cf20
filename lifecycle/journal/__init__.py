"""Durable storage: one SQLite file, one thread that writes to it, and a durable queue.

`Journal` runs functions inside transactions, and commits the functions that wait at the same time together. A `Schema`
creates tables. `Queue` is the single data model for work that is accepted now and done later.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "JournalError",
        ".database": "Schema",
        ".queues": "QUEUES Entry Queue",
        ".writer": "Journal",
    },
)
