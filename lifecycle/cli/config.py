"""Configuration files, whatever they configure: their text, their tables, and how to say what is wrong with a value."""

from __future__ import annotations

import difflib
import tomllib
from typing import TYPE_CHECKING, Any, cast

from lifecycle.cli.failures import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["did_you_mean", "load_table", "read_text", "shown", "texts"]


def read_text(file: Path) -> str:
    """What ``file`` holds, without a mark of its encoding.

    Raises:
        ConfigError: for a file that cannot be read, or is no UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is no text in UTF-8; save it so") from None


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


def shown(value: Any) -> str:
    """As TOML would write the simple ones."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
