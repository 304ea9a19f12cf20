"""The events with data that the library's own sources emit."""

from __future__ import annotations

from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

__all__ = [
    "Change",
    "CommandEvent",
    "FileBatch",
    "FileEvent",
    "HealthEvent",
    "LineEvent",
    "ShutdownEvent",
    "SignalEvent",
    "StatusEvent",
    "TickEvent",
    "UnknownCommandEvent",
    "WebhookEvent",
]

Change = Literal["added", "modified", "deleted"]


def _settle(event: object, **computed: object) -> None:
    """Set the fields of a frozen record that are computed from the others."""
    for name, value in computed.items():
        object.__setattr__(event, name, value)


@dataclass(frozen=True, slots=True)
class ShutdownEvent:
    """A request to shut the program down cleanly."""

    reason: str = ""
    topic: str = field(default="lifecycle/shutdown", init=False, repr=False)


_SIGNAL_TOPICS = {
    "SIGINT": "signal/interrupt",
    "SIGTERM": "signal/terminate",
    "SIGHUP": "signal/hangup",
    "SIGUSR1": "signal/user1",
    "SIGUSR2": "signal/user2",
}


@dataclass(frozen=True, slots=True)
class SignalEvent:
    """An operating system signal, such as SIGTERM.

    Raises:
        ValueError: if the number is not a signal on this system.
    """

    topics: ClassVar[str] = "signal/*"

    signum: int
    #: The signal's name, such as ``SIGTERM``.
    name: str = field(init=False)
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = _signal_name(self.signum)
        topic = _SIGNAL_TOPICS.get(name) or "signal/" + name.removeprefix("SIG").lower()
        _settle(self, name=name, topic=topic)


def _signal_name(signum: int) -> str:
    """Return the system's name for a signal. Python itself names only the first and last real-time signals."""
    first, last = getattr(Signals, "SIGRTMIN", 0), getattr(Signals, "SIGRTMAX", 0)
    return f"SIGRTMIN+{signum - first}" if first < signum < last else Signals(signum).name


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """A registered command, with its arguments split as in a shell."""

    topics: ClassVar[str] = "command/*"

    command: str
    args: tuple[str, ...] = ()
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _settle(self, topic=f"command/{self.command}")


@dataclass(frozen=True, slots=True)
class LineEvent:
    """A line that is not a command, without its line ending."""

    line: str
    topic: str = field(default="input/line", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class UnknownCommandEvent:
    """An unknown command: the first word of a line, or the whole line if that word takes no arguments.

    ``known`` contains the known commands, sorted.
    """

    command: str
    known: tuple[str, ...]
    topic: str = field(default="input/unknown", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class TickEvent:
    """A timer tick. ``time`` is timezone-aware. ``count`` starts at 1 and includes missed ticks."""

    topics: ClassVar[str] = "tick/**"

    time: datetime
    count: int
    name: str = "ticker"
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _settle(self, topic=f"tick/{self.name}")


_FILE_TOPICS = {"added": "file/added", "modified": "file/modified", "deleted": "file/deleted"}


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A watched file was added, modified or deleted.

    Raises:
        ValueError: if ``change`` is not ``added``, ``modified`` or ``deleted``.
    """

    topics: ClassVar[str] = "file/*"

    change: Change
    path: Path
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        topic = _FILE_TOPICS.get(self.change)
        if topic is None:
            raise ValueError(f"{self.change!r} is not a file change; use added, modified or deleted")
        object.__setattr__(self, "topic", topic)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Several changes combined into one event, with the net change for each path."""

    changes: Mapping[Path, Change]
    topic: str = field(default="file/batch", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """The result of a health check."""

    topics: ClassVar[str] = "health/**"

    name: str
    healthy: bool
    message: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _settle(self, topic=f"health/{self.name}/{'up' if self.healthy else 'down'}")


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """An accepted HTTP request. Header names are in lower case, and ``id`` identifies the delivery."""

    topics: ClassVar[str] = "webhook/**"

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    id: str
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        path = self.path.lstrip("/")
        object.__setattr__(self, "topic", f"webhook/{path}" if path else "webhook")

    def text(self) -> str:
        """Return the body as text. Bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            InvalidBody: if the body is not JSON. This is a `ValueError`. If the handler does not catch it, and the
                sender waits for the handler, the sender gets 400.
        """
        import json

        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            from lifecycle.errors import InvalidBody

            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidBody(400, f"the body is not JSON: {reason}") from None


#: The maximum numbers of segments and of characters that may follow ``status/`` in a valid topic.
_PATH_SEGMENTS, _PATH_SIZE = 63, 1017


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A change to a watched worker or supervisor. ``state`` is its record after the change.

    ``path`` is the path below the watched supervisor, such as ``web/w`` for the child ``w`` of its child ``web``. If
    the path is too long for a topic, the topic contains only the last part of the path.
    """

    topics: ClassVar[str] = "status/**"

    component: str
    old: str
    new: str
    state: Any
    path: str = ""
    topic: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        path = self.path or self.component
        end = path
        if path.count("/") >= _PATH_SEGMENTS or len(path) > _PATH_SIZE:
            end = "/".join(path.split("/")[-_PATH_SEGMENTS:])[-_PATH_SIZE:]
        _settle(self, path=path, topic=f"status/{end}")
