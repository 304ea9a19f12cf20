"""Replays recorded phase changes on our pool worker.

``python -m tests.conformance.pool FILE.json`` prints the differences. Its last line is ``N passed, M failed``. The
format is that of ``tests/data/pool_transitions.json``. Each of its ``vectors`` has a final phase and a list of
``steps``, each with a phase and a reason.

Each sequence is compared with the transitions and reasons in our copy of that file. It is also compared with the phases
that result from a worker's status, calls and health. A transition that only one of the two allows is a failure.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle import hooks
from lifecycle.errors import InvalidTransition
from lifecycle.workers.model import AT_WORK, TRANSITIONS, Status
from lifecycle.workers.pool import Phase
from lifecycle.workers.pool.records import phase_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.pool import PhaseChange

__all__ = ["REASONS", "START", "Point", "Walk", "check", "main", "moves", "phases_checked", "reachable"]

Json = Any

#: Reasons for each allowed transition, by the phases before and after it.
REASONS: dict[tuple[Phase, Phase], frozenset[str]] = {
    (Phase(each["source"]), Phase(each["target"])): frozenset(each["reasons"])
    for each in json.loads((Path(__file__).parents[1] / "data" / "pool_transitions.json").read_text())["edges"]
}


class Point(NamedTuple):
    """The values that determine a worker's phase."""

    status: Status
    leased: bool
    healthy: bool

    @property
    def phase(self) -> Phase:
        return phase_of(self.status, leased=self.leased, healthy=self.healthy)


START = Point(Status.CREATED, leased=False, healthy=True)


def moves(point: Point) -> Iterator[Point]:
    """Yield ``point`` and the points one change of status or lease away, with and without a change of health."""
    others = [point._replace(status=status) for status in TRANSITIONS[point.status]]
    if point.leased:
        others.append(point._replace(leased=False))
    elif point.phase is Phase.READY:
        others.append(point._replace(leased=True))
    for each in (point, *others):
        yield each
        if each.status in AT_WORK:
            yield each._replace(healthy=not each.healthy)


def reachable(start: Point = START, *, within: Phase | None = None) -> set[Point]:
    """Return the points that are reachable from ``start``, optionally without leaving the phase ``within``."""
    known, left = {start}, [start]
    while left:
        new = {point for point in moves(left.pop()) if within in (None, point.phase)} - known
        known |= new
        left += new
    return known


class Walk:
    """A worker's transitions so far, and the possible values of its status, calls and health."""

    def __init__(self) -> None:
        self.length = 0
        self.phase = Phase.INITIALIZING
        self.health = "unknown"
        self._points = reachable(START, within=self.phase)

    def step(self, target: Phase, reason: Any) -> None:
        """Apply the next transition.

        Raises:
            InvalidTransition: if the transition or its reason is not allowed.
            ValueError: if the transition table and the computed phases disagree.
        """
        entered = {to for point in self._points for to in moves(point) if to.phase is target is not self.phase}
        reasons = REASONS.get((self.phase, target), frozenset())
        if bool(entered) is not bool(reasons):
            raise ValueError(f"the projection and the table disagree on {self.phase} -> {target}")
        if reason not in reasons:
            raise InvalidTransition(f"{self.phase} -> {target} because of {reason!r}")
        self.length += 1
        self.phase, self.health = target, _HEALTH.get(target, self.health)
        self._points = {to for point in entered for to in reachable(point, within=target)}


@contextmanager
def phases_checked() -> Iterator[None]:
    """Check that every phase change of a pool worker is allowed, happens in order, and has the expected reason."""
    wrong: list[tuple[str, PhaseChange]] = []
    phases: dict[tuple[int, str], Phase] = {}

    def check_change(pool: object, *, member: str, change: PhaseChange) -> None:
        before = phases.get((id(pool), member), Phase.INITIALIZING)
        phases[id(pool), member] = change.target
        if change.source is not before or change.reason not in REASONS.get((change.source, change.target), ()):
            wrong.append((member, change))

    with hooks.member_changed.connected_to(check_change):
        yield
    assert wrong == []


#: The health that each phase implies. Phases that imply no health are not listed.
_HEALTH = {Phase.READY: "healthy", Phase.DEGRADED: "unhealthy"}


def check(vector: Json) -> list[str]:
    """Return the differences from the recording."""
    walk = Walk()
    found: dict[str, Json] = {"error_at": None, "error": None}
    for number, (word, reason) in enumerate(vector["steps"]):
        try:
            walk.step(Phase(word), reason)
        except InvalidTransition:
            found = {"error_at": number, "error": [walk.phase, word]}
            break
        except ValueError as error:
            return [f"step {number}: {error}"]
    found |= {"state": walk.phase, "history": walk.length, "should_remove": not walk.phase.alive}
    wanted = {"error_at": None, "error": None} | {key: vector[key] for key in found if key in vector}
    differences = [
        f"{key}: expected {value!r}, got {found[key]!r}" for key, value in wanted.items() if found[key] != value
    ]
    if walk.health not in vector.get("health", [walk.health]):
        differences.append(f"health: expected {vector['health']!r}, got {walk.health!r}")
    return differences


def main(path: str) -> int:
    """Replay all vectors in a file, and return the number of failures."""
    vectors = json.loads(Path(path).read_text())["vectors"]
    failed = 0
    for number, vector in enumerate(vectors):
        differences = check(vector)
        failed += bool(differences)
        for difference in differences:
            print(f"FAILED {number} ({vector.get('name', 'without a name')}): {difference}")
    print(f"{len(vectors) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.conformance.pool FILE.json")
    sys.exit(bool(main(sys.argv[1])))
