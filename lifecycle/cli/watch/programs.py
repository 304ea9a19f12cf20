"""Finding the program that a command names, and the Python that will run it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.cli.failures import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["arguments", "find_program", "interpreter"]

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[dt]?(?:\.exe)?")
#: How pip starts a script whose interpreter has a path too long for ``#!``.
_LONG_SHEBANG = re.compile(rb"'''exec' (.+) \"\$0\"")


def arguments(command: Sequence[str], *, shell: bool, env: Mapping[str, str]) -> tuple[str, ...]:
    """What is executed: the program with its full path, and the arguments as given.

    With ``shell`` the words become one line for ``$SHELL``, as `ssh` does it.

    Raises:
        UsageError: for a program that is not there or cannot be executed; the message says which.
    """
    if shell:
        return find_program(env.get("SHELL") or "/bin/sh", env), "-c", " ".join(command)
    return find_program(command[0], env), *command[1:]


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The path of the program ``name``, looked up as a shell does.

    Raises:
        UsageError: for a program that is not there or cannot be executed; the message says which.
    """
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is not None:
        return found if "/" not in name else name
    raise UsageError(_why_not(name))


def interpreter(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The Python that runs ``argv``, where that can be known without running it.

    It can where the program is a Python, or a script whose first line names one (uvicorn, flask, gunicorn).
    Behind ``uv run``, ``poetry run`` or a shell it cannot: None.
    """
    program = Path(argv[0])
    if _PYTHON.fullmatch(program.name):
        return argv[0]
    words = _shebang(program)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0], path=env.get("PATH", os.defpath))


def _shebang(program: Path) -> list[str]:
    """The words of the first line that say who reads the rest; none for anything else."""
    try:
        with program.open("rb") as stream:
            first, second = stream.readline(4096), stream.readline(4096)
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    line = first[2:]
    if long := _LONG_SHEBANG.match(second):
        line = long[1]
    try:
        return shlex.split(os.fsdecode(line))
    except ValueError:
        return []


def _why_not(name: str) -> str:
    """Why a program cannot be executed, and what to do."""
    if "/" not in name:
        here = f"; for the one in this directory: ./{name}" if Path(name).is_file() else "; is it installed?"
        return f"{name!r}: command not found on PATH{here}"
    path = Path(name)
    if not path.exists():
        return f"{name!r}: no such file"
    if path.is_dir():
        return f"{name!r}: is a directory, not a program"
    run = f", or run it with python {name}" if path.suffix == ".py" else ""
    return f"{name!r}: is not executable; chmod +x {shlex.quote(name)}{run}"
