"""``[tool.lifecycle.watch]`` of ``pyproject.toml``: the nearest such table at or above the current directory.

Keys are the long names of the options, besides ``paths`` and ``command``. Paths are relative to the file.
"""

from __future__ import annotations

import difflib
import shlex
import tomllib
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.failures import ConfigError
from lifecycle.cli.options import OPTIONS, Flag, Option
from lifecycle.cli.values import path as read_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["find_table", "read_table"]

_TABLE = "[tool.lifecycle.watch]"
_FILE = "pyproject.toml"


def find_table(here: Path) -> dict[str, Any]:
    """What the nearest ``pyproject.toml`` with our table says, as fields of the settings; nothing without one.

    Raises:
        ConfigError: for a file that cannot be read, or a key or value that is wrong.
    """
    for directory in (here, *here.parents):
        table = _load(directory / _FILE)
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


def _load(file: Path) -> Mapping[str, Any] | None:
    try:
        with file.open("rb") as stream:
            table: Any = tomllib.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    for name in ("tool", "lifecycle", "watch"):
        table = cast("dict[str, Any]", table).get(name) if isinstance(table, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.lifecycle.watch = {table!r} is no table; write {_TABLE} above the keys")
    return cast("dict[str, Any] | None", table)


def _read(key: str, value: Any, base: Path) -> tuple[str, Any]:
    """The field that ``key`` fills, and what it fills it with; `ValueError` says what is wrong."""
    if key == "command":
        return key, _command(value)
    if key == "paths":
        return key, _paths(value, base)
    option, negated = _option(key)
    if isinstance(option, Flag):
        return option.field, _flag(key, value) is not negated
    read = _value(option, value)
    return option.field, base / read if option.read is read_path else read


def _option(key: str) -> tuple[Option | Flag, bool]:
    for option in OPTIONS:
        if key == option.name:
            return option, False
        if isinstance(option, Flag) and key == f"no-{option.name}":
            return option, True
    known = sorted(["command", "paths", *(each.shown if isinstance(each, Flag) else each.name for each in OPTIONS)])
    close = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise ValueError(f"{key} is not known; {hint}")


def _value(option: Option, value: Any) -> Any:
    if option.many:
        parts = (part for text in _texts(option.name, value) for part in _parse(option, text))
        return tuple(parts)
    if option.number:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{option.name} = {_shown(value)} is no number; give seconds, such as 0.5")
        return _parse(option, str(value))
    if not isinstance(value, str):
        raise ValueError(f"{option.name} = {_shown(value)} is no text; give one in quotes")  # noqa: TRY004  # what readers raise
    return _parse(option, value)


def _parse(option: Option, text: str) -> Any:
    try:
        return option.read(text)
    except ValueError as error:
        raise ValueError(f"{option.name} = {text if option.number else _shown(text)}: {error}") from None


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} = {_shown(value)} is neither true nor false; give one of them")  # noqa: TRY004  # readers raise ValueError
    return value


def _texts(key: str, value: Any) -> list[str]:
    texts: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # TOML
    if not all(isinstance(each, str) and each for each in texts):
        raise ValueError(f'{key} = {_shown(value)} is neither a text nor a list of texts; give one such as ["a", "b"]')
    return texts


def _paths(value: Any, base: Path) -> tuple[Path, ...]:
    found = tuple(base / read_path(each) for each in _texts("paths", value))
    if not found:
        raise ValueError('paths = [] leaves nothing to watch; name one, such as "src", or leave the key out')
    return found


def _command(value: Any) -> tuple[str, ...] | str:
    """A list of arguments, or one text, which is split later: a shell would want it whole."""
    if not isinstance(value, str):
        return tuple(_texts("command", value))
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"command = {_shown(value)} cannot be split: {error}; close the quote") from None
    return value


def _shown(value: Any) -> str:
    """As TOML would write the simple ones."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
