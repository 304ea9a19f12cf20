"""Our own records as dictionaries for JSON, by a plan that is made once per class, and a check of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from lifecycle._masking import is_number
from lifecycle._text import text_of

__all__ = ["misfit", "to_dict"]


def to_dict(record: Any, *, without: str = "") -> dict[str, Any]:
    """Return a record as a dictionary; the value of its field ``without`` is not converted."""
    names, values_of, nested = _plan(record.__class__)
    values: dict[str, Any] = dict(zip(names, values_of(record), strict=True))
    for name, convert in nested:
        value = values[name]
        if value is not None and name != without:
            values[name] = convert(value)
    return values


_Plan = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Callable[[Any], Any]], ...]]


@cache
def _plan(kind: type) -> _Plan:
    """Return the names of the fields, a getter of their values, and the converters of those that are not plain."""
    hints = get_type_hints(kind)
    names = tuple(each.name for each in dataclasses.fields(kind))
    nested = tuple((name, convert) for name in names if (convert := _converter(hints[name])) is not None)
    # Each record has several fields, of which this makes a tuple.
    return names, attrgetter(*names), nested


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((found for each in args if each is not NoneType and (found := _converter(each))), None)
    if origin is tuple:
        convert = _converter(args[0])
        # As few frames as possible: records may be nested as deep as supervisors are.
        return list if convert is None else lambda values: list(map(convert, values))
    if dataclasses.is_dataclass(hint):
        return to_dict
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    return None


def misfit(record: Any) -> str | None:
    """Return the first field with a value that its type does not allow, as text; None if there is none."""
    kind = record.__class__
    names, values_of, _ = _plan(kind)
    for name, allowed, value in zip(names, _types(kind), values_of(record), strict=True):
        if allowed and not _fits(value, allowed):
            return f"its state() has {name}={text_of(value)}"
    return None


@cache
def _types(kind: type) -> tuple[tuple[type, ...], ...]:
    """Return the types that each field allows; none for records and fields that may have any value."""
    hints = get_type_hints(kind)
    return tuple(_allowed(hints[each.name]) for each in dataclasses.fields(kind))


def _allowed(hint: Any) -> tuple[type, ...]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [_allowed(each) for each in args]
        return tuple(each for part in parts for each in part) if all(parts) else ()
    if origin is dict and args[1] is not Any:
        return (dict,)
    return {str: (str,), bool: (bool,), int: (int,), float: (float, int), NoneType: (NoneType,)}.get(hint, ())


def _fits(value: Any, allowed: tuple[type, ...]) -> bool:
    if not isinstance(value, allowed):
        return False
    if allowed == (dict,):
        items = cast("dict[Any, Any]", value).items()
        return all(isinstance(key, str) and _fits(each, (int, float)) for key, each in items)
    return value is None or isinstance(value, str) or is_number(value)
