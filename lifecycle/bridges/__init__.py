"""PastAttempts one machine: the same topics and handlers on several, with NATS JetStream between them.

`NatsBridge` is added to a router like any other source: what it subscribes to comes from the bus, what it publishes
goes there. `Leader` tells one of several processes that it is the one. ``links`` is how one connects; ``subjects`` and
``codec`` are what others would have to speak to join in.
"""

from lifecycle.bridges.bridge import BridgeState, NatsBridge
from lifecycle.bridges.cloudevents import from_json, to_json
from lifecycle.bridges.connection import NatsServer
from lifecycle.bridges.events import BusEvent, LeaderEvent
from lifecycle.bridges.leader import Leader, LeaderState
from lifecycle.errors import BridgeError, NotLeader, NotPublished, UnfitServer, Unpublishable

__all__ = [
    "BridgeError",
    "BridgeState",
    "BusEvent",
    "Leader",
    "LeaderEvent",
    "LeaderState",
    "NatsBridge",
    "NatsServer",
    "NotLeader",
    "NotPublished",
    "UnfitServer",
    "Unpublishable",
    "from_json",
    "to_json",
]
