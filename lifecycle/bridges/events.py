"""Records of the events that a bridge and a leader emit."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["BusEvent", "LeaderEvent"]

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BusEvent(Event):
    """An event from the bus: ``topic`` and ``data`` as they were sent, with its CloudEvents attributes.

    ``data`` is the decoded JSON of the sender's data, or the same bytes. A bridge never sends such an event again.
    """

    #: The same for every delivery, on every machine.
    id: str = ""
    #: The sender: ``/host/group`` for a bridge.
    source: str = ""
    #: The name of the event's class at the sender.
    type: str = ""
    #: The time of sending, aware; None if the message has none.
    time: datetime | None = None
    #: 1 plus the number of failures of its handlers.
    attempt: int = 1
    #: Other headers of the message, with names in lower case, such as ``traceparent`` and the ``dead-reason`` of a dead
    #: letter.
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)


@dataclass(frozen=True, slots=True)
class LeaderEvent:
    """A gain or loss of leadership by this process; such events are never published."""

    topics: ClassVar[str] = "leader/*/*"

    #: The name of the leadership.
    name: str
    #: True if it was gained, False if it was lost.
    leading: bool
    #: The fencing token: higher than that of every earlier leader.
    token: int
    #: The reason for the loss.
    reason: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", f"leader/{self.name}/{'gained' if self.leading else 'lost'}")
