"""Sharing topics and handlers between machines through NATS JetStream.

Add a `NatsBridge` to a router like any other source. It receives events that match ``subscribe`` from the bus, and
sends events that match ``publish`` to the bus. `Leader` elects one of several processes. ``connection`` contains the
client. ``subjects`` and ``cloudevents`` define the format that other programs must use.
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
