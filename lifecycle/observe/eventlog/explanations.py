"""Why an event is not handled: which routes match a topic, what an event would meet there, and what is nearly right.

`EventLog.explain` collects the facts; this module puts them into words.
"""

from __future__ import annotations

import difflib
import heapq
import logging
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from lifecycle._text import duration, printable, shorten, time_of_day
from lifecycle.control.patterns import Pattern, quoted
from lifecycle.control.routing import MAX_TOPIC
from lifecycle.errors import InvalidPattern, InvalidTopic
from lifecycle.observe.eventlog.entries import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
#: From which ratio on a segment may be a misspelling of another, from 0 to 1.
_SIMILAR = 0.6

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
        return f"no route fits: the fallback, {fallbacks[0]}, has it"
    return "no route fits, and there is no fallback: nobody gets it"


def _to_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# -- near misses ---------------------------------------------------------------------------------------------------


def near_misses(topic: str, patterns: Iterable[str], topics: Iterable[str]) -> tuple[NearMiss, ...]:
    """Return the texts that ``topic`` nearly matches, patterns first."""
    return (*_of_kind("pattern", topic, patterns), *_of_kind("topic", topic, topics))


def _of_kind(kind: Literal["pattern", "topic"], topic: str, texts: Iterable[str]) -> Iterator[NearMiss]:
    found = 0
    short = [text for text in texts if text.count("/") < _SEGMENTS] if topic.count("/") < _SEGMENTS else []
    for text in _most_similar(topic, short):
        pattern = text if kind == "pattern" else quoted(text)
        hint = None if text == topic or _fits(pattern, topic) else _hint(topic, pattern)
        if hint is not None and found < _SHOWN:
            found += 1
            yield NearMiss(kind, text, hint)


def _most_similar(topic: str, texts: Iterable[str]) -> list[str]:
    """Return those with the most common segments, then the longest common start: comparing all would take too long."""
    plain = _plain(topic)
    segments = set(plain.split("/"))

    def likeness(text: str) -> tuple[int, int, int]:
        other = text.translate(_SEPARATORS).casefold()
        return len(segments.intersection(other.split("/"))), _common(plain, other), _common(topic, text)

    # Sorted, so that equal ones always come in the same order.
    return heapq.nlargest(_CLOSE, sorted(texts), key=likeness)


def _common(one: str, other: str) -> int:
    """Return the length of the common start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _hint(topic: str, pattern: str) -> str | None:
    """Return what keeps ``pattern`` from matching; None if they differ too much."""
    for words, change in _CHANGES:
        if _fits(change(pattern), change(topic)):
            return words
    parts, wanted = topic.split("/"), pattern.split("/")
    if wanted[-1] == "*" and len(parts) > len(wanted) and _fits(f"{pattern}*", topic):
        return f"* stands for one segment; {'/'.join([*wanted[:-1], '**'])!r} would match"
    if any(_fits(pattern, fewer) and _shared(fewer, wanted) for fewer in _without_one(parts)):
        return "it has a segment less"
    if any(_fits(fewer, topic) and _shared(fewer, parts) for fewer in _without_one(wanted)):
        return "it has a segment more"
    return _misspelt(parts, wanted)


def _shared(text: str, parts: list[str]) -> bool:
    """Return whether they have a segment in common: a pattern of wildcards alone is near to everything."""
    return any(part in parts for part in text.split("/"))


def _misspelt(parts: list[str], wanted: list[str]) -> str | None:
    """Return the one segment that differs a little, as a hint."""
    if len(parts) != len(wanted):
        return None
    different = [pair for pair in zip(parts, wanted, strict=True) if not _fits(pair[1] or "/", pair[0])]
    if len(different) != 1:
        return None
    [(part, segment)] = different
    similar = difflib.SequenceMatcher(None, part.casefold(), segment.casefold()).ratio() >= _SIMILAR
    return f"{segment!r} is not {part!r}" if similar else None


def _without_one(parts: list[str]) -> Iterator[str]:
    return ("/".join(parts[:at] + parts[at + 1 :]) for at in range(len(parts)) if len(parts) > 1)


def _fits(pattern: str, topic: str) -> bool:
    try:
        return Pattern(pattern).matches(topic)
    except InvalidPattern:
        return False


def _slashes(text: str) -> str:
    """Separate segments by single slashes."""
    return _tidy(text.translate(_SEPARATORS))


def _tidy(text: str) -> str:
    return "/".join(part.strip() for part in text.split("/") if part.strip())


def _plain(text: str) -> str:
    return _slashes(text).casefold()


#: Differences to ignore one after the other, and the hint for each.
_CHANGES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("they differ in upper and lower case", str.casefold),
    ("they differ in a slash or a blank too many", _tidy),
    ("segments are separated by slashes", _slashes),
    ("they differ in case, and in how segments are separated", _plain),
)
