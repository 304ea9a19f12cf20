"""Explanations of what happens to events with a given topic: which routes match, and what delays their handlers.

`EventLog.explain` collects the facts, and this module formats them.
"""

from __future__ import annotations

import difflib
import heapq
import logging
import time
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Literal

from lifecycle._text import duration, printable, shorten, time_of_day
from lifecycle.control.patterns import Pattern
from lifecycle.control.routes import MAX_TOPIC
from lifecycle.errors import InvalidPattern, InvalidTopic
from lifecycle.observe.eventlog.entries import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lifecycle.control.records import LaneInfo, RouteInfo, SourceInfo
    from lifecycle.observe.eventlog.entries import Entry
    from lifecycle.observe.eventlog.recorder import Failure

__all__ = ["Explanation", "Match", "NearMiss", "Silence", "explain", "near_misses"]

_log = logging.getLogger("lifecycle.observe")

#: The maximum number of near misses shown per kind, and the maximum number of candidates whose spelling is compared.
_SHOWN, _CLOSE = 3, 50
#: Topics and patterns with more segments than this are not compared. That would be slow, and they are unlikely to be
#: misspellings.
_SEGMENTS = 16
#: Two texts that are at least this similar, on a scale from 0 to 1, are considered misspellings of each other.
_SIMILAR = 0.8

_SAME = "it differs only in case, separators or spaces"

#: Converts characters that people type instead of a slash.
_SEPARATORS = str.maketrans(".: ", "///")


@dataclass(frozen=True, slots=True)
class Match:
    """A route that matches the topic."""

    router: str
    pattern: str
    handler: str
    #: The outcome for an event that reaches this route now.
    would: str
    handled: int
    failed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A pattern, or the topic of a logged event, that is similar to the given topic."""

    kind: Literal["pattern", "topic"]
    text: str
    #: How the two differ.
    hint: str


@dataclass(frozen=True, slots=True)
class Silence:
    """A source that sends nothing, and the reason why."""

    router: str
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that is known about a topic. The fields are for programs, and `lines` is for people."""

    topic: str
    #: The short answer.
    verdict: str
    #: The matching routes of each router, in the order in which the router tries them.
    matches: tuple[Match, ...]
    #: The latest events with this topic, oldest first.
    seen: tuple[Entry, ...]
    #: Similar patterns and topics, if no route matches.
    near: tuple[NearMiss, ...]
    silent: tuple[Silence, ...]
    #: Observers, which see the event in addition to its route.
    also: tuple[Match, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The explanation as text. The first line is the short answer."""
        lines = [f"{self.topic}: {self.verdict}", *self._others()]
        lines += [f"  the event also goes to {each.handler} ({each.pattern!r}) and {each.would}" for each in self.also]
        lines += self._counts()
        lines += [f"  similar {each.kind}: {each.text!r} ({each.hint})" for each in self.near]
        lines += [f"  seen at {time_of_day(entry.time)}: {describe(entry)}" for entry in self.seen]
        if self.matches and not self.seen:
            lines.append("  the log has no event of this topic")
        lines += [f"  source {each.source!r} sends nothing: {each.why}" for each in self.silent]
        return tuple(map(printable, lines))

    def _others(self) -> Iterator[str]:
        """Yield lines about the routes after the first."""
        for before, match in pairwise(self.matches):
            other = before.router != match.router
            when = f"in router {match.router!r}" if other else f"if {before.handler} passes it on"
            yield f"  {when}, the event goes to {match.handler} ({match.pattern!r}) and {match.would}"

    def _counts(self) -> Iterator[str]:
        for match in (*self.matches, *self.also):
            if match.failed or match.dropped:
                yield (
                    f"  {match.pattern!r} so far: {match.handled} handled, {match.failed} failed, "
                    f"{match.dropped} dropped"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dict that `json.dumps` accepts."""
        return {
            "topic": self.topic,
            "verdict": self.verdict,
            "matches": [_to_dict(each) for each in self.matches],
            "seen": [each.to_dict() for each in self.seen],
            "near": [_to_dict(each) for each in self.near],
            "silent": [_to_dict(each) for each in self.silent],
            "also": [_to_dict(each) for each in self.also],
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
    """Explain what happens in ``routers`` to an event with this topic.

    ``seen`` contains the latest events with this topic, and ``topics`` contains the topics of other events.
    ``failures`` maps a router's name and a source's name to that source's latest failure.
    """
    views = [view for router in routers if (view := _view_of(router)) is not None]
    shown = shorten(topic, MAX_TOPIC)
    try:
        matches = tuple(match for view in views for match in view.matches(topic, also=False))
        also = tuple(match for view in views for match in view.matches(topic, also=True))
    except InvalidTopic as error:
        return Explanation(shown, str(error), (), (), (), ())
    near: tuple[NearMiss, ...] = ()
    if not matches:
        near = near_misses(topic, {pattern for view in views for pattern in view.patterns}, topics)
    silent = tuple(silence for view in views for silence in view.silent(failures))
    return Explanation(shown, _verdict(views, matches), matches, tuple(seen), near, silent, also)


class _View:
    """The state of one router."""

    def __init__(self, router: Any) -> None:
        self.state = router.state()
        self._explain = router.explain
        self._lanes = {lane.name: lane for lane in router.lanes()}
        self._sources = router.sources()
        #: The patterns of all routes.
        self.patterns: list[str] = [info.pattern for info in router.routes() if not info.also]

    def matches(self, topic: str, *, also: bool) -> Iterator[Match]:
        """Yield matching routes in order.

        If ``also`` is true, only observers are included. Otherwise, they are left out.
        """
        for info in self._explain(topic):
            if info.also is not also:
                continue
            yield Match(
                self.state.name,
                info.pattern,
                info.handler,
                self._outlook(info),
                info.handled,
                info.failed,
                info.dropped,
            )

    def silent(self, failures: Mapping[tuple[str, str], Failure]) -> Iterator[Silence]:
        """Yield the sources that are not sending anything."""
        for source in self._sources:
            why = _why_silent(source, failures.get((self.state.name, source.name)))
            if why is not None:
                yield Silence(self.state.name, source.name, why)

    def _outlook(self, info: RouteInfo) -> str:
        steps: list[str] = []
        if info.debounce is not None:
            waiting = f" ({info.held} waiting)" if info.held else ""
            steps.append(f"waits until {duration(info.debounce)} pass without another event{waiting}")
        steps.append(self._in_lane(info))
        return ", then ".join(steps)

    def _in_lane(self, info: RouteInfo) -> str:
        lane = self._lanes.get(info.lane)
        if not self.state.running:
            return f"waits in lane {info.lane!r}, because the router is not running"
        if lane is None or lane.running + lane.waiting < lane.concurrency:
            return "is handled immediately" if lane is None or not lane.keys else "is handled when its key is idle"
        busy = f"{lane.running} running, {lane.waiting} waiting"
        if info.busy != "queue":
            return _when_busy(info, lane, busy)
        if lane.waiting >= lane.limit:
            return f"waits for space in lane {lane.name!r}, which is full ({busy})"
        return f"waits in lane {lane.name!r} ({busy})"


def _when_busy(info: RouteInfo, lane: LaneInfo, busy: str) -> str:
    if lane.keys is not None:
        return f"waits in lane {lane.name!r} ({busy}), unless its key is busy: then busy={info.busy!r} applies"
    if info.busy == "drop":
        return f"is dropped, because lane {lane.name!r} is busy ({busy})"
    return f"cancels the handler that is running in lane {lane.name!r}, and takes its place"


def _view_of(router: Any) -> _View | None:
    """Return a view of ``router``. If it raises, return None so that we can still explain the other routers."""
    try:
        return _View(router)
    except Exception:  # noqa: BLE001  # a class in the program may raise anything
        _log.exception("%r cannot be inspected; the explanation omits it", router)
        return None


def _why_silent(source: SourceInfo, failure: Failure | None) -> str | None:
    if source.held:
        return "it is held"
    if failure is not None and failure.restart_in is None:
        return f"it has failed and will not be restarted: {failure.error}"
    if failure is not None and time.time() < failure.time + (failure.restart_in or 0.0):
        return f"it has failed and will be restarted soon: {failure.error}"
    return None if source.running else "it is not running"


def _verdict(views: Sequence[_View], matches: Sequence[Match]) -> str:
    if not views:
        return "no router is running"
    if matches:
        first = matches[0]
        return f"the event goes to {first.handler} ({first.pattern!r}) and {first.would}"
    fallbacks = [view.state.fallback for view in views if view.state.fallback is not None]
    if fallbacks:
        return f"no route matches, so the fallback {fallbacks[0]} handles the event"
    return "no route matches and no fallback is set, so no handler receives the event"


def _to_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# -- near misses ---------------------------------------------------------------------------------------------------


def near_misses(topic: str, patterns: Iterable[str], topics: Iterable[str]) -> tuple[NearMiss, ...]:
    """Return the patterns and the topics of logged events that are similar to ``topic``."""
    return (*_nearest("pattern", topic, patterns), *_nearest("topic", topic, topics))


def _nearest(kind: Literal["pattern", "topic"], topic: str, texts: Iterable[str]) -> Iterator[NearMiss]:
    if topic.count("/") >= _SEGMENTS:
        return
    plain = _plain(topic)
    found: list[tuple[float, str, str]] = []
    for text in _candidates(plain, [text for text in texts if text != topic and text.count("/") < _SEGMENTS]):
        if kind == "pattern":
            similar = None if _fits(text, topic) else _similarity(plain, text)
        else:
            similar = _spelling(plain, _plain(text))
        if similar is not None:
            found.append((*similar, text))
    for _, hint, text in heapq.nlargest(_SHOWN, found):
        yield NearMiss(kind, text, hint)


def _candidates(plain: str, texts: list[str]) -> list[str]:
    """Return the texts that have the most segments in common with ``plain``. Comparing all texts would be slow."""
    segments = set(plain.split("/"))
    # Sort the texts first, so that the order of equally good candidates is stable.
    return heapq.nlargest(_CLOSE, sorted(texts), key=lambda text: len(segments.intersection(_plain(text).split("/"))))


def _similarity(plain: str, pattern: str) -> tuple[float, str] | None:
    """Return how similar a topic is to a pattern, with a hint, or None if they are not similar."""
    other = _plain(_canonical(pattern))
    if _fits(other, plain):
        return 1.0, _SAME
    if other.endswith("/*") and _fits(f"{other}*", plain):
        last = pattern.rpartition("/")[2]
        wider = f"{pattern}*" if last == "*" else f"{pattern[:-1]}:**}}"
        return 1.0, f"{last} matches one segment; {wider!r} would match"
    if "*" not in other:
        return _spelling(plain, other)
    # Compare the texts without wildcards and without the segments that the wildcards match.
    pairs = zip_longest(plain.split("/"), other.split("/"), fillvalue="")
    literal = [pair for pair in pairs if "*" not in pair[1]]
    return _spelling("/".join(own for own, _ in literal), "/".join(segment for _, segment in literal))


def _spelling(plain: str, other: str) -> tuple[float, str] | None:
    if plain and plain == other:
        return 1.0, _SAME
    ratio = difflib.SequenceMatcher(None, plain, other).ratio() if plain and other else 0.0
    return (ratio, "the spelling is almost the same") if ratio >= _SIMILAR else None


def _fits(pattern: str, topic: str) -> bool:
    try:
        return Pattern(pattern).matches(topic)
    except InvalidPattern:
        return False


def _canonical(pattern: str) -> str:
    try:
        return Pattern(pattern).canonical
    except InvalidPattern:  # this is the text of a `Router.also` route, which contains more than the pattern
        return pattern


def _plain(text: str) -> str:
    """Fold the case, and use single slashes as separators."""
    parts = text.translate(_SEPARATORS).casefold().split("/")
    return "/".join(part.strip() for part in parts if part.strip())
