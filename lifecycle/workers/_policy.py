"""The truth tables of supervision: who is started again, with whom, and when. Pure; nothing in here waits or acts."""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lifecycle.errors import DoNotRestart, StopTree
from lifecycle.workers.specs import AutoShutdown, Restart, Strategy
from lifecycle.workers.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.backoff import Intensity
    from lifecycle.workers.records import Exit

__all__ = ["STEERING", "Verdict", "affected", "cause_of", "ends_with", "room_at", "verdict"]

_T = TypeVar("_T")

#: What a child raises to say what is to follow.
STEERING: Final = (DoNotRestart, StopTree, SystemExit, KeyboardInterrupt)


class Verdict(Enum):
    """What follows from the end of a child."""

    #: It is started again, with those that its supervisor's strategy names.
    RESTART = auto()
    #: It stays as it is.
    LEAVE = auto()
    #: The supervisor ends, and its parent, up to the root.
    END_TREE = auto()


def verdict(restart: Restart | str, ended: Exit) -> Verdict:
    """What follows from the exit ``ended`` of a child."""
    error = cause_of(ended.error)
    match restart, error, ended.status:
        case _, StopTree() | SystemExit() | KeyboardInterrupt(), _:
            return Verdict.END_TREE
        case _, DoNotRestart(), _:
            return Verdict.LEAVE
        case Restart.ALWAYS, _, _:
            return Verdict.RESTART
        case Restart.ON_FAILURE, _, Status.FAILED | Status.KILLED:
            return Verdict.RESTART
        case _:
            return Verdict.LEAVE


def cause_of(error: BaseException | None) -> BaseException | None:
    """What a child raised to steer its supervisor, also where its worker wrapped it up."""
    inner = None if error is None else error.__cause__
    return inner if isinstance(inner, STEERING) and not isinstance(error, STEERING) else error


def affected(strategy: Strategy, children: Sequence[_T], trigger: _T) -> Sequence[_T]:
    """Who is stopped, in reverse, and started again, in order, when ``trigger`` is."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [trigger]
        case Strategy.ONE_FOR_ALL:
            return children
        case Strategy.REST_FOR_ONE:
            return children[children.index(trigger) :]


def ends_with(auto_shutdown: AutoShutdown, *, significant: bool, others: Iterable[Any]) -> bool:
    """Whether a supervisor ends with a child that is not started again; ``others`` are the significant ones at work."""
    match auto_shutdown:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return significant
        case AutoShutdown.ALL_SIGNIFICANT:
            return significant and not any(True for _ in others)


def room_at(intensity: Intensity, restarts: Sequence[float], now: float) -> float:
    """When one more restart fits into the budget; ``restarts``, newest first, may lie in the future."""
    if len(restarts) < intensity.limit:
        return now
    # The window is closed: a restart still counts when it is exactly as old as the window is long.
    return max(now, math.nextafter(restarts[intensity.limit - 1] + intensity.within, math.inf))
