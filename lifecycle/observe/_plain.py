"""Records as what JSON can say: ours quickly, by a plan for each class, and anything else as well as it goes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["plain", "told", "unpacked"]

#: How deep, how long and how wide a value of others may be until the rest is left out.
_DEPTH, _TEXT, _ITEMS = 8, 10_000, 1000


def unpacked(record: Any, *, without: str = "") -> dict[str, Any]:
    """A record whose fields have what their types say, as a dictionary; its field ``without`` is left as it is."""
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
    """The names of the fields, what gives their values, and what is to be done with those that are not plain."""
    hints = get_type_hints(kind)
    names = tuple(each.name for each in dataclasses.fields(kind))
    nested = tuple((name, convert) for name in names if (convert := _converter(hints[name])) is not None)
    # Each of ours has several, of which this makes a tuple.
    return names, attrgetter(*names), nested


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((found for each in args if each is not NoneType and (found := _converter(each))), None)
    if origin is tuple:
        return _in_list(_converter(args[0]))
    if dataclasses.is_dataclass(hint):
        return unpacked
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    return None


def _in_list(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return list if convert is None else lambda values: [convert(each) for each in values]


# -- of others ----------------------------------------------------------------------------------------------------


def plain(value: Any, depth: int = _DEPTH) -> Any:  # noqa: PLR0911  # one line a kind
    """``value`` as JSON can say it; what is no data is told in words, and too much is left out."""
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _short(str.__str__(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return told(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name), depth - 1) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {told(key): plain(each, depth - 1) for key, each in _some(value.items())}
    if isinstance(value, list | tuple | AbstractSet):
        return [plain(each, depth - 1) for each in _some(value)]
    return told(value)


def _some(values: Any) -> list[Any]:
    return [each for _, each in zip(range(_ITEMS), values, strict=False)]


def told(value: Any) -> str:
    """``value`` in words, whatever it does when it is asked for them."""
    if isinstance(value, str):
        return _short(str.__str__(value))
    try:
        if isinstance(value, BaseException):
            return _short(f"{type(value).__name__}: {value}")
        return _short(repr(value))
    except Exception:  # noqa: BLE001  # of others
        return f"<{type(value).__qualname__} that cannot be shown>"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + "…"
