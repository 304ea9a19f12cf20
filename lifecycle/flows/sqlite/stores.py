"""`SQLiteStore`: flows in one SQLite file, written by the journal's thread, a phase of an engine in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lifecycle.flows.owners import Owners
from lifecycle.flows.sqlite import flows
from lifecycle.flows.sqlite.jobs import JOB_TABLES, SQLiteJobs
from lifecycle.flows.sqlite.outboxes import OUTBOX_TABLES, SQLiteOutbox
from lifecycle.journal import Journal

if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.records import Batch, Change, FlowRow, Snapshot
    from lifecycle.journal import Schema

__all__ = ["SQLiteStore"]


class SQLiteStore:
    """A `Store` in the file ``path``, which is made if need be, and may hold other things of this library.

    A process that is killed loses nothing. A power cut may take the last transactions, and leaves an older state that
    is whole; with ``durable=True`` it takes none, and each phase of a flow waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = False) -> None:
        #: Where it is written; open while the store is entered.
        self.journal: Final = Journal(path, flows.FLOW_TABLES, JOB_TABLES, OUTBOX_TABLES, *schemas, durable=durable)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.journal.path}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: when it cannot be opened or written, is no database, or is of a newer version.
        """
        await self.journal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file, after what was handed in is written."""
        await self.journal.__aexit__(kind, error, traceback)

    async def create(self, flow: FlowRow) -> bool:
        """Keep a flow that is new; False where its id is taken, and then nothing is written."""
        return await self.journal.run(lambda db: flows.begin(db, flow))

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # what it is
        """What is kept of a flow.

        Raises:
            FlowError: where there is none of that id.
        """
        return await self.journal.read(lambda db: flows.snapshot(db, id))

    async def take(self, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
        """Take a flow whose epoch is ``seen``: it is one more from now on.

        Raises:
            ClaimLost: where its epoch is another; somebody else was quicker.
            FlowError: where there is none of that id.
        """
        return await self.journal.run(lambda db: flows.take(db, id, owner, seen=seen))

    async def commit(self, batch: Batch) -> None:
        """Write what one phase of the engine changed, all of it or nothing.

        Raises:
            ClaimLost: where the flow was taken by somebody else since.
            JournalError: when the file is full, locked, damaged or not to be written.
        """
        await self.journal.run(lambda db: flows.write(db, batch))

    async def flows(self, *, name: str | None = None, states: Collection[str] = ()) -> list[FlowRow]:
        """The flows of that name and in one of those states, the first first; without them, all."""
        return await self.journal.read(lambda db: flows.find(db, name, states))

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number; the results are only text."""
        return await self.journal.read(lambda db: flows.changes(db, id, after=after, limit=limit))

    async def delete(self, id: str) -> bool:  # noqa: A002  # what it is
        """Forget a flow; False where there is none."""
        return await self.journal.run(lambda db: flows.forget(db, id))

    def owners(self) -> Owners:
        """Who has this file open: they meet in a directory beside it."""
        path = self.journal.path
        return Owners(None if path == ":memory:" else f"{path}-owners")

    def time(self) -> float:
        """Seconds since the epoch; setting the system's clock does not move them."""
        return self.journal.time()

    def outbox(self) -> SQLiteOutbox:
        """What tasks have sent and nobody has delivered yet."""
        return SQLiteOutbox(self.journal)

    def jobs(self, owners: Owners) -> SQLiteJobs:
        """The jobs that are kept beside the flows; ``owners`` know who of those who claimed them lives."""
        return SQLiteJobs(self.journal, owners)
