"""What a supervisor was told, and its truth tables: who is started again, and with whom.

All is pure; nothing in here waits or acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lifecycle.backoff import Intensity
from lifecycle.errors import DoNotRestart, StopTree
from lifecycle.workers.model import Status
from lifecycle.workers.specs import AutoShutdown, OnLimit, Restart, StopOrder, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lifecycle.workers.model import Exit

__all__ = ["STEERING", "Rules", "Verdict", "affected", "cause_of", "ends_with", "verdict"]


_T = TypeVar("_T")

#: What a child raises to say what is to follow.
STEERING: Final = (DoNotRestart, StopTree, SystemExit, KeyboardInterrupt)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a supervisor deals with its children, as it was told."""

    strategy: Strategy
    intensity: Intensity | None
    on_limit: OnLimit
    auto_shutdown: AutoShutdown
    stop_order: StopOrder

    def __post_init__(self) -> None:
        if not isinstance(self.intensity, Intensity | None):
            raise TypeError(f"intensity={self.intensity!r} is no Intensity; give Intensity(5, within=30)")


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
