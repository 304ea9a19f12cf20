"""`PostgresOutbox`: what was sent, beside the flows that sent it; several machines may deliver it."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from lifecycle.flows.postgres.connectors import sql
from lifecycle.flows.records import OutboxRow

if TYPE_CHECKING:
    from collections.abc import Collection

    from lifecycle.flows.postgres.servers import Server

__all__ = ["PostgresOutbox"]

_TAKE = """
WITH free AS (
    SELECT number FROM lifecycle_outbox WHERE until <= %(now)s ORDER BY number LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) UPDATE lifecycle_outbox o SET until = %(until)s FROM free WHERE o.number = free.number
RETURNING o.id, o.topic, o.data, o.number
"""
# Where the answer was lost, what came first is to go first all the same.
_TAKEN = "SELECT id, topic, data, number FROM lifecycle_outbox WHERE until = %(until)s"
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
