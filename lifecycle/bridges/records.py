"""What comes from another machine, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["BusEvent"]

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
    #: 1, and more where it is delivered again.
    attempt: int = 1
    #: What else came with it, names in lower case: ``traceparent``, the ``dead-reason`` of a dead letter.
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)
