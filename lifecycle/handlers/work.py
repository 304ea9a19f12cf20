"""Handlers that turn events into work: `FlowHandler` starts flows, and `PoolHandler` calls functions in a pool."""

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
        """Start ``flow``. If a flow with this ``id`` already exists, return that flow."""
        ...

    def asks(self, flow: Any, /) -> Collection[str]:
        """Return the names of the values that ``flow`` needs."""
        ...


class FlowHandler:
    """Starts ``flow`` with ``flows`` for each event, and returns the run once it is stored.

    Once it is stored, the flow survives a crash, so the source may acknowledge the event. The handler does not wait for
    the flow to finish, but its caller can await the run. If a flow fails, this is logged, and the flow is stored as
    failed.

    An event with an ``id``, such as a webhook, starts a flow with that id. If the same event arrives again, after a
    crash or because it was resent, the handler finds that flow and continues it if it has not finished. Events without
    an id always start a new flow. To start two flows for one event, write a handler that starts them with different
    ids.

    The flow receives the values that its tasks require but no task provides. Each is looked up by name: as a key in the
    event's ``data`` (if that is a mapping), as a field of the event, or as ``topic``. The value ``event`` is a mapping
    of all fields. Paths and times are converted to text, and bytes are decoded as UTF-8. ``id`` is the flow's id, which
    tasks can get from `current_task`.

    Raises:
        TypeError: if ``flows`` cannot start flows, or if ``flow`` is not a flow.
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
            FlowError: if values are missing or cannot be stored.
            JournalError: if the store fails.
        """
        # A repeated event may differ from the first event in a field such as the time, but it still belongs to the same
        # flow.
        start = getattr(self._flows, "_repeat", self._flows.start)
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
    # A header may contain invalid characters.
    return None if given is None or given == "" else str(given).encode(errors="backslashreplace").decode()


def _plain(value: Any) -> Any:
    """Convert ``value`` to a form that every flow serializer can store, if its type is supported here."""
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
        """Call ``function`` with the event as its argument, and return its result."""
        ...


class PoolHandler:
    """Calls ``name`` in ``pool`` for each event, and waits for the result.

    The function receives a mapping of the event's fields and topic, with paths as text, which any codec can encode. The
    handler returns the function's result, and raises its errors as well as `PoolBusy` and `RemoteError`. If the handler
    is cancelled, the call is also cancelled. The route's ``concurrency`` limits the number of simultaneous calls.

    Raises:
        TypeError: if ``pool`` has no ``call``, or if ``name`` is not a string.
        ValueError: if ``name`` is empty.
    """

    def __init__(self, pool: Callee, name: str) -> None:
        if not callable(getattr(pool, "call", None)):
            raise TypeError(f"expected a Pool, or another object with call(name, event), got {pool!r}")
        if not isinstance(name, str):
            raise TypeError(f"a function's name must be a string, got {name!r}; use one that the pool's workers define")
        if not name:
            raise ValueError("a function's name must not be empty; use one that the pool's workers define")
        self._pool = pool
        self._name = name

    async def __call__(self, event: Topical) -> Any:
        """Call the function with ``event``."""
        return await self._pool.call(self._name, _as_data(event))


def _as_data(event: Topical) -> dict[str, Any]:
    """Return the fields and topic of ``event``.

    Paths are converted to text, since only the pickle codec supports them.
    """
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
