"""What is to become of a flow, or a part of one, in which something failed.

A retry stands at the beginning of its flow. It is asked when something in it fails, and says whether all of it is
undone and tried once more. Any object will do that has ``execute``, ``on_failure`` and, perhaps, ``revert``.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lifecycle.flows.records import Failure


__all__ = [
    "AlwaysRevert",
    "AlwaysRevertAll",
    "Attempt",
    "ForEach",
    "ParameterizedForEach",
    "Retry",
    "Times",
    "Verdict",
]


class Verdict(StrEnum):
    """What a retry says of a failure."""

    #: Undo what the flow did, and do it again.
    RETRY = "RETRY"
    #: Undo what the flow did; whoever stands above may know better.
    REVERT = "REVERT"
    #: Undo everything, also around the flow.
    REVERT_ALL = "REVERT_ALL"


class Attempt(NamedTuple):
    """One time that a flow was tried."""

    #: What the retry gave for it.
    value: Any
    #: What failed in it, by name.
    failures: Mapping[str, Failure] = MappingProxyType({})


@runtime_checkable
class Retry(Protocol):
    """What decides; it may have ``name`` and ``provides``, as a task, and ``revert``.

    Each function is given ``history``, the attempts so far, and what else its parameters name. ``execute`` may be
    async; ``on_failure`` is plain, and must neither wait nor do anything that is to be undone.
    """

    @property
    def execute(self) -> Any:
        """Called before each attempt; what it returns is provided to the flow."""

    @property
    def on_failure(self) -> Any:
        """Returns a `Verdict`; the last attempt in ``history`` has what failed."""


class _Named:
    """What all of ours have."""

    def __init__(self, *, name: str | None = None, provides: str | None = None) -> None:
        #: What it is called; None: as its flow, with ``_retry`` behind.
        self.name = name
        #: The name under which the flow gets what it gives; None: not at all.
        self.provides = provides

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({said})"


class AlwaysRevert(_Named):
    """Undo the flow, whatever failed."""

    def execute(self) -> None:
        """Nothing."""

    def on_failure(self) -> Verdict:
        """To revert."""
        return Verdict.REVERT


class AlwaysRevertAll(_Named):
    """Undo everything, whatever failed."""

    def execute(self) -> None:
        """Nothing."""

    def on_failure(self) -> Verdict:
        """To revert all."""
        return Verdict.REVERT_ALL


class Times(_Named):
    """Try ``attempts`` times in all, and provide the number of the attempt, from 1.

    Before the second attempt and each later one there is a wait: ``backoff`` is a `Backoff`, seconds, or a tuple
    ``(first wait, how many times longer the next, longest)``. A flow that is suspended does not wait.
    """

    attempts: int
    backoff: Backoff | tuple[float, float, float] | float | None
    revert_all: bool

    def __init__(
        self,
        attempts: int = 1,
        backoff: Backoff | tuple[float, float, float] | float | None = None,
        *,
        revert_all: bool = False,
        name: str | None = None,
        provides: str | None = None,
    ) -> None:
        super().__init__(name=name, provides=provides)
        if attempts < 0:
            raise ValueError(f"Times({attempts!r}) is no number of attempts; give an integer of 0 or more")
        self.attempts, self.backoff, self.revert_all = attempts, backoff, revert_all
        self._backoff = _backoff(backoff)

    def execute(self, history: Sequence[Attempt]) -> int:
        """The number of the attempt."""
        return len(history) + 1

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """To retry as long as attempts are left."""
        return Verdict.RETRY if len(history) < self.attempts else _giving_up(all_of_it=self.revert_all)

    def delay(self, history: Sequence[Attempt]) -> float:
        """Seconds to wait before the attempt that follows ``history``."""
        return self._backoff.delay(len(history) - 1) if self._backoff and history else 0.0


class ForEach(_Named):
    """Try with each of ``values`` in turn, and provide it."""

    revert_all: bool
    values: Sequence[Any]

    def __init__(
        self,
        values: Sequence[Any],
        *,
        revert_all: bool = False,
        name: str | None = None,
        provides: str | None = None,
    ) -> None:
        super().__init__(name=name, provides=provides)
        self.values, self.revert_all = values, revert_all

    def execute(self, history: Sequence[Attempt]) -> Any:
        """The next value.

        Raises:
            FlowError: when none is left.
        """
        return _next(self.values, history)

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """To retry as long as values are left."""
        return Verdict.RETRY if _left(self.values, history) else _giving_up(all_of_it=self.revert_all)


class ParameterizedForEach(_Named):
    """As `ForEach`, with the values that the flow knows under the name ``values``."""

    revert_all: bool
    values: str

    def __init__(
        self,
        values: str = "values",
        *,
        revert_all: bool = False,
        name: str | None = None,
        provides: str | None = None,
    ) -> None:
        super().__init__(name=name, provides=provides)
        self.values, self.revert_all = values, revert_all

    @property
    def rebind(self) -> dict[str, str]:
        """Where its parameter comes from."""
        return {"values": self.values}

    def execute(self, values: Sequence[Any], history: Sequence[Attempt]) -> Any:
        """The next value.

        Raises:
            FlowError: when none is left.
        """
        return _next(values, history)

    def on_failure(self, values: Sequence[Any], history: Sequence[Attempt]) -> Verdict:
        """To retry as long as values are left."""
        return Verdict.RETRY if _left(values, history) else _giving_up(all_of_it=self.revert_all)


def _giving_up(*, all_of_it: bool) -> Verdict:
    return Verdict.REVERT_ALL if all_of_it else Verdict.REVERT


def _left(values: Sequence[Any], history: Sequence[Attempt]) -> list[Any]:
    """Those that were not tried; one that is there twice is tried twice."""
    left = list(values)
    for attempt in history:
        if attempt.value in left:
            left.remove(attempt.value)
    return left


def _next(values: Sequence[Any], history: Sequence[Attempt]) -> Any:
    left = _left(values, history)
    if not left:
        raise FlowError(f"none of the {len(values)} values is left to try; give more, or revert")
    return left[0]


def _backoff(given: Backoff | tuple[float, float, float] | float | None) -> Backoff | None:
    if given is None or isinstance(given, Backoff):
        return given
    if isinstance(given, (int, float)):
        return Backoff(given, given, 1.0, jitter=0.0)
    try:
        initial, multiplier, maximum = given
    except (TypeError, ValueError):
        raise ValueError(
            f"Times(backoff={given!r}) is no backoff; give seconds, a Backoff, or (first, factor, longest)"
        ) from None
    return Backoff(initial, maximum, multiplier, jitter=0.0)
