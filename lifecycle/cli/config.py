"""Tables of TOML files; above all ``[tool.lifecycle.watch]`` of the nearest ``pyproject.toml`` that has it.

Its keys are the long names of the options, besides ``paths`` and ``command``. Paths and globs start at the
directory of the file.
"""

from __future__ import annotations

import difflib
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.failures import ConfigError
from lifecycle.cli.globs import Glob
from lifecycle.cli.options import OPTIONS, Flag, Option
from lifecycle.cli.values import Rule
from lifecycle.cli.values import path as read_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["did_you_mean", "find_table", "load_table", "read_table", "read_value", "shown", "texts"]

_NAMES = ("tool", "lifecycle", "watch")
_TABLE = f"[{'.'.join(_NAMES)}]"
_FILE = "pyproject.toml"


def find_table(here: Path) -> dict[str, Any]:
    """What the nearest ``pyproject.toml`` with our table says, as fields of the settings; nothing without one.

    Raises:
        ConfigError: for a file that cannot be read, or a key or value that is wrong.
    """
    for directory in (here, *here.parents):
        table = load_table(directory / _FILE, *_NAMES)
        if table is not None:
            return read_table(table, directory / _FILE)
    return {}


def read_table(table: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The fields of the settings that ``table`` gives.

    Raises:
        ConfigError: naming file, key, what was given and what is accepted.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        try:
            field, read = _read(key, value, file.parent)
        except ValueError as error:
            raise ConfigError(f"{file}: {_TABLE} {error}") from None
        if field in found:
            raise ConfigError(f"{file}: {_TABLE} {key} says the same as another key; keep one of them")
        found[field] = read
    return found


def load_table(file: Path, *names: str) -> Mapping[str, Any] | None:
    """The table ``[names…]`` of ``file``; None without the file, or without the table.

    Raises:
        ConfigError: for a file that cannot be read, naming the position, or for something else in the table's place.
    """
    try:
        with file.open("rb") as stream:
            table: Any = tomllib.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    for name in names:
        table = cast("dict[str, Any]", table).get(name) if isinstance(table, dict) else None
    if table is not None and not isinstance(table, dict):
        name = ".".join(names)
        raise ConfigError(f"{file}: {name} = {table!r} is no table; write [{name}] above the keys")
    return cast("dict[str, Any] | None", table)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """What to do about the unknown ``given``: the one of ``known`` that it is close to, else all of them."""
    close = difflib.get_close_matches(given, known := sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _read(key: str, value: Any, base: Path) -> tuple[str, Any]:
    """The field that ``key`` fills, and what it fills it with; `ValueError` says what is wrong."""
    if key == "command":
        return key, _command(value)
    if key == "paths":
        return key, _paths(value, base)
    option, negated = _option(key)
    if isinstance(option, Flag):
        return option.field, _flag(key, value) is not negated
    return option.field, _from(base, read_value(option, value))


def _from(base: Path, read: Any) -> Any:
    """Paths and globs start at ``base``."""
    match read:
        case Path():
            return base / read
        case tuple():
            return tuple(each.at(base) if isinstance(each, Glob | Rule) else each for each in cast("Any", read))
        case _:
            return read


def _option(key: str) -> tuple[Option | Flag, bool]:
    # Also with the underscores that they have in Python.
    name = key.replace("_", "-")
    for option in OPTIONS:
        if name == option.name:
            return option, False
        if isinstance(option, Flag) and name == f"no-{option.name}":
            return option, True
    known = ["command", "paths", *(each.shown if isinstance(each, Flag) else each.name for each in OPTIONS)]
    raise ValueError(f"{key} is not known; {did_you_mean(name, known)}")


def read_value(option: Option, value: Any) -> Any:
    """What ``value``, as a file gives it, means for ``option``.

    Raises:
        ValueError: naming the option, what was given and what is accepted.
    """
    if option.many:
        parts = (part for text in texts(option.name, value) for part in _parse(option, text))
        return tuple(parts)
    if option.number:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{option.name} = {shown(value)} is no number; give one without quotes, such as 5")
        return _parse(option, str(value))
    if not isinstance(value, str):
        raise ValueError(f"{option.name} = {shown(value)} is no text; give one in quotes")  # noqa: TRY004  # what readers raise
    return _parse(option, value)


def _parse(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        raise ValueError(f"{option.name} = {text if option.number else shown(text)}: {error}") from None


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} = {shown(value)} is neither true nor false; give one of them")  # noqa: TRY004  # readers raise ValueError
    return value


def texts(key: str, value: Any) -> list[str]:
    """One text, or a list of them, as a list.

    Raises:
        ValueError: naming the key and what was given.
    """
    found: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # TOML
    if not all(isinstance(each, str) and each for each in found):
        written = all(isinstance(each, str) for each in found)
        wrong = "has an empty text" if written else "is neither a text nor a list of texts"
        raise ValueError(f'{key} = {shown(value)} {wrong}; give one such as "a" or ["a", "b"]')
    return found


def _paths(value: Any, base: Path) -> tuple[Path, ...]:
    found = tuple(base / read_path(each) for each in texts("paths", value))
    if not found:
        raise ValueError('paths = [] leaves nothing to watch; name one, such as "src", or leave the key out')
    return found


def _command(value: Any) -> tuple[str, ...] | str:
    """A list of arguments, or one text, which is split later: a shell would want it whole."""
    if not isinstance(value, str):
        return tuple(texts("command", value))
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"command = {shown(value)} cannot be split: {error}; close the quote") from None
    return value


def shown(value: Any) -> str:
    """As TOML would write the simple ones."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
