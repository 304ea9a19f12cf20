"""`PoolHandler`: an event becomes a call into a pool of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.handlers._data import as_data

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lifecycle.events import Topical

__all__ = ["Callee", "PoolHandler"]


class Callee(Protocol):
    """What takes calls by name, such as a `lifecycle.workers.pool.Pool`."""

    def call(self, function: str, event: dict[str, Any], /) -> Awaitable[Any]:
        """Call ``function`` with the event as data, and wait for what it returns."""
        ...


class PoolHandler:
    """Calls ``name`` in ``pool`` for each event, and waits for the result.

    The function gets the event as data: a mapping of its fields and its topic, with paths as text, whatever the codec
    of the pool is. What it returns is the handler's result; what the call raises comes out, `PoolBusy` and
    `RemoteError` among it. A cancelled handler cancels the call. The route's ``concurrency`` says how many calls it
    has in the pool at a time.

    Raises:
        TypeError: for a pool that has no ``call``, or a name that is no text.
        ValueError: for an empty name.
    """

    def __init__(self, pool: Callee, name: str) -> None:
        if not callable(getattr(pool, "call", None)):
            raise TypeError(f"{pool!r} cannot be called into; give a Pool, or something else with call(name, event)")
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name of a function; give the one that the pool's members know")
        if not name:
            raise ValueError("'' is no name of a function; give the one that the pool's members know")
        self._pool = pool
        self._name = name

    async def __call__(self, event: Topical) -> Any:
        """Make the call."""
        return await self._pool.call(self._name, as_data(event))
