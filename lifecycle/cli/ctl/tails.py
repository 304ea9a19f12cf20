"""`lifecycle ctl tail`: the events as they come, and what became of each."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.entries import UNDER_WAY, entry_line
from lifecycle.cli.ctl.printing import show_json, width
from lifecycle.cli.failures import DONE, FAILED
from lifecycle.cli.messages import give, voice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lifecycle.cli.ctl.streams import Stream
    from lifecycle.cli.ctl.verbs import Request

__all__ = ["Held", "tail"]

#: How many that have passed already are shown first.
_LATEST: Final = 10
#: Seconds after which an event that has not come to its end is shown all the same.
_SLOW: Final = 1.0


def tail(request: Request) -> int:
    """Show events until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(request.program)
    pattern = request.given["pattern"]
    # First the stream, so that nothing falls between the two.
    with client.stream("/api/events/stream", sys.stdout, pattern=pattern) as stream:
        past = client.get("/api/events", pattern=pattern, limit=_LATEST)
        if request.json:
            lines = (show_json(message, line=True) for message in _all(stream, past))
        else:
            lines = (give(sys.stdout, f"{_line(message)}\n") for message in _settled(stream, past))
        if not all(lines) or stream.unread:
            return DONE
    voice().warn(f"{client.name} has ended")
    return FAILED


def _line(message: Any) -> str:
    return (
        f"({message['dropped']} events are not shown)" if "dropped" in message else entry_line(message, width=width())
    )


def _all(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Each change of each event."""
    yield from past
    yield from (message for message in stream if message not in past)


def _settled(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Each event once, when it has come to its end; and before that if it takes its time."""
    held = Held()
    yield from held.sift(past)
    while not stream.ended:
        yield from held.sift([message for message in stream.take(held.left()) if message not in past])
        yield from held.due()


class Held:
    """Events that are under way, and will soon have ended."""

    def __init__(self) -> None:
        # By id, those that changed last at the end.
        self._entries: dict[int, tuple[float, Any]] = {}

    def sift(self, messages: Sequence[Any]) -> Iterator[Any]:
        """Those that can be shown now; the others are kept."""
        for message in messages:
            self._entries.pop(message.get("id"), None)
            if message.get("what") in UNDER_WAY:
                self._entries[message["id"]] = time.monotonic() + _SLOW, message
            else:
                yield message

    def due(self) -> Iterator[Any]:
        """Those that have been waited for long enough."""
        while self._entries and not self.left():
            _, message = self._entries.pop(next(iter(self._entries)))
            yield message

    def left(self) -> float | None:
        """Seconds until one is due; None where none is kept."""
        if not self._entries:
            return None
        at, _ = next(iter(self._entries.values()))
        return max(0.0, at - time.monotonic())
