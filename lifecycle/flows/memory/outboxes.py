"""`MemoryOutbox`: what was sent, as long as the process lasts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lifecycle.flows.records import taken

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lifecycle.flows.records import FailedDelivery, OutboxRow

__all__ = ["MemoryOutbox"]


class MemoryOutbox:
    """An `OutboxStore` in a dictionary."""

    def __init__(self) -> None:
        # In the order of their numbers; and until when somebody has one.
        self._rows: dict[int, OutboxRow] = {}
        self._until: dict[int, float] = {}
        self._dead: dict[int, OutboxRow] = {}
        self._count = 0

    def add(self, rows: Sequence[OutboxRow]) -> None:
        """Keep what was sent."""
        for row in rows:
            self._count += 1
            self._rows[self._count] = row._replace(number=self._count)

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """The first that nobody has, ours until then."""
        free = (row for number, row in self._rows.items() if self._until.get(number, 0.0) <= now)
        rows = [taken(row, self._until.get(row.number, 0.0)) for row in islice(free, limit)]
        self._rows |= {row.number: row for row in rows}
        self._until |= {row.number: until for row in rows}
        return rows

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        """Have them until another time; until 0 they are anybody's."""
        self._until |= {number: until for number in numbers if number in self._rows}

    async def forget(self, numbers: Collection[int]) -> None:
        """They were delivered."""
        for number in numbers:
            self._rows.pop(number, None)
            self._until.pop(number, None)
            self._dead.pop(number, None)

    async def put_down(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        """Write the results of deliveries; those ``freed`` can be taken again at once."""
        await self.forget(delivered)
        await self.hold(freed, until=0.0)
        for number, failures, error, until in failed:
            row = self._rows.pop(number)._replace(failures=failures, error=error)
            if until is None:
                self._dead[number] = row
            else:
                self._rows[number], self._until[number] = row, until
        self._rows = dict(sorted(self._rows.items()))

    async def dead(self) -> list[OutboxRow]:
        """The dead letters, the oldest first."""
        return [self._dead[number] for number in sorted(self._dead)]

    async def revive(self, numbers: Collection[int]) -> None:
        """Have dead letters delivered again, as if none had failed."""
        for number in numbers:
            if (row := self._dead.pop(number, None)) is not None:
                self._rows[number], self._until[number] = row._replace(failures=0), 0.0
        self._rows = dict(sorted(self._rows.items()))
