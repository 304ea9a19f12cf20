"""Why an event is not handled: which routes match a topic, what an event would meet there, and what is nearly right.

`EventLog.explain` collects the facts; this module puts them into words.
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
from lifecycle.control.routing import MAX_TOPIC
from lifecycle.errors import InvalidPattern, InvalidTopic
from lifecycle.observe.eventlog.entries import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lifecycle.control.routing import RouteInfo
    from lifecycle.control.source_runner import SourceInfo
    from lifecycle.observe.eventlog.entries import Entry
    from lifecycle.observe.eventlog.recorder import Failure

__all__ = ["Explanation", "Match", "NearMiss", "Silence", "explain", "near_misses"]

_log = logging.getLogger("lifecycle.observe")

#: Near misses that are shown of each kind, and the most similar texts that are compared closely.
_SHOWN, _CLOSE = 3, 50
#: A topic or pattern with more segments is not compared: that is expensive, and it is hardly a misspelling.
_SEGMENTS = 16
#: From which ratio on a text may be a misspelling of another, from 0 to 1.
_SIMILAR = 0.8

_SAME = "they differ in case, slashes or blanks"

#: Characters that people write for a slash.
_SEPARATORS = str.maketrans(".: ", "///")


@dataclass(frozen=True, slots=True)
class Match:
    """A route that matches the topic."""

    router: str
    pattern: str
    handler: str
    #: What would happen to an event there now.
    would: str
    handled: int
    failed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A pattern, or a topic that was seen, that the topic nearly matches."""

    kind: Literal["pattern", "topic"]
    text: str
    #: What is different.
    hint: str


@dataclass(frozen=True, slots=True)
class Silence:
    """A source that sends nothing, and the reason."""

    router: str
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything known about a topic: fields for programs, and `lines` for people."""

    topic: str
    #: The short answer.
    verdict: str
    #: The routes of each router in the order in which they are tried.
    matches: tuple[Match, ...]
    #: The last events of this topic, oldest first.
    seen: tuple[Entry, ...]
    #: Patterns and topics that may have been meant, if no route matches.
    near: tuple[NearMiss, ...]
    silent: tuple[Silence, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The same as text; the first line is the short answer."""
        lines = [f"{self.topic}: {self.verdict}", *self._others(), *self._counts()]
        lines += [f"  {each.text!r} is near ({each.kind}): {each.hint}" for each in self.near]
        lines += [f"  seen at {time_of_day(entry.time)}: {describe(entry)}" for entry in self.seen]
        if self.matches and not self.seen:
            lines.append("  no event of this topic has been seen")
        lines += [f"  source {each.source!r} sends nothing: {each.why}" for each in self.silent]
        return tuple(map(printable, lines))

    def _others(self) -> Iterator[str]:
        """Yield the routes after the first."""
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
        """Return it as `json.dumps` accepts it."""
        return {
            "topic": self.topic,
            "verdict": self.verdict,
            "matches": [_to_dict(each) for each in self.matches],
            "seen": [each.to_dict() for each in self.seen],
            "near": [_to_dict(each) for each in self.near],
            "silent": [_to_dict(each) for each in self.silent],
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
    """Explain what happens to an event of ``topic`` in ``routers``.

    ``seen`` are the last events of this topic, ``topics`` those of other events, and ``failures`` the last
    failures of sources, by router and name.
    """
    views = [view for router in routers if (view := _view_of(router)) is not None]
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
    """The state of one router."""

    def __init__(self, router: Any) -> None:
        self.state = router.state()
        self._explain = router.explain
        self._lanes = {lane.name: lane for lane in router.lanes()}
        self._sources = router.sources()
        #: The patterns of all routes.
        self.patterns: list[str] = [info.pattern for info in router.routes()]

    def matches(self, topic: str) -> Iterator[Match]:
        """Yield the routes that match, in order."""
        for info in self._explain(topic):
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
        """Yield the sources that send nothing."""
        for source in self._sources:
            why = _why_silent(source, failures.get((self.state.name, source.name)))
            if why is not None:
                yield Silence(self.state.name, source.name, why)

    def _outlook(self, info: RouteInfo) -> str:
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


def _view_of(router: Any) -> _View | None:
    """Return None if the router raises, so that the others are still explained."""
    try:
        return _View(router)
    except Exception:  # noqa: BLE001  # of a class of the program's own
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
        return f"no route matches: the fallback, {fallbacks[0]}, has it"
    return "no route matches, and there is no fallback: no handler gets it"


def _to_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# -- near misses ---------------------------------------------------------------------------------------------------


def near_misses(topic: str, patterns: Iterable[str], topics: Iterable[str]) -> tuple[NearMiss, ...]:
    """Return the patterns, and the ``topics`` that were seen, that ``topic`` nearly matches."""
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
    """Return those with the most segments in common: a close look at all of ten thousand would take too long."""
    segments = set(plain.split("/"))
    # Sorted, so that equal ones always come in the same order.
    return heapq.nlargest(_CLOSE, sorted(texts), key=lambda text: len(segments.intersection(_plain(text).split("/"))))


def _similarity(plain: str, pattern: str) -> tuple[float, str] | None:
    """Return how similar a topic and a pattern are, and a hint; None if they are not."""
    other = _plain(pattern)
    if _fits(other, plain):
        return 1.0, _SAME
    if other.endswith("/*") and _fits(f"{other}*", plain):
        return 1.0, f"* stands for one segment; {pattern + '*'!r} would match"
    if "*" not in other:
        return _spelling(plain, other)
    # Without the wildcards, and the segments in their places.
    pairs = zip_longest(plain.split("/"), other.split("/"), fillvalue="")
    literal = [pair for pair in pairs if "*" not in pair[1]]
    return _spelling("/".join(own for own, _ in literal), "/".join(segment for _, segment in literal))


def _spelling(plain: str, other: str) -> tuple[float, str] | None:
    if plain and plain == other:
        return 1.0, _SAME
    ratio = difflib.SequenceMatcher(None, plain, other).ratio() if plain and other else 0.0
    return (ratio, "they are spelled almost the same") if ratio >= _SIMILAR else None


def _fits(pattern: str, topic: str) -> bool:
    try:
        return Pattern(pattern).matches(topic)
    except InvalidPattern:
        return False


def _plain(text: str) -> str:
    """Fold case, and separate segments by single slashes."""
    parts = text.translate(_SEPARATORS).casefold().split("/")
    return "/".join(part.strip() for part in parts if part.strip())
