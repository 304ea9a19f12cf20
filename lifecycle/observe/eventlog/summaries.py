"""Short texts about events: an event's class and its small values, but never its body or a secret.

`digest` copies the values immediately, so that the event itself does not have to be kept. `summary` creates the text
when an entry is read. It never runs code from the program: a value that is neither a number nor a text is represented
by its class name.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lifecycle._masking import HIDDEN, is_secret, masked
from lifecycle._text import shorten
from lifecycle.events import CommandEvent, Event, FileBatch, LineEvent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Digest", "digest", "summary"]

#: An event's class, and the values copied from the event.
Digest: TypeAlias = tuple[type[Any], tuple[Any, ...]]

#: The maximum lengths of a text, a name and a summary, in characters, and the maximum number of values.
_TEXT, _NAME, _LONGEST, _VALUES = 60, 40, 240, 8
#: The maximum size of an integer, in bits. Larger integers are not shown, because they are slow to print.
_BITS = 64

#: Path classes whose instances are shown as text. Instances of subclasses defined by the program are not.
_PATHS = (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)

#: The same as `type`, with an annotation that type checkers need.
_class: Callable[[Any], type[Any]] = type


class _Text(str):
    """Text that is shown without quotes."""

    __slots__ = ()


def digest(event: Any) -> Digest:
    """Return the values of ``event`` that `summary` needs. This function is cheap and never raises an error."""
    kind = _class(event)
    try:
        return kind, _taker(kind)(event)  # type: ignore[arg-type]  # classes are hashable
    except Exception:  # noqa: BLE001  # a property in the program may raise anything
        return kind, ()


def summary(taken: Digest) -> str:
    """Return a short text about an event."""
    kind, values = taken
    if kind is Event:
        return shorten(_shown(*values), _LONGEST) if values else ""
    if kind in _SPECIAL:
        text = _shown("", *values)
    else:
        names = _names(kind)  # type: ignore[arg-type]  # classes are hashable
        text = ", ".join(f"{name}={_shown(name, value)}" for name, value in zip(names, values, strict=False))
    return shorten(f"{_class_name(kind)}({text})", _LONGEST)


# -- copying -----------------------------------------------------------------------------------------------------


@functools.lru_cache(512)
def _taker(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that copies the values of an event of class ``kind``."""
    if kind is Event:
        return lambda event: () if event.data is None else (event.topic, _kept(event.data, deep=True))
    special = _SPECIAL.get(kind)
    if special is not None:
        return lambda event: (special(event),)
    names = _names(kind)  # type: ignore[arg-type]  # classes are hashable
    return lambda event: tuple([_kept(getattr(event, name), deep=False) for name in names])


@functools.lru_cache(512)
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields that appear in a record's repr."""
    shown = [each.name for each in fields(kind) if each.repr and each.name != "topic"] if is_dataclass(kind) else []
    return tuple(shown[:_VALUES])


def _arguments(event: CommandEvent) -> str:
    return " ".join(shorten(each, _TEXT) for each in event.args[:_VALUES])


def _typed(event: LineEvent) -> _Text:
    # Do not show the line itself, because it may be a password.
    return _Text(f"{len(event.line)} characters")


def _files(event: FileBatch) -> _Text:
    changes = event.changes
    first = ", ".join(f"{shorten(str(path), _TEXT)} {change}" for path, change in list(changes.items())[:3])
    return _Text(f"{first} (+{len(changes) - 3})" if len(changes) > 3 else first)  # noqa: PLR2004  # the number of paths shown


def _kept(value: Any, *, deep: bool) -> Any:
    """Return a small value unchanged, or a description of any other value."""
    kind = _class(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is str:
        return value[: _TEXT + 1]
    if kind is int:
        return value if value.bit_length() <= _BITS else _Text("a large int")
    if kind is dict and deep:
        return _kept_items(value)
    return str(value)[: _TEXT + 1] if kind in _PATHS else _Text(_what(value, kind))


def _kept_items(values: dict[Any, Any]) -> dict[str, Any]:
    items = values.items() if len(values) <= _VALUES else list(values.items())[:_VALUES]
    kept = {_key(key): _kept(each, deep=False) for key, each in items}
    if len(values) > _VALUES:
        kept["…"] = _Text(f"+{len(values) - _VALUES}")
    return kept


def _what(value: Any, kind: type[Any]) -> str:
    if kind in (bytes, bytearray):
        return f"{len(value)} bytes"
    if kind in (dict, list, tuple, set, frozenset):
        return f"{_class_name(kind)} of {len(value)}"
    if issubclass(kind, Enum):
        return shorten(value.name, _NAME)
    return value.isoformat() if kind is datetime else _class_name(kind)


def _key(key: Any) -> str:
    return shorten(key, _NAME) if type(key) is str else _class_name(_class(key))


def _class_name(kind: type[Any]) -> str:
    # We bypass kind.__name__, because a metaclass in the program may override it.
    return shorten(type.__dict__["__name__"].__get__(kind), _NAME)


#: The library's own events that have a single value worth showing.
_SPECIAL: dict[type, Callable[[Any], str]] = {CommandEvent: _arguments, LineEvent: _typed, FileBatch: _files}


# -- showing -----------------------------------------------------------------------------------------------------


def _shown(name: str, value: Any) -> str:
    """Return a copied value as text, or ``***`` if it is a secret."""
    if type(value) is _Text:
        return str(value)
    if value is not None and is_secret(name):
        return HIDDEN
    if type(value) is dict:
        kept = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{key}: {_shown(key, each)}" for key, each in kept.items()) + "}"
    return repr(masked(shorten(value, _TEXT))) if type(value) is str else repr(value)
