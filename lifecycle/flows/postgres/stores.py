"""`PostgresStore`: flows on a PostgreSQL server, which workers on many machines share."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from lifecycle.flows.postgres.connectors import sql
from lifecycle.flows.postgres.flows import CHANGE, FLOW, SNAPSHOT, begin, change_of, snapshot_of, write
from lifecycle.flows.postgres.jobs import PostgresJobs
from lifecycle.flows.postgres.outboxes import PostgresOutbox
from lifecycle.flows.postgres.owners import PostgresOwners
from lifecycle.flows.postgres.servers import Server
from lifecycle.flows.postgres.tables import is_made, prepare
from lifecycle.flows.records import FlowRow
from lifecycle.flows.stores import lost, unknown

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.owners import Owners
    from lifecycle.flows.records import Batch, Change, Snapshot

__all__ = ["PostgresStore"]

_LOAD = f"SELECT {SNAPSHOT} FROM lifecycle_flows f WHERE id = %(id)s"  # noqa: S608  # our own columns
# The tasks are read by a statement of their own: the first may wait for a commit of the owner before, and would read
# the tasks as they were before that commit.
_TAKE = (
    "UPDATE lifecycle_flows SET epoch = epoch + 1, owner = %(owner)s, stamp = %(stamp)s"
    " WHERE id = %(id)s AND epoch = %(seen)s"
)
_TAKEN = f"{_LOAD} AND epoch = %(seen)s + 1 AND owner = %(owner)s AND stamp = %(stamp)s"
_FLOWS = f"SELECT {FLOW} FROM lifecycle_flows"  # noqa: S608  # the same
_CHANGES = (
    f"SELECT {CHANGE} FROM lifecycle_flow_changes WHERE flow = %(id)s AND seq > %(after)s"  # noqa: S608  # the same
    " ORDER BY seq LIMIT %(limit)s"
)


class PostgresStore:
    """A `Store` on the PostgreSQL server at ``url``, in the schema that its search_path begins with.

    What is stored survives the end of this process, and of the server as far as its settings say: by default also a
    power cut. A server that is away is waited for, half a minute; one that restarts loses nothing.

    Needs the extra ``postgres`` and PostgreSQL 15 or newer, and a connection that is its own: a pooler between must
    pool sessions, not transactions.

    Args:
        url: ``postgresql://user@host:port/database``, with all that libpq knows, such as ``?sslmode=verify-full``.
        connections: That ask at the same time; one more listens.
    """

    def __init__(self, url: str, *, connections: int = 4) -> None:
        self._server = Server(url, connections)
        self._owners = PostgresOwners(self._server)
        # Rises with each write, also from one life of this process to the next.
        self._stamps = itertools.count(time.time_ns())

    def __repr__(self) -> str:
        return f"<PostgresStore {self._server!r}>"

    async def __aenter__(self) -> Self:
        """Connect, and make the tables if need be.

        Raises:
            JournalError: where the server cannot be reached, is too old, or has other tables under our names.
        """
        await self._server.open(prepare)
        try:
            await self._server.read_clock()
            await self._owners.appear()
        except BaseException:
            await self._server.close()
            raise
        return self

    async def holds_flows(self) -> bool:
        """Whether it was entered before, which makes its tables; to be asked before it is entered now.

        Raises:
            JournalError: as entering it does.
        """
        found: list[bool] = []
        await self._server.open(lambda db: found.append(is_made(db)))
        await self._server.close()
        return found == [True]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect, after what was handed in is written."""
        await self._owners.vanish()
        await self._server.close()

    def time(self) -> float:
        """Seconds since the epoch; all machines go by the same clock, and a step of the server's does not move it."""
        return self._server.time()

    async def create(self, flow: FlowRow) -> bool:
        """Keep a flow that is new; False where its id is taken, and then nothing is written."""
        stamp = next(self._stamps)
        done = sql(
            "SELECT 1 FROM lifecycle_flows WHERE id = %(id)s AND owner = %(owner)s AND stamp = %(stamp)s",
            id=flow.id,
            owner=flow.owner,
            stamp=stamp,
        )
        return bool(await self._server.run(begin(flow, stamp), done=done))

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # what it is
        """What is kept of a flow.

        Raises:
            FlowError: where there is none of that id.
        """
        for row in await self._server.run(sql(_LOAD, id=id)):
            return snapshot_of(row)
        raise unknown(id)

    async def take(self, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
        """Take a flow whose epoch is ``seen``: it is one more from now on.

        Raises:
            ClaimLost: where its epoch is another; somebody else was quicker.
            FlowError: where there is none of that id.
        """
        values = {"id": id, "owner": owner, "seen": seen, "stamp": next(self._stamps)}
        taken = sql(_TAKEN, **values)
        for row in await self._server.run(sql(_TAKE, **values), taken, done=taken):
            return snapshot_of(row)
        await self.load(id)
        raise lost(id, seen)

    async def commit(self, batch: Batch) -> None:
        """Write what one phase of the engine changed, all of it or nothing.

        Raises:
            ClaimLost: where the flow was taken by somebody else since.
            JournalError: where the server is away for long, or cannot write.
        """
        stamp = next(self._stamps)
        done = sql(
            "SELECT 1 FROM lifecycle_flows WHERE id = %(flow)s AND epoch = %(epoch)s AND stamp = %(stamp)s",
            flow=batch.flow,
            epoch=batch.epoch,
            stamp=stamp,
        )
        if not await self._server.run(write(batch, stamp), done=done):
            raise lost(batch.flow, batch.epoch)

    async def flows(self, *, name: str | None = None, states: Collection[str] = ()) -> list[FlowRow]:
        """The flows of that name and in one of those states, the first first; without them, all."""
        # Only what is given is compared, so that the index on both serves.
        wanted = [] if name is None else ["name = %(name)s"]
        if states:
            wanted.append("state = ANY (%(states)s)")
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        text = f"{_FLOWS} {where} ORDER BY number"
        rows = await self._server.run(sql(text, name=name, states=[str(state) for state in states]))
        return [FlowRow._make(row) for row in rows]

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number; the results are only text."""
        rows = await self._server.run(sql(_CHANGES, id=id, after=after, limit=limit))
        return [change_of(row) for row in rows]

    async def delete(self, id: str) -> bool:  # noqa: A002  # what it is
        """Forget a flow; False where there is none."""
        gone = await self._server.run(
            # A commit that is under way comes first, so that nothing of it is left.
            sql("SELECT 1 FROM lifecycle_flows WHERE id = %(id)s FOR UPDATE", id=id),
            sql("DELETE FROM lifecycle_flow_atoms WHERE flow = %(id)s", id=id),
            sql("DELETE FROM lifecycle_flow_changes WHERE flow = %(id)s", id=id),
            sql("DELETE FROM lifecycle_flows WHERE id = %(id)s RETURNING 1", id=id),
        )
        return bool(gone)

    def owners(self) -> PostgresOwners:
        """Who has these tables open, on whichever machine."""
        return self._owners

    def jobs(self, owners: Owners) -> PostgresJobs:  # noqa: ARG002  # of who is gone the leases tell
        """The jobs that are kept beside the flows."""
        return PostgresJobs(self._server, self._stamps)

    def outbox(self) -> PostgresOutbox:
        """What tasks have sent and nobody has delivered yet."""
        return PostgresOutbox(self._server)
