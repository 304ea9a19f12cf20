"""`context`: where the code that asks runs, for logs."""

from __future__ import annotations

from lifecycle import _context
from lifecycle.control.deliveries import current

__all__ = ["context"]


def context() -> dict[str, object]:
    """Where this is called: ``event_id``, ``topic``, ``worker``, ``flow`` and ``traceparent``, as far as there are."""
    found: dict[str, object] = {}
    delivery = current.get()
    if delivery is not None:
        found["event_id"] = delivery.id
        found["topic"] = delivery.event.topic
    for name, variable in _VARIABLES:
        if value := variable.get():
            found[name] = value
    return found


_VARIABLES = (("worker", _context.worker), ("flow", _context.flow), ("traceparent", _context.traceparent))
