"""Retries, which decide whether a failed flow is only reverted, or also run again.

A retry runs before its flow's items. It can be any object with ``execute``, ``on_failure`` and, optionally, ``revert``.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

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


#: A class of errors, or several.
Errors: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"


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

    #: The value that the retry returned for this attempt.
    value: Any
    #: The failures in this attempt, by step name.
    failures: Mapping[str, Failure] = MappingProxyType({})


@runtime_checkable
class Retry(Protocol):
    """Decides what happens after failures in its flow. Like a task, it may have ``name``, ``provides`` and ``revert``.

    Each function can have a parameter ``history``, which receives the attempts made so far, and parameters that name
    other values. ``execute`` may be async. ``on_failure`` must be synchronous, must not block, and must not have side
    effects that need to be reverted.
    """

    @property
    def execute(self) -> Any:
        """Return a value for the flow to use. Called before each attempt."""

    @property
    def on_failure(self) -> Any:
        """Return a `Verdict`. The last attempt in ``history`` contains the failures."""


class _Named:
    """The name of a retry, and the name of the value it provides."""

    def __init__(self, *, name: str | None = None, provides: str | None = None) -> None:
        #: The retry's name. None means the flow's name followed by ``_retry``.
        self.name = name
        #: The name that the flow uses for the retry's value. If None, the value is not provided.
        self.provides = provides

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"


class AlwaysRevert(_Named):
    """Reverts the flow after any failure."""

    def execute(self) -> None:
        """Return nothing."""

    def on_failure(self) -> Verdict:
        """Return REVERT."""
        return Verdict.REVERT


class AlwaysRevertAll(_Named):
    """Reverts everything after any failure."""

    def execute(self) -> None:
        """Return nothing."""

    def on_failure(self) -> Verdict:
        """Return REVERT_ALL."""
        return Verdict.REVERT_ALL


class Times(_Named):
    """Tries a flow, a task or a step up to ``attempts`` times. In a flow, it provides the attempt number, from 1.

    Args:
        attempts: The maximum number of attempts, including the first.
        backoff: How long to wait before each attempt after the first: seconds, a `Backoff`, or a tuple
            ``(first wait, factor, longest wait)``. Suspending the flow interrupts the wait.
        on: The class of errors to try again after, or a tuple of classes. After other errors there is no further
            attempt.
        revert_all: After the last attempt, revert everything instead of only this retry's flow.
        name: The name of the retry. By default, its flow's name followed by ``_retry``.
        provides: The name that the flow uses for the attempt number. By default, the number is not provided.
    """

    attempts: int
    backoff: Backoff | None
    on: Errors
    revert_all: bool

    def __init__(  # the settings of a retry
        self,
        attempts: int = 1,
        backoff: Backoff | tuple[Duration, float, Duration] | Duration | None = None,
        *,
        on: Errors = Exception,
        revert_all: bool = False,
        name: str | None = None,
        provides: str | None = None,
    ) -> None:
        super().__init__(name=name, provides=provides)
        if attempts < 0:
            raise ValueError(f"Times(): attempts must be an integer of 0 or more, got {attempts!r}")
        self.attempts, self.backoff, self.on, self.revert_all = attempts, _backoff(backoff), _errors(on), revert_all

    def execute(self, history: Sequence[Attempt]) -> int:
        """Return the attempt number."""
        return len(history) + 1

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while there are attempts left and `on` contains the errors of the last one."""
        return _verdict(retry=self.allows(history), revert_all=self.revert_all)

    def allows(self, history: Sequence[Attempt]) -> bool:
        """Return True if there may be another attempt after ``history``."""
        failures = history[-1].failures.values() if history else ()
        # A failure loaded from a store has no error. Its attempt was already decided on.
        errors = [each.error for each in failures if each.error is not None]
        return len(history) < self.attempts and all(isinstance(error, self.on) for error in errors)

    def delay(self, history: Sequence[Attempt]) -> float:
        """Return how many seconds to wait before the attempt that follows ``history``."""
        return self.backoff.delay(len(history) - 1) if self.backoff and history else 0.0


class ForEach(_Named):
    """Tries the flow with each of ``values`` in order, and provides the current value."""

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
            FlowError: if there are no values left.
        """
        return _next(self.values, history)

    def on_failure(self, history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while there are values left."""
        return _verdict(retry=bool(_left(self.values, history)), revert_all=self.revert_all)


class ParameterizedForEach(_Named):
    """Like `ForEach`, but takes the sequence from the flow's value named ``values``."""

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
        """The argument name for each parameter."""
        return {"values": self.values}

    def execute(self, values: Sequence[Any], history: Sequence[Attempt]) -> Any:
        """Return the next value.

        Raises:
            FlowError: if there are no values left.
        """
        return _next(values, history)

    def on_failure(self, values: Sequence[Any], history: Sequence[Attempt]) -> Verdict:
        """Return RETRY while there are values left."""
        return _verdict(retry=bool(_left(values, history)), revert_all=self.revert_all)


def _verdict(*, retry: bool, revert_all: bool) -> Verdict:
    if retry:
        return Verdict.RETRY
    return Verdict.REVERT_ALL if revert_all else Verdict.REVERT


def _left(values: Sequence[Any], history: Sequence[Attempt]) -> list[Any]:
    """Return the values that have not been tried. A value that occurs twice is tried twice."""
    left = list(values)
    for attempt in history:
        if attempt.value in left:
            left.remove(attempt.value)
    return left


def _next(values: Sequence[Any], history: Sequence[Attempt]) -> Any:
    left = _left(values, history)
    if not left:
        raise FlowError(f"all {len(values)} values have been tried; add values, or revert the flow")
    return left[0]


def _errors(given: Errors) -> Errors:
    classes: tuple[object, ...] = given if isinstance(given, tuple) else (given,)
    if not classes or not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise TypeError(f"Times(): on must be a class of errors or a tuple of them, got {given!r}")
    return given


def _backoff(given: Backoff | tuple[Duration, float, Duration] | Duration | None) -> Backoff | None:
    if given is None or isinstance(given, Backoff):
        return given
    if not isinstance(given, (tuple, list)):
        wait = in_seconds("backoff", given, least=0)
        return Backoff(wait, wait, 1.0, jitter=0.0)
    if len(given) != 3:  # noqa: PLR2004  # the three of the message
        raise ValueError(f"Times(): backoff must be seconds, a Backoff, or (first, factor, longest), got {given!r}")
    initial, multiplier, maximum = given
    return Backoff(initial, maximum, multiplier, jitter=0.0)
