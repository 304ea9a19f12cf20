"""``[tool.lifecycle.watch]`` of the nearest ``pyproject.toml`` that has it, as fields of the settings.

Its keys are the long names of the options, besides ``paths`` and ``command``. Paths and globs start at the
directory of the file.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.config import did_you_mean, load_table, shown, texts
from lifecycle.cli.failures import ConfigError
from lifecycle.cli.globs import Glob
from lifecycle.cli.options import Flag, Option, read_value
from lifecycle.cli.values import Rule
from lifecycle.cli.values import path as read_path
from lifecycle.cli.watch.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["find_table", "read_table"]

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


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} = {shown(value)} is neither true nor false; give one of them")  # noqa: TRY004  # readers raise ValueError
    return value


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
