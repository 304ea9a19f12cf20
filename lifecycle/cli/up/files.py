"""Which file says what to run, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lifecycle.cli.config import load_table
from lifecycle.cli.failures import ConfigError
from lifecycle.cli.up.processes import in_order
from lifecycle.cli.up.procfile import read_procfile
from lifecycle.cli.up.tables import read_processes

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.cli.up.processes import Process

__all__ = ["find_file", "read_file"]

#: Looked for in this order, each with the table that it must have; a Procfile has none.
_FILES: Final = {"Procfile": (), "lifecycle.toml": ("up",), "pyproject.toml": ("tool", "lifecycle", "up")}
_EXAMPLE: Final = "such as 'web: python app.py'"


def find_file(here: Path) -> Path:
    """The first file that says what to run, in ``here`` or the nearest directory above it.

    Raises:
        ConfigError: naming what was looked for, or for one that cannot be read.
    """
    for directory in (here, *here.parents):
        for name, table in _FILES.items():
            file = directory / name
            if file.is_file() and (not table or load_table(file, *table) is not None):
                return file
    raise ConfigError(
        f"nothing says what to run: there is no Procfile, no lifecycle.toml with [up.NAME] and no pyproject.toml with "
        f"[tool.lifecycle.up.NAME] in {here} or above it; write a Procfile with lines {_EXAMPLE}, or give -f FILE"
    )


def read_file(file: Path) -> tuple[Process, ...]:
    """The processes that ``file`` has, in the order of their starts; one that ends in ``.toml`` has tables.

    Raises:
        ConfigError: for a file that is missing or wrong, or has none.
    """
    if not file.exists():
        raise ConfigError(f"{file}: no such file")
    names = _FILES["pyproject.toml" if file.name == "pyproject.toml" else "lifecycle.toml"]
    if file.suffix != ".toml":
        found, example = read_procfile(file), f"lines {_EXAMPLE}"
    else:
        title = ".".join(names)
        found, example = read_processes(load_table(file, *names) or {}, file, title), f"tables [{title}.NAME]"
    if not found:
        raise ConfigError(f"{file} names no process; write {example}")
    return in_order(found, file)
