"""Stores for flows, jobs and sent events: in memory, in an SQLite file, or on a PostgreSQL server.

``base`` defines the store protocols. ``sql`` contains the statements that both databases use, and ``sqlite`` and
``postgres`` add the parts that differ. ``presence`` finds out which other processes have the store open.
"""

__all__: list[str] = []
