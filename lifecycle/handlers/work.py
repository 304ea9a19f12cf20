"""Handlers that turn events into work: `FlowHandler` starts a flow, and `PoolHandler` calls a function in a pool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Generator
    from typing import Self

    from lifecycle.events import Topical

__all__ = ["Callee", "FlowHandler", "Flowing", "PoolHandler", "Starter"]


class Flowing(Protocol):
    """A started flow, such as a `lifecycle.flows.Run`."""

    async def stored(self) -> Self:
        """Wait until the flow is stored."""
        ...

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result."""
        ...


class Starter(Protocol):
    """An object that starts flows, such as `lifecycle.flows.Flows`."""

    def start(self, flow: Any, /, *, id: str | None, **store: Any) -> Flowing:  # noqa: A002  # as in `Flows.start`
        """Start ``flow``. A repeated ``id`` refers to the same flow."""
        ...

    def asks(self, flow: Any, /) -> Collection[str]:
        """Return the names of the values that ``flow`` takes."""
        ...


class FlowHandler:
    """Starts ``flow`` with ``flows`` for each event, and returns the run when it is stored.

    From then on, the flow survives a crash, so the source may acknowledge the event. The handler does not wait for the
    end of the flow, but its caller can await the run. A flow that fails is stored as failed, and logged.

    An event with an ``id``, such as a webhook, starts a flow with that id. If the same event arrives again, after a
    crash or from the sender, it finds that flow, and continues it if it is unfinished. Each event without an id starts
    a new flow. To start two flows for one event, write a handler that gives them two ids.

    The flow gets the values that its tasks take by name and that no task provides. A value is a key of the event's
    ``data``, if that is a mapping, or a field of the event, or ``topic``. The value ``event`` is a mapping of all
    fields. Paths and times become text, and bytes are decoded as UTF-8. ``id`` is the id of the flow, which
    `current_task` contains.

    Raises:
        TypeError: if ``flows`` cannot start a flow, or ``flow`` is not a flow.
        FlowError: if the flow cannot run.
    """

    def __init__(self, flows: Starter, flow: Any) -> None:
        if not (callable(getattr(flows, "start", None)) and callable(getattr(flows, "asks", None))):
            raise TypeError(f"expected Flows, or another object with start() and asks(), got {flows!r}")
        self._flows = flows
        self._flow = flow
        self._names = frozenset(flows.asks(flow))

    def __repr__(self) -> str:
        return f"<FlowHandler of {self._flow!r}>"

    async def __call__(self, event: Topical) -> Flowing:
        """Start the flow.

        Raises:
            FlowError: for missing values, or values that cannot be stored.
            JournalError: if the store fails.
        """
        # If a repeated event differs from the first in a field such as the time, it still belongs to the same flow.
        start = getattr(self._flows, "repeat", self._flows.start)
        return await cast("Flowing", start(self._flow, id=_id(event), **self._values(event))).stored()

    def _values(self, event: Topical) -> dict[str, Any]:
        if not self._names:
            return {}
        fields = {name: _plain(value) for name, value in _as_data(event).items()}
        known: dict[str, Any] = {}
        if isinstance(fields.get("data"), Mapping):
            known |= fields["data"]
        known |= fields | {"event": fields}
        return {name: known[name] for name in self._names & known.keys() - {"id"}}


def _id(event: Topical) -> str | None:
    given = getattr(event, "id", None)
    # A header may hold invalid characters.
    return None if given is None or given == "" else str(given).encode(errors="backslashreplace").decode()


def _plain(value: Any) -> Any:
    """Return ``value`` in a form that every serializer of flows can store, if its type is supported here."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    return value


class Callee(Protocol):
    """An object that accepts calls by name, such as a `lifecycle.workers.pool.Pool`."""

    def call(self, function: str, event: dict[str, Any], /) -> Awaitable[Any]:
        """Call ``function`` with the event as its argument, and return the result."""
        ...


class PoolHandler:
    """Calls ``name`` in ``pool`` for each event, and waits for the result.

    The function gets a mapping of the event's fields and topic, with paths as text, which any codec can encode. Its
    result is the result of the handler. Its errors are raised, as are `PoolBusy` and `RemoteError`. If the handler is
    cancelled, the call is cancelled too. The ``concurrency`` of the route limits its simultaneous calls in the pool.

    Raises:
        TypeError: for a pool without ``call``, or a name that is not a string.
        ValueError: for an empty name.
    """

    def __init__(self, pool: Callee, name: str) -> None:
        if not callable(getattr(pool, "call", None)):
            raise TypeError(f"expected a Pool, or another object with call(name, event), got {pool!r}")
        if not isinstance(name, str):
            raise TypeError(
                f"a function's name must be a string, got {name!r}; give one that the pool's workers define"
            )
        if not name:
            raise ValueError("a function's name must not be empty; give one that the pool's workers define")
        self._pool = pool
        self._name = name

    async def __call__(self, event: Topical) -> Any:
        """Make the call."""
        return await self._pool.call(self._name, _as_data(event))


def _as_data(event: Topical) -> dict[str, Any]:
    """Return the fields and topic of ``event``, with paths as text, because only the pickle codec supports paths."""
    values = {name: _without_paths(getattr(event, name)) for name in _fields(event)}
    return values | {"topic": event.topic}


def _fields(event: object) -> list[str]:
    if is_dataclass(event):
        return [each.name for each in fields(event)]
    return [name for name in getattr(event, "__dict__", ()) if not name.startswith("_")]


def _without_paths(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_without_paths(key): _without_paths(each) for key, each in items}
    return value
