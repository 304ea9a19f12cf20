"""`PostgresOutbox`: what was sent, beside the flows that sent it; several machines may deliver it."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING

from lifecycle.flows.postgres.connectors import sql
from lifecycle.flows.postgres.flows import printable
from lifecycle.flows.records import UNENDED, OutboxRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lifecycle.flows.postgres.servers import Server
    from lifecycle.flows.records import FailedDelivery

__all__ = ["PostgresOutbox"]

_COLUMNS = "id, topic, data, number, failures, error"
# The index has new rows in the order of their numbers, and the others by the end of their wait.
_TAKE = f"""
WITH new AS (
    SELECT number FROM lifecycle_outbox WHERE NOT dead AND until = 0
    ORDER BY number LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), again AS (
    SELECT number FROM lifecycle_outbox WHERE NOT dead AND until > 0 AND until <= %(now)s
    ORDER BY until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), free AS (
    SELECT number FROM new UNION ALL SELECT number FROM again ORDER BY number LIMIT %(limit)s
) UPDATE lifecycle_outbox SET until = %(until)s,
    failures = failures + CASE WHEN until > 0 AND error IN ('', '{UNENDED}') THEN 1 ELSE 0 END,
    error = CASE WHEN error = '{UNENDED}' OR (until > 0 AND error = '') THEN '{UNENDED}' ELSE '' END
WHERE number IN (SELECT number FROM free)
RETURNING {_COLUMNS}
"""  # noqa: S608  # our own columns
# Where the answer was lost, what came first is to go first all the same.
_TAKEN = f"SELECT {_COLUMNS} FROM lifecycle_outbox WHERE until = %(until)s"  # noqa: S608  # the same
_DEAD = f"SELECT {_COLUMNS} FROM lifecycle_outbox WHERE dead ORDER BY number"  # noqa: S608  # the same
_FAIL = """
UPDATE lifecycle_outbox o SET failures = f.failures, error = f.error, until = coalesce(f.until, 0),
    dead = f.until IS NULL
FROM json_to_recordset(%(failed)s::json) AS f (number bigint, failures integer, error text, until float8)
WHERE o.number = f.number
"""
_REVIVE = "UPDATE lifecycle_outbox SET failures = 0, until = 0, dead = false WHERE dead AND number = ANY (%(numbers)s)"
_HOLD = "UPDATE lifecycle_outbox SET until = %(until)s WHERE number = ANY (%(numbers)s)"
_FORGET = "DELETE FROM lifecycle_outbox WHERE number = ANY (%(numbers)s)"


class PostgresOutbox:
    """An `OutboxStore` on ``server``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """The first that nobody has, ours until then."""
        rows = await self._server.run(sql(_TAKE, limit=limit, now=now, until=until), done=sql(_TAKEN, until=until))
        return sorted(map(OutboxRow._make, rows), key=attrgetter("number"))

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        """Have them until another time; until 0 they are anybody's."""
        await self._server.run(sql(_HOLD, numbers=list(numbers), until=until))

    async def forget(self, numbers: Collection[int]) -> None:
        """They were delivered."""
        await self._server.run(sql(_FORGET, numbers=list(numbers)))

    async def put_down(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        """Write the results of deliveries in one transaction; those ``freed`` can be taken again at once."""
        rows = [row._replace(error=printable(row.error))._asdict() for row in failed]
        parts = (
            (delivered, sql(_FORGET, numbers=list(delivered))),
            (freed, sql(_HOLD, numbers=list(freed), until=0.0)),
            (failed, sql(_FAIL, failed=json.dumps(rows))),
        )
        if statements := [statement for given, statement in parts if given]:
            await self._server.run(*statements)

    async def dead(self) -> list[OutboxRow]:
        """The dead letters, the oldest first."""
        return list(map(OutboxRow._make, await self._server.run(sql(_DEAD))))

    async def revive(self, numbers: Collection[int]) -> None:
        """Have dead letters delivered again, as if none had failed."""
        await self._server.run(sql(_REVIVE, numbers=list(numbers)))
