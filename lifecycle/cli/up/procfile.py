"""The lines of a Procfile: ``name: command``, comments and blank lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lifecycle.cli.config import read_text
from lifecycle.cli.failures import ConfigError
from lifecycle.cli.up.processes import Process

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "parse_procfile", "read_procfile"]

#: What a process can be called, here and in tables: it is shown, and is the name of a file.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_LINE = re.compile(rf"(?P<name>{NAME.pattern})[ \t]*:[ \t]*(?P<command>.*\S)[ \t]*")
#: From the port of one process to that of the next, as in foreman.
_PORTS = 100


def read_procfile(file: Path) -> tuple[Process, ...]:
    """The processes of ``file``, one a line.

    Raises:
        ConfigError: for a file that cannot be read, naming the line where that is the reason.
    """
    return parse_procfile(read_text(file), file)


def parse_procfile(text: str, file: Path) -> tuple[Process, ...]:
    """The processes of ``text``, which run beside ``file``.

    Raises:
        ConfigError: naming the line.
    """
    found: dict[str, Process] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, command = _parse(line.strip(), f"{file}:{number}")
        if name in found:
            raise ConfigError(f"{file}:{number}: {name} is there already, in line {lines[name]}; give it another name")
        found[name] = Process(name, command, cwd=file.parent, port=_PORTS * len(found))
        lines[name] = number
    return tuple(found.values())


def _parse(line: str, where: str) -> tuple[str, str]:
    read = _LINE.fullmatch(line)
    if read is None or "\0" in line:
        raise ConfigError(f"{where}: {line!r} is no process; write NAME: COMMAND, such as 'web: python app.py'")
    return read["name"], read["command"]
