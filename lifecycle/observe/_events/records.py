"""What is noted of one event while it is on its way, which costs little; its texts are made when somebody reads it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lifecycle._text import shorten
from lifecycle._util import name_of
from lifecycle.errors import Dropped, LaneFull, NotHandled
from lifecycle.observe._events.entries import Entry, Fate
from lifecycle.observe._events.summaries import digest, masked_error, summary

if TYPE_CHECKING:
    from lifecycle.control.deliveries import Delivery
    from lifecycle.observe._events.summaries import Digest

__all__ = ["Record"]

#: How many characters of a topic or a name are told; a topic that is longer was refused.
_TOPIC = 1024


class Record:
    """What is noted of a delivery while it is on its way."""

    __slots__ = (
        "at",
        "attempt",
        "began",
        "change",
        "delivery",
        "digest",
        "ended",
        "error",
        "handler",
        "id",
        "into",
        "merged",
        "parent",
        "passed",
        "pattern",
        "router",
        "shown",
        "time",
        "topic",
        "what",
    )

    def __init__(self, delivery: Delivery, router: str, at: float) -> None:
        parent, route = delivery.parent, delivery.route
        self.id: int = delivery.id
        self.parent: int | None = None if parent is None else parent.id
        self.router: str = router
        self.time: float = time.time()
        #: By the loop's clock: when it came in, when its handler was called, and when that ended.
        self.at: float = at
        self.began: float | None = None
        self.ended: float | None = None
        #: While it is under way; then nothing is kept of it but what stands below.
        self.delivery: Delivery | None = delivery
        self.what: Fate = Fate.QUEUED
        self.pattern: str | None = None if route is None else route.text
        self.handler: str | None = None
        self.topic: str = ""
        self.digest: Digest | None = None
        self.into: int | None = None
        self.merged: int = 0
        self.attempt: int = 1
        self.error: str | None = None
        self.passed: tuple[str, ...] = ()
        #: The number of its last change, and what is shown once it does not change any more.
        self.change: int = 0
        self.shown: Entry | None = None

    def start(self, pattern: str, at: float) -> None:
        """A handler has it."""
        self.pattern = pattern
        self.began = at
        self.what = Fate.RUNNING

    def merge(self, delivery: Delivery, call: int) -> None:
        """It is part of the call with the number ``call``."""
        self.into = call
        self.what = Fate.MERGED
        self._settle(delivery)

    def let_go(self) -> None:
        """Nobody will tell its end."""
        if self.delivery is not None:
            self._settle(self.delivery)

    def end(self, delivery: Delivery, at: float) -> None:
        """It has ended, as the delivery says."""
        error = delivery.error
        if self.began is not None:
            self.ended = at
        if error is None:
            self.what = Fate.HANDLED
        else:
            self.what = _fate(error, began=self.began is not None)
            self.error = masked_error(error)
        self._settle(delivery)

    def _settle(self, delivery: Delivery) -> None:
        """Let go of the event."""
        route = delivery.route
        if route is not None:
            self.pattern, self.handler = route.text, name_of(route.handler)
        self.attempt = delivery.attempt
        self.topic = _topic(delivery)
        self.digest = digest(delivery.event)
        self.delivery = self.shown = None

    def _what_now(self) -> Fate:
        """A call that its window has let go waits as any other."""
        delivery = self.delivery
        return Fate.QUEUED if self.what is Fate.HELD and delivery is not None and not _is_held(delivery) else self.what

    def topic_now(self) -> str:
        """What it is about."""
        return self.topic if self.delivery is None else _topic(self.delivery)

    def entry(self) -> Entry:
        """As readers see it now."""
        if self.delivery is not None:
            return self._entry()
        if self.shown is None:
            self.shown = self._entry()
        return self.shown

    def _entry(self) -> Entry:
        delivery, pattern, handler = self.delivery, self.pattern, self.handler
        if delivery is not None and delivery.route is not None:
            pattern, handler = delivery.route.text, name_of(delivery.route.handler)
        return Entry(
            id=self.id,
            parent=self.parent,
            topic=self.topic_now(),
            summary=summary(self.digest or digest(None if delivery is None else delivery.event)),
            router=shorten(self.router, _TOPIC),
            time=self.time,
            pattern=pattern if pattern is None else shorten(pattern, _TOPIC),
            handler=handler if handler is None else shorten(handler, _TOPIC),
            what=self._what_now(),
            into=self.into,
            merged=self.merged,
            waited=None if self.began is None else max(0.0, self.began - self.at),
            duration=None if self.began is None or self.ended is None else max(0.0, self.ended - self.began),
            error=self.error,
            attempt=self.attempt if delivery is None else delivery.attempt,
            passed=tuple(shorten(each, _TOPIC) for each in self.passed),
        )


def _fate(error: BaseException, *, began: bool) -> Fate:
    if isinstance(error, Dropped):
        return Fate.SUPERSEDED if error.superseded else Fate.DROPPED
    if isinstance(error, NotHandled):
        return Fate.UNROUTED
    return Fate.REFUSED if isinstance(error, LaneFull) and not began else Fate.FAILED


def _is_held(call: Delivery) -> bool:
    window = None if call.route is None else call.route.window
    return window is not None and any(each is call for each in window.calls())


def _topic(delivery: Delivery) -> str:
    try:
        topic: Any = delivery.event.topic
        if type(topic) is str and len(topic) <= _TOPIC:
            return topic
    except Exception:  # noqa: BLE001  # a property of the program's own
        return ""
    if not isinstance(topic, str):
        return f"({type(topic).__name__})"
    # Not str(topic): an enum's members answer with their name.
    return shorten(topic if type(topic) is str else str.__str__(topic), _TOPIC)
