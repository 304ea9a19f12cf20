"""`FlowHandler`: an event starts a flow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from lifecycle.handlers._data import as_data

if TYPE_CHECKING:
    from collections.abc import Collection, Generator
    from typing import Self

    from lifecycle.events import Topical

__all__ = ["FlowHandler", "Flowing", "Starter"]


class Flowing(Protocol):
    """A flow that was started, such as a `lifecycle.flows.Run`."""

    async def stored(self) -> Self:
        """Wait until it is stored."""
        ...

    def __await__(self) -> Generator[Any, None, Any]:
        """The outcome."""
        ...


class Starter(Protocol):
    """What starts flows, such as `lifecycle.flows.Flows`."""

    def start(self, flow: Any, /, *, id: str | None, **store: Any) -> Flowing:  # noqa: A002  # as flows have it
        """Start ``flow``; the same ``id`` again is the same one."""
        ...

    def asks(self, flow: Any, /) -> Collection[str]:
        """What ``flow`` has to be given, or can be, by name."""
        ...


class FlowHandler:
    """Starts ``flow`` with ``flows`` for each event, and returns the run as soon as it is stored.

    So what has accepted the event may forget it then: from there on the flow survives a crash. Its end is not waited
    for. Who calls the handler can await the run; a flow that fails is kept as such, and logged.

    An event that has an ``id``, as a webhook has, starts one flow, whose id it is: the same event again, after a crash
    or because its sender repeats it, finds that flow, and goes on with it if it is unfinished. One without an id
    cannot be told from the next of its kind: each starts a flow of its own. One event for two flows needs two ids,
    and so a handler that says them.

    The flow is given what its tasks ask for by name and none of them provides: a key of the event's ``data``, if that
    is a mapping, or a field of the event, or ``topic``; and under the name ``event`` all of its fields. Paths and
    times become text, and so do bytes, which are read as UTF-8. (``id`` is that of the flow: `current_task` has it.)

    Raises:
        TypeError: for flows that cannot start any, and for a flow that is none.
        FlowError: for a flow that cannot be carried out.
    """

    def __init__(self, flows: Starter, flow: Any) -> None:
        if not (callable(getattr(flows, "start", None)) and callable(getattr(flows, "asks", None))):
            raise TypeError(f"{flows!r} cannot start a flow; give Flows, or something else with start and asks")
        self._flows = flows
        self._flow = flow
        self._asked = frozenset(flows.asks(flow))

    def __repr__(self) -> str:
        return f"<FlowHandler of {self._flow!r}>"

    async def __call__(self, event: Topical) -> Flowing:
        """Start the flow.

        Raises:
            FlowError: for values that cannot be kept, or are not enough; `JournalError` where nothing can be stored.
        """
        # An event that comes again is the same, though a field of it may differ, such as the time.
        start = getattr(self._flows, "repeat", self._flows.start)
        return await cast("Flowing", start(self._flow, id=_id(event), **self._values(event))).stored()

    def _values(self, event: Topical) -> dict[str, Any]:
        if not self._asked:
            return {}
        fields = {name: _plain(value) for name, value in as_data(event).items()}
        known: dict[str, Any] = {}
        if isinstance(fields.get("data"), Mapping):
            known |= fields["data"]
        known |= fields | {"event": fields}
        return {name: known[name] for name in self._asked & known.keys() - {"id"}}


def _id(event: Topical) -> str | None:
    given = getattr(event, "id", None)
    # A header may hold bytes that are no characters.
    return None if given is None or given == "" else str(given).encode(errors="backslashreplace").decode()


def _plain(value: Any) -> Any:
    """``value`` as any codec of flows can keep it, if that is known here."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    return value
