"""What must survive a crash: one SQLite file, one thread that writes it, and a durable queue.

`Journal` runs functions inside transactions and commits those of all who wait together. What the functions do is
theirs: a `Schema` makes tables, `Queue` is the one shape for work that is accepted now and done later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.errors import JournalError
    from lifecycle.journal.locks import FileLock
    from lifecycle.journal.queues import QUEUES, Entry, Queue
    from lifecycle.journal.schemas import Schema
    from lifecycle.journal.tallies import Tally
    from lifecycle.journal.writing import Journal

__all__ = ["QUEUES", "Entry", "FileLock", "Journal", "JournalError", "Queue", "Schema", "Tally"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "QUEUES": "lifecycle.journal.queues",
        "Entry": "lifecycle.journal.queues",
        "FileLock": "lifecycle.journal.locks",
        "Journal": "lifecycle.journal.writing",
        "JournalError": "lifecycle.errors",
        "Queue": "lifecycle.journal.queues",
        "Schema": "lifecycle.journal.schemas",
        "Tally": "lifecycle.journal.tallies",
    },
)
