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
    """An event from the bus, with the ``topic`` and ``data`` from the sender and the CloudEvents attributes.

    ``data`` is decoded JSON, or bytes if the sender sent bytes. Bridges never send these events again.
    """

    #: The event's id, which is the same for all deliveries on all machines.
    id: str = ""
    #: The sender, which is ``/host/group`` if the sender is a bridge.
    source: str = ""
    #: The name of the event's class in the sending process.
    type: str = ""
    #: When the event was sent, as an aware datetime, or None if the message has no time.
    time: datetime | None = None
    #: 1 plus the number of times that the event's handlers have failed.
    attempt: int = 1
    #: The other message headers, such as ``traceparent`` or a dead letter's ``dead-reason``. Their names are in lower
    #: case.
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)


@dataclass(frozen=True, slots=True)
class LeaderEvent:
    """This process has gained or lost the leadership. Bridges never publish these events."""

    topics: ClassVar[str] = "leader/*/*"

    #: The name of the leadership.
    name: str
    #: True if this process gained the leadership, False if it lost it.
    leading: bool
    #: The fencing token, which is higher than that of any earlier leader.
    token: int
    #: Why the leadership was lost.
    reason: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", f"leader/{self.name}/{'gained' if self.leading else 'lost'}")
