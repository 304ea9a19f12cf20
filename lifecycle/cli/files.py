"""Functions that read files and variables: TOML tables, .env files, databases and secrets."""

from __future__ import annotations

import io
import os
import re
from collections import ChainMap
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final, cast

from lifecycle._util import file_mode
from lifecycle.cli.output import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from typing import Self

    from lifecycle.journal import Schema

__all__ = [
    "Replaced",
    "check_file",
    "did_you_mean",
    "interpolated",
    "load_table",
    "parse_env",
    "permissions_checked",
    "read_env",
    "read_text",
    "secret_in",
    "shown",
    "texts",
]


@contextmanager
def permissions_checked() -> Generator[None]:
    """Convert a `PermissionError` to a `ConfigError` that names the inaccessible file or directory."""
    try:
        yield
    except PermissionError as error:
        if not isinstance(error.filename, str):
            raise
        path = Path(os.path.abspath(error.filename))  # noqa: PTH100  # removes ``..``
        closed = next((each for each in reversed(path.parents) if not os.access(each, os.X_OK)), path)
        raise ConfigError(f"{closed}: cannot be read: {error.strerror}; change its mode or its owner") from None


def read_text(file: Path) -> str:
    """Return the text in ``file``, without a byte order mark.

    Raises:
        ConfigError: if the file cannot be read or is not valid UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8; save it as UTF-8") from None


def load_table(file: Path, *names: str) -> Mapping[str, Any] | None:
    """Return the table ``[names…]`` from ``file``, or None if the file or the table does not exist.

    Raises:
        ConfigError: if the file cannot be read (the message includes the position), or the value is not a table.
    """
    try:
        with file.open("rb") as stream:
            import tomllib  # slow, and most directories have no such file

            table: Any = tomllib.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply; remove this nesting") from None
    for name in names:
        table = cast("dict[str, Any]", table).get(name) if isinstance(table, dict) else None
    if table is not None and not isinstance(table, dict):
        name = ".".join(names)
        raise ConfigError(f"{file}: {name} = {table!r} is not a table; write [{name}] above the keys")
    return cast("dict[str, Any] | None", table)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Suggest the name in ``known`` that is most similar to ``given``. If none is similar, list all of them."""
    import difflib

    close = difflib.get_close_matches(given, known := sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def texts(key: str, value: Any) -> list[str]:
    """Return a list containing the given string, or the given list of strings.

    Raises:
        ValueError: if the value is anything else. The message contains the key and the value.
    """
    found: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # TOML
    if not all(isinstance(each, str) and each for each in found):
        written = all(isinstance(each, str) for each in found)
        wrong = "contains an empty string" if written else "is neither a string nor a list of strings"
        raise ValueError(f'{key} = {shown(value)} {wrong}; use one such as "a" or ["a", "b"]')
    return found


def shown(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, Replaced):
        value = value.written
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


#: Matches a reference to a variable. A second dollar sign makes it literal text.
_REFERENCE: Final = re.compile(r"\$(?P<literal>\$)?\{(?P<name>[^}:]*)(?::-(?P<default>[^}]*))?\}")


#: The maximum length of an environment variable, and of all of them, on Linux.
_LONGEST_VALUE: Final = 128 * 1024
_LONGEST_ENVIRONMENT: Final = 6 * 1024 * 1024


class Replaced(str):
    """Text in which references to variables were replaced. The values may be secret, so show ``written`` instead."""

    __slots__ = ("written",)

    #: The text before the replacement.
    written: str

    def __new__(cls, text: str, written: str) -> Self:
        """Return ``text`` as an instance that also stores ``written``, the text before the replacement."""
        replaced = super().__new__(cls, text)
        replaced.written = written
        return replaced


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in the strings of a TOML value. ``$${NAME}`` becomes ``${NAME}``.

    Raises:
        ValueError: if a variable is not set and has no default.
    """
    match value:
        case str():
            text = _REFERENCE.sub(lambda found: _replacement(found, variables), value)
            return value if text == value else Replaced(text, value)
        case list():
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]  # TOML
            return [interpolated(each, variables) for each in items]
        case dict():
            return {key: interpolated(each, variables) for key, each in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _replacement(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = found["name"], found["default"]
    if found["literal"]:
        return found[0][1:]
    if default is not None:
        return variables.get(name) or default
    if name not in variables:
        raise ValueError(
            f"${{{name}}} is not set; set {name}, or write ${{{name}:-DEFAULT}}, or $${{{name}}} for the literal text"
        )
    return variables[name]


def read_env(file: Path) -> dict[str, str]:
    """Return the variables defined in a ``.env`` file.

    Raises:
        ConfigError: if the file cannot be read or contains an invalid line, which the message shows.
    """
    return parse_env(read_text(file), str(file))


def parse_env(text: str, name: str) -> dict[str, str]:
    """Return the variables defined in ``text``, which comes from the ``.env`` file ``name``.

    Raises:
        ConfigError: if there is a line that python-dotenv would ignore, or a name or a value that the system does not
            accept.
    """
    # Imported here because the import is slow.
    from dotenv.parser import parse_stream

    from lifecycle._masking import masked

    found: dict[str, str | None] = {}
    # Environment variables that are already set take precedence, even in references.
    variables, left = ChainMap(cast("dict[str, str | None]", os.environ), found), _LONGEST_ENVIRONMENT
    for each in parse_stream(io.StringIO(text)):
        written = each.original.string
        if each.error or "\0" in written or (each.key is not None and (not each.key or "=" in each.key)):
            line = next(iter(written.strip().splitlines()), "")
            raise ConfigError(f"{name}:{each.original.line}: {masked(line)!r} cannot be read; write KEY=VALUE")
        if each.key is not None:
            value = found[each.key] = _resolved(each.value, variables, min(left, _LONGEST_VALUE))
            if value is None and each.value is not None:
                raise ConfigError(
                    f"{name}:{each.original.line}: with its references, the value of {each.key} is too long for an "
                    "environment variable; shorten it"
                )
            left -= len(value or "")
    return {key: value for key, value in found.items() if value is not None}


def _resolved(value: str | None, variables: Mapping[str, str | None], limit: int) -> str | None:
    """Return ``value`` with its references replaced, or None if there is no value, or it exceeds ``limit``."""
    from dotenv.variables import parse_variables

    parts: list[str] = []
    for atom in () if value is None else parse_variables(value):
        parts.append(atom.resolve(variables))
        limit -= len(parts[-1])
        if limit < 0:
            return None
    return None if value is None else "".join(parts)


def secret_in(name: str, option: str = "--secret-env") -> str:
    """Return the secret in the environment variable ``name``, which ``option`` names.

    Raises:
        ConfigError: if the variable is empty or not set.
    """
    secret = os.environ.get(name)
    if not secret:
        raise ConfigError(
            f"the environment variable {name} ({option}) is {'empty' if secret == '' else 'not set'}; "
            "set it to the secret"
        )
    return secret


def check_file(file: Path, schema: Schema, *, lacks: str, given_to: str) -> None:
    """Raise an error unless ``file`` contains ``schema``. This keeps commands from changing unrelated files.

    A damaged file passes the check, because opening it raises a clearer error.

    Args:
        file: the file from the command line.
        schema: the journal schema that the file must contain.
        lacks: the error to raise for any other file, such as "is not an inbox".
        given_to: the class that writes such files, such as "Inbox".

    Raises:
        UsageError: if the file does not exist or does not contain the schema.
    """
    advice = f"use the path that your program passes to {given_to}(…)"
    if not S_ISREG(file_mode(file)):
        raise UsageError(f"no such file: {file}; {advice}")
    if not _has(file, schema):
        raise UsageError(f"{file} {lacks}; {advice}")


def _has(file: Path, schema: Schema) -> bool:
    import sqlite3
    from contextlib import closing

    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM lifecycle_schemas WHERE name = ?", (schema.name,)).fetchone()
    except sqlite3.Error as error:
        return error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return found is not None
