"""Retries: they decide whether a flow with a failed step is reverted, or reverted and tried again.

A retry runs before the items of its flow. It is any object with ``execute``, ``on_failure`` and, optionally,
``revert``.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from lifecycle._durations import in_seconds
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lifecycle._durations import Duration
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
    """A retry's decision about a failure."""

    #: Revert the flow, and run it again.
    RETRY = "RETRY"
    #: Revert the flow. The retry of an enclosing flow may decide otherwise.
    REVERT = "REVERT"
    #: Revert everything, including enclosing flows.
    REVERT_ALL = "REVERT_ALL"


class Attempt(NamedTuple):
    """One attempt at a flow."""

    #: The value that the retry returned for it.
    value: Any
    #: The failures in it, by step name.
    failures: Mapping[str, Failure] = MappingProxyType({})


@runtime_checkable
class Retry(Protocol):
    """Decides what happens after failures in its flow. Like a task, it may have ``name``, ``provides`` and ``revert``.

    Each function can take ``history``, the attempts so far, and any arguments that its other parameters name.
    ``execute`` may be async. ``on_failure`` is plain, and must neither block nor have effects that need reverting.
    """

    @property
    def execute(self) -> Any:
        """Return a value that the flow can use. It is called before each attempt."""

    @property
    def on_failure(self) -> Any:
        """Return a `Verdict`. The last attempt in ``history`` contains the failures."""


class _Named:
    """The name of a retry, and the name under which its value is provided."""

    def __init__(self, *, name: str | None = None, provides: str | None = None) -> None:
        #: The name; None means the name of the flow, followed by ``_retry``.
        self.name = name
        #: The name under which its flow gets the value; None provides no value.
        self.provides = provides

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"


class AlwaysRevert(_Named):
    """Revert the flow after any failure."""

    def execute(self) -> None:
        """Return nothing."""

    def on_failure(self) -> Verdict:
        """Return REVERT."""
        return Verdict.REVERT


class AlwaysRevertAll(_Named):
    """Revert everything after any failure."""

    def execute(self) -> None:
        """Return nothing."""

    def on_failure(self) -> Verdict:
        """Return REVERT_ALL."""
        return Verdict.REVERT_ALL


class Times(_Named):
    """Try up to ``attempts`` times, and provide the number of the attempt, from 1.

    Args:
        attempts: The maximum number of attempts, including the first.
        backoff: Wait before the second and each later attempt: seconds, a `Backoff`, or a tuple ``(first wait, factor,
            longest wait)``. A suspended flow does not wait.
        revert_all: After the last attempt, revert everything, not only the flow of this retry.
        name: The name of the retry. By default, the name of its flow followed by ``_retry``.
        provides: The name under which the flow gets the number. By default, the flow does not get it.
    """

    attempts: int
    backoff: Backoff | None
    revert_all: bool

    def __init__(
        self,
        attempts: int = 1,
        backoff: Backoff | tuple[Duration, float, Duration] | Duration | None = None,
        *,
        revert_all: bool = False,
        name: str | None = None,
        provides: str | None = None,
    ) -> None:
        super().__init__(name=name, provides=provides)
        if attempts < 0:
            raise ValueError(f"Times({attempts!r}) is not a number of attempts; give an integer of 0 or more")
        self.attempts, self.backoff, self.revert_all = attempts, _backoff(backoff), revert_all

    def execute(self, history: Sequence[Attempt]) -> int:
        """Return the number of the attempt."""
        return len(history) + 1

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while attempts are left."""
        return _verdict(retry=len(history) < self.attempts, revert_all=self.revert_all)

    def delay(self, history: Sequence[Attempt]) -> float:
        """Return the seconds to wait before the attempt that follows ``history``."""
        return self.backoff.delay(len(history) - 1) if self.backoff and history else 0.0


class ForEach(_Named):
    """Try one of ``values`` after the other, and provide the current one."""

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
        """Return the next value.

        Raises:
            FlowError: if no value is left.
        """
        return _next(self.values, history)

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while values are left."""
        return _verdict(retry=bool(_left(self.values, history)), revert_all=self.revert_all)


class ParameterizedForEach(_Named):
    """Like `ForEach`, with the sequence that the flow has under the name ``values``."""

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
        """Each parameter with the name of its argument."""
        return {"values": self.values}

    def execute(self, values: Sequence[Any], history: Sequence[Attempt]) -> Any:
        """Return the next value.

        Raises:
            FlowError: if no value is left.
        """
        return _next(values, history)

    def on_failure(self, values: Sequence[Any], history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while values are left."""
        return _verdict(retry=bool(_left(values, history)), revert_all=self.revert_all)


def _verdict(*, retry: bool, revert_all: bool) -> Verdict:
    if retry:
        return Verdict.RETRY
    return Verdict.REVERT_ALL if revert_all else Verdict.REVERT


def _left(values: Sequence[Any], history: Sequence[Attempt]) -> list[Any]:
    """Return the values that were not tried. A value that occurs twice is tried twice."""
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


def _backoff(given: Backoff | tuple[Duration, float, Duration] | Duration | None) -> Backoff | None:
    if given is None or isinstance(given, Backoff):
        return given
    if not isinstance(given, (tuple, list)):
        wait = in_seconds("backoff", given, least=0)
        return Backoff(wait, wait, 1.0, jitter=0.0)
    if len(given) != 3:  # noqa: PLR2004  # the three of the message
        raise ValueError(
            f"Times(backoff={given!r}) is not a backoff; give seconds, a Backoff, or (first, factor, longest)"
        )
    initial, multiplier, maximum = given
    return Backoff(initial, maximum, multiplier, jitter=0.0)
