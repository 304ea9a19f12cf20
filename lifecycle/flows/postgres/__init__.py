"""Flows, jobs and the outbox on a PostgreSQL server, which processes of many machines share.

``servers`` statements it, by ``connectors``; ``channels`` hears it; the others know its tables.
"""

from lifecycle.flows.postgres.stores import PostgresStore

__all__ = ["PostgresStore"]
