"""Flows, jobs and the outbox on a PostgreSQL server, which processes of many machines share.

``servers`` asks it, through ``connections`` that ``connectors`` make; ``channels`` hears it, for ``owners``; the others
know its tables.
"""

from lifecycle.flows.postgres.stores import PostgresStore

__all__ = ["PostgresStore"]
