"""The command of a process worker: its words, and which of them is at fault when it cannot be started."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifecycle.workers.stdio import Command

__all__ = ["check_program", "fault_of", "find_program", "words"]


def words(name: str, argv: tuple[str | os.PathLike[str], ...]) -> tuple[str, ...]:
    """The words of the command of the worker ``name``. Raises ValueError or TypeError for what can be none."""
    if not argv:
        raise ValueError(f"{name!r} has no command; give it, a word each: ProcessWorker({name!r}, 'python', 'app.py')")
    for word in argv:
        if not isinstance(word, str | os.PathLike):
            raise TypeError(f"{word!r} in the command of {name!r} is no word; give each as a string or a path")
    found = tuple(os.fspath(word) for word in argv)
    if any("\0" in word for word in found) or not found[0]:
        raise ValueError(f"the command {found!r} of {name!r} is empty or has a NUL; no program can be given that")
    return found


def check_program(command: Command) -> None:
    """Look for the program before it is handed to `env`, after which nobody could tell what was wrong.

    Raises:
        OSError: if it is not there, may not be executed, or would be taken for a variable.
    """
    program = command.argv[0]
    if "=" in program:
        raise OSError(errno.EINVAL, f"env would take {program!r} for a variable; call it by another name")
    find_program(program, command)


def find_program(program: str, command: Command) -> str:
    """The file of ``program``, where ``command`` runs, on the PATH that it has. Raises OSError as the system would."""
    at = Path(command.cwd or "", program)
    found = _found(at if os.sep in program else program, command)
    if found is None:
        code = errno.EACCES if os.sep in program and at.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), program)
    return str(found)


def fault_of(command: Command, error: OSError) -> str:
    """Which part of the command is at fault, and what to do."""
    if command.cwd is not None and error.filename == command.cwd:
        return f"cwd={command.cwd!r} cannot be entered ({error.strerror}); make it, or give another"
    program = command.argv[0]
    match error:
        case FileNotFoundError():
            fault = _missing(program, Path(command.cwd or "", program))
        # The system says so, too, where a directory of PATH may not be searched.
        case PermissionError() if os.sep not in program and _found(program, command, os.F_OK) is None:
            fault = _missing(program, Path(program))
        case PermissionError():
            fault = "is not executable; try `chmod +x`, or name its interpreter first"
        case OSError(errno=errno.ENOEXEC):
            fault = "is no program for this machine; a script needs a first line with #!"
        case _:
            fault = f"could not be executed: {error}"
    return f"the command {program!r} {fault}"


def _found(program: str | Path, command: Command, mode: int = os.F_OK | os.X_OK) -> str | Path | None:
    """The file that it is, on the PATH that the child will have."""
    return shutil.which(program, mode, command.env.get("PATH", os.defpath))


def _missing(program: str, path: Path) -> str:
    if os.sep in program:
        exists = path.exists()
        return "has a first line (#!) whose interpreter is missing" if exists else "does not exist; check the path"
    hint = ", or give its words one by one" if " " in program else ""
    return f"was not found on PATH; check its spelling, give its full path{hint}"
