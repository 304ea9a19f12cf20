"""The interface of events, `Event`, and the events without data. Every router uses them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any, Protocol

__all__ = [
    "ClearLineEvent",
    "EndOfInputEvent",
    "Event",
    "InterruptEvent",
    "ReloadEvent",
    "ResumeEvent",
    "SuspendEvent",
    "TerminateEvent",
    "Topical",
    "topics_of",
]


class Topical(Protocol):
    """An object with a topic, which consists of words separated by slashes. A topic is never treated as a pattern."""

    @property
    def topic(self) -> str:
        """The subject of the event. It alone determines which handler receives the event."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """An event: a topic, and data of any type."""

    topic: str
    data: Any = None


def topics_of(kind: type[Any]) -> str:
    """Return the pattern that matches the topics of all ``kind`` events.

    Raises:
        TypeError: if the class does not define the topics of its events.
    """
    declared = getattr(kind, "topics", None)
    if isinstance(declared, str):
        return declared
    defaults = {each.name: each.default for each in fields(kind)} if is_dataclass(kind) else {}
    for topic in (defaults.get("topic"), getattr(kind, "topic", None)):
        if isinstance(topic, str):
            return topic
    raise TypeError(
        f"{kind.__qualname__} does not define the topics of its events; "
        'add a class attribute such as topics = "mail/*", or register a pattern instead of the class'
    )


@dataclass(frozen=True, slots=True)
class _Word:
    """An event without data. All events of the same class are equal."""

    # Creating a dataclass is slow, so seven classes share this one.


def _refuse(_self: object, name: str, _value: object = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


# A frozen dataclass only rejects assignments to its own instances, not to those of subclasses.
setattr(_Word, "__setattr__", _refuse)  # noqa: B010  # a type checker takes the method for read-only
setattr(_Word, "__delattr__", _refuse)  # noqa: B010


class SuspendEvent(_Word):
    """A request to suspend: save state, and accept no more work."""

    __slots__ = ()
    topic = "lifecycle/suspend"


class ResumeEvent(_Word):
    """A request to resume after a suspension."""

    __slots__ = ()
    topic = "lifecycle/resume"


class TerminateEvent(_Word):
    """A request to suspend, so that state is saved, and then to shut down."""

    __slots__ = ()
    topic = "lifecycle/terminate"


class ReloadEvent(_Word):
    """A request to reload the configuration."""

    __slots__ = ()
    topic = "lifecycle/reload"


class InterruptEvent(_Word):
    """A Ctrl+C that was captured and did not start the shutdown."""

    __slots__ = ()
    topic = "lifecycle/interrupt"


class ClearLineEvent(_Word):
    """A Ctrl+C that discarded a half-typed line."""

    __slots__ = ()
    topic = "lifecycle/clear-line"


class EndOfInputEvent(_Word):
    """The end of standard input, or Ctrl+D at the prompt."""

    __slots__ = ()
    topic = "input/eof"
