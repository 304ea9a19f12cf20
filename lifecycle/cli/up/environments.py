"""What a process finds in its environment, the strongest first: its own ``env``, ours, its ``env-file``, ``.env``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lifecycle.cli.failures import ConfigError
from lifecycle.cli.variables import read_env

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.cli.up.processes import Process

__all__ = ["environment"]

#: The PORT of the first process where nobody says another, as foreman has it.
_FIRST_PORT: Final = "5000"
_HIGHEST_PORT: Final = 65_535


def environment(process: Process, shared: Path) -> dict[str, str]:
    """All of it for ``process``, read anew; ``shared`` is the ``.env`` file of all, which may be missing.

    Raises:
        ConfigError: for a file that cannot be read, or a PORT that is none.
    """
    files = {
        **(read_env(shared) if shared.is_file() else {}),
        **(read_env(process.env_file) if process.env_file else {}),
    }
    # Output goes through a pipe, and Python shall not keep it back.
    found = {"PYTHONUNBUFFERED": "1", **files, **os.environ}
    if process.port is not None:
        found["PORT"] = _port(found.get("PORT") or _FIRST_PORT, process.port)
    return {**found, **process.env}


def _port(first: str, more: int) -> str:
    if not (first.isascii() and first.isdecimal()) or int(first) + more > _HIGHEST_PORT:
        raise ConfigError(f"PORT={first!r} is no first port for the processes; give one such as {_FIRST_PORT}")
    return str(int(first) + more)
