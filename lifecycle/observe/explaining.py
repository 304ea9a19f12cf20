"""Why nothing happened: who would get an event, what it would meet on its way, and what became of the last ones.

`EventLog.explain` gathers what is looked at; here it is put into words.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lifecycle._text import duration, printable, shorten, time_of_day
from lifecycle.control.routing import MAX_TOPIC
from lifecycle.errors import InvalidTopic
from lifecycle.observe._events.entries import sentence
from lifecycle.observe._events.near_misses import NearMiss, near_misses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lifecycle.control.routing import RouteInfo
    from lifecycle.control.source_runner import SourceInfo
    from lifecycle.observe._events.entries import Entry
    from lifecycle.observe._events.routers import Failure

__all__ = ["Explanation", "Match", "NearMiss", "Silence", "explain"]

_log = logging.getLogger("lifecycle.observe")


@dataclass(frozen=True, slots=True)
class Match:
    """A route that fits the topic."""

    router: str
    pattern: str
    handler: str
    #: What an event would meet there now.
    would: str
    handled: int
    failed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A source that sends nothing, and why."""

    router: str
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to know about a topic: fields for programs, and `lines` for people."""

    topic: str
    #: The short answer.
    verdict: str
    #: Of each router in their order, the first is who gets it.
    matches: tuple[Match, ...]
    #: The last events of this topic, oldest first.
    seen: tuple[Entry, ...]
    #: What may have been meant, where nothing fits.
    near: tuple[NearMiss, ...]
    silent: tuple[Silence, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The same in words; the first line is the short answer."""
        told = [f"{self.topic}: {self.verdict}", *self._others(), *self._counts()]
        told += [f"  {each.text!r} is near ({each.kind}): {each.hint}" for each in self.near]
        told += [f"  seen at {time_of_day(entry.time)}: {sentence(entry)}" for entry in self.seen]
        if self.matches and not self.seen:
            told.append("  no event of this topic has been seen")
        told += [f"  source {each.source!r} sends nothing: {each.why}" for each in self.silent]
        return tuple(map(printable, told))

    def _others(self) -> Iterator[str]:
        """Who has it besides, or if the first passes it on."""
        for before, match in pairwise(self.matches):
            other = before.router != match.router
            word = f"in router {match.router!r} it goes" if other else "if that passes it on, it goes"
            yield f"  {word} to {match.handler} ({match.pattern!r}), and {match.would}"

    def _counts(self) -> Iterator[str]:
        for match in self.matches:
            if match.failed or match.dropped:
                yield (
                    f"  {match.pattern!r} so far: {match.handled} handled, {match.failed} failed, "
                    f"{match.dropped} dropped"
                )

    def to_dict(self) -> dict[str, Any]:
        """As `json.dumps` takes it."""
        return {
            "topic": self.topic,
            "verdict": self.verdict,
            "matches": [_plain(each) for each in self.matches],
            "seen": [each.to_dict() for each in self.seen],
            "near": [_plain(each) for each in self.near],
            "silent": [_plain(each) for each in self.silent],
            "lines": list(self.lines),
        }


def explain(
    topic: str,
    routers: Iterable[Any],
    *,
    seen: Sequence[Entry],
    topics: Iterable[str],
    failures: Mapping[tuple[str, str], Failure],
) -> Explanation:
    """What becomes of an event of ``topic`` in ``routers``.

    ``seen`` are the last events of this topic, ``topics`` those of other events, and ``failures`` what sources failed
    with, by router and name.
    """
    views = [view for router in routers if (view := _looked_at(router)) is not None]
    shown = shorten(topic, MAX_TOPIC)
    try:
        matches = tuple(match for view in views for match in view.matches(topic))
    except InvalidTopic as error:
        return Explanation(shown, str(error), (), (), (), ())
    near: tuple[NearMiss, ...] = ()
    if not matches:
        near = near_misses(topic, {pattern for view in views for pattern in view.patterns}, topics)
    silent = tuple(silence for view in views for silence in view.silent(failures))
    return Explanation(shown, _verdict(views, matches), matches, tuple(seen), near, silent)


class _View:
    """One router, as far as it can be looked at."""

    def __init__(self, router: Any) -> None:
        self.state = router.state()
        self._explain = router.explain
        self._lanes = {lane.name: lane for lane in router.lanes()}
        self._sources = router.sources()
        #: Of all routes.
        self.patterns: list[str] = [info.pattern for info in router.routes()]

    def matches(self, topic: str) -> Iterator[Match]:
        """Who gets it, in order."""
        for info in self._explain(topic):
            yield Match(
                self.state.name,
                info.pattern,
                info.handler,
                self._would(info),
                info.handled,
                info.failed,
                info.dropped,
            )

    def silent(self, failures: Mapping[tuple[str, str], Failure]) -> Iterator[Silence]:
        """The sources that do not send."""
        for source in self._sources:
            why = _why_silent(source, failures.get((self.state.name, source.name)))
            if why is not None:
                yield Silence(self.state.name, source.name, why)

    def _would(self, info: RouteInfo) -> str:
        steps: list[str] = []
        if info.debounce is not None:
            held = f", which holds {info.held} now" if info.held else ""
            steps.append(f"is held until {duration(info.debounce)} have passed without another{held}")
        steps.append(self._in_lane(info))
        return ", then ".join(steps)

    def _in_lane(self, info: RouteInfo) -> str:
        lane = self._lanes.get(info.lane)
        if not self.state.running:
            return f"waits in lane {info.lane!r}: the router does not run"
        if lane is None or lane.running + lane.waiting < lane.concurrency:
            return "is handled at once"
        busy = f"{lane.running} at work, {lane.waiting} waiting"
        if info.busy == "drop":
            return f"is dropped, for lane {lane.name!r} is busy ({busy})"
        if info.busy == "restart":
            return f"ends the handler that is at work in lane {lane.name!r}, and takes its place"
        if lane.waiting >= lane.limit:
            return f"finds lane {lane.name!r} full ({busy}): its source has to wait"
        return f"waits in lane {lane.name!r} ({busy})"


def _looked_at(router: Any) -> _View | None:
    """What can be seen of a router; None where that fails, which leaves the others as they are."""
    try:
        return _View(router)
    except Exception:  # noqa: BLE001  # whatever it does when it is looked at
        _log.exception("%r cannot be looked at, and is left out of what is explained", router)
        return None


def _why_silent(source: SourceInfo, failure: Failure | None) -> str | None:
    if source.held:
        return "it is held"
    if failure is not None and failure.restart_in is None:
        return f"it has failed, and is not started again: {failure.error}"
    if failure is not None and time.time() < failure.time + (failure.restart_in or 0.0):
        return f"it has failed, and is started again in a moment: {failure.error}"
    return None if source.running else "it does not run"


def _verdict(views: Sequence[_View], matches: Sequence[Match]) -> str:
    if not views:
        return "no router runs here"
    if matches:
        first = matches[0]
        return f"it goes to {first.handler} ({first.pattern!r}), and {first.would}"
    fallbacks = [view.state.fallback for view in views if view.state.fallback is not None]
    if fallbacks:
        return f"no route fits: the fallback, {fallbacks[0]}, has it"
    return "no route fits, and there is no fallback: nobody gets it"


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
