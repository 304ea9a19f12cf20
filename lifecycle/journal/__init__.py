"""Durable storage in an SQLite file, written by a single thread, and a durable queue.

`Journal` runs functions inside transactions, and groups functions that arrive at the same time into one commit.
`Schema` creates tables. `Queue` stores work that is accepted now and done later.
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
