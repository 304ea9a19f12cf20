"""Records as what JSON can say: ours quickly, by a plan for each class, and anything else as well as it goes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from lifecycle._masking import HIDDEN, is_secret, masked, option_names
from lifecycle._text import shorten
from lifecycle._util import error_text

__all__ = ["misfit", "plain", "told", "unpacked"]

#: How deep, how long and how wide a value of others may be, and how many there may be in it; the rest is left out.
_DEPTH, _TEXT, _ITEMS, _VALUES = 8, 10_000, 1000, 20_000

#: So many characters count as a value.
_LINE = 100


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
    # As few frames as can be: records may be nested as deep as supervisors are.
    return list if convert is None else lambda values: list(map(convert, values))


# -- of others ----------------------------------------------------------------------------------------------------


def misfit(record: Any) -> str | None:
    """The first field of a record that has what its type does not allow, in words; None where all is well."""
    kind = record.__class__
    names, values_of, _ = _plan(kind)
    for name, allowed, value in zip(names, _kinds(kind), values_of(record), strict=True):
        if allowed and not _fits(value, allowed):
            return f"its state() has {name}={told(value)}"
    return None


@cache
def _kinds(kind: type) -> tuple[tuple[type, ...], ...]:
    """What may be in each field; nothing is said of those that are records, or may be anything."""
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


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if not isinstance(value, kinds):
        return False
    if kinds == (dict,):
        return all(
            isinstance(key, str) and _fits(each, (int, float)) for key, each in cast("dict[Any, Any]", value).items()
        )
    return isinstance(value, str) or _is_finite(value)


def _is_finite(number: Any) -> bool:
    try:
        return number is None or math.isfinite(number)
    except OverflowError:  # Python does not write numbers of more than 4300 digits
        return False


def plain(value: Any) -> Any:
    """``value`` as JSON can say it, with its secrets masked; other objects as text, and too much is left out."""
    return _Telling().tell(value, _DEPTH)


class _Telling:
    """One value, and how much more of it may be told: what refers to itself in many places would have no end."""

    def __init__(self) -> None:
        self._left = _VALUES

    def tell(self, value: Any, depth: int, name: str = "") -> Any:  # noqa: PLR0911  # one line a kind
        self._left -= 1
        if isinstance(value, Enum):
            return self.tell(value.value, depth, name)
        if value is None or isinstance(value, bool):
            return value
        if name and is_secret(name):
            return HIDDEN
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, int) and _is_finite(value):
            return value
        if depth and not isinstance(value, str | type):
            if dataclasses.is_dataclass(value):
                return {
                    each.name: self.tell(getattr(value, each.name), depth - 1, each.name)
                    for each in dataclasses.fields(value)
                }
            if isinstance(value, Mapping):
                return {
                    (name := self._in_words(key)): self.tell(each, depth - 1, name)
                    for key, each in self._some(value.items())
                }
            if isinstance(value, list | tuple | AbstractSet):
                items = list(self._some(value))
                return [self.tell(each, depth - 1, name) for each, name in zip(items, option_names(items), strict=True)]
        return masked(self._in_words(value))

    def _in_words(self, value: Any) -> str:
        text = told(value)
        self._left -= len(text) // _LINE
        return text

    def _some(self, values: Any) -> Iterator[Any]:
        for _, each in zip(range(_ITEMS), values, strict=False):
            if self._left <= 0:
                return
            yield each


def told(value: Any) -> str:
    """``value`` in words, whatever it does when it is asked for them."""
    if isinstance(value, str):
        return shorten(str.__str__(value), _TEXT)
    if isinstance(value, BaseException):
        return shorten(error_text(value), _TEXT)
    try:
        return shorten(repr(value), _TEXT)
    except Exception:  # noqa: BLE001  # of others
        return f"<{type(value).__qualname__} that cannot be shown>"
