"""The program's notes: one JSON object per line, in one file for all runs. A kill never leaves part of a line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "Notes"]

#: The name of the file.
NAME = "notes"


class Notes:
    """Writes notes for one run of the program. Any thread and any pool worker can use it."""

    def __init__(self, directory: Path, life: int) -> None:
        self.directory, self.life = directory, life
        self._file = os.open(directory / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, kind: str, *what: Any) -> None:
        """Write one line immediately, with a single system call."""
        os.write(self._file, f"{json.dumps([self.life, kind, *what])}\n".encode())

    def wrong(self, what: str) -> None:
        """Report a violation, which stops the soak."""
        self.note("wrong", what)
