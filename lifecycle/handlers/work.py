"""Handlers that pass an event on as work: `FlowHandler` starts a flow, `PoolHandler` makes a call into a pool."""

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
    """A flow that was started, such as a `lifecycle.flows.Run`."""

    async def stored(self) -> Self:
        """Wait until it is stored."""
        ...

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for its result."""
        ...


class Starter(Protocol):
    """An object that starts flows, such as `lifecycle.flows.Flows`."""

    def start(self, flow: Any, /, *, id: str | None, **store: Any) -> Flowing:  # noqa: A002  # as flows have it
        """Start ``flow``; the same ``id`` again is the same flow."""
        ...

    def asks(self, flow: Any, /) -> Collection[str]:
        """Return the names of the values that ``flow`` takes."""
        ...


class FlowHandler:
    """Starts ``flow`` with ``flows`` for each event, and returns the run as soon as it is stored.

    From then on the flow survives a crash, so the source of the event may forget it. The handler does not wait for the
    end of the flow, but its caller can await the run. A flow that fails is stored as failed, and logged.

    An event with an ``id``, such as a webhook, starts one flow with that id. The same event again, after a crash or
    because its sender repeats it, finds that flow, and continues it if it is unfinished. Each event without an id
    starts a flow of its own. One event for two flows needs two ids, and so a custom handler that sets them.

    The flow gets the values that its tasks take by name and none of them provides: a key of the event's ``data``, if
    that is a mapping, or a field of the event, or ``topic``; and under the name ``event`` all of its fields. Paths and
    times become text, and so do bytes, which are decoded as UTF-8. (``id`` is that of the flow: `current_task` has it.)

    Raises:
        TypeError: for flows that cannot start a flow, and for a flow of another type.
        FlowError: for a flow that cannot run.
    """

    def __init__(self, flows: Starter, flow: Any) -> None:
        if not (callable(getattr(flows, "start", None)) and callable(getattr(flows, "asks", None))):
            raise TypeError(f"{flows!r} cannot start a flow; give Flows, or something else with start and asks")
        self._flows = flows
        self._flow = flow
        self._names = frozenset(flows.asks(flow))

    def __repr__(self) -> str:
        return f"<FlowHandler of {self._flow!r}>"

    async def __call__(self, event: Topical) -> Flowing:
        """Start the flow.

        Raises:
            FlowError: for values that cannot be stored, or are missing; `JournalError` when the store fails.
        """
        # An event that comes again is the same, though a field of it may differ, such as the time.
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
    """Return ``value`` in a form that every serializer of flows can store, if its type is known here."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    return value


class Callee(Protocol):
    """An object that takes calls by name, such as a `lifecycle.workers.pool.Pool`."""

    def call(self, function: str, event: dict[str, Any], /) -> Awaitable[Any]:
        """Call ``function`` with the event as data, and return its result."""
        ...


class PoolHandler:
    """Calls ``name`` in ``pool`` for each event, and waits for the result.

    The function gets the event as data, for any codec of the pool: a mapping of its fields and its topic, with paths as
    text. Its result is the handler's result, and its errors are raised, also `PoolBusy` and `RemoteError`. A
    cancelled handler cancels the call. The route's ``concurrency`` limits its calls in the pool at a time.

    Raises:
        TypeError: for a pool that has no ``call``, or a name that is not a string.
        ValueError: for an empty name.
    """

    def __init__(self, pool: Callee, name: str) -> None:
        if not callable(getattr(pool, "call", None)):
            raise TypeError(f"{pool!r} cannot be called into; give a Pool, or something else with call(name, event)")
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
    """Return the fields of ``event`` and its topic by name, with paths as text: no codec but pickle's has them."""
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
