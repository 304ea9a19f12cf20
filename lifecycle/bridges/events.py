"""The events that a bridge and a leader emit, as records."""

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
    """An event that came from the bus: ``topic`` and ``data`` as they were sent, and what is known of its way.

    ``data`` is what JSON makes of the sender's, or the same bytes. A bridge never sends such an event out again.
    """

    #: The same for every delivery, on every machine.
    id: str = ""
    #: Who sent it: ``/host/group`` where it was a bridge.
    source: str = ""
    #: The name of the class that the event had there.
    type: str = ""
    #: When it was sent, aware; None where the sender did not say.
    time: datetime | None = None
    #: 1, and one more for each time that its handlers have failed.
    attempt: int = 1
    #: What else came with it, names in lower case: ``traceparent``, the ``dead-reason`` of a dead letter.
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)


@dataclass(frozen=True, slots=True)
class LeaderEvent:
    """This process leads from now on, or no longer; it is true here alone, and no bridge sends it out."""

    topics: ClassVar[str] = "leader/*/*"

    #: What is led.
    name: str
    #: Whether it was gained; else it is lost.
    leading: bool
    #: The fencing token: higher than that of every leader before.
    token: int
    #: Why it was lost.
    reason: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic", f"leader/{self.name}/{'gained' if self.leading else 'lost'}")
