"""`send`: what a task tells others, kept together with what became of the task, and told after that."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from lifecycle.errors import FlowError, InvalidTopic
from lifecycle.flows.records import OutboxRow
from lifecycle.flows.serializers import keep
from lifecycle.flows.stores import is_storable

if TYPE_CHECKING:
    from lifecycle.flows.serializers import Codec

__all__ = ["Sending", "send"]

#: Characters; the same as for what a router takes.
_LONGEST = 1024


class Sending:
    """What the function that has ``key`` sends while it is at work."""

    def __init__(self, key: str, codec: Codec, rows: list[OutboxRow]) -> None:
        self._key, self._codec, self._rows = key, codec, rows
        # Whether the function has come to its end.
        self._over = False

    def __enter__(self) -> None:
        _SENDING.set(self)

    def __exit__(self, *_: object) -> None:
        self._over = True

    def add(self, topic: str, data: Any) -> str:
        """Keep one more; its id."""
        if self._over:
            raise FlowError(f"send({topic!r}) came after {self._key} had ended; send before the task returns")
        row = OutboxRow(f"{self._key}/{len(self._rows) + 1}", topic, keep(self._codec, data)[0])
        self._rows.append(row)
        return row.id


_SENDING: ContextVar[Sending] = ContextVar("lifecycle_flow_sending")


def send(topic: str, data: Any = None) -> str:
    """Send an event from a task, or from what undoes it; who delivers it is `Flows.outbox`.

    It is kept in the transaction that keeps the task's success, so that it goes out if the task is done, and only then:
    what fails, or is interrupted, has sent nothing. It may be delivered more than once, and then has the same id. The
    id is made of the id of the flow, the name of the task, how often the task was started afresh, and the number of
    the event in it.

    Returns:
        The id.

    Raises:
        LookupError: outside of a task.
        InvalidTopic: for a topic that is empty, too long, or no text.
        FlowError: for data that cannot be kept, and once the task has ended.
    """
    try:
        sending = _SENDING.get()
    except LookupError:
        raise LookupError("no task of a flow runs here; call send() in a task, or in what it calls") from None
    if not _is_topic(topic):
        raise InvalidTopic(f"send({topic!r}) has no topic that a router takes; give 1 to {_LONGEST} characters")
    return sending.add(topic, data)


def _is_topic(topic: object) -> bool:
    return isinstance(topic, str) and 0 < len(topic) <= _LONGEST and is_storable(topic)
