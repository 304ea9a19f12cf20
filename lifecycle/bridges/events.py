"""Records for the events that bridges and leaders emit."""

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
    """An event from the bus: ``topic`` and ``data`` as the sender sent them, with the CloudEvents attributes.

    ``data`` is the JSON that the sender sent, decoded, or the sender's bytes. A bridge never sends such an event again.
    """

    #: The event's id, which is the same for every delivery on every machine.
    id: str = ""
    #: The sender: ``/host/group`` for a bridge.
    source: str = ""
    #: The name of the event's class in the sending process.
    type: str = ""
    #: The time of sending, as an aware datetime; None if the message has no time.
    time: datetime | None = None
    #: 1 plus the number of times that its handlers failed.
    attempt: int = 1
    #: Other message headers, with names in lower case, such as ``traceparent`` and the ``dead-reason`` of a dead
    #: letter.
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)


@dataclass(frozen=True, slots=True)
class LeaderEvent:
    """A gain or loss of leadership in this process; bridges never publish such events."""

    topics: ClassVar[str] = "leader/*/*"

    #: The name of the leadership.
    name: str
    #: True if this process gained the leadership, False if it lost the leadership.
    leading: bool
    #: The fencing token, higher than that of every earlier leader.
    token: int
    #: The reason for the loss.
    reason: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", f"leader/{self.name}/{'gained' if self.leading else 'lost'}")
