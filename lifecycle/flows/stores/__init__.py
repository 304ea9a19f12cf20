"""Stores of flows, jobs and sent events: in memory, in a SQLite file, on a PostgreSQL server.

``base`` has what a store promises. ``sql`` is the store of both databases, whose statements are the same; ``sqlite``
and ``postgres`` have the rest. ``presence`` tells which other processes have the store open.
"""

__all__: list[str] = []
