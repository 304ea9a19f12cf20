"""Compares a step's outcome with the expected outcome."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lifecycle.flows import StepFailed
from tests.conformance.flow_betterment import ERRORS
from tests.conformance.flow_building import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conformance.flow_playing import Outcome

__all__ = ["EACH_EVENT_WRITTEN", "compared", "ended_alike", "same_error", "same_events"]

Json = Any

#: Marks cases in which the process dies between two events that our engine may write in one transaction.
EACH_EVENT_WRITTEN = "exact-if-each-event-is-its-own-write"


def compared(outcome: Outcome, expected: Json, *, order: str, edited: bool) -> Iterator[str]:
    """Yield the differences, ignoring expected values of None. If ``edited``, failures may exist only in the store."""
    if expected["events"] is not None and not _same_order(outcome.events, expected["events"], order):
        yield f"events: expected {expected['events']!r}, got {outcome.events!r}"
    if expected["engine_states"] not in (None, outcome.engine_states):
        yield f"engine_states: expected {expected['engine_states']!r}, got {outcome.engine_states!r}"
    if not same_error(outcome.raised, expected["raised"], edited=edited):
        yield f"raised: expected {expected['raised']!r}, got {outcome.raised!r}"
    yield from ended_alike(outcome, expected)


def ended_alike(outcome: Outcome, expected: Json) -> Iterator[str]:
    """Yield the differences in the stored data."""
    if outcome.flow_state != expected["flow_state"]:
        yield f"flow_state: expected {expected['flow_state']!r}, got {outcome.flow_state!r}"
    # Steps without a stored row are in their initial state.
    steps = {name: ["PENDING", "EXECUTE"] for name in expected["atoms"]} | outcome.steps
    if steps != expected["atoms"]:
        yield f"steps: expected {expected['steps']!r}, got {steps!r}"
    if expected["fetch_all"] is not None and outcome.fetch_all != expected["fetch_all"]:
        yield f"fetch_all: expected {expected['fetch_all']!r}, got {outcome.fetch_all!r}"


# -- events ------------------------------------------------------------------------------------------------------------


def _same_order(ours: list[Json], theirs: list[Json], order: str) -> bool:
    if order in ("exact", EACH_EVENT_WRITTEN):
        return same_events(ours, theirs) or same_events(ours, _announced_after_the_phase(theirs))
    if order not in ("multiset", "priority-first"):
        raise Unknown(f"unknown order {order!r}; expected exact, multiset, priority-first or {EACH_EVENT_WRITTEN}")
    if order == "priority-first" and _begun(ours) != _begun(theirs):
        return False
    mine, others = _by_step(ours), _by_step(theirs)
    return mine.keys() == others.keys() and all(same_events(mine[each], others[each]) for each in mine)


def _announced_after_the_phase(events: list[Json]) -> list[Json]:
    """Move each suspension event behind the changes that were stored in the same transaction.

    One phase starts or prepares several steps. TaskFlow stores and announces each of them separately.
    """
    places = [place for place, event in enumerate(events) if event[0] == "flow" and event[3] == "SUSPENDING"]
    for place in places:
        after = place + 1
        while after < len(events) and events[after][0] != "flow" and events[after][3] in _BEGINNING:
            after += 1
        events = [*events[:place], *events[place + 1 : after], events[place], *events[after:]]
    return events


_BEGINNING = ("RUNNING", "REVERTING", "RETRYING", "PENDING", "IGNORE")


def same_events(ours: Sequence[Json], theirs: Sequence[Json]) -> bool:
    """Return whether all events are equal and in the same order, ignoring error texts."""
    return len(ours) == len(theirs) and all(map(_same_event, ours, theirs))


def _same_event(ours: Json, theirs: Json) -> bool:
    if ours == theirs:
        return True
    failures = [each[4]["failure"] for each in (ours, theirs) if len(each) > 4 and isinstance(each[4], dict)]
    return ours[:4] == theirs[:4] and len(failures) == 2 and _kind(failures[0]) in ERRORS.get(_kind(failures[1]), ())


def _kind(failure: str) -> str:
    return failure.partition(":")[0]


def _begun(events: list[Json]) -> list[str]:
    return [event[1] for event in events if event[0] != "flow" and event[3] == "RUNNING"]


def _by_step(events: list[Json]) -> dict[tuple[str, str], list[Json]]:
    by_step = defaultdict(list)
    for event in events:
        by_step[event[0], event[1]].append(event)
    return by_step


# -- errors ------------------------------------------------------------------------------------------------------------


def same_error(ours: BaseException | None, theirs: Json, *, edited: bool = False) -> bool:
    """Return whether ``ours`` is our counterpart of the TaskFlow error.

    TaskFlow may also raise errors from attempts that were retried, which our error does not contain.
    """
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if "any_of" in theirs:
        return _among(ours, _failures(theirs["any_of"]))
    name = type(ours).__name__
    if theirs["type"] == "WrappedFailure" and len(_failures(theirs)) > 1:
        return _among(ours, _failures(theirs))
    if theirs["type"] in ERRORS:
        return name in ERRORS[theirs["type"]] and ("failures" not in theirs or _among(ours, theirs["failures"]))
    if name == theirs["type"]:
        return theirs.get("message") in (None, str(ours))
    return edited and isinstance(ours, StepFailed) and _said(ours) == _failures(theirs)


def _among(ours: BaseException, theirs: list[str]) -> bool:
    """Return whether a step failed and all steps that failed are in ``theirs``."""
    left = list(theirs)
    for said in _said(ours):
        found = next((each for each in left if each == said or _kind(said) in ERRORS.get(_kind(each), ())), None)
        if found is None:
            return False
        left.remove(found)
    return len(left) < len(theirs)


def _failures(theirs: Json) -> list[str]:
    return list(theirs.get("failures", [f"{theirs['type']}: {theirs.get('message')}"]))


def _said(error: BaseException) -> list[str]:
    """Return the type and message of each failed step."""
    if isinstance(error, BaseExceptionGroup):
        return [said for each in error.exceptions for said in _said(each)]
    if isinstance(error, StepFailed):
        return [str(error).partition(" failed: ")[2]]
    return [f"{type(error).__name__}: {error}"]
