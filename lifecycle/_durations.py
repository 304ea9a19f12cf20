"""Durations in the public API. Callers pass seconds or a `datetime.timedelta`, which we store as float seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

# Importing datetime would take longer than importing this module.
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any, Generic, TypeAlias, TypeVar

    _Stored_co = TypeVar("_Stored_co", covariant=True)
    _Given_contra = TypeVar("_Given_contra", contravariant=True)

    #: A duration as passed by a caller.
    Duration: TypeAlias = float | timedelta

    class Converted(Generic[_Stored_co, _Given_contra]):
        """The type of a dataclass field that ``__post_init__`` converts."""

        def __get__(self, record: object, of: type) -> _Stored_co: ...
        def __set__(self, record: object, given: _Given_contra) -> None: ...

    DurationField: TypeAlias = Converted[float, Duration]
    OptionalDurationField: TypeAlias = Converted[float | None, Duration | None]


__all__ = ["duration", "in_seconds", "in_seconds_or_none", "store_seconds"]


def duration(default: float | None) -> Any:
    """Return the default for a `Converted` field. Type checkers would reject the plain value."""
    return default


def in_seconds(name: str, given: Duration, *, least: float | None = None, finite: bool = False) -> float:
    """Return a duration in seconds.

    Args:
        name: The name of the parameter, for the error message.
        given: Seconds, or a `datetime.timedelta`.
        least: The minimum number of seconds. By default, the duration must be above 0.
        finite: Whether to reject infinity.

    Raises:
        TypeError: if ``given`` is neither a number nor a `datetime.timedelta`.
        ValueError: if ``given`` is too small, NaN, or infinite.
    """
    number = _number(given)
    if number is None:
        raise TypeError(_message(name, given, least))
    if not (number > 0 if least is None else number >= least):
        raise ValueError(_message(name, given, least))
    if finite and number == math.inf:
        raise ValueError(f"{name} must be a finite number of seconds or a timedelta, got {given!r}")
    return number


def in_seconds_or_none(
    name: str, given: Duration | None, *, least: float | None = None, finite: bool = False
) -> float | None:
    """Return a duration in seconds, or None if it is None. See `in_seconds`."""
    return None if given is None else in_seconds(name, given, least=least, finite=finite)


def store_seconds(
    record: object, *names: str, least: float | None = None, finite: bool = False, optional: bool = False
) -> None:
    """Convert these fields of a frozen record to seconds. With ``optional``, None is kept. See `in_seconds`."""
    for name in names:
        given: Any = getattr(record, name)
        if not (optional and given is None):
            number = in_seconds(f"{type(record).__name__}.{name}", given, least=least, finite=finite)
            object.__setattr__(record, name, number)


def _number(given: object) -> float | None:
    kind = type(given)
    if kind is float:
        return cast("float", given)
    convert = getattr(kind, "total_seconds", None) or getattr(kind, "__float__", None)
    return None if convert is None or kind is bool else convert(given)


def _message(name: str, given: object, least: float | None) -> str:
    if least is None:
        meant = "a positive number of seconds or a timedelta"
    elif least == -math.inf:
        meant = "a number of seconds or a timedelta"
    else:
        meant = f"{least:g} or more seconds, or a timedelta"
    return f"{name} must be {meant}, got {given!r}"
