"""`Store`: what keeps flows, and `OutboxStore`, what their tasks have sent; of jobs see `jobs.stores`.

Every method is one transaction; what it is given and gives is rows of text.

A flow belongs to who has taken it last: `Store.take` raises its epoch, and whoever writes with an older one is told
so by `ClaimLost` and has written nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import ClaimLost, FlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.jobs.stores import JobStore
    from lifecycle.flows.owners import Owners
    from lifecycle.flows.records import Batch, Change, FailedDelivery, FlowRow, OutboxRow, Snapshot

__all__ = ["OutboxStore", "Store", "clock_of", "id_for", "is_storable", "lost", "storable", "store_at", "unknown"]


class Store(Protocol):
    """An async context manager; outside of it nothing can be asked."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def create(self, flow: FlowRow) -> bool:
        """Keep a flow that is new; False where its id is taken, and then nothing is written."""
        ...

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # what it is
        """What is kept of a flow.

        Raises:
            FlowError: where there is none of that id.
        """
        ...

    async def take(self, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
        """Take a flow whose epoch is ``seen``: it is one more from now on.

        Raises:
            ClaimLost: where its epoch is another; somebody else was quicker.
            FlowError: where there is none of that id.
        """
        ...

    async def commit(self, batch: Batch) -> None:
        """Write what one phase of the engine changed, all of it or nothing.

        Raises:
            ClaimLost: where the flow was taken by somebody else since.
        """
        ...

    async def flows(self, *, name: str | None = None, states: Collection[str] = ()) -> list[FlowRow]:
        """The flows of that name and in one of those states, the first first; without them, all."""
        ...

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number; the results are only text."""
        ...

    async def delete(self, id: str) -> bool:  # noqa: A002  # what it is
        """Forget a flow; False where there is none."""
        ...

    def owners(self) -> Owners:
        """Who has this store open."""
        ...

    def time(self) -> float:
        """Seconds since the epoch, by one clock for all that have this store open; no step of a clock moves it."""
        ...

    def outbox(self) -> OutboxStore:
        """What tasks have sent and nobody has delivered yet."""
        ...

    def jobs(self, owners: Owners) -> JobStore:
        """The jobs that are kept beside the flows; ``owners`` know who of those who claimed them lives."""
        ...


class OutboxStore(Protocol):
    """Events that wait to be delivered, the oldest first. Every method is one transaction."""

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """The first that nobody has, ours until then. One whose lease ran out has a failure more, and says so."""
        ...

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        """Have them until another time; until 0 they are anybody's."""
        ...

    async def forget(self, numbers: Collection[int]) -> None:
        """They were delivered."""
        ...

    async def put_down(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        """Write the results of deliveries in one transaction; those ``freed`` can be taken again at once."""
        ...

    async def dead(self) -> list[OutboxRow]:
        """The dead letters, the oldest first."""
        ...

    async def revive(self, numbers: Collection[int]) -> None:
        """Have dead letters delivered again, as if none had failed."""
        ...


#: Seconds by which the clocks of a loop and of the system differ if the loop has one of its own.
_APART = 5.0


def clock_of(store: Store) -> Callable[[], float]:
    """What tells the time in the running loop: one with a time of its own, as in tests, is believed, else ``store``."""
    loop = asyncio.get_running_loop()
    return store.time if abs(loop.time() - time.monotonic()) < _APART else loop.time


def id_for(given: str | None) -> str:
    """The id that was given, or one that nobody has.

    Raises:
        TypeError: for an id that is not a string.
        FlowError: for a string with half a surrogate, which no store can keep.
    """
    if given is not None and not isinstance(given, str):
        raise TypeError(f"id={given!r} is no text; give str(…) of it")
    if given is not None and not is_storable(given):
        raise FlowError(
            f"a store cannot keep a text with NUL or half a surrogate in it, such as id={given!r}; escape it"
        )
    return given or os.urandom(16).hex()


def is_storable(text: str) -> bool:
    """Whether a store can keep ``text``: it has no half of a surrogate, as names of files that are not UTF-8 have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """The words of an error as a store can keep them; half a surrogate is escaped."""
    return text.encode(errors="backslashreplace").decode()


def unknown(id: str) -> FlowError:  # noqa: A002  # what it is
    """The error for an id that nothing is kept under."""
    return FlowError(f"there is no flow {id!r} here; give the id that it was started with")


def lost(id: str, epoch: int) -> ClaimLost:  # noqa: A002  # what it is
    """The error for who has lost a flow."""
    return ClaimLost(
        f"flow {id!r} was taken by somebody else after this one took it (epoch {epoch}); what it still wanted to write "
        "is refused"
    )


def store_at(path: str | os.PathLike[str] | None, *, durable: bool) -> Store:
    """The store for what `Flows` is given: a file, a server, or nothing, which is memory.

    Raises:
        ValueError: for a URL of something else.
    """
    if path is None:
        from lifecycle.flows.memory.stores import MemoryStore

        return MemoryStore()
    where = str(os.fspath(path))
    if where.startswith(("postgresql://", "postgres://")):
        from lifecycle.flows.postgres.stores import PostgresStore

        return PostgresStore(where)
    if "://" in where:
        kind = where.partition("://")[0]
        raise ValueError(f"Flows names a kind of store that is not known, {kind}://; give postgresql://… or a file")
    from lifecycle.flows.sqlite.stores import SQLiteStore

    return SQLiteStore(path, durable=durable)
